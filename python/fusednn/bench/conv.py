"""Convolution, once per library."""

import math
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
from fusednn.testing import reference
from fusednn.testing.case_types import Arrays, Direction
from fusednn.testing.cases import ConvCase

LEAVES = ("input", "weight", "bias")


def prepare(case: ConvCase, direction: Direction, dtype: np.dtype[Any], peers: Peers) -> Work:
    arrays = case.arrays(dtype)
    forward_terms = math.prod(case.weight[1:])
    if direction == "fwd":
        terms = forward_terms
        expected = [reference.conv_forward(*(arrays[n] for n in LEAVES), **case.window)]
    else:
        # The weight's gradient sums over every output pixel of the batch.
        terms = max(forward_terms, math.prod(case.output) // max(case.out_channels, 1))
        expected = list(
            reference.conv_backward(
                arrays["grad"], arrays["input"], arrays["weight"], **case.window
            )
        )
    work = Work(case, direction, dtype, [*expected], terms)
    work.ours(lambda arrays: _ours(case, direction, arrays), arrays)
    if "torch" in peers:
        work.peer("torch", lambda: _torch(peers.torch, case, direction, arrays, False))
    if "torch-cl" in peers and case.spatial == 2:
        work.peer("torch-cl", lambda: _torch(peers.torch, case, direction, arrays, True))
    if "ort" in peers and direction == "fwd":
        work.peer("ort", lambda: _ort(peers, case, arrays))
    if "jax" in peers:
        work.peer("jax", lambda: _jax(peers.jax, case, direction, arrays))
    return work


def _ours(case: ConvCase, direction: Direction, arrays: Arrays) -> Call:
    import fusednn.functional as F

    function = (F.conv1d, F.conv2d, F.conv3d)[case.spatial - 1]
    window = case.window
    x, w, b = (arrays[name] for name in LEAVES)
    if direction == "fwd":
        return Call(lambda: function(x, w, b, **window), one)
    return ours_forward_backward(
        lambda x, w, b: function(x, w, b, **window), (x, w, b), arrays["grad"]
    )


def _torch(
    torch: Any, case: ConvCase, direction: Direction, arrays: Arrays, channels_last: bool
) -> Call:
    functional = torch.nn.functional
    function = (functional.conv1d, functional.conv2d, functional.conv3d)[case.spatial - 1]
    window = case.window
    tensors = tensors_of(torch, arrays, channels_last)
    grad = tensors["grad"] if direction == "fwdbwd" else None
    leaves = [tensors[name] for name in LEAVES]
    return torch_call(torch, lambda x, w, b: function(x, w, b, **window), leaves, grad)


def _ort(peers: Peers, case: ConvCase, arrays: Arrays) -> Call:
    return peers.ort_session(
        "Conv",
        inputs={"x": arrays["input"]},
        constants={"w": arrays["weight"], "b": arrays["bias"]},
        kernel_shape=case.kernel,
        strides=case.stride,
        dilations=case.dilation,
        pads=[*case.padding, *case.padding],
        group=case.groups,
    )


def _jax(jax: Any, case: ConvCase, direction: Direction, arrays: Arrays) -> Call:
    axes = "DHW"[3 - case.spatial :]
    layout = f"NC{axes}", f"OI{axes}", f"NC{axes}"
    pads = [(p, p) for p in case.padding]

    def function(x: Any, w: Any, b: Any) -> Any:
        y = jax.lax.conv_general_dilated(
            x,
            w,
            case.stride,
            pads,
            rhs_dilation=case.dilation,
            dimension_numbers=layout,
            feature_group_count=case.groups,
        )
        return y + b.reshape(-1, *[1] * case.spatial)

    grad = arrays["grad"] if direction == "fwdbwd" else None
    return jax_call(jax, function, [arrays[name] for name in LEAVES], grad)
