"""ReLU: values, special values, views, on every ISA; the others follow NumPy's formulas."""

from __future__ import annotations

import numpy as np
import pytest

import fusednn as fn
import fusednn.functional as F
from fusednn import _core

SIZES = (0, 1, 3, 4, 7, 8, 9, 15, 16, 17, 31, 33, 16383, 16385, 70001)


@pytest.mark.parametrize("size", SIZES)
def test_relu(size, isa, dtype):
    rng = np.random.default_rng(size)
    x, grad = (rng.standard_normal(size).astype(dtype) for _ in range(2))
    y = _core.relu_forward(x)
    assert y.dtype == x.dtype
    np.testing.assert_array_equal(y, np.maximum(x, 0))
    np.testing.assert_array_equal(_core.relu_backward(grad, y), np.where(x > 0, grad, 0))


def test_relu_of_special_values(isa, dtype):
    tiny = np.finfo(dtype).smallest_subnormal
    x = np.array([np.nan, np.inf, -np.inf, tiny, -tiny, 0.0] * 5, dtype)
    y = _core.relu_forward(x)
    np.testing.assert_array_equal(y, np.array([np.nan, np.inf, 0, tiny, 0, 0] * 5, dtype))
    grad = _core.relu_backward(np.ones_like(x), y)
    np.testing.assert_array_equal(grad, np.array([1, 1, 0, 1, 0, 0] * 5, dtype))


def test_relu_keeps_the_shape():
    assert F.relu(np.array(-1.0)).shape == ()
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)[:, ::-1, ::2] - 10
    y = F.relu(x)
    assert y.flags.c_contiguous
    np.testing.assert_array_equal(y, np.maximum(x, 0))


def test_relu_of_a_worked_example():
    a = np.array([[-2, -1, 1, 2], [2, -1, -1, 1], [1, -1, -1, -2], [-2, -1, -2, -3]], np.float32)
    y = F.relu(a)
    assert y.tolist() == [[0, 0, 1, 2], [2, 0, 0, 1], [1, 0, 0, 0], [0, 0, 0, 0]]
    assert F.max_pool2d(y[None, None], 2)[0, 0].tolist() == [[2, 2], [1, 0]]


def test_relu_at_any_thread_count(isa):
    x = np.random.default_rng(0).standard_normal(1_000_003).astype(np.float32)
    for threads in (1, 2, 3):
        fn.set_num_threads(threads)
        np.testing.assert_array_equal(_core.relu_forward(x), np.maximum(x, 0))


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: F.relu(np.arange(3)), TypeError, ["relu", "input", "int64", "float32"]),
        (lambda: F.relu([1.0]), TypeError, ["relu", "input", "list"]),
        (lambda: _core.relu_backward(np.ones(3), np.ones(4)), ValueError,
         ["relu", "grad", "(3,)", "(4,)"]),
        (lambda: _core.relu_backward(np.ones(3), np.ones(3, np.float32)), TypeError,
         ["relu", "output", "float32", "float64"]),
    ],
)  # fmt: skip
def test_refused_calls_say_what_is_wrong(call, error, words):
    with pytest.raises(error) as caught:
        call()
    for word in words:
        assert word in str(caught.value)
