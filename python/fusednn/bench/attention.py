"""Scaled dot-product attention, once per library."""

from typing import Any

import numpy as np

from fusednn.bench.peers import Peers
from fusednn.bench.work import (
    Call,
    Work,
    jax_call,
    one,
    ours_forward_backward,
    tensors_of,
    torch_call,
)
from fusednn.testing.case_types import Arrays, Direction
from fusednn.testing.cases_attention import AttentionCase
from fusednn.testing.reference_attention import attention as reference

INPUTS = ("query", "key", "value")
# ONNX has an operator for it from here on.
OPSET = 23


def prepare(case: AttentionCase, direction: Direction, dtype: np.dtype[Any], peers: Peers) -> Work:
    arrays = case.arrays(dtype)
    work = Work(case, direction, dtype, expected(case, direction, arrays), case.keys)
    work.ours(lambda arrays: _ours(case, direction, arrays), arrays)
    if "torch" in peers:
        work.peer("torch", lambda: _torch(peers.torch, case, direction, arrays))
    if "ort" in peers and direction == "fwd":
        work.peer("ort", lambda: _ort(peers, case, arrays))
    if "jax" in peers:
        work.peer("jax", lambda: _jax(peers.jax, case, direction, arrays))
    return work


def expected(case: AttentionCase, direction: Direction, arrays: Arrays) -> list[Any]:
    """The output, or every gradient, in float64; head by head, for all scores are made at once."""
    wide = {name: array.astype(np.float64) for name, array in arrays.items()}
    group = case.query[1] // case.kv_heads if case.kv_heads else 1
    shapes = [case.output] if direction == "fwd" else [case.query, case.key, case.value]
    results = [np.zeros(shape) for shape in shapes]
    for b in range(case.query[0]):
        for kv in range(case.kv_heads):
            heads = (slice(b, b + 1), slice(kv * group, (kv + 1) * group))
            shared = (slice(b, b + 1), slice(kv, kv + 1))
            found = reference(
                wide["query"][heads],
                wide["key"][shared],
                wide["value"][shared],
                None if direction == "fwd" else wide["grad"][heads],
                is_causal=case.causal,
            )
            if direction == "fwd":
                results[0][heads] = found.output
            else:
                results[0][heads], results[1][shared] = found.query, found.key
                results[2][shared] = found.value
    return results


def _ours(case: AttentionCase, direction: Direction, arrays: Arrays) -> Call:
    import fusednn.functional as F

    inputs = [arrays[name] for name in INPUTS]
    gqa = case.kv_heads != case.query[1]

    def function(q: Any, k: Any, v: Any) -> Any:
        return F.scaled_dot_product_attention(q, k, v, is_causal=case.causal, enable_gqa=gqa)

    if direction == "fwd":
        q, k, v = inputs
        return Call(lambda: function(q, k, v), one)
    return ours_forward_backward(function, inputs, arrays["grad"])


def _torch(torch: Any, case: AttentionCase, direction: Direction, arrays: Arrays) -> Call:
    tensors = tensors_of(torch, arrays, channels_last=False)
    gqa = case.kv_heads != case.query[1]

    def function(*leaves: Any) -> Any:
        return torch.nn.functional.scaled_dot_product_attention(
            *leaves, is_causal=case.causal, enable_gqa=gqa
        )

    grad = tensors["grad"] if direction == "fwdbwd" else None
    return torch_call(torch, function, [tensors[name] for name in INPUTS], grad)


def _ort(peers: Peers, case: AttentionCase, arrays: Arrays) -> Call:
    inputs = {name: arrays[name] for name in INPUTS}
    return peers.ort_session(
        "Attention", inputs=inputs, constants={}, opset=OPSET, is_causal=int(case.causal)
    )


def _jax(jax: Any, case: AttentionCase, direction: Direction, arrays: Arrays) -> Call:
    def function(*leaves: Any) -> Any:
        # Its layout is (B, T, H, D).
        rows = (leaf.swapaxes(1, 2) for leaf in leaves)
        return jax.nn.dot_product_attention(*rows, is_causal=case.causal).swapaxes(1, 2)

    grad = arrays["grad"] if direction == "fwdbwd" else None
    return jax_call(jax, function, [arrays[name] for name in INPUTS], grad)
