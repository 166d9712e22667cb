"""Max pooling, once per library."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
from fusednn.testing.cases import PoolCase


def prepare(case: PoolCase, direction: Direction, dtype: np.dtype[Any], peers: Peers) -> Work:
    arrays = case.arrays(dtype)
    if direction == "fwd":
        expected, terms = forward(case, arrays["input"]), 1
    else:
        expected = backward(case, arrays["input"], arrays["grad"])
        terms = math.prod(case.kernel)  # as many windows may share an element
    work = Work(case, direction, dtype, [expected], terms)
    work.ours(lambda arrays: _ours(case, direction, arrays), arrays)
    if "torch" in peers:
        work.peer("torch", lambda: _torch(peers.torch, case, direction, arrays, False))
    if "torch-cl" in peers and case.spatial == 2:
        work.peer("torch-cl", lambda: _torch(peers.torch, case, direction, arrays, True))
    if "ort" in peers and direction == "fwd":
        work.peer("ort", lambda: _ort(peers, case, arrays))
    if "jax" in peers and not case.ceil_mode:
        work.peer("jax", lambda: _jax(peers.jax, case, direction, arrays))
    return work


def _windows(case: PoolCase, input: NDArray[Any]) -> NDArray[np.float64]:
    """Every window's values as (N * C, taps, out pixels); what lies in the padding is -inf."""
    widths = [(0, 0), (0, 0)]
    for size, out, k, s, p, d in zip(
        case.input[2:], case.output[2:], case.kernel, case.stride, case.padding, case.dilation,
        strict=True,
    ):  # fmt: skip
        # As far as the last window reaches, which in ceil mode is beyond the padding.
        widths.append((p, max(0, (out - 1) * s + d * (k - 1) + 1 - p - size)))
    padded = np.pad(input.astype(np.float64), widths, constant_values=-np.inf)
    columns = reference.columns(padded, case.kernel, dilation=case.dilation, stride=case.stride)
    planes, taps = input.shape[0] * input.shape[1], math.prod(case.kernel)
    return columns.reshape(planes, taps, math.prod(case.output[2:]))


def forward(case: PoolCase, input: NDArray[Any]) -> NDArray[np.float64]:
    """The pooled array in float64 (testing.reference_pool says the same, window by window)."""
    return np.asarray(_windows(case, input).max(axis=1).reshape(case.output))


def backward(case: PoolCase, input: NDArray[Any], grad: NDArray[Any]) -> NDArray[np.float64]:
    """Each gradient added to where its window's first maximum came from, in float64."""
    positions = np.arange(math.prod(case.input[2:]), dtype=np.float64)
    where = _windows(case, positions.reshape(1, 1, *case.input[2:]))[0]
    winner = _windows(case, input).argmax(axis=1)
    at = where[winner, np.arange(where.shape[1])].astype(np.int64)
    at += positions.size * np.arange(len(at))[:, None]  # every plane its own stretch
    sums = np.bincount(at.ravel(), weights=grad.ravel(), minlength=math.prod(case.input))
    return sums.astype(np.float64).reshape(case.input)  # of nothing, bincount gives integers


def _ours(case: PoolCase, direction: Direction, arrays: Arrays) -> Call:
    import fusednn.functional as F

    function = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[case.spatial - 1]
    window, x = case.window, arrays["input"]
    if direction == "fwd":
        return Call(lambda: function(x, **window), one)
    return ours_forward_backward(lambda x: function(x, **window), [x], arrays["grad"])


def _torch(
    torch: Any, case: PoolCase, direction: Direction, arrays: Arrays, channels_last: bool
) -> Call:
    functional = torch.nn.functional
    function = (functional.max_pool1d, functional.max_pool2d, functional.max_pool3d)[
        case.spatial - 1
    ]
    window = case.window
    tensors = tensors_of(torch, arrays, channels_last)
    grad = tensors["grad"] if direction == "fwdbwd" else None
    return torch_call(torch, lambda x: function(x, **window), [tensors["input"]], grad)


def _ort(peers: Peers, case: PoolCase, arrays: Arrays) -> Call:
    return peers.ort_session(
        "MaxPool",
        inputs={"x": arrays["input"]},
        constants={},
        kernel_shape=case.kernel,
        strides=case.stride,
        dilations=case.dilation,
        pads=[*case.padding, *case.padding],
        ceil_mode=int(case.ceil_mode),
    )


def _jax(jax: Any, case: PoolCase, direction: Direction, arrays: Arrays) -> Call:
    pads = [(0, 0), (0, 0), *((p, p) for p in case.padding)]

    def function(x: Any) -> Any:
        return jax.lax.reduce_window(
            x,
            -jax.numpy.inf,
            jax.lax.max,
            window_dimensions=(1, 1, *case.kernel),
            window_strides=(1, 1, *case.stride),
            padding=pads,
            window_dilation=(1, 1, *case.dilation),
        )

    grad = arrays["grad"] if direction == "fwdbwd" else None
    return jax_call(jax, function, [arrays["input"]], grad)
