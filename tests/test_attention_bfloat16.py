"""Keys and values in bfloat16: the same attention as over the widened numbers, on every ISA."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import fusednn as fn
import fusednn.functional as F
from fusednn import _core, models, nn
from fusednn.testing import reference
from fusednn.testing import reference_attention as ref

ml_dtypes = pytest.importorskip("ml_dtypes")
bf16 = ml_dtypes.bfloat16
f32 = np.float32
sdpa = F.scaled_dot_product_attention
NAN, INF = np.nan, np.inf

# (B, H, Hkv, Tq, Tk, D, Dv): few queries (up to 4) and many, around spans of columns (8 to 32) and
# blocks of keys (256), groups of heads, D != Dv.
SHAPES = [
    (1, 1, 1, 1, 1, 1, 1),
    (2, 3, 3, 1, 5, 7, 2),
    (1, 2, 2, 4, 257, 16, 17),
    (1, 4, 2, 1, 300, 64, 64),
    (1, 2, 1, 2, 31, 33, 31),
    (1, 2, 2, 3, 17, 65, 97),
    (2, 4, 2, 5, 31, 8, 9),
    (1, 2, 1, 15, 33, 15, 33),
    (1, 1, 1, 130, 259, 24, 40),
    (0, 2, 2, 1, 4, 5, 6),
    (1, 0, 0, 1, 4, 5, 6),
    (1, 2, 2, 0, 4, 5, 6),
    (1, 2, 2, 1, 0, 5, 6),
    (1, 2, 2, 9, 0, 5, 6),
    (1, 2, 2, 2, 4, 5, 0),
]


def arrays(shape: tuple[int, ...], seed: int = 0) -> list[Any]:
    b, h, hkv, tq, tk, d, dv = shape
    rng = np.random.default_rng(seed)
    q, k, v = (rng.standard_normal(s).astype(f32) for s in (
        (b, h, tq, d), (b, hkv, tk, d), (b, hkv, tk, dv)
    ))  # fmt: skip
    return [q, k.astype(bf16), v.astype(bf16)]


def options(shape: tuple[int, ...]) -> list[dict[str, Any]]:
    b, h, _, tq, tk, _, _ = shape
    rng = np.random.default_rng(1)
    return [
        {},
        {"is_causal": "lower_right"},
        {"attn_mask": rng.random((b, 1, tq, tk)) > 0.4},
        {"attn_mask": rng.standard_normal((1, h, tq, tk)).astype(f32), "softcap": 1.5},
        {"window": (30, None), "is_causal": "lower_right"},
        {"lengths": (None, rng.integers(0, tk + 1, b))},
    ]


def check(found: Any, exact: Any, naive: Any) -> None:
    """As for float32 keys: their numbers are exact, so nothing else is allowed."""
    pad = [np.append(a.ravel(), np.ones((), a.dtype)) for a in (exact, naive)]
    found = np.append(found.ravel(), f32(1))
    reference.assert_accurate(found, *pad, factor=4)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_values(shape):
    q, k, v = arrays(shape)
    for kind in options(shape):
        wide = {
            name: x.astype(np.float64) if name == "attn_mask" and x.dtype == f32 else x
            for name, x in kind.items()
        }
        exact = ref.attention(*(x.astype(np.float64) for x in (q, k, v)), **wide)
        naive = ref.attention(q, k.astype(f32), v.astype(f32), **kind, naive=True)
        given = {"enable_gqa": True, **kind}
        if "lengths" in kind:
            given["lengths"] = kind["lengths"][1]
        for isa in _core.usable_isas():
            with fn.testing.isa(isa):
                found = sdpa(q, k, v, **given)
                assert found.dtype == f32
                check(found, exact.output, naive.output)
                weights = F.attention_weights(q, k, **given)
                check(weights, exact.weights, naive.weights)


@pytest.mark.parametrize("shape", [(2, 4, 2, 1, 900, 64, 64), (1, 4, 4, 140, 300, 32, 32)])
def test_the_same_bits_at_any_number_of_threads(shape, isa):
    q, k, v = arrays(shape)
    results = []
    for threads in (1, 2, 3):
        fn.set_num_threads(threads)
        results.append(sdpa(q, k, v, enable_gqa=True))
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], results[2])


@pytest.mark.parametrize("queries", [1, 3, 9])
def test_any_layout(queries, isa):
    q, k, v = arrays((2, 4, 2, queries, 37, 24, 24))
    expected = sdpa(q, k, v, enable_gqa=True)

    def layouts(x):
        spread = np.zeros((*x.shape[:-1], 2 * x.shape[-1]), bf16)
        spread[..., ::2] = x
        read_only = x.copy()
        read_only.flags.writeable = False
        # The upper half of floats is an odd place for a bfloat16 to stand.
        shifted = np.frombuffer(b"\0" + x.tobytes(), np.uint8)[1:].view(bf16).reshape(x.shape)
        yield read_only
        yield shifted
        yield spread[..., ::2]
        yield np.ascontiguousarray(x[:, ::-1, ::-1])[:, ::-1, ::-1]
        yield np.ascontiguousarray(x[..., ::-1])[..., ::-1]
        yield np.asfortranarray(x)
        yield np.ascontiguousarray(x.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3)

    for found in (sdpa(q, one, v, enable_gqa=True) for one in layouts(k)):
        np.testing.assert_array_equal(found, expected)
    for found in (sdpa(q, k, one, enable_gqa=True) for one in layouts(v)):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("queries", [1, 4, 20])
def test_hidden_keys_never_matter_and_seen_nan_surfaces(queries, isa):
    q, k, v = arrays((1, 2, 2, queries, 40, 16, 20))
    mask = np.ones((queries, 40), bool)
    mask[:, [3, 39]] = False
    expected = sdpa(q, k, v, mask)
    for place, number in ((3, NAN), (39, INF), (3, -INF)):
        for dirty in (k, v):
            kept = dirty[:, :, place].copy()
            dirty[:, :, place] = number
            np.testing.assert_allclose(sdpa(q, k, v, mask), expected, rtol=1e-5, atol=1e-6)
            dirty[:, :, place] = kept
    k[0, 1, 5] = NAN
    found = sdpa(q, k, v, mask)
    assert np.isnan(found[0, 1]).all()
    np.testing.assert_array_equal(found[0, 0], expected[0, 0])


def test_rounded_keys_and_values_keep_the_stated_bound():
    """What `nn.KVCache` says, for numbers of usual sizes and for large scores."""
    for size in (0.3, 1.0, 3.0):
        q, k, v = (
            np.random.default_rng(i).standard_normal((1, 4, 1 if i == 0 else 500, 64)).astype(f32)
            * size
            for i in range(3)
        )
        found = sdpa(q, k.astype(bf16), v.astype(bf16)).astype(np.float64)
        exact = ref.attention(*(x.astype(np.float64) for x in (q, k, v)))
        mixed = exact.weights @ np.abs(v.astype(np.float64))
        sums = (np.abs(q) @ np.abs(k).swapaxes(2, 3)).max()
        d = 2.0**-9 * 64**-0.5 * sums
        bound = ((1 + 2.0**-9) * np.exp(2 * d) - 1) * mixed
        error = np.abs(found - exact.output)
        assert (error <= bound + 1e-6 * size).all()
        if size == 1:
            assert error.max() < 0.003


# ---- what is refused -----------------------------------------------------------------------------

_Q, _K, _V = arrays((1, 2, 2, 3, 5, 8, 8))
REFUSED = [
    (
        (_Q.astype(np.float64), _K, _V),
        "key and value in bfloat16 need a float32 query, got float64",
    ),
    ((_Q, _K, _V.astype(f32)), "either both key and value are bfloat16 or neither is, got value"),
    ((_Q, _K.astype(f32), _V), "either both key and value are bfloat16 or neither is, got key"),
    ((_Q.astype(bf16), _K, _V), "query has dtype bfloat16, expected float32 or float64"),
    ((_Q, _K.view(np.uint16), _V), "key has dtype uint16, expected float32 or float64"),
    ((_Q, _K, _V, _K), "attn_mask has dtype bfloat16, expected bool"),
]


@pytest.mark.parametrize(("arguments", "text"), REFUSED)
def test_refused(arguments, text):
    with pytest.raises(TypeError, match=re.escape(text)) as caught:
        sdpa(*arguments)
    assert str(caught.value).startswith("scaled_dot_product_attention: ")


def test_no_gradient_where_keys_are_rounded():
    q = fn.tensor(_Q, requires_grad=True)
    for call in (lambda: sdpa(q, _K, _V), lambda: F.attention_weights(q, _K)):
        with pytest.raises(TypeError, match="no gradient flows where key and value are bfloat16"):
            call()
        with fn.no_grad():
            call()
    out = sdpa(fn.tensor(_Q), _K, _V)
    assert isinstance(out, fn.Tensor)
    assert not out.requires_grad


# ---- caches --------------------------------------------------------------------------------------


def test_a_cache_in_half_the_bytes():
    fn.manual_seed(0)
    layer = nn.MultiheadAttention(32, 4, batch_first=True, num_kv_heads=2, rotary_dim=8).eval()
    x = np.random.default_rng(0).standard_normal((2, 40, 32)).astype(f32)
    caches = nn.KVCache(), nn.KVCache(dtype="bfloat16")
    outs: list[list[Any]] = [[], []]
    with fn.no_grad():
        for part in (x[:, :30], *np.split(x[:, 30:], 10, 1)):
            for cache, found in zip(caches, outs, strict=True):
                out, weights = layer(part, part, part, is_causal=True, cache=cache)
                np.testing.assert_allclose(weights.numpy().sum(-1), 1, rtol=1e-5)
                found.append(out.numpy())
    plain, rounded = (np.concatenate(one, 1) for one in outs)
    assert 0 < np.abs(plain - rounded).max() < 0.003 * np.abs(plain).max()
    keys, values = caches[1].contents()
    assert keys.dtype == values.dtype == bf16
    assert keys.nbytes * 2 == caches[0].contents()[0].nbytes
    np.testing.assert_array_equal(keys, caches[0].contents()[0].astype(bf16))


def test_generation_with_a_cache_in_half_the_bytes():
    fn.manual_seed(0)
    net = models.GPT(vocab_size=50, block_size=64, n_layer=2, n_head=4, n_embd=32).eval()
    ids = np.random.default_rng(0).integers(0, 50, (2, 20))
    with fn.no_grad():
        whole = net(ids).numpy()
        cache = net.new_cache("bfloat16")
        parts = [net(ids[:, a:b], cache=cache).numpy() for a, b in ((0, 15), (15, 16), (16, 20))]
    error = np.abs(np.concatenate(parts, 1) - whole).max()
    assert 0 < error < 0.01 * np.abs(whole).max()
    prompts = [[1, 2, 3], [4]]
    for how in ({"temperature": 0.0}, {"beams": 3}, {"top_p": 0.9}):
        texts = net.generate(prompts, 12, cache_dtype="bfloat16", **how)
        assert [len(t) for t in texts] == [15, 13]
    steps = list(net.stream(prompts, 3, cache_dtype="bfloat16"))
    assert len(steps) == 3


def test_translation_with_a_cache_in_half_the_bytes():
    fn.manual_seed(0)
    net = models.Seq2SeqTransformer(20, 20, 16, 2, 1, 32).eval()
    src = np.random.default_rng(0).integers(3, 20, (2, 6))
    for how in ({}, {"beams": 3}):
        texts = net.generate(src, 7, bos=1, eos=2, cache_dtype="bfloat16", **how)
        assert len(texts) == 2


def test_caches_that_are_refused(monkeypatch):
    with pytest.raises(ValueError, match=re.escape("KVCache: dtype='float16', expected None or")):
        nn.KVCache(dtype="float16")
    wide = np.zeros((1, 2, 3, 4))
    with pytest.raises(TypeError, match="holds float32 rounded, got key of float64 and value of"):
        nn.KVCache(dtype="bfloat16").append(wide, wide)
    layer = nn.MultiheadAttention(8, 2, batch_first=True, add_zero_attn=True).eval()
    x = np.zeros((1, 2, 8), f32)
    with fn.no_grad(), pytest.raises(ValueError, match="does not go with add_bias_kv or add_zero"):
        layer(x, x, x, cache=nn.KVCache(dtype="bfloat16"))
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(ImportError, match="needs the package ml_dtypes: pip install ml_dtypes"):
        nn.KVCache(dtype="bfloat16")


def test_the_package_is_needed_for_nothing_else():
    code = (
        "import sys; sys.modules['ml_dtypes'] = None\n"
        "import numpy as np, fusednn.functional as F; from fusednn import nn\n"
        "q = np.ones((1, 2, 4), np.float32); F.scaled_dot_product_attention(q, q, q)\n"
        "nn.KVCache().append(q[None], q[None])\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
