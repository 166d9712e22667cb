"""The one-cycle schedule, and the one that watches a metric."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ..optimizer import Group, Optimizer
from .simple import LRScheduler, require


class OneCycleLR(LRScheduler):
    """Up to max_lr and down far below the start, with momentum moving the other way.

    Rises from max_lr / div_factor in the first pct_start of total_steps updates and falls to
    max_lr / (div_factor * final_div_factor). Smith, Topin, "Super-convergence", 2018.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        max_lr: float | Sequence[float],
        total_steps: int | None = None,
        epochs: int | None = None,
        steps_per_epoch: int | None = None,
        pct_start: float = 0.3,
        anneal_strategy: str = "cos",
        cycle_momentum: bool = True,
        base_momentum: float = 0.85,
        max_momentum: float = 0.95,
        div_factor: float = 25.0,
        final_div_factor: float = 1e4,
        three_phase: bool = False,
        last_epoch: int = -1,
    ) -> None:
        if total_steps is None:
            if epochs is None or steps_per_epoch is None:
                raise ValueError("OneCycleLR: give total_steps, or epochs and steps_per_epoch")
            total_steps = epochs * steps_per_epoch
        require("OneCycleLR", "total_steps", total_steps, 1)
        if not 0 <= pct_start <= 1:
            raise ValueError(f"OneCycleLR: pct_start={pct_start}, expected a number in [0, 1]")
        if anneal_strategy not in ("cos", "linear"):
            raise ValueError(
                f"OneCycleLR: anneal_strategy={anneal_strategy!r}, expected 'cos' or 'linear'"
            )
        groups = optimizer.param_groups
        tops = [max_lr] * len(groups) if isinstance(max_lr, (int, float)) else list(max_lr)
        if len(tops) != len(groups):
            raise ValueError(f"OneCycleLR: {len(tops)} values of max_lr, expected {len(groups)}")
        self.total_steps = total_steps
        self.linear = anneal_strategy == "linear"
        self.cycle_momentum = cycle_momentum
        self.max_lrs = [float(top) for top in tops]
        self.div_factor, self.final_div_factor = div_factor, final_div_factor
        self.momenta = [base_momentum, max_momentum]
        up = float(pct_start * total_steps) - 1
        self.ends = (
            [up, 2 * pct_start * total_steps - 2, total_steps - 1.0]
            if three_phase
            else [up, total_steps - 1.0]
        )
        if cycle_momentum and not all("momentum" in g or "betas" in g for g in groups):
            raise ValueError("OneCycleLR: cycle_momentum needs an optimiser with momentum or betas")
        if last_epoch == -1:
            for group, top in zip(groups, self.max_lrs, strict=True):
                group["initial_lr"] = top / div_factor
        super().__init__(optimizer, last_epoch)

    def _levels(self, index: int) -> tuple[list[float], list[float]]:
        """Rates and momenta at the ends of the phases."""
        top = self.max_lrs[index]
        low = top / self.div_factor
        last = low / self.final_div_factor
        base, high = self.momenta
        if len(self.ends) == 3:
            return [low, top, low, last], [high, base, high, high]
        return [low, top, last], [high, base, high]

    def _between(self, start: float, end: float, part: float) -> float:
        if self.linear:
            return start + (end - start) * part
        return end + (start - end) / 2 * (1 + math.cos(math.pi * part))

    def _first_lr(self, index: int, lr: float) -> float:
        return self._next_lr(index, lr)

    def _next_lr(self, index: int, lr: float) -> float:
        k = self.last_epoch
        if k > self.total_steps:
            raise ValueError(f"OneCycleLR: step {k} of a schedule of {self.total_steps} steps")
        rates, momenta = self._levels(index)
        start = 0.0
        for phase, end in enumerate(self.ends):
            if k <= end or phase == len(self.ends) - 1:
                part = (k - start) / (end - start) if end != start else 1.0
                if self.cycle_momentum:
                    value = self._between(momenta[phase], momenta[phase + 1], part)
                    _set_momentum(self.optimizer.param_groups[index], value)
                return self._between(rates[phase], rates[phase + 1], part)
            start = end
        raise AssertionError("unreachable")


def _set_momentum(group: Group, value: float) -> None:
    if "betas" in group:
        group["betas"] = (value, *group["betas"][1:])
    else:
        group["momentum"] = value


class ReduceLROnPlateau(LRScheduler):
    """The rate times factor when a metric has not improved for more than patience steps.

    `step(metric)` takes the metric; mode says whether smaller ("min") or larger is better.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        mode: str = "min",
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        threshold_mode: str = "rel",
        cooldown: int = 0,
        min_lr: float | Sequence[float] = 0.0,
        eps: float = 1e-8,
    ) -> None:
        if not 0 <= factor < 1:
            raise ValueError(f"ReduceLROnPlateau: factor={factor}, expected a number in [0, 1)")
        if mode not in ("min", "max"):
            raise ValueError(f"ReduceLROnPlateau: mode={mode!r}, expected 'min' or 'max'")
        if threshold_mode not in ("rel", "abs"):
            raise ValueError(
                f"ReduceLROnPlateau: threshold_mode={threshold_mode!r}, expected 'rel' or 'abs'"
            )
        groups = len(optimizer.param_groups)
        lows = [min_lr] * groups if isinstance(min_lr, (int, float)) else list(min_lr)
        if len(lows) != groups:
            raise ValueError(f"ReduceLROnPlateau: {len(lows)} values of min_lr, expected {groups}")
        self.mode, self.factor, self.patience = mode, factor, patience
        self.threshold, self.threshold_mode = threshold, threshold_mode
        self.cooldown, self.eps = cooldown, eps
        self.min_lrs = [float(low) for low in lows]
        self.best = math.inf if mode == "min" else -math.inf
        self.num_bad_epochs = 0
        self.cooldown_counter = 0
        super().__init__(optimizer)

    def _improved(self, value: float) -> bool:
        margin = self.threshold * (abs(self.best) if self.threshold_mode == "rel" else 1)
        if math.isinf(self.best):
            return value < self.best if self.mode == "min" else value > self.best
        return value < self.best - margin if self.mode == "min" else value > self.best + margin

    def step(self, metrics: Any = None) -> None:
        """Takes the metric of this epoch (a number or a Tensor of one element)."""
        if metrics is None:
            raise TypeError("ReduceLROnPlateau: step needs the metric")
        value = float(metrics)
        self.last_epoch += 1
        if self._improved(value):
            self.best, self.num_bad_epochs = value, 0
        else:
            self.num_bad_epochs += 1
        if self.cooldown_counter > 0:
            self.cooldown_counter -= 1
            self.num_bad_epochs = 0
        rates = [group["lr"] for group in self.optimizer.param_groups]
        if self.num_bad_epochs > self.patience:
            lower = [
                max(rate * self.factor, low) for rate, low in zip(rates, self.min_lrs, strict=True)
            ]
            rates = [
                new if old - new > self.eps else old for old, new in zip(rates, lower, strict=True)
            ]
            self.cooldown_counter, self.num_bad_epochs = self.cooldown, 0
        self._set(rates)
