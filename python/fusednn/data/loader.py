"""Batches of a data set, shuffled by a seed, perhaps made ahead by a thread, and resumable."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from .._tensor.tape import Array
from .dataset import check_seed, stream, take

_SHUFFLE_STREAM = 1
_WORD = 1 << 64  # seeds, epochs and positions stay below


class DataLoader:
    """Iterates over a data set in batches of NumPy arrays; every `for` loop is one epoch.

    dataset: anything with a length and a subscript (`ArrayDataset`, `SequenceDataset`, your own).
    shuffle: another order in every epoch, made of `seed` and the epoch's number alone, so that no
    other random number in the program changes it. drop_last: leaves out a last batch that is
    smaller. collate_fn: makes a batch of a list of samples (default: `collate`). prefetch: how many
    batches a thread makes ahead; 0 for none.

    draws: an epoch is so many samples, drawn with replacement, for data sets that are too large for
    whole passes. lengths: one number per sample; batches are then of samples of similar lengths,
    sorted within stretches of 50 batches and in random order, so that little is padding. Both need
    shuffle.

    `state_dict()` is the position: a loader that loads it goes on with the batch after those that
    were handed out, also in the middle of an epoch. A loop that is left early is not resumed: the
    next one starts the next epoch.

    >>> import numpy as np
    >>> from fusednn.data import ArrayDataset, DataLoader
    >>> loader = DataLoader(ArrayDataset(np.arange(5)), batch_size=2, shuffle=True, seed=1)
    >>> [len(batch) for (batch,) in loader]
    [2, 2, 1]
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int = 1,
        shuffle: bool = False,
        *,
        seed: int = 0,
        drop_last: bool = False,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        prefetch: int = 0,
        draws: int | None = None,
        lengths: Any = None,
    ) -> None:
        if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
            raise TypeError(
                f"DataLoader: dataset must have a length and a subscript, got "
                f"{type(dataset).__name__}"
            )
        self.dataset = dataset
        self.batch_size = _whole("batch_size", batch_size, 1)
        self.shuffle = bool(shuffle)
        self.seed = check_seed("DataLoader", seed) % _WORD
        self.drop_last = bool(drop_last)
        self.collate_fn = collate_fn
        self.prefetch = _whole("prefetch", prefetch, 0)
        self.draws = None if draws is None else _whole("draws", draws, 1)
        self._lengths = None if lengths is None else np.asarray(lengths)
        self._check_sampling()
        self._epoch = 0
        self._batch = 0  # the next one of this epoch
        self._resuming = False
        self._owner: weakref.ref[_Batches] | None = None  # the loop that moves the position

    def _check_sampling(self) -> None:
        if not self.shuffle and (self.draws is not None or self._lengths is not None):
            name = "lengths" if self.draws is None else "draws"
            raise ValueError(f"DataLoader: {name} needs shuffle=True")
        if self.draws is not None and self._lengths is not None:
            raise ValueError("DataLoader: draws and lengths do not go together")
        if self.draws is not None and not len(self.dataset):
            raise ValueError("DataLoader: the data set is empty, there is nothing to draw")
        if self._lengths is not None and self._lengths.shape != (len(self.dataset),):
            raise ValueError(
                f"DataLoader: lengths have shape {self._lengths.shape}, expected one for each of "
                f"{len(self.dataset)} samples"
            )

    def __len__(self) -> int:
        """The number of batches in an epoch."""
        samples = len(self.dataset) if self.draws is None else self.draws
        whole, rest = divmod(samples, self.batch_size)
        return whole + (rest > 0 and not self.drop_last)

    @property
    def epoch(self) -> int:
        """The number of the epoch that runs, or that the next loop starts."""
        return self._epoch

    def __iter__(self) -> Iterator[Any]:
        if self._batch and not self._resuming:
            self._epoch, self._batch = self._epoch + 1, 0
        self._resuming = False
        batches = _Batches(self)
        self._owner = weakref.ref(batches)
        return batches

    def _order(self, epoch: int) -> Array:
        size = len(self.dataset)
        if not self.shuffle:
            return np.arange(size)
        generator = stream(self.seed, epoch, _SHUFFLE_STREAM)
        if self.draws is not None:
            return generator.integers(0, size, self.draws)
        order = generator.permutation(size)
        return order if self._lengths is None else self._bucketed(order, generator)

    def _bucketed(self, order: Array, generator: np.random.Generator) -> Array:
        """The order with samples of similar lengths side by side, batch by batch."""
        assert self._lengths is not None
        size = self.batch_size
        parts = [order[at : at + 50 * size] for at in range(0, len(order), 50 * size)]
        order = np.concatenate(
            [part[np.argsort(self._lengths[part], kind="stable")] for part in parts] or [order]
        )
        whole = len(order) // size * size  # a last batch that is smaller stays the last
        batches = order[:whole].reshape(-1, size)
        mixed: Array = np.concatenate(
            [batches[generator.permutation(len(batches))].ravel(), order[whole:]]
        )
        return mixed

    # ---- saving ----

    def state_dict(self) -> dict[str, int]:
        """The position: seed, epoch, and number of the next batch.

        >>> from fusednn.data import DataLoader
        >>> DataLoader([1, 2, 3]).state_dict()
        {'seed': 0, 'epoch': 0, 'batch': 0, 'batch_size': 1, 'samples': 3}
        """
        return {
            "seed": self.seed,
            "epoch": self._epoch,
            "batch": self._batch,
            "batch_size": self.batch_size,
            "samples": len(self.dataset),
        }

    def load_state_dict(self, state_dict: Mapping[str, int]) -> None:
        """Goes on where `state_dict` was called.

        ValueError if it is not such a state, or one of other batches: of another batch size or
        number of samples.
        """
        own = self.state_dict()
        if not isinstance(state_dict, Mapping) or set(state_dict) != set(own):
            raise ValueError("DataLoader: load_state_dict expects what state_dict() gave")
        for name, value in state_dict.items():
            whole = hasattr(value, "__index__") and not isinstance(value, bool)
            if not whole or not 0 <= value < _WORD:
                raise ValueError(f"DataLoader: {name} of the state is {value!r}, expected a count")
        for name in ("batch_size", "samples"):
            if state_dict[name] != own[name]:
                raise ValueError(
                    f"DataLoader: the state has {name} {state_dict[name]}, expected {own[name]}"
                )
        if state_dict["batch"] > len(self):
            raise ValueError(
                f"DataLoader: the state is at batch {state_dict['batch']} of {len(self)}"
            )
        self.seed = int(state_dict["seed"])
        self._epoch, self._batch = int(state_dict["epoch"]), int(state_dict["batch"])
        self._resuming = True
        self._owner = None

    def __repr__(self) -> str:
        return (
            f"DataLoader({self.dataset!r}, batch_size={self.batch_size}, shuffle={self.shuffle}, "
            f"seed={self.seed}, drop_last={self.drop_last}, prefetch={self.prefetch})"
        )


def _whole(name: str, value: Any, low: int) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"DataLoader: {name} must be an int, got {type(value).__name__}")
    if value < low:
        raise ValueError(f"DataLoader: {name}={value}, expected at least {low}")
    return int(value.__index__())


class _Batches:
    """The rest of one epoch."""

    def __init__(self, loader: DataLoader) -> None:
        self._loader = loader
        self._at = loader._batch
        self._total = len(loader)
        order, size = loader._order(loader._epoch), loader.batch_size
        make, dataset, collate_fn = _batch, loader.dataset, loader.collate_fn

        def batch(number: int) -> Any:
            return make(dataset, order[number * size : (number + 1) * size], collate_fn)

        self._make = batch
        self._ahead: _Ahead | None = None
        if loader.prefetch and self._at < self._total:
            self._ahead = _Ahead(batch, range(self._at, self._total), loader.prefetch)
            # When this loop is dropped, or the interpreter ends, the thread ends before.
            weakref.finalize(self, self._ahead.close)

    def __iter__(self) -> _Batches:
        return self

    def __len__(self) -> int:
        return self._total - self._at

    def __next__(self) -> Any:
        loader = self._loader
        mine = loader._owner is not None and loader._owner() is self
        if self._at >= self._total:
            if mine:
                loader._epoch, loader._batch, loader._owner = loader._epoch + 1, 0, None
            raise StopIteration
        try:
            out = self._make(self._at) if self._ahead is None else self._ahead.take()
        except BaseException:
            self._at = self._total
            loader._owner = None if mine else loader._owner
            self.close()
            raise
        self._at += 1
        if mine:
            loader._batch = self._at
        return out

    def close(self) -> None:
        """Ends the thread, if there is one."""
        if self._ahead is not None:
            self._ahead.close()


def _batch(dataset: Any, rows: Array, collate_fn: Callable[[list[Any]], Any] | None) -> Any:
    try:
        if collate_fn is None:
            return take(dataset, rows)
        return collate_fn([dataset[int(row)] for row in rows])
    except StopIteration as error:  # would end the epoch as if it were over
        raise RuntimeError("DataLoader: the data set or collate_fn raised StopIteration") from error


class _Ahead:
    """A thread that makes batches and waits while `limit` of them are not yet taken.

    It knows nothing of the loop that takes them, so a dropped loop is not kept alive by it.
    """

    def __init__(self, make: Callable[[int], Any], numbers: range, limit: int) -> None:
        self._make = make
        self._numbers = numbers
        self._limit = limit
        self._ready: deque[tuple[Any, BaseException | None]] = deque()
        self._changed = threading.Condition()
        self._stopped = False
        self._thread = threading.Thread(target=self._work, name="fusednn-prefetch", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        for number in self._numbers:
            with self._changed:
                while len(self._ready) >= self._limit and not self._stopped:
                    self._changed.wait()
                if self._stopped:
                    return
            batch, error = None, None
            try:
                batch = self._make(number)
            except BaseException as caught:
                error = caught
                error.add_note(f"(in the prefetch thread, making batch {number})")
            with self._changed:
                self._ready.append((batch, error))
                self._changed.notify_all()
            if error is not None:
                return

    def take(self) -> Any:
        """The next batch, or the exception that making it has raised."""
        with self._changed:
            while not self._ready:
                if self._stopped or not self._thread.is_alive():
                    raise RuntimeError(
                        "DataLoader: the prefetch thread is gone; a loop that was begun before a "
                        "fork cannot go on after it"
                    )
                self._changed.wait()
            batch, error = self._ready.popleft()
            self._changed.notify_all()
        if error is not None:
            raise error
        return batch

    def close(self) -> None:
        """Ends the thread and waits for it."""
        if not self._thread.is_alive():
            return  # also in a forked child, where the lock may have been held for ever
        with self._changed:
            self._stopped = True
            self._ready.clear()
            self._changed.notify_all()
        if self._thread is not threading.current_thread():
            self._thread.join()
