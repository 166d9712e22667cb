"""Comparisons, and the logic of what they give: boolean Tensors, off the tape."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .arithmetic import operand
from .device import is_array
from .tape import Operand, TensorBase, raw, wrap

if TYPE_CHECKING:
    from .tensor import Tensor


def _bits(op: str, value: Any) -> Any:
    """An operand of & | ^ ~: booleans or integers."""
    data = raw(value)
    if isinstance(data, (bool, int)):
        return data
    if not (isinstance(data, np.generic) or is_array(data)):
        return NotImplemented
    if data.dtype.kind not in "biu":
        raise TypeError(f"{op}: an operand has dtype {data.dtype}, expected booleans or integers")
    return data


class Comparison(TensorBase):
    """The comparing operators of Tensor."""

    __slots__ = ()

    def __eq__(self, other: object) -> Tensor:  # type: ignore[override]
        y = operand(self, other, "eq")
        return y if y is NotImplemented else wrap(self._data == y)

    def __ne__(self, other: object) -> Tensor:  # type: ignore[override]
        y = operand(self, other, "ne")
        return y if y is NotImplemented else wrap(self._data != y)

    def __lt__(self, other: Any) -> Tensor:
        y = operand(self, other, "lt")
        return y if y is NotImplemented else wrap(self._data < y)

    def __le__(self, other: Any) -> Tensor:
        y = operand(self, other, "le")
        return y if y is NotImplemented else wrap(self._data <= y)

    def __gt__(self, other: Any) -> Tensor:
        y = operand(self, other, "gt")
        return y if y is NotImplemented else wrap(self._data > y)

    def __ge__(self, other: Any) -> Tensor:
        y = operand(self, other, "ge")
        return y if y is NotImplemented else wrap(self._data >= y)

    # Equality is elementwise, so tensors hash by identity.
    __hash__ = object.__hash__

    def __invert__(self) -> Tensor:
        return wrap(~_bits("invert", self))

    def __and__(self, other: Operand) -> Tensor:
        y = _bits("and", other)
        return y if y is NotImplemented else wrap(_bits("and", self) & y)

    def __or__(self, other: Operand) -> Tensor:
        y = _bits("or", other)
        return y if y is NotImplemented else wrap(_bits("or", self) | y)

    def __xor__(self, other: Operand) -> Tensor:
        y = _bits("xor", other)
        return y if y is NotImplemented else wrap(_bits("xor", self) ^ y)

    __rand__, __ror__, __rxor__ = __and__, __or__, __xor__

    # ---- with torch's names ----

    def eq(self, other: Operand) -> Tensor:
        """self == other."""
        return self == other

    def ne(self, other: Operand) -> Tensor:
        """self != other."""
        return self != other

    def lt(self, other: Operand) -> Tensor:
        """self < other."""
        return self < other

    def le(self, other: Operand) -> Tensor:
        """self <= other."""
        return self <= other

    def gt(self, other: Operand) -> Tensor:
        """self > other."""
        return self > other

    def ge(self, other: Operand) -> Tensor:
        """self >= other."""
        return self >= other
