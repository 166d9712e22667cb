"""Averages of the weights over training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from .. import _core
from .._tensor.device import is_half
from .._tensor.tape import Array, TensorBase, raw
from .optimizer import alike


class EMA:
    """An exponential moving average of parameters: average = d * average + (1 - d) * weights.

    `update()` is called after each `optimizer.step()`; inside `with ema.averaged():` the parameters
    hold the averages, for validation or saving. Update k (from 0 on) uses
    d = min(decay, (1 + k) / (10 + k)), so that the first averages do not hang on to the initial
    weights. params: Parameters (or Tensors), or (name, parameter) pairs; state is keyed by the name
    of the pair, else the one that `Module.parameters()` gave, else the position. Buffers, as those
    of batch norm, are not averaged. ValueError for a decay outside [0, 1). Polyak, Juditsky,
    "Acceleration of stochastic approximation by averaging", 1992.

    >>> import fusednn as fn
    >>> w = fn.tensor([1.0], requires_grad=True)
    >>> ema = fn.optim.EMA([w], decay=0.5)
    >>> fn.optim.SGD([("w", w)], lr=0.1).step()
    >>> ema.update()
    >>> with ema.averaged():
    ...     w.item()
    1.0
    """

    def __init__(self, params: Any, decay: float = 0.999) -> None:
        if not 0 <= decay < 1:
            raise ValueError(f"EMA: decay={decay}, expected a number in [0, 1)")
        self.decay = float(decay)
        self.updates = 0
        self._parameters: dict[str, TensorBase] = {}
        for i, member in enumerate(params):
            pair = isinstance(member, tuple) and len(member) == 2
            name, parameter = member if pair else (getattr(member, "name", None), member)
            if not isinstance(parameter, TensorBase):
                raise TypeError(f"EMA: params must hold Tensors, got {type(parameter).__name__}")
            if name is None or name in self._parameters:
                name = f"#{i}"
            self._parameters[name] = parameter
        if not self._parameters:
            raise ValueError("EMA: params is empty, there is nothing to average")
        self._averages = {name: p._data.copy() for name, p in self._parameters.items()}

    def update(self) -> None:
        """Takes in the parameters as they are now."""
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        self.updates += 1
        fresh = 1 - decay
        # average += (1 - d) * (weights - average) loses less than two products.
        pairs = []
        for name, average in self._averages.items():
            weights = self._parameters[name]._data
            if not is_half(average.dtype) and average.dtype.isnative:
                pairs.append((average, weights))
                continue
            difference = weights - average
            difference *= fresh
            average += difference
        for some in alike(pairs, lambda pair: pair[0]):
            # That is gradient ascent on weights - average: one kernel for all of them.
            averages, values = [list(column) for column in zip(*some, strict=True)]
            first = [False] * len(averages)
            _core.sgd_step(averages, values, None, first, fresh, 0.0, 0.0, 1.0, False, True)

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """The parameters hold the averages inside, and what they held before after it."""
        before = {name: p._data.copy() for name, p in self._parameters.items()}
        self._fill(self._averages)
        try:
            yield
        finally:
            self._fill(before)

    def _fill(self, values: Mapping[str, Array]) -> None:
        for name, parameter in self._parameters.items():
            parameter._data[...] = values[name]
            parameter._memory[0] += 1

    def state_dict(self) -> dict[str, Any]:
        """Copies of all averages by name, the decay, and the number of updates."""
        averages = {name: average.copy() for name, average in self._averages.items()}
        return {"decay": self.decay, "updates": self.updates, "averages": averages}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Goes on where `state_dict` was called; ValueError, and nothing has changed, if it is of
        other parameters or of another decay."""
        try:
            decay, updates = state_dict["decay"], state_dict["updates"]
            averages = {name: raw(value) for name, value in state_dict["averages"].items()}
        except (KeyError, TypeError, AttributeError):
            raise ValueError("EMA: load_state_dict expects what state_dict() gave") from None
        if decay != self.decay:
            raise ValueError(f"EMA: decay of the state is {decay!r}, here it is {self.decay}")
        if type(updates) is not int or not 0 <= updates < 1 << 53:
            raise ValueError(f"EMA: updates of the state is {updates!r}, expected a count")
        if set(averages) != set(self._averages):
            odd = sorted(set(averages) ^ set(self._averages))
            raise ValueError(f"EMA: the state is of other parameters: {', '.join(map(str, odd))}")
        for name, own in self._averages.items():
            value = averages[name]
            if not isinstance(value, np.ndarray) or value.dtype.kind != "f":
                raise ValueError(f"EMA: {name} of the state is not an array of floats")
            if value.shape != own.shape:
                raise ValueError(
                    f"EMA: {name} of the state has shape {value.shape}, expected {own.shape}"
                )
        for name, own in self._averages.items():
            own[...] = averages[name]
        self.updates = updates

    def __repr__(self) -> str:
        return f"EMA(decay={self.decay}, {len(self._averages)} parameters, {self.updates} updates)"


__all__ = ["EMA"]
