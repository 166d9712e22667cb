"""RMSprop and Adagrad, in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np

from .optimizer import Group, Optimizer, Params, grad_of


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

    def _update(self, group: Group) -> None:
        alpha, momentum = group["alpha"], group["momentum"]
        for parameter in group["params"]:
            grad = grad_of(parameter)
            if grad is None:
                continue
            data = parameter._data
            state = self.state.get(parameter)
            if state is None:
                state = self._new_state(parameter, "square_avg")
            for name, used in (("momentum_buffer", momentum), ("grad_avg", group["centered"])):
                if used and name not in state:
                    state[name] = np.zeros_like(data)
            grad = _decayed(data, grad, group)
            square = state["square_avg"]
            square *= alpha
            square += (grad * grad) * (1 - alpha)
            spread = square
            if group["centered"]:
                mean = state["grad_avg"]
                mean += (grad - mean) * (1 - alpha)
                spread = square - mean * mean
            step = grad / (np.sqrt(spread) + group["eps"])
            if momentum:
                buffer = state["momentum_buffer"]
                buffer *= momentum
                buffer += step
                step = buffer
            data -= step * group["lr"]
            parameter._memory[0] += 1


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
        for parameter in group["params"]:
            grad = grad_of(parameter)
            if grad is None:
                continue
            data = parameter._data
            state = self.state.get(parameter)
            if state is None:
                state = self._new_state(parameter, "sum", step=0)
                state["sum"] += group["initial_accumulator_value"]
            rate = group["lr"] / (1 + state["step"] * group["lr_decay"])
            state["step"] += 1
            grad = _decayed(data, grad, group)
            state["sum"] += grad * grad
            data -= grad / (np.sqrt(state["sum"]) + group["eps"]) * rate
            parameter._memory[0] += 1


def _decayed(data: Any, grad: Any, group: Group) -> Any:
    grad = -grad if group["maximize"] else grad
    return grad + data * group["weight_decay"] if group["weight_decay"] else grad
