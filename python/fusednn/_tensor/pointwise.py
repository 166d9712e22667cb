"""Elementwise functions, and choosing between two tensors element by element."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy import ndarray

from .arithmetic import (
    Arithmetic,
    check_same_kind,
    floating,
    operand,
    record_both,
    shape_of,
    unbroadcast,
)
from .device import check_device, is_array, namespace
from .tape import Array, Gradients, Node, TensorBase, raw, record, wrap

if TYPE_CHECKING:
    from .tensor import Tensor


def _exp_backward(node: Node, grad: Any) -> Gradients:
    return (grad * node.saved[0],)


def _log_backward(node: Node, grad: Any) -> Gradients:
    return (grad / node.saved[0],)


def _log1p_backward(node: Node, grad: Any) -> Gradients:
    return (grad / (node.saved[0] + 1),)


def _expm1_backward(node: Node, grad: Any) -> Gradients:
    return (grad * (node.saved[0] + 1),)


def _sqrt_backward(node: Node, grad: Any) -> Gradients:
    return (grad / (node.saved[0] * 2),)


def _rsqrt_backward(node: Node, grad: Any) -> Gradients:
    (out,) = node.saved
    return (grad * out * out * out * -0.5,)


def _reciprocal_backward(node: Node, grad: Any) -> Gradients:
    (out,) = node.saved
    return (-grad * out * out,)


def _sin_backward(node: Node, grad: Any) -> Gradients:
    return (grad * np.cos(node.saved[0]),)


def _cos_backward(node: Node, grad: Any) -> Gradients:
    return (-grad * np.sin(node.saved[0]),)


def _log2_backward(node: Node, grad: Any) -> Gradients:
    return (grad / (node.saved[0] * math.log(2)),)


def _log10_backward(node: Node, grad: Any) -> Gradients:
    return (grad / (node.saved[0] * math.log(10)),)


def _round_backward(node: Node, grad: Any) -> Gradients:
    # Constant almost everywhere.
    return (np.zeros_like(grad),)


def _clamp_backward(node: Node, grad: Any) -> Gradients:
    x, low, high = node.saved
    inside = namespace(x).ones(x.shape, bool)
    if low is not None:
        inside &= x >= low
    if high is not None:
        inside &= x <= high
    return (grad * inside,)


class Pointwise(Arithmetic):
    """The elementwise functions of Tensor."""

    __slots__ = ()

    def exp(self) -> Tensor:
        """e ** self."""
        return record(np.exp(floating(self, "exp")), _exp_backward, (self,), keep_output=True)

    def expm1(self) -> Tensor:
        """e ** self - 1, exact near 0."""
        return record(np.expm1(floating(self, "expm1")), _expm1_backward, (self,), keep_output=True)

    def log(self) -> Tensor:
        """The natural logarithm."""
        return record(np.log(floating(self, "log")), _log_backward, (self,), (self,))

    def log1p(self) -> Tensor:
        """log(1 + self), exact near 0."""
        return record(np.log1p(floating(self, "log1p")), _log1p_backward, (self,), (self,))

    def log2(self) -> Tensor:
        """The logarithm to base 2."""
        return record(np.log2(floating(self, "log2")), _log2_backward, (self,), (self,))

    def log10(self) -> Tensor:
        """The logarithm to base 10."""
        return record(np.log10(floating(self, "log10")), _log10_backward, (self,), (self,))

    def sqrt(self) -> Tensor:
        """The square root."""
        return record(np.sqrt(floating(self, "sqrt")), _sqrt_backward, (self,), keep_output=True)

    def rsqrt(self) -> Tensor:
        """1 / sqrt(self)."""
        data = 1 / np.sqrt(floating(self, "rsqrt"))
        return record(data, _rsqrt_backward, (self,), keep_output=True)

    def reciprocal(self) -> Tensor:
        """1 / self."""
        data = 1 / floating(self, "reciprocal")
        return record(data, _reciprocal_backward, (self,), keep_output=True)

    def sin(self) -> Tensor:
        """The sine of self in radians."""
        return record(np.sin(floating(self, "sin")), _sin_backward, (self,), (self,))

    def cos(self) -> Tensor:
        """The cosine of self in radians."""
        return record(np.cos(floating(self, "cos")), _cos_backward, (self,), (self,))

    # Steps: their gradient is 0.

    def floor(self) -> Tensor:
        """The largest integer that is not larger."""
        return record(np.floor(self._data), _round_backward, (self,))

    def ceil(self) -> Tensor:
        """The smallest integer that is not smaller."""
        return record(np.ceil(self._data), _round_backward, (self,))

    def trunc(self) -> Tensor:
        """The integer part."""
        return record(np.trunc(self._data), _round_backward, (self,))

    def round(self, decimals: int = 0) -> Tensor:
        """The nearest number of so many decimals; halves go to the even one."""
        return record(np.round(self._data, decimals), _round_backward, (self,))

    def sign(self) -> Tensor:
        """-1, 0 or 1."""
        return record(np.sign(self._data), _round_backward, (self,))

    def clamp(self, min: float | None = None, max: float | None = None) -> Tensor:
        """Values below min become min, those above max become max; NaN stays.

        >>> import fusednn as fn
        >>> fn.tensor([-2.0, 0.5, 3.0]).clamp(0, 1)
        tensor([0.0000, 0.5000, 1.0000])
        """
        if min is None and max is None:
            raise ValueError("clamp: give min, max or both")
        bounds = []
        for name, bound in (("min", min), ("max", max)):
            value = None if bound is None else operand(self, bound, "clamp")
            if value is NotImplemented or isinstance(bound, TensorBase) or is_array(bound):
                raise TypeError(f"clamp: {name} must be a number, got {type(bound).__name__}")
            bounds.append(value)
        data = self._data if bounds[0] is None else np.maximum(self._data, bounds[0])
        data = data if bounds[1] is None else np.minimum(data, bounds[1])
        return record(data, _clamp_backward, (self,), (self,), tuple(bounds))

    clip = clamp

    def isnan(self) -> Tensor:
        """True where an element is NaN."""
        return wrap(np.isnan(self._data))

    def isinf(self) -> Tensor:
        """True where an element is infinite."""
        return wrap(np.isinf(self._data))

    def isfinite(self) -> Tensor:
        """True where an element is neither NaN nor infinite."""
        return wrap(np.isfinite(self._data))

    def maximum(self, other: Tensor | Array) -> Tensor:
        """`fusednn.maximum` of self and other."""
        return maximum(self, other)  # type: ignore[no-any-return]

    def minimum(self, other: Tensor | Array) -> Tensor:
        """`fusednn.minimum` of self and other."""
        return minimum(self, other)  # type: ignore[no-any-return]

    def where(self, condition: Any, other: Any) -> Tensor:
        """self where the condition holds, else other."""
        return where(condition, self, other)  # type: ignore[no-any-return]

    def masked_fill(self, mask: Tensor | Array, value: float) -> Tensor:
        """A copy with `value` where the boolean `mask` (broadcast to self's shape) is True."""
        chosen = raw(mask)
        if not is_array(chosen) or chosen.dtype.kind != "b":
            raise TypeError("masked_fill: mask must be a boolean Tensor or array")
        return where(~chosen, self, value)  # type: ignore[no-any-return]


# ---- functions of two ----------------------------------------------------------------------------


def _maximum_backward(node: Node, grad: Any) -> Gradients:
    a, b = node.edges
    x, y, x_shape, y_shape = node.saved
    half = (np.equal(x, y) * grad) * 0.5
    return (
        None if a is None else unbroadcast(np.greater(x, y) * grad + half, x_shape),
        None if b is None else unbroadcast(np.less(x, y) * grad + half, y_shape),
    )


def _minimum_backward(node: Node, grad: Any) -> Gradients:
    a, b = node.edges
    x, y, x_shape, y_shape = node.saved
    half = (np.equal(x, y) * grad) * 0.5
    return (
        None if a is None else unbroadcast(np.less(x, y) * grad + half, x_shape),
        None if b is None else unbroadcast(np.greater(x, y) * grad + half, y_shape),
    )


def _pair(op: str, x: Any, y: Any) -> tuple[Any, Any]:
    if isinstance(x, TensorBase):
        return x._data, operand(x, y, op)
    if isinstance(y, TensorBase):
        return operand(y, x, op), y._data
    return NotImplemented, None


def _extremum(op: str, function: np.ufunc, backward: Any, x: Any, y: Any) -> Any:
    if not (isinstance(x, TensorBase) or isinstance(y, TensorBase)):
        if isinstance(x, ndarray) and isinstance(y, ndarray) and x.dtype is not y.dtype:
            check_same_kind(op, x.dtype, y.dtype)
        return function(x, y)
    a, b = _pair(op, x, y)
    if a is NotImplemented or b is NotImplemented:
        raise TypeError(f"{op}: expected Tensors, arrays or numbers")
    return record_both(function(a, b), backward, x, y)


def maximum(input: Any, other: Any) -> Any:
    """The larger of each pair, broadcast; NaN wins; ties share the gradient.

    >>> import fusednn as fn
    >>> fn.maximum(fn.tensor([1.0, 5.0]), fn.tensor([3.0, 2.0]))
    tensor([3., 5.])
    """
    return _extremum("maximum", np.maximum, _maximum_backward, input, other)


def minimum(input: Any, other: Any) -> Any:
    """The smaller of each pair, broadcast; NaN wins; ties share the gradient.

    >>> import fusednn as fn
    >>> fn.minimum(fn.tensor([1.0, 5.0]), fn.tensor([3.0, 2.0]))
    tensor([1., 2.])
    """
    return _extremum("minimum", np.minimum, _minimum_backward, input, other)


def _where_backward(node: Node, grad: Any) -> Gradients:
    a, b = node.edges
    condition, x_shape, y_shape = node.saved
    zero = grad.dtype.type(0)
    return (
        None if a is None else unbroadcast(np.where(condition, grad, zero), x_shape),
        None if b is None else unbroadcast(np.where(condition, zero, grad), y_shape),
    )


def where(condition: Any, input: Any, other: Any) -> Any:
    """input where the boolean condition holds, else other; all broadcast. Arrays in, array out.

    >>> import fusednn as fn
    >>> x = fn.tensor([-1.0, 2.0])
    >>> fn.where(x > 0, x, 0.0)
    tensor([0., 2.])
    """
    chosen = raw(condition)
    if getattr(chosen, "dtype", np.dtype("O")).kind != "b":
        raise TypeError(
            f"where: condition must be boolean, got {getattr(chosen, 'dtype', type(chosen))}"
        )
    if isinstance(input, TensorBase) or isinstance(other, TensorBase):
        x, y = _pair("where", input, other)
        if x is NotImplemented or y is NotImplemented:
            raise TypeError("where: expected Tensors, arrays or numbers")
        for other_name, one in (("input", x), ("other", y)):
            if is_array(one) and (type(one) is not ndarray or type(chosen) is not ndarray):
                check_device("where", "condition", chosen, other_name, one)
        inputs = (input, other)
        shapes = (shape_of(input), shape_of(other))
        return record(np.where(chosen, x, y), _where_backward, inputs, (condition,), shapes)
    if isinstance(input, ndarray) and isinstance(other, ndarray):
        check_same_kind("where", input.dtype, other.dtype)
    result = np.where(chosen, input, other)
    if not isinstance(condition, TensorBase):
        return result
    if float in (type(input), type(other)) and not isinstance(input, ndarray):
        result = result.astype(np.float32)  # numbers of Python, as `tensor` takes them
    return wrap(result)
