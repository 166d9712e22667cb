"""Transposed convolution: a convolution's input gradient as a layer of its own.

Every input element writes its multiple of the kernel into the output, `stride` apart:
y[n, o, t * stride + k * dilation - front] += weight[c, o, k] * x[n, c, t]. As a matrix it is the
transpose of the convolution with the same weight and window (Dumoulin & Visin, "A guide to
convolution arithmetic for deep learning", 2016, arXiv:1603.07285, chapter 4). Along each axis the
output has (L - 1) * stride - front - back + dilation * (K - 1) + 1 + output_padding positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import _core
from .._tensor.autocast import autocasting, narrowed
from .._tensor.tape import Gradients, Node, TensorBase, needs, raw, record
from .conv import Ints, _frozen

Padding = int | Sequence[int | Sequence[int]]


def _conv_transpose(
    spatial: int,
    input: Any,
    weight: Any,
    bias: Any,
    stride: Any,
    padding: Any,
    output_padding: Any,
    dilation: Any,
    groups: int,
    algorithm: str,
) -> Any:
    if autocasting() is not None:
        input, weight, bias = narrowed(f"conv_transpose{spatial}d", input, weight, bias)
    if not (
        isinstance(input, TensorBase)
        or isinstance(weight, TensorBase)
        or isinstance(bias, TensorBase)
    ):
        return _core.conv_transpose_forward(
            spatial, input, weight, bias, stride, padding, output_padding, dilation, groups,
            algorithm,
        )  # fmt: skip
    x, w, b = raw(input), raw(weight), raw(bias)
    out = _core.conv_transpose_forward(
        spatial, x, w, b, stride, padding, output_padding, dilation, groups, algorithm
    )
    window = tuple(map(_frozen, (stride, padding, output_padding, dilation)))
    keep = (input if needs(weight) else None, weight if needs(input) else None)
    context = (spatial, x.shape, w.shape, (*window, groups, algorithm))
    return record(out, _conv_transpose_backward, (input, weight, bias), keep, context)


def _conv_transpose_backward(node: Node, grad: Any) -> Gradients:
    x_edge, w_edge, b_edge = node.edges
    x, w, spatial, x_shape, w_shape, window = node.saved
    grad_x = grad_w = None
    if x_edge is not None:
        grad_x = _core.conv_transpose_backward_input(spatial, grad, w, x_shape, *window)
    if w_edge is not None:
        grad_w = _core.conv_transpose_backward_weight(spatial, grad, x, w_shape, *window)
    return grad_x, grad_w, None if b_edge is None else _core.conv_backward_bias(spatial, grad)


def conv_transpose1d(
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: Ints = 1,
    padding: Padding = 0,
    output_padding: Ints = 0,
    groups: int = 1,
    dilation: Ints = 1,
    *,
    algorithm: str = "auto",
) -> Any:
    """Transposed convolution along one axis.

    input (N, C, L) or (C, L), weight (C, O / groups, K), bias (O,) or None -> (N, O, L_out), with
    L_out = (L - 1) * stride - 2 * padding + dilation * (K - 1) + 1 + output_padding; all float32 or
    all float64. padding takes positions away on both sides (or ((front, back),)); output_padding,
    less than stride or dilation, adds some at the end. algorithm: as for `conv1d`.
    ValueError for shapes and windows that do not fit, TypeError for other dtypes.

    >>> import numpy as np, fusednn.functional as F
    >>> F.conv_transpose1d(np.array([[[1.0, 2.0]]]), np.array([[[1.0, 10.0]]]), stride=2)
    array([[[ 1., 10.,  2., 20.]]])
    """
    return _conv_transpose(
        1, input, weight, bias, stride, padding, output_padding, dilation, groups, algorithm
    )


def conv_transpose2d(
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: Ints = 1,
    padding: Padding = 0,
    output_padding: Ints = 0,
    groups: int = 1,
    dilation: Ints = 1,
    *,
    algorithm: str = "auto",
) -> Any:
    """Transposed convolution along two axes.

    input (N, C, H, W) or (C, H, W), weight (C, O / groups, KH, KW), bias (O,) or None ->
    (N, O, H_out, W_out). Otherwise as `conv_transpose1d`; window arguments may be pairs (height,
    width), padding also ((top, bottom), (left, right)).

    >>> import numpy as np, fusednn.functional as F
    >>> F.conv_transpose2d(np.ones((1, 1, 2, 2)), np.ones((1, 1, 2, 2)))
    array([[[[1., 2., 1.],
             [2., 4., 2.],
             [1., 2., 1.]]]])
    """
    return _conv_transpose(
        2, input, weight, bias, stride, padding, output_padding, dilation, groups, algorithm
    )


def conv_transpose3d(
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: Ints = 1,
    padding: Padding = 0,
    output_padding: Ints = 0,
    groups: int = 1,
    dilation: Ints = 1,
    *,
    algorithm: str = "auto",
) -> Any:
    """Transposed convolution along three axes.

    input (N, C, D, H, W) or (C, D, H, W), weight (C, O / groups, KD, KH, KW), bias (O,) or None ->
    (N, O, D_out, H_out, W_out). Otherwise as `conv_transpose2d`, with one value more.

    >>> import numpy as np, fusednn.functional as F
    >>> F.conv_transpose3d(np.ones((1, 1, 1, 1, 2)), np.ones((1, 1, 1, 1, 2)))
    array([[[[[1., 2., 1.]]]]])
    """
    return _conv_transpose(
        3, input, weight, bias, stride, padding, output_padding, dilation, groups, algorithm
    )


__all__ = ["conv_transpose1d", "conv_transpose2d", "conv_transpose3d"]
