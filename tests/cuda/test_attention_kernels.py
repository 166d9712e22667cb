"""Attention on the GPU, beside the CPU's in double."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from compare import check, close

import fusednn as fn
import fusednn.functional as F
from fusednn import _core, nn
from fusednn.functional import attention
from fusednn.models import GPT, Seq2SeqTransformer

NAN, INF = np.nan, np.inf

# batch, heads, heads of keys, queries, keys, features, features of values; and options. Tiles have
# 32, 64 or 128 rows and 32 columns, and 64 or 128 features.
CASES: tuple[tuple[tuple[int, ...], dict[str, Any]], ...] = (
    ((1, 1, 1, 1, 1, 1, 1), {}),
    ((2, 2, 2, 5, 7, 3, 4), {}),
    ((1, 1, 1, 0, 3, 4, 4), {}),
    ((1, 1, 1, 3, 0, 4, 4), {}),
    ((2, 1, 1, 2, 3, 0, 4), {}),
    ((1, 2, 1, 33, 65, 16, 8), {"is_causal": True, "enable_gqa": True}),
    ((1, 1, 1, 129, 31, 64, 60), {"is_causal": "lower_right"}),
    ((1, 1, 1, 31, 67, 64, 64), {"is_causal": "lower_right", "window": (9, None)}),
    ((1, 4, 2, 63, 33, 17, 33), {"enable_gqa": True, "window": (5, 3)}),
    ((1, 1, 1, 65, 64, 66, 65), {"is_causal": True, "scale": 0.3}),
    ((1, 1, 1, 20, 40, 130, 140), {"window": 11}),
    ((1, 1, 1, 9, 33, 5, 150), {"softcap": 1.5}),
    ((2, 2, 2, 34, 40, 8, 8), {"lengths": [0, 33]}),
    ((2, 2, 1, 40, 34, 8, 8), {"lengths": ([39, 7], [3, 34]), "enable_gqa": True}),
    ((1, 2, 2, 90, 95, 8, 8), {"cu_seqlens": ([0, 3, 3, 71, 88], [0, 40, 41, 94, 95])}),
    ((2, 1, 1, 70, 70, 4, 4), {"cu_seqlens": [0, 1, 34, 66], "is_causal": True}),
    ((1, 2, 2, 40, 70, 8, 4), {"dropout_p": 0.4, "is_causal": "lower_right"}),
    ((1, 1, 1, 4, 130, 8, 4), {"dropout_p": 1.0}),
    ((1, 6, 2, 3, 70, 9, 33), {"enable_gqa": True, "is_causal": "lower_right"}),
    ((2, 2, 1, 2, 700, 8, 4), {"enable_gqa": True, "lengths": [650, 300]}),
    ((1, 1, 1, 1, 513, 64, 128), {"window": 300, "is_causal": "lower_right"}),
    ((1, 2, 2, 2, 530, 8, 8), {"mask": "bias", "softcap": 3.0, "dropout_p": 0.3}),
    ((1, 1, 1, 66, 70, 8, 8), {"mask": "bool", "softcap": 3.0}),
    ((2, 2, 2, 33, 35, 8, 8), {"mask": "rows", "is_causal": True}),
    ((2, 2, 2, 33, 35, 8, 8), {"mask": "keys"}),
    ((2, 2, 2, 35, 66, 8, 8), {"mask": "bias", "softcap": 2.0, "window": (40, 20)}),
    ((2, 2, 2, 33, 34, 8, 8), {"mask": "shared bias", "is_causal": True}),
    ((2, 2, 1, 33, 67, 8, 8), {"mask": "bias of keys", "enable_gqa": True}),
    ((2, 2, 2, 67, 33, 8, 8), {"mask": "bias of rows", "dropout_p": 0.2}),
    ((2, 2, 2, 5, 6, 8, 8), {"mask": "one bias"}),
    ((1, 2, 2, 70, 80, 8, 8), {"mask": "bias of keys", "cu_seqlens": [0, 33, 66]}),
)  # fmt: skip


def name_of(case):
    return "-".join(map(str, case[0])) + "".join(f" {k}={v}" for k, v in case[1].items())


def mask_of(rng, kind, shape, dtype):
    batch, heads, _, queries, keys = shape[:5]
    sizes = {
        "bool": (batch, heads, queries, keys), "rows": (batch, 1, queries, 1),
        "keys": (batch, 1, 1, keys), "bias": (batch, heads, queries, keys),
        "shared bias": (queries, keys), "bias of keys": (heads, 1, keys),
        "bias of rows": (batch, 1, queries, 1), "one bias": (1, 1),
    }  # fmt: skip
    if kind in ("bool", "rows", "keys"):
        return rng.random(sizes[kind]) < 0.6
    bias = rng.standard_normal(sizes[kind]).astype(dtype)
    if bias.size > 9:
        bias[rng.random(bias.shape) < 0.2] = -INF
    return bias


def inputs(shape, options, dtype, seed=0):
    batch, heads, kv_heads, queries, keys, dim, value_dim = shape
    rng = np.random.default_rng(seed)
    sizes = ((heads, queries, dim), (kv_heads, keys, dim), (kv_heads, keys, value_dim))
    sizes += ((heads, queries, value_dim),)
    q, k, v, dy = (rng.standard_normal((batch, *size)).astype(dtype) for size in sizes)
    mask = mask_of(rng, options["mask"], shape, dtype) if "mask" in options else None
    return q, k, v, mask, dy


def arguments(q, options):
    """Those of the bindings."""
    given = {"dropout_p": 0.0, "window": None, "softcap": None, "lengths": None, "cu_seqlens": None}
    given.update({name: value for name, value in options.items() if name in given})
    fn.manual_seed(5)
    extra = attention._extra(q, *given.values())
    causal = attention._causal(options.get("is_causal", False))
    return causal, options.get("scale"), options.get("enable_gqa", False), extra


def gradients(options):
    def op(q, k, v, mask, dy):
        given = arguments(q, options)
        out, stats = _core.attention_forward(q, k, v, mask, *given, True)
        grads = _core.attention_backward(
            q, k, v, mask, *given, dy, out, stats, mask is not None and mask.dtype != bool
        )
        return out, *grads

    return op


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_forward(xp, dtype, case):
    shape, options = case
    q, k, v, mask, _ = inputs(shape, options, dtype)

    def op(q, k, v, mask):
        return _core.attention_forward(q, k, v, mask, *arguments(q, options), False)[0]

    check(xp, op, q, k, v, mask, units=256)


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_weights(xp, dtype, case):
    shape, options = case
    q, k, _, mask, _ = inputs(shape, options, dtype)
    named = {k: v for k, v in options.items() if k not in ("dropout_p", "mask")}
    check(xp, lambda q, k, m: F.attention_weights(q, k, m, **named), q, k, mask, units=256)


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_gradients(xp, dtype, case):
    shape, options = case
    q, k, v, mask, dy = inputs(shape, options, dtype)
    scale = np.sqrt(max(q.size, k.size, 1)) if mask is not None else 4.0
    check(xp, gradients(options), q, k, v, mask, dy, units=512, scale=scale)


@pytest.mark.parametrize("case", [CASES[5], CASES[12], CASES[22]], ids=name_of)
def test_gradients_of_weights(xp, dtype, case):
    shape, options = case
    q, k, _, mask, _ = inputs(shape, options, dtype)
    dw = np.random.default_rng(3).standard_normal((*q.shape[:3], k.shape[2])).astype(dtype)

    def op(q, k, mask, dw):
        given = arguments(q, options)
        weights, stats = _core.attention_weights(q, k, mask, *given, True)
        grads = _core.attention_weights_backward(
            q, k, mask, *given, dw, weights, stats, mask is not None
        )
        return tuple(one for one in grads if one is not None)

    check(xp, op, q, k, mask, dw, units=512, scale=4.0)


@pytest.mark.parametrize("number", [6, 8, 14, 16, 23])
def test_any_order(xp, number, order):
    shape, options = CASES[number]
    q, k, v, mask, dy = inputs(shape, options, "float32")
    check(xp, gradients(options), q, k, v, mask, dy, units=512, scale=16.0)


def test_one_key_has_nearly_all_weight(xp, dtype):
    q, k, v, _, dy = inputs((1, 2, 2, 40, 70, 8, 8), {}, dtype)
    results = []
    for options in ({"scale": 4.0}, {"scale": 4.0, "softcap": 30.0, "is_causal": True}):
        results.append(check(xp, gradients(options), q, k, v, None, dy, units=4096))
    assert results


def test_one_key_leaves_little_to_the_others(xp, dtype):
    """Its own dS, taken as a difference of dP, would be rounding error beside theirs."""
    q, k, v, _, dy = inputs((1, 1, 1, 5, 9, 8, 8), {}, dtype)
    q[..., 0], k[..., 0], k[:, :, 3, 0] = 4, 0, 4
    check(xp, gradients({"scale": 0.75}), q, k, v, None, dy, units=4096, scale=1e-5)


@pytest.mark.parametrize("causal", [True, "lower_right"])
def test_hidden_numbers_never_matter(xp, dtype, causal):
    q, k, v, _, dy = inputs((1, 2, 2, 40, 40, 8, 8), {}, dtype)
    k[0, 0, 25:, 1], v[0, 0, 30:, 3], v[0, 1, 33], v[0, 1, 35, 2] = NAN, NAN, INF, -INF
    q[0, 1, 36], dy[0, 0, 10] = NAN, INF
    check(xp, gradients({"is_causal": causal}), q, k, v, None, dy, units=512, scale=4.0)
    mask = np.ones((40, 40), bool)
    mask[:, 25:] = False
    check(xp, gradients({}), q, k, v, mask, dy, units=512, scale=4.0)


def test_forward_of_few_queries_without_hidden_numbers(xp, dtype):
    q, k, v, _, _ = inputs((1, 2, 2, 3, 40, 8, 8), {}, dtype)
    k[0, 0, 38:, 1], v[0, 0, 25:, 3], v[0, 1, 33], v[0, 1, 39, 2] = NAN, NAN, INF, -INF
    mask = np.arange(40) < 25

    def op(q, k, v, mask):
        return _core.attention_forward(q, k, v, mask, *arguments(q, {}), False)[0]

    check(xp, op, q, k, v, mask[None].repeat(3, 0), units=256)


@pytest.mark.parametrize("what", [NAN, INF, -INF])
def test_numbers_that_are_none(xp, dtype, what):
    q, k, v, _, dy = inputs((1, 1, 1, 35, 40, 8, 8), {}, dtype)
    for array, row in ((q, 3), (k, 20), (v, 34)):
        changed = [one.copy() for one in (q, k, v)]
        changed[[q is array, k is array, v is array].index(True)][0, 0, row, 2] = what
        check(xp, gradients({}), *changed, None, dy, units=512, scale=4.0)
    bias = np.zeros((35, 40), dtype)
    bias[4], bias[5, 7] = -INF, what
    check(xp, gradients({}), q, k, v, bias, dy, units=512, scale=4.0)


def test_rows_anywhere(xp, dtype):
    """Heads beside each other, in the rows of one projection: nothing is copied."""
    joint = np.random.default_rng(0).standard_normal((2, 9, 3, 2, 8)).astype(dtype)

    def op(x):
        q, k, v = (x[:, :, part].swapaxes(1, 2) for part in range(3))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    out = check(xp, op, joint, units=256)
    assert out.swapaxes(1, 2).flags.c_contiguous
    # A row's start is no multiple of 16 bytes.
    check(
        xp,
        lambda x: F.scaled_dot_product_attention(x[..., 1:], x[..., :7], x[..., 2:6]),
        joint[:, :, 0], units=256,
    )  # fmt: skip


def test_masks_anywhere(xp, dtype):
    q, k, v, _, _ = inputs((1, 2, 2, 5, 6, 4, 4), {}, dtype)
    rng = np.random.default_rng(0)
    for mask in (rng.random((6, 5)) < 0.5, rng.standard_normal((6, 5)).astype(dtype)):
        check(xp, lambda q, m: F.scaled_dot_product_attention(q, q, q, m), q[..., :5, :], mask[:5])
        check(
            xp, lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m.T), q, k, v, mask,
            units=256,
        )  # fmt: skip


def test_more_axes(xp, dtype):
    x = np.random.default_rng(0).standard_normal((2, 3, 2, 5, 4)).astype(dtype)
    check(xp, lambda x: F.scaled_dot_product_attention(x, x[0], x[:, :1]), x, units=256)
    check(xp, lambda x: F.scaled_dot_product_attention(x, x, x), x[0, 0, 0], units=256)


def test_tensors(xp, dtype):
    q, k, v, _, dy = inputs((2, 4, 2, 9, 11, 8, 8), {}, dtype)
    bias = np.random.default_rng(1).standard_normal((4, 1, 11)).astype(dtype)
    found = []
    for device in ("cuda", "cpu"):
        tensors = [fn.tensor(one, device=device, requires_grad=True) for one in (q, k, v, bias)]
        out = F.scaled_dot_product_attention(
            *tensors, enable_gqa=True, lengths=[5, 11], is_causal=True
        )
        out.backward(fn.tensor(dy, device=device))
        found.append([out.detach().cpu().numpy(), *(t.grad.cpu().numpy() for t in tensors)])
    for got, expected in zip(*found, strict=True):
        close(got, expected.astype("float64"), units=512, scale=4.0)


def test_refused(xp):
    q = xp.zeros((1, 2, 3, 4), "float32")
    with pytest.raises(ValueError, match="key is on the CPU, expected on cuda:0 like query"):
        F.scaled_dot_product_attention(q, np.zeros((1, 2, 3, 4), "float32"), q)
    with pytest.raises(TypeError, match="attn_mask has dtype int64, expected bool"):
        F.scaled_dot_product_attention(q, q, q, xp.zeros((3, 3), "int64"))
    with pytest.raises(ValueError, match=r"lengths\[0\] is 4, expected 0 to 3"):
        F.scaled_dot_product_attention(q, q, q, lengths=[4])
    with pytest.raises(ValueError, match=r"cu_seqlens\[1\] is 4, expected 0 to 3"):
        F.scaled_dot_product_attention(q, q, q, cu_seqlens=xp.asarray(np.array([0, 4])))
    with pytest.raises(ValueError, match="lengths is on the CPU, expected on cuda:0"):
        F.scaled_dot_product_attention(q, q, q, lengths=np.array([2]))


def module_results(device, module, *arrays, **options):
    module.to(device)
    tensors = [fn.tensor(one, device=device, requires_grad=True) for one in arrays]
    out, weights = module(*tensors, **{k: on_device(v, device) for k, v in options.items()})
    (out.sum() + (0 if weights is None else (weights * weights).sum())).backward()
    found = [out, weights, *(t.grad for t in tensors), *(p.grad for p in module.parameters())]
    module.zero_grad()
    return [None if one is None else one.detach().cpu().numpy() for one in found]


def on_device(value, device):
    return fn.tensor(value, device=device) if isinstance(value, np.ndarray) else value


@pytest.mark.parametrize("settings", [
    {}, {"num_kv_heads": 2, "rotary_dim": 2}, {"add_bias_kv": True, "add_zero_attn": True},
    {"batch_first": True, "kdim": 8, "vdim": 8},
], ids=str)  # fmt: skip
@pytest.mark.parametrize("masks", ["none", "causal", "bool", "float"])
def test_multihead_attention(xp, settings, masks):
    fn.manual_seed(0)
    module = nn.MultiheadAttention(8, 4, **settings)
    x = np.random.default_rng(0).standard_normal((5, 5, 8)).astype("float32")
    options: dict[str, Any] = {"is_causal": masks == "causal"}
    if masks in ("bool", "float"):
        blocked = ~np.tri(5, dtype=bool)
        padding = np.zeros((5, 5), bool)
        padding[1, 3:] = True
        if masks == "float":
            blocked = np.where(blocked, -1.5, 0).astype("float32")
        options.update(attn_mask=blocked, key_padding_mask=padding)
    results = [module_results(device, module, x, x, x, **options) for device in ("cuda", "cpu")]
    for got, expected in zip(*results, strict=True):
        assert (got is None) == (expected is None)
        if got is not None:
            close(got, expected.astype("float64"), units=1024, scale=4.0)


@pytest.mark.parametrize("beams", [None, 2])
def test_generation(xp, beams):
    fn.manual_seed(0)
    net = GPT(vocab_size=11, block_size=12, n_layer=1, n_head=2, n_embd=8).eval()
    prompts = [[1, 2, 7], [3]]
    other = Seq2SeqTransformer(9, 7, d_model=8, nhead=2, num_layers=1, dim_feedforward=8).eval()
    sources = [[3, 4, 5], [6, 2]]
    found = []
    for device in ("cpu", "cuda"):
        net.to(device)
        other.to(device)
        temperature = 0.0 if beams is None else 1.0
        found.append(
            net.generate(prompts, 5, temperature=temperature, beams=beams)
            + other.generate(sources, 4, 1, 2, beams=beams)
        )
    for got, expected in zip(*found, strict=True):
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("rotary", [0, 2])
def test_cache(xp, rotary):
    fn.manual_seed(0)
    layer = nn.MultiheadAttention(8, 4, batch_first=True, num_kv_heads=2, rotary_dim=rotary)
    x = np.random.default_rng(0).standard_normal((2, 5, 8)).astype("float32")
    found = []
    for device in ("cpu", "cuda"):
        layer.to(device).eval()
        cache = nn.KVCache()
        with fn.no_grad():
            for begin, end in ((0, 3), (3, 4), (4, 5)):
                part = fn.tensor(x[:, begin:end], device=device)
                out = layer(part, part, part, None, False, is_causal=True, cache=cache)[0]
        found.append(out.cpu().numpy())
    close(found[1], found[0].astype("float64"), units=512)
