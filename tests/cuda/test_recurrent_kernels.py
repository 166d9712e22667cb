"""Recurrent layers on the GPU, beside the CPU's in double."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from compare import close

import fusednn as fn
import fusednn.functional as F
from fusednn import _core, nn

GATES = {"lstm": 4, "gru": 3, "norm_lstm": 4}
CELLS = ("tanh", "relu", "identity", "lstm", "gru", "norm_lstm")


@dataclass(frozen=True)
class Stack:
    """One configuration; everything time-major unless batch_first."""

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
    masks: str = ""  # "each" step its own between the layers, or "all" steps one
    every: int | None = None
    states: bool = True

    def arrays(self, dtype):
        rng = np.random.default_rng(self.steps + 7 * self.hidden)
        rows, out = GATES.get(self.cell, 1) * self.hidden, self.proj or self.hidden
        directions = 2 if self.bidirectional else 1
        shapes = []
        for layer in range(self.layers):
            inputs = directions * out if layer else self.inputs
            for _ in range(directions):
                shapes += [(rows, inputs), (rows, out)]
                shapes += [(rows,), (rows,)] if self.bias else []
                shapes += [(self.proj, self.hidden)] if self.proj else []
                if self.cell == "norm_lstm":
                    shapes += [(rows,), (rows,), (self.hidden,)]
                    shapes += [(self.hidden,)] if self.bias else []

        def normal(*shape):
            return (rng.standard_normal(shape) * 0.5).astype(dtype)

        def mask(*shape):
            return ((rng.random(shape) < 0.6) / 0.6).astype(dtype)

        lead = (self.batch, self.steps) if self.batch_first else (self.steps, self.batch)
        states = self.layers * directions
        x = normal(*lead, self.inputs)
        if self.lengths is not None:  # what lies behind them is not read
            late = np.arange(self.steps)[:, None] >= np.array(self.lengths)
            x[late.T if self.batch_first else late] = np.nan
        h0, c0 = normal(states, self.batch, out), normal(states, self.batch, self.hidden)
        lstm = "lstm" in self.cell
        grads = (normal(*lead, directions * out), normal(states, self.batch, out))
        grads += (normal(states, self.batch, self.hidden) if lstm else None,)
        extra = None
        if self.masks or self.every or self.cell == "norm_lstm":
            between = (self.batch,) if self.masks == "all" else lead
            both = None, None
            if self.masks:
                both = (
                    tuple(mask(*between, directions * out) for _ in range(self.layers - 1)),
                    mask(states, self.batch, out),
                )
            extra = (*both, self.every, 1e-3)
        return {
            "x": x,
            "h0": h0 if self.states else None,
            "c0": c0 if self.states and lstm else None,
            "weights": tuple(normal(*shape) for shape in shapes),
            "extra": extra,
            "grads": grads,
        }

    def run(self, a):
        """out, h_n, c_n, then the gradients of x, h0, c0 and the weights."""
        op = "layer_norm_lstm" if self.cell == "norm_lstm" else self.cell
        options = (op if op in (*GATES, "layer_norm_lstm") else "rnn", self.cell, self.layers,
                   self.bidirectional, self.batch_first)  # fmt: skip
        lengths = None if self.lengths is None else np.array(self.lengths)
        args = (options, a["x"], a["h0"], a["c0"], a["weights"], lengths, a["extra"])
        plain = _core.recurrent_forward(*args, False)
        out, h_n, c_n, saved = _core.recurrent_forward(*args, True)
        for one, two in zip(plain[:3], (out, h_n, c_n), strict=True):
            assert bits(one) == bits(two)  # with and without a reserve
        wanted = (True, self.states, a["c0"] is not None, *[True] * len(a["weights"]))
        grads = _core.recurrent_backward(*args, saved, a["grads"], wanted)
        return [one for one in (out, h_n, c_n, *grads) if one is not None]


def bits(array):
    if array is None:
        return None
    return (array.get() if hasattr(array, "get") else array).tobytes()


def mapped(function, value):
    if isinstance(value, tuple):
        return tuple(mapped(function, one) for one in value)
    if isinstance(value, dict):
        return {name: mapped(function, one) for name, one in value.items()}
    return function(value) if isinstance(value, np.ndarray) else value


def check(xp, stack, dtype, units=64):
    arrays = stack.arrays(dtype)
    expected = stack.run(mapped(lambda one: one.astype("float64"), arrays))
    results = stack.run(mapped(xp.asarray, arrays))
    for got, value in zip(results, expected, strict=True):
        assert isinstance(got, xp.ndarray)
        scale = max(1.0, float(np.abs(value).max(initial=0)))
        close(xp.asnumpy(got), value, units, scale)


SHAPES = {
    "plain": {"steps": 5, "batch": 3, "inputs": 4, "hidden": 7},
    "one step": {"steps": 1, "batch": 2, "inputs": 3, "hidden": 5, "states": False},
    "no step": {"steps": 0, "batch": 2, "inputs": 3, "hidden": 5},
    "no sequence": {"steps": 3, "batch": 0, "inputs": 3, "hidden": 5},
    "no inputs": {"steps": 2, "batch": 2, "inputs": 0, "hidden": 3, "bias": False},
    "one unit": {"steps": 3, "batch": 1, "inputs": 2, "hidden": 1, "bias": False},
    "batch first": {"steps": 4, "batch": 5, "inputs": 3, "hidden": 6, "batch_first": True},
    "lengths": {"steps": 5, "batch": 4, "inputs": 3, "hidden": 6, "lengths": (2, 5, 0, 3)},
    "all empty": {"steps": 2, "batch": 2, "inputs": 3, "hidden": 2, "lengths": (0, 0)},
    "both directions": {
        "steps": 5, "batch": 3, "inputs": 3, "hidden": 5, "layers": 3, "bidirectional": True,
        "lengths": (3, 5, 1), "batch_first": True,
    },
    "masks": {
        "steps": 4, "batch": 3, "inputs": 3, "hidden": 5, "layers": 2, "bidirectional": True,
        "masks": "each", "lengths": (4, 2, 3),
    },
    "one mask": {
        "steps": 4, "batch": 3, "inputs": 3, "hidden": 5, "layers": 2, "masks": "all",
        "batch_first": True, "states": False,
    },
    "checkpoints": {
        "steps": 7, "batch": 3, "inputs": 3, "hidden": 5, "bidirectional": True,
        "every": 3, "masks": "each", "lengths": (7, 2, 5),
    },
    "padded gates": {"steps": 2, "batch": 2, "inputs": 3, "hidden": 32},
}  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
def test_values_and_gradients(xp, dtype, shape):
    check(xp, Stack("lstm", **SHAPES[shape]), dtype)


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("shape", ("plain", "one step", "lengths", "masks", "checkpoints"))
def test_values_of_cells(xp, shape, cell):
    check(xp, Stack(cell, **SHAPES[shape]), "float32")


@pytest.mark.parametrize("cell", CELLS)
def test_values_of_cells_in_double(xp, cell):
    check(xp, Stack(cell, **SHAPES["batch first"]), "float64")


@pytest.mark.parametrize("cell", CELLS)
def test_values_step_by_step(xp, cell):
    """More sequences than one kernel takes."""
    check(xp, Stack(cell, 2, 65, 1, 3, lengths=tuple(range(3)) * 21 + (2, 1)), "float32")


def test_values_of_many_rows(xp):
    """More rows than backward takes at a time: gradients add up."""
    check(xp, Stack("gru", 2, 4100, 1, 2), "float32", units=512)


def test_what_masks_drop_is_not_looked_at(xp):
    """NaN in a layer ends where the mask is 0."""
    stack = Stack("tanh", 2, 2, 3, 4, layers=2, masks="each")
    arrays = stack.arrays("float32")
    arrays["x"][:, 0] = np.nan
    arrays["extra"][0][0][:, 0] = 0
    out, h_n = stack.run(mapped(xp.asarray, arrays))[:2]
    assert np.isfinite(xp.asnumpy(out)).all() and np.isnan(xp.asnumpy(h_n)[0, 0]).all()


@pytest.mark.parametrize("shape", ("plain", "both directions", "checkpoints"))
def test_projection(xp, shape):
    check(xp, Stack("lstm", proj=3, **SHAPES[shape]), "float64")


@pytest.mark.emulated
@pytest.mark.parametrize("cell", ("lstm", "norm_lstm"))
def test_any_order_of_blocks(xp, cell):
    from emulated import set_seed

    stack = Stack(cell, 3, 3, 4, 9, lengths=(3, 1, 2), masks="all", layers=2)
    arrays = mapped(xp.asarray, stack.arrays("float32"))
    results = []
    try:
        for seed in (0, 1, 2):
            set_seed(seed)
            results.append([bits(one) for one in stack.run(arrays)])
    finally:
        set_seed(0)
    assert results[0] == results[1] == results[2]


@pytest.mark.parametrize("cell", ("lstm", "norm_lstm"))
def test_checkpoints_have_the_same_bits(xp, cell):
    """Also where the depth of the input's product is cut, which looks at the number of rows."""
    stack = Stack(cell, 7, 3, 520, 5, lengths=(7, 2, 5))
    arrays = mapped(xp.asarray, stack.arrays("float32"))
    whole = [bits(one) for one in stack.run(arrays)]
    assert whole == [bits(one) for one in stack.run({**arrays, "extra": (None, None, 3, 1e-3)})]


# ---- one kernel for the sequence -----------------------------------------------------------------

# Few and many sequences, units around those of a block, depths around a warp's.
SEQUENCES = (
    Stack("lstm", 3, 2, 2, 4), Stack("lstm", 3, 9, 2, 5, masks="all"), Stack("gru", 3, 17, 2, 3),
    Stack("tanh", 3, 1, 2, 131), Stack("gru", 2, 11, 2, 130, states=False),
)  # fmt: skip


@pytest.mark.emulated
@pytest.mark.parametrize("stack", SEQUENCES, ids=str)
def test_one_launch_or_one_for_each_step(xp, stack):
    """Where not all blocks fit on the device there is a launch for every step: the same bits."""
    from emulated import set_resident, take_counts

    arrays = mapped(xp.asarray, stack.arrays("float32"))
    results, launches = [], []
    try:
        for resident in (256, 1):
            set_resident(resident)
            take_counts()
            results.append([bits(one) for one in stack.run(arrays)])
            launches.append(take_counts()["launches"])
    finally:
        set_resident()
    assert results[0] == results[1]
    assert launches[1] > launches[0]


def test_sequences_do_not_depend_on_each_other(xp):
    """A sequence has the same bits alone and among others."""
    rng = np.random.default_rng(1)
    weights = [xp.asarray(rng.standard_normal(s).astype("float32")) for s in ((20, 3), (20, 5))]
    x = rng.standard_normal((4, 11, 3)).astype("float32")
    together = F.lstm(xp.asarray(x), None, weights)[0].get()
    for b in (0, 7, 10):
        alone = F.lstm(xp.asarray(x[:, b : b + 1]), None, weights)[0].get()
        np.testing.assert_array_equal(alone[:, 0], together[:, b])


# ---- the public functions and modules ------------------------------------------------------------


@pytest.mark.parametrize("cell", (F.rnn_cell, F.lstm_cell, F.gru_cell))
def test_cells(xp, dtype, cell):
    gates = {F.rnn_cell: 1, F.lstm_cell: 4, F.gru_cell: 3}[cell]
    rng = np.random.default_rng(2)
    shapes = (3, 4), (3, 5), (gates * 5, 4), (gates * 5, 5), (gates * 5,), (gates * 5,)
    x, h, *weights = (rng.standard_normal(shape).astype(dtype) for shape in shapes)

    def call(convert):
        state = (convert(h), convert(h * 2)) if cell is F.lstm_cell else convert(h)
        out = cell(convert(x), state, *map(convert, weights))
        return out if isinstance(out, tuple) else (out,)

    for got, value in zip(call(xp.asarray), call(lambda a: a.astype("float64")), strict=True):
        close(xp.asnumpy(got), value)


@pytest.mark.parametrize("kind", ("RNN", "LSTM", "GRU", "LayerNormLSTM"))
def test_modules(xp, kind):
    """Layers, both directions, dropout with the same masks, packed sequences, gradients."""
    fn.manual_seed(0)
    layer = getattr(nn, kind)(
        3, 5, 2, bidirectional=True, dropout=0.3, recurrent_dropout=0.2, checkpoint_every=2
    )
    x = np.random.default_rng(3).standard_normal((4, 3, 3)).astype("float32")
    results = []
    for device in ("cpu", "cuda"):
        layer.to(device)
        layer.zero_grad()
        fn.manual_seed(1)
        inputs = fn.tensor(x, device=device, requires_grad=True)
        packed = nn.utils.rnn.pack_padded_sequence(inputs, [2, 4, 1], enforce_sorted=False)
        out, state = layer(packed)
        padded, lengths = nn.utils.rnn.pad_packed_sequence(out)
        assert lengths.tolist() == [2, 4, 1]
        assert padded.device == inputs.device
        states = state if isinstance(state, tuple) else (state,)
        sum([(one * one).sum() for one in states], (padded * padded).sum()).backward()
        grads = [inputs.grad, *[p.grad for p in layer.parameters()]]
        results.append([one.detach().cpu().numpy() for one in (padded, *states, *grads)])
    for got, value in zip(results[1], results[0], strict=True):
        np.testing.assert_allclose(got, value, rtol=2e-4, atol=2e-5)


def test_streaming(xp):
    """State handed on from call to call: as if it were one."""
    fn.manual_seed(0)
    layer = nn.GRU(3, 4).to("cuda")
    x = fn.tensor(np.random.default_rng(5).standard_normal((6, 2, 3)).astype("float32"))
    x = x.to("cuda")
    whole, end = layer(x)
    first, state = layer(x[:2])
    second, state = layer(x[2:], state)
    np.testing.assert_array_equal(fn.cat([first, second]).detach().cpu().numpy(),
                                  whole.detach().cpu().numpy())  # fmt: skip
    np.testing.assert_array_equal(state.detach().cpu().numpy(), end.detach().cpu().numpy())


def test_refused(xp):
    x, w = xp.zeros((2, 1, 3), "float32"), xp.zeros((2, 3), "float32")
    h = xp.zeros((2, 2), "float32")
    with pytest.raises(ValueError, match="rnn: weights is on the CPU, expected on cuda:0"):
        F.rnn(x, None, [np.zeros((2, 3), "float32"), h])
    with pytest.raises(ValueError, match="rnn: lengths is on a GPU, expected on the CPU"):
        F.rnn(x, None, [w, h], lengths=xp.asarray(np.array([1])))
