"""Packed sequences: batches of different lengths without padding, as PyTorch's helpers make them.

`nn.RNN`, `nn.LSTM` and `nn.GRU` take them and give them back. Their `lengths=` argument does the
same for padded batches in one step less, in any order, and with empty sequences among them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray

from ..._tensor.device import beside, is_array, namespace
from ..._tensor.tape import Array, Gradients, Node, TensorBase, new_result, raw, record


class PackedSequence(NamedTuple):
    """The steps of sequences, time outermost, the longest sequence first: what is active at step t
    are batch_sizes[t] rows of `data`, one for each sequence that is longer than t.

    data (sum of lengths, ...), an array or a Tensor; batch_sizes (longest length,), falling; where
    sequences were sorted, sorted_indices (N,) says which one stands at a place, and
    unsorted_indices (N,) the other way round; else both are None. Made by `pack_padded_sequence`
    and `pack_sequence`; `packed._replace(data=f(packed.data))` applies a function to every step.

    >>> from fusednn import nn
    >>> packed = nn.utils.rnn.pack_sequence([np.array([1, 2, 3]), np.array([4, 5])])
    >>> packed.data.tolist(), packed.batch_sizes.tolist()
    ([1, 4, 2, 5, 3], [2, 2, 1])
    """

    data: Any
    batch_sizes: Any
    sorted_indices: Any = None
    unsorted_indices: Any = None

    def to(self, *targets: Any, **options: Any) -> PackedSequence:
        """With data.to(...), which must be a Tensor."""
        return self._replace(data=self.data.to(*targets, **options))


@dataclass(frozen=True)
class Places:
    """Where the rows of packed data stand in a padded batch."""

    time: Array
    sequence: Array
    lengths: Array  # in the order of the padded batch

    def at(self, batch_first: bool) -> tuple[Array, Array]:
        return (self.sequence, self.time) if batch_first else (self.time, self.sequence)


def _places(batch_sizes: Array, order: Array | None) -> Places:
    time = np.repeat(np.arange(len(batch_sizes)), batch_sizes)
    starts = np.repeat(np.cumsum(batch_sizes) - batch_sizes, batch_sizes)
    sequence = np.arange(len(time)) - starts
    lengths = np.bincount(sequence, minlength=int(batch_sizes[0]))
    if order is not None:
        sequence = order[sequence]
        lengths = _scattered(lengths, order)
    return Places(time, sequence, lengths)


def _scattered(values: Array, order: Array) -> Array:
    out = np.empty_like(values)
    out[order] = values
    return out


def places(op: str, packed: PackedSequence) -> Places:
    """Where the rows of a packed sequence belong; ValueError or TypeError if it is not one."""
    sizes = _integers(op, "batch_sizes", packed.batch_sizes)
    rows = raw(packed.data).shape[:1]
    if sizes.size == 0 or sizes[-1] < 1 or (np.diff(sizes) > 0).any() or rows != (sizes.sum(),):
        raise ValueError(
            f"{op}: batch_sizes are {sizes.tolist()} for data of shape {raw(packed.data).shape}, "
            "expected falling counts from 1 up that add up to its rows"
        )
    order = None
    if packed.sorted_indices is not None:
        order = _integers(op, "sorted_indices", packed.sorted_indices)
        if order.shape != (sizes[0],) or (np.sort(order) != np.arange(sizes[0])).any():
            raise ValueError(
                f"{op}: sorted_indices are {order.tolist()}, expected each of 0 to {sizes[0] - 1} "
                "once"
            )
    return _places(sizes, order)


# ---- packing -------------------------------------------------------------------------------------


def pack_padded_sequence(
    input: Any, lengths: Any, batch_first: bool = False, enforce_sorted: bool = True
) -> PackedSequence:
    """Packs a padded batch (T, N, ...), or (N, T, ...) if batch_first, of any dtype.

    lengths (N,): a list or array of integers from 1 to T. They must fall if enforce_sorted; else
    sequences are sorted here, and the result remembers their order. ValueError for lengths that do
    not fit, TypeError for what is not integers. The padding is not read, and gets no gradient.

    >>> from fusednn import nn
    >>> x = np.array([[1, 4], [2, 5], [3, 0]])
    >>> nn.utils.rnn.pack_padded_sequence(x, [3, 2]).data.tolist()
    [1, 4, 2, 5, 3]
    """
    op = "pack_padded_sequence"
    x = _array(op, "input", input)
    if x.ndim < 2:
        raise ValueError(f"{op}: input has shape {x.shape}, expected (T, N, ...)")
    batch, steps = x.shape[:2] if batch_first else x.shape[1::-1]
    sizes = _integers(op, "lengths", lengths)
    if sizes.shape != (batch,) or batch == 0:
        raise ValueError(
            f"{op}: lengths has shape {sizes.shape}, expected ({batch},), one for each sequence of "
            f"input {x.shape}, and at least one"
        )
    if sizes.min() < 1 or sizes.max() > steps:
        raise ValueError(
            f"{op}: lengths are {sizes.tolist()}, expected 1 to {steps}, the steps of the input"
        )
    order = inverse = None
    if not enforce_sorted:
        order = np.argsort(-sizes, kind="stable")
        inverse = _scattered(np.arange(batch), order)
        sizes = sizes[order]
    elif (np.diff(sizes) > 0).any():
        raise ValueError(
            f"{op}: lengths are {sizes.tolist()}, expected falling ones; enforce_sorted=False sorts"
        )
    counts = np.bincount(sizes, minlength=sizes[0] + 1)
    batch_sizes = np.cumsum(counts[::-1])[::-1][1:]
    found = _places(batch_sizes, order)
    return PackedSequence(gather(input, found.at(batch_first)), batch_sizes, order, inverse)


def pad_packed_sequence(
    sequence: PackedSequence,
    batch_first: bool = False,
    padding_value: float = 0.0,
    total_length: int | None = None,
) -> tuple[Any, Array]:
    """The inverse: (T, N, ...), or (N, T, ...) if batch_first, in the original order, and lengths
    (N,), int64.

    T is the longest length, or total_length, which must not be less (ValueError). TypeError for
    what is no `PackedSequence`.

    >>> from fusednn import nn
    >>> packed = nn.utils.rnn.pack_sequence([np.array([1, 2, 3]), np.array([4, 5])])
    >>> padded, lengths = nn.utils.rnn.pad_packed_sequence(packed, batch_first=True)
    >>> padded.tolist(), lengths.tolist()
    ([[1, 2, 3], [4, 5, 0]], [3, 2])
    """
    op = "pad_packed_sequence"
    if not isinstance(sequence, PackedSequence):
        raise TypeError(f"{op}: expected a PackedSequence, got {type(sequence).__name__}")
    found = places(op, sequence)
    steps = longest = len(raw(sequence.batch_sizes))
    if total_length is not None:
        steps = total_length
    if steps < longest:
        raise ValueError(f"{op}: total_length={steps}, expected at least {longest}")
    return pad(sequence.data, found, batch_first, padding_value, steps), found.lengths


def pad_sequence(
    sequences: Sequence[Any],
    batch_first: bool = False,
    padding_value: float = 0.0,
    padding_side: str = "right",
) -> Any:
    """Sequences (L_i, ...) of any lengths as one batch (T, N, ...), or (N, T, ...) if batch_first.

    T is the longest length. padding_side "right" puts the padding behind each sequence, "left"
    before it. ValueError for shapes that differ behind the first axis, TypeError for other dtypes.

    >>> from fusednn import nn
    >>> a, b = np.array([1, 2, 3]), np.array([4, 5])
    >>> nn.utils.rnn.pad_sequence([a, b], batch_first=True, padding_side="left").tolist()
    [[1, 2, 3], [0, 4, 5]]
    """
    op = "pad_sequence"
    if padding_side not in ("right", "left"):
        raise ValueError(f"{op}: padding_side={padding_side!r}, expected 'right' or 'left'")
    parts = _sequences(op, sequences)
    first, steps = parts[0], max(len(part) for part in parts)
    slices = []
    for i, part in enumerate(parts):
        time = slice(steps - len(part), None) if padding_side == "left" else slice(len(part))
        slices.append((i, time) if batch_first else (time, i))
    lead = (len(parts), steps) if batch_first else (steps, len(parts))
    out = namespace(first).full((*lead, *first.shape[1:]), padding_value, first.dtype)
    for part, at in zip(parts, slices, strict=True):
        out[at] = part
    inputs = tuple(sequences)
    if not any(isinstance(value, TensorBase) for value in inputs):
        return out
    return record(out, _pad_sequence_backward, inputs, (), (slices,))


def _pad_sequence_backward(node: Node, grad: Any) -> Gradients:
    (slices,) = node.saved
    return tuple([grad[at] for at in slices])


def unpad_sequence(padded_sequences: Any, lengths: Any, batch_first: bool = False) -> list[Any]:
    """The sequences of a batch padded behind them: what `pad_sequence` was given, views.

    lengths (N,), integers from 0 to T; ValueError for others.

    >>> from fusednn import nn
    >>> x = np.array([[1, 4], [2, 5], [3, 0]])
    >>> [part.tolist() for part in nn.utils.rnn.unpad_sequence(x, [3, 2])]
    [[1, 2, 3], [4, 5]]
    """
    op = "unpad_sequence"
    x = _array(op, "padded_sequences", padded_sequences)
    if x.ndim < 2:
        raise ValueError(f"{op}: padded_sequences has shape {x.shape}, expected (T, N, ...)")
    batch, steps = x.shape[:2] if batch_first else x.shape[1::-1]
    sizes = _integers(op, "lengths", lengths)
    if sizes.shape != (batch,) or (batch and (sizes.min() < 0 or sizes.max() > steps)):
        raise ValueError(f"{op}: lengths are {sizes.tolist()}, expected {batch} from 0 to {steps}")
    return [
        padded_sequences[(i, slice(n)) if batch_first else (slice(n), i)]
        for i, n in enumerate(sizes.tolist())
    ]


def pack_sequence(sequences: Sequence[Any], enforce_sorted: bool = True) -> PackedSequence:
    """Packs sequences (L_i, ...), falling in length if enforce_sorted, none of them empty; see
    `pack_padded_sequence` for the rest.

    >>> from fusednn import nn
    >>> packed = nn.utils.rnn.pack_sequence([np.array([1]), np.array([2, 3])], enforce_sorted=False)
    >>> packed.data.tolist(), packed.sorted_indices.tolist()
    ([2, 1, 3], [1, 0])
    """
    lengths = np.array([len(part) for part in _sequences("pack_sequence", sequences)])
    return pack_padded_sequence(pad_sequence(sequences), lengths, False, enforce_sorted)


def unpack_sequence(packed_sequences: PackedSequence) -> list[Any]:
    """The sequences of a packed batch, in the order they were packed in.

    >>> from fusednn import nn
    >>> packed = nn.utils.rnn.pack_sequence([np.array([1]), np.array([2, 3])], enforce_sorted=False)
    >>> [part.tolist() for part in nn.utils.rnn.unpack_sequence(packed)]
    [[1], [2, 3]]
    """
    return unpad_sequence(*pad_packed_sequence(packed_sequences))


# ---- rows of padded batches ----------------------------------------------------------------------


def gather(input: Any, index: tuple[Array, Array]) -> Any:
    """input[index], no place twice; a Tensor if it is one."""
    index = _beside(index, raw(input))
    data = raw(input)[index]
    if not isinstance(input, TensorBase):
        return data
    return record(data, _gather_backward, (input,), (), (index, input._data.shape))


def _gather_backward(node: Node, grad: Any) -> Gradients:
    index, shape = node.saved
    return (_placed(grad, index, shape, 0),)


def pad(data: Any, found: Places, batch_first: bool, value: float, steps: int) -> Any:
    """The rows of packed data where they belong in a padded batch; a Tensor if they are one."""
    rows, batch = raw(data), len(found.lengths)
    shape = ((batch, steps) if batch_first else (steps, batch)) + rows.shape[1:]
    index = _beside(found.at(batch_first), rows)
    out = _placed(rows, index, shape, value)
    if not isinstance(data, TensorBase):
        return out
    return record(out, _pad_backward, (data,), (), (index,))


def _pad_backward(node: Node, grad: Any) -> Gradients:
    (index,) = node.saved
    return (grad[index],)


def _beside(index: tuple[Array, Array], rows: Array) -> tuple[Array, Array]:
    return beside(index[0], rows), beside(index[1], rows)


def _placed(rows: Array, index: tuple[Array, Array], shape: tuple[int, ...], value: float) -> Array:
    if type(rows) is ndarray:
        out = new_result(shape, rows.dtype)
        out.fill(value)
    else:
        out = namespace(rows).full(shape, value, rows.dtype)
    out[index] = rows
    return out


# ---- arguments -----------------------------------------------------------------------------------


def _array(op: str, name: str, value: Any) -> Array:
    array = raw(value)
    if not is_array(array):
        raise TypeError(f"{op}: {name} must be a Tensor or an array, got {type(value).__name__}")
    return array


def _integers(op: str, name: str, value: Any) -> Array:
    array = np.asarray(raw(value))
    if array.dtype.kind not in "iu" and array.size:
        raise TypeError(f"{op}: {name} has dtype {array.dtype}, expected integers")
    return array.astype(np.int64)


def _sequences(op: str, sequences: Any) -> list[Array]:
    if not isinstance(sequences, (list, tuple)):
        raise TypeError(f"{op}: expected a list of sequences, got {type(sequences).__name__}")
    if not sequences:
        raise ValueError(f"{op}: expected a list of at least one sequence, got none")
    parts = [_array(op, f"sequences[{i}]", value) for i, value in enumerate(sequences)]
    first = parts[0]
    for i, part in enumerate(parts):
        if part.ndim == 0 or part.shape[1:] != first.shape[1:]:
            raise ValueError(
                f"{op}: sequences[{i}] has shape {part.shape}, expected (L, ...) like sequences[0] "
                f"{first.shape}"
            )
        if part.dtype != first.dtype:
            raise TypeError(
                f"{op}: sequences[{i}] has dtype {part.dtype}, expected {first.dtype} like "
                "sequences[0]"
            )
    return parts


# How other modules that walk over sequences treat packed ones.
def through(
    op: str, function: Callable[..., Any], packed: PackedSequence, state: Any, lengths: Any
) -> Any:
    """(packed output, state) of function(padded, state, lengths) -> (output, state), both padded
    arrays (T, N, ...) in the original order."""
    if lengths is not None:
        raise ValueError(f"{op}: lengths= beside a packed sequence, which has lengths of its own")
    found = places(op, packed)
    x = pad(packed.data, found, False, 0.0, len(raw(packed.batch_sizes)))
    out, state = function(x, state, found.lengths)
    return packed._replace(data=gather(out, found.at(False))), state


__all__ = [
    "PackedSequence",
    "pack_padded_sequence",
    "pack_sequence",
    "pad_packed_sequence",
    "pad_sequence",
    "unpack_sequence",
    "unpad_sequence",
]
