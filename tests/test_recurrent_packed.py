"""Packed sequences: places of rows, gradients, the recurrent layers; against PyTorch."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import fusednn as fn
from fusednn import nn
from fusednn.nn.utils import rnn

Array = NDArray[Any]
needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="torch is not installed"
)
LENGTHS = [2, 5, 1, 5, 3]


def sequences(dtype: Any = np.float64, width: tuple[int, ...] = (3,)) -> list[Array]:
    rng = np.random.default_rng(0)
    return [(10 * rng.standard_normal((n, *width))).astype(dtype) for n in LENGTHS]


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.bool_])
@pytest.mark.parametrize("width", [(), (3,), (2, 3)])
@pytest.mark.parametrize("batch_first", [False, True])
def test_round_trip(dtype: Any, width: tuple[int, ...], batch_first: bool) -> None:
    parts = sequences(dtype, width)
    padded = rnn.pad_sequence(parts, batch_first)
    assert padded.shape == ((5, 5, *width))
    packed = rnn.pack_padded_sequence(padded, LENGTHS, batch_first, enforce_sorted=False)
    assert packed.data.shape == (sum(LENGTHS), *width)
    assert packed.data.dtype == dtype
    assert packed.batch_sizes.tolist() == [5, 4, 3, 2, 2]
    assert packed.sorted_indices.tolist() == [1, 3, 4, 0, 2]
    assert packed.sorted_indices[packed.unsorted_indices].tolist() == list(range(5))
    again, lengths = rnn.pad_packed_sequence(packed, batch_first)
    np.testing.assert_array_equal(again, padded)
    assert lengths.tolist() == LENGTHS
    assert lengths.dtype == np.int64
    for found in (rnn.unpad_sequence(padded, LENGTHS, batch_first), rnn.unpack_sequence(packed)):
        for one, two in zip(found, parts, strict=True):
            np.testing.assert_array_equal(one, two)
    other = rnn.pack_sequence(parts, enforce_sorted=False)
    for one, two in zip(other, packed, strict=True):
        np.testing.assert_array_equal(one, two)


def test_sorted_sequences_need_no_order() -> None:
    parts = sorted(sequences(), key=len, reverse=True)
    packed = rnn.pack_sequence(parts)
    assert packed.sorted_indices is None
    assert packed.unsorted_indices is None
    np.testing.assert_array_equal(packed.data[:5], np.stack([part[0] for part in parts]))


def test_padding_values_and_sides() -> None:
    parts = [np.array([1, 2, 3]), np.array([4])]
    left = rnn.pad_sequence(parts, True, -1, "left")
    assert left.tolist() == [[1, 2, 3], [-1, -1, 4]]
    padded, lengths = rnn.pad_packed_sequence(rnn.pack_sequence(parts), True, 7, total_length=4)
    assert padded.tolist() == [[1, 2, 3, 7], [4, 7, 7, 7]]
    assert lengths.tolist() == [3, 1]
    assert rnn.unpad_sequence(np.zeros((3, 2)), [0, 3])[0].shape == (0,)


def test_padding_is_not_read() -> None:
    padded = rnn.pad_sequence(sequences(), padding_value=np.nan)
    packed = rnn.pack_padded_sequence(padded, LENGTHS, enforce_sorted=False)
    assert np.isfinite(packed.data).all()


@pytest.mark.parametrize("batch_first", [False, True])
def test_gradients(batch_first: bool) -> None:
    def packing(x: Any) -> Any:
        return rnn.pack_padded_sequence(x, LENGTHS, batch_first, enforce_sorted=False).data

    x = np.random.default_rng(0).standard_normal((5, 5, 2))
    assert fn.testing.gradcheck(packing, x)
    packed = rnn.pack_padded_sequence(x, LENGTHS, batch_first, enforce_sorted=False)

    def unpacking(data: Any) -> Any:
        return rnn.pad_packed_sequence(packed._replace(data=data), batch_first, 3.0, 6)[0]

    assert fn.testing.gradcheck(unpacking, packed.data)
    for side in ("left", "right"):
        assert fn.testing.gradcheck(
            lambda *parts, side=side: rnn.pad_sequence(parts, batch_first, 1.0, side), sequences()
        )
    assert fn.testing.gradcheck(lambda x: rnn.unpad_sequence(x, LENGTHS, batch_first), x)
    assert fn.testing.gradcheck(lambda *parts: rnn.pack_sequence(parts, False).data, sequences())


@pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU"])
@pytest.mark.parametrize("batch_first", [False, True])
def test_layers_take_packed_sequences(kind: str, batch_first: bool) -> None:
    layer = getattr(nn, kind)(3, 4, 2, batch_first=batch_first, bidirectional=True).double()
    rng = np.random.default_rng(0)
    states = [fn.tensor(rng.standard_normal((4, 5, 4)), requires_grad=True) for _ in range(2)]
    state = tuple(states) if kind == "LSTM" else states[0]
    results = []
    for packing in (False, True):
        x = fn.tensor(rnn.pad_sequence(sequences(), batch_first), requires_grad=True)
        if packing:
            packed = rnn.pack_padded_sequence(x, LENGTHS, batch_first, enforce_sorted=False)
            out, last = layer(packed, state)
            assert isinstance(out, rnn.PackedSequence)
            assert out.sorted_indices is packed.sorted_indices
            out, _ = rnn.pad_packed_sequence(out, batch_first)
        else:
            out, last = layer(x, state, lengths=np.array(LENGTHS))
        last = last if kind == "LSTM" else (last,)
        total = (out * out).sum()
        for one in last:
            total = total + (one * one).sum()
        total.backward()
        grads = [x.grad, *(s.grad for s in states[: len(last)])]
        grads += [p.grad for p in layer.parameters()]
        results.append([t.numpy().copy() for t in (out, *last, *grads)])
        for value in (*states, *layer.parameters()):
            value.grad = None
    for one, two in zip(*results, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-12, atol=1e-13)


def test_packed_arrays_give_tensors() -> None:
    packed = rnn.pack_sequence(sequences(np.float32), enforce_sorted=False)
    out, h = nn.GRU(3, 4)(packed)
    assert isinstance(out.data, fn.Tensor)
    assert out.data.shape == (16, 4)
    assert h.shape == (1, 5, 4)
    assert out.to(np.float64).data.dtype == np.float64


X = np.zeros((4, 2, 3))


@pytest.mark.parametrize(
    "call, error, text",
    [
        (lambda: rnn.pack_padded_sequence(X, [3, 4]), ValueError,
         "pack_padded_sequence: lengths are [3, 4], expected falling ones; enforce_sorted=False"),
        (lambda: rnn.pack_padded_sequence(X, [3, 0]), ValueError,
         "pack_padded_sequence: lengths are [3, 0], expected 1 to 4, the steps of the input"),
        (lambda: rnn.pack_padded_sequence(X, [5, 1]), ValueError, "lengths are [5, 1], expected 1"),
        (lambda: rnn.pack_padded_sequence(X, [3]), ValueError,
         "pack_padded_sequence: lengths has shape (1,), expected (2,), one for each sequence of"),
        (lambda: rnn.pack_padded_sequence(X[:, :0], []), ValueError, "and at least one"),
        (lambda: rnn.pack_padded_sequence(X, [1.5, 1]), TypeError,
         "pack_padded_sequence: lengths has dtype float64, expected integers"),
        (lambda: rnn.pack_padded_sequence(X[0, 0], [1]), ValueError,
         "pack_padded_sequence: input has shape (3,), expected (T, N, ...)"),
        (lambda: rnn.pack_padded_sequence([[1]], [1]), TypeError,
         "pack_padded_sequence: input must be a Tensor or an array, got list"),
        (lambda: rnn.pad_packed_sequence(X), TypeError,  # type: ignore[arg-type]
         "pad_packed_sequence: expected a PackedSequence, got ndarray"),
        (lambda: rnn.pad_packed_sequence(rnn.pack_sequence([X]), total_length=3), ValueError,
         "pad_packed_sequence: total_length=3, expected at least 4"),
        (lambda: rnn.pad_packed_sequence(rnn.PackedSequence(X, np.array([2, 3]))), ValueError,
         "pad_packed_sequence: batch_sizes are [2, 3] for data of shape (4, 2, 3), expected"),
        (lambda: rnn.pad_packed_sequence(
            rnn.PackedSequence(X, np.array([2, 2]), np.array([0, 0]))), ValueError,
         "pad_packed_sequence: sorted_indices are [0, 0], expected each of 0 to 1 once"),
        (lambda: rnn.pad_sequence([]), ValueError, "pad_sequence: expected a list of at least one"),
        (lambda: rnn.pad_sequence(X), TypeError,  # type: ignore[arg-type]
         "pad_sequence: expected a list of sequences, got ndarray"),
        (lambda: rnn.pad_sequence([X, X[..., :2]]), ValueError,
         "pad_sequence: sequences[1] has shape (4, 2, 2), expected (L, ...) like sequences[0]"),
        (lambda: rnn.pad_sequence([X, X.astype("f4")]), TypeError,
         "pad_sequence: sequences[1] has dtype float32, expected float64 like sequences[0]"),
        (lambda: rnn.pad_sequence([X], padding_side="top"), ValueError,
         "pad_sequence: padding_side='top', expected 'right' or 'left'"),
        (lambda: rnn.pack_sequence([X[:2], X]), ValueError, "lengths are [2, 4], expected falling"),
        (lambda: rnn.unpad_sequence(X, [5, 1]), ValueError,
         "unpad_sequence: lengths are [5, 1], expected 2 from 0 to 4"),
        (lambda: nn.GRU(3, 2)(rnn.pack_sequence([X[:, 0]]), lengths=np.array([4])), ValueError,
         "GRU: lengths= beside a packed sequence, which has lengths of its own"),
    ],
)  # fmt: skip
def test_refused(call: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        call()
    assert text in str(caught.value)


@needs_torch
@pytest.mark.parametrize("enforce_sorted", [False, True])
def test_as_torch(enforce_sorted: bool) -> None:
    import torch
    import torch.nn.utils.rnn as theirs

    parts = sequences()
    if enforce_sorted:
        parts.sort(key=len, reverse=True)
    tensors = [torch.tensor(part) for part in parts]
    lengths = [len(part) for part in parts]
    for batch_first in (False, True):
        for side in ("left", "right"):
            np.testing.assert_array_equal(
                rnn.pad_sequence(parts, batch_first, 2.0, side),
                theirs.pad_sequence(tensors, batch_first, 2.0, side).numpy(),
            )
        padded = rnn.pad_sequence(parts, batch_first)
        mine = rnn.pack_padded_sequence(padded, lengths, batch_first, enforce_sorted)
        other = theirs.pack_padded_sequence(
            torch.tensor(padded), torch.tensor(lengths), batch_first, enforce_sorted
        )
        np.testing.assert_array_equal(mine.batch_sizes, other.batch_sizes.numpy())
        assert (mine.sorted_indices is None) == (other.sorted_indices is None)
        # Sequences of the same length may stand in another order there.
        found, sizes = rnn.pad_packed_sequence(mine, batch_first, -1.0, 8)
        expected, their_sizes = theirs.pad_packed_sequence(other, batch_first, -1.0, 8)
        np.testing.assert_array_equal(found, expected.numpy())
        np.testing.assert_array_equal(sizes, their_sizes.numpy())
    layer = nn.LSTM(3, 4, 2, bidirectional=True).double()
    twin = torch.nn.LSTM(3, 4, 2, bidirectional=True).double()
    layer.load_state_dict({name: p.numpy() for name, p in twin.state_dict().items()})
    out, (h, c) = layer(rnn.pack_sequence(parts, enforce_sorted))
    their_out, (their_h, their_c) = twin(theirs.pack_sequence(tensors, enforce_sorted))
    for one, two in zip(rnn.unpack_sequence(out), theirs.unpack_sequence(their_out), strict=True):
        np.testing.assert_allclose(one.numpy(), two.detach().numpy(), rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(h.numpy(), their_h.detach().numpy(), rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(c.numpy(), their_c.detach().numpy(), rtol=1e-9, atol=1e-11)
