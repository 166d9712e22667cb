"""Pooling of 16-bit arrays beside the CPU in float64, and windows beyond 32 bits of every dtype."""

from __future__ import annotations

import numpy as np
import pytest
from test_half_kernels import DTYPES, close, make

import fusednn as fn
import fusednn.functional as F
from fusednn import _core

SIGNAL, IMAGE, VOLUME = (2, 3, 17), (2, 3, 9, 11), (1, 2, 4, 5, 6)


@pytest.fixture(params=list(DTYPES))
def half(request):
    return DTYPES[request.param]


MAXIMA = {
    "1d": (SIGNAL, lambda x: F.max_pool1d(x, 3, 2, 1)),
    "2d": (IMAGE, lambda x: F.max_pool2d(x, 3, 2, 1)),
    "dilated": (IMAGE, lambda x: F.max_pool2d(x, (2, 3), 1, (1, 0), (2, 1), True)),
    "3d": (VOLUME, lambda x: F.max_pool3d(x, 2, 1, 1)),
    "adaptive": (IMAGE, lambda x: F.adaptive_max_pool2d(x, (4, 3))),
    "even": (IMAGE, lambda x: F.adaptive_max_pool2d(x, (3, 1))),
    "global": (IMAGE, lambda x: F.global_pool(x, "max")),
    "unpool": (
        (2, 3, 8, 6),
        lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2) * 2.0,
    ),
}
MEANS = {
    "1d": (SIGNAL, lambda x: F.avg_pool1d(x, 3, 2, 1)),
    "2d": (IMAGE, lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False)),
    "3d": (VOLUME, lambda x: F.avg_pool3d(x, 2, ceil_mode=True)),
    "adaptive": (IMAGE, lambda x: F.adaptive_avg_pool2d(x, (4, 3))),
    "global": (IMAGE, lambda x: F.global_pool(x, "mean")),
    "long": ((2, 3, 2, 50), lambda x: F.adaptive_avg_pool2d(x, 1)),
}


def both(xp, half, case):
    """Outputs and gradients of 16 bits, and the exact ones."""
    shape, function = case
    x, held = make(xp, shape, half)
    ours, exact = (fn.tensor(one, requires_grad=True) for one in (held, x))
    got, wanted = function(ours), function(exact)
    assert got.dtype == half
    dy, held_dy = make(xp, wanted.shape, half, seed=1)
    got.backward(held_dy)
    wanted.backward(dy)
    return (got._data, ours.grad._data), (wanted.numpy(), exact.grad.numpy()), dy


@pytest.mark.parametrize("name", MAXIMA)
def test_maxima(xp, half, order, name):
    got, wanted, dy = both(xp, half, MAXIMA[name])
    np.testing.assert_array_equal(xp.asnumpy(got[0]).astype(np.float64), wanted[0])
    # A winner of several windows has the sum of their gradients, rounded once.
    close(xp, got[1], wanted[1], 1, 1e-6 * abs(dy).max())


@pytest.mark.parametrize("name", MEANS)
def test_means(xp, half, order, name):
    got, wanted, dy = both(xp, half, MEANS[name])
    close(xp, got[0], wanted[0], 1, 1e-4)
    close(xp, got[1], wanted[1], 1, 1e-4 * abs(dy).max())


@pytest.mark.parametrize("dtype", ["float32", "float64", *DTYPES])
def test_windows_beyond_32_bits(xp, order, dtype):
    """Strides that 32-bit positions do not hold have a kernel of their own for all dtypes."""
    x, held = make(xp, (2, 3, 5, 1), DTYPES.get(dtype, np.dtype(dtype)))
    window = ((3, 1), (1, 1 << 31), (1, 0), 1, False)
    out, taps = _core.max_pool_forward(2, x, *window, True)
    got, got_taps = _core.max_pool_forward(2, held, *window, True)
    np.testing.assert_array_equal(xp.asnumpy(got).astype(np.float64), out)
    np.testing.assert_array_equal(xp.asnumpy(got_taps), taps)
    indices = _core.max_pool_indices(2, taps, x.shape, *window)
    np.testing.assert_array_equal(
        xp.asnumpy(_core.max_pool_indices(2, got_taps, x.shape, *window)), indices
    )
    dy, held_dy = make(xp, out.shape, held.dtype, seed=2)
    grad = _core.max_pool_backward(2, dy, taps, x.shape, *window)
    got_grad = _core.max_pool_backward(2, held_dy, got_taps, x.shape, *window)
    assert got_grad.dtype == held.dtype
    if dtype in DTYPES:
        close(xp, got_grad, grad, 1, 1e-6)
    else:
        np.testing.assert_allclose(xp.asnumpy(got_grad), grad, rtol=1e-6, atol=1e-6)


def test_specials(xp, half):
    """The last NaN of a window wins, with its place."""
    x = np.array([[[1.0, np.nan, np.inf, np.nan, -np.inf, -np.inf]]], np.float32).astype(half)
    got, indices = F.max_pool1d(xp.asarray(x), 4, 2, return_indices=True)
    assert np.isnan(xp.asnumpy(got).astype(np.float32)).all()
    np.testing.assert_array_equal(xp.asnumpy(indices), [[[3, 3]]])
    same = F.adaptive_max_pool1d(xp.asarray(x[..., 4:]), 1)
    np.testing.assert_array_equal(xp.asnumpy(same).astype(np.float32), [[[-np.inf]]])
