"""Attention over keys and values in bfloat16 beside float32 queries: as over the widened ones."""

from __future__ import annotations

import numpy as np
import pytest
from compare import close
from test_attention_kernels import CASES, arguments, inputs, name_of

import fusednn as fn
import fusednn.functional as F
from fusednn import _core, models, nn

ml_dtypes = pytest.importorskip("ml_dtypes")
BF16 = np.dtype(ml_dtypes.bfloat16)
sdpa = F.scaled_dot_product_attention


def placed(xp, *values):
    return [None if one is None else xp.asarray(one) for one in values]


def values_of(shape, options):
    """query, the rounded key and value, and a mask; then those in float64."""
    q, k, v, mask, _ = inputs(shape, options, "float32")
    held = q, k.astype(BF16), v.astype(BF16), mask
    wide = [
        one.astype(np.float64) if one is not None and one.dtype != bool else one for one in held
    ]
    return held, wide


def compare(xp, op, held, exact):
    """op on the GPU, twice with the same bits, beside op in float64, and of the same values as
    over float32 keys and values."""
    with np.errstate(all="ignore"):
        expected = op(*exact)
    got, again = op(*placed(xp, *held)), op(*placed(xp, *held))
    wide = op(*placed(xp, *(one.astype("f") if one.dtype == BF16 else one for one in held[:3])),
              *placed(xp, *held[3:]))  # fmt: skip
    assert got.dtype == np.float32
    got, again, wide = (xp.asnumpy(one) for one in (got, again, wide))
    assert got.tobytes() == again.tobytes()
    close(got, expected, 64)
    close(got, wide, 16)
    return got, wide


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_forward(xp, case):
    shape, options = case

    def op(q, k, v, mask):
        return _core.attention_forward(q, k, v, mask, *arguments(q, options), False)[0]

    got, wide = compare(xp, op, *values_of(shape, options))
    if shape[3] > 8:  # the same kernel, of copies
        np.testing.assert_array_equal(got, wide)


@pytest.mark.parametrize("case", CASES[1:], ids=name_of)
def test_weights(xp, case):
    shape, options = case
    named = {name: value for name, value in options.items() if name != "dropout_p"}

    def op(q, k, v, mask):
        return _core.attention_weights(q, k, mask, *arguments(q, named), False)[0]

    compare(xp, op, *values_of(shape, options))


@pytest.mark.parametrize("queries", [1, 5, 20])
def test_any_order(xp, order, queries):
    held, exact = values_of((2, 4, 2, queries, 300, 40, 24), {})
    compare(xp, lambda q, k, v, _: sdpa(q, k, v, enable_gqa=True), held, exact)


@pytest.mark.parametrize("queries", [2, 12])
@pytest.mark.parametrize("layout", ["room", "odd", "beside", "reversed", "one batch", "one head"])
def test_layouts(xp, queries, layout):
    """Rows that begin anywhere, heads with room behind them, axes that are broadcast."""
    (q, k, v, _), _ = values_of((2, 3, 3, queries, 37, 24, 16), {})
    room = np.full((2, 3, 50, 24), np.nan, "f").astype(BF16)
    room[:, :, :37] = k
    spread = np.full((2, 3, 37, 25), np.nan, "f").astype(BF16)
    spread[..., 1:] = k
    odd = xp.asarray(spread)[..., 1:]
    beside = xp.asarray(np.ascontiguousarray(k.transpose(0, 2, 1, 3))).transpose(0, 2, 1, 3)
    reverse = xp.asarray(np.ascontiguousarray(k[:, :, ::-1, ::-1]))[:, :, ::-1, ::-1]
    key = {
        "room": xp.asarray(room)[:, :, :37], "odd": odd, "beside": beside, "reversed": reverse,
        "one batch": xp.asarray(k[:1]), "one head": xp.asarray(k[:, :1]),
    }[layout]  # fmt: skip
    got = xp.asnumpy(sdpa(xp.asarray(q), key, xp.asarray(v)))
    expected = sdpa(*(one.astype(np.float64) for one in (q, xp.asnumpy(key), v)))
    close(got, expected, 64)


def test_on_the_tensor_cores(xp):
    """bfloat16 has no more digits than TF32 keeps: only query and weights are rounded."""
    held, exact = values_of((1, 2, 2, 40, 70, 32, 32), {})
    fn.set_float32_precision("high")
    try:
        got = xp.asnumpy(sdpa(*placed(xp, *held)[:3]))
    finally:
        fn.set_float32_precision("highest")
    np.testing.assert_allclose(got, sdpa(*exact[:3]), rtol=0, atol=4 * 2.0**-10)


@pytest.mark.parametrize("queries", [1, 20])
def test_hidden_keys_never_matter(xp, queries):
    (q, k, v, _), _ = values_of((1, 2, 2, queries, 40, 16, 20), {})
    mask = np.ones((queries, 40), bool)
    mask[:, [3, 39]] = False
    expected = sdpa(*(one.astype(np.float64) for one in (q, k, v)), mask)
    k[:, :, 3], v[:, :, 39] = np.nan, np.inf
    close(xp.asnumpy(sdpa(*placed(xp, q, k, v, mask))), expected, 64)
    k[0, 1, 5] = np.nan
    got = xp.asnumpy(sdpa(*placed(xp, q, k, v, mask)))
    assert np.isnan(got[0, 1]).all() and not np.isnan(got[0, 0]).any()


def test_refused(xp):
    (q, k, v, _), _ = values_of((1, 2, 2, 3, 5, 8, 8), {})
    text = "scaled_dot_product_attention: "
    cases = (
        ((q.astype("d"), k, v), "key and value in bfloat16 need a float32 query, got float64"),
        ((q, k, v.astype("f")), "either both key and value are bfloat16 or neither is, got value"),
        ((q, k.astype("f"), v), "either both key and value are bfloat16 or neither is, got key"),
        ((q, k.astype("e"), v.astype("e")), "key has dtype float16, expected float32 like query"),
    )
    for arrays, problem in cases:
        with pytest.raises(TypeError, match=f"^{text}{problem}"):
            sdpa(*placed(xp, *arrays))
    leaf = fn.tensor(xp.asarray(q), requires_grad=True)
    with pytest.raises(TypeError, match="no gradient flows where key and value are bfloat16"):
        sdpa(leaf, *placed(xp, k, v))
    with fn.no_grad():
        assert sdpa(leaf, *placed(xp, k, v)).dtype == np.float32


def test_cache(xp):
    """nn.KVCache(dtype="bfloat16") beside the CPU's: rounded alike."""
    fn.manual_seed(0)
    layer = nn.MultiheadAttention(32, 4, batch_first=True, num_kv_heads=2, rotary_dim=8).eval()
    x = np.random.default_rng(0).standard_normal((2, 16, 32)).astype("f")
    outs, caches = [], []
    for device in ("cpu", "cuda"):
        layer.to(device)
        cache, found = nn.KVCache(dtype="bfloat16"), []
        with fn.no_grad():
            for part in (x[:, :12], *np.split(x[:, 12:], 4, 1)):
                part = fn.tensor(part, device=device)
                out, weights = layer(part, part, part, is_causal=True, cache=cache)
                found += [out.cpu().numpy(), weights.cpu().numpy().sum(-1)]
        outs.append(found)
        caches.append([fn.from_dlpack(one.astype("f")).cpu().numpy() for one in cache.contents()])
        assert cache.contents()[0].dtype == BF16
    for got, value in zip(outs[1], outs[0], strict=True):
        np.testing.assert_allclose(got, value, atol=2e-3)
    for got, value in zip(caches[1], caches[0], strict=True):
        np.testing.assert_allclose(got, value, rtol=2.0**-7)


def test_generation(xp):
    fn.manual_seed(0)
    net = models.GPT(vocab_size=20, block_size=32, n_layer=1, n_head=2, n_embd=16).eval()
    expected = net.generate([[1, 2, 3], [4]], 4, temperature=0.0, cache_dtype="bfloat16")
    net.to("cuda")
    got = net.generate([[1, 2, 3], [4]], 4, temperature=0.0, cache_dtype="bfloat16")
    assert [list(one) for one in got] == [list(one) for one in expected]
    assert len(net.generate([[1, 2]], 3, beams=2, cache_dtype="bfloat16")[0]) == 5
