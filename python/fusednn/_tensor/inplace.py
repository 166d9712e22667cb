"""Changes in place. All of them first check, then write, then count the memory's version up.

A tensor on the tape may be changed: the change is recorded as well, and what an earlier op saved is
found by its version when backward needs it. Refused are changes of a leaf that requires grad
(outside no_grad) and of a view of a recorded tensor (write `base[index] = value` instead).
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import random
from .arithmetic import operand, unbroadcast
from .device import beside, check_device, is_array, is_float, is_writable, may_share
from .mode import grad_enabled
from .tape import (
    Array,
    Gradients,
    Node,
    Operand,
    TensorBase,
    needs,
    raw,
    record,
    wrap,
)

if TYPE_CHECKING:
    from .tensor import Tensor


def _fill_backward(node: Node, grad: Any) -> Gradients:
    return (np.zeros_like(grad),)


def _copy_backward(node: Node, grad: Any) -> Gradients:
    target, source = node.edges
    shape, dtype = node.saved
    return (
        None if target is None else np.zeros_like(grad),
        None if source is None else unbroadcast(grad, shape).astype(dtype, copy=False),
    )


class InPlace(TensorBase):
    """The in-place part of Tensor."""

    __slots__ = ()

    # ---- what every in-place op does ----

    def _check_writable(self, op: str, value_tracked: bool = False) -> bool:
        """Raises if self must not be changed; True if the change has to be recorded."""
        if not is_writable(self._data):
            raise ValueError(f"{op}: the tensor shares a read-only array and cannot be changed")
        if not grad_enabled():
            return False
        if self._requires_grad:
            node = self._node
            if node is None:
                raise RuntimeError(
                    f"{op}: a leaf tensor that requires grad cannot be changed in place; "
                    "do it inside no_grad(), or change a copy (clone())"
                )
            if node.view is not None:
                raise RuntimeError(
                    f"{op}: in place on a view ({node.op}) of a recorded tensor; "
                    "write base[index] = value, or change a copy (clone())"
                )
            return True
        return value_tracked

    def _written(self, recorded: TensorBase | None) -> None:
        """After the write: a new version, and the recorded op as the tensor's maker."""
        self._memory[0] += 1
        if recorded is not None:
            self._node = recorded._node
            self._requires_grad = True

    def _before(self) -> Tensor:
        """The present values in memory of their own, made by the same op: what a recorded change
        may save."""
        out = wrap(self._data.copy())
        out._requires_grad = self._requires_grad
        out._node = self._node
        return out

    def _apply(self, op: str, function: np.ufunc, other: Any) -> Tensor:
        """self = function(self, other), written into self's memory."""
        y = operand(self, other, op)
        if y is NotImplemented:
            raise TypeError(f"{op}: expected a Tensor, an array or a number, got {type(other)}")
        tracked = self._check_writable(op, needs(other))
        data = self._data
        shape = getattr(y, "shape", ())
        if shape and np.broadcast_shapes(data.shape, shape) != data.shape:
            raise ValueError(f"{op}: shape {shape} does not broadcast to {data.shape} in place")
        if not is_float(data.dtype) and function is np.divide:
            raise TypeError(f"{op}: input has dtype {data.dtype}, expected float32 or float64")
        if not tracked:
            function(data, y, out=data)
            self._written(None)
        else:
            before = self._before()
            out = _OPERATORS[function](before, before if other is self else other)
            data[...] = out._data
            self._written(out)
        return self  # type: ignore[return-value]

    # ---- the ops ----

    def __iadd__(self, other: Operand) -> Tensor:
        return self._apply("add_", np.add, other)

    def __isub__(self, other: Operand) -> Tensor:
        return self._apply("sub_", np.subtract, other)

    def __imul__(self, other: Operand) -> Tensor:
        return self._apply("mul_", np.multiply, other)

    def __itruediv__(self, other: Operand) -> Tensor:
        return self._apply("div_", np.divide, other)

    def add_(self, other: Operand) -> Tensor:
        """self += other, in place."""
        return self._apply("add_", np.add, other)

    def sub_(self, other: Operand) -> Tensor:
        """self -= other, in place."""
        return self._apply("sub_", np.subtract, other)

    def mul_(self, other: Operand) -> Tensor:
        """self *= other, in place."""
        return self._apply("mul_", np.multiply, other)

    def div_(self, other: Operand) -> Tensor:
        """self /= other, in place."""
        return self._apply("div_", np.divide, other)

    def clamp_(self, min: float | None = None, max: float | None = None) -> Tensor:
        """`clamp` in place."""
        tracked = self._check_writable("clamp_")
        before = self._before() if tracked else self
        out = before.clamp(min, max)  # type: ignore[attr-defined]
        self._data[...] = out._data
        self._written(out if tracked else None)
        return self  # type: ignore[return-value]

    def fill_(self, value: float) -> Tensor:
        """Every element becomes the number `value`."""
        new = operand(self, raw(value), "fill_")
        if new is NotImplemented or (is_array(new) and new.ndim):
            raise TypeError(f"fill_: value must be a number, got {type(value).__name__}")
        tracked = self._check_writable("fill_")
        recorded = record(self._data, _fill_backward, (self,)) if tracked else None
        self._data[...] = new
        self._written(recorded)
        return self  # type: ignore[return-value]

    def zero_(self) -> Tensor:
        """Every element becomes 0."""
        return self.fill_(0)

    def copy_(self, source: Tensor | Array) -> Tensor:
        """The elements of `source` (broadcast to self's shape, cast to self's float dtype)."""
        new = raw(source)
        if not is_array(new):
            raise TypeError(
                f"copy_: source must be a Tensor or an array, got {type(source).__name__}"
            )
        data = self._data
        check_device("copy_", "source", new, "the tensor", data)
        if new.dtype.kind != data.dtype.kind and not (is_float(new.dtype) and is_float(data.dtype)):
            raise TypeError(f"copy_: source has dtype {new.dtype}, the tensor {data.dtype}")
        if new.shape != data.shape:
            try:
                fits = np.broadcast_shapes(data.shape, new.shape) == data.shape
            except ValueError:
                fits = False
            if not fits:
                raise ValueError(f"copy_: source has shape {new.shape}, expected {data.shape}")
        tracked = self._check_writable("copy_", needs(source))
        recorded = None
        if tracked:
            context = (new.shape, new.dtype)
            recorded = record(data, _copy_backward, (self, source), (), context)
        data[...] = new.copy() if may_share(new, data) else new
        self._written(recorded)
        return self  # type: ignore[return-value]

    def uniform_(self, low: float = 0.0, high: float = 1.0) -> Tensor:
        """Independent values, uniform in [low, high), from the generator of `manual_seed`."""
        return self._fill_random("uniform_", lambda g, n: low + (high - low) * g.random(n))

    def normal_(self, mean: float = 0.0, std: float = 1.0) -> Tensor:
        """Independent normal values, from the generator of `manual_seed`."""
        return self._fill_random("normal_", lambda g, n: mean + std * g.standard_normal(n))

    def _fill_random(self, op: str, draw: Any) -> Tensor:
        if not is_float(self._data.dtype):
            raise TypeError(f"{op}: the tensor has dtype {self._data.dtype}, expected a float")
        tracked = self._check_writable(op)
        self._data[...] = beside(draw(random.next_generator(), self._data.shape), self._data)
        self._written(record(self._data, _fill_backward, (self,)) if tracked else None)
        return self  # type: ignore[return-value]

    def _clear_grad(self, set_to_none: bool = True) -> None:
        """Sets grad to None, or to zeros if there is one and not set_to_none."""
        if set_to_none or self._grad is None:
            self._grad = None
        else:
            self._grad = wrap(np.zeros_like(self._grad._data))

    def requires_grad_(self, requires_grad: bool = True) -> Tensor:
        """Sets whether gradients are computed for this leaf; returns it.

        TypeError for integers and booleans, RuntimeError for a tensor that an op made.
        """
        self.requires_grad = requires_grad
        return self  # type: ignore[return-value]

    @property
    def requires_grad(self) -> bool:
        """True if gradients flow to this tensor. May be set on leaves of a float dtype."""
        return self._requires_grad

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        if value and not is_float(self._data.dtype):
            raise TypeError(
                f"requires_grad: the tensor has dtype {self._data.dtype}; only float32 and float64 "
                "have gradients"
            )
        if self._node is not None and not value:
            raise RuntimeError("requires_grad: an op made this tensor; use detach() instead")
        self._requires_grad = bool(value)


# The recorded twin of each ufunc that `_apply` is called with.
_OPERATORS: dict[np.ufunc, Any] = {
    np.add: operator.add,
    np.subtract: operator.sub,
    np.multiply: operator.mul,
    np.divide: operator.truediv,
}
