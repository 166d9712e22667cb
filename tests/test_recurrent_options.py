"""Recurrent dropout, dropout that is the same at every step, and checkpoints, from the modules."""

from __future__ import annotations

import gc
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import fusednn as fn
import fusednn.functional as F
from fusednn import _core, nn

Array = NDArray[Any]
KINDS = ["RNN", "LSTM", "GRU"]


def layer_of(kind: str, *args: Any, **options: Any) -> Any:
    fn.manual_seed(3)
    return getattr(nn, kind)(*args, **options, dtype=np.float64)


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape)


# ---- recurrent dropout ---------------------------------------------------------------------------


def test_one_mask_for_all_steps() -> None:
    """A linear network that repeats h shows the mask: h_t = m (h_{t-1}) + 1 for kept units."""
    eye = np.eye(6)
    x = np.zeros((4, 2, 6))
    x[0] = 1
    fn.manual_seed(0)
    out, _ = F.rnn(
        x, None, [eye, eye], nonlinearity="identity", recurrent_dropout=0.5, training=True
    )
    kept = out[1] != 0
    assert 0 < kept.sum() < kept.size
    assert not (kept[0] == kept[1]).all()  # of each sequence its own
    for t in range(4):
        np.testing.assert_array_equal(out[t], np.where(kept, 2.0**t, t == 0))


def test_initial_state_is_masked_too() -> None:
    eye, h0 = np.eye(40), np.ones((1, 1, 40))
    fn.manual_seed(0)
    out, _ = F.rnn(
        np.zeros((1, 1, 40)), h0, [eye, eye], nonlinearity="identity", recurrent_dropout=0.75,
        training=True,
    )  # fmt: skip
    assert set(np.unique(out)) == {0.0, 4.0}


def test_gru_hands_on_h_without_the_mask() -> None:
    # z = 1/2 and n = 0: h halves at every step, whatever is dropped before the product.
    weights = [np.zeros((9, 2)), np.zeros((9, 3))]
    fn.manual_seed(0)
    out, _ = F.gru(
        np.ones((3, 1, 2)), np.ones((1, 1, 3)), weights, recurrent_dropout=0.9, training=True
    )
    np.testing.assert_allclose(out[:, 0, 0], [0.5, 0.25, 0.125])


@pytest.mark.parametrize("kind", KINDS)
def test_same_seed_same_bits(kind: str) -> None:
    layer = layer_of(
        kind, 3, 5, 2, dropout=0.3, recurrent_dropout=0.4, variational=True, bidirectional=True
    )
    x = normal(7, 4, 3)
    results = []
    for seed, threads in ((1, 1), (1, 2), (1, 3), (2, 1)):
        fn.manual_seed(seed)
        fn.set_num_threads(threads)
        results.append(layer(x)[0].numpy())
    for other in results[1:3]:
        np.testing.assert_array_equal(other, results[0])
    assert not np.array_equal(results[3], results[0])
    layer.eval()
    plain = layer_of(kind, 3, 5, 2, bidirectional=True)
    np.testing.assert_array_equal(layer(x)[0].numpy(), plain(x)[0].numpy())
    np.testing.assert_array_equal(layer(x)[0].numpy(), layer(x)[0].numpy())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("every", [None, 2])
def test_gradients(kind: str, batch_first: bool, every: int | None) -> None:
    layer = layer_of(
        kind, 2, 3, 2, dropout=0.4, recurrent_dropout=0.4, variational=True, bidirectional=True,
        batch_first=batch_first, checkpoint_every=every,
    )  # fmt: skip
    lengths = np.array([3, 0, 2])
    state = (normal(4, 3, 3), normal(4, 3, 3, seed=1)) if kind == "LSTM" else normal(4, 3, 3)

    def loss(x: Any, *states: Any) -> Any:
        fn.manual_seed(7)  # the same masks every time
        out, last = layer(x, states if kind == "LSTM" else states[0], lengths=lengths)
        return [out, *(last if kind == "LSTM" else [last])]

    x = normal(3, 3, 2)
    assert fn.testing.gradcheck(loss, [x, *(state if kind == "LSTM" else [state])])
    names = [name for name, _ in layer.named_parameters()]

    def of_weights(*weights: Any) -> Any:
        fn.manual_seed(7)
        options = {"dropout": 0.4, "recurrent_dropout": 0.4, "variational": True}
        function = getattr(F, kind.lower())
        return function(
            x, state, weights, 2, training=True, bidirectional=True, batch_first=batch_first,
            lengths=lengths, checkpoint_every=every, **options,
        )[0]  # fmt: skip

    assert fn.testing.gradcheck(of_weights, [layer.state_dict()[name] for name in names])


def test_dropping_all_gives_zeros_and_no_nan() -> None:
    layer = layer_of("LSTM", 2, 3, recurrent_dropout=1.0)
    x = fn.tensor(normal(5, 2, 2), requires_grad=True)
    out, _ = layer(x)
    weights = {name: p.numpy() for name, p in layer.named_parameters()}
    weights["weight_hh_l0"] = np.zeros_like(weights["weight_hh_l0"])
    alone, _ = F.lstm(x.numpy(), None, list(weights.values()))
    np.testing.assert_allclose(out.numpy(), alone, rtol=1e-12)
    out.sum().backward()
    assert not layer.weight_hh_l0.grad.numpy().any()
    assert np.isfinite(x.grad.numpy()).all()


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("batched", [False, True])
def test_variational_dropout_is_the_same_at_every_step(batch_first: bool, batched: bool) -> None:
    """Two identity layers: the second repeats what the mask leaves of ones."""
    eye = np.eye(50)
    zero = np.zeros((50, 50))
    x = np.ones((4, 3, 50) if batched else (4, 50))
    for variational in (False, True):
        fn.manual_seed(1)
        out, _ = F.rnn(
            x, None, [eye, zero, eye, zero], 2, nonlinearity="identity", dropout=0.5,
            variational=variational, training=True, batch_first=batch_first,
        )  # fmt: skip
        assert set(np.unique(out)) == {0.0, 2.0}
        axis = 1 if batch_first and batched else 0
        first = np.take(out, [0], axis)
        assert (out == first).all() == variational
        if batched:
            sequences = out.swapaxes(0, 1 - axis)
            assert not np.array_equal(sequences[0], sequences[1])


# ---- checkpoints ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_checkpoints_change_no_bit(kind: str) -> None:
    x = normal(90, 20, 3)
    results = []
    for every in (None, 1, 10, 1000):
        layer = layer_of(
            kind, 3, 4, 2, recurrent_dropout=0.2, bidirectional=True, checkpoint_every=every
        )
        fn.manual_seed(5)
        data = fn.tensor(x, requires_grad=True)
        out, _ = layer(data, lengths=np.arange(20) * 4 + 3)
        (out * out).sum().backward()
        results.append([out, data.grad, *[p.grad for p in layer.parameters()]])
    for other in results[1:]:
        for one, two in zip(other, results[0], strict=True):
            np.testing.assert_array_equal(one.numpy(), two.numpy())


def kept_bytes(every: int | None, steps: int, batch: int, hidden: int) -> tuple[int, int]:
    """What a forward keeps for backward, beside its outputs, and what there is then after it."""
    layer = nn.LSTM(8, hidden, checkpoint_every=every)
    x = np.zeros((steps, batch, 8), np.float32)
    gc.collect()
    before = _core.memory_stats()["in_use"]
    out, state = layer(x)
    kept = _core.memory_stats()["in_use"] - before - out.numpy().nbytes
    out.sum().backward()
    del out, state
    for p in layer.parameters():
        p.grad = None
    gc.collect()
    return kept, _core.memory_stats()["in_use"] - before


def test_checkpoints_save_memory() -> None:
    steps, batch, hidden = 2000, 4, 64
    whole, left = kept_bytes(None, steps, batch, hidden)
    assert left == 0
    row = 4 * batch * hidden  # bytes of one state of all sequences
    assert whole > steps * 6 * row  # four gates, c and h
    for every in (10, 50, 400):
        kept, left = kept_bytes(every, steps, batch, hidden)
        assert left == 0
        # Blocks of 512 rows, 128 steps here, may be cut once more; the allocator rounds up.
        states = steps / every + steps / 128 + 1
        assert kept < 1.5 * states * 2 * row + 100_000
        assert kept < whole / 8


PEAK = """
import re, sys
import numpy as np
from fusednn import nn, set_num_threads
set_num_threads(1)
every, steps = (int(argument) for argument in sys.argv[1:])
layer = nn.LSTM(4, 128, checkpoint_every=every or None)
def peak(): return int(re.search(r"VmHWM:\\s*(\\d+)", open("/proc/self/status").read())[1]) / 1024
def train(steps):
    x = np.zeros((steps, 8, 4), np.float32)
    layer(x)[1][0].sum().backward()
train(100)
before = peak()
train(steps)
print(peak() - before)
"""


def test_peak_of_memory_grows_slowly() -> None:
    """The whole process, forward and backward: megabytes for 4000 steps of 8 sequences."""

    def peak(every: int) -> float:
        command = [sys.executable, "-c", PEAK, str(every), "4000"]
        return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    # Gates, c and h are 98 MB, the output 16.
    whole, checked = peak(0), peak(64)
    assert whole > 90
    assert checked < whole / 2


# ---- texts ---------------------------------------------------------------------------------------

W = [np.zeros((8, 3)), np.zeros((8, 2))]
X = np.zeros((6, 4, 3))


@pytest.mark.parametrize(
    "call, error, text",
    [
        (lambda: F.lstm(X, None, W, recurrent_dropout=-0.1), ValueError,
         "lstm: recurrent_dropout=-0.1, expected a probability in [0, 1]"),
        (lambda: F.lstm(X, None, W, checkpoint_every=0), ValueError,
         "lstm: checkpoint_every=0, expected at least 1"),
        (lambda: F.lstm(X, None, W, checkpoint_every=2.5), TypeError,  # type: ignore[arg-type]
         "lstm: checkpoint_every"),
        (lambda: F.lstm(X[..., 0, 0], None, W, recurrent_dropout=0.5, training=True), ValueError,
         "lstm: input has shape (6,), expected (T, N, I) or (T, I)"),
        (lambda: nn.GRU(3, 4, recurrent_dropout=2), ValueError,
         "GRU: recurrent_dropout=2, expected a probability in [0, 1]"),
        (lambda: nn.GRU(3, 4, checkpoint_every=0), ValueError,
         "GRU: checkpoint_every=0, expected at least 1"),
    ],
)  # fmt: skip
def test_refused(call: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        call()
    assert text in str(caught.value)


def test_repr() -> None:
    layer = nn.RNN(3, 4, recurrent_dropout=0.5, variational=True, checkpoint_every=9)
    assert repr(layer) == ("RNN(3, 4, recurrent_dropout=0.5, variational=True, checkpoint_every=9)")
