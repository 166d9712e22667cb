"""The largest and the smallest values, and where they stand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy import ndarray

from .device import as_array, namespace, on_gpu
from .reduction import Dim, _axes, _kept_shape, add, maximum, minimum, only_none, reduce
from .tape import Gradients, Node, TensorBase, record, wrap

if TYPE_CHECKING:
    from .tensor import Tensor


class Extremum(NamedTuple):
    """What `max(dim)` and `min(dim)` return."""

    values: Tensor
    indices: Tensor


def _shared_extremum_backward(node: Node, grad: Any) -> Gradients:
    x, axes, out = node.saved
    shape = _kept_shape(x.shape, axes)
    out = out.reshape(shape)
    chosen = x == out
    if np.isnan(out).any():
        chosen |= np.isnan(x) & np.isnan(out)
    ties = add.reduce(chosen, axis=axes, keepdims=True, dtype=x.dtype.type)
    return (chosen * (as_array(grad).reshape(shape) / ties),)


def _picked_extremum_backward(node: Node, grad: Any) -> Gradients:
    indices, axis, shape, keepdim = node.saved
    if not keepdim:
        indices, grad = np.expand_dims(indices, axis), np.expand_dims(grad, axis)
    if type(grad) is not ndarray and on_gpu(grad):
        count = namespace(grad).arange(shape[axis])
        places = count.reshape([-1 if i == axis else 1 for i in range(len(shape))])
        return (np.where(places == indices, grad, grad.dtype.type(0)),)
    full = np.zeros(shape, grad.dtype)
    np.put_along_axis(full, indices, grad, axis)
    return (full,)


def _only_element_backward(node: Node, grad: Any) -> Gradients:
    return (grad,)


class Extrema(TensorBase):
    """The extrema of Tensor."""

    __slots__ = ()

    def amax(
        self, dim: Dim = None, keepdim: bool = False, *, axis: Dim = None, keepdims: bool = False
    ) -> Tensor:
        """The largest value over `dim`; NaN wins; ties share the gradient."""
        return self._shared_extremum("amax", maximum, dim, axis, keepdim or keepdims)

    def amin(
        self, dim: Dim = None, keepdim: bool = False, *, axis: Dim = None, keepdims: bool = False
    ) -> Tensor:
        """The smallest value over `dim`; NaN wins; ties share the gradient."""
        return self._shared_extremum("amin", minimum, dim, axis, keepdim or keepdims)

    def _shared_extremum(
        self, op: str, function: Any, dim: Dim, axis: Dim, keepdim: bool
    ) -> Tensor:
        data = self._data
        axes = _axes(op, dim, axis, data.ndim)
        self._not_empty(op, axes)
        out = as_array(reduce(function, op.removeprefix("a"), data, axes, keepdim))
        return record(out, _shared_extremum_backward, (self,), (self,), (axes,), keep_output=True)

    def max(
        self,
        dim: int | None = None,
        keepdim: bool = False,
        *,
        axis: int | None = None,
        keepdims: bool = False,
        **numpys: Any,
    ) -> Any:
        """Without dim the largest value, whose gradient ties share. With dim (values, indices)
        along it: the first of equals, which gets the whole gradient; NaN wins.

        >>> import fusednn as fn
        >>> values, indices = fn.tensor([[1.0, 4.0, 4.0]]).max(dim=1)
        >>> indices
        tensor([1])
        """
        only_none("max", numpys)
        if dim is None and axis is None:
            return self._shared_extremum("max", maximum, None, None, keepdim or keepdims)
        return self._picked_extremum("max", np.argmax, dim, axis, keepdim or keepdims)

    def min(
        self,
        dim: int | None = None,
        keepdim: bool = False,
        *,
        axis: int | None = None,
        keepdims: bool = False,
        **numpys: Any,
    ) -> Any:
        """Like `max`, for the smallest value."""
        only_none("min", numpys)
        if dim is None and axis is None:
            return self._shared_extremum("min", minimum, None, None, keepdim or keepdims)
        return self._picked_extremum("min", np.argmin, dim, axis, keepdim or keepdims)

    def _picked_extremum(
        self, op: str, find: Any, dim: int | None, axis: int | None, keepdim: bool
    ) -> Extremum:
        data = self._data
        if data.ndim == 0:
            data = data[None]
        (chosen,) = _axes(op, dim, axis, data.ndim)
        self._not_empty(op, (chosen,))
        indices = find(data, axis=chosen, keepdims=True)
        values = np.take_along_axis(data, indices, chosen)
        if self._data.ndim == 0:
            values, indices = values[0], indices[0]
        elif not keepdim:
            values, indices = values.squeeze(chosen), indices.squeeze(chosen)
        context = (indices.copy(), chosen, self._data.shape, keepdim)
        if self._data.ndim == 0:
            out = record(values, _only_element_backward, (self,))
        else:
            out = record(values, _picked_extremum_backward, (self,), (), context)
        return Extremum(out, wrap(indices))

    def _not_empty(self, op: str, axes: tuple[int, ...]) -> None:
        if 0 in (self._data.shape[axis] for axis in axes if axis < self._data.ndim):
            raise ValueError(f"{op}: no element to choose from in shape {self._data.shape}")

    def argmax(
        self,
        dim: int | None = None,
        keepdim: bool = False,
        *,
        axis: int | None = None,
        keepdims: bool = False,
    ) -> Tensor:
        """The position of the first largest value along dim, or in the flattened tensor."""
        return self._position("argmax", np.argmax, dim, axis, keepdim or keepdims)

    def argmin(
        self,
        dim: int | None = None,
        keepdim: bool = False,
        *,
        axis: int | None = None,
        keepdims: bool = False,
    ) -> Tensor:
        """The position of the first smallest value along dim, or in the flattened tensor."""
        return self._position("argmin", np.argmin, dim, axis, keepdim or keepdims)

    def _position(
        self, op: str, find: Any, dim: int | None, axis: int | None, keepdim: bool
    ) -> Tensor:
        axes = _axes(op, dim, axis, self._data.ndim)
        self._not_empty(op, axes)
        flat = (dim is None and axis is None) or not axes
        return wrap(find(self._data, axis=None if flat else axes[0], keepdims=keepdim))
