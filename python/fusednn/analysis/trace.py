"""Running a model and seeing every module's call; afterwards the model is as it was."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray

from .._tensor.tape import TensorBase
from ..nn import Module


class Call(NamedTuple):
    """One call of a module: its dotted name, positional arguments and output."""

    name: str
    module: Module
    args: tuple[Any, ...]
    output: Any


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """The model in evaluation mode, so that looking changes no statistics and drops nothing."""
    modules = list(model.modules()) if isinstance(model, Module) else []
    modes = [module.training for module in modules]
    for module in modules:
        module.training = False
    try:
        yield
    finally:
        for module, mode in zip(modules, modes, strict=True):
            module.training = mode


@contextmanager
def watching(model: Module) -> Iterator[list[Call]]:
    """A list that grows by the calls of all modules with no modules, or parameters, of their own,
    in the order in which they end."""
    calls: list[Call] = []
    handles = []
    for name, module in model.named_modules():
        if any(module.children()) and next(module.parameters(recurse=False), None) is None:
            continue

        def note(module: Module, args: tuple[Any, ...], output: Any, name: str = name) -> None:
            calls.append(Call(name or type(module).__name__, module, args, output))

        handles.append(module.register_forward_hook(note))
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()


def inputs(op: str, x: Any, dtype: Any = None) -> tuple[Any, ...]:
    """The arguments of a call: x, or for a shape zeros; several of either as a list."""
    if isinstance(x, (ndarray, TensorBase)):
        return (x,)
    if isinstance(x, tuple) and all(hasattr(n, "__index__") for n in x):
        return (np.zeros(x, np.float32 if dtype is None else dtype),)
    if isinstance(x, list) and x:
        return tuple(one for part in x for one in inputs(op, part, dtype))
    raise TypeError(
        f"{op}: expected a shape (a tuple of ints), an array, or a list of these, got {x!r}"
    )


def first(output: Any) -> Any:
    """The tensor itself, or the first of several."""
    while isinstance(output, (tuple, list)) and output:
        output = output[0]
    return output


def named(calls: list[Call]) -> Iterator[tuple[str, Call]]:
    """The calls with names that differ: the second call of "a" is "a#2"."""
    count: dict[str, int] = {}
    for call in calls:
        count[call.name] = count.get(call.name, 0) + 1
        number = count[call.name]
        yield call.name if number == 1 else f"{call.name}#{number}", call
