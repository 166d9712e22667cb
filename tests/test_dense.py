"""Linear layers and matrix products: values and gradients on every ISA, refused calls."""

from __future__ import annotations

import numpy as np
import pytest

import fusednn as fn
import fusednn.functional as F
from fusednn import _core
from fusednn.testing import cases, reference


@pytest.mark.parametrize("case", cases.TEST["gemm"], ids=lambda case: case.name)
@pytest.mark.parametrize("transposed", ["", "a", "b", "ab"])
def test_matmul(case, transposed, isa, dtype):
    a, b = (case.arrays(dtype)[name] for name in ("a", "b"))
    exact, naive = reference.gemm(a, b), reference.naive_gemm(a, b)
    if "a" in transposed:
        a = np.ascontiguousarray(a.T)
    if "b" in transposed:
        b = np.ascontiguousarray(b.T)
    result = _core.matmul(a, b, "a" in transposed, "b" in transposed)
    reference.assert_accurate(result, exact, naive)


def test_batched_matmul(isa, dtype):
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape).astype(dtype) for shape in ((3, 5, 7), (3, 7, 4)))
    exact, naive = reference.gemm(a, b), reference.naive_gemm(a, b)
    reference.assert_accurate(_core.matmul(a, b, False, False), exact, naive)


@pytest.mark.parametrize(
    ("rows", "inputs", "outputs"),
    [((), 3, 4), ((0,), 3, 4), ((5,), 0, 4), ((5,), 3, 0), ((1,), 1, 1), ((4,), 100, 100),
     ((2, 3), 17, 33), ((3,), 257, 31), ((64,), 65, 10), ((130,), 70, 95)],
)  # fmt: skip
def test_linear(rows, inputs, outputs, isa, dtype):
    rng = np.random.default_rng(1)
    x, w, b, dy = (
        rng.standard_normal(shape).astype(dtype)
        for shape in ((*rows, inputs), (outputs, inputs), (outputs,), (*rows, outputs))
    )
    reference.assert_accurate(
        _core.linear_forward(x, w, b, False),
        reference.linear_forward(x, w, b),
        reference.naive_linear_forward(x, w, b),
    )
    np.testing.assert_array_equal(
        _core.linear_forward(x, w, b, True), np.maximum(_core.linear_forward(x, w, b, False), 0)
    )
    results = (
        _core.linear_backward_input(dy, w),
        _core.linear_backward_weight(dy, x),
        _core.linear_backward_bias(dy),
    )
    exact = reference.linear_backward(dy, x, w)
    naive = reference.naive_linear_backward(dy, x, w)
    for result, e, n in zip(results, exact, naive, strict=True):
        reference.assert_accurate(result, e, n)


@pytest.mark.parametrize("shape", [(300, 400, 500), (4, 3000, 2000), (1000, 64, 70), (40, 2000, 9)])
def test_same_bits_at_any_thread_count(shape, isa):
    m, k, n = shape
    rng = np.random.default_rng(2)
    a, b = (rng.standard_normal(s).astype(np.float32) for s in ((m, k), (n, k)))
    fn.set_num_threads(1)
    single = _core.matmul(a, b, False, True)
    grad = _core.linear_backward_bias(single)
    for threads in (2, 3):
        fn.set_num_threads(threads)
        np.testing.assert_array_equal(_core.matmul(a, b, False, True), single)
        np.testing.assert_array_equal(_core.linear_backward_bias(single), grad)


def test_nan_reaches_its_own_row_only(isa):
    x = np.ones((20, 30), np.float32)
    x[7, 3] = np.nan
    y = F.linear(x, np.ones((40, 30), np.float32))
    assert np.isnan(y[7]).all()
    assert np.isfinite(np.delete(y, 7, 0)).all()


def test_result_is_overwritten_not_added_to():
    """Recycled memory holds old results: a product must not read it."""
    a = np.full((64, 64), np.nan, np.float32)
    for _ in range(3):
        _core.matmul(a, a, False, False)
    assert np.isfinite(_core.matmul(np.ones_like(a), np.ones_like(a), False, False)).all()


def test_gradcheck():
    rng = np.random.default_rng(0)
    x, w, b = (rng.standard_normal(shape) for shape in ((2, 3, 5), (4, 5), (4,)))
    assert fn.testing.gradcheck(F.linear, (x, w, b))
    assert fn.testing.gradcheck(F.linear, (x, w))


_X, _W = np.ones((2, 3), np.float32), np.ones((4, 3), np.float32)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: F.linear(np.ones((2, 5), np.float32), _W), ValueError,
         ["linear", "input", "(2, 5)", "3"]),
        (lambda: F.linear(_X, np.ones(3, np.float32)), ValueError, ["linear", "weight", "(3,)"]),
        (lambda: F.linear(_X, _W, np.ones(3, np.float32)), ValueError,
         ["linear", "bias", "(3,)", "(4,)"]),
        (lambda: F.linear(_X, _W.astype(np.float64)), TypeError,
         ["linear", "weight", "float64", "float32"]),
        (lambda: F.linear(_X.astype(int), _W), TypeError, ["linear", "input", "int64"]),
        (lambda: _core.matmul(_X, _X, False, False), ValueError, ["matmul", "3", "2", "(2, 3)"]),
    ],
)  # fmt: skip
def test_refused_calls_say_what_is_wrong(call, error, words):
    with pytest.raises(error) as caught:
        call()
    for word in words:
        assert word in str(caught.value)
