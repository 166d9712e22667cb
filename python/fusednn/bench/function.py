"""Functions of arrays: dense, norms, softmax and its loss, activations, embeddings."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from fusednn.bench.peers import Peers
from fusednn.bench.work import (
    Call,
    Work,
    numpy_of,
    one,
    ours_forward_backward,
    tensors_of,
    torch_call,
)
from fusednn.testing.case_types import Arrays, Direction
from fusednn.testing.cases_function import FunctionCase

GROUPS = 32


def prepare(case: FunctionCase, direction: Direction, dtype: np.dtype[Any], peers: Peers) -> Work:
    """Expected is what our float64 build computes, which the tests hold against oracles; PyTorch,
    where it takes part, is a second opinion."""
    arrays = case.arrays(dtype)
    wide = {k: a.astype(np.float64) if a.dtype.kind == "f" else a for k, a in arrays.items()}
    oracle = _ours(case, direction, wide)
    work = Work(case, direction, dtype, oracle.arrays(oracle.run()), _terms(case, direction))
    work.ours(lambda arrays: _ours(case, direction, arrays), arrays)
    if "torch" in peers:
        work.peer("torch", lambda: _torch(peers.torch, case, direction, arrays))
    return work


def _terms(case: FunctionCase, direction: Direction) -> int:
    """Of the longest sum: along rows, and for what all rows share along these."""
    if case.function in ("gelu", "avg_pool2d") or (
        case.function == "embedding" and direction == "fwd"
    ):
        return 4
    return max(map(math.prod, (*case.shapes, case.output)))


def _function(case: FunctionCase, F: Any, ids: Any) -> Callable[..., Any]:
    """The call, ours and PyTorch's: they have the same names and arguments."""
    chosen: dict[str, Callable[..., Any]] = {
        "matmul": lambda x, y: x @ y,
        "softmax": lambda x: F.softmax(x, -1),
        "cross_entropy": lambda x: F.cross_entropy(x, ids),
        "layer_norm": lambda x, w, b: F.layer_norm(x, w.shape, w, b),
        "rms_norm": lambda x, w: F.rms_norm(x, w.shape, w),
        "group_norm": lambda x, w, b: F.group_norm(x, GROUPS, w, b),
        "batch_norm": lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True),
        "avg_pool2d": lambda x: F.avg_pool2d(x, 2),
        "embedding": lambda table: F.embedding(ids, table),
    }
    return chosen.get(case.function, getattr(F, case.function, None))  # type: ignore[return-value]


def _ours(case: FunctionCase, direction: Direction, arrays: Arrays) -> Call:
    import fusednn as fn
    import fusednn.functional as F

    leaves = [arrays[str(i)] for i in range(len(case.shapes))]
    function = _function(case, F, arrays.get("ids"))
    if direction == "fwd":
        if case.function == "matmul":
            return Call(lambda: fn.matmul(*leaves), one)
        return Call(lambda: function(*leaves), lambda result: [np.asarray(numpy_of(result))])
    return ours_forward_backward(function, leaves, arrays["grad"])


def _torch(torch: Any, case: FunctionCase, direction: Direction, arrays: Arrays) -> Call:
    tensors = tensors_of(torch, arrays, channels_last=False)
    function = _function(case, torch.nn.functional, tensors.get("ids"))
    grad = tensors["grad"] if direction == "fwdbwd" else None
    return torch_call(torch, function, [tensors[str(i)] for i in range(len(case.shapes))], grad)
