"""Schedules that are a formula of the update's number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ..optimizer import LARGEST, Optimizer


def require(owner: str, name: str, value: Any, low: float) -> None:
    """ValueError unless value is a number of at least `low`."""
    if not isinstance(value, (int, float)) or not value >= low:
        raise ValueError(f"{owner}: {name}={value}, expected a number >= {low}")


def require_number(owner: str, name: str, value: Any) -> None:
    """TypeError unless value is a number."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise TypeError(f"{owner}: {name} must be a number, got {type(value).__name__}")


class LRScheduler:
    """Base of the schedules: subclasses define `_next_lr`, and `_first_lr` if update 0 differs."""

    def __init__(self, optimizer: Optimizer, last_epoch: int = -1) -> None:
        if not isinstance(optimizer, Optimizer):
            raise TypeError(
                f"{type(self).__name__}: optimizer must be an Optimizer, got "
                f"{type(optimizer).__name__}"
            )
        self.optimizer = optimizer
        for group in optimizer.param_groups:
            if last_epoch == -1:
                group.setdefault("initial_lr", group["lr"])
            elif "initial_lr" not in group:
                raise ValueError(
                    f"{type(self).__name__}: last_epoch={last_epoch} resumes a schedule, but the "
                    "groups have no 'initial_lr'"
                )
        self.base_lrs: list[float] = [group["initial_lr"] for group in optimizer.param_groups]
        self.last_epoch = last_epoch
        if last_epoch == -1:
            self._start([group["lr"] for group in optimizer.param_groups])
        else:
            self.step()

    def _start(self, rates: list[float]) -> None:
        """Sets the rates of update 0, given those without this schedule."""
        self.last_epoch = 0
        self._set([self._first_lr(i, rate) for i, rate in enumerate(rates)])

    def _first_lr(self, index: int, lr: float) -> float:
        return lr

    def _next_lr(self, index: int, lr: float) -> float:
        """The rate at self.last_epoch >= 1 of a group whose rate was lr."""
        raise NotImplementedError

    def _set(self, rates: list[float]) -> None:
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        self._last_lr = rates

    def step(self) -> None:
        """Moves on to the next update."""
        groups = self.optimizer.param_groups
        self.last_epoch += 1
        try:
            rates = [self._next_lr(i, group["lr"]) for i, group in enumerate(groups)]
        except IndexError:
            self.last_epoch -= 1
            self._check_groups()
            raise
        self._set(rates)

    def _check_groups(self) -> None:
        """ValueError if the optimiser has got more groups."""
        found, expected = len(self.optimizer.param_groups), len(self.base_lrs)
        if found != expected:
            raise ValueError(
                f"{type(self).__name__}: the optimiser has {found} groups, but had {expected} when "
                "the schedule was made; make a new one after adding groups"
            )

    def get_last_lr(self) -> list[float]:
        """The rates that the last step set, one per group."""
        return list(self._last_lr)

    def state_dict(self) -> dict[str, Any]:
        """Numbers that `load_state_dict` takes; functions are not saved."""
        return {
            key: list(value) if isinstance(value, list) else value
            for key, value in self.__dict__.items()
            if key != "optimizer" and not key.startswith("_f_")
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Goes on where `state_dict` was called. The optimiser's own state holds its rates.

        ValueError unless the state is that of a schedule made with the same arguments; then nothing
        has changed.
        """
        own = self.state_dict()
        if not isinstance(state_dict, Mapping) or set(own) != set(state_dict):
            found = list(state_dict) if isinstance(state_dict, Mapping) else state_dict
            raise ValueError(f"{type(self).__name__}: the state has {found}, expected {list(own)}")
        for name, value in state_dict.items():
            problem = _misfit(name, own[name], value)
            if problem:
                raise ValueError(f"{type(self).__name__}: {name} of the state is {problem}")
        self.__dict__.update(state_dict)


_COUNTS = ("last_epoch", "num_bad_epochs", "cooldown_counter")
_RATES = ("base_lrs", "_last_lr")


def _misfit(name: str, own: Any, value: Any) -> str:
    """Why a loaded value cannot take the place of `own`; "" if it can."""
    if name in _COUNTS:
        whole = isinstance(value, int) and not isinstance(value, bool)
        return "" if whole and -1 <= value < 1 << 63 else f"{value!r}, expected a count"
    if name in _RATES:
        rates = isinstance(value, list) and len(value) == len(own)
        if not rates or not all(_is_rate(one) for one in value):
            return f"{value!r}, expected {len(own)} rates"
        return ""
    if name == "best":  # the metric: NaN and infinities are possible values
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return "" if number else f"{value!r}, expected a number"
    # What is left are the arguments that the schedule was made with.
    return "" if _same(value, own) else f"{value!r}, here it is {own!r}"


def _is_rate(value: Any) -> bool:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and abs(value) <= LARGEST


def _same(value: Any, own: Any) -> bool:
    if isinstance(own, Mapping):
        return isinstance(value, Mapping) and _same(list(value.items()), list(own.items()))
    if isinstance(own, (list, tuple)):
        fits = isinstance(value, (list, tuple)) and len(value) == len(own)
        return fits and all(_same(a, b) for a, b in zip(value, own, strict=True))
    return isinstance(value, (int, float, str, type(None))) and bool(value == own)


class LambdaLR(LRScheduler):
    """base * lr_lambda(k) at update k; one function, or one per group.

    >>> import fusednn as fn
    >>> from fusednn.optim import SGD, lr_scheduler
    >>> optimizer = SGD([fn.zeros(1, requires_grad=True)], lr=1.0)
    >>> schedule = lr_scheduler.LambdaLR(optimizer, lambda k: 0.5**k)
    >>> schedule.step()
    >>> schedule.get_last_lr()
    [0.5]
    """

    def __init__(
        self,
        optimizer: Optimizer,
        lr_lambda: Callable[[int], float] | Sequence[Callable[[int], float]],
        last_epoch: int = -1,
    ) -> None:
        groups = len(optimizer.param_groups)
        functions = [lr_lambda] * groups if callable(lr_lambda) else list(lr_lambda)
        if len(functions) != groups:
            raise ValueError(f"LambdaLR: {len(functions)} functions, expected {groups}")
        self._f_lambdas = functions
        super().__init__(optimizer, last_epoch)

    def _first_lr(self, index: int, lr: float) -> float:
        return self.base_lrs[index] * self._f_lambdas[index](self.last_epoch)

    def _next_lr(self, index: int, lr: float) -> float:
        return self._first_lr(index, lr)


class MultiplicativeLR(LambdaLR):
    """The rate times lr_lambda(k) at every update k >= 1."""

    def _first_lr(self, index: int, lr: float) -> float:
        return lr

    def _next_lr(self, index: int, lr: float) -> float:
        return lr * self._f_lambdas[index](self.last_epoch)


class StepLR(LRScheduler):
    """The rate times gamma every step_size updates."""

    def __init__(
        self, optimizer: Optimizer, step_size: int, gamma: float = 0.1, last_epoch: int = -1
    ) -> None:
        require("StepLR", "step_size", step_size, 1)
        self.step_size = step_size
        require_number("StepLR", "gamma", gamma)
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def _next_lr(self, index: int, lr: float) -> float:
        return lr * self.gamma if self.last_epoch % self.step_size == 0 else lr


class MultiStepLR(LRScheduler):
    """The rate times gamma at each of the milestones."""

    def __init__(
        self,
        optimizer: Optimizer,
        milestones: Iterable[int],
        gamma: float = 0.1,
        last_epoch: int = -1,
    ) -> None:
        self.milestones = sorted(milestones)
        require_number("MultiStepLR", "gamma", gamma)
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def _next_lr(self, index: int, lr: float) -> float:
        times = Counter(self.milestones)[self.last_epoch]
        return lr * self.gamma**times if times else lr


class ConstantLR(LRScheduler):
    """factor times the rate for the first total_iters updates."""

    def __init__(
        self,
        optimizer: Optimizer,
        factor: float = 1 / 3,
        total_iters: int = 5,
        last_epoch: int = -1,
    ) -> None:
        if not 0 < factor <= 1:
            raise ValueError(f"ConstantLR: factor={factor}, expected a number in (0, 1]")
        self.factor = factor
        self.total_iters = total_iters
        super().__init__(optimizer, last_epoch)

    def _first_lr(self, index: int, lr: float) -> float:
        return lr * self.factor if self.total_iters > 0 else lr

    def _next_lr(self, index: int, lr: float) -> float:
        return lr / self.factor if self.last_epoch == self.total_iters else lr


class LinearLR(LRScheduler):
    """From start_factor to end_factor times the rate, in total_iters equal steps.

    Update k uses start + (end - start) * k / total_iters. For a warm-up whose first update is not
    tiny and whose last is exact see `LinearWarmup`.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        start_factor: float = 1 / 3,
        end_factor: float = 1.0,
        total_iters: int = 5,
        last_epoch: int = -1,
    ) -> None:
        if not 0 < start_factor <= 1:
            raise ValueError(f"LinearLR: start_factor={start_factor}, expected a number in (0, 1]")
        if not 0 <= end_factor <= 1:
            raise ValueError(f"LinearLR: end_factor={end_factor}, expected a number in [0, 1]")
        require("LinearLR", "total_iters", total_iters, 1)
        self.start_factor = start_factor
        self.end_factor = end_factor
        self.total_iters = total_iters
        super().__init__(optimizer, last_epoch)

    def _first_lr(self, index: int, lr: float) -> float:
        return lr * self.start_factor

    def _next_lr(self, index: int, lr: float) -> float:
        if self.last_epoch > self.total_iters:
            return lr
        rise = self.end_factor - self.start_factor
        before = self.total_iters * self.start_factor + (self.last_epoch - 1) * rise
        return lr * (1 + rise / before)


class ExponentialLR(LRScheduler):
    """The rate times gamma at every update."""

    def __init__(self, optimizer: Optimizer, gamma: float, last_epoch: int = -1) -> None:
        require_number("ExponentialLR", "gamma", gamma)
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def _next_lr(self, index: int, lr: float) -> float:
        return lr * self.gamma
