"""What the variants of convolution must compute, in plain NumPy: see `reference`."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from .reference import Array, Ints, _exact, _grouped, _per_axis

Sides = Sequence[tuple[int, int]]


def sides(padding: Any, size: Ints, kernel: Ints, stride: Ints = 1, dilation: Ints = 1) -> Sides:
    """The zeros (front, back) of each axis that a convolution's `padding` stands for.

    >>> sides("same", (6,), (3,), 2)
    [(0, 1)]
    """
    sizes = tuple(size) if isinstance(size, Sequence) else (size,)
    axes = len(sizes)
    terms = (_per_axis(value, axes) for value in (kernel, stride, dilation))
    kernels, strides, dilations = terms
    reach = [(k - 1) * d for k, d in zip(kernels, dilations, strict=True)]
    if padding == "valid":
        return [(0, 0)] * axes
    if padding == "causal":
        return [(reach[0], 0)]
    if padding == "same":
        totals = [
            max(0, (-(-n // s) - 1) * s + r + 1 - n)
            for n, s, r in zip(sizes, strides, reach, strict=True)
        ]
        return [(total // 2, total - total // 2) for total in totals]
    each = padding if isinstance(padding, Sequence) else (padding,) * axes
    return [(p, p) if isinstance(p, int) else (p[0], p[1]) for p in each]


class _Spread:
    """Where each tap of a transposed convolution writes, in the result before it is cropped."""

    def __init__(
        self, size: Sequence[int], kernel: Sequence[int], stride: Ints, padding: Any, extra: Ints,
        dilation: Ints,
    ) -> None:  # fmt: skip
        axes = len(kernel)
        self.size, self.kernel = tuple(size), tuple(kernel)
        self.stride, self.dilation = _per_axis(stride, axes), _per_axis(dilation, axes)
        self.sides = sides(padding, size, kernel)
        self.full = tuple(
            (n - 1) * s + d * (k - 1) + 1 + e
            for n, s, d, k, e in zip(
                size, self.stride, self.dilation, kernel, _per_axis(extra, axes), strict=True
            )
        )

    def taps(self) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
        """Each tap as an index into the weight's last axes, and into the result's."""
        if 0 in self.size:
            return
        for tap in itertools.product(*map(range, self.kernel)):
            steps = zip(tap, self.dilation, self.stride, self.size, strict=True)
            place = (slice(t * d, t * d + (n - 1) * s + 1, s) for t, d, s, n in steps)
            yield (..., *tap), (..., *place)

    def crop(self, y: Array) -> Array:
        inner = (slice(a, n - b) for n, (a, b) in zip(self.full, self.sides, strict=True))
        return y[(slice(None), slice(None), *inner)]

    def widen(self, grad: Array) -> Array:
        return np.pad(grad, [(0, 0), (0, 0), *self.sides])


def conv_transpose_forward(
    input: Array,
    weight: Array,
    bias: Array | None = None,
    *,
    stride: Ints = 1,
    padding: Any = 0,
    output_padding: Ints = 0,
    dilation: Ints = 1,
    groups: int = 1,
) -> Array:
    """(N, O, out...) of input (N, C, spatial...) and weight (C, O / groups, kernel...), in float64.

    >>> x, w = np.array([[[1.0, 2.0]]]), np.array([[[1.0, 10.0]]])
    >>> conv_transpose_forward(x, w, stride=2).astype(int).tolist()
    [[[1, 10, 2, 20]]]
    """
    x, w = _exact(input), _exact(weight)
    spread = _Spread(x.shape[2:], w.shape[2:], stride, padding, output_padding, dilation)
    batch, outs = x.shape[0], groups * w.shape[1]
    x = _grouped(x, groups)
    w = w.reshape(groups, w.shape[0] // groups, *w.shape[1:])
    y = np.zeros((batch, outs, *spread.full), x.dtype)
    for tap, place in spread.taps():
        y[place] += (w[tap].swapaxes(1, 2) @ x).reshape(batch, outs, *spread.size)
    y = spread.crop(y)
    if bias is not None:
        y = y + _exact(bias).reshape(-1, *[1] * len(spread.kernel))
    return np.ascontiguousarray(y)


def conv_transpose_backward(
    grad: Array,
    input: Array,
    weight: Array,
    *,
    stride: Ints = 1,
    padding: Any = 0,
    output_padding: Ints = 0,
    dilation: Ints = 1,
    groups: int = 1,
) -> tuple[Array, Array, Array]:
    """Gradients of input, weight and bias, in float64, from grad (N, O, out...)."""
    dy, x, w = _exact(grad), _exact(input), _exact(weight)
    spread = _Spread(x.shape[2:], w.shape[2:], stride, padding, output_padding, dilation)
    x = _grouped(x, groups)
    w = w.reshape(groups, w.shape[0] // groups, *w.shape[1:])
    full = spread.widen(dy)
    dx, dw = np.zeros_like(x), np.zeros_like(w)
    for tap, place in spread.taps():
        part = _grouped(full[place], groups)
        dx += w[tap] @ part
        dw[tap] = (x @ part.swapaxes(2, 3)).sum(0)
    axes = (0, *range(2, dy.ndim))
    return dx.reshape(input.shape), dw.reshape(weight.shape), dy.sum(axis=axes)
