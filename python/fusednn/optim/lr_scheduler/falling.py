"""Schedules that fall along a curve: cosines, once or again and again, and a power."""

from __future__ import annotations

import math

from ..optimizer import Optimizer
from .simple import LRScheduler, require, require_number


class CosineAnnealingLR(LRScheduler):
    """Half a cosine from the rate down to eta_min in T_max updates, then up again.

    Loshchilov, Hutter, "SGDR: stochastic gradient descent with warm restarts", ICLR 2017.
    """

    def __init__(
        self, optimizer: Optimizer, T_max: int, eta_min: float = 0.0, last_epoch: int = -1
    ) -> None:
        require("CosineAnnealingLR", "T_max", T_max, 1)
        self.T_max = T_max
        self.eta_min = eta_min
        super().__init__(optimizer, last_epoch)

    def _next_lr(self, index: int, lr: float) -> float:
        k, period = self.last_epoch, self.T_max
        if (k - 1 - period) % (2 * period) == 0:  # leaving the minimum, where the ratio is 0 / 0
            rise = self.base_lrs[index] - self.eta_min
            return lr + rise * (1 - math.cos(math.pi / period)) / 2
        now = 1 + math.cos(math.pi * k / period)
        before = 1 + math.cos(math.pi * (k - 1) / period)
        return now / before * (lr - self.eta_min) + self.eta_min


class CosineAnnealingWarmRestarts(LRScheduler):
    """Half a cosine from the rate down to eta_min in T_0 updates, then again from the rate on; each
    period is T_mult times as long as the one before.

    Loshchilov, Hutter, "SGDR: stochastic gradient descent with warm restarts", ICLR 2017.

    >>> import fusednn as fn
    >>> from fusednn.optim import SGD, lr_scheduler
    >>> optimizer = SGD([fn.zeros(1, requires_grad=True)], lr=1.0)
    >>> schedule = lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=2)
    >>> rates = []
    >>> for _ in range(4):
    ...     rates += schedule.get_last_lr()
    ...     schedule.step()
    >>> rates
    [1.0, 0.5, 1.0, 0.5]
    """

    def __init__(
        self,
        optimizer: Optimizer,
        T_0: int,
        T_mult: int = 1,
        eta_min: float = 0.0,
        last_epoch: int = -1,
    ) -> None:
        require("CosineAnnealingWarmRestarts", "T_0", T_0, 1)
        require("CosineAnnealingWarmRestarts", "T_mult", T_mult, 1)
        require_number("CosineAnnealingWarmRestarts", "eta_min", eta_min)
        self.T_0, self.T_mult = T_0, T_mult
        self.eta_min = eta_min
        super().__init__(optimizer, last_epoch)

    def _first_lr(self, index: int, lr: float) -> float:
        return self._next_lr(index, lr)

    def _next_lr(self, index: int, lr: float) -> float:
        at, period = self.last_epoch, self.T_0
        if self.T_mult == 1:
            at %= period
        while at >= period:
            at, period = at - period, period * self.T_mult
        height = (1 + math.cos(math.pi * at / period)) / 2
        return self.eta_min + (self.base_lrs[index] - self.eta_min) * height


class PolynomialLR(LRScheduler):
    """The rate times (1 - k / total_iters)**power at update k, 0 from update total_iters on.

    >>> import fusednn as fn
    >>> from fusednn.optim import SGD, lr_scheduler
    >>> optimizer = SGD([fn.zeros(1, requires_grad=True)], lr=1.0)
    >>> schedule = lr_scheduler.PolynomialLR(optimizer, total_iters=4, power=2.0)
    >>> schedule.step()
    >>> schedule.get_last_lr()
    [0.5625]
    """

    def __init__(
        self,
        optimizer: Optimizer,
        total_iters: int = 5,
        power: float = 1.0,
        last_epoch: int = -1,
    ) -> None:
        require("PolynomialLR", "total_iters", total_iters, 1)
        require_number("PolynomialLR", "power", power)
        self.total_iters = total_iters
        self.power = power
        super().__init__(optimizer, last_epoch)

    def _next_lr(self, index: int, lr: float) -> float:
        k, total = self.last_epoch, self.total_iters
        if k > total:
            return lr
        return float(lr * ((total - k) / (total - k + 1)) ** self.power)
