"""Elementwise kernels on the GPU, against the CPU's, which have their own tests."""

from __future__ import annotations

import compare
import numpy as np
import pytest

import fusednn.functional as F
from fusednn import _core

# What a block, a vector and the tail are made of, and more than one block.
SIZES = (0, 1, 2, 3, 4, 5, 31, 255, 257, 1023, 1025, 2051)
SPECIAL = (0.0, -0.0, 1e-40, -1e-40, 1.0, -1.0, 3.0, -3.0, 30.0, -30.0, 1e30, -1e30)
INFINITE = (np.inf, -np.inf, np.nan)

FUNCTIONS = {
    "sigmoid": (0.0, 0.0),
    "tanh": (0.0, 0.0),
    "gelu": (0.0, 0.0),
    "gelu_tanh": (0.0, 0.0),
    "silu": (0.0, 0.0),
    "mish": (0.0, 0.0),
    "leaky_relu": (0.1, 0.0),
    "elu": (1.5, 1.25),
    "softplus": (2.0, 20.0),
    "logsigmoid": (0.0, 0.0),
    "hardsigmoid": (0.0, 0.0),
    "hardswish": (0.0, 0.0),
    "hardtanh": (-0.5, 2.0),
}


def inputs(size: int, dtype: str) -> np.ndarray:
    x = np.random.default_rng(size).standard_normal(size) * 4
    special = (*SPECIAL, *INFINITE)[: max(size - 16, 0)]
    x[: len(special)] = special
    return x.astype(dtype)


def close(got: np.ndarray, expected: np.ndarray, scale: np.ndarray | float = 1.0) -> None:
    """Equal but for a few roundings of a value of size `scale`."""
    unit = np.finfo(got.dtype).eps
    np.testing.assert_array_equal(np.isnan(got), np.isnan(expected))
    np.testing.assert_array_equal(np.isinf(got), np.isinf(expected))
    np.testing.assert_allclose(got, expected, rtol=16 * unit, atol=4 * unit * scale)


@pytest.mark.parametrize("size", SIZES)
def test_relu(xp, dtype, size, order):
    x = inputs(size, dtype)
    got = xp.asnumpy(F.relu(xp.asarray(x)))
    expected = F.relu(x)
    np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(np.signbit(got), np.signbit(expected))
    dy = inputs(size, dtype)[::-1].copy()
    dx = _core.relu_backward(xp.asarray(dy), xp.asarray(x))
    np.testing.assert_array_equal(xp.asnumpy(dx), _core.relu_backward(dy, x))


@pytest.mark.parametrize("size", [1, 255, 257, 1025])
def test_arrays_that_begin_between_two_vectors(xp, dtype, size):
    x = inputs(size + 1, dtype)
    got = F.relu(xp.asarray(x)[1:])
    np.testing.assert_array_equal(xp.asnumpy(got), F.relu(x[1:]))
    dx = _core.relu_backward(xp.asarray(x)[1:], xp.asarray(x)[:-1])
    np.testing.assert_array_equal(xp.asnumpy(dx), _core.relu_backward(x[1:], x[:-1]))


@pytest.mark.parametrize(
    "shape", [(0, 3, 4), (1, 1, 1), (2, 3, 5), (1, 2, 1028), (70, 5, 1)], ids=str
)
def test_prelu(xp, dtype, shape, order):
    x = inputs(int(np.prod(shape)), dtype).reshape(shape)
    x[..., :1, 0] = 0
    slope = np.linspace(-0.5, 1.5, shape[1], dtype=dtype)
    dy = np.random.default_rng(2).standard_normal(shape).astype(dtype)
    with np.errstate(all="ignore"):
        y, grads = F.prelu(x, slope), _core.prelu_backward(dy, x, slope)
    size = np.abs(np.where(np.isfinite(x), dy * x, 0)).sum((0, 2))
    for place in (xp.asarray, lambda array: compare.between_vectors(xp, array)):
        held, held_dy = place(x), place(dy)
        close(xp.asnumpy(F.prelu(held, xp.asarray(slope))), y)
        for at in ((held_dy, xp.asarray(x)), (xp.asarray(dy), held)):
            dx, dslope = _core.prelu_backward(*at, xp.asarray(slope))
            close(xp.asnumpy(dx), grads[0])
            compare.close(xp.asnumpy(dslope), grads[1], scale=size)


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("size", [3, 257, 1025])
def test_unary_forward(xp, dtype, function, size):
    x = inputs(size, dtype)
    got = _core.unary_forward(function, function, xp.asarray(x), *FUNCTIONS[function])
    close(xp.asnumpy(got), _core.unary_forward(function, function, x, *FUNCTIONS[function]))


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("size", [3, 257, 1025])
def test_unary_backward(xp, dtype, function, size):
    a, b = FUNCTIONS[function]
    x = inputs(size, dtype)
    saved = (
        _core.unary_forward(function, function, x, a, b) if function in ("sigmoid", "tanh") else x
    )
    dy = np.random.default_rng(1).standard_normal(size).astype(dtype)
    got = _core.unary_backward(function, function, xp.asarray(dy), xp.asarray(saved), a, b)
    close(xp.asnumpy(got), _core.unary_backward(function, function, dy, saved, a, b), 4.0)


@pytest.mark.parametrize("function", [F.gelu, F.silu, F.softplus, F.elu, F.hardswish, F.tanh])
def test_public_functions(xp, function):
    x = inputs(100, "float32")
    out = function(xp.asarray(x))
    assert isinstance(out, xp.ndarray)
    close(xp.asnumpy(out), function(x))
