"""Recurrent modules: names, starting values, dropout; against PyTorch where it is installed."""

from __future__ import annotations

import importlib.util
import itertools
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import fusednn as fn
from fusednn import nn

needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="torch is not installed"
)


def test_parameter_names_and_shapes() -> None:
    layer = nn.LSTM(3, 4, num_layers=2, bidirectional=True, proj_size=2)
    shapes = {name: p.shape for name, p in layer.named_parameters()}
    assert list(shapes)[:5] == [
        "weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0", "weight_hr_l0",
    ]  # fmt: skip
    assert shapes["weight_ih_l0"] == (16, 3)
    assert shapes["weight_ih_l1_reverse"] == (16, 4)
    assert shapes["weight_hh_l1"] == (16, 2)
    assert shapes["weight_hr_l1_reverse"] == (2, 4)
    assert len(shapes) == 20
    assert [len(group) for group in layer.all_weights] == [5] * 4
    cell = nn.GRUCell(3, 4, bias=False)
    assert list(cell.state_dict()) == ["weight_ih", "weight_hh"]
    assert nn.RNN(3, 4, bias=False).state_dict().keys() == {"weight_ih_l0", "weight_hh_l0"}


def test_starting_values() -> None:
    fn.manual_seed(0)
    for layer in (nn.LSTM(10, 10), nn.GRU(4, 10), nn.RNNCell(4, 10)):
        for _, p in layer.named_parameters():
            assert 0.6 * 10**-0.5 < np.abs(p.numpy()).max() <= 10**-0.5
    for layer in (nn.LSTM(2, 3, num_layers=2, forget_bias=1.5), nn.LSTMCell(2, 3, forget_bias=1.5)):
        biases = {name: p.numpy() for name, p in layer.named_parameters() if "bias" in name}
        for name in biases:
            if "bias_ih" in name:
                both = biases[name] + biases[name.replace("ih", "hh")]
                np.testing.assert_allclose(both[3:6], 1.5)
                assert np.abs(both[:3]).max() < 1.5


def test_repr() -> None:
    assert repr(nn.LSTM(3, 4, 2, bias=False, dropout=0.5)) == (
        "LSTM(3, 4, num_layers=2, bias=False, dropout=0.5)"
    )
    assert repr(nn.RNN(3, 4, nonlinearity="relu")) == "RNN(3, 4, nonlinearity=relu)"
    assert repr(nn.GRUCell(3, 4)) == "GRUCell(3, 4)"


def test_refused() -> None:
    for make, text in [
        (lambda: nn.LSTM(3, 0), "LSTM: hidden_size=0, expected at least 1"),
        (lambda: nn.LSTM(3, 4, proj_size=4), "LSTM: proj_size=4, expected less than hidden_size=4"),
        (lambda: nn.GRU(3, 4, 2, dropout=2), "GRU: dropout=2, expected a probability"),
        (lambda: nn.RNN(3, 4, nonlinearity="sin"), "RNN: nonlinearity='sin'"),
        (lambda: nn.GRU(3, 4)(np.zeros((2, 2, 5), np.float32)), "gru: input has 5 features"),
    ]:
        with pytest.raises(ValueError) as caught:
            make()
        assert text in str(caught.value)


def test_dropout_stands_between_layers_only() -> None:
    with pytest.warns(UserWarning, match="dropout=0.5 has no effect with num_layers=1"):
        nn.LSTM(2, 3, 1, dropout=0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layer = nn.GRU(2, 8, 2, dropout=1.0, dtype=np.float64)
    x = fn.tensor(np.random.default_rng(0).standard_normal((5, 3, 2)), requires_grad=True)
    out, h = layer(x)
    # All that the second layer gets is zeros: no NaN, and no gradient reaches the first.
    weights = {name: p.numpy() for name, p in layer.named_parameters()}
    flat = [weights[f"{kind}_l1"] for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
    alone, _ = fn.functional.gru(np.zeros((5, 3, 8)), None, flat)
    np.testing.assert_allclose(out.numpy(), alone, rtol=1e-12)
    assert h.numpy()[0].all()
    out.sum().backward()
    assert not x.grad.numpy().any()
    assert not layer.weight_ih_l0.grad.numpy().any()
    assert layer.weight_hh_l1.grad.numpy().any()


def test_dropout_in_training_and_evaluation() -> None:
    layer = nn.LSTM(3, 40, 2, dropout=0.5, bidirectional=True)
    x = np.random.default_rng(0).standard_normal((4, 3, 3)).astype(np.float32)
    fn.manual_seed(1)
    first = layer(x)[0].numpy()
    second = layer(x)[0].numpy()
    fn.manual_seed(1)
    assert not np.array_equal(first, second)
    np.testing.assert_array_equal(layer(x)[0].numpy(), first)
    layer.eval()
    np.testing.assert_array_equal(layer(x)[0].numpy(), layer(x)[0].numpy())


def test_dropout_gradient() -> None:
    layer = nn.LSTM(2, 3, 3, dropout=0.4, dtype=np.float64)
    x = np.random.default_rng(0).standard_normal((3, 2, 2))

    def loss(x: Any) -> Any:
        fn.manual_seed(7)  # the same masks every time
        return layer(x)[0]

    assert fn.testing.gradcheck(loss, x)


def test_truncated_backpropagation() -> None:
    layer = nn.LSTM(2, 3)
    x = np.random.default_rng(0).standard_normal((6, 1, 2)).astype(np.float32)
    out, state = layer(x[:3])
    state = tuple(s.detach() for s in state)
    out, _ = layer(x[3:], state)
    out.sum().backward()
    whole, _ = layer(x)
    np.testing.assert_allclose(out.numpy(), whole.numpy()[3:], rtol=1e-5, atol=1e-6)


# ---- against PyTorch -----------------------------------------------------------------------------


@pytest.fixture
def torch() -> Iterator[Any]:
    """PyTorch on one thread: waking its workers takes longer than these layers do."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield torch
    torch.set_num_threads(before)


def _close(ours: Any, theirs: Any, what: str) -> None:
    theirs = theirs.detach().numpy()
    assert ours.shape == theirs.shape, what
    np.testing.assert_allclose(ours.numpy(), theirs, rtol=1e-9, atol=1e-11, err_msg=what)


@needs_torch
@pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU"])
@pytest.mark.parametrize("layers, bidirectional", [(1, False), (1, True), (2, False), (3, True)])
def test_as_torch(kind: str, layers: int, bidirectional: bool, torch: Any) -> None:
    rng = np.random.default_rng(0)
    for bias, batch_first, ragged, proj in itertools.product(*[(False, True)] * 4):
        if proj and kind != "LSTM":
            continue
        options: dict[str, Any] = {
            "num_layers": layers, "bidirectional": bidirectional, "bias": bias,
            "batch_first": batch_first, **({"proj_size": 3} if proj else {}),
        }  # fmt: skip
        theirs = getattr(torch.nn, kind)(4, 7, **options).double()
        ours = getattr(nn, kind)(4, 7, **options, dtype=np.float64)
        ours.load_state_dict({k: v.numpy() for k, v in theirs.state_dict().items()})
        assert list(ours.state_dict()) == list(theirs.state_dict())
        x = rng.standard_normal((5, 6, 4))
        batch, steps = (5, 6) if batch_first else (6, 5)
        states = [
            rng.standard_normal((layers * (2 if bidirectional else 1), batch, width))
            for width in ((3 if proj else 7, 7) if kind == "LSTM" else (7,))
        ]
        lengths = rng.integers(1, steps + 1, batch) if ragged else None
        ours_in = [fn.tensor(a, requires_grad=True) for a in (x, *states)]
        theirs_in = [torch.tensor(a, requires_grad=True) for a in (x, *states)]
        their_x: Any = theirs_in[0]
        if lengths is not None:
            their_x = torch.nn.utils.rnn.pack_padded_sequence(
                their_x, torch.tensor(lengths), batch_first, enforce_sorted=False
            )
        state = (lambda s: tuple(s)) if kind == "LSTM" else (lambda s: s[0])
        out, last = theirs(their_x, state(theirs_in[1:]))
        if lengths is not None:
            out, _ = torch.nn.utils.rnn.pad_packed_sequence(out, batch_first, total_length=steps)
        our_out, our_last = ours(ours_in[0], state(ours_in[1:]), lengths=lengths)
        outputs = [out, *last] if kind == "LSTM" else [out, last]
        our_outputs = [our_out, *our_last] if kind == "LSTM" else [our_out, our_last]
        grads = [rng.standard_normal(o.shape) for o in outputs]
        total: Any = 0
        for name, one, other, grad in zip("ohc", our_outputs, outputs, grads, strict=False):
            _close(one, other, f"{kind} {options} {name}")
            total = total + (one * fn.tensor(grad)).sum()
        total.backward()
        sum((o * torch.tensor(g)).sum() for o, g in zip(outputs, grads, strict=True)).backward()
        for one, other in zip(ours_in, theirs_in, strict=True):
            _close(one.grad, other.grad, f"{kind} {options} input")
        for (name, p), q in zip(ours.named_parameters(), theirs.parameters(), strict=True):
            _close(p.grad, q.grad, f"{kind} {options} {name}")


@needs_torch
@pytest.mark.parametrize("kind", ["RNNCell", "LSTMCell", "GRUCell"])
def test_cells_as_torch(kind: str, torch: Any) -> None:
    rng = np.random.default_rng(0)
    theirs = getattr(torch.nn, kind)(4, 7).double()
    ours = getattr(nn, kind)(4, 7, dtype=np.float64)
    ours.load_state_dict({k: v.numpy() for k, v in theirs.state_dict().items()})
    x, h, c = rng.standard_normal((3, 4)), rng.standard_normal((3, 7)), rng.standard_normal((3, 7))
    state = (h, c) if kind == "LSTMCell" else h
    tensors = (torch.tensor(h), torch.tensor(c)) if kind == "LSTMCell" else torch.tensor(h)
    found, expected = ours(x, state), theirs(torch.tensor(x), tensors)
    pairs = zip(found, expected, strict=True) if kind == "LSTMCell" else [(found, expected)]
    for one, other in pairs:
        _close(one, other, kind)
    none, other = ours(x), theirs(torch.tensor(x))
    _close(*(p[0] if kind == "LSTMCell" else p for p in (none, other)), kind)
