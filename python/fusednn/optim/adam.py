"""Adam and AdamW."""

from __future__ import annotations

from typing import Any

from .. import _core
from .optimizer import Group, Optimizer, Params, _is_number, changed, grads_of, with_grads


class Adam(Optimizer):
    """Steps of about lr per element, from running means of the gradient and of its square.

    Kingma, Ba, "Adam: a method for stochastic optimization", ICLR 2015 (algorithm 1); amsgrad is
    that of Reddi, Kale, Kumar, "On the convergence of Adam and beyond", ICLR 2018. weight_decay
    is added to the gradient.

    >>> import fusednn as fn
    >>> w = fn.tensor([1.0], requires_grad=True)
    >>> w.sum().backward()
    >>> fn.optim.Adam([w], lr=0.5).step()
    >>> w
    tensor([0.5000], requires_grad=True)
    """

    _state_arrays = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")
    _decoupled = False

    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        defaults: dict[str, Any] = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "amsgrad": amsgrad,
            "maximize": maximize,
        }
        super().__init__(params, defaults)

    def _check_options(self, group: Group) -> None:
        self._require(group, "lr", "eps", "weight_decay")
        betas = group["betas"]
        fits = isinstance(betas, (tuple, list)) and len(betas) == 2
        if not fits or not all(_is_number(beta) and 0 <= beta < 1 for beta in betas):
            raise ValueError(f"{self._name}: betas={betas}, expected two numbers in [0, 1)")

    def _update(self, group: Group) -> None:
        lr, (beta1, beta2), eps = group["lr"], group["betas"], group["eps"]
        decay, amsgrad, maximize = group["weight_decay"], group["amsgrad"], group["maximize"]
        for parameters in with_grads(group):
            states = []
            for parameter in parameters:
                state = self.state.get(parameter)
                if state is None:
                    state = self._new_state(parameter, "exp_avg", "exp_avg_sq", step=0)
                if amsgrad and "max_exp_avg_sq" not in state:
                    state["max_exp_avg_sq"] = state["exp_avg_sq"].copy()
                states.append(state)
            _core.adam_step(
                [parameter._data for parameter in parameters], grads_of(parameters),
                [state["exp_avg"] for state in states], [state["exp_avg_sq"] for state in states],
                [state["max_exp_avg_sq"] for state in states] if amsgrad else None,
                [state["step"] + 1 for state in states],
                lr, beta1, beta2, eps, decay, self._decoupled, maximize,
            )  # fmt: skip
            for state in states:
                state["step"] += 1
            changed(parameters)


class AdamW(Adam):
    """Adam whose weight decay shrinks the parameters directly: param *= 1 - lr * weight_decay.

    Loshchilov, Hutter, "Decoupled weight decay regularization", ICLR 2019.

    >>> import fusednn as fn
    >>> w = fn.tensor([1.0], requires_grad=True)
    >>> w.sum().backward()
    >>> fn.optim.AdamW([w], lr=0.5, weight_decay=0.0).step()
    >>> w
    tensor([0.5000], requires_grad=True)
    """

    _decoupled = True

    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad, maximize=maximize)
