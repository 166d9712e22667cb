"""Many samples as one batch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy import ndarray

from .._tensor.tape import Array, raw


def collate(samples: Sequence[Any]) -> Any:
    """One batch of samples of one kind, as NumPy arrays with a new first axis.

    Arrays (or Tensors) of one shape and dtype are stacked; Python floats become float32, ints
    int64; tuples, lists and dictionaries are collated member by member; strings are kept as a list.
    ValueError if shapes differ (see `collate_ragged`), TypeError for other kinds.

    >>> import numpy as np
    >>> from fusednn.data import collate
    >>> x, y = collate([(np.zeros(2), 1), (np.ones(2), 5)])
    >>> x.shape, y
    ((2, 2), array([1, 5]))
    """
    if not samples:
        raise ValueError("collate: there is no sample to make a batch of")
    return _collate([raw(sample) for sample in samples], "a sample")


def _collate(values: list[Any], place: str) -> Any:
    first = values[0]
    kind = ndarray if isinstance(first, (ndarray, np.generic)) else type(first)
    for value in values:
        if not isinstance(value, (ndarray, np.generic) if kind is ndarray else kind):
            raise TypeError(
                f"collate: {place} is a {type(first).__name__} in one sample and a "
                f"{type(value).__name__} in another"
            )
    if kind is ndarray:
        return _stacked(values, place)
    if isinstance(first, (bool, int, float)):
        numbers = np.array(values, np.float32 if isinstance(first, float) else None)
        if numbers.dtype.kind == "O":
            raise TypeError(f"collate: {place} has an int beyond 64 bits")
        return numbers
    if isinstance(first, (str, bytes)):
        return values
    if isinstance(first, Mapping):
        for value in values:
            if set(value) != set(first):
                raise ValueError(f"collate: {place} has the keys {list(first)} and {list(value)}")
        return {
            key: _collate([raw(value[key]) for value in values], f"{place}[{key!r}]")
            for key in first
        }
    if isinstance(first, (tuple, list)):
        for value in values:
            if len(value) != len(first):
                raise ValueError(f"collate: {place} has {len(first)} and {len(value)} members")
        parts = [
            _collate([raw(value[i]) for value in values], f"{place}[{i}]")
            for i in range(len(first))
        ]
        if hasattr(first, "_fields"):  # a named tuple
            return type(first)(*parts)
        return parts if isinstance(first, list) else tuple(parts)
    raise TypeError(f"collate: {place} is a {type(first).__name__}; give a collate_fn of your own")


def _stacked(values: list[Any], place: str) -> Array:
    first = np.asarray(values[0])
    for value in values:
        if np.shape(value) != first.shape:
            raise ValueError(
                f"collate: {place} has shape {first.shape} in one sample and {np.shape(value)} in "
                "another; pad them (collate_ragged pads sequences)"
            )
        if value.dtype != first.dtype:
            raise TypeError(
                f"collate: {place} has dtype {first.dtype} in one sample and {value.dtype} in "
                "another"
            )
    return np.stack(values)


def pad_sequences(sequences: Sequence[Any], padding_value: float = 0.0) -> tuple[Array, Array]:
    """Sequences (T_i, ...) side by side as (N, max T_i, ...), padded behind; and their lengths.

    The other sizes and the dtype must agree: ValueError or TypeError names the sequence that does
    not fit. padding_value must be one of that dtype. Lengths are int64.

    >>> import numpy as np
    >>> from fusednn.data import pad_sequences
    >>> padded, lengths = pad_sequences([np.array([1.0, 2.0]), np.array([3.0])])
    >>> padded.tolist(), lengths.tolist()
    ([[1.0, 2.0], [3.0, 0.0]], [2, 1])
    """
    arrays = [raw(sequence) for sequence in sequences]
    if not arrays:
        raise ValueError("pad_sequences: there is no sequence")
    check_sequences("pad_sequences", arrays)
    lengths = np.array([len(array) for array in arrays], np.int64)
    shape = (len(arrays), int(lengths.max()), *arrays[0].shape[1:])
    dtype = arrays[0].dtype
    whole = math.isfinite(padding_value) and padding_value == int(padding_value)
    if dtype.kind in "biu" and not whole:
        raise TypeError(f"pad_sequences: padding_value={padding_value} for sequences of {dtype}")
    out = np.full(shape, padding_value, dtype)
    for row, array in zip(out, arrays, strict=True):
        row[: len(array)] = array
    return out, lengths


def check_sequences(op: str, arrays: Sequence[Any]) -> None:
    """Raises unless all are arrays that differ in the size of their first axis alone."""
    for i, array in enumerate(arrays):
        if not isinstance(array, ndarray):
            raise TypeError(f"{op}: sequence {i} must be an array, got {type(array).__name__}")
        if array.ndim == 0:
            raise ValueError(f"{op}: sequence {i} has no axis to be a sequence along")
        if array.shape[1:] != arrays[0].shape[1:]:
            raise ValueError(
                f"{op}: sequence {i} has shape {array.shape}, sequence 0 {arrays[0].shape}; they "
                "may differ along the first axis alone"
            )
        if array.dtype != arrays[0].dtype:
            raise TypeError(
                f"{op}: sequence {i} has dtype {array.dtype}, sequence 0 {arrays[0].dtype}"
            )


def collate_ragged(samples: Sequence[Any]) -> tuple[Any, ...]:
    """One batch of (sequence, ...) samples: (padded, lengths, ...).

    The first member of each sample is padded as by `pad_sequences`, the others are collated.

    >>> import numpy as np
    >>> from fusednn.data import collate_ragged
    >>> padded, lengths, labels = collate_ragged([(np.ones((3, 2)), 0), (np.ones((1, 2)), 1)])
    >>> padded.shape, lengths, labels
    ((2, 3, 2), array([3, 1]), array([0, 1]))
    """
    rows = [tuple(sample) if isinstance(sample, (tuple, list)) else (sample,) for sample in samples]
    padded, lengths = pad_sequences([row[0] for row in rows])
    rest = collate([row[1:] for row in rows]) if len(rows[0]) > 1 else ()
    return (padded, lengths, *rest)
