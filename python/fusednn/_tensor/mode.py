"""Whether ops are recorded: `no_grad` and its relatives."""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator
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
    """Turns recording on or off in this thread, inside a `with` block or a decorated function.

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

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        if not callable(function) or isinstance(function, type):
            raise TypeError(
                f"{type(self).__name__}: can decorate functions alone, got {function!r}"
            )
        return _decorated(function, self._enabled)


def _decorated(function: Callable[P, R], value: bool) -> Callable[P, R]:
    """function with the mode `value` whenever it runs.

    A generator runs in pieces, and what runs between them has a mode of its own.
    """
    import inspect

    wrapped: Any
    if inspect.isgeneratorfunction(function):

        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            return _resumed(function(*args, **kwargs), value)

    elif inspect.isasyncgenfunction(function):

        @functools.wraps(function)
        async def wrapped(*args: Any, **kwargs: Any) -> Any:
            generator = function(*args, **kwargs)
            try:
                while True:
                    with set_grad_enabled(value):
                        try:
                            item = await generator.__anext__()
                        except StopAsyncIteration:
                            return
                    yield item
            finally:
                await generator.aclose()

    elif inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def wrapped(*args: Any, **kwargs: Any) -> Any:
            with set_grad_enabled(value):
                return await function(*args, **kwargs)

    else:

        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            before = grad_enabled()
            _mode.set(value)
            try:
                return function(*args, **kwargs)
            finally:
                _mode.set(before)

    return wrapped  # type: ignore[no-any-return]


def _resumed(generator: Generator[Any, Any, R], value: bool) -> Generator[Any, Any, R]:
    """What the generator yields, with the mode `value` while it runs."""

    def resume(method: Callable[..., Any], *args: Any) -> Any:
        with set_grad_enabled(value):
            return method(*args)

    try:
        item = resume(generator.send, None)
        while True:
            try:
                sent = yield item
            except GeneratorExit:
                resume(generator.close)
                raise
            except BaseException as error:
                item = resume(generator.throw, error)
            else:
                item = resume(generator.send, sent)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


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


class no_grad(_ModeDecorator):
    """Nothing is recorded inside: a `with` block or a decorator; for this thread alone.

    A decorated generator or coroutine has it while it runs, not what runs between.

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
