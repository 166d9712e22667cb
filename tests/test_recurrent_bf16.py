"""bfloat16 weights of recurrent layers: what float32 gives for the same numbers; modules; texts."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import fusednn as fn
import fusednn.functional as F
from fusednn import nn

bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
Array = NDArray[Any]
GATES = {"rnn": 1, "gru": 3, "lstm": 4, "layer_norm_lstm": 4}


def weights_of(
    op: str, inputs: int, hidden: int, sets: int = 1, proj: int = 0, bias: bool = True
) -> list[Array]:
    """Random weights, rounded to bfloat16."""
    rng = np.random.default_rng(hidden)
    rows, out = GATES[op] * hidden, proj or hidden
    arrays: list[Array] = []
    for _ in range(sets):
        shapes: list[tuple[int, ...]] = [(rows, inputs), (rows, out)]
        shapes += [(rows,), (rows,)] * bias + [(out, hidden)] * bool(proj)
        if op == "layer_norm_lstm":
            shapes += [(rows,), (rows,), (hidden,)] + [(hidden,)] * bias
        arrays += [(rng.standard_normal(s) / out**0.5).astype(bfloat16) for s in shapes]
    return arrays


def flat(result: Any) -> list[Array]:
    out, last = result
    return [out, *last] if isinstance(last, tuple) else [out, last]


def check(op: str, steps: int, batch: int, inputs: int, hidden: int, **options: Any) -> None:
    """Nothing but the order of some sums may differ from float32 weights with the same values."""
    proj, bias = options.pop("proj", 0), options.pop("bias", True)
    sets = 2 if options.get("bidirectional") else 1
    half = weights_of(op, inputs, hidden, sets, proj, bias)
    x = np.random.default_rng(0).standard_normal((steps, batch, inputs)).astype(np.float32)
    function = getattr(F, op)
    expected = flat(function(x, None, [w.astype(np.float32) for w in half], **options))
    for one, two in zip(flat(function(x, None, half, **options)), expected, strict=True):
        assert one.dtype == np.float32
        np.testing.assert_allclose(one, two, rtol=2e-5, atol=2e-6)
        if 2 < steps < 24 and batch <= 2:
            np.testing.assert_array_equal(one, two)  # the same chains of multiply-adds


@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize("hidden", [1, 7, 16, 33, 65, 130])
def test_equals_float32_of_the_same_values(op: str, hidden: int, isa: str) -> None:
    for steps, batch in ((1, 1), (2, 3), (1, 6), (5, 1), (30, 1), (4, 2), (4, 4), (6, 9)):
        check(op, steps, batch, 5, hidden)


def test_variants(isa: str) -> None:
    check("lstm", 30, 1, 40, 33, bidirectional=True, proj=9)
    check("lstm", 5, 3, 4, 20, bias=False, lengths=np.array([5, 0, 2]))
    check("layer_norm_lstm", 26, 1, 17, 20, bias=False, bidirectional=True)
    check("gru", 5, 2, 0, 20)
    check("rnn", 0, 2, 3, 20)
    check("rnn", 4, 0, 3, 20, nonlinearity="relu")
    check("lstm", 30, 1, 200, 200, recurrent_dropout=0.5)


@pytest.mark.parametrize("op", ["rnn", "gru", "lstm"])
@pytest.mark.parametrize("batch", [1, 3, 8])
def test_cells(op: str, batch: int, isa: str) -> None:
    rng = np.random.default_rng(0)
    half = weights_of(op, 19, 37)
    x, h, c = (rng.standard_normal((batch, n)).astype(np.float32) for n in (19, 37, 37))
    state = (h, c) if op == "lstm" else h
    function = getattr(F, f"{op}_cell")
    found, expected = (
        function(x, state, *weights) for weights in (half, [w.astype(np.float32) for w in half])
    )
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_error_of_rounding_the_weights() -> None:
    """bfloat16 keeps 8 bits: weights are off by at most 2^-9 of themselves. States that lie in
    [-1, 1] come out right to about 0.01."""
    rng = np.random.default_rng(0)
    hidden = 128
    exact = [
        (rng.uniform(-1, 1, s) / hidden**0.5).astype(np.float32)
        for s in ((4 * hidden, 64), (4 * hidden, hidden), (4 * hidden,), (4 * hidden,))
    ]
    half = [w.astype(bfloat16) for w in exact]
    for w, rounded in zip(exact, half, strict=True):
        assert (np.abs(rounded.astype(np.float32) - w) <= np.abs(w) * 2.0**-8).all()
    x = rng.standard_normal((100, 1, 64)).astype(np.float32)
    difference = np.abs(F.lstm(x, None, half)[0] - F.lstm(x, None, exact)[0])
    assert 0 < difference.max() < 0.01
    assert difference.mean() < 0.001


def test_same_bits_at_any_thread_count(isa: str) -> None:
    half = weights_of("lstm", 300, 520)
    x = np.random.default_rng(0).standard_normal((12, 1, 300)).astype(np.float32)
    results = []
    for threads in (1, 2, 3):
        fn.set_num_threads(threads)
        results.append([a for steps in (1, 12) for a in flat(F.lstm(x[:steps], None, half))])
    for other in results[1:]:
        for one, two in zip(other, results[0], strict=True):
            np.testing.assert_array_equal(one, two)


def test_any_array_layout(isa: str) -> None:
    half = weights_of("gru", 5, 9)
    x = np.random.default_rng(0).standard_normal((4, 2, 5)).astype(np.float32)
    expected = flat(F.gru(x, None, half))

    def variants(w: Array) -> list[Array]:
        wide = np.zeros((*w.shape[:-1], 2 * w.shape[-1]), bfloat16)[..., ::2]
        wide[...] = w
        frozen = w.copy()
        frozen.flags.writeable = False
        reversed_ = np.ascontiguousarray(w[..., ::-1])[..., ::-1]
        return [wide, frozen, reversed_, np.asfortranarray(w)]

    for weights in zip(*map(variants, half), strict=True):
        for one, two in zip(flat(F.gru(x, None, list(weights))), expected, strict=True):
            np.testing.assert_array_equal(one, two)


def test_some_weights_may_be_float32() -> None:
    half = weights_of("lstm", 5, 9)
    x = np.random.default_rng(0).standard_normal((4, 2, 5)).astype(np.float32)
    expected = F.lstm(x, None, half)[0]
    for i in range(4):
        mixed = [w.astype(np.float32) if i == j else w for j, w in enumerate(half)]
        np.testing.assert_allclose(F.lstm(x, None, mixed)[0], expected, rtol=1e-5, atol=1e-6)


def test_values_beyond_numbers(isa: str) -> None:
    half = weights_of("rnn", 3, 8)
    half[1][2, 5] = np.nan
    half[0][7, 0] = np.inf
    x = np.ones((4, 1, 3), np.float32)
    out = F.rnn(x, None, half)[0][:, 0]
    assert out[0, 7] == 1
    assert np.isnan(out[1:, 2]).all()
    assert np.isfinite(out[0]).all()


# ---- modules -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU", "LayerNormLSTM"])
def test_module(kind: str) -> None:
    fn.manual_seed(0)
    layer = getattr(nn, kind)(3, 6, 2, bidirectional=True)
    x = np.random.default_rng(0).standard_normal((5, 2, 3)).astype(np.float32)
    before = layer(x)[0].numpy()
    assert layer.to(bfloat16) is layer
    assert not any(p.requires_grad for p in layer.parameters())
    assert all(array.dtype == bfloat16 for array in layer.state_dict().values())
    out = layer(x)[0]
    assert isinstance(out, fn.Tensor)
    assert out.dtype == np.float32
    np.testing.assert_allclose(out.numpy(), before, atol=0.03)
    layer.to(np.float32)
    assert all(array.dtype == np.float32 for array in layer.state_dict().values())
    np.testing.assert_allclose(layer(x)[0].numpy(), out.numpy(), rtol=1e-5, atol=1e-6)
    layer.to(dtype=np.dtype(bfloat16))
    np.testing.assert_array_equal(layer(x)[0].numpy(), out.numpy())


def test_cells_as_modules() -> None:
    cell = nn.LSTMCell(3, 4).to(dtype=bfloat16)
    x = np.ones((2, 3), np.float32)
    h, c = cell(x)
    h, c = cell(x, (h, c))
    assert h.dtype == c.dtype == np.float32
    assert cell.weight_hh.dtype == bfloat16


def test_a_network_around_one_becomes_float_again() -> None:
    net = nn.Sequential(nn.Linear(3, 3), nn.LSTM(3, 4))
    with pytest.raises(TypeError, match="dtype bfloat16 is not supported"):
        net.to(bfloat16)
    net[1].to(bfloat16)
    with fn.no_grad():
        out, _ = net(np.ones((5, 2, 3), np.float32))
    assert out.shape == (5, 2, 4)
    assert net.float()[1].weight_hh_l0.dtype == np.float32


def test_package_is_not_imported() -> None:
    code = """
import sys
import numpy as np
import fusednn as fn
fn.nn.LSTM(3, 4)(np.zeros((5, 2, 3), np.float32))
assert "ml_dtypes" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


# ---- texts ---------------------------------------------------------------------------------------

X = np.zeros((6, 4, 3), np.float32)
H = [np.zeros((8, 3), bfloat16), np.zeros((8, 2), bfloat16)]


@pytest.mark.parametrize(
    "call, error, text",
    [
        (lambda: F.lstm(X.astype("f8"), None, H), TypeError,
         "lstm: weights has dtype bfloat16, expected float64 like input"),
        (lambda: F.lstm(fn.tensor(X, requires_grad=True), None, H), TypeError,
         "lstm: a gradient is asked for, and weights has dtype bfloat16, which is for inference"),
        (lambda: F.lstm(X.astype(bfloat16), None, H), TypeError,
         "lstm: input has dtype bfloat16, expected float32 or float64"),
        (lambda: F.lstm(X, None, [H[0][:, :2], H[1]]), ValueError,
         "lstm: input has 3 features, expected 2"),
        (lambda: F.linear(X, H[0]), TypeError, "linear: weight has dtype bfloat16"),
    ],
)  # fmt: skip
def test_refused(call: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        call()
    assert text in str(caught.value)


def test_gradients_may_be_switched_off() -> None:
    x = fn.tensor(X, requires_grad=True)
    with fn.no_grad():
        assert F.lstm(x, None, H)[0].shape == (6, 4, 2)
