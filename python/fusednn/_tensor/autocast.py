"""`autocast`: products of float32 tensors in 16 bits, and what the ops ask of it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextvars import ContextVar
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

import numpy as np
from numpy import ndarray

from .. import _core
from .device import as_cupy, dtype_named, is_float, is_half, moved, on_gpu
from .tape import SHARED, Gradients, Node, TensorBase, record

P = ParamSpec("P")
R = TypeVar("R")


class _State:
    """What holds inside one `autocast`: the dtype, and parameters that were cast to it."""

    __slots__ = ("casts", "dtype")

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self.dtype = dtype
        # By the tensor's id: itself, its array and memory's version when it was cast, the result.
        self.casts: dict[int, tuple[Any, Any, int, Any]] = {}


# One value per thread (and per asyncio task); None: everything in the tensors' own dtypes.
_state: ContextVar[_State | None] = ContextVar("fusednn_autocast", default=None)
autocasting = _state.get


class autocast:
    """Inside, products take float32 tensors on a GPU as 16-bit floats: a `with` block or decorator.

    dtype is "bfloat16" or "float16". Linear, recurrent and locally connected layers, matrix
    products, convolutions and attention cast their float32 arguments and give 16-bit results;
    softmax, losses and normalisations cast what is 16 bits back to float32, and so does arithmetic
    of both; the rest takes what comes. Parameters stay float32, and so do their gradients; each is
    cast once, until it changes or the block ends. float64 stays as it is. enabled=False turns an
    outer autocast off. For this thread alone; blocks nest. With "float16", small gradients vanish:
    scale the loss by `optim.GradScaler`.

    The CPU has no 16-bit kernels: RuntimeError where there is no GPU, NotImplementedError where a
    product's arguments are on the CPU.

    Micikevicius et al., "Mixed Precision Training", ICLR 2018.

    >>> import fusednn as fn
    >>> with fn.autocast("bfloat16", enabled=False):
    ...     fn.matmul(fn.ones(2, 3), fn.ones(3)).dtype
    dtype('float32')
    """

    __slots__ = ("_enabled", "_name", "_tokens")

    def __init__(self, dtype: Any = "bfloat16", *, enabled: bool = True) -> None:
        name = getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or dtype
        if name not in ("bfloat16", "float16"):
            raise ValueError(f"autocast: dtype {dtype!r}, expected 'bfloat16' or 'float16'")
        self._name = str(name)
        self._enabled = bool(enabled)
        self._tokens: list[Any] = []

    def __enter__(self) -> None:
        outer = autocasting()
        state = None
        if self._enabled:
            if not _core.has_cuda():
                raise RuntimeError(
                    f"autocast: 16-bit floats are computed on GPUs only, and there is none: "
                    f"{_core.cuda_status()}; use enabled=False"
                )
            dtype = dtype_named(self._name)
            state = outer if outer is not None and outer.dtype == dtype else _State(dtype)
        self._tokens.append(_state.set(state))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _state.reset(self._tokens.pop())

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        if not callable(function) or isinstance(function, type):
            raise TypeError(f"autocast: can decorate functions alone, got {function!r}")

        @functools.wraps(function)
        def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
            with autocast(self._name, enabled=self._enabled):
                return function(*args, **kwargs)

        return wrapped


def is_autocast_enabled() -> bool:
    """True inside an `autocast` of this thread that is enabled.

    >>> import fusednn as fn
    >>> fn.is_autocast_enabled()
    False
    """
    return autocasting() is not None


# ---- casts ---------------------------------------------------------------------------------------


def cast_array(array: Any, dtype: np.dtype[Any]) -> Any:
    """The array in another float dtype; a kernel's work between float32 and 16 bits on a GPU."""
    own = array.dtype
    if type(array) is not ndarray and (
        (own.char == "f" and is_half(dtype)) or (dtype.char == "f" and is_half(own))
    ):
        return _core.cast(array, dtype.name)
    return array.astype(dtype)


def cast(value: TensorBase, dtype: np.dtype[Any]) -> Any:
    """A Tensor of floats in another dtype, recorded."""
    data = value._data
    return record(cast_array(data, dtype), _cast_backward, (value,), (), (data.dtype,))


def _cast_backward(node: Node, grad: Any) -> Gradients:
    return (cast_array(grad, node.saved[0]),)


def to_backward(node: Node, grad: Any) -> Gradients:
    """The gradient of `Tensor.to`: back in the dtype and on the device it came from."""
    dtype, device = node.saved
    if not dtype.isnative:
        dtype = dtype.newbyteorder("=")
    grad = moved("to", grad, device)
    return (grad if grad.dtype == dtype else cast_array(grad, dtype),)


# What changes the dtype of a gradient.
CASTS = (_cast_backward, to_backward)


def _narrow(op: str, state: _State, value: Any) -> Any:
    """An argument of a product in the state's dtype."""
    array = value._data if isinstance(value, TensorBase) else value
    if type(array) is ndarray:
        if array.dtype.kind != "f":
            return value
        raise NotImplementedError(
            f"{op}: autocast({state.dtype.name!r}) has no kernels for the CPU, and an argument is "
            "there; move it to the GPU, or use autocast(enabled=False)"
        )
    if value is None or not on_gpu(array):
        return value
    if array is value:
        array = as_cupy(array)
        return cast_array(array, state.dtype) if _to_cast(array.dtype, state.dtype) else value
    if not _to_cast(array.dtype, state.dtype):
        return value
    memory = value._memory
    if value._node is not None or not value._requires_grad or memory[1] == SHARED:
        return cast(value, state.dtype)
    # A leaf with gradients: a parameter, which is used again and again.
    found = state.casts.get(id(value))
    if found is None or found[0] is not value or found[1] is not array or found[2] != memory[0]:
        found = (value, array, memory[0], cast_array(array, state.dtype))
        state.casts[id(value)] = found
    return record(found[3], _cast_backward, (value,), (), (array.dtype,))


def _to_cast(own: np.dtype[Any], dtype: np.dtype[Any]) -> bool:
    return own != dtype and (own.char == "f" or is_half(own))


def narrowed(op: str, *values: Any) -> tuple[Any, ...]:
    """The arguments of a product as autocast, which must be active, has them."""
    state = autocasting()
    assert state is not None
    return tuple(_narrow(op, state, value) for value in values)


def _widen(value: Any) -> Any:
    if isinstance(value, TensorBase):
        return cast(value, np.dtype(np.float32)) if is_half(value._data.dtype) else value
    if value is not None and on_gpu(value):
        array = as_cupy(value)
        return cast_array(array, np.dtype(np.float32)) if is_half(array.dtype) else value
    return value


def widened(*values: Any) -> tuple[Any, ...]:
    """Arguments of what autocast, which must be active, computes in float32."""
    return tuple(_widen(value) for value in values)


def common_half(*values: Any) -> Any:
    """The 16-bit dtype that all of these have, on a GPU, or None."""
    found = None
    for value in values:
        array = value._data if isinstance(value, TensorBase) else value
        if type(array) is ndarray or not on_gpu(array):
            return None
        dtype = as_cupy(array).dtype
        if not is_half(dtype) or found not in (None, dtype):
            return None
        found = dtype
    return found


def in_float32(*names: str, rounded: bool = False) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorates what is computed in float32, as losses are: its first arguments, `names`, are
    widened where all are of one 16-bit dtype, and inside autocast. rounded: what it gives is
    rounded to that dtype."""
    count = len(names)

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            given = (*args[:count], *[kwargs[name] for name in names if name in kwargs])
            half = common_half(*given)
            if half is None and autocasting() is None:
                return function(*args, **kwargs)
            for name in names:
                if name in kwargs:
                    (kwargs[name],) = widened(kwargs[name])
            out: Any = function(*widened(*args[:count]), *args[count:], **kwargs)
            if half is None or not rounded:
                return out
            return cast(out, half) if isinstance(out, TensorBase) else cast_array(out, half)

        return wrapped

    return decorate


def both_float(a: Any, b: Any) -> bool:
    """Are these a 16-bit and a float32 operand, or two 16-bit ones, inside autocast?"""
    if autocasting() is None:
        return False
    kinds = [one._data.dtype if isinstance(one, TensorBase) else one.dtype for one in (a, b)]
    return all(is_float(one) and one.char != "d" for one in kinds) and kinds[0] != kinds[1]


__all__ = ["autocast", "is_autocast_enabled"]
