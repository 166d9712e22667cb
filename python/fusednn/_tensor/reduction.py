"""Sums, means, extrema and the like over some or all axes.

`dim` (an int, a tuple of ints, or None for all axes) may be called `axis` as well. Sums use
NumPy's fixed pairwise tree, so they give the same bits on every run.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from numpy import ndarray

from .arithmetic import floating
from .tape import Array, Gradients, Node, TensorBase, record, wrap

if TYPE_CHECKING:
    from .tensor import Tensor

Dim: TypeAlias = int | tuple[int, ...] | list[int] | None

# NumPy's stubs have no overload for a keepdims that is not known beforehand.
add: Any = np.add
multiply: Any = np.multiply
maximum: Any = np.maximum
minimum: Any = np.minimum
logical_and: Any = np.logical_and
logical_or: Any = np.logical_or


class Extremum(NamedTuple):
    """What `max(dim)` and `min(dim)` return."""

    values: Tensor
    indices: Tensor


def normalized_axis(op: str, dim: Any, ndim: int) -> int:
    """dim as an axis >= 0; ValueError if the tensor has no such axis."""
    try:
        axis = dim.__index__()
    except AttributeError:
        raise TypeError(f"{op}: dim must be an int, got {type(dim).__name__}") from None
    if not -ndim <= axis < ndim:
        raise ValueError(f"{op}: dim={dim} is out of range for a tensor of {ndim} dimensions")
    return axis + ndim if axis < 0 else axis  # type: ignore[no-any-return]


def _axes(op: str, dim: Any, axis: Any, ndim: int) -> tuple[int, ...]:
    if dim is None:
        dim = axis
    elif axis is not None:
        raise TypeError(f"{op}: give dim or axis, not both")
    if dim is None:
        return tuple(range(ndim))
    if not isinstance(dim, (tuple, list)):
        return (normalized_axis(op, dim, ndim),)
    axes = tuple(normalized_axis(op, one, ndim) for one in dim)
    if len(set(axes)) != len(axes):
        raise ValueError(f"{op}: dim={dim} names an axis twice")
    return axes


def _kept_shape(shape: tuple[int, ...], axes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(1 if i in axes else n for i, n in enumerate(shape))


def _count(shape: tuple[int, ...], axes: tuple[int, ...]) -> int:
    return math.prod(shape[axis] for axis in axes)


# Below this many elements a filled array costs less than a view that is copied later.
_SMALL = 4096


def spread(grad: Any, axes: tuple[int, ...], shape: tuple[int, ...]) -> Array:
    """grad of a reduction over `axes` in the input's shape; mostly a stride-0 view."""
    if len(axes) == len(shape) and math.prod(shape) <= _SMALL:
        out: Array = np.empty(shape, grad.dtype)
        out[...] = grad
        return out
    grad = np.ascontiguousarray(grad).reshape(_kept_shape(shape, axes))
    strides = tuple(0 if i in axes else n for i, n in enumerate(grad.strides))
    # np.broadcast_to would do, at ten times the cost.
    return ndarray(shape, grad.dtype, grad if grad.size else None, 0, strides)


def _sum_backward(node: Node, grad: Any) -> Gradients:
    axes, shape = node.saved
    return (spread(grad, axes, shape),)


def _mean_backward(node: Node, grad: Any) -> Gradients:
    axes, shape = node.saved
    count = _count(shape, axes)
    return (spread(grad / count if count else grad, axes, shape),)


def _var_backward(node: Node, grad: Any) -> Gradients:
    deviations, axes, divisor = node.saved
    scale = np.asarray(grad * (2 / divisor) if divisor > 0 else grad * math.nan)
    return (deviations * scale.reshape(_kept_shape(deviations.shape, axes)),)


def _std_backward(node: Node, grad: Any) -> Gradients:
    deviations, axes, divisor, out = node.saved
    # A constant sample has slope 0, not 0 / 0.
    slope = np.divide(grad, out, out=np.zeros_like(out), where=out != 0)
    scale = slope * (1 / divisor) if divisor > 0 else slope * math.nan
    return (deviations * scale.reshape(_kept_shape(deviations.shape, axes)),)


def _prod_backward(node: Node, grad: Any) -> Gradients:
    x, axes = node.saved
    # The product of all others, from both sides, is right where some are 0.
    rest = tuple(i for i in range(x.ndim) if i not in axes)
    turned = x.transpose(*rest, *axes)
    flat = turned.reshape(*(x.shape[i] for i in rest), _count(x.shape, axes))
    others = np.ones_like(flat)
    multiply.accumulate(flat[..., :-1], axis=-1, out=others[..., 1:])
    after = multiply.accumulate(flat[..., :0:-1], axis=-1)[..., ::-1]
    others[..., :-1] *= after
    others *= np.asarray(grad).reshape(*flat.shape[:-1], 1)
    return (others.reshape(turned.shape).transpose(np.argsort((*rest, *axes))),)


def _shared_extremum_backward(node: Node, grad: Any) -> Gradients:
    x, axes, out = node.saved
    shape = _kept_shape(x.shape, axes)
    out = out.reshape(shape)
    chosen = x == out
    if np.isnan(out).any():
        chosen |= np.isnan(x) & np.isnan(out)
    ties = add.reduce(chosen, axis=axes, keepdims=True, dtype=x.dtype)
    return (chosen * (np.asarray(grad).reshape(shape) / ties),)


def _picked_extremum_backward(node: Node, grad: Any) -> Gradients:
    indices, axis, shape, keepdim = node.saved
    full = np.zeros(shape, grad.dtype)
    if not keepdim:
        indices, grad = np.expand_dims(indices, axis), np.expand_dims(grad, axis)
    np.put_along_axis(full, indices, grad, axis)
    return (full,)


def _cumsum_backward(node: Node, grad: Any) -> Gradients:
    (axis,) = node.saved
    return (np.flip(add.accumulate(np.flip(grad, axis), axis=axis), axis),)


class Reduction(TensorBase):
    """The reductions of Tensor."""

    __slots__ = ()

    def sum(self, dim: Dim = None, keepdim: bool = False, *, axis: Dim = None) -> Tensor:
        """The sum over `dim` (all axes by default); 0 over an empty axis.

        >>> import fusednn as fn
        >>> fn.ones(2, 3).sum(0)
        tensor([2., 2., 2.])
        """
        data = self._data
        axes = _axes("sum", dim, axis, data.ndim)
        out = add.reduce(data, axis=axes, keepdims=keepdim)
        return record(out, _sum_backward, (self,), (), (axes, data.shape))

    def mean(self, dim: Dim = None, keepdim: bool = False, *, axis: Dim = None) -> Tensor:
        """The mean over `dim`; NaN over an empty axis.

        >>> import fusednn as fn
        >>> fn.tensor([[1.0, 3.0], [5.0, 7.0]]).mean(1)
        tensor([2., 6.])
        """
        data = floating(self, "mean")
        axes = _axes("mean", dim, axis, data.ndim)
        count = _count(data.shape, axes)
        out = add.reduce(data, axis=axes, keepdims=keepdim)
        out = out / count if count else out + data.dtype.type(math.nan)
        return record(out, _mean_backward, (self,), (), (axes, data.shape))

    def var(
        self, dim: Dim = None, *, correction: int = 1, keepdim: bool = False, axis: Dim = None
    ) -> Tensor:
        """The variance over `dim`, divided by n - correction; NaN if that is not positive.

        >>> import fusednn as fn
        >>> fn.tensor([1.0, 3.0]).var()
        tensor(2.)
        """
        axes, deviations, divisor, out = self._variance("var", dim, axis, correction, keepdim)
        return record(out, _var_backward, (self,), (), (deviations, axes, divisor))

    def std(
        self, dim: Dim = None, *, correction: int = 1, keepdim: bool = False, axis: Dim = None
    ) -> Tensor:
        """The standard deviation over `dim`: the square root of `var`."""
        axes, deviations, divisor, out = self._variance("std", dim, axis, correction, keepdim)
        out = np.asarray(np.sqrt(out))
        context = (deviations, axes, divisor)
        return record(out, _std_backward, (self,), (), context, keep_output=True)

    def _variance(
        self, op: str, dim: Dim, axis: Dim, correction: int, keepdim: bool
    ) -> tuple[tuple[int, ...], Array, int, Any]:
        data = floating(self, op)
        axes = _axes(op, dim, axis, data.ndim)
        count = _count(data.shape, axes)
        mean = add.reduce(data, axis=axes, keepdims=True) / max(count, 1)
        deviations = data - mean
        out = add.reduce(deviations * deviations, axis=axes, keepdims=keepdim)
        divisor = count - correction
        out = out / divisor if divisor > 0 else out * data.dtype.type(math.nan)
        return axes, deviations, divisor, out

    def prod(self, dim: Dim = None, keepdim: bool = False, *, axis: Dim = None) -> Tensor:
        """The product over `dim`; 1 over an empty axis. Its gradient is right beside zeros too."""
        axes = _axes("prod", dim, axis, self._data.ndim)
        out = multiply.reduce(self._data, axis=axes, keepdims=keepdim)
        return record(out, _prod_backward, (self,), (self,), (axes,))

    def amax(self, dim: Dim = None, keepdim: bool = False, *, axis: Dim = None) -> Tensor:
        """The largest value over `dim`; NaN wins; ties share the gradient."""
        return self._shared_extremum("amax", maximum, dim, axis, keepdim)

    def amin(self, dim: Dim = None, keepdim: bool = False, *, axis: Dim = None) -> Tensor:
        """The smallest value over `dim`; NaN wins; ties share the gradient."""
        return self._shared_extremum("amin", minimum, dim, axis, keepdim)

    def _shared_extremum(
        self, op: str, function: Any, dim: Dim, axis: Dim, keepdim: bool
    ) -> Tensor:
        data = self._data
        axes = _axes(op, dim, axis, data.ndim)
        self._not_empty(op, axes)
        out = np.asarray(function.reduce(data, axis=axes, keepdims=keepdim))
        return record(out, _shared_extremum_backward, (self,), (self,), (axes,), keep_output=True)

    def max(self, dim: int | None = None, keepdim: bool = False, *, axis: int | None = None) -> Any:
        """Without dim the largest value, whose gradient ties share. With dim (values, indices)
        along it: the first of equals, which gets the whole gradient; NaN wins.

        >>> import fusednn as fn
        >>> values, indices = fn.tensor([[1.0, 4.0, 4.0]]).max(dim=1)
        >>> indices
        tensor([1])
        """
        if dim is None and axis is None:
            return self._shared_extremum("max", maximum, None, None, keepdim)
        return self._picked_extremum("max", np.argmax, dim, axis, keepdim)

    def min(self, dim: int | None = None, keepdim: bool = False, *, axis: int | None = None) -> Any:
        """Like `max`, for the smallest value."""
        if dim is None and axis is None:
            return self._shared_extremum("min", minimum, None, None, keepdim)
        return self._picked_extremum("min", np.argmin, dim, axis, keepdim)

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
        self, dim: int | None = None, keepdim: bool = False, *, axis: int | None = None
    ) -> Tensor:
        """The position of the first largest value along dim, or in the flattened tensor."""
        return self._position("argmax", np.argmax, dim, axis, keepdim)

    def argmin(
        self, dim: int | None = None, keepdim: bool = False, *, axis: int | None = None
    ) -> Tensor:
        """The position of the first smallest value along dim, or in the flattened tensor."""
        return self._position("argmin", np.argmin, dim, axis, keepdim)

    def _position(
        self, op: str, find: Any, dim: int | None, axis: int | None, keepdim: bool
    ) -> Tensor:
        axes = _axes(op, dim, axis, self._data.ndim)
        self._not_empty(op, axes)
        flat = dim is None and axis is None
        return wrap(find(self._data, axis=None if flat else axes[0], keepdims=keepdim))

    def all(self, dim: Dim = None, keepdim: bool = False, *, axis: Dim = None) -> Tensor:
        """True where every element over `dim` is true (not 0)."""
        axes = _axes("all", dim, axis, self._data.ndim)
        return wrap(logical_and.reduce(self._data, axis=axes, keepdims=keepdim))

    def any(self, dim: Dim = None, keepdim: bool = False, *, axis: Dim = None) -> Tensor:
        """True where some element over `dim` is true (not 0)."""
        axes = _axes("any", dim, axis, self._data.ndim)
        return wrap(logical_or.reduce(self._data, axis=axes, keepdims=keepdim))

    def cumsum(self, dim: int) -> Tensor:
        """The running sum along dim."""
        axis = normalized_axis("cumsum", dim, self._data.ndim)
        return record(add.accumulate(self._data, axis=axis), _cumsum_backward, (self,), (), (axis,))


def _only_element_backward(node: Node, grad: Any) -> Gradients:
    return (grad,)
