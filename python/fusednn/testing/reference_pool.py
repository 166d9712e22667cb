"""Plain twins of max pooling, unfold and fold: NumPy in float64, one window position at a time.

They follow the definitions word for word and share nothing with the kernels: no lines, no phases,
no separable maxima. Any number of spatial axes; window arguments are an int or one int per axis.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = int | Sequence[int]
Index = tuple[int, ...]


def _ints(value: Ints, spatial: int) -> Index:
    return (value,) * spatial if isinstance(value, int) else tuple(value)


def window_counts(
    size: Sequence[int],
    kernel: Ints,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    ceil_mode: bool = False,
) -> Index:
    """Windows along each axis of `size`; a last window that starts behind the input is dropped."""
    axes = (_ints(value, len(size)) for value in (kernel, stride, padding, dilation))
    counts = []
    for length, k, s, p, d in zip(size, *axes, strict=True):
        room = length + 2 * p - (d * (k - 1) + 1)
        count = room // s + 1
        if ceil_mode and room % s:
            count += 1
            if (count - 1) * s >= length + p:
                count -= 1
        counts.append(count)
    return tuple(counts)


def _windows(
    size: Sequence[int],
    counts: Index,
    kernel: Index,
    stride: Index,
    padding: Index,
    dilation: Index,
) -> Iterator[tuple[Index, int, Index]]:
    """(output, tap number, input) of every tap that reads a real element, in row-major order."""
    for out in np.ndindex(counts):
        for tap, offset in enumerate(np.ndindex(kernel)):
            at = tuple(
                o * s - p + t * d
                for o, s, p, t, d in zip(out, stride, padding, offset, dilation, strict=True)
            )
            if all(0 <= i < n for i, n in zip(at, size, strict=True)):
                yield out, tap, at


def max_pool(
    x: NDArray[Any],
    kernel: Ints,
    stride: Ints | None = None,
    padding: Ints = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    *,
    spatial: int = 2,
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
    """Maxima of the windows of x (..., spatial axes), their taps and their flat input positions.

    The first maximum in row-major order wins; a NaN wins over every number, the last NaN over all.
    Taps count through the window in row-major order, padded ones included.
    """
    size = x.shape[x.ndim - spatial :]
    steps = kernel if stride is None else stride
    k, s, p, d = (_ints(v, spatial) for v in (kernel, steps, padding, dilation))
    counts = window_counts(size, k, s, p, d, ceil_mode)
    lead = x.shape[: x.ndim - spatial]
    best = np.full(lead + counts, -np.inf)
    taps = np.full(lead + counts, -1, np.int64)
    flat = np.full(lead + counts, -1, np.int64)
    values = x.astype(np.float64)
    for out, tap, at in _windows(size, counts, k, s, p, d):
        here: tuple[Any, ...] = (..., *out)
        there: tuple[Any, ...] = (..., *at)
        v = values[there]
        wins = (v > best[here]) | np.isnan(v) | (taps[here] < 0)
        best[here] = np.where(wins, v, best[here])
        taps[here] = np.where(wins, tap, taps[here])
        flat[here] = np.where(wins, np.ravel_multi_index(at, size), flat[here])
    return best, taps, flat


def max_pool_backward(
    grad: NDArray[Any], indices: NDArray[np.int64], input_shape: Sequence[int], *, spatial: int = 2
) -> NDArray[np.float64]:
    """Each output's gradient added at its flat input position."""
    planes = int(np.prod(input_shape[: len(input_shape) - spatial]))
    inputs = int(np.prod(input_shape[len(input_shape) - spatial :]))
    dx = np.zeros((planes, inputs))
    outputs = int(np.prod(grad.shape[grad.ndim - spatial :]))
    g = grad.reshape(planes, outputs).astype(np.float64)
    at = indices.reshape(planes, outputs)
    for plane, output in itertools.product(range(planes), range(outputs)):
        dx[plane, at[plane, output]] += g[plane, output]
    return dx.reshape(input_shape)


def unfold(
    x: NDArray[Any], kernel: Ints, dilation: Ints = 1, padding: Ints = 0, stride: Ints = 1
) -> NDArray[np.float64]:
    """x (N, C, H, W) -> (N, C * KH * KW, windows): each window as a column, zeros for padding."""
    n, c, *size = x.shape
    k, d, p, s = (_ints(v, 2) for v in (kernel, dilation, padding, stride))
    counts = window_counts(size, k, s, p, d)
    columns = np.zeros((n, c, k[0] * k[1], *counts))
    for out, tap, at in _windows(size, counts, k, s, p, d):
        columns[:, :, tap, out[0], out[1]] = x[:, :, at[0], at[1]]
    return columns.reshape(n, c * k[0] * k[1], counts[0] * counts[1])


def fold(
    columns: NDArray[Any],
    output_size: Ints,
    kernel: Ints,
    dilation: Ints = 1,
    padding: Ints = 0,
    stride: Ints = 1,
) -> NDArray[np.float64]:
    """The transpose of unfold: (N, C * KH * KW, windows) -> (N, C, H, W), overlaps added."""
    size = _ints(output_size, 2)
    k, d, p, s = (_ints(v, 2) for v in (kernel, dilation, padding, stride))
    counts = window_counts(size, k, s, p, d)
    n, rows, _ = columns.shape
    c = rows // (k[0] * k[1])
    taps = columns.reshape(n, c, k[0] * k[1], *counts).astype(np.float64)
    x = np.zeros((n, c, *size))
    for out, tap, at in _windows(size, counts, k, s, p, d):
        x[:, :, at[0], at[1]] += taps[:, :, tap, out[0], out[1]]
    return x
