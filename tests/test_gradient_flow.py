"""Gradients by layer for any module, and by time step for every recurrent layer."""

import numpy as np
import pytest

import fusednn as fn
from fusednn import analysis, models, nn

KINDS = [nn.RNN, nn.LSTM, nn.GRU]
RANDOM = np.random.default_rng(0)


def normal(*shape):
    return RANDOM.standard_normal(shape)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("lengths", [None, [4, 1, 0, 3]])
def test_in_steps_it_is_the_same_network(kind, layers, bidirectional, batch_first, lengths):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = kind(
                2, 3, layers, batch_first=batch_first, bidirectional=bidirectional,
                dtype=np.float64,
            )  # fmt: skip

        def forward(self, x):
            return self.inner(x, lengths=None if lengths is None else np.array(lengths))

    def loss(result):
        out, state = result
        parts = state if isinstance(state, tuple) else (state,)
        return (out * out).sum() + sum(((part - 1) ** 3).sum() for part in parts)

    net, x = Net(), normal(4, 4, 2)
    if lengths is not None:
        for n, end in enumerate(lengths):
            x[(n, slice(end, None)) if batch_first else (slice(end, None), n)] = np.nan
    flow = analysis.gradient_flow(net, x, loss)
    assert "forward" not in net.inner.__dict__
    expected = loss(net(x))
    expected.backward()
    for name, parameter in net.named_parameters():
        norm = np.linalg.norm(parameter.grad.numpy())
        assert flow.parameters[name] == pytest.approx(norm, rel=1e-9)
    labels = {"inner", *(f"inner.l{k}" for k in range(layers - 1))}
    if bidirectional:
        labels |= {f"{label}.reverse" for label in labels}
    if kind is nn.LSTM:
        labels |= {f"{label}.c" for label in labels}
    assert set(flow.steps) == labels
    for norms in flow.steps.values():
        assert norms.shape == (4,)
        assert np.isfinite(norms).all()


@pytest.mark.parametrize("kind", KINDS)
def test_states_of_every_layer_and_direction_by_finite_differences(kind):
    """The gradient of E with respect to a state is the slope of E along a change of it."""
    layer, x = kind(2, 3, 2, bidirectional=True, dtype=np.float64), normal(5, 1, 2)
    flow = analysis.gradient_flow(layer, x, lambda result: result[0].sum())
    weights = [[one.numpy() for one in part] for part in layer.all_weights]
    cell = {nn.RNN: fn.functional.rnn_cell, nn.LSTM: fn.functional.lstm_cell,
            nn.GRU: fn.functional.gru_cell}[kind]  # fmt: skip

    def energy(at, change):
        """at: layer, direction, step whose h is changed."""
        steps = list(x)
        for k in range(2):
            outputs = []
            for d in range(2):
                state = (np.zeros((1, 3)),) * 2 if kind is nn.LSTM else np.zeros((1, 3))
                found = [None] * 5
                for t in reversed(range(5)) if d else range(5):
                    state = cell(steps[t], state, *weights[2 * k + d])
                    if (k, d, t) == at:
                        h = (state[0] if kind is nn.LSTM else state) + change
                        state = (h, state[1]) if kind is nn.LSTM else h
                    found[t] = state[0] if kind is nn.LSTM else state
                outputs.append(found)
            steps = [np.concatenate(pair, 1) for pair in zip(*outputs, strict=True)]
        return sum(step.sum() for step in steps)

    name = kind.__name__
    for k, d, t in ((0, 0, 0), (0, 0, 4), (0, 1, 0), (0, 1, 3), (1, 0, 2), (1, 1, 2), (1, 1, 4)):
        slopes = [
            (energy((k, d, t), 1e-6 * unit) - energy((k, d, t), -1e-6 * unit)) / 2e-6
            for unit in np.eye(3)
        ]
        label = (name if k == 1 else f"{name}.l0") + (".reverse" if d else "")
        assert flow.steps[label][t] == pytest.approx(np.linalg.norm(slopes), rel=1e-6), label


def test_a_sequence_counts_until_its_own_end():
    """Of two sequences of which one has ended, later steps see the other alone."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.RNN(2, 3, dtype=np.float64)

        def forward(self, x, lengths):
            return self.rnn(x, lengths=lengths)[1]

    net, x = Net(), normal(5, 2, 2)
    both = analysis.gradient_flow(net, [x, np.array([5, 2])]).steps["rnn"]
    long = analysis.gradient_flow(net, [x[:, :1], np.array([5])]).steps["rnn"]
    short = analysis.gradient_flow(net, [x[:2, 1:], np.array([2])]).steps["rnn"]
    np.testing.assert_allclose(both[2:], long[2:], rtol=1e-12)
    np.testing.assert_allclose(both[:2], np.hypot(long[:2], short), rtol=1e-12)


def test_projected_and_unbatched_layers():
    layer = nn.LSTM(2, 5, 2, proj_size=3, dtype=np.float64)
    x, state = normal(4, 1, 2), (normal(2, 1, 3), normal(2, 1, 5))

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = layer

        def forward(self, x):
            start = list(state) if x.ndim == 3 else (state[0][:, 0], state[1][:, 0])
            return self.lstm(x, start)[0]

    batched, alone = (analysis.gradient_flow(Net(), one) for one in (x, x[:, 0]))
    assert set(batched.steps) == set(alone.steps) == {"lstm", "lstm.c", "lstm.l0", "lstm.l0.c"}
    for name, norms in batched.steps.items():
        np.testing.assert_allclose(norms, alone.steps[name], rtol=1e-12)
    (layer(x, state)[0] ** 2 * 0.5).sum().backward()
    norm = np.linalg.norm(layer.weight_hr_l0.grad.numpy())
    assert batched.parameters["lstm.weight_hr_l0"] == pytest.approx(norm)


def test_a_layer_called_twice_has_steps_for_both_calls():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.gru = nn.GRU(2, 2, dtype=np.float64)

        def forward(self, x):
            return self.gru(self.gru(x)[0][:2])[0]

    flow = analysis.gradient_flow(Net(), normal(3, 1, 2))
    assert {name: len(norms) for name, norms in flow.steps.items()} == {"gru": 3, "gru#2": 2}
    assert flow.steps["gru"][2] == 0  # nobody reads it
    assert list(flow.layers) == ["gru", "gru#2"]


@pytest.mark.parametrize("kind", [nn.RNNCell, nn.LSTMCell, nn.GRUCell])
def test_cells_give_the_steps_that_layers_give(kind):
    class Loop(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = kind(2, 3, dtype=np.float64)

        def forward(self, x):
            state = None
            for step in x:
                state = self.cell(step, state)
            return state[0] if isinstance(state, tuple) else state

    net, x = Loop(), normal(6, 2, 2)
    flow = analysis.gradient_flow(net, x)
    layer = getattr(nn, kind.__name__.removesuffix("Cell"))(2, 3, dtype=np.float64)
    layer.load_state_dict({f"{name}_l0": p.numpy() for name, p in net.cell.named_parameters()})
    whole = analysis.gradient_flow(layer, x)
    assert len(flow.steps) == len(whole.steps) == (2 if kind is nn.LSTMCell else 1)
    for one, other in zip(flow.steps.values(), whole.steps.values(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9)
    assert list(flow.layers) == ["cell", *(f"cell#{k}" for k in range(2, 7))]


def test_models_with_recurrent_layers():
    ids, x = np.array([[1, 2, 3, 4, 5]]), np.ones((2, 5, 1), np.float32)
    for model, given, steps in (
        (models.CharLSTM(7, 4, 2, 3), ids, {"lstm", "lstm.c", "lstm.l0", "lstm.l0.c"}),
        (models.RNNForecaster(1, 4), x, {"rnn"}),
        (
            models.LSTMClassifier(1, 4, 2, bidirectional=True), x,
            {"lstm", "lstm.c", "lstm.reverse", "lstm.reverse.c"},
        ),
    ):  # fmt: skip
        flow = analysis.gradient_flow(model, given)
        assert set(flow.parameters) == {name for name, _ in model.named_parameters()}
        assert set(flow.steps) == steps
        assert {len(norms) for norms in flow.steps.values()} == {5}
        assert "head" in flow.layers


def test_every_layer_of_other_networks():
    gpt = models.GPT(vocab_size=7, block_size=6, n_layer=2, n_head=2, n_embd=8)
    flow = analysis.gradient_flow(gpt, np.array([[1, 2, 3, 4]]))
    assert set(flow.parameters) == {name for name, _ in gpt.named_parameters()}
    assert all(norm > 0 for norm in flow.layers.values())
    assert {"transformer.wte", "transformer.h.1.attn.c_attn", "lm_head"} <= set(flow.layers)
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, batch_first=True), 2)
    x = normal(1, 3, 8).astype(np.float32)
    assert "layers.1.self_attn" in analysis.gradient_flow(encoder, x).layers
    assert analysis.gradient_flow(models.resnet20(), np.ones((2, 3, 8, 8), np.float32)).layers
    assert flow.steps == {}


def test_layers_that_give_no_tensor_or_need_no_gradient():
    class Odd(nn.Module):
        def forward(self, x):
            return {"x": x, "none": None}

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.frozen = nn.LSTM(2, 3)
            self.odd, self.head = Odd(), nn.Linear(3, 1)

        def forward(self, x):
            return self.odd({"h": self.head(self.frozen(x)[0])})["x"]["h"]

    net = Net()
    for parameter in net.frozen.parameters():
        parameter.requires_grad = False
    flow = analysis.gradient_flow(net, normal(4, 1, 2).astype(np.float32))
    assert list(flow.layers) == ["head"]
    assert set(flow.parameters) == {"head.weight", "head.bias"}
    np.testing.assert_array_equal(flow.steps["frozen"], np.zeros(4))
    with pytest.raises(ValueError, match="the model gave a dict, expected a Tensor, or a loss"):
        analysis.gradient_flow(Odd(), normal(2))


def test_a_forward_of_ones_own_runs_as_it_is():
    class Own(nn.LSTM):
        def forward(self, x):
            return super().forward(x * 2)[0]

    own, x = Own(2, 3, dtype=np.float64), normal(4, 1, 2)
    flow = analysis.gradient_flow(nn.Sequential(own, nn.Tanh()), x)
    assert flow.steps == {}
    assert list(flow.layers) == ["0", "1"]
    (own(x).tanh() ** 2 * 0.5).sum().backward()
    norm = np.linalg.norm(own.weight_ih_l0.grad.numpy())
    assert flow.parameters["0.weight_ih_l0"] == pytest.approx(norm)


def test_empty_sequences_and_errors_of_the_layer_itself():
    rnn = nn.RNN(2, 3)
    flow = analysis.gradient_flow(rnn, np.zeros((0, 1, 2), np.float32), lambda out: out[1].sum())
    assert flow.steps == {}
    for wrong in (np.zeros((4, 1, 5), np.float32), np.zeros(2, np.float32)):
        with pytest.raises(ValueError) as direct:
            rnn(wrong)
        with pytest.raises(ValueError) as watched:
            analysis.gradient_flow(rnn, wrong)
        assert str(watched.value) == str(direct.value)
    assert "forward" not in rnn.__dict__

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = rnn

        def forward(self, x):
            return self.rnn(x, lengths=np.array([5]))[0]

    with pytest.raises(ValueError, match="lengths"):
        analysis.gradient_flow(Net(), np.zeros((4, 1, 2), np.float32))
    assert "forward" not in rnn.__dict__


def test_gradients_are_left_as_they_were():
    rnn = nn.RNN(2, 3)
    rnn(np.ones((2, 1, 2), np.float32))[0].sum().backward()
    before = {name: p.grad.numpy().copy() for name, p in rnn.named_parameters()}
    analysis.gradient_flow(rnn, np.ones((2, 1, 2), np.float32))
    for name, parameter in rnn.named_parameters():
        np.testing.assert_array_equal(parameter.grad.numpy(), before[name])
