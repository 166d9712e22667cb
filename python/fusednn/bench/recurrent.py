"""LSTM layers, once per library."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fusednn.bench.peers import Peers
from fusednn.bench.work import (
    Call,
    Work,
    jax_call,
    numpy_of,
    one,
    ours_forward_backward,
    tensors_of,
    torch_call,
)
from fusednn.testing.case_types import Arrays, Direction
from fusednn.testing.cases import RecurrentCase
from fusednn.testing.reference_recurrent import Stack

LEAVES = ("input", "weight_ih", "weight_hh", "bias_ih", "bias_hh")


def prepare(case: RecurrentCase, direction: Direction, dtype: np.dtype[Any], peers: Peers) -> Work:
    arrays = case.arrays(dtype)
    # An error of one step is handed on by all that follow.
    terms = (case.inputs + case.hidden) * max(case.steps, 1)
    if direction == "fwdbwd":
        terms *= max(case.batch, 1)
    work = Work(case, direction, dtype, oracle(case, direction, arrays), terms)
    work.ours(lambda arrays: _ours(direction, arrays), arrays)
    if "torch" in peers:
        work.peer("torch", lambda: _torch(peers.torch, case, direction, arrays))
    if "ort" in peers and direction == "fwd":
        work.peer("ort", lambda: _ort(peers, case, arrays))
    if "jax" in peers:
        work.peer("jax", lambda: _jax(peers.jax, case, direction, arrays))
    return work


def oracle(case: RecurrentCase, direction: Direction, arrays: Arrays) -> list[NDArray[Any]]:
    """The output, or the leaves' gradients, in float64."""
    x, *weights = (arrays[name].astype(np.float64) for name in LEAVES)
    stack = Stack("lstm", weights)
    zeros = np.zeros((1, case.batch, case.hidden))
    out, _, _ = stack.forward(x, zeros, zeros, np.full(case.batch, case.steps))
    if direction == "fwd":
        return [out]
    dx, _, _, grads = stack.backward(arrays["grad"].astype(np.float64), zeros, zeros)
    return [dx, *grads]


def _ours(direction: Direction, arrays: Arrays) -> Call:
    import fusednn.functional as F

    x, *weights = (arrays[name] for name in LEAVES)
    if direction == "fwd":
        return Call(lambda: F.lstm(x, None, weights)[0], one)
    return ours_forward_backward(
        lambda x, *weights: F.lstm(x, None, weights)[0], [x, *weights], arrays["grad"]
    )


def _torch(torch: Any, case: RecurrentCase, direction: Direction, arrays: Arrays) -> Call:
    tensors = tensors_of(torch, arrays, False)
    layer = torch.nn.LSTM(case.inputs, case.hidden, dtype=tensors["input"].dtype)
    parameters = [getattr(layer, f"{name}_l0") for name in LEAVES[1:]]
    with torch.no_grad():
        for name, parameter in zip(LEAVES[1:], parameters, strict=True):
            parameter.copy_(tensors[name])
    grad = tensors["grad"] if direction == "fwdbwd" else None
    leaves = [tensors["input"], *parameters]
    return torch_call(torch, lambda x, *_: layer(x)[0], leaves, grad)


def _ort(peers: Peers, case: RecurrentCase, arrays: Arrays) -> Call:
    def gates(array: NDArray[Any]) -> NDArray[Any]:
        i, f, g, o = np.split(array, 4)  # ONNX has them as i, o, f, g
        return np.concatenate([i, o, f, g])

    bias = np.concatenate([gates(arrays["bias_ih"]), gates(arrays["bias_hh"])])
    call = peers.ort_session(
        "LSTM",
        inputs={"x": arrays["input"]},
        constants={
            "w": gates(arrays["weight_ih"])[None],
            "r": gates(arrays["weight_hh"])[None],
            "b": bias[None],
        },
        hidden_size=case.hidden,
    )
    return Call(call.run, lambda y: [numpy_of(y)[:, 0]])


def _jax(jax: Any, case: RecurrentCase, direction: Direction, arrays: Arrays) -> Call:
    jnp, sigmoid = jax.numpy, jax.nn.sigmoid

    def function(x: Any, w_ih: Any, w_hh: Any, b_ih: Any, b_hh: Any) -> Any:
        given = x @ w_ih.T + b_ih + b_hh

        def step(state: Any, a: Any) -> Any:
            h, c = state
            i, f, g, o = jnp.split(a + h @ w_hh.T, 4, axis=1)
            c = sigmoid(f) * c + sigmoid(i) * jnp.tanh(g)
            h = sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        zeros = jnp.zeros((case.batch, case.hidden), x.dtype)
        return jax.lax.scan(step, (zeros, zeros), given)[1]

    grad = arrays["grad"] if direction == "fwdbwd" else None
    return jax_call(jax, function, [arrays[name] for name in LEAVES], grad)
