"""Convolutions of random shapes and windows, degenerate ones too, against PyTorch's."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fusednn as fn
import fusednn.functional as F
from fusednn.testing import reference, reference_conv

torch = pytest.importorskip("torch", reason="torch is not installed (extra 'peers')")
TF = torch.nn.functional


class Case(NamedTuple):
    transposed: bool
    batch: int
    channels: int  # per group, of the input and of the output
    outputs: int
    groups: int
    size: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    padding: Any  # as fusednn takes it
    output_padding: tuple[int, ...]
    bias: bool
    dtype: str
    seed: int

    @property
    def axes(self) -> int:
        return len(self.size)

    def arrays(self) -> list[np.ndarray]:
        rng = np.random.default_rng(self.seed)
        ins, outs = self.groups * self.channels, self.groups * self.outputs
        weight = (ins, self.outputs) if self.transposed else (outs, self.channels)
        shapes = [(self.batch, ins, *self.size), (*weight, *self.kernel)]
        shapes += [(outs,)] if self.bias else []
        return [rng.standard_normal(shape).astype(self.dtype) for shape in shapes]

    def sides(self) -> Any:
        """The zeros on the two sides of each axis."""
        return reference_conv.sides(
            self.padding, self.size, self.kernel, self.stride, self.dilation
        )


# Mostly ordinary, sometimes degenerate.
_batches = st.sampled_from([1, 1, 1, 2, 2, 3, 0])
_channels = st.sampled_from([1, 1, 1, 2, 2, 3, 3, 4, 5, 8, 0])
_groups = st.sampled_from([1, 1, 1, 2, 3, 5])
_sizes = st.sampled_from([7, 8, 9, 10, 12, 15, 6, 5, 4, 3, 2, 1, 0])


@st.composite
def cases(draw) -> Case:
    axes = draw(st.sampled_from([1, 1, 2, 2, 2, 3]))

    def several(low: int, high: int) -> Any:
        return st.tuples(*[st.integers(low, high)] * axes)

    transposed = draw(st.booleans())
    stride, dilation = draw(several(1, 4)), draw(several(1, 3))
    paddings = [several(0, 4), st.tuples(*[st.tuples(st.integers(0, 4), st.integers(0, 4))] * axes)]
    if not transposed:
        paddings += [st.sampled_from(["valid", "same"] + ["causal"] * (axes == 1))]
    longest = [max(s, d) for s, d in zip(stride, dilation, strict=True)]
    return Case(
        transposed=transposed,
        batch=draw(_batches),
        channels=draw(_channels),
        outputs=draw(_channels),
        groups=draw(_groups),
        size=draw(st.tuples(*[_sizes] * axes)),
        kernel=draw(several(1, 4)),
        stride=stride,
        dilation=dilation,
        padding=draw(st.one_of(paddings)),
        output_padding=tuple(draw(st.sampled_from([0, 0, n - 1])) for n in longest),
        bias=draw(st.booleans()),
        dtype=draw(st.sampled_from(["float32", "float64"])),
        seed=draw(st.integers(0, 2**31)),
    )


def _ours(case: Case, arrays: list[np.ndarray]) -> tuple[np.ndarray, Any, list[np.ndarray]]:
    tensors = [fn.tensor(a, requires_grad=True) for a in arrays]
    window = {"stride": case.stride, "padding": case.padding, "dilation": case.dilation}
    if case.transposed:
        op, window["output_padding"] = f"conv_transpose{case.axes}d", case.output_padding
    else:
        op = f"conv{case.axes}d"
    y = getattr(F, op)(*tensors, **window, groups=case.groups)
    grad = np.random.default_rng(case.seed + 1).standard_normal(y.shape).astype(case.dtype)
    y.backward(fn.tensor(grad))
    return y.numpy(), grad, [t.grad.numpy() for t in tensors]


def _cropped(y: Any, sides: list[tuple[int, int]]) -> Any:
    return y[(..., *(slice(a, n - b) for n, (a, b) in zip(y.shape[2:], sides, strict=True)))]


def _peers(case: Case, arrays: list[np.ndarray], grad: np.ndarray) -> tuple[Any, list[Any]]:
    tensors = [torch.tensor(a, requires_grad=True) for a in arrays]
    x, *rest = tensors
    sides = case.sides()
    window = {"stride": case.stride, "dilation": case.dilation, "groups": case.groups}
    if case.transposed:
        # Cropped afterwards, where PyTorch knows no uneven padding, or none that large.
        window["output_padding"] = case.output_padding
        y = _cropped(getattr(TF, f"conv_transpose{case.axes}d")(x, *rest, **window), sides)
    else:
        flat = [side for pair in reversed(sides) for side in pair]
        y = getattr(TF, f"conv{case.axes}d")(TF.pad(x, flat), *rest, **window)
    y.backward(torch.tensor(grad))
    return y.detach().numpy(), [t.grad.numpy() for t in tensors]


def _definition(case: Case, arrays: list[np.ndarray], grad: np.ndarray) -> tuple[Any, list[Any]]:
    """The same from the NumPy oracles, for shapes that PyTorch refuses or gets wrong."""
    x, w, *bias = arrays
    window = {"stride": case.stride, "dilation": case.dilation, "groups": case.groups}
    if case.transposed:
        window |= {"padding": case.padding, "output_padding": case.output_padding}
        y = reference_conv.conv_transpose_forward(x, w, *bias, **window)
        grads = reference_conv.conv_transpose_backward(grad, x, w, **window)
    else:
        sides = case.sides()
        padded = np.pad(x, [(0, 0), (0, 0), *sides])
        y = reference.conv_forward(padded, w, *bias, **window)
        dx, dw, db = reference.conv_backward(grad, padded, w, **window)
        inner = (slice(a, a + n) for n, (a, _) in zip(case.size, sides, strict=True))
        grads = dx[(..., *inner)], dw, db
    return y, list(grads[: len(arrays)])


def _output_sizes(case: Case) -> list[int]:
    terms = zip(
        case.size, case.kernel, case.stride, case.dilation, case.sides(), case.output_padding,
        strict=True,
    )  # fmt: skip
    if case.transposed:
        return [(n - 1) * s - a - b + d * (k - 1) + 1 + o for n, k, s, d, (a, b), o in terms]
    return [(n + a + b - d * (k - 1) - 1) // s + 1 for n, k, s, d, (a, b), _ in terms]


@pytest.fixture(autouse=True)
def one_torch_thread():
    """Its threads cost more than these shapes have work."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@settings(max_examples=2000, deadline=None)
@given(cases())
def test_random_convolutions(case: Case) -> None:
    arrays = case.arrays()
    if min(_output_sizes(case)) < 1:
        with pytest.raises(ValueError, match="the output would have size"):
            _ours(case, arrays)
        return
    y, grad, grads = _ours(case, arrays)
    empty = 0 in (case.batch, case.channels, case.outputs, *case.size)
    expected = (_definition if empty else _peers)(case, arrays, grad)
    tolerance = 1e-12 if case.dtype == "float64" else 1e-5
    for ours, peer in zip([y, *grads], [expected[0], *expected[1]], strict=True):
        assert ours.shape == peer.shape
        assert ours.dtype == case.dtype
        # The gradients of weight and bias are sums over all positions, which PyTorch adds plainly.
        scale = float(np.abs(peer).max(initial=max(1.0, np.sqrt(grad.size))))
        np.testing.assert_allclose(ours, peer, rtol=0, atol=tolerance * scale)
