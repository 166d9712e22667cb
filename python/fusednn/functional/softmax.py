"""Softmax and its logarithm. Arrays in, arrays out; a Tensor in, a Tensor out."""

from __future__ import annotations

from typing import Any

from .. import _core
from .._tensor.autocast import autocasting, widened
from .._tensor.device import as_array
from .._tensor.tape import Gradients, Node, TensorBase, record


def softmax(input: Any, dim: int | None = None) -> Any:
    """exp(input) scaled to sum 1 along dim, without overflow. dim must be given.

    >>> import numpy as np, fusednn.functional as F
    >>> F.softmax(np.array([[0.0, 0.0]]), dim=1)
    array([[0.5, 0.5]])
    """
    if dim is None:
        raise TypeError("softmax: dim must be given, the axis along which the result sums to 1")
    if autocasting() is not None:
        (input,) = widened(input)
    if not isinstance(input, TensorBase):
        return _core.softmax_forward(input, dim)
    out = _core.softmax_forward(input._data, dim)
    return record(out, _softmax_backward, (input,), (), (dim,), keep_output=True)


def _softmax_backward(node: Node, grad: Any) -> Gradients:
    dim, out = node.saved
    return (_core.softmax_backward(as_array(grad), out, dim),)


def log_softmax(input: Any, dim: int | None = None) -> Any:
    """The logarithm of softmax along dim, without overflow or log(0). dim must be given.

    >>> import numpy as np, fusednn.functional as F
    >>> F.log_softmax(np.array([[0.0, 0.0]]), dim=1)
    array([[-0.69314718, -0.69314718]])
    """
    if dim is None:
        raise TypeError("log_softmax: dim must be given, the axis along which softmax sums to 1")
    if autocasting() is not None:
        (input,) = widened(input)
    if not isinstance(input, TensorBase):
        return _core.log_softmax_forward(input, dim)
    out = _core.log_softmax_forward(input._data, dim)
    return record(out, _log_softmax_backward, (input,), (), (dim,), keep_output=True)


def _log_softmax_backward(node: Node, grad: Any) -> Gradients:
    dim, out = node.saved
    return (_core.log_softmax_backward(as_array(grad), out, dim),)


def softmin(input: Any, dim: int | None = None) -> Any:
    """softmax of -input.

    >>> import numpy as np, fusednn.functional as F
    >>> F.softmin(np.array([[0.0, 0.0]]), dim=1)
    array([[0.5, 0.5]])
    """
    return softmax(-input, dim)


__all__ = ["log_softmax", "softmax", "softmin"]
