"""RMSprop and Adagrad."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import _core
from .optimizer import Group, Optimizer, Params, changed, grads_of, with_grads


class RMSprop(Optimizer):
    """Steps of lr * grad / root of the running mean of grad**2.

    Tieleman, Hinton, "Lecture 6.5: RMSProp", Coursera 2012; centered: Graves, "Generating sequences
    with recurrent neural networks", 2013 (equations 38-45, with eps outside the root).

    >>> import fusednn as fn
    >>> w = fn.tensor([1.0], requires_grad=True)
    >>> w.sum().backward()
    >>> fn.optim.RMSprop([w], lr=0.05).step()
    >>> w
    tensor([0.5000], requires_grad=True)
    """

    _state_arrays = ("square_avg", "momentum_buffer", "grad_avg")

    def __init__(
        self,
        params: Params,
        lr: float = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        centered: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        defaults: dict[str, Any] = {
            "lr": lr,
            "alpha": alpha,
            "eps": eps,
            "weight_decay": weight_decay,
            "momentum": momentum,
            "centered": centered,
            "maximize": maximize,
        }
        super().__init__(params, defaults)

    def _check_options(self, group: Group) -> None:
        self._require(group, "lr", "alpha", "eps", "weight_decay", "momentum")
        if group["alpha"] > 1:
            raise ValueError(f"RMSprop: alpha={group['alpha']}, expected a number in [0, 1]")

    def _update(self, group: Group) -> None:
        lr, alpha, eps, decay = group["lr"], group["alpha"], group["eps"], group["weight_decay"]
        momentum, centered, maximize = group["momentum"], group["centered"], group["maximize"]
        for parameters in with_grads(group):
            states = []
            for parameter in parameters:
                state = self.state.get(parameter)
                if state is None:
                    state = self._new_state(parameter, "square_avg")
                for name, used in (("momentum_buffer", momentum), ("grad_avg", centered)):
                    if used and name not in state:
                        state[name] = np.zeros_like(parameter._data)
                states.append(state)
            _core.rmsprop_step(
                [parameter._data for parameter in parameters], grads_of(parameters),
                [state["square_avg"] for state in states],
                [state["grad_avg"] for state in states] if centered else None,
                [state["momentum_buffer"] for state in states] if momentum else None,
                lr, alpha, eps, decay, momentum, maximize,
            )  # fmt: skip
            changed(parameters)


class Adagrad(Optimizer):
    """Steps of lr * grad / root of the sum of all grad**2 so far.

    Duchi, Hazan, Singer, "Adaptive subgradient methods", JMLR 12 (2011).

    >>> import fusednn as fn
    >>> w = fn.tensor([1.0], requires_grad=True)
    >>> w.sum().backward()
    >>> fn.optim.Adagrad([w], lr=0.5).step()
    >>> w
    tensor([0.5000], requires_grad=True)
    """

    _state_arrays = ("sum",)

    def __init__(
        self,
        params: Params,
        lr: float = 1e-2,
        lr_decay: float = 0.0,
        weight_decay: float = 0.0,
        initial_accumulator_value: float = 0.0,
        eps: float = 1e-10,
        *,
        maximize: bool = False,
    ) -> None:
        defaults: dict[str, Any] = {
            "lr": lr,
            "lr_decay": lr_decay,
            "weight_decay": weight_decay,
            "initial_accumulator_value": initial_accumulator_value,
            "eps": eps,
            "maximize": maximize,
        }
        super().__init__(params, defaults)

    def _check_options(self, group: Group) -> None:
        self._require(group, "lr", "lr_decay", "weight_decay", "initial_accumulator_value", "eps")

    def _update(self, group: Group) -> None:
        for parameters in with_grads(group):
            states = []
            for parameter in parameters:
                state = self.state.get(parameter)
                if state is None:
                    state = self._new_state(parameter, "sum", step=0)
                    state["sum"] += group["initial_accumulator_value"]
                states.append(state)
            _core.adagrad_step(
                [parameter._data for parameter in parameters], grads_of(parameters),
                [state["sum"] for state in states],
                [group["lr"] / (1 + state["step"] * group["lr_decay"]) for state in states],
                group["eps"], group["weight_decay"], group["maximize"],
            )  # fmt: skip
            for state in states:
                state["step"] += 1
            changed(parameters)
