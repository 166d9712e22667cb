"""Convolution (cross-correlation, as usual in networks), and its patches as a matrix.

y[n, o, t] = bias[o] + sum over c, k of weight[o, c, k] * x[n, c, t * stride + k * dilation - front]
with x = 0 outside; along each axis the output has
floor((L + front + back - dilation * (K - 1) - 1) / stride) + 1 positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy import ndarray

from .. import _core
from .._tensor.autocast import autocasting, narrowed
from .._tensor.device import is_array
from .._tensor.shape import cat
from .._tensor.tape import Gradients, Node, TensorBase, needs, raw, record
from .packed import PackedWeight

Ints = int | Sequence[int]
Padding = int | str | Sequence[int | Sequence[int]]


def _frozen(value: Any) -> Any:
    """value, lists made tuples: what the caller changes later must not change the gradient."""
    if type(value) is int or type(value) is str:
        return value
    return tuple(map(_frozen, value)) if hasattr(value, "__iter__") else value


def _flipped(weight: Any) -> Any:
    """The array with its kernel axes reversed (a view); what is no array comes back as it is."""
    return np.flip(weight, tuple(range(2, weight.ndim))) if is_array(weight) else weight


def _conv(
    op: str,
    spatial: int,
    input: Any,
    weight: Any,
    bias: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    groups: int,
    algorithm: str,
    flip_kernel: bool,
    packed: _core.PackedWeight | None = None,
) -> Any:
    if autocasting() is not None:
        input, weight, bias = narrowed(op, input, weight, bias)
    if not (
        isinstance(input, TensorBase)
        or isinstance(weight, TensorBase)
        or isinstance(bias, TensorBase)
    ):
        if flip_kernel:
            weight = _flipped(weight)
        return _core.conv_forward(
            spatial, input, weight, bias, stride, padding, dilation, groups, algorithm
        )
    x, w = raw(input), raw(weight)
    out = _core.conv_forward(
        spatial,
        x,
        _flipped(w) if flip_kernel else w,
        raw(bias),
        stride,
        padding,
        dilation,
        groups,
        algorithm,
        packed,
    )
    keep = (input if needs(weight) else None, weight if needs(input) else None)
    window = (_frozen(stride), _frozen(padding), _frozen(dilation), groups, algorithm)
    context = (spatial, x.shape, w.shape, window, flip_kernel)
    return record(out, _conv_backward, (input, weight, bias), keep, context)


def conv_layer(
    spatial: int,
    input: Any,
    weight: Any,
    bias: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    groups: int,
    flip_kernel: bool,
    packed: PackedWeight,
) -> Any:
    """A layer's call: `conv1d`, `conv2d` or `conv3d` that may keep the packed weight (a Tensor)."""
    op = ("conv1d", "conv2d", "conv3d")[spatial - 1]
    return _conv(
        op, spatial, input, weight, bias, stride, padding, dilation, groups, "auto", flip_kernel,
        packed.of((weight,)),
    )  # fmt: skip


def _conv_backward(node: Node, grad: Any) -> Gradients:
    x_edge, w_edge, b_edge = node.edges
    x, w, spatial, x_shape, w_shape, window, flip_kernel = node.saved
    grad_x = grad_w = None
    if x_edge is not None:
        w = _flipped(w) if flip_kernel else w
        grad_x = _core.conv_backward_input(spatial, grad, w, x_shape, *window)
    if w_edge is not None:
        grad_w = _core.conv_backward_weight(spatial, grad, x, w_shape, *window)
        grad_w = _flipped(grad_w) if flip_kernel else grad_w
    return grad_x, grad_w, None if b_edge is None else _core.conv_backward_bias(spatial, grad)


def _streamed(
    input: Any, weight: Any, bias: Any, stride: Any, dilation: Any, state: Any, *rest: Any
) -> tuple[Any, Any]:
    """conv1d of a sequence whose last elements before this stretch are `state`."""
    length, x = _checked_stretch(input, weight, stride, dilation, state, rest[0])
    # An empty stretch has no output: one position is computed and dropped, so that it is checked
    # and recorded like any other.
    parts = [state, input] if length else [state, np.zeros((*x.shape[:-1], 1), x.dtype)]
    recorded = isinstance(input, TensorBase) or isinstance(state, TensorBase)
    joined = cat(parts, -1) if recorded else np.concatenate(parts, -1)
    out = _conv("conv1d", 1, joined, weight, bias, stride, 0, dilation, *rest)
    reach = joined.shape[-1] - max(length, 1)
    tail = joined[..., length : length + reach]
    return out if length else out[..., :0], tail if recorded else tail.copy()


def _checked_stretch(
    input: Any, weight: Any, stride: Any, dilation: Any, state: Any, groups: Any
) -> tuple[int, Any]:
    """The length of a stretch, and input as an array, if the state fits."""
    x, w, tail = raw(input), raw(weight), raw(state)
    if not (isinstance(x, ndarray) and isinstance(w, ndarray) and isinstance(tail, ndarray)):
        kinds = ", ".join(type(a).__name__ for a in (x, w, tail))
        raise TypeError(f"conv1d: input, weight and state must be arrays or Tensors, got {kinds}")
    if x.ndim not in (2, 3):
        raise ValueError(f"conv1d: input has shape {x.shape}, expected (N, C, L) or (C, L)")
    length, one = x.shape[-1], (*x.shape[:-1], 1)
    # Of one position, so that an empty stretch passes; what it pads is the kernel's reach.
    _, axes = _core.conv_shape("conv1d", 1, one, w.shape, 1, "causal", dilation, groups)
    expected = (*x.shape[:-1], axes[0][2])
    if tail.shape != expected:
        raise ValueError(
            f"conv1d: state has shape {tail.shape}, expected {expected} for input of shape "
            f"{x.shape}, kernel {w.shape[-1]} and dilation {axes[0][1]}"
        )
    if tail.dtype.type is not x.dtype.type:
        raise TypeError(f"conv1d: state has dtype {tail.dtype}, expected {x.dtype} like input")
    steps = (stride,) if hasattr(stride, "__index__") else tuple(stride)
    if len(steps) == 1 and steps[0] > 1 and length % steps[0]:
        raise ValueError(
            f"conv1d: a stretch of {length} positions with state, expected a multiple of stride "
            f"{steps[0]}: the next one would start between two outputs"
        )
    return length, x


def conv1d(
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: Ints = 1,
    padding: Padding = 0,
    dilation: Ints = 1,
    groups: int = 1,
    *,
    algorithm: str = "auto",
    flip_kernel: bool = False,
    state: Any = None,
) -> Any:
    """Convolution along one axis.

    input (N, C, L) or (C, L), weight (O, C / groups, K), bias (O,) or None -> (N, O, L_out); all
    float32 or all float64.

    padding: zeros on both sides; ((front, back),); "valid", none; "same", so many that L_out is
    ceil(L / stride), the odd one behind; "causal", dilation * (K - 1) in front, so that no output
    sees what comes after it.
    algorithm: "auto", or one of those that `conv_plan` names.
    flip_kernel: the convolution of mathematics, which reads the kernel backwards.
    state: with padding="causal", the dilation * (K - 1) positions before input, of shape
    (N, C, dilation * (K - 1)), in place of the zeros. Then the result is (output, new state): a
    long sequence can come in stretches, each a multiple of the stride, with zeros at the start.

    ValueError for shapes and windows that do not fit, TypeError for other dtypes.

    >>> import numpy as np, fusednn.functional as F
    >>> F.conv1d(np.array([[[0.0, 1.0, 0.0, 0.0]]]), np.array([[[1.0, 2.0]]]))
    array([[[2., 1., 0.]]])
    """
    if state is not None:
        if not isinstance(padding, str) or padding != "causal":
            raise ValueError(f"conv1d: state needs padding='causal', got padding={padding!r}")
        return _streamed(
            input, weight, bias, stride, dilation, state, groups, algorithm, flip_kernel
        )
    return _conv(
        "conv1d", 1, input, weight, bias, stride, padding, dilation, groups, algorithm, flip_kernel
    )


def conv2d(
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: Ints = 1,
    padding: Padding = 0,
    dilation: Ints = 1,
    groups: int = 1,
    *,
    algorithm: str = "auto",
    flip_kernel: bool = False,
) -> Any:
    """Convolution along two axes.

    input (N, C, H, W) or (C, H, W), weight (O, C / groups, KH, KW), bias (O,) or None ->
    (N, O, H_out, W_out). Otherwise as `conv1d`, without "causal" and state; window arguments may be
    pairs (height, width), padding also ((top, bottom), (left, right)).

    >>> import numpy as np, fusednn.functional as F
    >>> F.conv2d(np.ones((1, 1, 2, 2)), np.ones((1, 1, 2, 2)))
    array([[[[4.]]]])
    """
    return _conv(
        "conv2d", 2, input, weight, bias, stride, padding, dilation, groups, algorithm, flip_kernel
    )


def conv3d(
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: Ints = 1,
    padding: Padding = 0,
    dilation: Ints = 1,
    groups: int = 1,
    *,
    algorithm: str = "auto",
    flip_kernel: bool = False,
) -> Any:
    """Convolution along three axes.

    input (N, C, D, H, W) or (C, D, H, W), weight (O, C / groups, KD, KH, KW), bias (O,) or None ->
    (N, O, D_out, H_out, W_out). Otherwise as `conv2d`, with one value more.

    >>> import numpy as np, fusednn.functional as F
    >>> F.conv3d(np.ones((1, 1, 1, 2, 2)), np.ones((1, 1, 1, 2, 2)))
    array([[[[[4.]]]]])
    """
    return _conv(
        "conv3d", 3, input, weight, bias, stride, padding, dilation, groups, algorithm, flip_kernel
    )


def conv_plan(
    input_shape: Sequence[int],
    weight_shape: Sequence[int],
    stride: Ints = 1,
    padding: Padding = 0,
    dilation: Ints = 1,
    groups: int = 1,
) -> tuple[str, str]:
    """The algorithm that `algorithm="auto"` takes for the forward pass, and why.

    - "implicit_gemm": a matrix product with the patches, which are never formed as a whole;
    - "winograd": minimal filtering (Lavin & Gray 2016, arXiv:1509.09308) for 3 x 3 and 5 x 5
      kernels of stride 1. 4 and 2.8 times fewer multiplications, rounding errors up to 16 times
      those of a plain sum. Where a result is not finite, the product is computed instead;
    - "direct": few channels per group on one side (one, up to 8, or up to 16 for 64 on the other),
      which would leave a product's tile nearly empty.

    The number of axes follows from the shapes. ValueError for shapes that do not fit.

    >>> import fusednn.functional as F
    >>> F.conv_plan((16, 64, 56, 56), (64, 64, 3, 3), padding=1)[0]
    'winograd'
    """
    spatial = len(weight_shape) - 2
    if spatial not in (1, 2, 3):
        raise ValueError(
            f"conv_plan: weight_shape {tuple(weight_shape)} has {len(weight_shape)} axes, "
            "expected 3, 4 or 5"
        )
    return _core.conv_plan(
        spatial, tuple(input_shape), tuple(weight_shape), stride, padding, dilation, groups
    )


# ---- patches as columns --------------------------------------------------------------------------


def unfold(
    input: Any, kernel_size: Ints, dilation: Ints = 1, padding: Ints = 0, stride: Ints = 1
) -> Any:
    """The patches a convolution would look at, as columns ("im2col").

    input (N, C, H, W) -> (N, C * KH * KW, positions). ValueError for windows that do not fit.

    >>> import numpy as np, fusednn.functional as F
    >>> F.unfold(np.arange(4.0).reshape(1, 1, 2, 2), 2).ravel()
    array([0., 1., 2., 3.])
    """
    if not isinstance(input, TensorBase):
        return _core.unfold(input, kernel_size, dilation, padding, stride)
    out = _core.unfold(input._data, kernel_size, dilation, padding, stride)
    window = (_frozen(kernel_size), _frozen(dilation), _frozen(padding), _frozen(stride))
    return record(out, _unfold_backward, (input,), (), (input._data.shape[-2:], window))


def _unfold_backward(node: Node, grad: Any) -> Gradients:
    size, window = node.saved
    return (_core.fold(grad, size, *window),)


def fold(
    input: Any,
    output_size: Ints,
    kernel_size: Ints,
    dilation: Ints = 1,
    padding: Ints = 0,
    stride: Ints = 1,
) -> Any:
    """Adds columns back to where `unfold` took them from ("col2im"): its transpose.

    input (N, C * KH * KW, positions) -> (N, C, *output_size).

    >>> import numpy as np, fusednn.functional as F
    >>> F.fold(np.ones((1, 4, 1)), (2, 2), 2).ravel()
    array([1., 1., 1., 1.])
    """
    if not isinstance(input, TensorBase):
        return _core.fold(input, output_size, kernel_size, dilation, padding, stride)
    out = _core.fold(input._data, output_size, kernel_size, dilation, padding, stride)
    window = (_frozen(kernel_size), _frozen(dilation), _frozen(padding), _frozen(stride))
    return record(out, _fold_backward, (input,), (), window)


def _fold_backward(node: Node, grad: Any) -> Gradients:
    return (_core.unfold(grad, *node.saved),)


__all__ = ["conv1d", "conv2d", "conv3d", "conv_plan", "fold", "unfold"]
