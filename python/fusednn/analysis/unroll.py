"""Recurrent layers run step by step, so that the gradient of every state can be seen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from .. import functional as F
from .. import nn
from .._tensor.mode import no_grad
from .._tensor.shape import cat, stack
from .._tensor.tape import Array, raw
from ..nn.recurrent import _Stack
from ..nn.recurrent_cells import _Cell
from ..nn.utils.rnn import PackedSequence

# By label and time step: the state, and the sequences (of the batch) that have not ended there.
States = dict[str, list[tuple[Any, Array | None]]]

_RUNS = {
    kind._run: function for kind, function in ((nn.RNN, F.rnn), (nn.LSTM, F.lstm), (nn.GRU, F.gru))
}
_CELL_FORWARDS = (nn.RNNCell.forward, nn.LSTMCell.forward, nn.GRUCell.forward)


@contextmanager
def unrolling(model: nn.Module) -> Iterator[States]:
    """Inside the block the model's RNN, LSTM and GRU layers run in single steps, and their states
    and those of cells keep their gradients; they are collected in what this yields.

    They run without their dropout. Modules whose class has a forward of its own, and calls with a
    PackedSequence, run as they are.
    """
    states: States = {}
    changed: list[nn.Module] = []
    try:
        for name, module in model.named_modules():
            forward = type(module).forward
            label = name or type(module).__name__
            if isinstance(module, _Stack) and _runs_as_known(type(module)):
                module.__dict__["forward"] = _in_steps(module, label, states)
            elif isinstance(module, _Cell) and forward in _CELL_FORWARDS:
                module.__dict__["forward"] = _watched(module, label, states)
            else:
                continue
            changed.append(module)
        yield states
    finally:
        for module in changed:
            del module.__dict__["forward"]


def _runs_as_known(kind: type[_Stack]) -> bool:
    return kind.forward is _Stack.forward and kind._run in _RUNS


def _note(states: States, label: str, parts: Sequence[Any], running: Array | None = None) -> None:
    for name, part in zip((label, f"{label}.c"), parts, strict=False):
        if part.requires_grad:  # not where parameters are frozen
            part.retain_grad()
        states.setdefault(name, []).append((part, running))


def _watched(module: _Cell, label: str, states: States) -> Any:
    inner = type(module).forward

    def forward(input: Any, state: Any = None) -> Any:
        out = inner(module, input, state)
        _note(states, label, out if isinstance(out, tuple) else (out,))
        return out

    return forward


def _in_steps(module: _Stack, name: str, states: States) -> Any:
    """The layer's forward in single steps."""
    inner = type(module).forward
    calls = 0

    def forward(input: Any, state: Any = None, *, lengths: Any = None) -> Any:
        nonlocal calls
        if isinstance(input, PackedSequence):
            return inner(module, input, state, lengths=lengths)
        calls += 1
        with no_grad():  # for its checks, and what they say
            inner(module, input, state, lengths=lengths)
        axis = 1 if module.batch_first and input.ndim == 3 else 0
        count = input.shape[axis]
        if count == 0:
            return inner(module, input, state, lengths=lengths)
        steps = [input[:, t] if axis else input[t] for t in range(count)]
        ends = None if lengths is None else np.asarray(raw(lengths))
        running = [None if ends is None else ends > t for t in range(count)]
        label = name if calls == 1 else f"{name}#{calls}"
        weights, last = module.all_weights, []
        directions = len(weights) // module.num_layers
        for layer in range(module.num_layers):
            found = []
            for backwards in range(directions):
                i = layer * directions + backwards
                start = None if state is None else _part(state, i)
                one = _direction(module, steps, start, weights[i], running, bool(backwards))
                whose = label if layer == module.num_layers - 1 else f"{label}.l{layer}"
                for parts, rows in zip(one, running, strict=True):
                    _note(states, f"{whose}.reverse" if backwards else whose, parts, rows)
                last.append(one[0 if backwards else -1])
                found.append(one)
            steps = [_output(at, rows) for *at, rows in zip(*found, running, strict=True)]
        h, *c = (cat(list(part)) for part in zip(*last, strict=True))
        return stack(steps, axis), (h, *c) if c else h

    return forward


def _part(state: Any, i: int) -> Any:
    """The state that layer and direction number i begin with."""
    several = isinstance(state, (tuple, list))
    return tuple(_part(one, i) for one in state) if several else state[i : i + 1]


def _direction(
    module: _Stack,
    steps: list[Any],
    state: Any,
    weights: list[Any],
    running: list[Array | None],
    backwards: bool,
) -> list[tuple[Any, ...]]:
    """The states (h,) or (h, c), each (1, N, H), after every step, in the order of time."""
    function: Any = _RUNS[type(module)._run]
    options = {"nonlinearity": module.nonlinearity} if isinstance(module, nn.RNN) else {}
    found: list[tuple[Any, ...]] = []
    times = range(len(steps))
    for t in reversed(times) if backwards else times:
        rows = running[t]
        # A sequence of length 0 keeps its state, and what stands there is never read.
        lengths = None if rows is None else rows.astype(np.int64)
        step = steps[t][None]
        _, state = function(step, state, weights, lengths=lengths, **options)
        found.append(state if isinstance(state, tuple) else (state,))
    return found[::-1] if backwards else found


def _output(directions: Sequence[Any], running: Array | None) -> Any:
    """What a layer gives at one step. The states themselves go on: their gradient is then the
    whole one."""
    h = cat([parts[0][0] for parts in directions], -1)
    return h if running is None else h * running[:, None].astype(raw(h).dtype)


__all__ = ["States", "unrolling"]
