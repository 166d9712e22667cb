"""The schedule that goes up and down again and again."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from ..optimizer import Optimizer
from .adaptive import _set_momentum
from .simple import LRScheduler, require, require_number

_MODES = ("triangular", "triangular2", "exp_range")


class CyclicLR(LRScheduler):
    """From base_lr up to max_lr in step_size_up updates, down in step_size_down, and so on.

    mode: "triangular" keeps the height, "triangular2" halves it after every cycle, "exp_range"
    scales it by gamma**k at update k. scale_fn takes its place, called with the cycle's number
    (from 1) or, for scale_mode="iterations", the update's. Momentum moves the other way, from
    max_momentum to base_momentum. Smith, "Cyclical learning rates for training neural networks",
    WACV 2017.

    >>> import fusednn as fn
    >>> from fusednn.optim import SGD, lr_scheduler
    >>> optimizer = SGD([fn.zeros(1, requires_grad=True)], lr=1.0, momentum=0.9)
    >>> schedule, rates = lr_scheduler.CyclicLR(optimizer, 0.0, 1.0, step_size_up=2), []
    >>> for _ in range(5):
    ...     rates += schedule.get_last_lr()
    ...     schedule.step()
    >>> rates
    [0.0, 0.5, 1.0, 0.5, 0.0]
    """

    def __init__(
        self,
        optimizer: Optimizer,
        base_lr: float | Sequence[float],
        max_lr: float | Sequence[float],
        step_size_up: int = 2000,
        step_size_down: int | None = None,
        mode: str = "triangular",
        gamma: float = 1.0,
        scale_fn: Callable[[int], float] | None = None,
        scale_mode: str = "cycle",
        cycle_momentum: bool = True,
        base_momentum: float = 0.8,
        max_momentum: float = 0.9,
        last_epoch: int = -1,
    ) -> None:
        require("CyclicLR", "step_size_up", step_size_up, 1)
        step_size_down = step_size_up if step_size_down is None else step_size_down
        require("CyclicLR", "step_size_down", step_size_down, 1)
        require_number("CyclicLR", "gamma", gamma)
        if scale_fn is None and mode not in _MODES:
            raise ValueError(f"CyclicLR: mode={mode!r}, expected one of {', '.join(_MODES)}")
        if scale_mode not in ("cycle", "iterations"):
            raise ValueError(
                f"CyclicLR: scale_mode={scale_mode!r}, expected 'cycle' or 'iterations'"
            )
        groups = optimizer.param_groups
        if cycle_momentum and not all("momentum" in g or "betas" in g for g in groups):
            raise ValueError("CyclicLR: cycle_momentum needs an optimiser with momentum or betas")
        self.low = _one_each("base_lr", base_lr, len(groups))
        self.high = _one_each("max_lr", max_lr, len(groups))
        self.step_size_up, self.step_size_down = step_size_up, step_size_down
        self.mode, self.gamma = mode, gamma
        self._f_scale = scale_fn
        self.scale_mode = scale_mode if scale_fn is not None else "cycle"
        self.cycle_momentum = cycle_momentum
        self.momenta = [base_momentum, max_momentum]
        if last_epoch == -1:
            for group, low in zip(groups, self.low, strict=True):
                group["initial_lr"] = low
        super().__init__(optimizer, last_epoch)

    def _scale(self, cycle: int) -> float:
        if self._f_scale is not None:
            return self._f_scale(cycle if self.scale_mode == "cycle" else self.last_epoch)
        if self.mode == "triangular":
            return 1.0
        return 0.5 ** (cycle - 1) if self.mode == "triangular2" else self.gamma**self.last_epoch

    def _first_lr(self, index: int, lr: float) -> float:
        return self._next_lr(index, lr)

    def _next_lr(self, index: int, lr: float) -> float:
        total = self.step_size_up + self.step_size_down
        cycle = math.floor(1 + self.last_epoch / total)
        at = self.last_epoch - (cycle - 1) * total
        up = at <= self.step_size_up
        height = at / self.step_size_up if up else (total - at) / self.step_size_down
        height *= self._scale(cycle)
        low, high = self.low[index], self.high[index]
        if self.cycle_momentum:
            base, top = self.momenta
            _set_momentum(self.optimizer.param_groups[index], top - (top - base) * height)
        return low + (high - low) * height


def _one_each(name: str, value: float | Sequence[float], groups: int) -> list[float]:
    values = [value] * groups if isinstance(value, (int, float)) else list(value)
    if len(values) != groups:
        raise ValueError(f"CyclicLR: {len(values)} values of {name}, expected {groups}")
    return [float(one) for one in values]
