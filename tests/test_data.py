"""Data sets and batches."""

import collections
import gc
import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fusednn as fn
from fusednn.data import (
    ArrayDataset,
    DataLoader,
    SequenceDataset,
    Subset,
    collate,
    collate_ragged,
    pad_sequences,
    random_split,
    split,
)

f32 = np.float32


def numbers(size=23):
    return ArrayDataset(np.arange(size))


def seen(loader):
    return [batch[0].tolist() for batch in loader]


def prefetch_threads():
    return [t for t in threading.enumerate() if t.name == "fusednn-prefetch"]


@pytest.fixture(autouse=True)
def no_thread_is_left():
    yield
    gc.collect()
    assert prefetch_threads() == []


# ---- batches -------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefetch", [0, 1, 3])
@pytest.mark.parametrize("size", [0, 1, 6, 7, 8, 23])
@pytest.mark.parametrize("drop_last", [False, True])
def test_every_sample_comes_once(size, drop_last, prefetch):
    loader = DataLoader(numbers(size), 3, shuffle=True, drop_last=drop_last, prefetch=prefetch)
    batches = seen(loader)
    assert len(batches) == len(loader)
    expected = size - size % 3 if drop_last else size
    flat = [sample for batch in batches for sample in batch]
    assert len(flat) == len(set(flat)) == expected
    assert all(len(batch) == 3 for batch in batches[:-1])


def test_without_shuffling_the_order_is_that_of_the_data():
    loader = DataLoader(numbers(5), 2)
    assert seen(loader) == seen(loader) == [[0, 1], [2, 3], [4]]


def test_the_order_depends_on_seed_and_epoch_alone():
    fn.manual_seed(1)
    one = DataLoader(numbers(), 4, shuffle=True, seed=7)
    first, second = seen(one), seen(one)
    assert first != second
    fn.manual_seed(2)
    fn.rand(3)
    np.random.default_rng().random(3)
    drawn = fn.random.get_state()
    other = DataLoader(numbers(), 4, shuffle=True, seed=7, prefetch=2)
    assert [seen(other), seen(other)] == [first, second]
    assert fn.random.get_state() == drawn
    assert seen(DataLoader(numbers(), 4, shuffle=True, seed=8)) != first
    # Seeds are taken modulo 2**64, as everywhere.
    assert seen(DataLoader(numbers(), 4, shuffle=True, seed=7 + 2**64)) == first


def test_shuffles_share_no_stream_with_other_draws():
    fn.manual_seed(0)
    ops = fn.random.next_generator().permutation(50).tolist()
    assert seen(DataLoader(numbers(50), 50, shuffle=True, seed=0))[0] != ops
    parts = random_split(numbers(50), [50], seed=0)
    assert parts[0].indices.tolist() not in (ops, seen(DataLoader(numbers(50), 50, True))[0])


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    size=st.integers(0, 40),
    batch=st.integers(1, 9),
    stop=st.integers(0, 50),
    prefetch=st.integers(0, 2),
    drop_last=st.booleans(),
)
def test_a_resumed_loader_sees_the_same_batches(size, batch, stop, prefetch, drop_last):
    def loader():
        return DataLoader(
            numbers(size), batch, shuffle=True, seed=3, drop_last=drop_last, prefetch=prefetch
        )

    def three_epochs(one, log, first=0, stop_after=None):
        for epoch in range(first, 3):
            for (x,) in one:
                log.append((epoch, x.tolist()))
                if len(log) == stop_after:
                    return epoch, one.state_dict()
        return 3, one.state_dict()

    whole = []
    three_epochs(loader(), whole)
    stop = min(stop, len(whole))
    log = []
    epoch, state = three_epochs(loader(), log, stop_after=stop or None)
    if not stop:
        epoch, state, log = 0, loader().state_dict(), []
    resumed = loader()
    resumed.load_state_dict(state)
    three_epochs(resumed, log, epoch)
    assert log == whole


def test_a_loop_that_is_left_early_is_not_resumed():
    loader = DataLoader(numbers(), 4, shuffle=True)
    epochs = [seen(loader), seen(loader), seen(loader)]
    again = DataLoader(numbers(), 4, shuffle=True)
    for (x,) in again:
        assert x.tolist() == epochs[0][0]
        break
    assert again.epoch == 0
    assert seen(again) == epochs[1]
    assert again.epoch == 2


def test_two_loops_at_once_do_not_disturb_each_other():
    loader = DataLoader(numbers(9), 2, prefetch=1)
    pairs = [(a[0][0], b[0][0]) for a, b in zip(loader, loader, strict=True)]
    assert pairs == [(0, 0), (2, 2), (4, 4), (6, 6), (8, 8)]
    first, second = iter(loader), iter(loader)
    next(first)
    next(first)
    next(second)
    assert loader.state_dict()["batch"] == 1  # the newest loop has the position


def test_a_state_that_does_not_fit_is_refused_and_changes_nothing():
    loader = DataLoader(numbers(), 4)
    next(iter(loader))
    good = loader.state_dict()
    assert good == {"seed": 0, "epoch": 0, "batch": 1, "batch_size": 4, "samples": 23}
    for change, text in (
        ({"batch": 7}, "the state is at batch 7 of 6"),
        ({"batch": -1}, "batch of the state is -1, expected a count"),
        ({"epoch": 1.0}, "epoch of the state is 1.0, expected a count"),
        ({"epoch": True}, "epoch of the state is True"),
        ({"epoch": 2**64}, "epoch of the state is 18446744073709551616, expected a count"),
        ({"seed": "0"}, "seed of the state is '0', expected a count"),
        ({"batch_size": 5}, "the state has batch_size 5, expected 4"),
        ({"samples": 24}, "the state has samples 24, expected 23"),
        ({"more": 1}, r"expects what state_dict\(\) gave"),
    ):
        with pytest.raises(ValueError, match=text):
            loader.load_state_dict({**good, **change})
        assert loader.state_dict() == good
    for state in ({}, None, [1]):
        with pytest.raises(ValueError, match="expects what state_dict"):
            loader.load_state_dict(state)


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: DataLoader(3), TypeError, "dataset must have a length and a subscript, got int"),
        (lambda: DataLoader([1], 0), ValueError, "batch_size=0, expected at least 1"),
        (lambda: DataLoader([1], 1.0), TypeError, "batch_size must be an int, got float"),
        (lambda: DataLoader([1], True), TypeError, "batch_size must be an int, got bool"),
        (lambda: DataLoader([1], prefetch=-1), ValueError, "prefetch=-1, expected at least 0"),
        (lambda: DataLoader([1], seed=None), TypeError, "seed must be an int, got NoneType"),
        (lambda: DataLoader([1], seed=1.5), TypeError, "seed must be an int, got float"),
    ],
)
def test_bad_loaders_are_refused(make, error, text):
    with pytest.raises(error, match=text):
        make()


def test_any_object_with_a_length_and_a_subscript_is_a_data_set():
    class Squares:
        def __len__(self):
            return 5

        def __getitem__(self, i):
            return {"n": i, "square": np.full(2, i * i, f32)}

    batch = next(iter(DataLoader(Squares(), 3)))
    assert batch["n"].tolist() == [0, 1, 2]
    assert batch["square"].tolist() == [[0, 0], [1, 1], [4, 4]]
    assert seen(DataLoader([(1,), (2,)], 2)) == [[1, 2]]
    assert list(DataLoader([1.5, 2.5, 3.5], 2, collate_fn=sum)) == [4.0, 3.5]


def test_repr():
    assert repr(DataLoader(numbers(3), 2, shuffle=True)) == (
        "DataLoader(ArrayDataset(int64[3]), batch_size=2, shuffle=True, seed=0, drop_last=False, "
        "prefetch=0)"
    )


# ---- the prefetch thread -------------------------------------------------------------------------


class Counting:
    """Counts the samples asked for; raises at one of them."""

    def __init__(self, size, bad=None):
        self.size, self.bad, self.made = size, bad, 0

    def __len__(self):
        return self.size

    def __getitem__(self, i):
        if i == self.bad:
            raise OSError(f"sample {i} is unreadable")
        self.made += 1
        return np.array([i])


def settled(read, expected):
    """Waits until read() is `expected`, and a little more."""
    end = time.monotonic() + 10
    while read() != expected and time.monotonic() < end:
        time.sleep(0.001)
    time.sleep(0.02)
    return read()


@pytest.mark.parametrize("limit", [1, 3])
def test_the_thread_works_ahead_but_not_further(limit):
    dataset = Counting(20)
    batches = iter(DataLoader(dataset, 1, prefetch=limit))
    assert settled(lambda: dataset.made, limit) == limit
    next(batches)
    next(batches)
    assert settled(lambda: dataset.made, limit + 2) == limit + 2
    assert len(prefetch_threads()) == 1


@pytest.mark.parametrize("prefetch", [0, 2])
def test_an_exception_comes_where_its_batch_would(prefetch):
    loader = DataLoader(Counting(9, bad=5), 2, prefetch=prefetch)
    batches = iter(loader)
    assert [next(batches).ravel().tolist(), next(batches).ravel().tolist()] == [[0, 1], [2, 3]]
    with pytest.raises(OSError, match="sample 5 is unreadable") as caught:
        next(batches)
    if prefetch:
        assert caught.value.__notes__ == ["(in the prefetch thread, making batch 2)"]
    assert next(batches, None) is None
    assert loader.state_dict()["batch"] == 2


def test_the_thread_ends_when_the_loop_does():
    loader = DataLoader(numbers(), 4, prefetch=2)
    assert len(seen(loader)) == 6
    assert settled(prefetch_threads, []) == []
    for _ in loader:
        break
    gc.collect()
    assert prefetch_threads() == []
    batches = iter(loader)
    next(batches)
    batches.close()
    assert prefetch_threads() == []
    with pytest.raises(RuntimeError, match="the prefetch thread is gone"):
        next(batches)
    with pytest.raises(KeyError):
        for _ in loader:
            raise KeyError
    del batches
    gc.collect()


def test_the_interpreter_ends_in_the_middle_of_a_loop():
    code = """
import numpy as np
from fusednn.data import ArrayDataset, DataLoader
batches = iter(DataLoader(ArrayDataset(np.zeros((5000, 99))), 1, prefetch=4))
next(batches)
print("done")
"""
    result = subprocess.run(
        [sys.executable, "-X", "dev", "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "done\n", "")


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_is_told_that_the_thread_is_gone():
    batches = iter(DataLoader(numbers(), 1, prefetch=1))
    next(batches)
    time.sleep(0.05)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            for _ in batches:
                pass
        except RuntimeError as error:
            code = 0 if "fork" in str(error) else 2
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert len(list(batches)) == 22


# ---- samples to batches --------------------------------------------------------------------------


def test_collate():
    out = collate([(np.zeros(2, f32), 1, 0.5, "a", True), (np.ones(2, f32), 2, 1.5, "b", False)])
    x, y, z, names, flags = out
    assert x.tolist() == [[0, 0], [1, 1]]
    assert (x.dtype, y.dtype, z.dtype, flags.dtype) == (f32, np.int64, f32, bool)
    assert names == ["a", "b"]
    assert isinstance(collate([[1], [2]]), list)
    assert collate([fn.ones(2), fn.zeros(2)]).tolist() == [[1, 1], [0, 0]]
    assert collate([{"a": fn.ones(1)}, {"a": fn.zeros(1)}])["a"].tolist() == [[1], [0]]
    assert collate([f32(1), f32(2)]).dtype == f32
    assert collate([np.array(1), np.array(2)]).tolist() == [1, 2]


@pytest.mark.parametrize(
    ("samples", "error", "text"),
    [
        ([], ValueError, "there is no sample"),
        ([np.ones(2), np.ones(3)], ValueError, r"a sample has shape \(2,\) .* and \(3,\) .*ragged"),
        ([(1, np.ones(2)), (1, np.ones(3))], ValueError, r"a sample\[1\] has shape"),
        ([np.ones(2), np.ones(2, f32)], TypeError, "dtype float64 in one sample and float32"),
        ([1, 1.0], TypeError, "is a int in one sample and a float in another"),
        ([(1, 2), (1,)], ValueError, "has 2 and 1 members"),
        ([{"a": 1}, {"b": 1}], ValueError, r"has the keys \['a'\] and \['b'\]"),
        ([object(), object()], TypeError, "is a object; give a collate_fn"),
    ],
)
def test_samples_that_make_no_batch(samples, error, text):
    with pytest.raises(error, match=text):
        collate(samples)


def test_ragged_sequences():
    sequences = [np.arange(6.0).reshape(3, 2), np.zeros((0, 2)), np.ones((1, 2))]
    padded, lengths = pad_sequences(sequences, padding_value=-1)
    assert padded.shape == (3, 3, 2)
    assert lengths.tolist() == [3, 0, 1]
    assert lengths.dtype == np.int64
    for row, length, sequence in zip(padded, lengths, sequences, strict=True):
        np.testing.assert_array_equal(row[:length], sequence)
        assert (row[length:] == -1).all()
    padded, lengths, labels = collate_ragged([(s, i) for i, s in enumerate(sequences)])
    assert padded.dtype == np.float64
    assert labels.tolist() == [0, 1, 2]
    assert len(collate_ragged(sequences)) == 2
    loader = DataLoader([(s, i) for i, s in enumerate(sequences)], 2, collate_fn=collate_ragged)
    assert [batch[0].shape for batch in loader] == [(2, 3, 2), (1, 1, 2)]


@pytest.mark.parametrize(
    ("sequences", "error", "text"),
    [
        ([], ValueError, "there is no sequence"),
        ([np.ones((2, 3)), np.ones((2, 4))], ValueError, r"sequence 1 has shape \(2, 4\)"),
        ([np.ones(2), np.ones(2, f32)], TypeError, "sequence 1 has dtype float32"),
        ([np.ones(2), 3], TypeError, "sequence 1 must be an array, got int"),
        ([np.array(1.0)], ValueError, "sequence 0 has no axis"),
    ],
)
def test_sequences_that_do_not_fit(sequences, error, text):
    with pytest.raises(error, match=text):
        pad_sequences(sequences)


def test_array_dataset():
    x, y = np.arange(12.0).reshape(4, 3), np.array([3, 2, 1, 0])
    dataset = ArrayDataset(fn.from_numpy(x), y)
    assert len(dataset) == 4
    assert np.shares_memory(dataset.arrays[0], x)
    assert dataset[-1][1] == 0
    rows, labels = dataset.take([2, 0, 2])
    assert rows[:, 0].tolist() == [6, 0, 6]
    assert labels.tolist() == [1, 3, 1]
    rows[:] = 9
    assert x[2, 0] == 6
    assert dataset.take([])[0].shape == (0, 3)
    assert repr(dataset) == "ArrayDataset(float64[4, 3], int64[4])"
    for index in ([4], [-1]):
        with pytest.raises(IndexError, match=rf"index {index[0]} is out of range for 4 samples"):
            dataset.take(index)
    for index in ([0.5], [[0]], ["a"]):
        with pytest.raises(TypeError, match="indices must be integers along one axis"):
            dataset.take(index)
    with pytest.raises(ValueError, match=r"arrays\[1\] has 3 samples, expected 4"):
        ArrayDataset(x, y[:3])
    with pytest.raises(TypeError, match=r"arrays\[0\] must be an array with an axis"):
        ArrayDataset(np.array(1.0))
    with pytest.raises(TypeError, match=r"arrays\[0\] must be an array"):
        ArrayDataset([1, 2])
    with pytest.raises(ValueError, match="expected at least one array"):
        ArrayDataset()


def test_sequence_dataset():
    dataset = SequenceDataset([np.ones((n, 2), f32) for n in (3, 1, 2)], np.arange(3))
    assert len(dataset) == 3
    assert dataset[1][0].shape == (1, 2)
    assert dataset.lengths.tolist() == [3, 1, 2]
    batches = list(DataLoader(dataset, 2))
    assert [b[0].shape for b in batches] == [(2, 3, 2), (1, 2, 2)]
    assert [b[1].tolist() for b in batches] == [[3, 1], [2]]
    assert repr(dataset) == "SequenceDataset(3 sequences of float32, length 1 to 3)"
    with pytest.raises(ValueError, match=r"arrays\[0\] has 2 samples, expected 3"):
        SequenceDataset(dataset.sequences, np.arange(2))


def test_splits():
    dataset = numbers(10)
    first, rest = split(dataset, [7, 3])
    assert (first.indices.tolist(), rest.indices.tolist()) == (list(range(7)), [7, 8, 9])
    parts = random_split(dataset, [0.5, 0.25, 0.25], seed=4)
    assert [len(part) for part in parts] == [6, 2, 2]
    assert sorted(i for part in parts for i in part.indices.tolist()) == list(range(10))
    fn.manual_seed(77)
    again = random_split(dataset, [0.5, 0.25, 0.25], seed=4)
    assert [p.indices.tolist() for p in again] == [p.indices.tolist() for p in parts]
    other = random_split(dataset, [6, 2, 2], seed=5)
    assert [p.indices.tolist() for p in other] != [p.indices.tolist() for p in parts]
    assert parts[1].take([1])[0].tolist() == [parts[1].indices[1]]
    assert parts[1][1] == (parts[1].indices[1],)
    nested = Subset(rest, [2, 0])
    assert nested.take([0, 1])[0].tolist() == [9, 7]
    assert Subset([(i, 0.5) for i in range(5)], [4, 2]).take([0, 1])[0].tolist() == [4, 2]
    assert repr(nested) == "Subset(2 of Subset(3 of ArrayDataset(int64[10])))"
    assert seen(DataLoader(rest, 2)) == [[7, 8], [9]]


@pytest.mark.parametrize(
    ("lengths", "error", "text"),
    [
        ([5, 6], ValueError, r"lengths \[5, 6\] do not add up to 10"),
        ([0.5, 0.6], ValueError, "do not add up"),
        ([2.5, 7.5], ValueError, "do not add up"),
        ([-1, 11], ValueError, "must not be negative"),
        ([float("nan"), 1], ValueError, "must not be negative"),
        ([], ValueError, "lengths is empty"),
        (["5", "5"], TypeError, "must be ints or fractions"),
    ],
)
def test_bad_splits(lengths, error, text):
    with pytest.raises(error, match=text):
        split(numbers(10), lengths)


# ---- what must not be lost -----------------------------------------------------------------------


class Ending:
    def __len__(self):
        return 3

    def __getitem__(self, index):
        if index == 1:
            raise StopIteration
        return index


@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_stop_iteration_of_the_data_set_does_not_end_the_epoch(prefetch):
    batches = iter(DataLoader(Ending(), 1, prefetch=prefetch))
    assert next(batches) == [0]
    with pytest.raises(RuntimeError, match="raised StopIteration"):
        next(batches)


def test_named_tuples_stay_named():
    Pair = collections.namedtuple("Pair", "x y")
    batch = collate([Pair(1, [2.0]), Pair(3, [4.0])])
    assert type(batch) is Pair
    assert batch.x.tolist() == [1, 3]


def test_numbers_that_would_change_are_refused():
    with pytest.raises(TypeError, match="a sample has an int beyond 64 bits"):
        collate([2**70, 1])
    for value in (1.5, np.nan, np.inf):
        with pytest.raises(TypeError, match=f"padding_value={value} for sequences of int64"):
            pad_sequences([np.array([1, 2]), np.array([3])], value)
    assert pad_sequences([np.array([1, 2]), np.array([3])], -1.0)[0].tolist() == [[1, 2], [3, -1]]
    assert np.isnan(pad_sequences([np.ones(2), np.ones(1)], np.nan)[0][1, 1])
