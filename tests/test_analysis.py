"""What analysis finds out about networks, where it is known otherwise."""

from __future__ import annotations

import numpy as np
import pytest

import fusednn as fn
import fusednn.functional as F
from fusednn import analysis, models, nn


def normal(*shape, dtype="float32", seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


@pytest.fixture(autouse=True)
def seed():
    fn.manual_seed(3)


# ---- connections ---------------------------------------------------------------------------------


def test_the_lectures_connections():
    assert analysis.connections(nn.Conv1d(1, 1, 3), (1, 10)) == analysis.Connections(24, 3, 80)
    local = nn.LocallyConnected1d(1, 1, 10, 3)
    assert analysis.connections(local, (1, 10)) == analysis.Connections(24, 24, 80)
    assert analysis.connections(nn.Linear(10, 8), (10,)) == analysis.Connections(80, 80, 80)
    assert analysis.connections(nn.MirrorConv1d(1, 1, 3), (1, 10)).weights == 2
    assert analysis.connections(nn.Linear(192, 10), (192,)).connections == 1920
    assert analysis.count_parameters(nn.Conv2d(3, 1, 3, bias=False)) == 27


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(2, 4, (3, 2), (2, 1), (1, 2), groups=2),
        nn.Conv2d(2, 3, 3, dilation=2, padding="same"),
        nn.Conv2d(2, 3, 3, padding=((0, 2), (1, 0))),
    ],
)
def test_connections_are_the_elements_of_the_matrix(layer):
    weight = np.ones(layer.weight.shape)
    matrix = fn.conv_matrix(
        weight, (2, 6, 7), layer.stride, layer.padding, layer.dilation, layer.groups, dense=True
    )
    found = analysis.connections(layer, (2, 6, 7))
    assert found == analysis.Connections(int(matrix.sum()), weight.size, matrix.size)
    with pytest.raises(ValueError, match=r"input_shape \(2, 6\), expected \(C, ...\) with 2"):
        analysis.connections(layer, (2, 6))
    with pytest.raises(TypeError, match="layer is a ReLU"):
        analysis.connections(nn.ReLU(), (2, 6))
    with pytest.raises(ValueError, match=r"expected \(..., 3\) for Linear"):
        analysis.connections(nn.Linear(3, 2), (2, 6))


# ---- receptive fields ----------------------------------------------------------------------------


def field(found):
    return (found.size, found.stride, found.offset)


def test_receptive_fields_of_a_chain():
    net = nn.Sequential(
        nn.Conv2d(1, 2, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(2, 2, 3, dilation=2), nn.AvgPool2d(3, 2, 1), nn.BatchNorm2d(2),
        nn.Conv2d(2, 2, (1, 3), padding=(0, 1)), nn.Flatten(), nn.Linear(2 * 8 * 8, 3),
    )  # fmt: skip
    found = analysis.receptive_field(net, (1, 1, 40, 40))
    assert all(one.proven for one in found)
    assert [field(one) for one in found[:6]] == [
        ((5, 5), (1, 1), (-2, -2)),
        ((5, 5), (1, 1), (-2, -2)),
        ((6, 6), (2, 2), (-2, -2)),
        ((14, 14), (2, 2), (-2, -2)),
        ((18, 18), (4, 4), (-4, -4)),
        ((18, 18), (4, 4), (-4, -4)),
    ]
    assert field(found["6"]) == ((18, 26), (4, 4), (-4, -8))
    assert found[-1].size is None
    assert str(found).splitlines()[-1].split() == ["8", "Linear", "everything"]
    assert net.training
    with pytest.raises(KeyError):
        found["x"]


def test_receptive_fields_of_branches():
    """A residual block sees what its wider branch sees, also through functional additions."""
    net = models.resnet20()
    found = analysis.receptive_field(net, (1, 3, 32, 32))
    assert all(one.proven for one in found)
    convolutions = [one for one in found if one.kind == "Conv2d" and one.size is not None]
    assert convolutions[0].size == (3, 3)
    # 7 convolutions of 3 at stride 1, then 6 at 2 and 6 at 4, of which the first reads at half.
    assert max(one.size[0] for one in convolutions) == 3 + 2 * 6 + 2 + 4 * 5 + 4 + 8 * 5
    lenet = analysis.receptive_field(models.LeNet(), (1, 1, 28, 28))
    assert field(lenet["features.5"]) == ((10, 10), (4, 4), (-3, -3))
    assert all(one.proven for one in lenet)
    deep = nn.Sequential(*[nn.Conv2d(1, 1, 3) for _ in range(40)])
    last = analysis.receptive_field(deep, (1, 1, 90, 90))[-1]
    assert field(last) == ((81, 81), (1, 1), (0, 0))
    assert last.proven


def test_receptive_fields_of_other_layers():
    wave = nn.Sequential(*[nn.Conv1d(1, 1, 2, padding="causal", dilation=2**i) for i in range(5)])
    found = analysis.receptive_field(wave, (1, 1, 64))
    assert field(found[-1]) == ((32,), (1,), (-31,))
    assert all(one.proven for one in found)
    group = nn.Sequential(
        nn.P4ConvZ2(1, 2, 3), nn.ReLU(), nn.MaxPool3d((1, 2, 2)), nn.P4ConvP4(2, 2, 3)
    )
    found = analysis.receptive_field(group, (1, 1, 16, 16))
    assert field(found[-1]) == ((8, 8), (2, 2), (0, 0))
    assert all(one.proven for one in found)
    ceil = nn.Sequential(nn.MaxPool2d(3, 2, 1, ceil_mode=True), nn.GroupNorm(1, 2))
    found = analysis.receptive_field(ceil, (1, 2, 8, 8))
    assert field(found[0]) == ((3, 3), (2, 2), (-1, -1))
    assert found[0].proven
    assert found[1].size is None


def test_what_is_not_a_chain_of_windows_is_not_proven():
    """A pool that no layer knows of, between layers: the gradient shows more than the windows."""

    class Hidden(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(1, 1, 3)

        def forward(self, x):
            return self.conv(F.avg_pool2d(x, 2))

    assert [one.proven for one in analysis.receptive_field(Hidden(), (1, 1, 12, 12))] == [False]

    class Uneven(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.AvgPool1d(1, 2), nn.AvgPool1d(1, 1)
            self.after = nn.ReLU()

        def forward(self, x):
            return self.after(self.a(x) + self.b(x)[..., :4])

    with pytest.raises(ValueError, match=r"branches of strides \[1, 2\] meet"):
        analysis.receptive_field(Uneven(), (1, 1, 8))
    with pytest.raises(ValueError, match=r"input_shape \(3, 8\), expected \(N, C, ...\)"):
        analysis.receptive_field(nn.ReLU(), (3, 8))


# ---- sizes ---------------------------------------------------------------------------------------


def test_count_parameters():
    net = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2, bias=False))
    net[0].weight.requires_grad_(False)
    assert analysis.count_parameters(net) == 24
    assert analysis.count_parameters(net, trainable=True) == 12
    assert analysis.count_parameters(net, trainable=False) == 12
    shared = nn.Sequential(net[0], net[0])
    assert analysis.count_parameters(shared) == 16


@pytest.mark.parametrize(
    ("layer", "shape", "flops"),
    [
        (nn.Conv2d(4, 6, 3, groups=2), (2, 4, 5, 5), 2 * 6 * 9 * (2 * 2 * 9 + 1)),
        (nn.ConvTranspose1d(2, 3, 4, 2), (1, 2, 5), 2 * 10 * 3 * 4 + 3 * 12),
        (nn.Linear(3, 4), (2, 5, 3), 40 * 7),
        (nn.MaxPool2d(2), (1, 3, 4, 4), 3 * 4 * 4),
        (nn.AvgPool1d(3, 1), (1, 3, 5), 3 * 3 * 3),
        (nn.ReLU(), (2, 3), 6),
        (nn.Flatten(), (2, 3), 0),
        (nn.MirrorConv1d(1, 1, 3, bias=False), (1, 1, 5), 3 * 6),
        (nn.MirrorConv1d(1, 1, 3, combine="max"), (1, 1, 5), 2 * 3 * 7 + 3),
        (nn.P4ConvP4(2, 3, 3, bias=False), (1, 2, 4, 5, 5), 3 * 4 * 9 * 2 * 8 * 9),
        (nn.LocallyConnected1d(1, 1, 10, 3, bias=False), (1, 1, 10), 48),
        (nn.RNN(3, 4, bias=False), (5, 2, 3), 10 * 2 * (12 + 16)),
        (nn.LSTM(3, 4), (5, 2, 3), 10 * (2 * (48 + 64) + 32)),
    ],
)
def test_flops(layer, shape, flops):
    row, *rest = analysis.summary(layer, shape).rows
    assert rest == []
    assert row.flops == flops
    assert row.parameters == analysis.count_parameters(layer)


def test_summary():
    found = analysis.summary(models.LeNet(size=8), (1, 1, 8, 8))
    assert found.parameters == 6090
    assert sum(row.parameters for row in found.rows) == 6090
    assert [row.output_shape for row in found.rows][-1] == (1, 10)
    assert found.rows[0].bytes == 4 * (64 + 16 * 64 + 16 * 9 + 16)
    assert found.flops == sum(row.flops for row in found.rows)
    lines = str(found).splitlines()
    assert len(lines) == len(found.rows) + 2
    assert lines[-1].split() == ["total", "6,090", f"{found.flops:,}", f"{found.bytes:,}"]


def test_summary_of_attention_shared_layers_and_token_ids():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    found = analysis.summary(layer, (1, 5, 8))
    assert sum(row.parameters for row in found.rows) == analysis.count_parameters(layer)
    attention = next(row for row in found.rows if row.kind == "MultiheadAttention")
    assert attention.flops == 5 * 3 * 8 * (2 * 8 + 1) + 2 * 5 * 5 * 8 * 2
    gpt = models.GPT(vocab_size=7, block_size=6, n_layer=1, n_head=2, n_embd=8)
    found = analysis.summary(gpt, np.zeros((1, 4), np.int64))
    assert found.parameters == analysis.count_parameters(gpt)
    linear = nn.Linear(3, 3)
    twice = analysis.summary(nn.Sequential(linear, nn.Tanh(), linear), (1, 3))
    assert [row.parameters for row in twice.rows] == [12, 0, 0]
    with pytest.raises(TypeError, match=r"summary: expected a shape .* got 3"):
        analysis.summary(linear, 3)


def test_looking_changes_nothing():
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Dropout(0.5))
    before = net.state_dict()
    x = normal(2, 1, 6, 6)
    analysis.summary(net, (2, 1, 6, 6))
    analysis.feature_maps(net, x)
    analysis.receptive_field(net, (2, 1, 6, 6))
    net(x).sum().backward()
    grads = [p.grad.numpy().copy() for p in net.parameters()]
    before = net.state_dict()
    analysis.gradient_flow(net, x)
    for old, parameter in zip(grads, net.parameters(), strict=True):
        np.testing.assert_array_equal(parameter.grad.numpy(), old)
    for name, array in net.state_dict().items():
        np.testing.assert_array_equal(array, before[name])
    assert all(module.training for module in net.modules())
    assert all(module._hooks is None or not module._hooks.after for module in net.modules())


# ---- gradients -----------------------------------------------------------------------------------


@pytest.mark.parametrize("nonlinearity", ["tanh", "relu", "identity"])
@pytest.mark.parametrize("batch_first", [False, True])
def test_terms_of_backpropagation_through_time_add_up(nonlinearity, batch_first):
    rnn = nn.RNN(3, 4, nonlinearity=nonlinearity, batch_first=batch_first, dtype=np.float64)
    x = normal(2, 6, 3, dtype="float64") if batch_first else normal(6, 2, 3, dtype="float64")
    weights = normal(2, 4, dtype="float64", seed=1)

    def loss(h):
        return (h * weights).sum() + (h * h * h).sum()

    terms = analysis.bptt_terms(rnn, x, 4, loss)
    out = rnn(x)[0]
    loss(out[:, 4] if batch_first else out[4]).backward()
    for name in ("weight_ih", "weight_hh"):
        expected = rnn.get_parameter(f"{name}_l0").grad.numpy()
        np.testing.assert_allclose(getattr(terms, name).sum(0), expected, rtol=0, atol=1e-12)
    np.testing.assert_allclose(terms.bias.sum(0), rnn.bias_ih_l0.grad.numpy(), rtol=0, atol=1e-12)
    assert terms.jacobian.shape == (5, 2)
    np.testing.assert_array_equal(terms.jacobian[-1], 1)
    # dh_t / dh_(t-1) = diag(f'(a_t)) W_hh
    slope = {"tanh": lambda h: 1 - h * h, "relu": lambda h: h > 0, "identity": np.ones_like}
    h = (out[:, 4] if batch_first else out[4]).numpy()
    for n in range(2):
        step = np.diag(slope[nonlinearity](h[n]).astype(float)) @ rnn.weight_hh_l0.numpy()
        assert terms.jacobian[3, n] == pytest.approx(np.linalg.norm(step, 2))


def test_terms_agree_with_the_flow():
    rnn, x = nn.RNN(3, 4, dtype=np.float64), normal(6, 2, 3, dtype="float64")
    terms = analysis.bptt_terms(rnn, x, 5)
    flow = analysis.gradient_flow(rnn, x)
    norms = [np.linalg.norm(one) for one in terms.state]
    np.testing.assert_allclose(flow.steps["RNN"], norms, rtol=1e-10)
    assert flow.parameters["weight_hh_l0"] == pytest.approx(np.linalg.norm(terms.weight_hh.sum(0)))


def test_what_bptt_terms_refuses():
    x = np.zeros((4, 1, 2), np.float32)
    for model in (nn.RNN(2, 3, 2), nn.LSTM(2, 3), nn.RNN(2, 3, bidirectional=True)):
        with pytest.raises(ValueError, match=r"expected an nn.RNN of one layer and one dir"):
            analysis.bptt_terms(model, x, 1)
    with pytest.raises(ValueError, match=r"target_step=4, expected 0 to 3 for x of shape \(4, 1"):
        analysis.bptt_terms(nn.RNN(2, 3), x, 4)
    with pytest.raises(ValueError, match=r"x has shape \(4, 2\), expected 3 axes"):
        analysis.bptt_terms(nn.RNN(2, 3), x[:, 0], 1)


def orthogonal(size, radius):
    q, _ = np.linalg.qr(normal(size, size, dtype="float64"))
    return q * radius


@pytest.mark.parametrize(("radius", "law"), [(0.8, 0.8), (1.0, 1.0), (1.2, 1.2)])
def test_gradients_vanish_or_explode_with_the_spectral_radius(radius, law):
    """Of an orthogonal matrix times a number, every power has that number's power as its norm."""
    rnn = nn.RNN(1, 8, nonlinearity="identity", dtype=np.float64)
    rnn.weight_hh_l0._data[...] = orthogonal(8, radius)
    flow = analysis.gradient_flow(rnn, normal(30, 1, 1, dtype="float64"))
    steps = flow.steps["RNN"]
    np.testing.assert_allclose(steps / steps[-1], law ** np.arange(29, -1, -1.0), rtol=1e-9)


def test_the_error_carousel_of_an_lstm():
    """With an open forget gate the gradient of the cell lives where a plain network's is gone."""
    lstm = nn.LSTM(1, 8, forget_bias=6.0, dtype=np.float64)
    rnn = nn.RNN(1, 8, dtype=np.float64)
    rnn.weight_hh_l0._data[...] = orthogonal(8, 0.7)
    x = normal(40, 1, 1, dtype="float64")
    cell = analysis.gradient_flow(lstm, x).steps["LSTM.c"]
    plain = analysis.gradient_flow(rnn, x).steps["RNN"]
    assert cell[-1] == 0  # nothing comes after it
    assert cell[0] / cell[-2] > 0.1
    assert plain[0] / plain[-1] < 1e-5


def test_gradient_flow_of_a_network():
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).to(np.float64)
    x = normal(5, 3, dtype="float64")
    flow = analysis.gradient_flow(net, x, lambda out: out.sum())
    assert list(flow.layers) == ["0", "1", "2"]
    assert flow.layers["2"] == pytest.approx(10**0.5)
    net(x).sum().backward()
    for name, parameter in net.named_parameters():
        assert flow.parameters[name] == pytest.approx(np.linalg.norm(parameter.grad.numpy()))
    with pytest.raises(ValueError, match=r"loss gave \(5, 2\), expected a Tensor of one element"):
        analysis.gradient_flow(net, x, lambda out: out)


@pytest.mark.parametrize("kind", [nn.RNN, nn.LSTM, nn.GRU])
@pytest.mark.parametrize("batch_first", [False, True])
def test_running_step_by_step_is_the_same_network(kind, batch_first):
    layer = kind(3, 4, 2, batch_first=batch_first, dtype=np.float64)
    x = normal(4, 5, 3, dtype="float64")

    def loss(out):
        return (out[0] * out[0]).sum()

    flow = analysis.gradient_flow(layer, x, loss)
    loss(layer(x)).backward()
    for name, parameter in layer.named_parameters():
        assert flow.parameters[name] == pytest.approx(np.linalg.norm(parameter.grad.numpy()))
    assert flow.steps[kind.__name__].shape == ((5,) if batch_first else (4,))
    assert "forward" not in layer.__dict__


# ---- maps ----------------------------------------------------------------------------------------


def test_feature_maps():
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
    x = normal(2, 1, 6, 6)
    maps = analysis.feature_maps(net, x)
    assert list(maps) == ["0", "1", "2"]
    np.testing.assert_array_equal(maps["1"], np.maximum(net[0](x).numpy(), 0))
    assert list(analysis.feature_maps(net, x, ["3", "0"])) == ["0", "3"]
    relu = nn.ReLU()
    assert list(analysis.feature_maps(nn.Sequential(relu, relu), x)) == ["0", "0#2"]
    with pytest.raises(ValueError, match="no layer is called 'conv'"):
        analysis.feature_maps(net, x, ["conv", "0"])


def test_attention_maps():
    layer = nn.TransformerEncoderLayer(8, 2, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2)
    x = normal(3, 5, 8)
    maps = analysis.attention_maps(encoder, x)
    assert list(maps) == ["layers.0.self_attn", "layers.1.self_attn"]
    for weights in maps.values():
        assert weights.shape == (3, 2, 5, 5)
        np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-6)
    first = encoder.layers[0].self_attn
    _, expected = first.eval()(x, x, x, average_attn_weights=False)
    np.testing.assert_array_equal(maps["layers.0.self_attn"], expected.numpy())
    alone = analysis.attention_maps(first, [x[0], x[0], x[0]])
    assert alone["attention"].shape == (1, 2, 5, 5)
    gpt = models.GPT(vocab_size=7, block_size=6, n_layer=2, n_head=2, n_embd=8)
    maps = analysis.attention_maps(gpt, np.array([[1, 2, 3, 4]]))
    assert [weights.shape for weights in maps.values()] == [(1, 2, 4, 4)] * 2
    for weights in maps.values():
        assert not np.triu(weights, 1).any()
        np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-6)
    assert not any("forward" in module.__dict__ for module in gpt.modules())
    with pytest.raises(ValueError, match="Linear has no attention layer"):
        analysis.attention_maps(nn.Linear(2, 2), x)
