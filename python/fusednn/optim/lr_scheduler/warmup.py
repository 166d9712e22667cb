"""Schedules that rise to the rate in their first updates."""

from __future__ import annotations

import math

from ..optimizer import Optimizer
from .simple import LRScheduler, require


class LinearWarmup(LRScheduler):
    """base * (k + 1) / total_iters at update k < total_iters, then the rate as it is.

    The first update is not 0 and update total_iters - 1 uses base exactly: for 4 the factors are
    0.25, 0.5, 0.75, 1, 1, ... Goyal et al., "Accurate, large minibatch SGD", 2017 (section 2.2).

    >>> import fusednn as fn
    >>> from fusednn.optim import SGD, lr_scheduler
    >>> optimizer = SGD([fn.zeros(1, requires_grad=True)], lr=1.0)
    >>> schedule, rates = lr_scheduler.LinearWarmup(optimizer, 4), []
    >>> for _ in range(5):
    ...     rates += schedule.get_last_lr()
    ...     schedule.step()
    >>> rates
    [0.25, 0.5, 0.75, 1.0, 1.0]
    """

    def __init__(self, optimizer: Optimizer, total_iters: int, last_epoch: int = -1) -> None:
        require("LinearWarmup", "total_iters", total_iters, 0)
        self.total_iters = total_iters
        super().__init__(optimizer, last_epoch)

    def _first_lr(self, index: int, lr: float) -> float:
        return self._next_lr(index, lr)

    def _next_lr(self, index: int, lr: float) -> float:
        return self._warm(index) if self.last_epoch < self.total_iters else lr

    def _warm(self, index: int) -> float:
        done = self.last_epoch + 1
        base = self.base_lrs[index]
        return base if done == self.total_iters else base * done / self.total_iters


class InverseSqrtLR(LRScheduler):
    """A linear warm-up to the rate, then down with the root of the updates.

    base * (k + 1) / N at update k < N = warmup_iters, then base * sqrt(N / (k + 1)); update N - 1
    uses base exactly. Vaswani et al., "Attention is all you need", NeurIPS 2017 (section 5.3, where
    base is (d_model * N)**-0.5).

    >>> import fusednn as fn
    >>> from fusednn.optim import SGD, lr_scheduler
    >>> optimizer = SGD([fn.zeros(1, requires_grad=True)], lr=1.0)
    >>> schedule, rates = lr_scheduler.InverseSqrtLR(optimizer, 2), []
    >>> for _ in range(8):
    ...     rates += schedule.get_last_lr()
    ...     schedule.step()
    >>> rates[0], rates[1], rates[7]
    (0.5, 1.0, 0.5)
    """

    def __init__(self, optimizer: Optimizer, warmup_iters: int, last_epoch: int = -1) -> None:
        require("InverseSqrtLR", "warmup_iters", warmup_iters, 1)
        self.warmup_iters = warmup_iters
        super().__init__(optimizer, last_epoch)

    def _factor(self) -> float:
        done, warm = self.last_epoch + 1, self.warmup_iters
        return done / warm if done <= warm else math.sqrt(warm / done)

    def _first_lr(self, index: int, lr: float) -> float:
        return lr * self._factor()

    def _next_lr(self, index: int, lr: float) -> float:
        return self.base_lrs[index] * self._factor()
