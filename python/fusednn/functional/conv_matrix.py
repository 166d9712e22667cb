"""The matrix that a convolution is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy import ndarray

from .. import _core
from .._tensor.tape import Array, raw
from .conv import Ints, Padding


def conv_matrix(
    weight: Any,
    input_shape: Sequence[int],
    stride: Ints = 1,
    padding: Padding = 0,
    dilation: Ints = 1,
    groups: int = 1,
    *,
    dense: bool = False,
) -> Any:
    """The matrix W for which W @ x.ravel() is the convolution of x, without bias, as a vector.

    weight (O, C / groups, kernel...), input_shape (C, spatial...) with 1 to 3 spatial axes -> W of
    shape (O * output positions, C * input positions) and the weight's dtype: a `scipy.sparse`
    array in CSR format that stores one element per weight and position at which it meets a real
    input; with dense=True a NumPy array. Window arguments as for `conv1d`. W.T is the transposed
    convolution.

    ValueError for shapes that do not fit, TypeError for dtypes other than float32 and float64,
    ImportError where SciPy is missing and the matrix is to be sparse.

    >>> import numpy as np, fusednn as fn
    >>> fn.conv_matrix(np.array([[[1.0, -1.0, 1.0]]]), (1, 4), dense=True)
    array([[ 1., -1.,  1.,  0.],
           [ 0.,  1., -1.,  1.]])
    """
    w = raw(weight)
    if not isinstance(w, ndarray):
        raise TypeError(f"conv_matrix: weight must be a Tensor or an array, got {type(w).__name__}")
    if w.dtype.char not in "fd":
        raise TypeError(f"conv_matrix: weight has dtype {w.dtype}, expected float32 or float64")
    shape, spatial = tuple(input_shape), w.ndim - 2
    if spatial not in (1, 2, 3) or len(shape) != spatial + 1:
        raise ValueError(
            f"conv_matrix: weight of shape {w.shape} and input_shape {shape}, expected 3 to 5 axes "
            "and (C, spatial...) with as many spatial axes"
        )
    output, axes = _core.conv_shape(
        "conv_matrix", spatial, shape, w.shape, stride, padding, dilation, groups
    )
    at, inside = _reads(shape[1:], output[1:], w.shape[2:], axes)
    data, columns = _elements(w, at, inside, math.prod(shape[1:]), groups)
    per_row = np.tile(inside.sum(1) * w.shape[1], w.shape[0])
    size = (math.prod(output), math.prod(shape))
    if dense:
        matrix = np.zeros(size, data.dtype)
        matrix[np.repeat(np.arange(size[0]), per_row), columns] = data
        return matrix
    try:
        from scipy.sparse import csr_array
    except ImportError as error:
        raise ImportError(
            "conv_matrix: a sparse matrix needs SciPy (pip install scipy); dense=True does not"
        ) from error
    return csr_array((data, columns, np.concatenate([[0], np.cumsum(per_row)])), shape=size)


def _reads(
    size: Sequence[int], output: Sequence[int], kernel: Sequence[int], axes: Any
) -> tuple[Array, Array]:
    """Where in the input's plane each tap reads, and whether that is inside: (positions, taps)."""
    at, inside = np.zeros((1, 1), np.int64), np.ones((1, 1), bool)
    for n, out, taps, (stride, dilation, front, _) in zip(size, output, kernel, axes, strict=True):
        place = np.arange(out)[:, None] * stride + np.arange(taps) * dilation - front
        fits = (place >= 0) & (place < n)
        # The axes so far are the outer ones, of positions and of taps alike.
        at = (at[:, None, :, None] * n + place[None, :, None, :]).reshape(len(at) * out, -1)
        inside = inside[:, None, :, None] & fits[None, :, None, :]
        inside = inside.reshape(at.shape)
    return at, inside


def _elements(w: Array, at: Array, inside: Array, plane: int, groups: int) -> tuple[Array, Array]:
    """Values and columns, row by row, the columns of a row in ascending order."""
    outputs, channels = w.shape[:2]
    first = np.arange(outputs) // max(outputs // groups, 1) * channels
    channel = first[:, None] + np.arange(channels)
    shape = (outputs, len(at), channels, at.shape[1])
    used = np.broadcast_to(inside[None, :, None, :], shape)
    columns = channel[:, None, :, None] * plane + at[None, :, None, :]
    values = np.broadcast_to(w.reshape(outputs, 1, channels, at.shape[1]), shape)
    return values[used], columns[used]


__all__ = ["conv_matrix"]
