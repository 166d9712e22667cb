"""Where gradients go: their sizes by layer and by time step, and the terms they add up from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .. import nn
from .._tensor.creation import tensor
from .._tensor.mode import no_grad
from .._tensor.tape import Array, TensorBase, raw
from ..nn.recurrent import _Stack
from .trace import evaluating, first, inputs, named, watching
from .unroll import unrolling


@dataclass
class GradientFlow:
    """Norms of the gradient of E: by parameter, by layer (with respect to its output), and for
    recurrent layers by time step, with respect to the state h_t.

    steps: "name" has the last layer of a stack, "name.l0", "name.l1", ... those before it;
    "name.reverse" the other direction, also by time; LSTMs have "name.c" beside "name", for the
    state c_t through the steps after it. A sequence counts until its own end. A layer or module
    that is called again is "name#2".
    """

    parameters: dict[str, float] = field(default_factory=dict)
    layers: dict[str, float] = field(default_factory=dict)
    steps: dict[str, Array] = field(default_factory=dict)


def gradient_flow(
    model: nn.Module, x: Any, loss: Callable[[Any], Any] | None = None
) -> GradientFlow:
    """How large the gradient is on its way back through the layers, and through time.

    model: any Module. x: an array, or a list of arrays for several arguments. loss: of the model's
    output, a scalar Tensor E; by default half the sum of its squares, for a recurrent layer itself
    of the last time step's. `nn.RNN`, `LSTM` and `GRU` in it (any number of layers, both
    directions, with lengths) are run step by step, so that the gradient of each state is the whole
    one, through all later steps; of the cells (`nn.LSTMCell`, ...) each call is a step. Classes
    derived from these with a forward of their own run as they are, as layers without steps.
    Gradients of the parameters are left as they were. Bengio, Simard, Frasconi, "Learning
    long-term dependencies with gradient descent is difficult", 1994.

    >>> import numpy as np
    >>> from fusednn import nn
    >>> from fusednn.analysis import gradient_flow
    >>> flow = gradient_flow(nn.RNN(1, 4), np.ones((6, 1, 1), np.float32))
    >>> flow.steps["RNN"].shape, sorted(flow.parameters)[:2]
    ((6,), ['bias_hh_l0', 'bias_ih_l0'])
    """
    arguments = inputs("gradient_flow", x)
    parameters = dict(model.named_parameters())
    before = {name: parameter._grad for name, parameter in parameters.items()}
    flow = GradientFlow()
    try:
        for parameter in parameters.values():
            parameter._grad = None
        with evaluating(model), unrolling(model) as states, watching(model) as calls:
            output = model(*arguments)
            outputs = [
                (name, one)
                for name, call in named(calls)
                if _is_tensor(one := first(call.output)) and one.requires_grad
            ]
            for _, one in outputs:
                if not one.is_leaf:
                    one.retain_grad()
            _loss(model, output, loss).backward()
        flow.parameters = {
            name: _norm(p._grad) for name, p in parameters.items() if p._grad is not None
        }
        flow.layers = {name: _norm(one.grad) for name, one in outputs}
        flow.steps = {
            name: np.array([_norm(state.grad, running) for state, running in steps])
            for name, steps in states.items()
        }
    finally:
        for name, parameter in parameters.items():
            parameter._grad = before[name]
    return flow


def _is_tensor(value: Any) -> bool:
    return isinstance(value, TensorBase)


def _norm(grad: Any, rows: Array | None = None) -> float:
    """Of all numbers, or of the rows (along the last axis but one) that are True."""
    if grad is None:
        return 0.0
    values = raw(grad) if rows is None else raw(grad)[..., rows, :]
    return float(np.linalg.norm(values.ravel().astype(np.float64)))


def _loss(model: nn.Module, output: Any, loss: Callable[[Any], Any] | None) -> Any:
    if loss is not None:
        value = loss(output)
        if not isinstance(value, TensorBase) or value._data.size != 1:
            shape = getattr(value, "shape", type(value).__name__)
            raise ValueError(f"gradient_flow: loss gave {shape}, expected a Tensor of one element")
        return value
    one = first(output)
    if not _is_tensor(one):
        raise ValueError(
            f"gradient_flow: the model gave a {type(one).__name__}, expected a Tensor, or a loss "
            "that makes one of it"
        )
    if isinstance(model, _Stack):
        one = one[:, -1] if model.batch_first and one.ndim == 3 else one[-1]
    return (one * one).sum() * 0.5


# ---- the terms of backpropagation through time ---------------------------------------------------


@dataclass(frozen=True)
class BpttTerms:
    """Entry k of each array is what time step k adds to the gradient of E, which depends on the
    state at target_step; their sum over k is the gradient. K = target_step + 1.

    weight_ih (K, H, I), weight_hh (K, H, H), bias (K, H); state (K, N, H): the gradient of E with
    respect to h_k; jacobian (K, N): the spectral norm of dh_target / dh_k.
    """

    weight_ih: Array
    weight_hh: Array
    bias: Array
    state: Array
    jacobian: Array


def bptt_terms(
    model: nn.RNN, x: Any, target_step: int, loss: Callable[[Any], Any] | None = None
) -> BpttTerms:
    """Backpropagation through time term by term, for an `nn.RNN` of one layer and direction.

    x as the model takes it, with a batch. E = loss(h_target), by default half the sum of squares;
    h_target (N, H) is a Tensor. With a_t = W_ih x_t + W_hh h_(t-1) + b, the step from h_(t-1) to
    h_t has the Jacobian diag(f'(a_t)) W_hh; term k is the gradient carried back to a_k, times x_k
    or h_(k-1). Werbos, "Backpropagation through time: what it does and how to do it", 1990.

    ValueError for other models and steps outside the sequence.

    >>> import numpy as np
    >>> from fusednn import nn
    >>> from fusednn.analysis import bptt_terms
    >>> terms = bptt_terms(nn.RNN(1, 3), np.ones((5, 2, 1), np.float32), target_step=3)
    >>> terms.weight_hh.shape, terms.jacobian[-1]
    ((4, 3, 3), array([1., 1.]))
    """
    if not isinstance(model, nn.RNN) or model.num_layers != 1 or model.bidirectional:
        raise ValueError(
            f"bptt_terms: model is {model!r}, expected an nn.RNN of one layer and one direction"
        )
    data = raw(x)
    if data.ndim != 3:
        raise ValueError(f"bptt_terms: x has shape {data.shape}, expected 3 axes (with a batch)")
    xs = data.swapaxes(0, 1) if model.batch_first else data
    if not 0 <= target_step < len(xs):
        raise ValueError(
            f"bptt_terms: target_step={target_step}, expected 0 to {len(xs) - 1} for x of shape "
            f"{data.shape}"
        )
    xs = xs[: target_step + 1].astype(np.float64)
    hs, seed = _states(model, data, target_step, loss)
    weight = model.get_parameter("weight_hh_l0")._data.astype(np.float64)
    slope = _slopes(model.nonlinearity, hs)
    batch, width = hs.shape[1:]
    grad, product = seed, np.broadcast_to(np.eye(width), (batch, width, width))
    rows: list[list[Array]] = []
    for k in range(target_step, -1, -1):
        delta = grad * slope[k]
        earlier = hs[k - 1] if k else np.zeros_like(hs[0])
        norms = np.linalg.norm(product, 2, axis=(1, 2))
        rows.append([delta.T @ xs[k], delta.T @ earlier, delta.sum(0), grad, norms])
        grad = delta @ weight
        product = product @ (slope[k][:, :, None] * weight)
    return BpttTerms(*(np.stack(part[::-1]) for part in map(list, zip(*rows, strict=True))))


def _states(
    model: nn.RNN, data: Array, target_step: int, loss: Callable[[Any], Any] | None
) -> tuple[Array, Array]:
    """All states up to the target (K, N, H), and the gradient of E with respect to the last."""
    with no_grad(), evaluating(model):
        out = raw(model(data)[0])
    hs = (out.swapaxes(0, 1) if model.batch_first else out)[: target_step + 1]
    last = tensor(hs[-1], requires_grad=True)
    energy = (last * last).sum() * 0.5 if loss is None else loss(last)
    energy.backward()
    grad = np.zeros(last.shape) if last.grad is None else raw(last.grad)
    return hs.astype(np.float64), grad.astype(np.float64)


def _slopes(nonlinearity: str, h: Array) -> Array:
    """f'(a), from h = f(a)."""
    if nonlinearity == "tanh":
        return np.asarray(1 - h * h)
    return np.ones_like(h) if nonlinearity == "identity" else (h > 0).astype(h.dtype)


__all__ = ["BpttTerms", "GradientFlow", "bptt_terms", "gradient_flow"]
