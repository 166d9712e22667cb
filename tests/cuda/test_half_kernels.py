"""Kernels of 16-bit arrays beside the CPU in float64: they compute in float32 and round once."""

from __future__ import annotations

import numpy as np
import pytest

import fusednn as fn
import fusednn.functional as F
from fusednn import _core

ml_dtypes = pytest.importorskip("ml_dtypes")
DTYPES = {"bfloat16": np.dtype(ml_dtypes.bfloat16), "float16": np.dtype(np.float16)}


@pytest.fixture(params=list(DTYPES))
def half(request):
    return DTYPES[request.param]


def make(xp, shape, dtype, seed=0, scale=1.0):
    """Values that the dtype has, in float64 and on the GPU."""
    rng = np.random.default_rng(seed)
    value = (rng.standard_normal(shape) * scale).astype(np.float32).astype(dtype)
    return value.astype(np.float64), xp.asarray(value)


def close(xp, got, exact, units=1.0, scale=0.0):
    """Within half a unit in the last place (`units` times), or of `scale`."""
    got = xp.asnumpy(got)
    eps = float(ml_dtypes.finfo(got.dtype).eps)
    tiny = 2.0**-25 if got.dtype == np.float16 else 1e-38
    error = abs(got.astype(np.float64) - exact)
    bound = units * eps / 2 * (1 + 2.0**-6) * (abs(exact) + scale) + tiny + 1e-6 * abs(exact)
    np.testing.assert_array_less(error, bound + 1e-300)


SIZES = (1, 7, 8, 9, 2050)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("offset", [0, 1])
def test_casts(xp, half, order, size, offset):
    """As NumPy rounds: to nearest even, with NaN, infinities and subnormal numbers."""
    rng = np.random.default_rng(size)
    scale = 10.0 ** rng.integers(-9, 6, size + offset)
    value = (rng.standard_normal(size + offset) * scale).astype(np.float32)
    value[-1:] = [[np.nan], [np.inf], [-0.0], [65520.0], [1 + 2.0**-9]][size % 5]
    x = xp.asarray(value)[offset:]
    with np.errstate(over="ignore"):
        expected = value[offset:].astype(half)
    got = _core.cast(x, half.name)
    assert got.dtype == half
    np.testing.assert_array_equal(xp.asnumpy(got).astype(np.float32), expected.astype(np.float32))
    back = _core.cast(xp.asarray(np.r_[half.type(0), expected])[1:] if offset else got, "float32")
    np.testing.assert_array_equal(xp.asnumpy(back), expected.astype(np.float32))


def test_casts_that_there_are_not(xp, half):
    x = xp.asarray(np.ones(3))
    with pytest.raises(NotImplementedError, match=f"cast: no CUDA kernel from {half} to float16"):
        _core.cast(xp.asarray(np.ones(3, half)), "float16")
    with pytest.raises(NotImplementedError, match="cast: no CUDA kernel from float64 to float32"):
        _core.cast(x, "float32")


FUNCTIONS = ("relu", "sigmoid", "tanh", "gelu", "silu", "mish", "leaky_relu", "elu", "softplus")
FUNCTIONS += ("logsigmoid", "hardsigmoid", "hardswish", "hardtanh")


@pytest.mark.parametrize("name", FUNCTIONS)
def test_elementwise(xp, half, name):
    op = getattr(F, name)
    x, held = make(xp, 37, half, scale=3.0)
    dy, held_dy = make(xp, 37, half, seed=1)
    close(xp, op(held), op(x))
    ours, exact = (fn.tensor(one, requires_grad=True) for one in (held, x))
    op(ours).backward(held_dy)
    op(exact).backward(dy)
    # The backward of some reads the rounded output.
    close(xp, ours.grad._data, exact.grad.numpy(), 5, 1.0 if name in ("sigmoid", "tanh") else 0.1)


def test_relu_of_specials(xp, half):
    x = np.array([np.nan, np.inf, -np.inf, -0.0, 1.0], np.float32).astype(half)
    y = xp.asnumpy(F.relu(xp.asarray(x))).astype(np.float32)
    np.testing.assert_array_equal(y, [np.nan, np.inf, 0, -0.0, 1])


@pytest.mark.parametrize("shape", [(3, 5), (2, 40), (4, 256), (2, 2100), (3, 6, 4)], ids=str)
@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_softmax(xp, half, order, name, shape):
    op = getattr(F, name)
    x, held = make(xp, shape, half, scale=2.0)
    dy, held_dy = make(xp, shape, half, seed=1)
    close(xp, op(held, 1), op(x, 1), 1, 1e-4)
    ours, exact = (fn.tensor(one, requires_grad=True) for one in (held, x))
    op(ours, 1).backward(held_dy)
    op(exact, 1).backward(dy)
    close(xp, ours.grad._data, exact.grad.numpy(), 8, abs(dy).sum(1).max())


@pytest.mark.parametrize("shape", [(3, 5), (2, 2100), (3, 6, 4)], ids=str)
def test_cross_entropy(xp, half, order, shape):
    """float32 losses of 16-bit logits, and weights in float32."""
    x, held = make(xp, shape, half, scale=2.0)
    rng = np.random.default_rng(2)
    target = rng.integers(0, shape[1], (shape[0], *shape[2:]))
    target.flat[0] = -100
    weight = (rng.random(shape[1]) + 0.5).astype(np.float32)
    options = {"label_smoothing": 0.1}
    ours, exact = (fn.tensor(one, requires_grad=True) for one in (held, x))
    got = F.cross_entropy(ours, xp.asarray(target), xp.asarray(weight), **options)
    wanted = F.cross_entropy(exact, target, weight.astype(np.float64), **options)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got.item(), wanted.item(), rtol=1e-5)
    got.backward()
    wanted.backward()
    close(xp, ours.grad._data, exact.grad.numpy(), 1, 1e-5)
    losses = F.nll_loss(held, xp.asarray(target), reduction="none")
    assert losses.dtype == np.float32
    np.testing.assert_array_equal(
        xp.asnumpy(losses), F.nll_loss(x, target, reduction="none").astype(np.float32)
    )
    with pytest.raises(TypeError, match=f"weight has dtype {half}, expected float32 beside {half}"):
        F.cross_entropy(held, xp.asarray(target), xp.asarray(weight.astype(half)))


@pytest.mark.parametrize("shape", [(3, 5), (2, 72), (2, 2104)], ids=str)
@pytest.mark.parametrize("rms", [False, True])
def test_layer_norm(xp, half, order, rms, shape):
    op = F.rms_norm if rms else F.layer_norm
    x, held = make(xp, shape, half, scale=3.0)
    x, held = x + 5, xp.asarray((x + 5).astype(half))
    x = xp.asnumpy(held).astype(np.float64)
    r, held_r = make(xp, shape, half, seed=1)
    w, held_w = make(xp, shape[1:], half, seed=2)
    dy, held_dy = make(xp, shape, half, seed=3)
    close(xp, op(held, shape[1:], held_w), op(x, shape[1:], w), 1, 1e-2)
    ours = [fn.tensor(one, requires_grad=True) for one in (held, held_w)]
    exact = [fn.tensor(one, requires_grad=True) for one in (x, w)]
    op(ours[0], shape[1:], ours[1]).backward(held_dy)
    op(exact[0], shape[1:], exact[1]).backward(dy)
    for one, other in zip(ours, exact, strict=True):
        close(xp, one.grad._data, other.grad.numpy(), 2, 0.05)
    y, total = op(held, shape[1:], held_w, residual=held_r)
    close(xp, total, x + r)
    wide = xp.asnumpy(total).astype(np.float64)
    close(xp, y, op(wide, shape[1:], w), 1, 1e-2)


IMAGES = [(4, 6), (3, 16), (2, 3, 8, 10), (2, 5, 7, 7), (3, 4, 300)]


def check_norm(xp, half, op, x, inputs):
    """Result and gradients of op(x, weight, bias); inputs: of those, exact and held."""
    dy, held_dy = make(xp, x[0].shape, half, seed=9)
    exact = [fn.tensor(one, requires_grad=True) for one, _ in (x, *inputs)]
    ours = [fn.tensor(one, requires_grad=True) for _, one in (x, *inputs)]
    wanted, got = op(*exact), op(*ours)
    close(xp, got._data, wanted.numpy(), 1, 1e-2)
    wanted.backward(dy)
    got.backward(held_dy)
    for one, other in zip(ours, exact, strict=True):
        assert one.grad.dtype == half
        scale = abs(other.grad.numpy()).max()
        close(xp, one.grad._data, other.grad.numpy(), 2, scale * 0.05)


def make_norm(xp, half, shape):
    """An input away from 0, weight and bias."""
    x = xp.asnumpy(make(xp, shape, half, scale=3.0)[1]).astype("f") + 2
    held = xp.asarray(x.astype(half))
    x = xp.asnumpy(held).astype(np.float64)
    return (x, held), [make(xp, shape[1:2], half, seed=seed) for seed in (2, 3)]


@pytest.mark.parametrize("shape", IMAGES, ids=str)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("activation", [None, "relu"])
def test_batch_norm(xp, half, order, shape, training, activation):
    """Statistics are float32, and stay so."""
    x, inputs = make_norm(xp, half, shape)
    if activation:  # 16 bits may cut at another element where a result is all but 0
        inputs[1] = tuple(one * half.type(0) + half.type(40) for one in inputs[1])
    start = [np.linspace(0.5, 2, shape[1]), np.linspace(1, 3, shape[1])]
    running = {id(x[0]): [one.copy() for one in start]}
    running[id(x[1])] = [xp.asarray(one.astype("f")) for one in start]
    double, single = running.values()

    def op(x, weight, bias):
        mean, var = double if x.dtype == np.float64 else single
        return F.batch_norm(x, mean, var, weight, bias, training, 0.3, activation=activation)

    check_norm(xp, half, op, x, inputs)
    for one, other in zip(single, double, strict=True):
        assert one.dtype == np.float32
        np.testing.assert_allclose(xp.asnumpy(one), other, rtol=1e-5)


def test_batch_norm_wants_statistics_of_float32(xp, half):
    (_, x), _ = make_norm(xp, half, (3, 4))
    narrow = xp.asarray(np.ones(4, half))
    with pytest.raises(TypeError, match=f"running_mean has dtype {half}, expected float32 beside"):
        F.batch_norm(x, narrow, narrow)


@pytest.mark.parametrize("shape", IMAGES, ids=str)
def test_group_norm(xp, half, order, shape):
    x, inputs = make_norm(xp, half, shape)
    groups = {3: 3, 4: 2, 5: 1, 6: 2, 16: 4}[shape[1]]
    check_norm(xp, half, lambda x, w, b: F.group_norm(x, groups, w, b), x, inputs)


def test_instance_norm(xp, half):
    x, inputs = make_norm(xp, half, (2, 3, 4, 5))
    check_norm(xp, half, lambda x, w, b: F.instance_norm(x, None, None, w, b), x, inputs)
    exact = [np.zeros(3), np.ones(3)]
    ours = [xp.asarray(one.astype("f")) for one in exact]
    F.instance_norm(x[0], *exact)
    F.instance_norm(x[1], *ours)
    for one, other in zip(ours, exact, strict=True):
        np.testing.assert_allclose(xp.asnumpy(one), other, rtol=1e-5)
    y = F.instance_norm(x[1], *ours, use_input_stats=False)
    close(xp, y, F.instance_norm(x[0], *exact, use_input_stats=False), 1, 1e-4)


@pytest.mark.parametrize("shape", IMAGES, ids=str)
@pytest.mark.parametrize("shared", [True, False])
def test_prelu(xp, half, order, shape, shared):
    x, held = make(xp, shape, half)
    slope, held_slope = make(xp, 1 if shared else shape[1], half, seed=1)
    close(xp, F.prelu(held, held_slope), F.prelu(x, slope))
    check_norm(xp, half, F.prelu, (x, held), [(slope, held_slope)])


@pytest.mark.parametrize("width", [5, 16])
def test_embedding(xp, half, width):
    table, held = make(xp, (6, width), half)
    ids = np.array([[1, 3, 1], [0, 1, 5]])
    y = F.embedding(xp.asarray(ids), held)
    np.testing.assert_array_equal(xp.asnumpy(y).astype(np.float64), table[ids])
    dy, held_dy = make(xp, (2, 3, width), half, seed=1)
    for by_frequency in (False, True):
        got = _core.embedding_backward(held_dy, xp.asarray(ids), 6, -1, by_frequency)
        exact = _core.embedding_backward(dy, ids, 6, -1, by_frequency)
        close(xp, got, exact, 1, 1e-5)


def test_rotary_embedding(xp, half):
    x, held = make(xp, (2, 3, 5, 8), half)
    cos, sin = F.rotary_angles(5, 8)
    got = F.rotary_embedding(held, xp.asarray(cos), xp.asarray(sin))
    exact = F.rotary_embedding(x, cos.astype(np.float64), sin.astype(np.float64))
    close(xp, got, exact, 1, 1e-4)


def test_models_of_half_train(xp, half):
    """Everything in 16 bits: gradients come close to those of float64."""
    from fusednn import nn

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(11, 16)
            self.norm = nn.LayerNorm(16)
            self.hidden = nn.Linear(16, 24)
            self.head = nn.Linear(24, 11)

        def forward(self, ids):
            return self.head(F.gelu(self.hidden(self.norm(self.embed(ids)))))

    fn.manual_seed(0)
    exact = Model().double()
    ours = Model().to("cuda")
    ours.load_state_dict(exact.state_dict())
    ours.to(dtype=half)
    ids = np.arange(12).reshape(3, 4) % 11
    F.cross_entropy(exact(ids).reshape(12, 11), ids.ravel()).backward()
    F.cross_entropy(ours(xp.asarray(ids)).reshape(12, 11), xp.asarray(ids.ravel())).backward()
    for one, other in zip(ours.parameters(), exact.parameters(), strict=True):
        assert one.grad.dtype == half
        got, wanted = xp.asnumpy(one.grad._data).astype(np.float64), other.grad.numpy()
        assert abs(got - wanted).max() <= 0.05 * abs(wanted).max() + 1e-4


def test_networks_of_images_train(xp, half):
    """Running statistics stay float32 in a module of 16 bits, and are saved so."""
    from fusednn import nn

    def network():
        fn.manual_seed(0)
        layers = [nn.Conv2d(2, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.GroupNorm(2, 8)]
        layers += [nn.PReLU(8), nn.InstanceNorm2d(8, affine=True, track_running_stats=True)]
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(8 * 36, 3))

    x, held = make(xp, (4, 2, 6, 6), half)
    exact, ours = network().double(), network().to("cuda", half)
    target = np.array([0, 1, 2, 1])
    assert ours[1].weight.dtype == half
    for name, buffer in ours.named_buffers():
        assert buffer.dtype in (np.float32, np.int64), name
    F.cross_entropy(exact(x), target).backward()
    F.cross_entropy(ours(held), xp.asarray(target)).backward()
    for one, other in zip(ours.parameters(), exact.parameters(), strict=True):
        got, wanted = xp.asnumpy(one.grad._data).astype(np.float64), other.grad.numpy()
        assert abs(got - wanted).max() <= 0.1 * abs(wanted).max() + 1e-3
    mean = exact[1].running_mean.numpy()
    np.testing.assert_allclose(ours[1].running_mean.cpu().numpy(), mean, atol=0.01)
    again = network().to("cuda", half)
    again.load_state_dict(ours.state_dict())
    np.testing.assert_array_equal(again.eval()(held).cpu().numpy(), ours.eval()(held).cpu().numpy())
