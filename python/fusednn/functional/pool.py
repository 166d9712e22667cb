"""Pooling. Padding is never a value: only real elements can win."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import _core
from .._tensor.mode import grad_enabled
from .._tensor.tape import Gradients, Node, TensorBase, raw, record, wrap
from .conv import _frozen

Ints = int | Sequence[int]


def _max_pool(
    spatial: int,
    input: Any,
    kernel_size: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    ceil_mode: bool,
    return_indices: bool,
) -> Any:
    if not isinstance(input, TensorBase):
        out, argmax = _core.max_pool_forward(
            spatial, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices
        )
        if argmax is None:
            return out
        return out, _core.max_pool_indices(
            spatial, argmax, input.shape, kernel_size, stride, padding, dilation, ceil_mode
        )
    x = raw(input)
    track = input._requires_grad and grad_enabled()
    out, argmax = _core.max_pool_forward(
        spatial, x, kernel_size, stride, padding, dilation, ceil_mode, track or return_indices
    )
    window = (_frozen(kernel_size), _frozen(stride), _frozen(padding), _frozen(dilation), ceil_mode)
    result = record(out, _max_pool_backward, (input,), (), (spatial, argmax, x.shape, window))
    if not return_indices:
        return result
    assert argmax is not None
    return result, wrap(_core.max_pool_indices(spatial, argmax, x.shape, *window))


def _max_pool_backward(node: Node, grad: Any) -> Gradients:
    spatial, argmax, shape, window = node.saved
    return (_core.max_pool_backward(spatial, grad, argmax, shape, *window),)


def max_pool1d(
    input: Any,
    kernel_size: Ints,
    stride: Ints | None = None,
    padding: Ints = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """The largest element of each window along one axis.

    input (N, C, L) or (C, L) -> (N, C, L_out); stride None means kernel_size. The first of equals
    wins and gets the gradient; NaN wins over all. return_indices adds the winners' positions in
    the input plane (int64). ValueError for windows without a real element.

    >>> import numpy as np, fusednn.functional as F
    >>> F.max_pool1d(np.array([[[1.0, 3.0, 2.0, 0.0]]]), 2)
    array([[[3., 2.]]])
    """
    return _max_pool(1, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)


def max_pool2d(
    input: Any,
    kernel_size: Ints,
    stride: Ints | None = None,
    padding: Ints = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """The largest element of each window along two axes.

    input (N, C, H, W) or (C, H, W) -> (N, C, H_out, W_out). Otherwise as `max_pool1d`.

    >>> import numpy as np, fusednn.functional as F
    >>> F.max_pool2d(np.arange(4.0).reshape(1, 1, 2, 2), 2)
    array([[[[3.]]]])
    """
    return _max_pool(2, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)


def max_pool3d(
    input: Any,
    kernel_size: Ints,
    stride: Ints | None = None,
    padding: Ints = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """The largest element of each window along three axes.

    input (N, C, D, H, W) or (C, D, H, W) -> (N, C, D_out, H_out, W_out). Otherwise as `max_pool1d`.

    >>> import numpy as np, fusednn.functional as F
    >>> F.max_pool3d(np.arange(8.0).reshape(1, 1, 2, 2, 2), 2)
    array([[[[[7.]]]]])
    """
    return _max_pool(3, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)


__all__ = ["max_pool1d", "max_pool2d", "max_pool3d"]
