"""Multi-head attention, Transformer layers, positions: torch's numbers and names, caches, masks."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import fusednn as fn
import fusednn.functional as F
from fusednn import nn

f32 = np.float32
CLOSE = {"rtol": 1e-4, "atol": 1e-5}


def values(*shape: int, seed: int = 0, dtype: Any = f32) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def stirred(module: Any, seed: int = 3) -> Any:
    """Parameters that are all different from 0, the biases too."""
    rng = np.random.default_rng(seed)
    for p in module.parameters():
        p._data[...] = rng.standard_normal(p.shape) * 0.3
    return module


def torch_of() -> Any:
    return pytest.importorskip("torch", reason="torch is not installed (extra 'peers')")


def move(ours: Any, peer: Any, torch: Any) -> None:
    """Our weights into torch's module, by name."""
    state = {k: torch.tensor(v) for k, v in ours.state_dict().items()}
    peer.load_state_dict(state)


# ---- split_heads ---------------------------------------------------------------------------------


@pytest.mark.parametrize("time_first", [False, True])
def test_split_heads(time_first):
    x = values(3, 5, 20, dtype=np.float64)
    parts = [(3, 4), (2, 1), (2, 3)]
    found = F.split_heads(x, parts, time_first)
    assert all(np.shares_memory(one, x) for one in found)
    n, t = (5, 3) if time_first else (3, 5)
    assert [one.shape for one in found] == [(n, 3, t, 4), (n, 2, t, 1), (n, 2, t, 3)]
    np.testing.assert_array_equal(
        found[1][1, 1, 2], x[2, 1, 13:14] if time_first else x[1, 2, 13:14]
    )
    assert fn.testing.gradcheck(lambda x: F.split_heads(x, parts, time_first), x)
    assert fn.testing.gradcheck(lambda x: F.split_heads(x, parts, time_first)[1], x)
    with pytest.raises(ValueError, match=re.escape("shape (3, 5, 20), expected three axes, the")):
        F.split_heads(x, [(3, 4)])


# ---- MultiheadAttention --------------------------------------------------------------------------


def naive_attention(layer: Any, q: Any, k: Any, v: Any, allowed: Any) -> tuple[Any, Any]:
    """Batch-first, in float64, head by head."""
    heads, groups = layer.num_heads, layer.num_kv_heads
    dk, dv = layer.kdim_head, layer.vdim_head
    state = {n: a.astype(np.float64) for n, a in layer.state_dict().items()}
    ends = np.cumsum([0, heads * dk, groups * dk, groups * dv])
    bias = state.get("in_proj_bias", np.zeros(ends[-1]))
    projected = []
    for i, (name, x) in enumerate(zip("qkv", (q, k, v), strict=True)):
        rows = slice(ends[i], ends[i + 1])
        w = state.get(f"{name}_proj_weight")
        w = state["in_proj_weight"][rows] if w is None else w
        projected.append(x.astype(np.float64) @ w.T + bias[rows])
    outs, weights = [], []
    for h in range(heads):
        g = h // (heads // groups)
        a = projected[0][..., h * dk : (h + 1) * dk]
        b = projected[1][..., g * dk : (g + 1) * dk]
        c = projected[2][..., g * dv : (g + 1) * dv]
        scores = np.where(allowed, a @ b.swapaxes(1, 2) / np.sqrt(dk), -np.inf)
        top = np.maximum(scores.max(-1, keepdims=True), -1e300)
        e = np.exp(scores - top)
        total = e.sum(-1, keepdims=True)
        p = np.divide(e, total, out=np.zeros_like(e), where=total > 0)
        weights.append(p)
        outs.append(p @ c)
    out = np.concatenate(outs, -1) @ state["out_proj.weight"].T
    return out + state.get("out_proj.bias", 0), np.stack(weights, 1)


@pytest.mark.parametrize(
    "options",
    [{}, {"num_kv_heads": 2}, {"num_kv_heads": 1}, {"kdim_head": 3, "vdim_head": 5},
     {"kdim": 6, "vdim": 7}, {"kdim": 6, "vdim": 7, "num_kv_heads": 2, "vdim_head": 4},
     {"bias": False}],
)  # fmt: skip
@pytest.mark.parametrize("batch_first", [True, False])
def test_attention_by_its_definition(options, batch_first):
    layer = stirred(nn.MultiheadAttention(8, 4, batch_first=batch_first, **options))
    q, k, v = values(2, 5, 8), values(2, 6, layer.kdim, seed=1), values(2, 6, layer.vdim, seed=2)
    blocked = np.random.default_rng(4).random((5, 6)) < 0.4
    padding = np.arange(6) >= np.array([[4], [6]])
    allowed = ~blocked & ~padding[:, None]
    expected, weights = naive_attention(layer, q, k, v, allowed)
    turn = (lambda a: a) if batch_first else (lambda a: a.swapaxes(0, 1))
    out, found = layer(
        turn(q), turn(k), turn(v), key_padding_mask=padding, attn_mask=blocked,
        average_attn_weights=False,
    )  # fmt: skip
    np.testing.assert_allclose(turn(out.numpy()), expected, **CLOSE)
    assert isinstance(found, fn.Tensor)
    np.testing.assert_allclose(found.numpy(), weights, **CLOSE)
    out, none = layer(
        turn(q), turn(k), turn(v), padding, need_weights=False, attn_mask=blocked
    )  # fmt: skip
    assert none is None
    np.testing.assert_allclose(turn(out.numpy()), expected, **CLOSE)
    _, mean = layer(turn(q), turn(k), turn(v), padding, attn_mask=blocked)
    np.testing.assert_allclose(np.asarray(mean), weights.mean(1), **CLOSE)


def test_a_query_without_keys_gives_the_bias():
    layer = stirred(nn.MultiheadAttention(4, 1, batch_first=True))
    x = fn.tensor(values(1, 2, 4), requires_grad=True)
    blocked = np.array([[False, False], [True, True]])
    out, weights = layer(x, x, x, attn_mask=blocked)
    np.testing.assert_array_equal(out[0, 1].numpy(), layer.out_proj.bias.numpy())
    assert np.asarray(weights)[0, 1].tolist() == [0, 0]
    out.sum().backward()
    assert np.isfinite(x.grad.numpy()).all()


def test_self_attention_projects_once():
    """Given one array three times, the joint projection is used; the result is the same."""
    layer = stirred(nn.MultiheadAttention(6, 2, batch_first=True))
    x = values(2, 4, 6)
    once = layer(x, x, x)[0].numpy()
    thrice = layer(x, x.copy(), x.copy())[0].numpy()
    np.testing.assert_allclose(once, thrice, **CLOSE)


@pytest.mark.parametrize("options", [{}, {"num_kv_heads": 1}, {"rotary_dim": 4}])
def test_cache_gives_what_the_whole_sequence_gives(options):
    layer = stirred(nn.MultiheadAttention(8, 2, batch_first=True, **options)).eval()
    x = values(2, 9, 8)
    whole, _ = layer(x, x, x, need_weights=False, is_causal=True)
    cache = nn.KVCache()
    with fn.no_grad():
        steps = []
        for part in (x[:, :4], x[:, 4:5], x[:, 5:8], x[:, 8:]):
            out, _ = layer(part, part, part, need_weights=False, is_causal=True, cache=cache)
            steps.append(out.numpy())
    np.testing.assert_allclose(np.concatenate(steps, 1), whole.numpy(), **CLOSE)
    assert cache.length == 9
    with pytest.raises(ValueError, match="a cache holds no gradients"):
        layer(x, x, x, cache=nn.KVCache())


def test_rotary_attention_knows_distances_alone():
    layer = stirred(nn.MultiheadAttention(8, 2, batch_first=True, rotary_dim=4)).eval()
    x = values(1, 6, 8)
    plain = stirred(nn.MultiheadAttention(8, 2, batch_first=True)).eval()
    assert np.abs(layer(x, x, x)[0].numpy() - plain(x, x, x)[0].numpy()).max() > 1e-3
    order = np.random.default_rng(0).permutation(6)
    mixed = x[:, order]
    expected = plain(x, x, x)[0].numpy()[:, order]
    np.testing.assert_allclose(plain(mixed, mixed, mixed)[0].numpy(), expected, **CLOSE)


ATTENTION_CASES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}), ({"batch_first": True}, {}), ({"bias": False}, {}), ({"kdim": 6, "vdim": 7}, {}),
    ({"add_bias_kv": True}, {}), ({"add_zero_attn": True}, {}),
    ({"add_bias_kv": True, "add_zero_attn": True}, {"mask": "bool"}),
    ({}, {"mask": "bool"}), ({}, {"mask": "float"}), ({}, {"mask": "heads"}), ({}, {"pad": True}),
    ({"batch_first": True}, {"mask": "float", "pad": True}),
    ({"batch_first": True}, {"mask": "bool", "pad": True}),
]  # fmt: skip


@pytest.mark.parametrize(("options", "masks"), ATTENTION_CASES)
def test_attention_against_torch(options, masks):
    torch = torch_of()
    ours = stirred(nn.MultiheadAttention(8, 2, **options))
    peer = torch.nn.MultiheadAttention(8, 2, **options)
    assert list(ours.state_dict()) == list(peer.state_dict()) or set(ours.state_dict()) == set(
        peer.state_dict()
    )
    move(ours, peer, torch)
    widths = (8, options.get("kdim", 8), options.get("vdim", 8))
    lengths = (5, 6, 6)
    arrays = [
        values(*((3, t, w) if options.get("batch_first") else (t, 3, w)), seed=i)
        for i, (t, w) in enumerate(zip(lengths, widths, strict=True))
    ]
    rng = np.random.default_rng(9)
    mask = {
        None: None, "bool": rng.random((5, 6)) < 0.3, "float": values(5, 6, seed=8),
        "heads": rng.random((6, 5, 6)) < 0.3,
    }[masks.get("mask")]  # fmt: skip
    if mask is not None and mask.dtype == bool:
        mask[..., 0] = False  # torch gives NaN where a query sees no key
    pad = np.arange(6) >= np.array([[4], [6], [2]]) if masks.get("pad") else None
    a = [fn.tensor(one, requires_grad=True) for one in arrays]
    b = [torch.tensor(one, requires_grad=True) for one in arrays]
    y, w = ours(*a, key_padding_mask=pad, attn_mask=mask)
    tensor = lambda m: None if m is None else torch.tensor(m)  # noqa: E731
    peer_pad = tensor(pad)
    if peer_pad is not None and mask is not None and mask.dtype != bool:
        peer_pad = torch.zeros(pad.shape).masked_fill(peer_pad, -torch.inf)
    z, u = peer(*b, key_padding_mask=peer_pad, attn_mask=tensor(mask))
    np.testing.assert_allclose(y.numpy(), z.detach().numpy(), **CLOSE)
    np.testing.assert_allclose(np.asarray(w), u.detach().numpy(), **CLOSE)
    grad = values(*y.shape, seed=7)
    y.backward(grad)
    z.backward(torch.tensor(grad))
    for one, two in zip(a, b, strict=True):
        np.testing.assert_allclose(one.grad.numpy(), two.grad.numpy(), rtol=1e-3, atol=1e-4)
    theirs = dict(peer.named_parameters())
    for name, p in ours.named_parameters():
        np.testing.assert_allclose(
            p.grad.numpy(), theirs[name].grad.numpy(), rtol=1e-3, atol=2e-4, err_msg=name
        )


def test_attention_without_a_batch_against_torch():
    torch = torch_of()
    ours = stirred(nn.MultiheadAttention(8, 2))
    peer = torch.nn.MultiheadAttention(8, 2)
    move(ours, peer, torch)
    x, pad = values(5, 8), np.array([False, False, False, True, True])
    y, w = ours(x, x, x, key_padding_mask=pad)
    t = torch.tensor(x)
    z, u = peer(t, t, t, key_padding_mask=torch.tensor(pad))
    np.testing.assert_allclose(y.numpy(), z.detach().numpy(), **CLOSE)
    np.testing.assert_allclose(np.asarray(w), u.detach().numpy(), **CLOSE)
    assert y.shape == (5, 8)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda m, x: m(x, x[..., :4], x), ValueError,
         "MultiheadAttention: key has shape (2, 5, 4), expected (N, T, 8) with N = 2"),
        (lambda m, x: m(x, x, x[:, :3]), ValueError,
         "MultiheadAttention: key has shape (2, 5, 8), value (2, 3, 8): they differ in length"),
        (lambda m, x: m(x, x, x, attn_mask=np.zeros((5, 4), bool)), ValueError,
         "MultiheadAttention: attn_mask has shape (5, 4), expected (5, 5) or (4, 5, 5)"),
        (lambda m, x: m(x, x, x, np.zeros((2, 4), bool)), ValueError,
         "MultiheadAttention: key_padding_mask has shape (2, 4), expected (2, 5)"),
        (lambda m, x: m(x, x, x, np.zeros((2, 5), np.uint8)), TypeError,
         "MultiheadAttention: key_padding_mask has dtype uint8, expected bool (True = blocked)"),
        (lambda m, x: nn.MultiheadAttention(8, 3), ValueError,
         "MultiheadAttention: embed_dim=8 must be divisible by num_heads=3"),
        (lambda m, x: nn.MultiheadAttention(8, 4, num_kv_heads=3), ValueError,
         "MultiheadAttention: num_heads=4 must be divisible by num_kv_heads=3"),
        (lambda m, x: nn.MultiheadAttention(8, 2, kdim_head=0, vdim_head=3), ValueError,
         "MultiheadAttention: kdim_head=0, expected at least 1"),
        (lambda m, x: nn.MultiheadAttention(8, 2, vdim_head=-1), ValueError,
         "MultiheadAttention: vdim_head=-1, expected at least 1"),
        (lambda m, x: nn.MultiheadAttention(8, 2, kdim="8"), TypeError,
         "MultiheadAttention: kdim must be an int, got str"),
        (lambda m, x: nn.MultiheadAttention(8, 2, 1.5), ValueError,
         "MultiheadAttention: dropout=1.5, expected a probability in [0, 1]"),
        (lambda m, x: nn.MultiheadAttention(8, 2, rotary_dim=3), ValueError,
         "MultiheadAttention: rotary_dim=3, expected an even number up to the width of a head, 4"),
        (lambda m, x: nn.MultiheadAttention(8, 2, rotary_dim=6), ValueError,
         "MultiheadAttention: rotary_dim=6, expected an even number up to the width of a head, 4"),
        (lambda m, x: nn.TransformerEncoderLayer(8, 2, activation="swish"), ValueError,
         "TransformerEncoderLayer: activation='swish', expected 'relu', 'gelu', 'silu' or"),
    ],
)  # fmt: skip
def test_refused_calls(call, error, text):
    layer = nn.MultiheadAttention(8, 2, batch_first=True)
    with pytest.raises(error, match=re.escape(text)):
        call(layer, values(2, 5, 8))


def test_weights_changed_before_backward_are_noticed():
    layer = stirred(nn.MultiheadAttention(8, 2, batch_first=True))
    x = fn.tensor(values(1, 4, 8), requires_grad=True)
    out, _ = layer(x, values(1, 5, 8), values(1, 5, 8, seed=1))
    with fn.no_grad():
        layer.in_proj_weight.mul_(2)
    with pytest.raises(RuntimeError, match="was changed in place"):
        out.sum().backward()


def test_memory_is_projected_as_keys_and_values_at_once():
    layer = stirred(nn.MultiheadAttention(8, 2, batch_first=True))
    x, memory = values(1, 4, 8), values(1, 5, 8, seed=1)
    grads = []
    for second in (memory, memory.copy()):
        for p in layer.parameters():
            p.grad = None
        out, _ = layer(x, memory, second)
        out.sum().backward()
        grads.append([out.numpy(), *(p.grad.numpy() for p in layer.parameters())])
    for a, b in zip(*grads, strict=True):
        np.testing.assert_allclose(a, b, **CLOSE)


# ---- encoder, decoder ----------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("batch_first", [False, True])
def test_transformer_against_torch(norm_first, activation, batch_first):
    torch = torch_of()
    arguments = (8, 2, 2, 2, 12, 0.0, activation, None, None, 1e-5, batch_first, norm_first)
    ours, peer = stirred(nn.Transformer(*arguments)), torch.nn.Transformer(*arguments)
    assert set(ours.state_dict()) == set(peer.state_dict())
    move(ours, peer, torch)
    place = (lambda n, t: (n, t, 8)) if batch_first else (lambda n, t: (t, n, 8))
    src, tgt = values(*place(3, 6)), values(*place(3, 5), seed=1)
    pad = np.arange(6) >= np.array([[4], [6], [3]])
    causal = nn.Transformer.generate_square_subsequent_mask(5)
    a, b = (fn.tensor(one, requires_grad=True) for one in (src, tgt))
    c, d = (torch.tensor(one, requires_grad=True) for one in (src, tgt))
    y = ours(a, b, tgt_mask=causal, src_key_padding_mask=pad, memory_key_padding_mask=pad)
    flag = ours(a, b, tgt_is_causal=True, src_key_padding_mask=pad, memory_key_padding_mask=pad)
    np.testing.assert_allclose(flag.numpy(), y.numpy(), **CLOSE)
    tp = torch.tensor(pad)
    z = peer(
        c, d, tgt_mask=torch.tensor(causal), src_key_padding_mask=tp, memory_key_padding_mask=tp
    )
    np.testing.assert_allclose(y.numpy(), z.detach().numpy(), rtol=1e-3, atol=1e-4)
    grad = values(*y.shape, seed=5)
    y.backward(grad)
    z.backward(torch.tensor(grad))
    for one, two in ((a, c), (b, d)):
        np.testing.assert_allclose(one.grad.numpy(), two.grad.numpy(), rtol=5e-3, atol=5e-4)
    theirs = dict(peer.named_parameters())
    for name, p in ours.named_parameters():
        np.testing.assert_allclose(
            p.grad.numpy(), theirs[name].grad.numpy(), rtol=5e-3, atol=2e-3, err_msg=name
        )


def test_evaluation_and_training_agree_at_real_positions():
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    net = nn.TransformerEncoder(layer, 2)
    x, pad = values(3, 6, 8), np.arange(6) >= np.array([[1], [4], [6]])
    trained = net(x, src_key_padding_mask=pad).numpy()
    evaluated = net.eval()(x, src_key_padding_mask=pad).numpy()
    assert evaluated.shape == (3, 6, 8)
    np.testing.assert_array_equal(evaluated[~pad], trained[~pad])
    changed = x.copy()
    changed[pad] = 99  # what stands in padding never matters
    again = net(changed, src_key_padding_mask=pad).numpy()
    np.testing.assert_array_equal(again[~pad], evaluated[~pad])


def test_other_norms_and_functions_can_stand_in():
    layer = nn.TransformerEncoderLayer(
        8, 2, 16, dropout=0.0, activation=nn.GELU("tanh"), batch_first=True
    )
    layer.norm1, layer.norm2 = nn.RMSNorm(8), nn.Identity()
    x = values(2, 3, 8)
    y = layer(x).numpy()
    attended = layer.self_attn(x, x, x)[0].numpy() + x
    normed = F.rms_norm(attended, 8)
    hidden = F.gelu(F.linear(normed, layer.linear1.weight.numpy(), layer.linear1.bias.numpy()),
                    "tanh")  # fmt: skip
    expected = normed + F.linear(hidden, layer.linear2.weight.numpy(), layer.linear2.bias.numpy())
    np.testing.assert_allclose(y, expected, **CLOSE)


@pytest.mark.parametrize("norm_first", [False, True])
def test_decoder_cache(norm_first):
    layer = nn.TransformerDecoderLayer(8, 2, 12, batch_first=True, norm_first=norm_first)
    net = stirred(nn.TransformerDecoder(layer, 2, nn.LayerNorm(8))).eval()
    memory, tgt = values(2, 6, 8), values(2, 5, 8, seed=1)
    pad = np.arange(6) >= np.array([[4], [6]])
    whole = net(tgt, memory, tgt_is_causal=True, memory_key_padding_mask=pad).numpy()
    cache = net.new_cache()
    with fn.no_grad():
        steps = [
            net(
                tgt[:, i : i + 1], memory, tgt_is_causal=True, memory_key_padding_mask=pad,
                cache=cache,
            ).numpy()
            for i in range(5)
        ]  # fmt: skip
    np.testing.assert_allclose(np.concatenate(steps, 1), whole, rtol=1e-4, atol=1e-4)
    assert cache[0][1].length == 6


def test_copies_of_a_layer_do_not_share():
    net = nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 1, 8), 2)
    assert net.layers[0].linear1.weight is not net.layers[1].linear1.weight


# ---- positions -----------------------------------------------------------------------------------


def test_sinusoidal_positions():
    layer = nn.SinusoidalPositionalEncoding(4)
    table = layer.table()
    expected = [0.8414709848078965, 0.5403023058681398, 0.009999833334166664, 0.9999500004166653]
    np.testing.assert_allclose(table[1], expected, rtol=1e-15)
    assert table[0].tolist() == [0, 1, 0, 1]
    x = values(2, 3, 4)
    np.testing.assert_array_equal(layer(x).numpy(), x + table[:3].astype(f32))
    np.testing.assert_array_equal(layer(x, offset=7).numpy(), x + table[7:10].astype(f32))
    assert layer(x.astype(np.float64)).dtype == np.float64
    assert list(layer.state_dict()) == []


@pytest.mark.parametrize("width", [1, 3, 5, 7])
def test_sinusoidal_positions_of_odd_width(width):
    table = nn.SinusoidalPositionalEncoding(width, 20).table()
    assert table.shape == (20, width)
    for i in range(width):
        angle = np.arange(20) / 10000 ** (i // 2 * 2 / width)
        np.testing.assert_allclose(table[:, i], (np.cos if i % 2 else np.sin)(angle), rtol=1e-12)


def test_positions_beyond_the_table_are_refused():
    layer = nn.SinusoidalPositionalEncoding(4, max_len=5)
    with pytest.raises(ValueError, match="positions 3 to 5 go beyond max_len=5"):
        layer(values(3, 4), offset=3)
    with pytest.raises(ValueError, match=re.escape("x has shape (3, 5), expected (..., T, 4)")):
        layer(values(3, 5))
    with pytest.raises(TypeError, match="x has dtype int64, expected float32 or float64"):
        layer(np.zeros((3, 4), np.int64))


# ---- what attention is ---------------------------------------------------------------------------


def test_attention_does_not_know_order_until_it_is_told():
    layer = stirred(nn.MultiheadAttention(8, 2, batch_first=True)).eval()
    x, order = values(1, 6, 8), np.random.default_rng(1).permutation(6)
    y = layer(x, x, x)[0].numpy()
    mixed = x[:, order]
    np.testing.assert_allclose(layer(mixed, mixed, mixed)[0].numpy(), y[:, order], **CLOSE)
    placed = nn.SinusoidalPositionalEncoding(8)
    a, b = placed(x), placed(mixed)
    difference = layer(b, b, b)[0].numpy() - layer(a, a, a)[0].numpy()[:, order]
    assert np.abs(difference).max() > 1e-2


def test_the_future_has_no_gradient():
    layer = stirred(nn.MultiheadAttention(8, 2, batch_first=True))
    x = fn.tensor(values(1, 6, 8), requires_grad=True)
    out, weights = layer(x, x, x, is_causal=True)
    assert np.triu(np.asarray(weights)[0], 1).max() == 0
    out[0, 2].sum().backward()
    grad = x.grad.numpy()[0]
    assert not grad[3:].any()
    assert grad[:3].any(1).all()
