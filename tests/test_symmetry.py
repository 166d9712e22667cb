"""Mirror convolutions: values, gradients, and that the symmetry holds."""

from __future__ import annotations

import numpy as np
import pytest

import fusednn as fn
import fusednn.functional as F
from fusednn import nn
from fusednn.testing import reference_conv, reference_symmetry

TOLERANCE = {"float32": 3e-6, "float64": 1e-13}


def normal(*shape, dtype="float64", seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def close(found, expected, dtype="float64", factor=1):
    found = found.numpy() if isinstance(found, fn.Tensor) else found
    scale = max(1.0, np.abs(expected).max(initial=0))
    np.testing.assert_allclose(found, expected, rtol=0, atol=factor * TOLERANCE[dtype] * scale)


# ---- the lecture's numbers -----------------------------------------------------------------------

X, W = np.array([0.0, 1, 0, 0]), np.array([1.0, 2])


def mirror1d(weight, combine, **options):
    size = options.pop("kernel_size", len(weight))
    layer = nn.MirrorConv1d(1, 1, size, bias=False, combine=combine, dtype=np.float64, **options)
    layer.load_state_dict({"weight": np.reshape(np.float64(weight), layer.weight.shape)})
    return lambda x: layer(np.array(x, float)[None, None]).numpy()[0, 0].tolist()


def test_an_ordinary_kernel_is_not_equivariant_to_reflection():
    def f(x):
        return F.conv1d(np.ascontiguousarray(x)[None, None], W[None, None])[0, 0].tolist()

    assert f(X) == [2, 1, 0]
    assert f(X[::-1]) == [0, 2, 1]


@pytest.mark.parametrize(
    ("combine", "values", "flipped"),
    [
        ("sum", [3, 3, 0], [0, 3, 3]),
        ("mean", [1.5, 1.5, 0], [0, 1.5, 1.5]),
        ("max", [2, 2, 0], [0, 2, 2]),
    ],
)
def test_a_kernel_with_its_reverse(combine, values, flipped):
    f = mirror1d(W, combine)
    assert f(X) == values
    assert f(X[::-1]) == flipped
    patch = {"sum": 15, "mean": 7.5, "max": 8}[combine]
    assert f([2, 3]) == f([3, 2]) == [patch]


def test_a_symmetric_kernel():
    f = mirror1d([1], "symmetric", kernel_size=2)  # [1, 1], of which one is stored
    assert f([2, 3]) == f([3, 2]) == [5]
    assert f([1, 2, 3, 4, 5, 6])[1] == f([6, 5, 4, 3, 2, 1])[3] == 5
    assert mirror1d([1, 2], "symmetric", kernel_size=3)([1, 10, 100]) == [121]


def test_left_right_is_not_up_down():
    layer = nn.MirrorConv2d(1, 1, 2, bias=False)
    layer.load_state_dict({"weight": np.float32([[[[1], [2]]]])})
    x = np.float32([[1, 2, 0], [0, 1, 3], [2, 0, 1]])[None, None]
    assert layer(x).numpy()[0, 0].tolist() == [[5, 10], [5, 6]]
    assert layer(x[..., ::-1]).numpy()[0, 0].tolist() == [[10, 5], [6, 5]]
    assert layer(x[..., ::-1, :]).numpy()[0, 0].tolist() == [[4, 9], [7, 8]]


# ---- mirror layers -------------------------------------------------------------------------------

COMBINES = ("symmetric", "sum", "mean", "max")
AXES = {"horizontal": [(-1,)], "vertical": [(-2,)], "both": [(-1,), (-2,), (-2, -1)]}
# kernel, options, size of the input
WINDOWS = [
    ((3, 3), {}, (7, 6)),
    ((2, 5), {"padding": (0, 1)}, (5, 7)),
    ((3, 3), {"padding": "same", "groups": 2}, (6, 5)),
    ((3, 3), {"padding": ((1, 1), (2, 2)), "dilation": (1, 2)}, (4, 9)),
    ((3, 4), {"stride": (2, 3), "padding": 1}, (7, 8)),
    ((1, 1), {}, (1, 1)),
    ((3, 3), {"padding": 1, "padding_mode": "reflect"}, (4, 5)),
    ((3, 3), {"padding": "same", "padding_mode": "circular"}, (4, 5)),
]


def by_definition(layer, x):
    """By `reference_symmetry.mirror_conv`."""
    axes = {"horizontal": (-1,), "vertical": (-2,), "both": (-1, -2)}[layer.axis]
    kernel, stride, dilation = layer.kernel_size, layer.stride, layer.dilation
    modes = {"zeros": "constant", "reflect": "reflect", "circular": "wrap"}
    return reference_symmetry.mirror_conv(
        x, layer.weight.numpy(), layer.bias.numpy(), kernel, axes, layer.combine,
        stride=stride, dilation=dilation, groups=layer.groups, mode=modes[layer.padding_mode],
        sides=reference_conv.sides(layer.padding, x.shape[2:], kernel, stride, dilation),
    )  # fmt: skip


@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("combine", COMBINES)
@pytest.mark.parametrize("case", WINDOWS, ids=str)
def test_mirror_values_and_equivariance(case, combine, axis, dtype):
    kernel, options, size = case
    fn.manual_seed(1)
    layer = nn.MirrorConv2d(4, 6, kernel, axis=axis, combine=combine, dtype=dtype, **options)
    x = normal(2, 4, *size, dtype=dtype)
    y = layer(x).numpy()
    assert y.dtype == dtype
    close(y, by_definition(layer, x), dtype)
    for flips in AXES[axis]:
        close(layer(np.flip(x, flips)), np.flip(y, flips), dtype)


@pytest.mark.parametrize("combine", COMBINES)
@pytest.mark.parametrize("kernel", [1, 2, 3, 4, 7])
def test_mirror1d(kernel, combine, isa, dtype):
    layer = nn.MirrorConv1d(3, 5, kernel, padding=kernel // 2, combine=combine, dtype=dtype)
    for length in (kernel, 17, 33):
        x = normal(2, 3, length, dtype=dtype)
        y = layer(x)
        close(layer(x[0]), y.numpy()[0], dtype)
        close(y, by_definition(layer, x), dtype)
        close(layer(x[..., ::-1]), y.numpy()[..., ::-1], dtype)
    assert layer(x[:0]).shape == (0, *y.shape[1:])


def test_half_of_a_symmetric_kernel_is_stored():
    for size, stored in ((1, 1), (2, 1), (3, 2), (4, 2), (7, 4)):
        assert nn.MirrorConv1d(2, 3, size).weight.shape == (3, 2, stored)
        assert nn.MirrorConv1d(2, 3, size, combine="sum").weight.shape == (3, 2, size)
    assert nn.MirrorConv2d(2, 3, (4, 5), axis="vertical").weight.shape == (3, 2, 2, 5)
    layer = nn.MirrorConv2d(2, 3, 5, axis="both", bias=False)
    assert {name: a.shape for name, a in layer.state_dict().items()} == {"weight": (3, 2, 3, 3)}
    assert list(layer.buffers()) == []
    assert 0.9 < np.abs(nn.MirrorConv2d(8, 32, 3).weight.numpy()).max() * 72**0.5 <= 1


@pytest.mark.parametrize("combine", COMBINES)
@pytest.mark.parametrize("axis", ["horizontal", "both"])
def test_mirror_gradients(combine, axis):
    layer = nn.MirrorConv2d(
        2, 4, (3, 4), padding=(1, 0), groups=2, axis=axis, combine=combine, dtype=np.float64
    )

    def f(x, w, b):
        layer.weight._data[...] = w.numpy()
        kernel = layer._parameters["weight"]
        layer._register(layer._parameters, "weight", w)
        layer._register(layer._parameters, "bias", b)
        try:
            return layer(x)
        finally:
            layer._register(layer._parameters, "weight", kernel)

    arrays = (normal(2, 2, 4, 5), layer.weight.numpy() + 0, normal(4))
    assert fn.testing.gradcheck(f, arrays)


def test_gradients_of_a_symmetric_kernel_are_tied():
    """Each stored weight gets the gradients of both its places, as one weight would."""
    layer, x = nn.MirrorConv1d(1, 1, 4, bias=False, dtype=np.float64), normal(3, 1, 9)
    full = fn.tensor(
        reference_symmetry.whole_kernel(layer.weight.numpy(), (4,), (-1,)), requires_grad=True
    )
    F.conv1d(x, full).square().sum().backward()
    layer(x).square().sum().backward()
    g = full.grad.numpy()[0, 0]
    close(layer.weight.grad.numpy()[0, 0], g[:2] + g[:1:-1])


@pytest.mark.parametrize("combine", COMBINES)
def test_mirror_same_bits_at_any_number_of_threads(combine):
    layer, x = nn.MirrorConv2d(4, 8, 3, padding=1, combine=combine), normal(4, 4, 31, 33)
    layer.to(np.float64)
    results = []
    for threads in (1, 2, 3):
        fn.set_num_threads(threads)
        layer.zero_grad()
        y = layer(x)
        y.square().sum().backward()
        results.append((y.numpy().tobytes(), layer.weight.grad.numpy().tobytes()))
    assert results[0] == results[1] == results[2]


@pytest.mark.parametrize("combine", COMBINES)
def test_mirror_takes_any_memory_layout_and_spreads_nan(combine):
    layer = nn.MirrorConv2d(2, 3, 3, combine=combine)
    x = normal(2, 2, 6, 7, dtype="float32")
    y = layer(x).numpy()
    read_only = x.copy()
    read_only.flags.writeable = False
    for same in (np.asfortranarray(x), x[::-1][::-1], x.astype(">f4"), read_only):
        np.testing.assert_array_equal(layer(same).numpy(), y)
    x[0, 0, 0, 0] = np.nan
    found = np.isnan(layer(x).numpy())
    assert found[0, :, 0, 0].all()
    assert found.sum() == 3


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"axis": "diagonal"}, "axis='diagonal', expected 'horizontal', 'vertical' or 'both'"),
        ({"combine": "min"}, "combine='min', expected 'symmetric', 'sum', 'mean' or 'max'"),
        ({"padding": ((0, 0), (1, 0))}, r"has 1 in front and 0 behind along a mirrored axis"),
        ({"padding": ((0, 1), 0), "axis": "both"}, r"has 0 in front and 1 behind"),
        ({"padding": "causal"}, "padding='causal', expected ints"),
    ],
)
def test_what_mirror_layers_refuse(options, text):
    with pytest.raises(ValueError, match=text):
        nn.MirrorConv2d(1, 1, 3, **options)


def test_what_mirror_layers_refuse_of_an_input():
    nn.MirrorConv2d(1, 1, 3, padding=((0, 1), 1))  # the other axis may differ
    with pytest.raises(ValueError, match=r"axis='vertical', expected 'horizontal'$"):
        nn.MirrorConv1d(1, 1, 3, axis="vertical")
    with pytest.raises(ValueError, match="padding='causal' is on one side alone"):
        nn.MirrorConv1d(1, 1, 3, padding="causal")
    same = nn.MirrorConv1d(1, 1, 4, padding="same")
    text = r"MirrorConv1d: the windows on an input of shape \(1, 1, 8\) begin 1 before it and end 2"
    with pytest.raises(ValueError, match=text):
        same(np.zeros((1, 1, 8), np.float32))
    strided = nn.MirrorConv1d(1, 1, 3, stride=2)
    assert strided(np.zeros((1, 1, 9), np.float32)).shape == (1, 1, 4)
    with pytest.raises(ValueError, match=r"begin 0 before it and end -1 after it .*stride=\(2,\)"):
        strided(np.zeros((1, 1, 8), np.float32))
    with pytest.raises(ValueError, match=r"MirrorConv1d: .*\(1, 2, 9\)"):
        strided(np.zeros((1, 2, 9), np.float32))
    with pytest.raises(TypeError, match="float64"):
        strided(np.zeros((1, 1, 9)))


def test_norms_fold_into_mirror_layers_that_are_linear():
    x = normal(2, 2, 5, 6)
    for combine in COMBINES:
        net = nn.Sequential(nn.MirrorConv2d(2, 3, 3, combine=combine), nn.BatchNorm2d(3))
        net.to(np.float64)(x)
        net[1].weight._data[...] = [1, -2, 3]
        fused = nn.utils.fuse_modules(net)
        assert isinstance(fused[1], nn.Identity) == (combine != "max")
        close(fused(x), net.eval()(x).numpy())
    with pytest.raises(ValueError, match=r"fuse_conv_bn: MirrorConv2d\(.* is not linear"):
        nn.utils.fuse_conv_bn(*net)


def test_mirror_repr():
    assert repr(nn.MirrorConv1d(2, 3, 3, padding=1)) == (
        "MirrorConv1d(2, 3, kernel_size=(3,), stride=(1,), padding=(1,), axis='horizontal', "
        "combine='symmetric')"
    )
