"""Max pooling on the GPU: the same bits as on the CPU, whose kernels have their own tests."""

from __future__ import annotations

import numpy as np
import pytest

import fusednn.functional as F
from fusednn import _core

# spatial, input shape, kernel, stride, padding, dilation, ceil mode
CASES = (
    (1, (2, 3, 17), 3, 2, 1, 1, False),
    (1, (1, 1, 1), 1, 1, 0, 1, False),
    (1, (1, 2, 300), 300, 1, 150, 1, False),  # taps in two bytes
    (2, (2, 3, 12, 12), 2, None, 0, 1, False),
    (2, (1, 2, 17, 40), 3, 2, 1, 1, False),
    (2, (2, 2, 7, 7), 3, 1, 1, 1, False),
    (2, (1, 2, 11, 13), (2, 3), (3, 1), (0, 1), (1, 2), True),
    (2, (3, 5, 5), 2, 2, 1, 2, True),
    (2, (0, 3, 4, 4), 2, 2, 0, 1, False),
    (3, (1, 2, 5, 6, 7), (2, 3, 2), (1, 2, 2), (1, 1, 0), 1, False),
    (3, (1, 1, 4, 4, 4), 2, 2, 0, 1, False),
)


def pool(spatial, x, window):
    kernel, stride, padding, dilation, ceil_mode = window
    return _core.max_pool_forward(spatial, x, kernel, stride, padding, dilation, ceil_mode, True)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_max_pool(xp, dtype, case, order):
    spatial, shape, *window = case
    rng = np.random.default_rng(0)
    x = rng.integers(-8, 8, shape).astype(dtype)  # many equals
    out, argmax = pool(spatial, x, window)
    got, got_argmax = pool(spatial, xp.asarray(x), window)
    np.testing.assert_array_equal(xp.asnumpy(got), out)
    assert got_argmax.dtype == argmax.dtype
    np.testing.assert_array_equal(xp.asnumpy(got_argmax), argmax)
    positions = _core.max_pool_indices(spatial, got_argmax, shape, *window)
    assert positions.dtype == np.int64
    expected = _core.max_pool_indices(spatial, argmax, shape, *window)
    np.testing.assert_array_equal(xp.asnumpy(positions), expected)
    dy = rng.integers(-8, 8, out.shape).astype(dtype)  # sums are exact, in any order
    dx = _core.max_pool_backward(spatial, dy, argmax, shape, *window)
    got_dx = _core.max_pool_backward(spatial, xp.asarray(dy), got_argmax, shape, *window)
    np.testing.assert_array_equal(xp.asnumpy(got_dx), dx)


@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
def test_special_values(xp, dtype, special):
    rng = np.random.default_rng(1)
    x = rng.standard_normal((2, 2, 9, 9)).astype(dtype)
    x[rng.random(x.shape) < 0.3] = special
    window = (3, 2, 1, 1, False)
    for mine, expected in zip(pool(2, xp.asarray(x), window), pool(2, x, window), strict=True):
        np.testing.assert_array_equal(xp.asnumpy(mine), expected)


def test_values_only(xp):
    x = np.random.default_rng(2).standard_normal((2, 3, 8, 8)).astype("float32")
    out = F.max_pool2d(xp.asarray(x), 2)
    assert isinstance(out, xp.ndarray)
    np.testing.assert_array_equal(xp.asnumpy(out), F.max_pool2d(x, 2))


def test_kernels_far_larger_than_the_input(xp):
    x = np.random.default_rng(3).standard_normal((1, 1, 4)).astype("float32")
    window = (10**8, 1, 5 * 10**7, 1, True)
    for mine, expected in zip(pool(1, xp.asarray(x), window), pool(1, x, window), strict=True):
        np.testing.assert_array_equal(xp.asnumpy(mine), expected)


def test_more_planes_than_a_grid_has_along_y(xp):
    x = np.random.default_rng(4).standard_normal((70_000, 1, 1, 2)).astype("float32")
    np.testing.assert_array_equal(
        xp.asnumpy(F.max_pool2d(xp.asarray(x), (1, 2))), x.max(-1, keepdims=True)
    )


def test_taps_that_are_none(xp):
    """What is no tap of the window gets no gradient, and nothing else is touched."""
    argmax = xp.asarray(np.array([[[0, 200]]], "uint8"))
    dx = _core.max_pool_backward(
        1, xp.asarray(np.ones((1, 1, 2))), argmax, (1, 1, 4), 2, 2, 0, 1, False
    )
    np.testing.assert_array_equal(xp.asnumpy(dx), [[[1, 0, 0, 0]]])


def test_argmax_is_checked(xp):
    with pytest.raises(
        TypeError, match="max_pool1d backward: argmax has dtype int32, expected uint8"
    ):
        _core.max_pool_backward(
            1, xp.zeros((1, 1, 2)), xp.zeros((1, 1, 2), "int32"), (1, 1, 4), 2, 2, 0, 1, False
        )


def test_indices_far_outside(xp):
    """Kernels and paddings whose positions need 64 bits; the winners are in the plane."""
    x = np.random.default_rng(5).standard_normal((1, 2, 4)).astype("float32")
    window = (2 * 10**9, 1, 10**9, 1, True)
    got, expected = (
        F.max_pool1d(place(x), *window, return_indices=True) for place in (xp.asarray, np.asarray)
    )
    np.testing.assert_array_equal(xp.asnumpy(got[1]), expected[1])
