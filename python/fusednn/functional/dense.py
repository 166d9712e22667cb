"""Fully connected layers."""

from __future__ import annotations

from typing import Any

from .. import _core
from .._tensor.autocast import autocasting, narrowed
from .._tensor.device import as_array
from .._tensor.tape import Gradients, Node, TensorBase, needs, raw, record


def linear(input: Any, weight: Any, bias: Any = None) -> Any:
    """input @ weight.T + bias.

    input (..., in), weight (out, in), bias (out,) or None -> (..., out); float32 or float64, not
    mixed. ValueError for shapes that do not fit, TypeError for other dtypes.

    >>> import numpy as np, fusednn.functional as F
    >>> F.linear(np.ones((1, 2)), np.ones((3, 2)))
    array([[2., 2., 2.]])
    """
    if autocasting() is not None:
        input, weight, bias = narrowed("linear", input, weight, bias)
    if not (
        isinstance(weight, TensorBase)
        or isinstance(input, TensorBase)
        or isinstance(bias, TensorBase)
    ):
        return _core.linear_forward(input, weight, bias, False)
    out = _core.linear_forward(raw(input), raw(weight), raw(bias), False)
    keep = (input if needs(weight) else None, weight if needs(input) else None)
    return record(out, _linear_backward, (input, weight, bias), keep)


def _linear_backward(node: Node, grad: Any) -> Gradients:
    x_edge, w_edge, b_edge = node.edges
    x, w = node.saved
    grad = as_array(grad)
    return (
        None if x_edge is None else _core.linear_backward_input(grad, w),
        None if w_edge is None else _core.linear_backward_weight(grad, x),
        None if b_edge is None else _core.linear_backward_bias(grad),
    )


__all__ = ["linear"]
