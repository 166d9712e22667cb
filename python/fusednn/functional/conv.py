"""Convolution (cross-correlation, as usual in networks), and its patches as a matrix.

y[n, o, t] = bias[o] + sum over c, k of weight[o, c, k] * x[n, c, t * stride + k * dilation - pad],
with x = 0 outside; along each axis the output has
floor((L + 2 * pad - dilation * (K - 1) - 1) / stride) + 1 positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import _core
from .._tensor.tape import Gradients, Node, TensorBase, needs, raw, record
from .padding import pad

Ints = int | Sequence[int]


def _frozen(value: Any) -> Any:
    # A list that the caller changes later must not change the gradient.
    return tuple(value) if type(value) is list else value


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
) -> Any:
    if type(padding) is str:
        input, padding = _named_padding(op, spatial, input, weight, stride, padding, dilation)
    if not (
        isinstance(input, TensorBase)
        or isinstance(weight, TensorBase)
        or isinstance(bias, TensorBase)
    ):
        return _core.conv_forward(
            spatial, input, weight, bias, stride, padding, dilation, groups, algorithm
        )
    x, w = raw(input), raw(weight)
    out = _core.conv_forward(spatial, x, w, raw(bias), stride, padding, dilation, groups, algorithm)
    keep = (input if needs(weight) else None, weight if needs(input) else None)
    window = (_frozen(stride), _frozen(padding), _frozen(dilation), groups, algorithm)
    context = (spatial, x.shape, w.shape, window)
    return record(out, _conv_backward, (input, weight, bias), keep, context)


def _conv_backward(node: Node, grad: Any) -> Gradients:
    x_edge, w_edge, b_edge = node.edges
    x, w, spatial, x_shape, w_shape, window = node.saved
    return (
        None if x_edge is None else _core.conv_backward_input(spatial, grad, w, x_shape, *window),
        None if w_edge is None else _core.conv_backward_weight(spatial, grad, x, w_shape, *window),
        None if b_edge is None else _core.conv_backward_bias(spatial, grad),
    )


def _per_axis(op: str, name: str, value: Any, spatial: int) -> tuple[int, ...]:
    values = (value,) * spatial if hasattr(value, "__index__") else tuple(value)
    if len(values) == 1:
        values *= spatial
    if len(values) != spatial:
        raise ValueError(f"{op}: {name}={value} has {len(values)} values, expected {spatial}")
    return values


def _named_padding(
    op: str, spatial: int, input: Any, weight: Any, stride: Any, padding: str, dilation: Any
) -> tuple[Any, Any]:
    """The input (padded where the two sides differ) and the padding that "valid"/"same" stand for.

    "same" gives ceil(L / stride) positions: in all max(0, (ceil(L / s) - 1) * s + d * (K - 1) + 1
    - L) zeros, the smaller half in front.
    """
    if padding == "valid":
        return input, 0
    if padding != "same":
        raise ValueError(f"{op}: padding={padding!r}, expected ints, 'valid' or 'same'")
    shape, kernel = raw(input).shape[-spatial:], raw(weight).shape[-spatial:]
    strides = _per_axis(op, "stride", stride, spatial)
    dilations = _per_axis(op, "dilation", dilation, spatial)
    if min(strides) < 1 or min(dilations) < 1:
        raise ValueError(f"{op}: stride={stride} and dilation={dilation} must be at least 1")
    totals = [
        max(0, (-(-size // s) - 1) * s + d * (k - 1) + 1 - size)
        for size, k, s, d in zip(shape, kernel, strides, dilations, strict=True)
    ]
    if all(total % 2 == 0 for total in totals):
        return input, tuple(total // 2 for total in totals)
    sides = [side for total in reversed(totals) for side in (total // 2, total - total // 2)]
    return pad(input, sides), 0


def conv1d(
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: Ints = 1,
    padding: Ints | str = 0,
    dilation: Ints = 1,
    groups: int = 1,
    *,
    algorithm: str = "auto",
) -> Any:
    """Convolution along one axis.

    input (N, C, L) or (C, L), weight (O, C / groups, K), bias (O,) or None -> (N, O, L_out); all
    float32 or all float64. padding: ints, "valid", or "same" (output length ceil(L / stride)).
    algorithm: "auto", or one of those that `conv_plan` names.
    ValueError for shapes and windows that do not fit, TypeError for other dtypes.

    >>> import numpy as np, fusednn.functional as F
    >>> F.conv1d(np.array([[[0.0, 1.0, 0.0, 0.0]]]), np.array([[[1.0, 2.0]]]))
    array([[[2., 1., 0.]]])
    """
    return _conv("conv1d", 1, input, weight, bias, stride, padding, dilation, groups, algorithm)


def conv2d(
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: Ints = 1,
    padding: Ints | str = 0,
    dilation: Ints = 1,
    groups: int = 1,
    *,
    algorithm: str = "auto",
) -> Any:
    """Convolution along two axes.

    input (N, C, H, W) or (C, H, W), weight (O, C / groups, KH, KW), bias (O,) or None ->
    (N, O, H_out, W_out). Otherwise as `conv1d`; window arguments may be pairs (height, width).

    >>> import numpy as np, fusednn.functional as F
    >>> F.conv2d(np.ones((1, 1, 2, 2)), np.ones((1, 1, 2, 2)))
    array([[[[4.]]]])
    """
    return _conv("conv2d", 2, input, weight, bias, stride, padding, dilation, groups, algorithm)


def conv3d(
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: Ints = 1,
    padding: Ints | str = 0,
    dilation: Ints = 1,
    groups: int = 1,
    *,
    algorithm: str = "auto",
) -> Any:
    """Convolution along three axes.

    input (N, C, D, H, W) or (C, D, H, W), weight (O, C / groups, KD, KH, KW), bias (O,) or None ->
    (N, O, D_out, H_out, W_out). Otherwise as `conv1d`.

    >>> import numpy as np, fusednn.functional as F
    >>> F.conv3d(np.ones((1, 1, 1, 2, 2)), np.ones((1, 1, 1, 2, 2)))
    array([[[[[4.]]]]])
    """
    return _conv("conv3d", 3, input, weight, bias, stride, padding, dilation, groups, algorithm)


def conv_plan(
    input_shape: Sequence[int],
    weight_shape: Sequence[int],
    stride: Ints = 1,
    padding: Ints = 0,
    dilation: Ints = 1,
    groups: int = 1,
) -> tuple[str, str]:
    """The algorithm that `algorithm="auto"` takes for the forward pass, and why.

    - "implicit_gemm": a matrix product with the patches, which are never formed as a whole;
    - "winograd": minimal filtering (Lavin & Gray 2016, arXiv:1509.09308) for 3 x 3 and 5 x 5
      kernels of stride 1. 4 and 2.8 times fewer multiplications, rounding errors up to 16 times
      those of a plain sum. Where a result is not finite, the product is computed instead;
    - "direct": one or few (up to 4) channels per group, which would leave a product's tile nearly
      empty.

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
