"""Convolutions on groups of turns and flips, and pooling over transformed inputs."""

from __future__ import annotations

import numpy as np
import pytest

import fusednn as fn
from fusednn import nn
from fusednn.functional import symmetry
from fusednn.testing import reference_symmetry

TOLERANCE = {"float32": 3e-6, "float64": 1e-13}


def normal(*shape, dtype="float64", seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def close(found, expected, dtype="float64", factor=1):
    found = found.numpy() if isinstance(found, fn.Tensor) else found
    scale = max(1.0, np.abs(expected).max(initial=0))
    np.testing.assert_allclose(found, expected, rtol=0, atol=factor * TOLERANCE[dtype] * scale)


# ---- group convolutions --------------------------------------------------------------------------

LIFTING = {"p4": nn.P4ConvZ2, "p4m": nn.P4MConvZ2}
ON_GROUP = {"p4": nn.P4ConvP4, "p4m": nn.P4MConvP4M}
GROUPS = {"p4": symmetry.C4, "p4m": symmetry.D4}


def test_the_groups_are_groups():
    """Products act as one after the other, on images and on maps."""
    x, maps = normal(3, 5), normal(8, 3, 5)
    for group in (symmetry.C4, symmetry.D4):
        identity = [g for g in range(group.order) if np.array_equal(group.act(x, g), x)]
        assert identity == [0]
        for g in range(group.order):
            np.testing.assert_array_equal(group.act(fn.tensor(x), g).numpy(), group.act(x, g))
            for h in range(group.order):
                k = int(group.quotient[g, h])  # g k = h
                np.testing.assert_array_equal(group.act(group.act(x, k), g), group.act(x, h))
                both = group.act_on_maps(group.act_on_maps(maps[: group.order], k), g)
                np.testing.assert_array_equal(both, group.act_on_maps(maps[: group.order], h))


def by_definition(layer, x):
    return reference_symmetry.group_conv(
        x, layer.weight.numpy(), layer.bias.numpy(), layer.order,
        stride=layer.stride, padding=layer.padding,
    )  # fmt: skip


@pytest.mark.parametrize("window", [(3, 1, 1), (2, 1, 0), (5, 1, 2), (1, 1, 0), (3, 2, 1)])
@pytest.mark.parametrize("name", GROUPS)
def test_group_convolutions(name, window, dtype):
    group, (kernel, stride, padding) = GROUPS[name], window
    fn.manual_seed(0)
    lift = LIFTING[name](3, 4, kernel, stride, padding, dtype=dtype)
    conv = ON_GROUP[name](4, 2, kernel, 1, padding, dtype=dtype)
    x = normal(2, 3, 9, 7, dtype=dtype)
    y = lift(x).numpy()
    close(y, by_definition(lift, x), dtype)
    if min(y.shape[-2:]) + 2 * padding < kernel:
        return
    z = conv(y).numpy()
    assert z.shape[:3] == (2, 2, group.order)
    close(z, by_definition(conv, y), dtype, 4)
    for g in range(group.order):
        close(lift(group.act(x, g)), group.act_on_maps(y, g), dtype)
        close(conv(np.ascontiguousarray(group.act_on_maps(y, g))), group.act_on_maps(z, g), dtype,
              4)  # fmt: skip


@pytest.mark.parametrize("name", GROUPS)
def test_a_whole_network_is_invariant(name):
    group = GROUPS[name]
    fn.manual_seed(0)
    net = nn.Sequential(
        LIFTING[name](1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool3d((1, 2, 2)),
        ON_GROUP[name](4, 6, 3, padding=1), nn.BatchNorm3d(6), nn.ReLU(), nn.GlobalPool("max"),
        nn.Linear(6, 3),
    ).to(np.float64)  # fmt: skip
    x = normal(5, 1, 8, 8)
    net.train()(x)
    y = net.eval()(x).numpy()
    for g in range(group.order):
        close(net(group.act(x, g)), y)
    assert np.abs(net(np.flip(x, -1)).numpy() - y).max() > (0.01 if name == "p4" else -1)
    assert np.ptp(y) > 0.01


@pytest.mark.parametrize("name", GROUPS)
def test_group_gradients(name, isa):
    group = GROUPS[name]
    for lifting in (True, False):
        table = symmetry.filter_table(name == "p4m", 2, lifting)
        parts = () if lifting else (group.order,)
        w = normal(2, 1, *parts, 2, 2)
        assert fn.testing.gradcheck(lambda w, t=table: symmetry.kernel_orbit(w, t), [w])
    layer = ON_GROUP[name](1, 2, 2, dtype=np.float64)
    x = fn.tensor(normal(1, 1, group.order, 3, 3), requires_grad=True)
    layer(x).sum().backward()
    # Every weight meets as many pixels as there are windows, in each of the orientations.
    assert layer.bias.grad.tolist() == [4 * group.order] * 2
    expected = sum(
        x.numpy()[0, 0][:, i : i + 2, j : j + 2].sum() for i in range(2) for j in range(2)
    )
    assert layer.weight.grad.numpy()[0].sum() == pytest.approx(expected * group.order)


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (lambda: nn.P4ConvZ2(1, 1, 0), "P4ConvZ2: kernel_size=0, expected at least 1"),
        (
            lambda: nn.P4ConvZ2(2, 1, 3)(np.zeros((1, 1, 4, 4), np.float32)),
            r"P4ConvZ2: input has shape \(1, 1, 4, 4\), expected \(N, 2, H, W\)",
        ),
        (
            lambda: nn.P4ConvP4(2, 1, 3)(np.zeros((1, 2, 8, 4, 4), np.float32)),
            r"P4ConvP4: input has shape \(1, 2, 8, 4, 4\), expected \(N, 2, 4, H, W\)",
        ),
        (
            lambda: nn.P4MConvZ2(1, 1, 3, 2)(np.zeros((1, 1, 9, 8), np.float32)),
            r"windows of 3 with stride=2 and padding=0 leave 1 of 8 positions over",
        ),
        (
            lambda: nn.P4ConvZ2(1, 1, 5)(np.zeros((1, 1, 3, 3), np.float32)),
            "conv2d: the output would have size",
        ),
    ],
)
def test_what_group_convolutions_refuse(build, text):
    with pytest.raises(ValueError, match=text):
        build()


def test_empty_batches_and_repr():
    layer = nn.P4MConvP4M(2, 3, 3, bias=False)
    assert layer(np.zeros((0, 2, 8, 5, 5), np.float32)).shape == (0, 3, 8, 3, 3)
    assert repr(layer) == "P4MConvP4M(2, 3, kernel_size=3, stride=1, padding=0, bias=False)"
    assert {n: a.shape for n, a in nn.P4ConvP4(2, 3, 3).state_dict().items()} == {
        "weight": (3, 2, 4, 3, 3), "bias": (3,),
    }  # fmt: skip


# ---- pooling over transformed inputs -------------------------------------------------------------


def images(group, x):
    if group == "mirror":
        return [x, np.flip(x, -1)]
    turns = [np.rot90(x, k, (-2, -1)) for k in range(4)]
    return turns if group == "c4" else turns + [np.flip(t, -1) for t in turns]


@pytest.mark.parametrize("reduce", ["mean", "sum", "max"])
@pytest.mark.parametrize("group", ["mirror", "c4", "d4"])
def test_group_pool(group, reduce, dtype):
    fn.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(3 * 9, 4)
    ).to(dtype)  # fmt: skip
    pooled = nn.GroupPool(net, group, reduce)
    x = normal(3, 2, 5, 5, dtype=dtype)
    combine = {"mean": np.mean, "sum": np.sum, "max": np.max}[reduce]
    y = pooled(x).numpy()
    close(y, combine([net(one).numpy() for one in images(group, x)], axis=0), dtype, 4)
    for one in images(group, x):
        close(pooled(one), y, dtype, 4)
    assert not np.allclose(net(np.flip(x, -1)).numpy(), net(x).numpy(), atol=1e-2)
    assert set(pooled.state_dict()) == {f"module.{name}" for name in net.state_dict()}


@pytest.mark.parametrize("group", ["mirror", "c4", "d4"])
def test_group_pool_calls_its_module_once_and_passes_gradients(group):
    calls = []
    net = nn.Sequential(nn.Flatten(), nn.Linear(9, 2, dtype=np.float64), nn.Tanh())
    net.register_forward_hook(lambda module, args, out: calls.append(out.shape))
    pooled = nn.GroupPool(net, group, "max")
    assert fn.testing.gradcheck(pooled, [normal(2, 1, 3, 3)])
    assert set(calls) == {({"mirror": 2, "c4": 4, "d4": 8}[group] * 2, 2)}


def test_group_pool_of_sequences():
    pooled = nn.GroupPool(nn.Linear(5, 2, dtype=np.float64))
    x = normal(3, 5)
    close(pooled(x[:, ::-1]), pooled(x).numpy())


def test_what_group_pool_refuses():
    net = nn.Flatten()
    with pytest.raises(ValueError, match="group='c3', expected 'mirror', 'c4' or 'd4'"):
        nn.GroupPool(net, "c3")
    with pytest.raises(ValueError, match="reduce='min', expected 'mean', 'sum' or 'max'"):
        nn.GroupPool(net, "c4", "min")
    with pytest.raises(TypeError, match="module must be a Module, got function"):
        nn.GroupPool(normal)
    x = np.zeros((1, 1, 3, 4), np.float32)
    with pytest.raises(ValueError, match=r"shape \(1, 1, 3, 4\); group='c4' needs square images"):
        nn.GroupPool(net, "c4")(x)
    assert nn.GroupPool(net, "mirror")(x).shape == (1, 12)
    with pytest.raises(ValueError, match=r"gave shape .* for a batch of 2, expected that many"):
        nn.GroupPool(nn.Flatten(0))(x)
    with pytest.raises(TypeError, match="gave a tuple, expected one Tensor"):
        nn.GroupPool(nn.LSTM(4, 2))(x[0])
    with pytest.raises(ValueError, match=r"input has shape \(4,\), expected \(N, ..., H, W\)"):
        nn.GroupPool(net)(np.zeros(4, np.float32))
