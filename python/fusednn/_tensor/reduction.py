"""Sums, means, extrema and the like over some or all axes.

`dim` (an int, a tuple of ints, or None for all axes) may be called `axis` as well. Sums use a fixed
tree (`sums.py`), so they give the same bits on every run.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy import ndarray

from .arithmetic import floating
from .autocast import in_float32
from .device import as_array, beside, host, namespace, on_gpu
from .sums import running_sum, sum_over
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


def normalized_axis(op: str, dim: Any, ndim: int) -> int:
    """dim as an axis >= 0; ValueError if the tensor has no such axis."""
    try:
        axis = None if isinstance(dim, bool) else dim.__index__()
    except (AttributeError, TypeError):
        axis = None
    if axis is None:
        raise TypeError(f"{op}: dim must be an int, got {type(dim).__name__}")
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
    if ndim == 0:
        # A number counts as a vector of one, as in NumPy and PyTorch.
        _axes(op, dim, None, 1)
        return ()
    if not isinstance(dim, (tuple, list)):
        return (normalized_axis(op, dim, ndim),)
    axes = tuple(normalized_axis(op, one, ndim) for one in dim)
    if len(set(axes)) != len(axes):
        raise ValueError(f"{op}: dim={dim} names an axis twice")
    return axes


def only_none(op: str, numpys: dict[str, Any]) -> None:
    """TypeError unless what NumPy's functions hand on besides (np.sum(x): out, dtype) is None."""
    for name, value in numpys.items():
        if value is not None:
            raise TypeError(f"{op}: the argument {name} is not supported, got {value!r}")


def _kept_shape(shape: tuple[int, ...], axes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(1 if i in axes else n for i, n in enumerate(shape))


def _count(shape: tuple[int, ...], axes: tuple[int, ...]) -> int:
    return math.prod(shape[axis] for axis in axes)


# Below this many elements a filled array costs less than a view that is copied later.
_SMALL = 4096


def spread(grad: Any, axes: tuple[int, ...], shape: tuple[int, ...]) -> Array:
    """grad of a reduction over `axes` in the input's shape; mostly a stride-0 view."""
    if type(grad) is not ndarray and on_gpu(grad):
        kept = grad.reshape(_kept_shape(shape, axes))
        return np.broadcast_to(kept, shape).copy()
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
    scale = as_array(grad * (2 / divisor) if divisor > 0 else grad * math.nan)
    return (deviations * scale.reshape(_kept_shape(deviations.shape, axes)),)


def _std_backward(node: Node, grad: Any) -> Gradients:
    deviations, axes, divisor, out = node.saved
    # A constant sample has slope 0, not 0 / 0.
    slope = _ratio(grad, out)
    scale = slope * (1 / divisor) if divisor > 0 else slope * math.nan
    return (deviations * scale.reshape(_kept_shape(deviations.shape, axes)),)


def _ratio(grad: Any, out: Any) -> Any:
    """grad / out, 0 where out is 0."""
    if type(out) is ndarray:
        return np.divide(grad, out, out=np.zeros_like(out), where=out != 0)
    one = out.dtype.type(1)
    return np.where(out != 0, grad / np.where(out != 0, out, one), out.dtype.type(0))


def reduce(function: Any, name: str, data: Any, axes: tuple[int, ...], keepdims: bool) -> Any:
    """function.reduce; where that is NumPy's alone, the method `name` of the array."""
    if type(data) is ndarray:
        return function.reduce(data, axis=axes, keepdims=keepdims)
    return as_array(getattr(data, name)(axis=axes, keepdims=keepdims))


def _norm_backward(node: Node, grad: Any) -> Gradients:
    x, axes, out = node.saved
    slope = _ratio(grad, out)
    return (x * slope.reshape(_kept_shape(x.shape, axes)),)


def _logsumexp_backward(node: Node, grad: Any) -> Gradients:
    x, axes, out = node.saved
    shape = _kept_shape(x.shape, axes)
    with np.errstate(invalid="ignore"):  # inf - inf, whose share is not known
        share = np.exp(x - out.reshape(shape))
    return (share * as_array(grad).reshape(shape),)


def _prod_backward(node: Node, grad: Any) -> Gradients:
    x, axes = node.saved
    # The product of all others, from both sides, is right where some are 0.
    rest = tuple(i for i in range(x.ndim) if i not in axes)
    turned = x.transpose(*rest, *axes)
    flat = turned.reshape(*(x.shape[i] for i in rest), _count(x.shape, axes))
    others = namespace(x).ones(flat.shape, flat.dtype.newbyteorder("="))
    others[..., 1:] = flat[..., :-1].cumprod(-1)
    after = flat[..., :0:-1].cumprod(-1)[..., ::-1]
    others[..., :-1] *= after
    others *= as_array(grad).reshape(*flat.shape[:-1], 1)
    return (others.reshape(turned.shape).transpose([int(i) for i in np.argsort((*rest, *axes))]),)


def _cumsum_backward(node: Node, grad: Any) -> Gradients:
    (axis,) = node.saved
    return (np.flip(running_sum(np.flip(grad, axis), axis), axis),)


class Reduction(TensorBase):
    """The reductions of Tensor."""

    __slots__ = ()

    def sum(
        self,
        dim: Dim = None,
        keepdim: bool = False,
        *,
        axis: Dim = None,
        keepdims: bool = False,
        **numpys: Any,
    ) -> Tensor:
        """The sum over `dim` (all axes by default); 0 over an empty axis.

        >>> import fusednn as fn
        >>> fn.ones(2, 3).sum(0)
        tensor([2., 2., 2.])
        """
        only_none("sum", numpys)
        data = self._data
        axes = _axes("sum", dim, axis, data.ndim)
        out = sum_over(data, axes, keepdim or keepdims)
        return record(out, _sum_backward, (self,), (), (axes, data.shape))

    def mean(
        self,
        dim: Dim = None,
        keepdim: bool = False,
        *,
        axis: Dim = None,
        keepdims: bool = False,
        **numpys: Any,
    ) -> Tensor:
        """The mean over `dim`; NaN over an empty axis.

        >>> import fusednn as fn
        >>> fn.tensor([[1.0, 3.0], [5.0, 7.0]]).mean(1)
        tensor([2., 6.])
        """
        only_none("mean", numpys)
        data = floating(self, "mean")
        axes = _axes("mean", dim, axis, data.ndim)
        count = _count(data.shape, axes)
        out = sum_over(data, axes, keepdim or keepdims)
        out = out / count if count else out + data.dtype.type(math.nan)
        return record(out, _mean_backward, (self,), (), (axes, data.shape))

    @in_float32("self", rounded=True)
    def var(
        self,
        dim: Dim = None,
        unbiased: bool = True,
        keepdim: bool = False,
        *,
        correction: float | None = None,
        ddof: float | None = None,
        axis: Dim = None,
        keepdims: bool = False,
        **numpys: Any,
    ) -> Tensor:
        """The variance over `dim`: the sum of squared deviations by n - correction.

        correction (or ddof) is 1, or 0 if not unbiased. Where it leaves nothing to divide by
        the result is inf, or NaN if there is no deviation either.

        >>> import fusednn as fn
        >>> fn.tensor([1.0, 3.0]).var()
        tensor(2.)
        """
        only_none("var", numpys)
        keepdim = keepdim or keepdims
        correction = ddof if correction is None else correction
        axes, deviations, divisor, out = self._variance(
            "var", dim, axis, unbiased, correction, keepdim
        )
        return record(out, _var_backward, (self,), (), (deviations, axes, divisor))

    @in_float32("self", rounded=True)
    def std(
        self,
        dim: Dim = None,
        unbiased: bool = True,
        keepdim: bool = False,
        *,
        correction: float | None = None,
        ddof: float | None = None,
        axis: Dim = None,
        keepdims: bool = False,
        **numpys: Any,
    ) -> Tensor:
        """The standard deviation over `dim`: the square root of `var`."""
        only_none("std", numpys)
        keepdim = keepdim or keepdims
        correction = ddof if correction is None else correction
        axes, deviations, divisor, out = self._variance(
            "std", dim, axis, unbiased, correction, keepdim
        )
        out = as_array(np.sqrt(out))
        context = (deviations, axes, divisor)
        return record(out, _std_backward, (self,), (), context, keep_output=True)

    def _variance(
        self,
        op: str,
        dim: Any,
        axis: Dim,
        unbiased: bool,
        correction: float | None,
        keepdim: bool,
    ) -> tuple[tuple[int, ...], Array, float, Any]:
        if isinstance(dim, bool):  # var(False), as in PyTorch
            dim, unbiased = None, dim
        if correction is None:
            correction = float(unbiased)
        data = floating(self, op)
        axes = _axes(op, dim, axis, data.ndim)
        count = _count(data.shape, axes)
        mean = sum_over(data, axes, True) / max(count, 1)
        deviations = data - mean
        out = sum_over(deviations * deviations, axes, keepdim)
        divisor = count - correction
        if divisor > 0:
            out = out / divisor
        else:
            with np.errstate(invalid="ignore"):
                out = out * data.dtype.type(math.inf)  # 0 * inf is NaN, as 0 / 0
        return axes, deviations, divisor, out

    def norm(
        self,
        p: float = 2.0,
        dim: Dim = None,
        keepdim: bool = False,
        *,
        axis: Dim = None,
        keepdims: bool = False,
    ) -> Tensor:
        """The length over `dim`: the root of the sum of squares. p = 1: the sum of magnitudes, p =
        inf: the largest one. The gradient of a length of 0 is 0.

        >>> import fusednn as fn
        >>> fn.tensor([3.0, 4.0]).norm()
        tensor(5.)
        """
        data = floating(self, "norm")
        axes = _axes("norm", dim, axis, data.ndim)
        keepdim = keepdim or keepdims
        if p == math.inf:
            return self.__abs__().amax(axes, keepdim)  # type: ignore[attr-defined, no-any-return]
        if p == 1:
            return self.__abs__().sum(axes, keepdim)  # type: ignore[attr-defined, no-any-return]
        if p != 2:
            raise ValueError(f"norm: p={p}, expected 1, 2 or inf")
        out = as_array(np.sqrt(sum_over(data * data, axes, keepdim)))
        return record(out, _norm_backward, (self,), (self,), (axes,), keep_output=True)

    def logsumexp(
        self,
        dim: Dim = None,
        keepdim: bool = False,
        *,
        axis: Dim = None,
        keepdims: bool = False,
    ) -> Tensor:
        """log(sum(exp(self))) over `dim`, without overflow; -inf over an empty axis.

        >>> import fusednn as fn
        >>> fn.tensor([1000.0, 1000.0]).logsumexp(0)
        tensor(1000.6932)
        """
        data = floating(self, "logsumexp")
        axes = _axes("logsumexp", dim, axis, data.ndim)
        if type(data) is ndarray or not data.size:
            top = maximum.reduce(host(data), axis=axes, keepdims=True, initial=-math.inf)
            top = beside(top, data)
        else:
            top = data.max(axis=axes, keepdims=True)
        top = np.where(np.isfinite(top), top, data.dtype.type(0))
        with np.errstate(divide="ignore"):
            out = np.log(sum_over(np.exp(data - top), axes, True)) + top
        if not (keepdim or keepdims):
            out = out.squeeze(axes)
        return record(out, _logsumexp_backward, (self,), (self,), (axes,), keep_output=True)

    def prod(
        self,
        dim: Dim = None,
        keepdim: bool = False,
        *,
        axis: Dim = None,
        keepdims: bool = False,
        **numpys: Any,
    ) -> Tensor:
        """The product over `dim`; 1 over an empty axis. Its gradient is right beside zeros too."""
        only_none("prod", numpys)
        axes = _axes("prod", dim, axis, self._data.ndim)
        out = multiply.reduce(self._data, axis=axes, keepdims=keepdim or keepdims)
        return record(out, _prod_backward, (self,), (self,), (axes,))

    def all(
        self,
        dim: Dim = None,
        keepdim: bool = False,
        *,
        axis: Dim = None,
        keepdims: bool = False,
        **numpys: Any,
    ) -> Tensor:
        """True where every element over `dim` is true (not 0)."""
        only_none("all", numpys)
        axes = _axes("all", dim, axis, self._data.ndim)
        return wrap(reduce(logical_and, "all", self._data, axes, keepdim or keepdims))

    def any(
        self,
        dim: Dim = None,
        keepdim: bool = False,
        *,
        axis: Dim = None,
        keepdims: bool = False,
        **numpys: Any,
    ) -> Tensor:
        """True where some element over `dim` is true (not 0)."""
        only_none("any", numpys)
        axes = _axes("any", dim, axis, self._data.ndim)
        return wrap(reduce(logical_or, "any", self._data, axes, keepdim or keepdims))

    def cumsum(self, dim: int) -> Tensor:
        """The running sum along dim."""
        axes = _axes("cumsum", dim, None, self._data.ndim)
        if not axes:
            return self.clone()  # type: ignore[attr-defined, no-any-return]
        axis = axes[0]
        return record(running_sum(self._data, axis), _cumsum_backward, (self,), (), (axis,))
