"""Attention on the tensor cores: TF32, bfloat16 and float16, beside the CPU's in double."""

from __future__ import annotations

import numpy as np
import pytest
from test_attention_kernels import CASES, arguments, gradients, inputs, name_of

import fusednn as fn
from fusednn import _core

ml_dtypes = pytest.importorskip("ml_dtypes")
KINDS = {
    "tf32": (np.dtype(np.float32), 2.0**-10),
    "bfloat16": (np.dtype(ml_dtypes.bfloat16), 2.0**-8),
    "float16": (np.dtype(np.float16), 2.0**-10),
}


@pytest.fixture(params=list(KINDS))
def kind(request):
    fn.set_float32_precision("high")
    yield KINDS[request.param]
    fn.set_float32_precision("highest")


def rounded(values, dtype):
    return [
        one if one is None or one.dtype == bool else one.astype(np.float32).astype(dtype)
        for one in values
    ]


def in_double(values):
    return [one if one is None or one.dtype == bool else one.astype(np.float64) for one in values]


def compare(xp, op, values, kind, units):
    """The GPU's results within `units` roundings of the largest value nearby; twice the same."""
    dtype, unit = kind
    values = rounded(values, dtype)
    with np.errstate(all="ignore"):
        expected = op(*in_double(values))
    on_gpu = [None if one is None else xp.asarray(one) for one in values]
    results, again = op(*on_gpu), op(*on_gpu)
    for got, other, exact in zip(results, again, expected, strict=True):
        assert (got is None) == (exact is None)
        if got is None:
            continue
        assert got.dtype == dtype
        got, other = xp.asnumpy(got), xp.asnumpy(other)
        assert got.tobytes() == other.tobytes()
        got = got.astype(np.float64)
        np.testing.assert_array_equal(np.isnan(got), np.isnan(exact))
        normal = np.isfinite(exact)
        np.testing.assert_array_equal(
            got[~normal & ~np.isnan(exact)], exact[~normal & ~np.isnan(exact)]
        )
        size = abs(exact[normal]).max(initial=0) + abs(exact[normal])
        assert np.all(abs(got[normal] - exact[normal]) <= units * unit * (size + 0.25))


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_forward(xp, kind, case):
    shape, options = case

    def op(q, k, v, mask):
        return (_core.attention_forward(q, k, v, mask, *arguments(q, options), False)[0],)

    compare(xp, op, inputs(shape, options, "float64")[:4], kind, 4)


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_weights(xp, kind, case):
    shape, options = case
    named = {name: value for name, value in options.items() if name != "dropout_p"}

    def op(q, k, mask):
        return (_core.attention_weights(q, k, mask, *arguments(q, named), False)[0],)

    q, k, _, mask, _ = inputs(shape, options, "float64")
    compare(xp, op, (q, k, mask), kind, 4)


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_gradients(xp, kind, case):
    shape, options = case
    compare(xp, gradients(options), inputs(shape, options, "float64"), kind, 16)


@pytest.mark.parametrize("number", [6, 7, 9])
def test_any_order(xp, kind, number, order):
    shape, options = CASES[number]
    compare(xp, gradients(options), inputs(shape, options, "float64"), kind, 16)


def test_hidden_numbers_never_matter(xp, kind):
    q, k, v, _, dy = inputs((1, 2, 2, 40, 40, 8, 8), {}, "float64")
    k[0, 0, 25:, 1], v[0, 0, 30:, 3], v[0, 1, 33], v[0, 1, 35, 2] = np.nan, np.nan, np.inf, -np.inf
    q[0, 1, 36] = np.nan
    compare(xp, gradients({"is_causal": True}), (q, k, v, None, dy), kind, 16)


@pytest.mark.parametrize("cut", [0, 1])
def test_places(xp, kind, cut):
    """Wide copies, and single ones from rows that begin anywhere."""
    q, k, v, _, dy = inputs((1, 1, 1, 40, 50, 24 + cut, 16 + cut), {}, "float64")

    def op(q, k, v, dy):
        return gradients({})(q[..., cut:], k[..., cut:], v[..., cut:], None, dy[..., cut:])[:4]

    compare(xp, op, (q, k, v, dy), kind, 16)
