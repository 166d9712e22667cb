"""What the kernels must compute, said twice in plain NumPy: as an oracle and as a naive version.

The oracles (`conv_forward`, `linear_backward` ...) compute in float64, for float64 arrays in long
double where the machine has it; they are the truth. The naive versions (`naive_conv_forward` ...)
add one product after another in the arrays' own precision, as the textbook's loops would. How far
the naive version is from the truth says how much rounding an input costs, so a kernel is held to
twice that distance (`assert_accurate`) and not to a constant that somebody hoped would do.

Convolutions are those of deep learning (cross-correlations): with input x (N, C, spatial...) and
weight w (O, C/groups, kernel...),
y[n, o, t] = b[o] + sum over c, k of w[o, c, k] * x[n, c, t * stride + k * dilation - padding],
and x is 0 outside (Dumoulin & Visin, "A guide to convolution arithmetic for deep learning", 2016).
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Ints = int | Sequence[int]


def _exact(array: Array) -> Array:
    """The array in the oracles' precision: float64, or more than that for float64 arrays."""
    return array.astype(np.longdouble if array.dtype == np.float64 else np.float64)


def _per_axis(value: Ints, axes: int) -> tuple[int, ...]:
    return (value,) * axes if isinstance(value, int) else tuple(value)


class _Window:
    """Where each tap of a convolution's kernel reads in the padded input."""

    def __init__(
        self,
        spatial: Sequence[int],
        kernel: Sequence[int],
        stride: Ints,
        padding: Ints,
        dilation: Ints,
    ) -> None:
        axes = len(kernel)
        self.kernel = tuple(kernel)
        self.stride = _per_axis(stride, axes)
        self.padding = _per_axis(padding, axes)
        self.dilation = _per_axis(dilation, axes)
        self.padded = tuple(n + 2 * p for n, p in zip(spatial, self.padding, strict=True))
        self.output = tuple(
            (n - d * (k - 1) - 1) // s + 1
            for n, k, s, d in zip(self.padded, kernel, self.stride, self.dilation, strict=True)
        )

    def taps(self) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
        """Each tap as an index into the weight's last axes, and into the padded input's."""
        for tap in itertools.product(*map(range, self.kernel)):
            steps = zip(tap, self.dilation, self.stride, self.output, strict=True)
            place = (slice(t * d, t * d + (n - 1) * s + 1, s) for t, d, s, n in steps)
            yield (..., *tap), (..., *place)

    def pad(self, x: Array) -> Array:
        return np.pad(x, [(0, 0), (0, 0), *((p, p) for p in self.padding)])

    def crop(self, padded: Array) -> Array:
        inner = (slice(p, n - p) for p, n in zip(self.padding, self.padded, strict=True))
        return np.ascontiguousarray(padded[(slice(None), slice(None), *inner)])


def _grouped(x: Array, groups: int) -> Array:
    """(N, C, spatial...) as (N, groups, C/groups, pixels)."""
    channels = x.shape[1] // groups
    return x.reshape(x.shape[0], groups, channels, math.prod(x.shape[2:]))


# ---- convolution, the truth ----------------------------------------------------------------------


def conv_forward(
    input: Array,
    weight: Array,
    bias: Array | None = None,
    *,
    stride: Ints = 1,
    padding: Ints = 0,
    dilation: Ints = 1,
    groups: int = 1,
) -> Array:
    """The convolution (N, O, out...) of input (N, C, spatial...), in float64, tap by tap.

    >>> x, w = np.ones((1, 1, 3, 4), np.float32), np.ones((1, 1, 3, 3), np.float32)
    >>> conv_forward(x, w, padding=1)[0, 0, 0].tolist()
    [4.0, 6.0, 6.0, 4.0]
    """
    x, w = _exact(input), _exact(weight)
    window = _Window(x.shape[2:], w.shape[2:], stride, padding, dilation)
    batch, out_channels = x.shape[0], w.shape[0]
    pixels = math.prod(window.output)
    y = np.zeros((batch, groups, out_channels // groups, pixels), x.dtype)
    padded = window.pad(x)
    w = w.reshape(groups, out_channels // groups, *w.shape[1:])
    for tap, place in window.taps():
        y += w[tap] @ _grouped(padded[place], groups)
    y = y.reshape(batch, out_channels, pixels)
    if bias is not None:
        y += _exact(bias)[:, None]
    return y.reshape(batch, out_channels, *window.output)


def conv_backward(
    grad: Array,
    input: Array,
    weight: Array,
    *,
    stride: Ints = 1,
    padding: Ints = 0,
    dilation: Ints = 1,
    groups: int = 1,
) -> tuple[Array, Array, Array]:
    """Gradients of input, weight and bias, in float64, from grad (N, O, out...).

    >>> ones = np.ones((1, 1, 2), np.float32)
    >>> dx, dw, db = conv_backward(ones, np.array([[[1, 2, 3]]], np.float32), ones)
    >>> dx.tolist(), dw.tolist(), db.tolist()
    ([[[1.0, 2.0, 1.0]]], [[[3.0, 5.0]]], [2.0])
    """
    dy, x, w = (_exact(a) for a in (grad, input, weight))
    window = _Window(x.shape[2:], w.shape[2:], stride, padding, dilation)
    batch, channels = x.shape[:2]
    dy = _grouped(dy, groups)
    padded = window.pad(x)
    w = w.reshape(groups, w.shape[0] // groups, *w.shape[1:])
    dx, dw = np.zeros_like(padded), np.zeros_like(w)
    for tap, place in window.taps():
        patch = _grouped(padded[place], groups)
        dw[tap] = (dy @ patch.swapaxes(2, 3)).sum(axis=0)
        from_tap = w[tap].swapaxes(1, 2) @ dy
        dx[place] += from_tap.reshape(batch, channels, *window.output)
    return window.crop(dx), dw.reshape(weight.shape), dy.sum(axis=(0, 3)).reshape(-1)


def columns(
    input: Array, kernel_size: Ints, *, dilation: Ints = 1, padding: Ints = 0, stride: Ints = 1
) -> Array:
    """Columns (N, C * taps, out pixels) of input (N, C, spatial...): every window's values."""
    kernel = _per_axis(kernel_size, input.ndim - 2)
    window = _Window(input.shape[2:], kernel, stride, padding, dilation)
    batch, channels = input.shape[:2]
    padded = window.pad(input)
    shape = batch, channels, math.prod(window.output)
    taps = [padded[place].reshape(shape) for _, place in window.taps()]
    return np.stack(taps, axis=2).reshape(batch, channels * len(taps), shape[2])


# ---- convolution, naive --------------------------------------------------------------------------


def naive_conv_forward(
    input: Array,
    weight: Array,
    bias: Array | None = None,
    *,
    stride: Ints = 1,
    padding: Ints = 0,
    dilation: Ints = 1,
    groups: int = 1,
) -> Array:
    """`conv_forward` in the arrays' own precision, one product at a time in the weight's order."""
    window = _Window(input.shape[2:], weight.shape[2:], stride, padding, dilation)
    batch, out_channels = input.shape[0], weight.shape[0]
    pixels = math.prod(window.output)
    y = np.zeros((batch, groups, out_channels // groups, pixels), input.dtype)
    padded = window.pad(input)
    w = weight.reshape(groups, out_channels // groups, *weight.shape[1:])
    for channel in range(weight.shape[1]):
        for tap, place in window.taps():
            patch = _grouped(padded[place], groups)[:, :, None, channel]
            y += w[:, :, channel][tap][:, :, None] * patch
    y = y.reshape(batch, out_channels, pixels)
    if bias is not None:
        y += bias[:, None]
    return y.reshape(batch, out_channels, *window.output)


def naive_conv_backward(
    grad: Array,
    input: Array,
    weight: Array,
    *,
    stride: Ints = 1,
    padding: Ints = 0,
    dilation: Ints = 1,
    groups: int = 1,
) -> tuple[Array, Array, Array]:
    """`conv_backward` in the arrays' own precision, one product at a time."""
    window = _Window(input.shape[2:], weight.shape[2:], stride, padding, dilation)
    batch, channels = input.shape[:2]
    dy = _grouped(grad, groups)
    w = weight.reshape(groups, weight.shape[0] // groups, *weight.shape[1:])
    padded = np.zeros((batch, channels, *window.padded), input.dtype)
    for out in range(w.shape[1]):
        for tap, place in window.taps():
            product = w[:, out][tap][:, :, None] * dy[:, :, None, out]
            padded[place] += product.reshape(batch, channels, *window.output)
    patches = columns(input, window.kernel, dilation=dilation, padding=padding, stride=stride)
    patches = patches.reshape(batch, groups, math.prod(weight.shape[1:]), dy.shape[3])
    dw = np.zeros((groups, w.shape[1], patches.shape[2]), input.dtype)
    for image, pixel in np.ndindex(batch, dy.shape[3]):
        dw += dy[image, :, :, None, pixel] * patches[image, :, None, :, pixel]
    per_channel = np.moveaxis(grad, 1, 0).reshape(grad.shape[1], batch * dy.shape[3])
    return window.crop(padded), dw.reshape(weight.shape), naive_sum(per_channel)


# ---- dense ---------------------------------------------------------------------------------------


def _rows(stack: Array) -> Array:
    """(..., n) as (rows, n)."""
    return stack.reshape(math.prod(stack.shape[:-1]), stack.shape[-1])


def gemm(a: Array, b: Array) -> Array:
    """a (..., m, k) @ b (..., k, n) in float64."""
    return _exact(a) @ _exact(b)


def naive_gemm(a: Array, b: Array) -> Array:
    """`gemm` in the arrays' own precision, one product at a time."""
    c = np.zeros((a @ b).shape, a.dtype)
    for k in range(a.shape[-1]):
        c += a[..., :, k, None] * b[..., None, k, :]
    return c


def linear_forward(input: Array, weight: Array, bias: Array | None = None) -> Array:
    """input (..., in) @ weight (out, in)^T + bias, in float64."""
    y = gemm(input, weight.T)
    return y if bias is None else y + _exact(bias)


def linear_backward(grad: Array, input: Array, weight: Array) -> tuple[Array, Array, Array]:
    """Gradients of input, weight and bias, in float64, from grad (..., out)."""
    rows, inputs = _rows(grad), _rows(input)
    return gemm(grad, weight), gemm(rows.T, inputs), _exact(rows).sum(axis=0)


def naive_linear_forward(input: Array, weight: Array, bias: Array | None = None) -> Array:
    """`linear_forward` in the arrays' own precision, one product at a time."""
    y = naive_gemm(_rows(input), weight.T)
    y = y if bias is None else y + bias
    return y.reshape(*input.shape[:-1], weight.shape[0])


def naive_linear_backward(grad: Array, input: Array, weight: Array) -> tuple[Array, Array, Array]:
    """`linear_backward` in the arrays' own precision, one product at a time."""
    rows, inputs = _rows(grad), _rows(input)
    dx = naive_gemm(rows, weight).reshape(input.shape)
    return dx, naive_gemm(rows.T, inputs), naive_sum(rows.T)


def naive_sum(rows: Array) -> Array:
    """The sum of each row of (m, n), first element to last in the array's own precision."""
    if rows.shape[1] == 0:
        return np.zeros(rows.shape[0], rows.dtype)
    return np.add.accumulate(rows, axis=1)[:, -1].copy()


# ---- how close is close --------------------------------------------------------------------------


def max_error(actual: Array, exact: Array) -> float:
    """The largest |actual - exact|, in float64; 0 for empty arrays."""
    if actual.size == 0:
        return 0.0
    return float(np.max(np.abs(actual.astype(exact.dtype) - exact)))


def relative_error(actual: Array, exact: Array) -> float:
    """`max_error` over the largest |exact|; 0 for empty arrays."""
    return max_error(actual, exact) / max(max_error(exact, np.zeros(())), 1e-300)


def error_bound(exact: Array, naive: Array, factor: float = 2.0) -> float:
    """How far a kernel may be off: `factor` times the naive version's error, and 2 ulp.

    The ulp is that of the largest exact value in the naive version's precision.

    >>> error_bound(np.array([1.0]), np.array([1.0], np.float32)) == 2 * 2.0**-23
    True
    """
    top = naive.dtype.type(max_error(exact, np.zeros(())))
    return factor * max_error(naive, exact) + 2 * float(np.spacing(top))


def assert_accurate(
    actual: Array, exact: Array, naive: Array, *, factor: float = 2.0, what: str = "result"
) -> None:
    """Raises AssertionError unless actual is as close to exact as `error_bound` demands.

    Shape and dtype must be the naive version's. Where the naive version is not finite, actual must
    be the same infinity, or NaN.
    """
    if actual.shape != naive.shape or actual.dtype != naive.dtype or exact.shape != naive.shape:
        raise AssertionError(
            f"{what} is {actual.dtype} {actual.shape}, expected {naive.dtype} {naive.shape}"
        )
    finite = np.isfinite(naive)
    if not np.array_equal(actual[~finite], naive[~finite], equal_nan=True):
        raise AssertionError(f"{what}: NaN or infinity is not where it must be")
    if not finite.any():
        return
    bound = error_bound(exact[finite], naive[finite], factor)
    error = np.where(finite, np.abs(actual.astype(exact.dtype) - np.where(finite, exact, 0)), 0)
    worst = tuple(map(int, np.unravel_index(int(np.argmax(error)), error.shape)))
    if not error[worst] <= bound:
        raise AssertionError(
            f"{what}{list(worst)} is {actual[worst]!r}, expected {exact[worst]!r}: off by "
            f"{error[worst]:.3g}, allowed {bound:.3g}"
        )
