"""Elementwise arithmetic with broadcasting.

A Python or NumPy scalar takes the tensor's dtype. float32 and float64 arrays do not mix: that is a
TypeError, since nothing is cast silently. Booleans may be multiplied with floats (masks).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy import add, multiply, ndarray, subtract

from .autocast import both_float, widened
from .device import (
    as_cupy,
    check_device,
    is_array,
    is_bfloat16,
    is_float,
    namespace,
    on_gpu,
)
from .sums import sum_over
from .tape import (
    Array,
    Gradients,
    Node,
    Operand,
    TensorBase,
    in_recycled,
    needs,
    raw,
    record,
)

if TYPE_CHECKING:
    from .tensor import Tensor


# ---- operands ------------------------------------------------------------------------------------


def operand(self: TensorBase, other: Any, op: str) -> Any:
    """`other` as an array or a Python scalar that leaves self's dtype alone, or NotImplemented."""
    kind = type(other)
    if kind is ndarray:
        array = other
    elif isinstance(other, TensorBase):
        array = other._data
    elif kind is int or kind is float:
        own = self._data.dtype
        if own.kind != "f":
            if is_bfloat16(own):  # NumPy's rules for Python's numbers do not hold for it
                return namespace(self._data).asarray(other, own)
            if kind is float:
                raise mixed(op, own, "a float")
        return other
    elif isinstance(other, (bool, int, float, np.number, np.bool_)):
        value = other.item() if isinstance(other, np.generic) else other
        if isinstance(value, complex):
            return NotImplemented
        return operand(self, float(value) if isinstance(value, float) else int(value), op)
    elif isinstance(other, ndarray):
        array = other
    elif on_gpu(other):
        array = as_cupy(other)
    else:
        return NotImplemented
    data = self._data
    if type(array) is not ndarray or type(data) is not ndarray:
        check_device(op, "input", data, "other", array)
    dtype, own = array.dtype, data.dtype
    if dtype is not own:
        if both_float(self, array):
            return NotImplemented
        check_same_kind(op, own, dtype)
    return array


def _elsewise(self: TensorBase, other: Any, method: Callable[[Any, Any], Tensor]) -> Tensor:
    """Where `operand` gave up: inside autocast both in float32, else it is for others to say."""
    other_array = raw(other)
    result: Tensor = NotImplemented
    if is_array(other_array) and both_float(self, other_array):
        result = method(*widened(self, other))
    return result


def _given(other: Any, y: Any) -> Any:
    """What is recorded of `other`, which `operand` made y of: numbers in the tensor's dtype."""
    return other if isinstance(other, TensorBase) or is_array(other) else y


def check_same_kind(op: str, a: np.dtype[Any], b: np.dtype[Any]) -> None:
    """TypeError unless NumPy can combine both without casting a float or making one of an int."""
    kinds = {a.kind, b.kind}
    if a.char == b.char and is_float(a):
        return
    if not (kinds <= {"b", "i", "u"} or kinds == {"b", "f"}):
        raise mixed(op, a, b)


def mixed(op: str, a: Any, b: Any) -> TypeError:
    """The error for operands of two dtypes."""
    return TypeError(
        f"{op}: operands are {a} and {b}; nothing is cast silently, convert one with .to(dtype)"
    )


def floating(self: TensorBase, op: str) -> Array:
    """self's array if it is of a float dtype, else TypeError."""
    data = self._data
    if not is_float(data.dtype):
        raise TypeError(f"{op}: input has dtype {data.dtype}, expected float32 or float64")
    return data


def unbroadcast(grad: Any, shape: tuple[int, ...]) -> Any:
    """The gradient of an operand of `shape` that was broadcast to grad's shape."""
    found = grad.shape
    if found == shape:
        return grad
    lead = len(found) - len(shape)
    if lead:
        grad = sum_over(grad, tuple(range(lead)))
        found = grad.shape
    axes = tuple(i for i, n in enumerate(shape) if n == 1 and found[i] != 1)
    return sum_over(grad, axes, True) if axes else grad


# ---- the ops of two operands ---------------------------------------------------------------------


def _add_backward(node: Node, grad: Any) -> Gradients:
    shapes = node.saved
    return [
        None if edge is None else unbroadcast(grad, shape)
        for edge, shape in zip(node.edges, shapes, strict=True)
    ]


def _sub_backward(node: Node, grad: Any) -> Gradients:
    x, y = node.edges
    x_shape, y_shape = node.saved
    return (
        None if x is None else unbroadcast(grad, x_shape),
        None if y is None else -unbroadcast(grad, y_shape),
    )


def _mul_backward(node: Node, grad: Any) -> Gradients:
    a, b = node.edges
    x, y, x_shape, y_shape = node.saved
    return (
        None if a is None else unbroadcast(in_recycled(multiply, grad, y), x_shape),
        None if b is None else unbroadcast(in_recycled(multiply, grad, x), y_shape),
    )


def _div_backward(node: Node, grad: Any) -> Gradients:
    a, b = node.edges
    x, y, x_shape, y_shape = node.saved
    over = grad / y
    return (
        None if a is None else unbroadcast(over, x_shape),
        None if b is None else unbroadcast(-over * (x / y), y_shape),
    )


def _mod_backward(node: Node, grad: Any) -> Gradients:
    # x % y = x - y * floor(x / y), whose last factor is constant almost everywhere.
    a, b = node.edges
    x, y, x_shape, y_shape = node.saved
    return (
        None if a is None else unbroadcast(grad, x_shape),
        None if b is None else unbroadcast(-grad * np.floor(x / y), y_shape),
    )


def _floordiv_backward(node: Node, grad: Any) -> Gradients:
    # Constant almost everywhere.
    shapes = node.saved
    return [
        None if edge is None else namespace(grad).zeros(shape, grad.dtype)
        for edge, shape in zip(node.edges, shapes, strict=True)
    ]


def _pow_backward(node: Node, grad: Any) -> Gradients:
    a, b = node.edges
    x, y, x_shape, y_shape = node.saved
    if b is None and isinstance(y, np.floating) and y >= 1:
        # A power that no element makes infinite.
        return (grad * (x * y if y == 2 else y * np.power(x, y - 1)), None)
    grad_x = grad_y = None
    with np.errstate(divide="ignore", invalid="ignore"):
        if a is not None:
            # d(x**0) is 0, also at x = 0 where x**-1 is infinite.
            grad_x = grad * np.where(np.equal(y, 0), 0, y * np.power(x, y - 1)).astype(x.dtype)
            grad_x = unbroadcast(grad_x, x_shape)
        if b is not None:
            slope = np.power(x, y) * np.log(x)
            grad_y = grad * np.where((np.equal(x, 0)) & (np.greater_equal(y, 0)), 0, slope)
            grad_y = unbroadcast(grad_y.astype(y.dtype), y_shape)
    return grad_x, grad_y


def shape_of(value: Any) -> tuple[int, ...]:
    # A scalar gets no gradient, so its shape is never looked at.
    return getattr(value, "shape", ())


def _record_sum(data: Any, backward: Any, x: Any, y: Any) -> Tensor:
    return record(data, backward, (x, y), (), (shape_of(x), shape_of(y)))


def _record_product(data: Any, backward: Any, x: Any, y: Any) -> Tensor:
    # x is needed for y's gradient and the other way round; backward unpacks (x, y, shapes).
    keep = (x if needs(y) else None, y if needs(x) else None)
    return record(data, backward, (x, y), keep, (shape_of(x), shape_of(y)))


def record_both(data: Any, backward: Any, x: Any, y: Any) -> Tensor:
    return record(data, backward, (x, y), (x, y), (shape_of(x), shape_of(y)))


def _scalar(value: Any, like: TensorBase) -> Any:
    # For backward functions that call methods of arrays on both operands.
    return (
        value if isinstance(value, TensorBase) or is_array(value) else like._data.dtype.type(value)
    )


def _divisor(self: TensorBase, other: Any, op: str) -> Any:
    """The other operand of // and %, which booleans have not."""
    if self._data.dtype.kind == "b":
        raise TypeError(f"{op}: input has dtype bool, expected floats or integers")
    return operand(self, other, op)


def _power(self: TensorBase, other: Any) -> Any:
    """The other operand of **: floats with floats, integers with integers that are not negative."""
    data = self._data
    if data.dtype.kind == "b":
        raise TypeError("pow: input has dtype bool, expected floats or integers")
    return operand(self, other, "pow")


# ---- the ops of one operand ----------------------------------------------------------------------


def _neg_backward(node: Node, grad: Any) -> Gradients:
    return (-grad,)


def _abs_backward(node: Node, grad: Any) -> Gradients:
    return (grad * np.sign(node.saved[0]),)


def _clone_backward(node: Node, grad: Any) -> Gradients:
    return (grad,)


class Arithmetic(TensorBase):
    """The operators of Tensor. Operands are Tensors, arrays or scalars, and broadcast."""

    __slots__ = ()

    # NumPy leaves `array op tensor` to the methods below.
    __array_priority__ = 1000.0
    __array_ufunc__ = None

    def __add__(self, other: Operand) -> Tensor:
        y = operand(self, other, "add")
        if y is NotImplemented:
            return _elsewise(self, other, Arithmetic.__add__)
        return _record_sum(in_recycled(add, self._data, y), _add_backward, self, other)

    __radd__ = __add__

    def __sub__(self, other: Operand) -> Tensor:
        y = operand(self, other, "sub")
        if y is NotImplemented:
            return _elsewise(self, other, Arithmetic.__sub__)
        return _record_sum(in_recycled(subtract, self._data, y), _sub_backward, self, other)

    def __rsub__(self, other: Operand) -> Tensor:
        y = operand(self, other, "sub")
        if y is NotImplemented:
            return _elsewise(self, other, Arithmetic.__rsub__)
        return _record_sum(y - self._data, _sub_backward, other, self)

    def __mul__(self, other: Operand) -> Tensor:
        y = operand(self, other, "mul")
        if y is NotImplemented:
            return _elsewise(self, other, Arithmetic.__mul__)
        return _record_product(
            in_recycled(multiply, self._data, y), _mul_backward, self, _given(other, y)
        )

    __rmul__ = __mul__

    def __truediv__(self, other: Operand) -> Tensor:
        x = floating(self, "div")
        y = operand(self, other, "div")
        if y is NotImplemented:
            return _elsewise(self, other, Arithmetic.__truediv__)
        data = x / y
        if needs(other):
            return record_both(data, _div_backward, self, other)
        return _record_product(data, _div_backward, self, _given(other, y))

    def __rtruediv__(self, other: Operand) -> Tensor:
        x = floating(self, "div")
        y = operand(self, other, "div")
        if y is NotImplemented:
            return _elsewise(self, other, Arithmetic.__rtruediv__)
        return record_both(y / x, _div_backward, _given(other, y), self)

    def __floordiv__(self, other: Operand) -> Tensor:
        y = _divisor(self, other, "floordiv")
        if y is NotImplemented:
            return _elsewise(self, other, Arithmetic.__floordiv__)
        return _record_sum(self._data // y, _floordiv_backward, self, other)

    def __rfloordiv__(self, other: Operand) -> Tensor:
        y = _divisor(self, other, "floordiv")
        if y is NotImplemented:
            return _elsewise(self, other, Arithmetic.__rfloordiv__)
        return _record_sum(y // self._data, _floordiv_backward, other, self)

    def __mod__(self, other: Operand) -> Tensor:
        y = _divisor(self, other, "mod")
        if y is NotImplemented:
            return _elsewise(self, other, Arithmetic.__mod__)
        return record_both(self._data % y, _mod_backward, self, other)

    def __rmod__(self, other: Operand) -> Tensor:
        y = _divisor(self, other, "mod")
        if y is NotImplemented:
            return _elsewise(self, other, Arithmetic.__rmod__)
        return record_both(y % self._data, _mod_backward, other, self)

    def __pow__(self, other: Operand) -> Tensor:
        y = _power(self, other)
        if y is NotImplemented:
            return _elsewise(self, other, Arithmetic.__pow__)
        return record_both(self._data**y, _pow_backward, self, _scalar(other, self))

    def __rpow__(self, other: Operand) -> Tensor:
        y = _power(self, other)
        if y is NotImplemented:
            return _elsewise(self, other, Arithmetic.__rpow__)
        return record_both(y**self._data, _pow_backward, _scalar(other, self), self)

    def __neg__(self) -> Tensor:
        if self._data.dtype.kind == "b":
            raise TypeError("neg: input has dtype bool; ~input turns booleans")
        return record(-self._data, _neg_backward, (self,))

    def __pos__(self) -> Tensor:
        return record(+self._data, _clone_backward, (self,))

    def __abs__(self) -> Tensor:
        return record(abs(self._data), _abs_backward, (self,), (self,))

    # ---- functions as methods, with torch's names ----

    def add(self, other: Operand) -> Tensor:
        """self + other."""
        return self + other

    def sub(self, other: Operand) -> Tensor:
        """self - other."""
        return self - other

    def mul(self, other: Operand) -> Tensor:
        """self * other."""
        return self * other

    def div(self, other: Operand) -> Tensor:
        """self / other."""
        return self / other

    def pow(self, exponent: Operand) -> Tensor:
        """self ** exponent."""
        return self**exponent

    def neg(self) -> Tensor:
        """-self."""
        return -self

    def abs(self) -> Tensor:
        """|self|; the gradient at 0 is 0."""
        return self.__abs__()

    def square(self) -> Tensor:
        """self * self."""
        return self * self  # type: ignore[operator]
