"""Schedules made of schedules."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..optimizer import Optimizer
from .simple import LRScheduler


class _Combined(LRScheduler):
    """Schedules that hold schedules of one optimiser."""

    def _take(self, schedulers: Iterable[LRScheduler], optimizer: Optimizer | None) -> None:
        self._f_schedulers = list(schedulers)
        owner = type(self).__name__
        if not self._f_schedulers:
            raise ValueError(f"{owner}: schedulers is empty")
        self.optimizer = self._f_schedulers[0].optimizer if optimizer is None else optimizer
        if any(one.optimizer is not self.optimizer for one in self._f_schedulers):
            raise ValueError(f"{owner}: all schedulers must change the same optimiser")
        self.base_lrs = [group["initial_lr"] for group in self.optimizer.param_groups]
        self.last_epoch = 0

    def _start(self, rates: list[float]) -> None:
        self.last_epoch = 0
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        self._start_inner()
        self._note_rates()

    def _start_inner(self) -> None:
        """Sets the rates of update 0 from those without this schedule."""
        raise NotImplementedError

    def _note_rates(self) -> None:
        self._last_lr = [group["lr"] for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        """Numbers of this schedule and of those it holds."""
        return {
            **super().state_dict(),
            "schedulers": [one.state_dict() for one in self._f_schedulers],
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Goes on where `state_dict` was called; see `LRScheduler.load_state_dict`."""
        inner = state_dict.get("schedulers") if isinstance(state_dict, Mapping) else None
        if not isinstance(inner, list) or len(inner) != len(self._f_schedulers):
            raise ValueError(f"{type(self).__name__}: the state is of other schedulers")
        before = self.state_dict()
        try:
            for one, saved in zip(self._f_schedulers, inner, strict=True):
                one.load_state_dict(saved)
            # The schedulers have taken theirs; what is compared here is the rest.
            super().load_state_dict({**state_dict, "schedulers": self.state_dict()["schedulers"]})
        except ValueError:
            for one, saved in zip(self._f_schedulers, before["schedulers"], strict=True):
                one.load_state_dict(saved)
            raise
        del self.__dict__["schedulers"]


class SequentialLR(_Combined):
    """One schedule after the other: number i + 1 starts, at its update 0, at milestones[i].

    >>> import fusednn as fn
    >>> from fusednn.optim import SGD, lr_scheduler
    >>> optimizer = SGD([fn.zeros(1, requires_grad=True)], lr=1.0)
    >>> warm = lr_scheduler.LinearWarmup(optimizer, 2)
    >>> fall = lr_scheduler.ExponentialLR(optimizer, 0.5)
    >>> schedule, rates = lr_scheduler.SequentialLR(optimizer, [warm, fall], [2]), []
    >>> for _ in range(4):
    ...     rates += schedule.get_last_lr()
    ...     schedule.step()
    >>> rates
    [0.5, 1.0, 1.0, 0.5]
    """

    def __init__(
        self,
        optimizer: Optimizer,
        schedulers: Iterable[LRScheduler],
        milestones: Sequence[int],
    ) -> None:
        self._take(schedulers, optimizer)
        self.milestones = list(milestones)
        if len(self.milestones) != len(self._f_schedulers) - 1:
            raise ValueError(
                f"SequentialLR: {len(self.milestones)} milestones for {len(self._f_schedulers)} "
                f"schedulers, expected {len(self._f_schedulers) - 1}"
            )
        if sorted(self.milestones) != self.milestones:
            raise ValueError(f"SequentialLR: milestones {self.milestones} must rise")
        # Making the schedules has moved the rates; only the first one counts now.
        self._start(self.base_lrs)

    def _start_inner(self) -> None:
        self._f_schedulers[0]._start(self.base_lrs)

    def step(self) -> None:
        """Moves on to the next update."""
        self._check_groups()
        self.last_epoch += 1
        at = bisect_right(self.milestones, self.last_epoch)
        chosen = self._f_schedulers[at]
        if at > 0 and self.milestones[at - 1] == self.last_epoch:
            chosen._start(self.base_lrs)
        else:
            chosen.step()
        self._note_rates()


class ChainedScheduler(_Combined):
    """Several schedules at once: each step lets each of them change the rate in turn."""

    def __init__(
        self, schedulers: Iterable[LRScheduler], optimizer: Optimizer | None = None
    ) -> None:
        self._take(schedulers, optimizer)
        self._note_rates()

    def _start_inner(self) -> None:
        for one in self._f_schedulers:
            one._start([group["lr"] for group in self.optimizer.param_groups])

    def step(self) -> None:
        """Moves on to the next update."""
        self.last_epoch += 1
        for one in self._f_schedulers:
            one.step()
        self._note_rates()
