"""Average pooling, adaptive pooling and unpooling on the GPU, beside the CPU's in double."""

from __future__ import annotations

import numpy as np
import pytest
from compare import check

import fusednn.functional as F
from fusednn import _core

# spatial, shape, kernel, stride, padding, ceil mode, count pads, divisor
CASES = (
    (1, (2, 3, 17), 3, 2, 1, False, True, None),
    (1, (1, 1, 1), 1, 1, 0, False, True, None),
    (1, (1, 2, 70), 40, 15, 3, True, False, None),
    (2, (2, 3, 12, 12), 2, None, 0, False, True, None),
    (2, (1, 2, 11, 13), (2, 3), (3, 1), (1, 1), True, False, None),
    (2, (1, 2, 9, 9), 3, 1, 1, False, True, 5),
    (2, (0, 3, 4, 4), 2, 2, 0, False, True, None),
    (3, (1, 2, 5, 6, 7), (2, 3, 2), (1, 2, 2), (1, 1, 0), False, True, None),
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_avg_pool(xp, dtype, case):
    spatial, shape, *window = case
    op = f"avg_pool{spatial}d"
    rng = np.random.default_rng(0)
    x = rng.standard_normal(shape).astype(dtype)
    forward = lambda a: _core.avg_pool_forward(op, spatial, a, *window)  # noqa: E731
    y = check(xp, forward, x, units=8)
    dy = rng.standard_normal(y.shape).astype(dtype)
    check(xp, lambda g: _core.avg_pool_backward(op, spatial, g, shape, *window), dy, units=16)


@pytest.mark.parametrize("case", [((2, 3, 7), 3), ((1, 2, 5, 9), (2, 4)), ((2, 1, 4, 4), 1)])
def test_adaptive(xp, dtype, case):
    shape, size = case
    spatial = len(shape) - 2
    sizes = (size,) * spatial if isinstance(size, int) else size
    rng = np.random.default_rng(1)
    x = rng.integers(-4, 4, shape).astype(dtype)
    average, largest = f"adaptive_avg_pool{spatial}d", f"adaptive_max_pool{spatial}d"
    check(xp, lambda a: _core.adaptive_avg_forward(average, spatial, a, sizes), x, units=8)
    y, indices = check(xp, lambda a: _core.adaptive_max_forward(largest, spatial, a, sizes), x)
    dy = rng.integers(-4, 4, y.shape).astype(dtype)
    check(
        xp, lambda g: _core.adaptive_avg_backward(average, spatial, g, shape, sizes), dy, units=16
    )
    check(
        xp,
        lambda g, i: _core.scatter_planes(largest, spatial, g, i, shape, True),
        dy,
        xp.asnumpy(indices),
    )


@pytest.mark.parametrize("reduce", ["mean", "sum", "max"])
@pytest.mark.parametrize("shape", [(2, 3, 5), (1, 2, 7, 7), (3, 1, 40)])
def test_global_pool(xp, dtype, shape, reduce):
    x = np.random.default_rng(2).standard_normal(shape).astype(dtype)
    check(xp, lambda a: F.global_pool(a, reduce), x, units=8)
    if reduce != "max":
        dy = np.random.default_rng(3).standard_normal(shape[:2]).astype(dtype)
        check(xp, lambda g: _core.global_pool_backward(g, shape, reduce == "sum"), dy)


def test_unpool(xp, dtype):
    """Of entries that name one position the last wins, as on the CPU."""
    rng = np.random.default_rng(4)
    x = rng.standard_normal((2, 3, 4, 5)).astype(dtype)
    indices = rng.integers(0, 30, x.shape)
    shape = (2, 3, 8, 10)
    check(xp, lambda a, i: _core.scatter_planes("max_unpool2d", 2, a, i, shape, False), x, indices)
    dy = rng.standard_normal(shape).astype(dtype)
    check(xp, lambda g, i: _core.gather_planes("max_unpool2d", 2, g, i), dy, indices)


def test_special_values(xp, dtype):
    x = np.ones((1, 1, 8), dtype)
    x[0, 0, 2], x[0, 0, 5] = np.nan, np.inf
    check(xp, lambda a: F.avg_pool1d(a, 2), x)
    check(xp, lambda a: _core.adaptive_max_forward("adaptive_max_pool1d", 1, a, (3,)), x)


def test_positions_are_checked(xp):
    with pytest.raises(ValueError, match=r"indices value 9 at index \(0, 0, 1\) is out of bounds"):
        _core.scatter_planes(
            "max_unpool1d", 1, xp.zeros((1, 1, 2)), xp.asarray(np.array([[[0, 9]]])), (1, 1, 4),
            False,
        )  # fmt: skip
