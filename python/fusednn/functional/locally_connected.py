"""Locally connected layers: a convolution's windows, with a kernel of its own at every position.

y[n, o, t] = bias[o, t] + sum over c, k of weight[t, o, c, k] * x[n, c, t * stride + k * dilation -
front], with x = 0 outside. A convolution is the case in which all weight[t] are the same; here a
1-D layer of 8 outputs and kernel 3 has 24 independent weights. LeCun, "Generalization and network
design strategies", 1989, compares the two.

Computed as unfold and one small matrix product per position.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from .. import _core
from .._tensor.autocast import autocasting, cast_array, narrowed
from .._tensor.device import as_array, check_device, is_array, is_half, namespace, on_gpu
from .._tensor.sums import sum_over
from .._tensor.tape import Array, Gradients, Node, TensorBase, needs, raw, record
from .conv import Ints, Padding


class _Window(NamedTuple):
    """A checked call. Kernel, stride and dilation are those of an image: 1-D has height 1."""

    size: tuple[int, ...]  # of an input with a batch axis
    sides: list[tuple[int, int]]  # zeros around its spatial axes
    output: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    batched: bool

    @property
    def positions(self) -> int:
        return math.prod(self.output[2:])


def _locally_connected(
    spatial: int, input: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any
) -> Any:
    if autocasting() is not None:
        input, weight, bias = narrowed(f"locally_connected{spatial}d", input, weight, bias)
    x, w, b = raw(input), raw(weight), raw(bias)
    window = _checked(spatial, x, w, b, stride, padding, dilation)
    # (positions, N, C * taps) @ (positions, C * taps, O)
    product = _core.matmul(_columns(x, window), _matrices(w, window), False, True)
    batch, outputs = window.output[:2]
    y = product.reshape(-1, batch * outputs).T if product.size else product
    y = namespace(y).ascontiguousarray(y).reshape(window.output)
    if b is not None:
        y += b
    y = y if window.batched else y[0]
    if not any(isinstance(value, TensorBase) for value in (input, weight, bias)):
        return y
    keep = (input if needs(weight) else None, weight if needs(input) else None)
    return record(y, _locally_connected_backward, (input, weight, bias), keep, (w.shape, window))


def _locally_connected_backward(node: Node, grad: Any) -> Gradients:
    x_edge, w_edge, b_edge = node.edges
    x, w, w_shape, window = node.saved
    batch, outputs = window.output[:2]
    grad = as_array(grad).reshape(window.output)
    # (positions, N, O), a view like _columns; the kernels copy such views themselves.
    per_position = grad.reshape(batch, outputs, window.positions).transpose(2, 0, 1)
    grad_x = grad_w = None
    if x_edge is not None:
        columns = _core.matmul(per_position, _matrices(w, window), False, False)
        grad_x = _from_columns(columns, window)
        grad_x = grad_x if window.batched else grad_x[0]
    if w_edge is not None:
        grad_w = _core.matmul(per_position, _columns(x, window), True, False).reshape(w_shape)
    return grad_x, grad_w, None if b_edge is None else _sum_of_batch(grad)


def _sum_of_batch(grad: Array) -> Any:
    """Of 16 bits in float32."""
    if not is_half(grad.dtype):
        return sum_over(grad, (0,))
    return cast_array(sum_over(cast_array(grad, np.dtype(np.float32)), (0,)), grad.dtype)


def _matrices(w: Array, window: _Window) -> Array:
    """The kernels as (positions, O, C * taps)."""
    taps = window.kernel[0] * window.kernel[1]
    return w.reshape(window.positions, window.output[1], window.size[1] * taps)


def _columns(x: Array, window: _Window) -> Array:
    """Every window's values: (positions, N, C * taps), a view."""
    x = x.reshape(window.size)
    if any(map(any, window.sides)):
        x = np.pad(x, [(0, 0), (0, 0), *window.sides])
    image = x if x.ndim == 4 else x[:, :, None]
    return _core.unfold(image, window.kernel, window.dilation, 0, window.stride).transpose(2, 0, 1)


def _from_columns(columns: Array, window: _Window) -> Array:
    """The sum of all windows back in the input: the transpose of `_columns`."""
    padded = [n + a + b for n, (a, b) in zip(window.size[2:], window.sides, strict=True)]
    image = _core.fold(
        columns.transpose(1, 2, 0), (1, *padded)[-2:], window.kernel, window.dilation, 0,
        window.stride,
    )  # fmt: skip
    inner = (slice(a, a + n) for n, (a, _) in zip(window.size[2:], window.sides, strict=True))
    return image.reshape(*window.size[:2], *padded)[(slice(None), slice(None), *inner)]


def _checked(
    spatial: int, x: Any, w: Any, b: Any, stride: Any, padding: Any, dilation: Any
) -> _Window:
    op = f"locally_connected{spatial}d"
    for name, value in (("input", x), ("weight", w), ("bias", b)):
        if value is None and name == "bias":
            continue
        if not is_array(value):
            raise TypeError(
                f"{op}: {name} must be a Tensor or an array, got {type(value).__name__}"
            )
        check_device(op, "input", x, name, value)
        known = value.dtype.char in "fd" or (is_half(value.dtype) and on_gpu(value))
        if not known or value.dtype.type is not x.dtype.type:
            expected = f"{x.dtype} like input" if name != "input" else "float32 or float64"
            raise TypeError(f"{op}: {name} has dtype {value.dtype}, expected {expected}")
    if w.ndim != 2 * spatial + 2:
        raise ValueError(
            f"{op}: weight has shape {w.shape}, expected {2 * spatial + 2} axes: the output's "
            "positions, out_channels, in_channels, the kernel"
        )
    kernel = w.shape[-spatial:]
    output, axes = _core.conv_shape(
        op, spatial, x.shape, w.shape[spatial:], stride, padding, dilation, 1
    )
    positions = output[-spatial:]
    if w.shape[:spatial] != positions:
        raise ValueError(
            f"{op}: weight of shape {w.shape} has kernels for positions {w.shape[:spatial]}, the "
            f"output of input {x.shape} has {positions}"
        )
    if b is not None and b.shape != (w.shape[spatial], *positions):
        raise ValueError(
            f"{op}: bias has shape {b.shape}, expected {(w.shape[spatial], *positions)}"
        )
    batched = x.ndim == spatial + 2
    one = (1,) * (2 - spatial)
    return _Window(
        size=x.shape if batched else (1, *x.shape),
        sides=[(front, behind) for _, _, front, behind in axes],
        output=output if batched else (1, *output),
        kernel=(*one, *kernel),
        stride=(*one, *(axis[0] for axis in axes)),
        dilation=(*one, *(axis[1] for axis in axes)),
        batched=batched,
    )


def locally_connected1d(
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: Ints = 1,
    padding: Padding = 0,
    dilation: Ints = 1,
) -> Any:
    """A convolution along one axis whose kernel differs from position to position.

    input (N, C, L) or (C, L), weight (L_out, O, C, K): weight[t] is the weight of a convolution for
    position t alone; bias (O, L_out) or None -> (N, O, L_out). Window arguments and L_out as for
    `conv1d`. ValueError for shapes that do not fit, TypeError for dtypes that do not.

    >>> import numpy as np, fusednn.functional as F
    >>> weight = np.array([[1.0, 0.0], [10.0, 0.0]]).reshape(2, 1, 1, 2)
    >>> F.locally_connected1d(np.array([[[1.0, 2.0, 3.0]]]), weight)
    array([[[ 1., 20.]]])
    """
    return _locally_connected(1, input, weight, bias, stride, padding, dilation)


def locally_connected2d(
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: Ints = 1,
    padding: Padding = 0,
    dilation: Ints = 1,
) -> Any:
    """A convolution along two axes whose kernel differs from position to position.

    input (N, C, H, W) or (C, H, W), weight (H_out, W_out, O, C, KH, KW), bias (O, H_out, W_out) or
    None -> (N, O, H_out, W_out). Otherwise as `locally_connected1d`.

    >>> import numpy as np, fusednn.functional as F
    >>> F.locally_connected2d(np.ones((1, 1, 2, 2)), np.ones((1, 2, 1, 1, 2, 1)))
    array([[[[2., 2.]]]])
    """
    return _locally_connected(2, input, weight, bias, stride, padding, dilation)


__all__ = ["locally_connected1d", "locally_connected2d"]
