"""Attention's corner cases: who sees whom, numbers that are none, refused calls, memory."""

from __future__ import annotations

import re
import tracemalloc
from typing import Any

import numpy as np
import pytest

import fusednn as fn
import fusednn.functional as F
from fusednn import _core
from fusednn.testing import reference_attention as ref

sdpa = F.scaled_dot_product_attention
NAN, INF = np.nan, np.inf


def gradients(inputs: list[Any], **kind: Any) -> tuple[Any, list[Any]]:
    tensors = [fn.tensor(x, requires_grad=True) for x in inputs]
    out = sdpa(*tensors, **kind)
    out.sum().backward()
    return out.numpy(), [t.grad.numpy() for t in tensors]


# ---- who sees whom -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["bool", "float"])
def test_a_row_that_sees_nothing_is_0(kind, isa, dtype):
    q = np.ones((1, 1, 2, 4), dtype)
    k = np.arange(8).reshape(1, 1, 2, 4).astype(dtype)
    v = np.array([[1, 2, 3, 4], [5, 6, 7, 8]], dtype)[None, None]
    mask: Any = np.array([[True, True], [False, False]])
    if kind == "float":
        mask = np.where(mask, 0, -INF).astype(dtype)
    out, grads = gradients([q, k, v], attn_mask=mask)
    np.testing.assert_allclose(
        out[0, 0, 0], [4.998659, 5.998659, 6.998659, 7.998659], rtol=0, atol=1e-6
    )
    np.testing.assert_array_equal(out[0, 0, 1], 0)
    np.testing.assert_array_equal(grads[0][0, 0, 1], 0)
    assert all(np.isfinite(g).all() for g in grads)


def test_a_mask_of_the_lowest_numbers_leaves_equal_scores(isa, dtype):
    q, k, v = (
        np.random.default_rng(i).standard_normal((1, 1, 3, 4)).astype(dtype) for i in (0, 1, 2)
    )
    mask = np.zeros((3, 3), dtype)
    mask[0] = np.finfo(dtype).min
    out, grads = gradients([q, k, v], attn_mask=mask)
    np.testing.assert_allclose(out[0, 0, 0], v[0, 0].mean(0), rtol=1e-5, atol=1e-6)
    assert all(np.isfinite(g).all() for g in grads)


@pytest.mark.parametrize(
    ("tq", "tk", "upper", "lower"),
    [
        (1, 4, [[0, 1]], [[3, 4]]),
        (2, 4, [[0, 1], [1, 2]], [[2, 3], [3, 4]]),
        (4, 2, [[0, 1], [1, 2], [1, 2], [1, 2]], [[0, 0], [0, 0], [0, 1], [1, 2]]),
    ],
)
def test_causal_rules_where_lengths_differ(tq, tk, upper, lower, isa, dtype):
    q, k = np.zeros((1, 1, tq, 2), dtype), np.zeros((1, 1, tk, 2), dtype)
    v = np.arange(2 * tk).reshape(1, 1, tk, 2).astype(dtype)
    np.testing.assert_array_equal(sdpa(q, k, v, is_causal=True)[0, 0], upper)
    np.testing.assert_array_equal(sdpa(q, k, v, is_causal="lower_right")[0, 0], lower)


def test_mask_and_causal_both_apply(isa, dtype):
    q = np.zeros((1, 1, 3, 2), dtype)
    v = np.array([1, 2, 4], dtype).reshape(1, 1, 3, 1)
    mask = np.array([[1, 1, 1], [0, 1, 1], [1, 0, 1]], bool)
    out = sdpa(q, q, v, mask, is_causal=True)
    np.testing.assert_allclose(out.ravel(), [1, 2, 2.5], rtol=1e-6)


def test_true_means_may_attend(isa, dtype):
    one = np.zeros((1, 1), dtype)
    v = np.array([[1], [9]], dtype)
    mask = np.array([[True, False]])
    np.testing.assert_array_equal(sdpa(one, np.zeros((2, 1), dtype), v, mask), [[1]])


def test_future_keys_have_no_weight_and_no_gradient(isa, dtype):
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal((1, 2, 70, 8)).astype(dtype) for _ in range(3)]
    weights = F.attention_weights(*inputs[:2], is_causal=True)
    assert not np.triu(weights, 1).any()
    out, _ = gradients(inputs, is_causal=True)
    changed = [x.copy() for x in inputs]
    for x in changed[1:]:
        x[:, :, 40:] = rng.standard_normal(x[:, :, 40:].shape)
    np.testing.assert_array_equal(sdpa(*changed, is_causal=True)[:, :, :40], out[:, :, :40])
    tensors = [fn.tensor(x, requires_grad=True) for x in inputs]
    sdpa(*tensors, is_causal=True)[:, :, :40].sum().backward()
    for tensor in tensors[1:]:
        assert not tensor.grad.numpy()[:, :, 40:].any()


def test_sequences_of_length_0(isa, dtype):
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal((4, 2, t, 8)).astype(dtype) for t in (3, 6, 6)]
    rows, keys = np.array([0, 1, 0, 1]), np.array([0, 3, 0, 5])
    out, grads = gradients(inputs, lengths=(rows, keys))
    assert not out[[0, 2]].any()
    assert not out[:, :, 1:].any()
    for b in (1, 3):
        alone = [x[b : b + 1, :, :n] for x, n in zip(inputs, (1, keys[b], keys[b]), strict=True)]
        np.testing.assert_allclose(out[b, :, :1], sdpa(*alone)[0], rtol=0, atol=1e-6)
    for grad in grads:
        assert np.isfinite(grad).all()
        assert not grad[[0, 2]].any()
    assert not grads[2][1, :, 3:].any()


def test_packed_sequences_are_as_alone(isa, dtype):
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal((2, 10, 4)).astype(dtype) for _ in range(3)]
    starts = np.array([0, 3, 3, 7])
    out, grads = gradients(inputs, cu_seqlens=starts, is_causal=True)
    for begin, end in ((0, 3), (3, 7)):
        alone, expected = gradients([x[:, begin:end].copy() for x in inputs], is_causal=True)
        np.testing.assert_allclose(out[:, begin:end], alone, rtol=0, atol=1e-6)
        for grad, one in zip(grads, expected, strict=True):
            np.testing.assert_allclose(grad[:, begin:end], one, rtol=0, atol=1e-5)
    for x in (out, *grads):
        assert not x[:, 7:].any()


def test_a_window_as_int_reaches_both_ways(dtype):
    inputs = [np.random.default_rng(i).standard_normal((1, 20, 4)).astype(dtype) for i in range(3)]
    expected = sdpa(*inputs, window=(2, 2))
    np.testing.assert_array_equal(sdpa(*inputs, window=2), expected)
    np.testing.assert_array_equal(sdpa(*inputs, window=(-1, None)), sdpa(*inputs))
    band = abs(np.subtract.outer(np.arange(20), np.arange(20))) <= 2
    np.testing.assert_allclose(expected, sdpa(*inputs, band), rtol=0, atol=1e-6)


# ---- numbers that are none -----------------------------------------------------------------------


@pytest.mark.parametrize("tq", [3, 30])
def test_nan_in_a_query_stays_in_its_row(tq, isa, dtype):
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal((1, 1, tq, 4)).astype(dtype) for _ in range(3)]
    inputs[0][0, 0, 1, 2] = NAN
    for kind in ({}, {"is_causal": True}):
        out = sdpa(*inputs, **kind)
        np.testing.assert_array_equal(np.isnan(out).any(-1)[0, 0], np.arange(tq) == 1)
        np.testing.assert_array_equal(np.isnan(out).all(-1)[0, 0], np.arange(tq) == 1)
    # Under a causal mask the keys behind it never meet it.
    _, grads = gradients(inputs, is_causal=True)
    assert np.isfinite(grads[1][0, 0, 2:]).all()
    assert np.isfinite(grads[2][0, 0, 2:]).all()
    assert np.isnan(grads[1][0, 0, :2]).any()


@pytest.mark.parametrize("value", [NAN, INF, -INF])
@pytest.mark.parametrize("where", ["key", "value"])
@pytest.mark.parametrize("rule", ["bool", "float", "causal", "lengths", "window"])
@pytest.mark.parametrize("queries", [2, 40])
def test_a_hidden_key_never_matters(queries, rule, where, value, isa, dtype):
    keys = 50
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal((2, 2, t, 8)).astype(dtype) for t in (queries, keys, keys)]
    hidden = np.zeros(keys, bool)
    kind: dict[str, Any] = {}
    if rule in ("bool", "float"):
        hidden[[0, 7, 33]] = True
        kind["attn_mask"] = ~hidden if rule == "bool" else np.where(hidden, -INF, 0).astype(dtype)
    elif rule == "causal":
        kind["is_causal"] = True
        hidden[queries:] = True
    elif rule == "lengths":
        kind["lengths"] = np.array([20, 20])
        hidden[20:] = True
    else:
        kind["window"] = (4, 1)
        hidden[queries + 1 :] = True
    expected, expected_grads = gradients(inputs, **kind)
    inputs[1 if where == "key" else 2][:, :, hidden] = value
    out, grads = gradients(inputs, **kind)
    np.testing.assert_allclose(out, expected, rtol=0, atol=1e-5)
    assert np.isfinite(expected).all()
    for found, wanted in zip(grads, expected_grads, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-4)


def test_a_single_hidden_key(isa, dtype):
    x = np.arange(8).reshape(1, 1, 2, 4).astype(dtype)
    mask = np.array([[True, False], [True, False]])
    for spoil in (1, 2):
        inputs = [x.copy(), x.copy(), x.copy()]
        inputs[spoil][0, 0, 1, 0] = NAN if spoil == 1 else INF
        np.testing.assert_array_equal(sdpa(*inputs, mask)[0, 0], [[0, 1, 2, 3]] * 2)


def test_nan_that_is_seen_surfaces(isa, dtype):
    rng = np.random.default_rng(0)
    for queries in (2, 40):
        inputs = [rng.standard_normal((1, 1, t, 8)).astype(dtype) for t in (queries, 50, 50)]
        inputs[2][0, 0, 1, 3] = NAN
        out = sdpa(*inputs, is_causal=True)
        assert np.isfinite(out[0, 0, 0]).all()
        assert np.isnan(out[0, 0, 1:, 3]).all()
        assert np.isfinite(np.delete(out, 3, axis=-1)).all()


# ---- large offsets and memory --------------------------------------------------------------------


def test_a_mask_beyond_32_bits():
    """Its last rows lie 2^32 elements behind the first, by strides that repeat one row."""
    t = 65536
    rng = np.random.default_rng(0)
    key = rng.standard_normal((1, 1, t, 1)).astype(np.float32)
    mask = np.broadcast_to(rng.random(t) > 0.5, (1, 1, t, t))
    query = np.zeros((1, 1, t, 1), np.float32)
    out = sdpa(query[:, :, :3], key, key, mask[:, :, -3:])
    np.testing.assert_allclose(out.ravel(), key[0, 0, mask[0, 0, 0], 0].mean(), rtol=1e-3)
    wide = np.broadcast_to(np.float32(0), (1, 1, t, t))
    out = sdpa(query[:, :, :1], key, key, wide[:, :, -1:])
    np.testing.assert_allclose(out.ravel(), key.mean(), rtol=1e-3, atol=1e-6)


def test_memory_is_linear_in_length():
    t, h, d = 4096, 2, 16
    inputs = [
        np.random.default_rng(i).standard_normal((1, h, t, d)).astype(np.float32) for i in range(3)
    ]
    _core.empty_cache()
    before = sum(_core.memory_stats()[name] for name in ("in_use", "cached"))
    tracemalloc.start()
    tensors = [fn.tensor(x, requires_grad=True) for x in inputs]
    sdpa(*tensors, is_causal=True).sum().backward()
    python = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    ours = sum(_core.memory_stats()[name] for name in ("in_use", "cached")) - before
    # Inputs take 1.6 MB, all scores would take 134 MB.
    assert python + ours < 20_000_000
    _core.empty_cache()


# ---- refused calls -------------------------------------------------------------------------------


def zeros(*shape: int, dtype: Any = np.float32) -> Any:
    return np.zeros(shape, dtype)


Q, K = zeros(2, 4, 3, 8), zeros(2, 4, 5, 8)
REFUSED = [
    (
        (Q, K, zeros(2, 4, 6, 8)),
        {},
        ValueError,
        "value has 6 rows, expected 5 as key: query (2, 4, 3, 8), key (2, 4, 5, 8), value",
    ),
    (
        (Q, zeros(2, 4, 5, 7), K),
        {},
        ValueError,
        "key has 7 features, expected 8 as query: query (2, 4",
    ),
    (
        (Q, zeros(4, 5, 8), K),
        {},
        ValueError,
        "with the same number of axes, got query (2, 4, 3, 8), key",
    ),
    (
        (zeros(8), zeros(8), zeros(8)),
        {},
        ValueError,
        "expected query (..., H, Tq, D), key (..., H, Tk",
    ),
    ((Q, zeros(2, 3, 5, 8), zeros(2, 3, 5, 8)), {}, ValueError, "heads differ (enable_gqa=True"),
    (
        (Q, zeros(2, 3, 5, 8), zeros(2, 3, 5, 8)),
        {"enable_gqa": True},
        ValueError,
        "query's heads must be a multiple of key's and value's: query (2, 4",
    ),
    (
        (Q, zeros(3, 4, 5, 8), zeros(3, 4, 5, 8)),
        {},
        ValueError,
        "batches differ: query (2, 4, 3, 8)",
    ),
    (
        (Q, K.astype(np.float64), K),
        {},
        TypeError,
        "key has dtype float64, expected float32 like query",
    ),
    ((Q, K, K.astype(np.float64)), {}, TypeError, "value has dtype float64, expected float32"),
    ((Q.astype(int), K, K), {}, TypeError, "query has dtype int64, expected float32 or float64"),
    ((Q.astype(np.float16), K, K), {}, TypeError, "query has dtype float16, expected float32 or"),
    (([1.0], K, K), {}, TypeError, "query must be a NumPy array, got list"),
    (
        (Q, K, K, np.ones((3, 5), np.uint8)),
        {},
        TypeError,
        "attn_mask has dtype uint8, expected bool (True: may attend) or the dtype of query (added)",
    ),
    (
        (Q, K, K, np.ones((3, 5), np.int64)),
        {},
        TypeError,
        "attn_mask has dtype int64, expected bool",
    ),
    ((Q, K, K, np.ones((3, 5))), {}, TypeError, "attn_mask has dtype float64, expected float32"),
    ((Q, K, K, [[True]]), {}, TypeError, "attn_mask must be a NumPy array, got list"),
    (
        (Q, K, K, np.ones((5, 3), bool)),
        {},
        ValueError,
        "attn_mask has shape (5, 3), which does not broadcast to the scores' shape (2, 4, 3, 5)",
    ),
    (
        (Q, K, K, np.ones((1, 2, 4, 3, 5), bool)),
        {},
        ValueError,
        "attn_mask has shape (1, 2, 4, 3, 5)",
    ),
    (
        (Q, K, K),
        {"is_causal": "left"},
        ValueError,
        "is_causal='left', expected True, False or 'lower",
    ),
    ((Q, K, K), {"scale": "x"}, TypeError, "scale must be a number, got str"),
    ((Q, K, K), {"dropout_p": "x"}, TypeError, "dropout_p must be a number, got str"),
    ((Q, K, K), {"dropout_p": 1.5}, ValueError, "dropout_p is 1.5"),
    ((Q, K, K), {"dropout_p": NAN}, ValueError, "dropout_p is nan"),
    ((Q, K, K), {"softcap": -1.0}, ValueError, "softcap=-1.0, expected a positive number"),
    ((Q, K, K), {"softcap": "x"}, ValueError, "softcap='x', expected a positive number"),
    (
        (zeros(2, 1, 2, 4, 3, 8), zeros(3, 4, 5, 8), zeros(2, 4, 5, 8)),
        {},
        ValueError,
        "the axes before the heads do not broadcast: query (2, 1, 2, 4, 3, 8), key (3, 4, 5, 8)",
    ),
    (
        (zeros(2, 2, 4, 3, 8), K, K, np.ones((3, 1, 4, 3, 5), bool)),
        {},
        ValueError,
        "attn_mask (3, 1, 4, 3, 5)",
    ),
    ((zeros(2, 2, 4, 3, 8), [1.0], K), {}, TypeError, "key must be a NumPy array, got list"),
    ((Q, K, K), {"softcap": 0}, ValueError, "softcap=0, expected a positive number"),
    (
        (Q, K, K),
        {"window": (1, 2, 3)},
        ValueError,
        "window=(1, 2, 3), expected an int or (left, right)",
    ),
    ((Q, K, K), {"window": (1.5, 2)}, TypeError, "window[0]"),
    (
        (Q, K, K),
        {"lengths": np.array([1, 2, 3])},
        ValueError,
        "lengths has shape (3,), expected (2,)",
    ),
    ((Q, K, K), {"lengths": np.array([1, 6])}, ValueError, "lengths[1] is 6, expected 0 to 5"),
    ((Q, K, K), {"lengths": np.array([-1, 5])}, ValueError, "lengths[0] is -1, expected 0 to 5"),
    (
        (Q, K, K),
        {"lengths": np.array([1.0, 5])},
        TypeError,
        "lengths has dtype float64, expected an int",
    ),
    (
        (Q, K, K),
        {"lengths": np.array([1, 5]), "cu_seqlens": np.array([0, 3])},
        ValueError,
        "lengths and cu_seqlens exclude each other",
    ),
    ((K, K, K), {"cu_seqlens": np.array([1, 5])}, ValueError, "cu_seqlens[0] is 1, expected 0"),
    (
        (K, K, K),
        {"cu_seqlens": np.array([0, 3, 2])},
        ValueError,
        "cu_seqlens[2] is 2, expected 3 to 5",
    ),
    (
        (K, K, K),
        {"cu_seqlens": np.array([0, 6])},
        ValueError,
        "cu_seqlens[1] is 6, expected 0 to 5",
    ),
    (
        (K, K, K),
        {"cu_seqlens": np.array([0])},
        ValueError,
        "cu_seqlens has shape (1,), expected (seq",
    ),
    (
        (K, K, K),
        {"cu_seqlens": (np.array([0, 2]), np.array([0, 1, 2]))},
        ValueError,
        "cu_seqlens of keys has shape (3,), expected (2,)",
    ),
]


@pytest.mark.parametrize(("arguments", "options", "error", "text"), REFUSED)
def test_refused(arguments, options, error, text):
    with pytest.raises(error, match=re.escape(text)) as caught:
        sdpa(*arguments, **options)
    assert str(caught.value).startswith("scaled_dot_product_attention: ")
    if all(isinstance(a, np.ndarray) for a in arguments) and arguments[0].dtype.char in "fd":
        with pytest.raises(error, match=re.escape(text)):
            sdpa(*(fn.tensor(a) for a in arguments[:3]), *arguments[3:], **options)


def test_the_twins_dropout_is_the_generator_of_the_paper():
    """Known answers of Philox 4x32-10 from the authors' distribution."""
    # Key 0, counter 0: the first word is 0x6627e8d5 = 0.399 * 2^32.
    keep = [ref.dropout_factors(0, (1, 1, 1), p)[0, 0, 0] for p in (0.39, 0.40)]
    assert keep[0] > 0
    assert keep[1] == 0


@pytest.mark.parametrize("queries", [1, 3, 40])
@pytest.mark.parametrize("number", [NAN, INF, -INF])
def test_hidden_keys_do_not_matter_to_a_capped_score_either(queries, number, isa, dtype):
    """The cap's slope is NaN there, and meets a gradient of 0."""
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal((1, 2, n, 8)).astype(dtype) for n in (queries, 50, 50)]
    mask = np.ones((queries, 50), bool)
    mask[:, [2, 49]] = False
    expected = gradients(inputs, attn_mask=mask, softcap=2.0)
    inputs[1][:, :, [2, 49]] = number
    found = gradients(inputs, attn_mask=mask, softcap=2.0)
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-4, atol=1e-6)
    for a, b in zip(found[1], expected[1], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5)
