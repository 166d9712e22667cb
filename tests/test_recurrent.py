"""Recurrent kernels on every ISA against the plain twin; lengths, states, refused calls."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import fusednn as fn
import fusednn.functional as F
from fusednn import _core
from fusednn.testing.reference_recurrent import Stack

Array = NDArray[Any]
GATES = {"lstm": 4, "gru": 3, "norm_lstm": 4}
CELLS = ["tanh", "relu", "identity", "lstm", "gru", "norm_lstm"]


@dataclass(frozen=True)
class Call:
    """One random configuration and its arrays; everything time-major."""

    cell: str
    steps: int
    batch: int
    inputs: int
    hidden: int
    layers: int = 1
    bidirectional: bool = False
    bias: bool = True
    proj: int = 0
    batch_first: bool = False
    lengths: tuple[int, ...] | None = None
    dtype: str = "float64"
    scale: float = 0.5
    dropout: bool = False  # recurrent, and between the layers
    variational: bool = False
    every: int | None = None

    @property
    def op(self) -> str:
        if self.cell == "norm_lstm":
            return "layer_norm_lstm"
        return self.cell if self.cell in GATES else "rnn"

    @property
    def directions(self) -> int:
        return 2 if self.bidirectional else 1

    def weights(self, rng: np.random.Generator) -> list[Array]:
        rows, out = GATES.get(self.cell, 1) * self.hidden, self.proj or self.hidden
        shapes: list[tuple[int, ...]] = []
        for layer in range(self.layers):
            inputs = self.directions * out if layer else self.inputs
            for _ in range(self.directions):
                shapes += [(rows, inputs), (rows, out)]
                shapes += [(rows,), (rows,)] if self.bias else []
                shapes += [(self.proj, self.hidden)] if self.proj else []
                if self.cell == "norm_lstm":
                    shapes += [(rows,), (rows,), (self.hidden,)]
                    shapes += [(self.hidden,)] if self.bias else []
        return [(self.scale * rng.standard_normal(shape)).astype(self.dtype) for shape in shapes]

    def arrays(self, seed: int = 0) -> dict[str, Any]:
        rng = np.random.default_rng(seed)
        states, out = self.layers * self.directions, self.proj or self.hidden

        def normal(*shape: int) -> Array:
            return rng.standard_normal(shape).astype(self.dtype)

        x = normal(self.steps, self.batch, self.inputs)
        lengths = np.full(self.batch, self.steps) if self.lengths is None else self.lengths
        lengths = np.array(lengths, np.int64)
        x[np.arange(self.steps)[:, None] >= lengths] = np.nan  # is not to be read
        lead = (self.batch,) if self.variational else (self.steps, self.batch)

        def mask(*shape: int) -> Array:
            return ((rng.random(shape) < 0.6) / 0.6).astype(self.dtype)

        return {
            "x": x,
            "h0": normal(states, self.batch, out),
            "c0": normal(states, self.batch, self.hidden),
            "weights": self.weights(rng),
            "lengths": lengths,
            "d_out": normal(self.steps, self.batch, self.directions * out),
            "d_h": normal(states, self.batch, out),
            "d_c": normal(states, self.batch, self.hidden),
            "mask": mask(states, self.batch, out),
            "between": [mask(*lead, self.directions * out) for _ in range(self.layers - 1)],
        }


def swapped(call: Call, array: Array | None) -> Array | None:
    return array.swapaxes(0, 1) if call.batch_first and array is not None else array


def run(call: Call, a: dict[str, Any], states: bool = True) -> list[Array]:
    """out, h_n, c_n, then the gradients of x, h0, c0 and the weights, by the kernels."""
    lstm = "lstm" in call.cell
    options = (
        call.op, "tanh" if call.op != "rnn" else call.cell, call.layers, call.bidirectional,
        call.batch_first,
    )  # fmt: skip
    h0, c0 = (a["h0"], a["c0"] if lstm else None) if states else (None, None)
    lengths = None if call.lengths is None else a["lengths"]
    extra = None
    if call.dropout or call.every or call.cell == "norm_lstm":
        between = [m if call.variational else swapped(call, m) for m in a["between"]]
        masks = (between, a["mask"]) if call.dropout else (None, None)
        extra = (*masks, call.every, 1e-5 if call.cell == "norm_lstm" else None)
    args = (options, swapped(call, a["x"]), h0, c0, a["weights"], lengths, extra)
    out, h_n, c_n, none = _core.recurrent_forward(*args, False)
    assert none is None
    again = _core.recurrent_forward(*args, True)
    for one, two in zip((out, h_n, c_n), again, strict=False):
        np.testing.assert_array_equal(one, two, "with and without a reserve")
    grads = (swapped(call, a["d_out"]), a["d_h"], a["d_c"] if lstm else None)
    wanted = (True, states, states and lstm, *[True] * len(a["weights"]))
    results = _core.recurrent_backward(*args, again[3], grads, wanted)
    results = (swapped(call, results[0]), *results[1:])
    out = swapped(call, out)
    assert out is not None
    return [r for r in (out, h_n, c_n, *results) if r is not None]


def truth(call: Call, a: dict[str, Any], dtype: Any, states: bool = True) -> list[Array]:
    """The same by the plain twin in `dtype`."""

    def cast(array: Array) -> Array:
        return np.nan_to_num(array).astype(dtype)

    lstm = "lstm" in call.cell
    stack = Stack(call.cell, [cast(w) for w in a["weights"]], call.layers, call.bidirectional)
    if call.dropout:
        stack.mask, stack.between = cast(a["mask"]), [cast(m) for m in a["between"]]
    h0, c0 = cast(a["h0"]) * states, cast(a["c0"]) * states
    out, h_n, c_n = stack.forward(cast(a["x"]), h0, c0, a["lengths"])
    d_c = cast(a["d_c"])
    d_x, d_h0, d_c0, weights = stack.backward(cast(a["d_out"]), cast(a["d_h"]), d_c * lstm)
    wanted = [out, h_n] + [c_n] * lstm + [d_x] + [d_h0] * states + [d_c0] * (states and lstm)
    return wanted + weights


def check(call: Call, states: bool = True, seed: int = 0) -> None:
    a = call.arrays(seed)
    single = call.dtype == "float32"
    exact = truth(call, a, np.float64 if single else np.longdouble, states)
    naive = truth(call, a, call.dtype, states)
    for isa in _core.usable_isas():
        with fn.testing.isa(isa):
            found = run(call, a, states)
        for i, (f, e, n) in enumerate(zip(found, exact, naive, strict=True)):
            slack = 0.0
            if call.cell == "norm_lstm":
                # Gradients of products that have few ways to differ vanish: what rounding leaves of
                # nothing, 1 or so, is divided by their spread, at least sqrt(eps).
                slack = 4 * np.finfo(call.dtype).eps * 1e-5**-0.5
            assert_close(f, e, n, f"result {i} of {call} on {isa}", slack)


def assert_close(found: Array, exact: Array, naive: Array, what: str, slack: float = 0) -> None:
    """Within 4 times the naive version's error, and 32 units in the last place of the largest.

    More than elsewhere, since every step hands its errors on: those of tanh and the logistic
    function, 3 units where the naive version's are half of one, as well.
    """
    assert found.shape == exact.shape, what
    assert found.dtype == naive.dtype, what
    if not exact.size:
        return
    unit = np.finfo(naive.dtype).eps * np.abs(exact).max()
    allowed = 4 * np.abs(naive - exact).max() + 32 * unit + slack
    assert np.abs(found - exact).max() <= allowed, what


# ---- values and gradients ------------------------------------------------------------------------


@st.composite
def calls(draw: st.DrawFn) -> Call:
    cell = draw(st.sampled_from(CELLS))
    steps = draw(st.integers(0, 7))
    batch = draw(st.sampled_from([0, 1, 1, 2, 3, 4, 5, 6, 7, 13, 17]))
    hidden = draw(st.sampled_from([1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 65]))
    inputs = draw(st.sampled_from([0, 1, 2, 3, 7, 16, 33]))
    proj = draw(st.integers(1, hidden - 1)) if hidden > 1 and cell == "lstm" else 0
    return Call(
        cell,
        steps,
        batch,
        inputs,
        hidden,
        draw(st.sampled_from([1, 1, 2, 3])),
        draw(st.booleans()),
        draw(st.booleans()),
        draw(st.sampled_from([0, proj])),
        draw(st.booleans()),
        draw(st.none() | st.tuples(*[st.integers(0, steps)] * batch)),
        draw(st.sampled_from(["float32", "float64"])),
        # Where gradients explode, rounding errors do too, and two ways to round differ widely.
        scale=0.5 if hidden < 16 else 2 / hidden**0.5,
        dropout=draw(st.booleans()),
        variational=draw(st.booleans()),
        every=draw(st.none() | st.integers(1, 5)),
    )


@settings(max_examples=160, deadline=None, derandomize=True)
@given(calls(), st.booleans())
def test_random_configurations(call: Call, states: bool) -> None:
    check(call, states)


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize(
    "batch, hidden",
    [
        (1, 130),  # narrow panels, more than one
        (4, 129),
        (5, 70),  # the engine's tile
        (29, 33),  # several tiles of rows
        (7, 176),  # x's part made ahead: the weights are large and the batch is small
    ],
)
def test_paths(cell: str, batch: int, hidden: int, dtype: str) -> None:
    ragged = tuple(np.random.default_rng(1).integers(0, 5, batch).tolist())
    for lengths in (None, ragged):
        call = Call(cell, 4, batch, hidden - 1, hidden, lengths=lengths, dtype=dtype, scale=0.1)
        check(call)


def test_long_k(dtype: str) -> None:
    check(Call("lstm", 3, 5, 600, 40, dtype=dtype, scale=0.05))
    check(Call("tanh", 3, 6, 3, 530, dtype=dtype, scale=0.05))


@pytest.mark.parametrize("cell", ["lstm", "gru", "tanh", "norm_lstm"])
@pytest.mark.parametrize("steps, batch", [(4, 1), (26, 1), (4, 16)])
@pytest.mark.parametrize("every", [None, 8])
def test_same_bits_at_any_thread_count(
    cell: str, steps: int, batch: int, isa: str, every: int | None
) -> None:
    call = Call(
        cell, steps, batch, 300, 520, dtype="float32", scale=0.05, dropout=every == 8, every=every
    )
    a = call.arrays()
    fn.set_num_threads(1)
    single = run(call, a)
    for threads in (2, 3):
        fn.set_num_threads(threads)
        for one, two in zip(single, run(call, a), strict=True):
            np.testing.assert_array_equal(one, two)


# Steps and sequences: blocks of rows are about 512, of a single sequence a multiple of 8 steps.
LONG = [(1060, 1), (515, 1), (40, 1), (23, 1), (9, 1), (130, 9), (3, 600), (700, 2), (5, 3), (2, 2)]


@pytest.mark.parametrize("cell", ["lstm", "gru", "relu", "norm_lstm"])
@pytest.mark.parametrize("steps, batch", LONG)
def test_checkpoints_give_the_same_bits(cell: str, steps: int, batch: int, isa: str) -> None:
    rng = np.random.default_rng(steps)
    for ragged, variant in ((False, 0), (False, 1), (True, 2)):
        lengths = tuple(rng.integers(0, steps + 1, batch).tolist()) if ragged else None
        call = Call(
            cell, steps, batch, 5, 9, 1 + (variant == 1), variant > 0, lengths=lengths,
            dtype="float32", dropout=variant > 0, proj=3 * (variant == 2 and cell == "lstm"),
            batch_first=variant == 2, scale=0.3,
        )  # fmt: skip
        a = call.arrays()
        whole = run(call, a)
        for every in (1, 7, 8, 100, 300, 10**9):
            for one, two in zip(run(replace(call, every=every), a), whole, strict=True):
                np.testing.assert_array_equal(one, two, f"{call} every {every}")


def test_checkpoints_of_wide_layers(isa: str) -> None:
    # The paths of W_hh in L2 and beyond, and of x's part beside h's.
    for call in (
        Call("lstm", 40, 1, 64, 130, dtype="float32", scale=0.1),
        Call("lstm", 60, 20, 64, 70, dtype="float32", scale=0.1),
        Call("gru", 60, 4, 30, 130, dtype="float64", scale=0.1),
        Call("norm_lstm", 40, 1, 64, 130, dtype="float32", scale=0.1),
    ):
        a = call.arrays()
        whole = run(call, a)
        for every in (5, 16):
            for one, two in zip(run(replace(call, every=every), a), whole, strict=True):
                np.testing.assert_array_equal(one, two, f"{call} every {every}")


def test_blocks_of_rows(dtype: str) -> None:
    """Enough rows that backward adds up several blocks, against the plain twin."""
    for cell in ("lstm", "gru", "norm_lstm"):
        lengths = tuple(np.random.default_rng(0).integers(0, 90, 13).tolist())
        check(Call(cell, 90, 13, 3, 5, 1, True, lengths=lengths, dtype=dtype, scale=0.2))
        check(Call(cell, 600, 1, 3, 5, 1, True, dtype=dtype, scale=0.2))


@pytest.mark.parametrize("cell", ["tanh", "lstm", "gru", "norm_lstm"])
def test_gradcheck(cell: str) -> None:
    """Losses on every subset of the outputs, with lengths and states that need gradients."""
    rng = np.random.default_rng(0)
    call = Call(cell, 4, 3, 2, 3, layers=2, bidirectional=True, proj=2 * (cell == "lstm"))
    a = call.arrays()
    x, weights = rng.standard_normal((4, 3, 2)), a["weights"]
    states = (a["h0"], a["c0"]) if "lstm" in cell else (a["h0"],)
    count = len(states) + 1
    for subset in range(1, 2**count):

        def loss(x: Any, *rest: Any, subset: int = subset) -> Any:
            state, flat = rest[: count - 1], rest[count - 1 :]
            options: dict[str, Any] = {"bidirectional": True, "lengths": np.array([4, 0, 2])}
            if "lstm" in cell:
                function = F.lstm if cell == "lstm" else F.layer_norm_lstm
                out, last = function(x, state, flat, 2, **options)
            else:
                function = F.gru if cell == "gru" else F.rnn
                out, last = function(x, state[0], flat, 2, **options)
                last = (last,)
            return [o for i, o in enumerate((out, *last)) if subset >> i & 1]

        assert fn.testing.gradcheck(loss, [x, *states, *weights])


# ---- single steps --------------------------------------------------------------------------------


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("batched", [False, True])
def test_steps_equal_sequence(dtype: str, bias: bool, batched: bool, isa: str) -> None:
    call = Call("lstm", 5, 3 if batched else 1, 4, 6, dtype=dtype, bias=bias)
    a = call.arrays()
    for op in ("rnn", "lstm", "gru"):
        rows = {"rnn": 6, "lstm": 24, "gru": 18}[op]
        weights = [w[:rows] for w in a["weights"]]
        x, h, c = a["x"], a["h0"][0], a["c0"][0]
        if not batched:
            x, h, c = x[:, 0], h[0], c[0]
        axis = 0
        state = (h[None], c[None]) if op == "lstm" else h[None]
        out, last = getattr(F, op)(x, state, weights)
        outs = []
        for t in range(5):
            if op == "lstm":
                h, c = F.lstm_cell(x[t], (h, c), *weights)
            else:
                h = getattr(F, f"{op}_cell")(x[t], h, *weights)
            outs.append(h)
        tolerance = 1e-6 if dtype == "float32" else 1e-14
        np.testing.assert_allclose(np.stack(outs, axis), out, rtol=tolerance, atol=tolerance)
        final = last[0] if op == "lstm" else last
        np.testing.assert_allclose(final[0], h, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("nonlinearity", ["tanh", "relu", "identity"])
def test_cell_gradients(nonlinearity: str) -> None:
    rng = np.random.default_rng(0)

    def n(*shape: int) -> Array:
        return rng.standard_normal(shape)

    x, h, c = n(2, 3), n(2, 4), n(2, 4)
    args = [x, h, n(4, 3), n(4, 4), n(4), n(4)]
    assert fn.testing.gradcheck(lambda *a: F.rnn_cell(*a, nonlinearity=nonlinearity), args)
    args = [x, h, n(12, 3), n(12, 4), n(12), n(12)]
    assert fn.testing.gradcheck(F.gru_cell, args)
    args = [x, h, c, n(16, 3), n(16, 4), n(16), n(16)]
    assert fn.testing.gradcheck(lambda x, h, c, *w: F.lstm_cell(x, (h, c), *w), args)
    assert fn.testing.gradcheck(lambda x, h, c, *w: F.lstm_cell(x, (h, c), *w)[1], args)
    vector = [x[0], h[0], c[0], *args[3:]]
    assert fn.testing.gradcheck(lambda x, h, c, *w: F.lstm_cell(x, (h, c), *w), vector)


def test_stream_carries_its_state(isa: str, dtype: str) -> None:
    a = Call("lstm", 9, 2, 3, 5, layers=2, dtype=dtype).arrays()
    whole, (h, c) = F.lstm(a["x"], None, a["weights"], 2)
    state, parts = None, []
    for piece in (a["x"][:1], a["x"][1:6], a["x"][6:]):
        out, state = F.lstm(piece, state, a["weights"], 2)
        parts.append(out)
    assert state is not None
    np.testing.assert_allclose(np.concatenate(parts), whole, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(state[0], h, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(state[1], c, rtol=1e-6, atol=1e-6)


def test_worked_example_of_a_plain_network() -> None:
    """A linear recurrent network over five prices; every state and output by hand."""
    h = np.zeros((1, 1))
    states = [0.1, 0.502, 1.71004, 2.5342008, 2.150684016]
    outputs = [100.8, 104.016, 113.68032, 120.2736064, 117.205472128]
    one = np.ones((1, 1))
    for x, state, output in zip([100, 105, 120, 130, 125], states, outputs, strict=True):
        bias = np.array([-7.9])
        h = F.rnn_cell(x * one, h, 0.08 * one, 0.02 * one, bias, 0 * bias, "identity")
        np.testing.assert_allclose(h, [[state]], rtol=1e-12)
        y = F.linear(h, 8 * one, np.array([100.0]))
        np.testing.assert_allclose(y, [[output]], rtol=1e-12)


def test_worked_example_of_an_lstm() -> None:
    """Two steps of one unit, by hand."""
    h, c = np.zeros((1, 1)), np.full((1, 1), 2.0)
    w, u = np.full((4, 1), 0.5), np.full((4, 1), -0.1)
    b = np.array([0.3, 0.2, 0.8, 0.3])  # i, f, g, o
    for x, h_new, c_new in [
        (1.0, 0.66155410245056, 1.9309425340591777),
        (0.5, 0.5716126567374226, 1.6154395514289135),
    ]:
        h, c = F.lstm_cell(np.full((1, 1), x), (h, c), w, u, b, np.zeros(4))
        np.testing.assert_allclose(h, [[h_new]], rtol=1e-12)
        np.testing.assert_allclose(c, [[c_new]], rtol=1e-12)


def test_reset_gate_stands_behind_the_product() -> None:
    # x = 0 and r = 1/2, z = 1/2: n = tanh(r (u h + b)), here tanh((2 * 3 + 1) / 2).
    w_hh, b_hh = np.array([[0.0], [0.0], [2.0]]), np.array([0.0, 0.0, 1.0])
    h = F.gru_cell(np.zeros((1, 1)), np.full((1, 1), 3.0), np.zeros((3, 1)), w_hh, 0 * b_hh, b_hh)
    np.testing.assert_allclose(h, [[0.5 * np.tanh(3.5) + 1.5]], rtol=1e-14)


# ---- lengths and states --------------------------------------------------------------------------


def test_order_of_states(isa: str) -> None:
    a = Call("lstm", 5, 4, 2, 3, layers=2, bidirectional=True).arrays()
    out, (h, c) = F.lstm(a["x"], None, a["weights"], 2, bidirectional=True)
    assert h.shape == c.shape == (4, 4, 3)
    np.testing.assert_array_equal(h[2], out[-1, :, :3])
    np.testing.assert_array_equal(h[3], out[0, :, 3:])


@pytest.mark.parametrize("op", ["rnn", "lstm", "gru"])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_lengths_equal_single_sequences(op: str, bidirectional: bool, isa: str, dtype: str) -> None:
    cell = "tanh" if op == "rnn" else op
    call = Call(cell, 6, 5, 3, 7, layers=2, bidirectional=bidirectional, dtype=dtype)
    a = call.arrays()
    lengths = np.array([2, 0, 6, 1, 6], np.int32)
    x = a["x"].copy()
    x[np.arange(6)[:, None] >= lengths] = np.nan
    state = (a["h0"], a["c0"]) if op == "lstm" else a["h0"]
    function = getattr(F, op)
    options = {"bidirectional": bidirectional}
    out, last = function(x, state, a["weights"], 2, lengths=lengths, **options)
    tolerance = 1e-5 if dtype == "float32" else 1e-13
    for b, length in enumerate(lengths):
        assert not out[length:, b].any()
        own = tuple(s[:, b] for s in state) if op == "lstm" else state[:, b]
        part, own_last = function(x[:length, b], own, a["weights"], 2, **options)
        np.testing.assert_allclose(out[:length, b], part, rtol=tolerance, atol=tolerance)
        pairs = zip(last, own_last, strict=True) if op == "lstm" else [(last, own_last)]
        for all_of_them, one in pairs:
            np.testing.assert_allclose(all_of_them[:, b], one, rtol=tolerance, atol=tolerance)


def test_padding_has_no_influence_and_no_gradient(isa: str) -> None:
    call = Call("lstm", 5, 3, 2, 4, lengths=(0, 3, 5), dtype="float32")
    a = call.arrays()
    assert np.isnan(a["x"]).any()
    x = fn.tensor(a["x"], requires_grad=True)
    weights = [fn.tensor(w, requires_grad=True) for w in a["weights"]]
    h0, c0 = (fn.tensor(a[name], requires_grad=True) for name in ("h0", "c0"))
    out, (h, c) = F.lstm(x, (h0, c0), weights, lengths=np.array([0, 3, 5]))
    np.testing.assert_array_equal(h.numpy()[:, 0], a["h0"][:, 0])
    np.testing.assert_array_equal(c.numpy()[:, 0], a["c0"][:, 0])
    (out.sum() + h.sum() + 2 * c.sum()).backward()
    assert x.grad is not None
    assert h0.grad is not None
    assert c0.grad is not None
    assert not x.grad.numpy()[:, 0].any()
    assert not x.grad.numpy()[3:, 1].any()
    assert x.grad.numpy()[:3, 1].all()
    np.testing.assert_array_equal(h0.grad.numpy()[:, 0], 1)
    np.testing.assert_array_equal(c0.grad.numpy()[:, 0], 2)
    assert all(np.isfinite(w.grad.numpy()).all() for w in weights if w.grad is not None)


@pytest.mark.parametrize(
    "shape, out, state",
    [
        ((0, 2, 3), (0, 2, 4), (1, 2, 4)),
        ((5, 0, 3), (5, 0, 4), (1, 0, 4)),
        ((0, 3), (0, 4), (1, 4)),
    ],
)
def test_empty_sequences(shape: Any, out: Any, state: Any, dtype: str, isa: str) -> None:
    weights = Call("lstm", 1, 1, 3, 4, dtype=dtype).arrays()["weights"]
    h0, c0 = np.ones(state, dtype), 2 * np.ones(state, dtype)
    x = fn.tensor(np.zeros(shape, dtype), requires_grad=True)
    flat = [fn.tensor(w, requires_grad=True) for w in weights]
    y, (h, c) = F.lstm(x, (h0, c0), flat)
    assert y.shape == out
    np.testing.assert_array_equal(h.numpy(), h0)
    np.testing.assert_array_equal(c.numpy(), c0)
    (y.sum() + h.sum()).backward()
    assert all(w.grad is not None and not w.grad.numpy().any() for w in flat)


def test_no_state_is_a_state_of_zeros(isa: str, dtype: str) -> None:
    for cell, op in (("lstm", F.lstm), ("gru", F.gru), ("tanh", F.rnn)):
        for batch in (1, 6):
            a = Call(cell, 3, batch, 4, 5, dtype=dtype).arrays()
            zeros = np.zeros((1, batch, 5), dtype)
            given = op(a["x"], (zeros, zeros) if cell == "lstm" else zeros, a["weights"])
            np.testing.assert_array_equal(op(a["x"], None, a["weights"])[0], given[0])


# ---- unusual numbers and arrays ------------------------------------------------------------------


@pytest.mark.parametrize("batch", [1, 3, 8])
def test_nan_stays_in_its_sequence(isa: str, dtype: str, batch: int) -> None:
    for cell, op in (("lstm", F.lstm), ("gru", F.gru), ("tanh", F.rnn), ("relu", F.rnn)):
        a = Call(cell, 4, batch, 3, 5, dtype=dtype).arrays()
        a["x"][1, 0, 2] = np.nan
        options = {"nonlinearity": cell} if op is F.rnn else {}
        out = op(a["x"], None, a["weights"], **options)[0]
        assert np.isfinite(out[0]).all()
        assert np.isnan(out[1:, 0]).all()
        assert np.isfinite(out[:, 1:]).all()


def test_saturated_gates(isa: str, dtype: str) -> None:
    # Gates at 0 and 1 exactly: the cell keeps its value, or forgets it, without a NaN.
    weights = [np.zeros((8, 1), dtype), np.zeros((8, 2), dtype)]
    big = np.array([-1e4, -1e4, 1e4, 1e4, 0, 0, 1e4, 1e4], dtype)
    h, c = F.lstm_cell(
        np.ones((1, 1), dtype), (np.zeros((1, 2), dtype), np.array([[3.0, -2.0]], dtype)),
        *weights, big, 0 * big,
    )  # fmt: skip
    np.testing.assert_array_equal(c, [[3, -2]])
    np.testing.assert_allclose(h, np.tanh(c), rtol=1e-6)
    weights[0][:, 0] = [1, 1, -1, -1, 1, 1, 1, 1]
    h, c = F.lstm_cell(
        np.full((1, 1), np.inf, dtype), (np.zeros((1, 2), dtype), np.ones((1, 2), dtype)),
        *weights, 0 * big, 0 * big,
    )  # fmt: skip
    np.testing.assert_array_equal(c, [[1, 1]])
    np.testing.assert_allclose(h, np.tanh(c), rtol=1e-6)


def test_denormals_are_restored(isa: str) -> None:
    weights = [np.full((8, 3), 1e-39, np.float32), np.full((8, 2), 1e-39, np.float32)]
    F.lstm(np.full((50, 8, 3), 1e-3, np.float32), None, weights)
    assert np.float32(1e-39) * np.float32(1.0) != 0
    tiny = np.array([1e-39], np.float32)
    assert (tiny + tiny)[0] != 0


def test_any_array_layout(isa: str, dtype: str) -> None:
    a = Call("gru", 4, 3, 5, 6, dtype=dtype).arrays()
    expected = F.gru(a["x"], a["h0"], a["weights"])

    def variants(array: Array) -> list[Array]:
        wide = np.zeros((*array.shape[:-1], 2 * array.shape[-1]), dtype)[..., ::2]
        wide[...] = array
        frozen = array.copy()
        frozen.flags.writeable = False
        return [
            wide,
            frozen,
            np.ascontiguousarray(array[..., ::-1])[..., ::-1],
            array.astype(array.dtype.newbyteorder(">")),
            np.asfortranarray(array),
        ]

    for x, h, *weights in zip(*map(variants, (a["x"], a["h0"], *a["weights"])), strict=True):
        out, last = F.gru(x, h, weights)
        np.testing.assert_array_equal(out, expected[0])
        np.testing.assert_array_equal(last, expected[1])


def test_long_chain_backward() -> None:
    rng = np.random.default_rng(0)
    weights = [
        fn.tensor(0.3 * rng.standard_normal(s), requires_grad=True) for s in ((8, 1), (8, 2))
    ]
    x = rng.standard_normal((2000, 1, 1))
    h, c = fn.zeros(1, 2, dtype=np.float64), fn.zeros(1, 2, dtype=np.float64)
    for t in range(2000):
        h, c = F.lstm_cell(x[t], (h, c), *weights)
    h.sum().backward()
    stepped = [w.grad.numpy().copy() for w in weights]
    for w in weights:
        w.grad = None
    F.lstm(x, None, weights)[1][0].sum().backward()
    for w, expected in zip(weights, stepped, strict=True):
        np.testing.assert_allclose(w.grad.numpy(), expected, rtol=1e-9, atol=1e-12)


# ---- refused calls -------------------------------------------------------------------------------

X, H = np.zeros((6, 4, 3)), np.zeros((1, 4, 2))
W = [np.zeros((8, 3)), np.zeros((8, 2)), np.zeros(8), np.zeros(8)]
G = [np.zeros((6, 3)), np.zeros((6, 2))]


@pytest.mark.parametrize(
    "call, error, text",
    [
        (lambda: F.lstm(np.zeros((6, 4, 5)), None, W), ValueError,
         "lstm: input has 5 features, expected 3 (shapes: input (6, 4, 5), weight_ih_l0 (8, 3))"),
        (lambda: F.lstm(np.zeros(3), None, W), ValueError,
         "lstm: input has shape (3,), expected (T, N, I) or (T, I)"),
        (lambda: F.lstm(np.zeros((1, 2, 3, 4)), None, W, batch_first=True), ValueError,
         "lstm: input has shape (1, 2, 3, 4), expected (N, T, I) or (T, I)"),
        (lambda: F.lstm(X, (np.zeros((1, 100, 30)), H), W), ValueError,
         "lstm: h_0 has shape (1, 100, 30), expected (1, 4, 2)"),
        (lambda: F.lstm(X, (H, np.zeros((3, 2, 1))), W), ValueError,
         "lstm: c_0 has shape (3, 2, 1), expected (1, 4, 2)"),
        (lambda: F.lstm(X, (H, None), W), ValueError, "lstm: one of h and c is None"),
        (lambda: F.lstm(X, H, W), TypeError, "lstm: state must be None or a pair (h, c)"),
        (lambda: F.lstm(X, None, W[:1]), ValueError, "lstm: got 1 weights, expected for each of 1"),
        (lambda: F.lstm(X, None, W, 2), ValueError,
         "lstm: weight_ih_l1 has shape (8,), expected (8, 2)"),
        (lambda: F.lstm(X, None, W, 0), ValueError, "lstm: num_layers=0, expected at least 1"),
        (lambda: F.lstm(X, None, [W[0], np.zeros((8, 3)), *W[2:]]), ValueError,
         "lstm: weight_hh_l0 has shape (8, 3), expected (4 * hidden, hidden)"),
        (lambda: F.lstm(X, None, [*W[:3], np.zeros(7)]), ValueError,
         "lstm: bias_hh_l0 has shape (7,), expected (8,)"),
        (lambda: F.lstm(X, None, [*W, np.zeros((3, 3))]), ValueError,
         "lstm: weight_hr_l0 has shape (3, 3), expected (2, 2)"),
        (lambda: F.gru(X, None, [*G, *G], bidirectional=True, batch_first=True,
                       lengths=np.array([7] * 6)), ValueError,
         "gru: lengths[0] is 7, expected 0 to 4, the steps of the input"),
        (lambda: F.gru(X, None, G, lengths=np.array([-1, 0, 0, 0])), ValueError,
         "gru: lengths[0] is -1, expected 0 to 6"),
        (lambda: F.gru(X, None, G, lengths=np.array([1])), ValueError,
         "gru: lengths has shape (1,), expected (4,)"),
        (lambda: F.gru(X, None, G, lengths=np.ones(4)), TypeError,
         "gru: lengths has dtype float64, expected an integer dtype"),
        (lambda: F.gru(X.astype("float32"), None, G), TypeError,
         "gru: weights has dtype float64, expected float32"),
        (lambda: F.gru(X.astype(int), None, G), TypeError, "gru: input has dtype int64"),
        (lambda: F.gru(X, H.astype("float32"), G), TypeError, "gru: h_0 has dtype float32"),
        (lambda: F.rnn(X, None, [np.zeros((2, 3)), np.zeros((2, 2))], nonlinearity="sin"),
         ValueError, "rnn: nonlinearity is 'sin', expected 'tanh', 'relu' or 'identity'"),
        (lambda: F.rnn(X, None, [np.zeros((2, 3)), np.zeros((2, 2))], dropout=1.5), ValueError,
         "rnn: dropout=1.5, expected a probability in [0, 1]"),
        (lambda: F.rnn_cell(X, None, np.zeros((2, 3)), np.zeros((2, 2))), ValueError,
         "rnn_cell: input has shape (6, 4, 3), expected (N, I) or (I,)"),
        (lambda: F.gru_cell(X[0], H, *G), ValueError,
         "gru_cell: h has shape (1, 4, 2), expected (4, 2)"),
        (lambda: F.lstm_cell(X[0], None, W[0], W[1], W[2], None), ValueError,
         "lstm_cell: one of b_ih and b_hh is None, expected both or none"),
        (lambda: F.lstm_cell(X[0], None, W[0], np.zeros((8, 4))), ValueError,
         "lstm_cell: w_hh has shape (8, 4), expected (4 * hidden, hidden)"),
    ],
)  # fmt: skip
def test_refused(call: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        call()
    assert text in str(caught.value)
