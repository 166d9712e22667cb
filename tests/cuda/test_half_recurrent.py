"""Recurrent layers of 16-bit arrays, beside the CPU's in float64 on the same values."""

from __future__ import annotations

import numpy as np
import pytest
from test_half_kernels import DTYPES
from test_recurrent_kernels import SEQUENCES, SHAPES, Stack, bits, mapped

import fusednn as fn
import fusednn.functional as F
from fusednn import nn

CELLS = ("tanh", "relu", "identity", "lstm", "gru", "norm_lstm")
EPS = {"bfloat16": 2.0**-8, "float16": 2.0**-11}


@pytest.fixture(params=list(DTYPES))
def half(request):
    return DTYPES[request.param]


def check(xp, stack, half, units=16):
    """Within `units` roundings of the largest value: h and d_gates are rounded at every step."""
    arrays = mapped(lambda one: one.astype(half), stack.arrays("float32"))
    expected = stack.run(mapped(lambda one: one.astype("float64"), arrays))
    results = stack.run(mapped(xp.asarray, arrays))
    worst = 0.0
    for got, value in zip(results, expected, strict=True):
        assert got.dtype == half and got.shape == value.shape
        scale = max(1.0, float(np.abs(value).max(initial=0)))
        error = np.abs(xp.asnumpy(got).astype("float64") - value).max(initial=0) / scale
        worst = max(worst, error / EPS[half.name])
    assert worst < units, worst


@pytest.mark.parametrize("shape", SHAPES)
def test_values_and_gradients(xp, half, shape):
    check(xp, Stack("lstm", **SHAPES[shape]), half)


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("shape", ("plain", "lengths", "masks", "checkpoints"))
def test_values_of_cells(xp, shape, cell):
    check(xp, Stack(cell, **SHAPES[shape]), DTYPES["bfloat16"])


# Units of several blocks, depths of several warps, more tiles of rows than one, rows by single
# values and by 16 bytes, a tile of four and of one.
LARGE = (
    Stack("lstm", 2, 5, 3, 264), Stack("gru", 2, 18, 3, 40), Stack("gru", 2, 2, 3, 131),
    Stack("tanh", 2, 33, 3, 24), Stack("lstm", 2, 64, 2, 3, masks="all"),
    Stack("norm_lstm", 2, 2, 3, 260),
)  # fmt: skip


@pytest.mark.parametrize("stack", LARGE, ids=str)
def test_values_of_large_ones(xp, half, stack):
    check(xp, stack, half)


@pytest.mark.parametrize("cell", CELLS)
def test_values_step_by_step(xp, cell):
    """More sequences than one kernel takes."""
    lengths = tuple(range(3)) * 21 + (2, 1)
    check(xp, Stack(cell, 2, 65, 1, 3, lengths=lengths, masks="all"), DTYPES["float16"])


@pytest.mark.parametrize("shape", ("plain", "both directions", "checkpoints"))
def test_projection(xp, half, shape):
    check(xp, Stack("lstm", proj=3, **SHAPES[shape]), half)


@pytest.mark.parametrize(
    "cell, hidden, proj", [("lstm", 5, 0), ("lstm", 40, 0), ("lstm", 5, 3), ("norm_lstm", 5, 0)]
)
def test_checkpoints_have_the_same_bits(xp, cell, hidden, proj):
    """c is kept as the float that it is."""
    stack = Stack(cell, 7, 3, 4, hidden, proj=proj, lengths=(7, 2, 5))
    arrays = mapped(lambda a: xp.asarray(a.astype(DTYPES["bfloat16"])), stack.arrays("float32"))
    whole = [bits(one) for one in stack.run(arrays)]
    assert whole == [bits(one) for one in stack.run({**arrays, "extra": (None, None, 3, 1e-3)})]


@pytest.mark.parametrize("shape", ("plain", "one step", "no step", "both directions", "one unit"))
def test_layer_normalised(xp, half, shape):
    check(xp, Stack("norm_lstm", **SHAPES[shape]), half)


def test_layer_normalised_far_from_zero(xp):
    """A common mean a hundred times the deviation: it is subtracted in float32, and so is that of
    the cell's state. Exact products: only what follows them is rounded."""
    half, rng = DTYPES["bfloat16"], np.random.default_rng(4)
    x = np.array([[[1.0]], [[-2.0]], [[0.5]]])
    w_ih = rng.choice([100.0, 100.5, 101.0, 99.5], (12, 1))
    weights = (w_ih, np.zeros((12, 3)), *np.full((2, 12), 0.5), np.full(3, 2.0))
    got, exact = (
        F.layer_norm_lstm(convert(x), None, [convert(w) for w in weights])[0]
        for convert in (lambda a: xp.asarray(a.astype(half)), lambda a: a)
    )
    np.testing.assert_allclose(xp.asnumpy(got).astype("d"), exact, rtol=2 * EPS["bfloat16"])


def test_layer_normalised_gates_that_are_one(xp):
    """Gates that are 1 in 16 bits, but not quite, have a gradient."""
    half, rng = DTYPES["bfloat16"], np.random.default_rng(2)
    shapes = (3, 2, 2), (20, 2), (20, 5), (20,), (20,), (20,), (20,), (5,), (5,)
    x, *weights = ((rng.standard_normal(shape) * 0.5).astype(half) for shape in shapes)
    weights[2][:10] = 7
    grads = []
    for convert in (lambda a: a.astype(np.float64), xp.asarray):
        leaf = fn.tensor(convert(weights[2]), requires_grad=True)
        both = [convert(w) if w is not weights[2] else leaf for w in weights]
        F.layer_norm_lstm(convert(x), None, both)[0].float().square().sum().backward()
        grads.append(leaf.grad.detach().cpu().numpy().astype(np.float64))
    closed = grads[0][:10], grads[1][:10]  # of i and f
    np.testing.assert_allclose(closed[1], closed[0], rtol=0.1, atol=0.02 * abs(closed[0]).max())


@pytest.mark.parametrize("batch", [2, 65])
@pytest.mark.parametrize("function", [F.lstm, F.gru, F.rnn])
def test_saturated_gates_have_a_gradient(xp, function, batch):
    """Gates that are 1 in 16 bits, but not quite."""
    rows = {F.lstm: 4, F.gru: 3, F.rnn: 1}[function]
    shapes = (3, batch, 1), (rows, 1), (rows, 1), (rows,), (rows,)
    x, *weights = (np.full(shape, 0.25, DTYPES["bfloat16"]) for shape in shapes)
    weights[2][:] = 5 if function is not F.rnn else 3.5
    grads = []
    for convert in (lambda a: a.astype(np.float64), xp.asarray):
        leaf = fn.tensor(convert(weights[2]), requires_grad=True)
        both = [convert(w) if w is not weights[2] else leaf for w in weights]
        function(convert(x), None, both)[0].float().sum().backward()
        grads.append(leaf.grad.detach().cpu().numpy().astype(np.float64))
    np.testing.assert_allclose(grads[1], grads[0], rtol=0.1)


@pytest.mark.emulated
@pytest.mark.parametrize("stack", (*SEQUENCES[:3], LARGE[1]), ids=str)
def test_one_launch_or_one_for_each_step(xp, stack):
    """Where not all blocks fit on the device, in any order of blocks: the same bits."""
    from emulated import set_resident, set_seed, take_counts

    arrays = mapped(lambda a: xp.asarray(a.astype(np.float16)), stack.arrays("float32"))
    results, launches = [], []
    try:
        for resident, seed in ((256, 0), (256, 1), (1, 2)):
            set_resident(resident)
            set_seed(seed)
            take_counts()
            results.append([bits(one) for one in stack.run(arrays)])
            launches.append(take_counts()["launches"])
    finally:
        set_resident()
        set_seed(0)
    assert results[0] == results[1] == results[2]
    assert launches[2] > launches[0] == launches[1]


def test_sequences_do_not_depend_on_each_other(xp):
    """A sequence has the same bits alone and among others, whatever those are."""
    rng = np.random.default_rng(1)
    shapes = ((20, 3), (20, 5))
    weights = [xp.asarray(rng.standard_normal(s).astype(np.float16)) for s in shapes]
    x = rng.standard_normal((4, 19, 3)).astype(np.float16)
    together = F.lstm(xp.asarray(x), None, weights)[0].get()
    alone = F.lstm(xp.asarray(x[:, 17:18]), None, weights)[0].get()
    np.testing.assert_array_equal(alone[:, 0], together[:, 17])
    x[:, 16] = np.nan
    others = F.lstm(xp.asarray(x), None, weights)[0].get()
    np.testing.assert_array_equal(np.isnan(others).any(axis=(0, 2)), np.arange(19) == 16)


@pytest.mark.parametrize("kind", ("RNN", "LSTM", "GRU", "LayerNormLSTM"))
def test_autocast(xp, half, kind):
    """Layers take float32 as 16 bits, parameters and their gradients stay float32."""
    fn.manual_seed(0)
    layer = getattr(nn, kind)(3, 5, 2, bidirectional=True, dropout=0.3, recurrent_dropout=0.2)
    x = np.random.default_rng(3).standard_normal((4, 3, 3)).astype("float32")
    results = []
    for device in ("cpu", "cuda"):
        layer.to(device)
        layer.zero_grad()
        fn.manual_seed(1)
        inputs = fn.tensor(x, device=device, requires_grad=True)
        with fn.autocast(half.name, enabled=device == "cuda"):
            out = layer(inputs)[0]
        assert out.dtype == (half if device == "cuda" else np.float32)
        out.float().square().sum().backward()
        grads = [inputs.grad, *[p.grad for p in layer.parameters()]]
        results.append([one.detach().cpu().float().numpy() for one in (out, *grads)])
        assert {one.dtype for one in grads} == {np.dtype("float32")}
    # A gradient through small products, divided by their deviation: rounding the arguments alone
    # makes 55 roundings of it.
    units = 128 if kind == "LayerNormLSTM" else 16
    for got, value in zip(results[1], results[0], strict=True):
        scale = max(1.0, float(np.abs(value).max()))
        np.testing.assert_allclose(got, value, rtol=0, atol=units * EPS[half.name] * scale)


def test_half_modules(xp, half):
    """Everything 16 bits, one step after the other and cells."""
    layer = nn.GRU(3, 4).to("cuda", half)
    x = fn.tensor(np.random.default_rng(5).standard_normal((6, 2, 3)), dtype=half, device="cuda")
    whole, end = layer(x)
    first, state = layer(x[:2])
    second, state = layer(x[2:], state)
    assert whole.dtype == end.dtype == half
    joined = fn.cat([first, second]).detach().cpu().numpy()
    np.testing.assert_array_equal(joined, whole.detach().cpu().numpy())
    h, c = nn.LSTMCell(3, 4).to("cuda", half)(x[0])
    assert h.dtype == c.dtype == half
    out, (h, c) = nn.LayerNormLSTM(3, 4).to("cuda", half)(x)
    assert out.dtype == h.dtype == c.dtype == half


def test_refused(xp, half):
    x = fn.zeros(2, 1, 3, dtype=half, device="cuda")
    for kind, op in ((nn.LSTM, "lstm"), (nn.LayerNormLSTM, "layer_norm_lstm")):
        with pytest.raises(TypeError, match=f"{op}: weights has dtype float32, expected {half}"):
            kind(3, 4).to("cuda")(x)
