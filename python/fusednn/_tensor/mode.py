"""Whether ops are recorded: `no_grad` and its relatives."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextvars import ContextVar
from types import TracebackType
from typing import Any, ParamSpec, TypeVar, overload

P = ParamSpec("P")
R = TypeVar("R")

# One value per thread (and per asyncio task).
_mode: ContextVar[bool] = ContextVar("fusednn_grad_mode", default=True)
grad_enabled = _mode.get


def is_grad_enabled() -> bool:
    """True if ops on tensors that require grad are recorded in this thread.

    >>> import fusednn as fn
    >>> fn.is_grad_enabled()
    True
    """
    return grad_enabled()


class set_grad_enabled:
    """Turns recording on or off in this thread, inside a `with` block.

    >>> import fusednn as fn
    >>> with fn.set_grad_enabled(False):
    ...     fn.is_grad_enabled()
    False
    """

    __slots__ = ("_enabled", "_tokens")

    def __init__(self, mode: bool) -> None:
        self._enabled = bool(mode)
        self._tokens: list[bool] = []

    def __enter__(self) -> None:
        self._tokens.append(grad_enabled())
        _mode.set(self._enabled)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _mode.set(self._tokens.pop())


class _ModeDecorator(set_grad_enabled):
    """A `with` block, `@mode()` and plain `@mode` in one."""

    __slots__ = ()
    _value: bool

    @overload
    def __new__(cls, function: None = None) -> _ModeDecorator: ...
    @overload
    def __new__(cls, function: Callable[P, R]) -> Callable[P, R]: ...  # type: ignore[misc]
    def __new__(cls, function: Any = None) -> Any:
        self = object.__new__(cls)
        set_grad_enabled.__init__(self, cls._value)
        return self if function is None else self(function)

    def __init__(self, function: Any = None) -> None:
        pass

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        value = self._enabled

        @functools.wraps(function)
        def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
            before = grad_enabled()
            _mode.set(value)
            try:
                return function(*args, **kwargs)
            finally:
                _mode.set(before)

        return wrapped


class no_grad(_ModeDecorator):
    """Nothing is recorded inside: a `with` block or a decorator; for this thread alone.

    >>> import fusednn as fn
    >>> w = fn.tensor([1.0], requires_grad=True)
    >>> with fn.no_grad():
    ...     (w * 2).requires_grad
    False
    """

    __slots__ = ()
    _value = False


class enable_grad(_ModeDecorator):
    """Recording is on inside, also within `no_grad`: a `with` block or a decorator.

    >>> import fusednn as fn
    >>> with fn.no_grad(), fn.enable_grad():
    ...     fn.is_grad_enabled()
    True
    """

    __slots__ = ()
    _value = True
