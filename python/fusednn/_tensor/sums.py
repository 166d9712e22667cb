"""Sums that keep their digits along any axis.

NumPy adds pairwise along the axis that is contiguous in memory alone. Along others it adds one row
to the sum of those before, whose rounding errors grow with the rows: the sum of a million times 0.1
in float32 is 1 % off. Float32 sums of many rows are therefore made in blocks, and the sums of
blocks added in float64. The blocks depend on the shape alone, so the bits never change.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy import ndarray

from .tape import Array

add: Any = np.add

_BLOCK = 128  # rows whose naive sum is off by at most so many half units in the last place


def sum_over(data: Array, axes: tuple[int, ...], keepdims: bool = False) -> Any:
    """data summed over `axes` (which are >= 0), in data's dtype; on a GPU sums are trees anyway."""
    if data.size <= _BLOCK or data.dtype.char != "f" or not isinstance(data, ndarray):
        return add.reduce(data, axis=axes, keepdims=keepdims)
    shape = data.shape
    run, last = 1, len(shape) - 1
    while last in axes:  # what NumPy adds pairwise
        run *= shape[last]
        last -= 1
    rows = math.prod([shape[axis] for axis in axes])
    if rows <= _BLOCK * run:
        return add.reduce(data, axis=axes, keepdims=keepdims)
    if run == 1 and len(axes) == max(axes) + 1 and data.flags.c_contiguous:
        out = _blocks(data.reshape(rows, -1)).reshape(shape[len(axes) :])
    else:
        out = add.reduce(data, axis=axes, dtype=np.float64)
    out = np.asarray(out, np.float32)
    return np.expand_dims(out, axes) if keepdims else out


def _blocks(matrix: Array) -> Any:
    rows, columns = matrix.shape
    count = rows // _BLOCK
    whole = count * _BLOCK
    parts = add.reduce(matrix[:whole].reshape(count, _BLOCK, columns), axis=1)
    out = add.reduce(parts, axis=0, dtype=np.float64)
    return out + add.reduce(matrix[whole:], axis=0)


def running_sum(data: Array, axis: int) -> Any:
    """The sums of the first 1, 2, 3, ... elements along `axis`, added in float64."""
    if not isinstance(data, ndarray):
        return data.cumsum(axis, np.float64).astype(data.dtype)
    if data.dtype.char != "f":
        return add.accumulate(data, axis=axis)
    return add.accumulate(data, axis=axis, dtype=np.float64).astype(np.float32)
