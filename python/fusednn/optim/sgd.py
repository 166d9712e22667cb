"""Stochastic gradient descent."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import _core
from .optimizer import Group, Optimizer, Params, changed, grads_of, with_grads


class SGD(Optimizer):
    """param -= lr * grad, with momentum, Nesterov's variant and weight decay.

    With g = grad + weight_decay * param and momentum m: b = m * b + (1 - dampening) * g (b = g the
    first time), and the step is lr * b, or lr * (g + m * b) with nesterov. Sutskever et al., "On
    the importance of initialization and momentum in deep learning", ICML 2013.

    >>> import fusednn as fn
    >>> w = fn.tensor([1.0], requires_grad=True)
    >>> w.sum().backward()
    >>> fn.optim.SGD([w], lr=0.5).step()
    >>> w
    tensor([0.5000], requires_grad=True)
    """

    _state_arrays = ("momentum_buffer",)

    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        defaults: dict[str, Any] = {
            "lr": lr,
            "momentum": momentum,
            "dampening": dampening,
            "weight_decay": weight_decay,
            "nesterov": nesterov,
            "maximize": maximize,
        }
        super().__init__(params, defaults)

    def _check_options(self, group: Group) -> None:
        self._require(group, "lr", "momentum", "dampening", "weight_decay")
        if group["nesterov"] and (group["momentum"] <= 0 or group["dampening"] != 0):
            raise ValueError("SGD: nesterov needs a momentum and no dampening")

    def _update(self, group: Group) -> None:
        lr, momentum, dampening = group["lr"], group["momentum"], group["dampening"]
        decay, nesterov, maximize = group["weight_decay"], group["nesterov"], group["maximize"]
        for parameters in with_grads(group):
            states, first = [], []
            for parameter in parameters if momentum else ():
                state = self.state.get(parameter, {})
                first.append("momentum_buffer" not in state)
                if first[-1]:
                    state = {"momentum_buffer": np.empty_like(parameter._data)}
                states.append(state)
            _core.sgd_step(
                [parameter._data for parameter in parameters], grads_of(parameters),
                [state["momentum_buffer"] for state in states] if momentum else None,
                first or [False] * len(parameters),
                lr, momentum, dampening, decay, nesterov, maximize,
            )  # fmt: skip
            # Only now, when the buffers hold something.
            self.state.update(zip(parameters, states, strict=False))
            changed(parameters)
