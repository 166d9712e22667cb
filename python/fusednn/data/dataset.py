"""Data sets in memory, and parts of data sets.

A data set is anything with `len(dataset)` and `dataset[i]`. One that also has `take(indices)`,
which gives the collated batch of many samples at once, is spared the loop over samples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy import ndarray

from .._tensor.tape import Array, raw
from .collate import check_sequences, collate, pad_sequences

_SPLIT_STREAM = 2  # which of the generator's independent streams; shuffles use another


@runtime_checkable
class Dataset(Protocol):
    """What a `DataLoader` reads."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


def stream(seed: int, position: int, number: int) -> np.random.Generator:
    """The generator of one purpose (`number`) at a position, whatever else has been drawn.

    The ops' generator has the counter 0 for every draw; these start far beyond.
    """
    key = np.array([seed & (1 << 64) - 1, position], np.uint64)
    counter = np.array([0, 0, 0, number], np.uint64)
    return np.random.Generator(np.random.Philox(counter=counter, key=key))


def check_seed(op: str, seed: Any) -> int:
    """The seed as an int; TypeError for anything else."""
    if isinstance(seed, bool) or not hasattr(seed, "__index__"):
        raise TypeError(f"{op}: seed must be an int, got {type(seed).__name__}")
    return int(seed.__index__())


def _positions(op: str, indices: Any, size: int) -> Array:
    out = np.asarray(raw(indices))
    if out.ndim != 1 or out.dtype.kind not in "iu":
        if out.size or out.ndim != 1:
            raise TypeError(f"{op}: indices must be integers along one axis")
        out = out.astype(np.int64)
    if out.size and (out.min() < 0 or out.max() >= size):
        wrong = out[(out < 0) | (out >= size)][0]
        raise IndexError(f"{op}: index {wrong} is out of range for {size} samples")
    return out


def _columns(op: str, arrays: Sequence[Any], size: int | None) -> list[Array]:
    out = []
    for i, value in enumerate(arrays):
        array = raw(value)
        if not isinstance(array, ndarray) or array.ndim == 0:
            raise TypeError(f"{op}: arrays[{i}] must be an array with an axis of samples")
        size = len(array) if size is None else size
        if len(array) != size:
            raise ValueError(f"{op}: arrays[{i}] has {len(array)} samples, expected {size}")
        out.append(array)
    return out


class ArrayDataset:
    """Samples along the first axis of one or several arrays (or Tensors) of equal length.

    Sample i is the tuple of all arrays' entries i. The arrays are kept, not copied.

    >>> import numpy as np
    >>> from fusednn.data import ArrayDataset
    >>> dataset = ArrayDataset(np.zeros((5, 3)), np.arange(5))
    >>> len(dataset), dataset[1][1]
    (5, np.int64(1))
    """

    def __init__(self, *arrays: Any) -> None:
        if not arrays:
            raise ValueError("ArrayDataset: expected at least one array")
        self.arrays = tuple(_columns("ArrayDataset", arrays, None))

    def __len__(self) -> int:
        return len(self.arrays[0])

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        return tuple(array[index] for array in self.arrays)

    def take(self, indices: Any) -> tuple[Array, ...]:
        """The samples at integer positions, as one copied array per array."""
        rows = _positions("ArrayDataset", indices, len(self))
        return tuple(array[rows] for array in self.arrays)

    def __repr__(self) -> str:
        inside = ", ".join(f"{array.dtype}{list(array.shape)}" for array in self.arrays)
        return f"ArrayDataset({inside})"


class SequenceDataset:
    """Sequences (T_i, ...) of different lengths, and arrays (labels) with one entry for each.

    A batch is (padded sequences, lengths, labels ...), as the recurrent layers take it.

    >>> import numpy as np
    >>> from fusednn.data import SequenceDataset
    >>> dataset = SequenceDataset([np.ones((3, 2)), np.ones((1, 2))], np.array([7, 8]))
    >>> padded, lengths, labels = dataset.take([0, 1])
    >>> padded.shape, lengths, labels
    ((2, 3, 2), array([3, 1]), array([7, 8]))
    """

    def __init__(self, sequences: Sequence[Any], *arrays: Any) -> None:
        self.sequences = [raw(sequence) for sequence in sequences]
        check_sequences("SequenceDataset", self.sequences)
        self.arrays = tuple(_columns("SequenceDataset", arrays, len(self.sequences)))

    def __len__(self) -> int:
        return len(self.sequences)

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        return (self.sequences[index], *(array[index] for array in self.arrays))

    def take(self, indices: Any) -> tuple[Array, ...]:
        """The samples at integer positions: padded sequences, lengths, entries of the arrays."""
        rows = _positions("SequenceDataset", indices, len(self))
        padded, lengths = pad_sequences([self.sequences[row] for row in rows])
        return (padded, lengths, *(array[rows] for array in self.arrays))

    @property
    def lengths(self) -> Array:
        """The length of every sequence."""
        return np.array([len(sequence) for sequence in self.sequences], np.int64)

    def __repr__(self) -> str:
        inside = f"{len(self)} sequences"
        if self.sequences:
            lengths = self.lengths
            first = self.sequences[0]
            inside += f" of {first.dtype}, length {lengths.min()} to {lengths.max()}"
        return f"SequenceDataset({inside})"


class WindowDataset:
    """All stretches of a long sequence of token ids, each with the ids one place further on.

    Sample i is (ids[i : i + length], ids[i + 1 : i + length + 1]), two int64 arrays. ValueError for
    a sequence that has none, TypeError if it is not one of integers.

    >>> import numpy as np
    >>> from fusednn.data import WindowDataset
    >>> windows = WindowDataset(np.array([3, 1, 4, 1, 5]), length=3)
    >>> len(windows), windows[1]
    (2, (array([1, 4, 1]), array([4, 1, 5])))
    """

    def __init__(self, ids: Any, length: int) -> None:
        array = np.asarray(raw(ids))
        if array.ndim != 1 or array.dtype.kind not in "iu":
            raise TypeError(
                f"WindowDataset: ids have shape {array.shape} and dtype {array.dtype}, expected "
                "integers along one axis"
            )
        if not 1 <= length < array.size:
            raise ValueError(
                f"WindowDataset: length={length}, expected 1 to {array.size - 1} for a sequence of "
                f"{array.size}"
            )
        self.ids, self.length = array, int(length)

    def __len__(self) -> int:
        return len(self.ids) - self.length

    def __getitem__(self, index: int) -> tuple[Array, Array]:
        x, y = self.take([range(len(self))[index]])
        return x[0], y[0]

    def take(self, indices: Any) -> tuple[Array, Array]:
        """Inputs and targets (N, length) at integer positions."""
        rows = _positions("WindowDataset", indices, len(self))
        ids = self.ids[rows[:, None] + np.arange(self.length + 1)].astype(np.int64)
        return ids[:, :-1], ids[:, 1:]

    def __repr__(self) -> str:
        return f"WindowDataset({len(self)} windows of {self.length})"


class Subset:
    """The samples of a data set at some positions, in that order.

    >>> import numpy as np
    >>> from fusednn.data import ArrayDataset, Subset
    >>> Subset(ArrayDataset(np.arange(5)), [4, 2])[0]
    (np.int64(4),)
    """

    def __init__(self, dataset: Any, indices: Any) -> None:
        self.dataset = dataset
        self.indices = _positions("Subset", indices, len(dataset))

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> Any:
        return self.dataset[int(self.indices[index])]

    def take(self, indices: Any) -> Any:
        """The samples at integer positions, collated."""
        rows = self.indices[_positions("Subset", indices, len(self))]
        return take(self.dataset, rows)

    def __repr__(self) -> str:
        return f"Subset({len(self)} of {self.dataset!r})"


def take(dataset: Any, rows: Array) -> Any:
    """The collated batch at integer positions of any data set."""
    if hasattr(dataset, "take"):
        return dataset.take(rows)
    return collate([dataset[int(row)] for row in rows])


def _sizes(op: str, lengths: Sequence[float], total: int) -> list[int]:
    given = list(lengths)
    if not given:
        raise ValueError(f"{op}: lengths is empty")
    if any(not isinstance(n, (int, float, np.number)) or isinstance(n, bool) for n in given):
        raise TypeError(f"{op}: lengths must be ints or fractions, got {given}")
    if any(not n >= 0 for n in given):
        raise ValueError(f"{op}: lengths {given} must not be negative")
    if math.isclose(sum(given), 1) and all(n <= 1 for n in given) and total != 1:
        sizes = [math.floor(total * n) for n in given]
        for i in range(total - sum(sizes)):
            sizes[i % len(sizes)] += 1
        return sizes
    if any(n != int(n) for n in given) or sum(given) != total:
        raise ValueError(f"{op}: lengths {given} do not add up to {total}, nor as fractions to 1")
    return [int(n) for n in given]


def split(dataset: Any, lengths: Sequence[float]) -> list[Subset]:
    """Consecutive parts of a data set: numbers of samples, or fractions that add up to 1.

    >>> import numpy as np
    >>> from fusednn.data import ArrayDataset, split
    >>> [len(part) for part in split(ArrayDataset(np.arange(10)), [0.7, 0.3])]
    [7, 3]
    """
    return _parts("split", dataset, lengths, np.arange(len(dataset)))


def random_split(dataset: Any, lengths: Sequence[float], seed: int = 0) -> list[Subset]:
    """Like `split`, of a data set shuffled first: always the same way for a seed.

    Independent of `fusednn.manual_seed`, so that nothing drawn before moves a sample from the
    training part into the test part.

    >>> import numpy as np
    >>> from fusednn.data import ArrayDataset, random_split
    >>> train, test = random_split(ArrayDataset(np.arange(10)), [8, 2])
    >>> len(train), len(test)
    (8, 2)
    """
    generator = stream(check_seed("random_split", seed), 0, _SPLIT_STREAM)
    return _parts("random_split", dataset, lengths, generator.permutation(len(dataset)))


def _parts(op: str, dataset: Any, lengths: Sequence[float], order: Array) -> list[Subset]:
    parts, at = [], 0
    for size in _sizes(op, lengths, len(dataset)):
        parts.append(Subset(dataset, order[at : at + size]))
        at += size
    return parts
