"""Padding in all its forms, reversed kernels, channels-last arrays, and streams of convolutions."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import fusednn as fn
import fusednn.functional as F
from fusednn import _core, nn
from fusednn.testing import reference, reference_conv

OPS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


def normal(*shape, dtype="float64", seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


# ---- padding -------------------------------------------------------------------------------------

# size, kernel, stride, dilation
WINDOWS = [
    ((6,), (3,), (2,), (1,)),
    ((7,), (2,), (1,), (3,)),
    ((9,), (4,), (3,), (2,)),
    ((5,), (5,), (1,), (1,)),
    ((8, 9), (3, 3), (1, 1), (1, 1)),
    ((8, 9), (4, 2), (1, 1), (1, 1)),
    ((11, 6), (2, 5), (3, 2), (2, 1)),
    ((17, 33), (5, 5), (1, 1), (1, 1)),
    ((4, 5, 6), (2, 3, 2), (1, 2, 3), (2, 1, 1)),
]


def paddings(axes):
    yield 1
    yield tuple(range(axes))
    yield tuple((0, i + 2) for i in range(axes))
    yield tuple((3 - i, 0) for i in range(axes))
    yield [np.int64(2), *[(1, 2)] * (axes - 1)]
    yield "valid"
    yield "same"
    if axes == 1:
        yield "causal"


CALLS = [(window, padding) for window in WINDOWS for padding in paddings(len(window[0]))]


def checked_against_reference(call, groups, channels, dtype, **options):
    """Values and the three gradients of one call."""
    (size, kernel, stride, dilation), padding = call
    axes = len(size)
    x = normal(2, channels, *size, dtype=dtype)
    w = normal(2 * channels, channels // groups, *kernel, dtype=dtype, seed=1)
    b = normal(2 * channels, dtype=dtype, seed=2)
    window = {"stride": stride, "dilation": dilation, "groups": groups}
    plain = padding if isinstance(padding, str) else [
        p if isinstance(p, tuple) else int(p)
        for p in (padding if hasattr(padding, "__len__") else (padding,) * axes)
    ]  # fmt: skip
    sides = reference_conv.sides(plain, size, kernel, stride, dilation)
    padded = np.pad(x, [(0, 0), (0, 0), *sides])
    tensors = [fn.tensor(a, requires_grad=True) for a in (x, w, b)]
    y = OPS[axes](*tensors, padding=padding, **window, **options)
    dy = normal(*y.shape, dtype=dtype, seed=3)
    y.backward(fn.tensor(dy))
    dx, dw, db = reference.conv_backward(dy, padded, w, **window)
    inner = (..., *(slice(a, a + n) for n, (a, _) in zip(size, sides, strict=True)))
    naive = reference.naive_conv_backward(dy, padded, w, **window)
    factor = 64 if options.get("algorithm") == "winograd" else 4
    for what, ours, exact, plain in (
        ("y", y.detach(), reference.conv_forward(padded, w, b, **window),
         reference.naive_conv_forward(padded, w, b, **window)),
        ("dx", tensors[0].grad, dx[inner], naive[0][inner]),
        ("dw", tensors[1].grad, dw, naive[1]),
        ("db", tensors[2].grad, db, naive[2]),
    ):  # fmt: skip
        exact, plain = np.ascontiguousarray(exact), np.ascontiguousarray(plain)
        reference.assert_accurate(ours.numpy(), exact, plain, factor=factor, what=what)


@pytest.mark.parametrize("call", CALLS, ids=str)
def test_padding_forms(call, isa, dtype):
    checked_against_reference(call, 1, 4, dtype)
    checked_against_reference(call, 2, 4, dtype)
    checked_against_reference(call, 4, 4, dtype)


@pytest.mark.parametrize("padding", [((0, 2), (1, 0)), ((2, 4), (0, 5)), "same"])
@pytest.mark.parametrize("size", [(9, 14), (6, 5)])
@pytest.mark.parametrize("kernel", [3, 5])
def test_uneven_padding_by_winograd(padding, size, kernel, isa):
    call = (size, (kernel, kernel), (1, 1), (1, 1)), padding
    checked_against_reference(call, 1, 16, "float32", algorithm="winograd")


def test_uneven_padding_gives_the_same_bits_at_any_thread_count(isa):
    x, w = normal(3, 17, 30, 41, dtype="float32"), normal(19, 17, 4, 3, dtype="float32")
    call = {"stride": (2, 1), "padding": ((0, 3), (2, 1))}
    fn.set_num_threads(1)
    single = F.conv2d(x, w, **call)
    for threads in (2, 3):
        fn.set_num_threads(threads)
        np.testing.assert_array_equal(F.conv2d(x, w, **call), single)


def test_same_is_the_rule_of_tensorflow():
    x, w = np.arange(1.0, 7).reshape(1, 1, 6), np.array([[[1.0, 10, 100]]])
    assert F.conv1d(x, w, stride=2, padding="same").ravel().tolist() == [321, 543, 65]
    assert F.conv1d(x, w, stride=2, padding=1).ravel().tolist() == [210, 432, 654]
    for n, k, s, d in itertools.product(range(1, 8), range(1, 5), range(1, 5), range(1, 4)):
        y = F.conv1d(np.ones((1, 1, n)), np.ones((1, 1, k)), None, s, "same", d)
        assert y.shape[2] == -(-n // s)
    huge = 2**62
    assert F.conv1d(x, w, stride=huge, padding="same").tolist() == [[[321]]]


def test_causal_padding_sees_no_later_element():
    x, w = normal(1, 2, 20), normal(3, 2, 4)
    y = F.conv1d(x, w, padding="causal", dilation=3)
    np.testing.assert_allclose(y, F.conv1d(x, w, padding=((9, 0),), dilation=3), rtol=1e-12)
    later = x.copy()
    later[..., 11:] = np.nan
    np.testing.assert_array_equal(F.conv1d(later, w, padding="causal", dilation=3)[..., :11],
                                  y[..., :11])  # fmt: skip


def test_borders_of_one_side():
    x, w = np.ones((1, 1, 3, 4)), np.ones((1, 1, 3, 3))
    y = F.conv2d(x, w, padding=((1, 0), (0, 1)))
    assert y[0, 0].tolist() == [[6, 6, 4], [9, 9, 6]]


def test_plan_takes_every_padding():
    for padding in (1, (1, 1), ((1, 1), (1, 1)), "same"):
        plan = F.conv_plan((16, 64, 56, 56), (64, 64, 3, 3), padding=padding)
        assert plan == F.conv_plan((16, 64, 56, 56), (64, 64, 3, 3), padding=1)


def test_a_list_changed_later_does_not_change_the_gradient():
    x = fn.tensor(normal(1, 1, 5, 5), requires_grad=True)
    padding = [[0, 1], [2, 0]]
    y = F.conv2d(x, normal(1, 1, 2, 2), padding=padding)
    padding[0][1] = 7
    y.sum().backward()
    assert x.grad.shape == (1, 1, 5, 5)


_X, _W = np.ones((1, 1, 6)), np.ones((1, 1, 3))
_X2, _W2 = np.ones((1, 1, 6, 6)), np.ones((1, 1, 3, 3))


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: F.conv1d(_X, _W, padding="full"), ValueError, ["conv1d", "'full'", "'causal'"]),
        (lambda: F.conv2d(_X2, _W2, padding="causal"), ValueError,
         ["conv2d", "'causal'", "pairs of ints, 'valid' or 'same'"]),
        (lambda: F.conv2d(_X2, _W2, padding=((1, 2), (0, -1))), ValueError,
         ["conv2d", "padding behind", "at least 0", "(2, -1)"]),
        (lambda: F.conv2d(_X2, _W2, padding=((-1, 2), 0)), ValueError,
         ["conv2d", "padding in front", "at least 0", "(-1, 0)"]),
        (lambda: F.conv2d(_X2, _W2, padding=((1, 2, 3), 0)), ValueError,
         ["conv2d", "3 values (1, 2, 3) for one axis", "pair"]),
        (lambda: F.conv1d(_X, _W, padding=(1, 2)), ValueError,
         ["conv1d", "2 values (1, 2)", "expected 1"]),
        (lambda: F.conv1d(_X, _W, padding=1.5), TypeError, ["conv1d", "padding", "float"]),
        (lambda: F.conv1d(_X, _W, padding=[(1.5, 1)]), TypeError, ["conv1d", "padding", "float"]),
        (lambda: F.conv1d(_X, _W, padding=None), TypeError, ["conv1d", "padding", "NoneType"]),
        (lambda: F.conv1d(_X, _W, padding=["same"]), TypeError, ["conv1d", "padding", "str"]),
        (lambda: F.conv1d(np.ones((1, 1, 0)), _W, padding="same"), ValueError,
         ["conv1d", "output would have size 0", "L = 0"]),
        (lambda: F.conv1d(_X, _W, padding="same", dilation=2**62), ValueError,
         ["conv1d", "overflow"]),
        (lambda: F.conv1d(_X, _W, padding=((0, 2**61),)), ValueError, ["conv1d", "overflow"]),
    ],
)  # fmt: skip
def test_refused_paddings(call, error, words):
    with pytest.raises(error) as caught:
        call()
    for word in words:
        assert word in str(caught.value)


# ---- what else padding may consist of ------------------------------------------------------------

NUMPYS = {"zeros": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}


@pytest.mark.parametrize("mode", NUMPYS)
@pytest.mark.parametrize("padding", [2, (1, 2), ((0, 2), (3, 1)), "same", "valid"], ids=str)
@pytest.mark.parametrize("stride", [1, 2])
def test_padding_modes(mode, padding, stride):
    layer = nn.Conv2d(2, 3, (3, 4), stride, padding, padding_mode=mode, dtype=np.float64)
    x = normal(2, 2, 7, 8)
    sides = reference_conv.sides(padding, (7, 8), (3, 4), stride)
    padded = np.pad(x, [(0, 0), (0, 0), *sides], NUMPYS[mode])
    w, b = layer.weight.numpy(), layer.bias.numpy()
    np.testing.assert_allclose(layer(x).numpy(), F.conv2d(padded, w, b, stride), rtol=1e-12)
    assert fn.testing.gradcheck(lambda x: layer(x), x)


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
def test_causal_padding_modes_and_missing_batch(mode):
    layer = nn.Conv1d(2, 3, 3, 1, "causal", 2, padding_mode=mode, dtype=np.float64)
    x = normal(2, 9)
    padded = np.pad(x, [(0, 0), (4, 0)], NUMPYS[mode])
    expected = F.conv1d(padded, layer.weight.numpy(), layer.bias.numpy(), dilation=2)
    np.testing.assert_allclose(layer(x).numpy(), expected, rtol=1e-12)


@pytest.mark.parametrize("mode", ["constant", "reflect", "replicate", "circular"])
@pytest.mark.parametrize("widths", [(0, 0), (4, 0), (0, 4), (3, 2), (1, 4)], ids=str)
def test_pad_with_one_side_or_none(mode, widths, dtype):
    numpys = {"constant": "constant", **NUMPYS}[mode]
    for x in (normal(2, 3, 5, dtype=dtype), normal(0, 3, 5, dtype=dtype), normal(2, 5)[..., ::-1]):
        both = [(0, 0)] * (x.ndim - 2) + [(1, 0), widths] if x.ndim == 3 else [(0, 0), widths]
        flat = [side for pair in reversed(both) for side in pair]
        np.testing.assert_array_equal(F.pad(x, flat, mode), np.pad(x, both, numpys))


# ---- reversed kernels ----------------------------------------------------------------------------


def test_a_reversed_kernel_is_the_convolution_of_mathematics():
    x, w = normal(30), normal(7)
    y = F.conv1d(x[None, None], w[None, None], padding=6, flip_kernel=True)
    np.testing.assert_allclose(y[0, 0], np.convolve(x, w), rtol=1e-12)


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_reversed_kernels(axes):
    x, w = normal(2, 4, *(6, 5, 4)[:axes]), normal(6, 2, *(3, 2, 2)[:axes])
    window = {"stride": 2, "padding": 1, "groups": 2}
    flipped = np.flip(w, tuple(range(2, 2 + axes)))
    y = OPS[axes](x, w, flip_kernel=True, **window)
    np.testing.assert_array_equal(y, OPS[axes](x, flipped, **window))
    assert fn.testing.gradcheck(lambda x, w: OPS[axes](x, w, flip_kernel=True, **window), (x, w))
    module = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[axes - 1]
    layer = module(4, 6, w.shape[2:], **window, bias=False, flip_kernel=True, dtype=np.float64)
    layer.load_state_dict({"weight": w})
    np.testing.assert_array_equal(layer(x).numpy(), y)
    assert "flip_kernel=True" in repr(layer)


# ---- arrays with another order of axes -----------------------------------------------------------


@pytest.mark.parametrize("channels", [1, 2, 3, 5, 16, 17, 64])
@pytest.mark.parametrize("size", [(9, 8), (1, 1), (13, 20)])
def test_channels_last_input(channels, size, isa, dtype):
    x = normal(2, *size, channels, dtype=dtype)
    w = normal(4, channels, 3, 3, dtype=dtype)
    view = x.transpose(0, 3, 1, 2)
    expected = F.conv2d(np.ascontiguousarray(view), w, padding=1)
    np.testing.assert_array_equal(F.conv2d(view, w, padding=1), expected)
    # The weight as other frameworks keep it (HWIO), and a gradient through both views.
    weight = np.ascontiguousarray(w.transpose(2, 3, 1, 0)).transpose(3, 2, 0, 1)
    np.testing.assert_array_equal(F.conv2d(view, weight, padding=1), expected)
    tensor = fn.tensor(x, requires_grad=True)
    y = F.conv2d(tensor.permute(0, 3, 1, 2), w, padding=1)
    y.backward(fn.tensor(expected))
    plain = fn.tensor(np.ascontiguousarray(view), requires_grad=True)
    F.conv2d(plain, w, padding=1).backward(fn.tensor(expected))
    np.testing.assert_array_equal(tensor.grad.numpy(), plain.grad.numpy().transpose(0, 2, 3, 1))


_SHAPES = [
    (3, 5), (16, 16), (1, 7), (7, 1), (130, 33), (15, 17), (257, 4), (4, 257), (2, 3, 4), (1, 1, 6),
    (5, 1, 6), (3, 17, 19), (2, 129, 65), (2, 3, 4, 5), (2, 16, 3, 11), (1, 2, 1, 3, 2), (0, 3, 2),
]  # fmt: skip


@pytest.mark.parametrize("shape", _SHAPES, ids=str)
def test_views_of_any_order_are_read(shape, isa, dtype):
    """Every permutation of the axes, some read by transposing, some by NumPy's copy."""
    x = np.abs(normal(*shape, dtype=dtype))
    for order in itertools.permutations(range(len(shape))):
        view = x.transpose(order)
        np.testing.assert_array_equal(_core.relu_forward(view), view)
        np.testing.assert_array_equal(_core.relu_forward(view[..., ::-1]), view[..., ::-1])
    swapped = x.astype(x.dtype.newbyteorder(">")).T
    np.testing.assert_array_equal(_core.relu_forward(swapped), x.T)


# ---- streams -------------------------------------------------------------------------------------


@pytest.mark.parametrize("cuts", [(0,), (1, 2, 3), (7, 19), (40,), (0, 0, 13, 13)], ids=str)
@pytest.mark.parametrize(("kernel", "dilation", "groups"), [(3, 1, 1), (4, 5, 2), (1, 1, 1)])
def test_a_stream_equals_the_whole_sequence(cuts, kernel, dilation, groups, dtype):
    x = normal(2, 4, 40, dtype=dtype)
    w = normal(6, 4 // groups, kernel, dtype=dtype, seed=1)
    b = normal(6, dtype=dtype, seed=2)
    whole = F.conv1d(x, w, b, 1, "causal", dilation, groups)
    state = np.zeros((2, 4, dilation * (kernel - 1)), dtype)
    parts = []
    for stretch in np.split(x, cuts, axis=2):
        y, state = F.conv1d(stretch, w, b, 1, "causal", dilation, groups, state=state)
        assert y.shape == (2, 6, stretch.shape[2])
        parts.append(y)
    np.testing.assert_allclose(np.concatenate(parts, 2), whole, rtol=0, atol=1e-6)
    np.testing.assert_array_equal(state, x[..., 40 - state.shape[2] :])


def test_a_strided_stream():
    x, w = normal(1, 2, 36), normal(3, 2, 5)
    whole, state, parts = F.conv1d(x, w, stride=3, padding="causal"), np.zeros((1, 2, 4)), []
    for stretch in np.split(x, [3, 15, 15, 21], axis=2):
        y, state = F.conv1d(stretch, w, stride=3, padding="causal", state=state)
        parts.append(y)
    np.testing.assert_allclose(np.concatenate(parts, 2), whole, rtol=1e-12)


def test_a_streaming_module_and_its_gradient():
    layer = nn.Conv1d(2, 3, 4, padding="causal", dilation=2, dtype=np.float64)
    x = fn.tensor(normal(2, 2, 12), requires_grad=True)
    whole = layer(x)
    whole.backward(fn.tensor(normal(2, 3, 12)))
    expected = x.grad.numpy().copy(), layer.weight.grad.numpy().copy()
    x.grad = layer.weight.grad = None
    first, state = layer(x[..., :5], layer.initial_state(2))
    second, state = layer(x[..., 5:], state=state)
    joined = fn.cat([first, second], -1)
    np.testing.assert_allclose(joined.numpy(), whole.numpy(), rtol=1e-12)
    joined.backward(fn.tensor(normal(2, 3, 12)))
    np.testing.assert_allclose(x.grad.numpy(), expected[0], rtol=1e-10)
    np.testing.assert_allclose(layer.weight.grad.numpy(), expected[1], rtol=1e-10)
    assert isinstance(state, fn.Tensor)
    alone, _ = layer(normal(2, 4), layer.initial_state())
    assert alone.shape == (3, 4)


def test_a_kept_state_is_no_view_of_the_stretch():
    """Or a short state would keep a long stretch alive."""
    _, state = F.conv1d(normal(1, 1, 1000), normal(1, 1, 3), padding="causal",
                        state=np.zeros((1, 1, 2)))  # fmt: skip
    assert state.base is None


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        ({"padding": 2}, ValueError, ["state needs padding='causal'", "2"]),
        ({"padding": "same"}, ValueError, ["state needs padding='causal'", "'same'"]),
        ({"state": np.zeros((1, 1, 3))}, ValueError,
         ["state", "(1, 1, 3)", "(1, 1, 2)", "(1, 1, 6)", "kernel 3"]),
        ({"state": np.zeros((1, 1, 2), np.float32)}, TypeError, ["state", "float32", "float64"]),
        ({"state": [0, 0]}, TypeError, ["state", "list"]),
        ({"stride": 4}, ValueError, ["6 positions", "multiple of stride 4"]),
        ({"groups": 2}, ValueError, ["groups = 2"]),
    ],
)  # fmt: skip
def test_refused_streams(call, error, words):
    arguments = {"padding": "causal", "state": np.zeros((1, 1, 2)), **call}
    with pytest.raises(error) as caught:
        F.conv1d(_X, _W, **arguments)
    for word in ["conv1d", *words]:
        assert word in str(caught.value)


def test_refused_modules():
    with pytest.raises(ValueError, match="Conv1d: state needs padding_mode='zeros'"):
        layer = nn.Conv1d(1, 1, 3, padding="causal", padding_mode="reflect")
        layer(np.zeros((1, 1, 4), np.float32), layer.initial_state(1))
    with pytest.raises(ValueError, match="Conv2d: padding='causal', expected ints, pairs"):
        nn.Conv2d(1, 1, 3, padding="causal")
    with pytest.raises(ValueError, match="expected an int or a pair for each axis"):
        nn.Conv2d(1, 1, 3, padding=((1, 2, 3), 0))


# ---- large ---------------------------------------------------------------------------------------


def test_more_than_2_to_the_31_elements_of_an_im2col_matrix():
    """1024 taps at 2.2e6 positions, from an input of 9 MB."""
    size, taps = 1500, 32
    x, w = normal(1, 1, size, size, dtype="float32"), np.zeros((1, 1, taps, taps), np.float32)
    marks = {(0, 0): 1.0, (17, 5): 2.0, (31, 31): 3.0}
    n = size - taps + 1
    expected, sums = np.zeros((n, n)), {}
    dy = np.zeros((1, 1, n, n), np.float32)
    dy[0, 0, [0, 700, n - 1], [n - 1, 31, 5]] = 1, 10, 100
    for (i, j), value in marks.items():
        w[0, 0, i, j] = value
        patch = x[0, 0, i : i + n, j : j + n].astype(np.float64)
        expected += value * patch
        sums[i, j] = (patch * dy[0, 0]).sum()
    np.testing.assert_allclose(F.conv2d(x, w)[0, 0], expected, rtol=0, atol=1e-5)
    dw = _core.conv_backward_weight(2, dy, x, w.shape, 1, 0, 1, 1, "auto")[0, 0]
    dx = _core.conv_backward_input(2, dy, w, x.shape, 1, 0, 1, 1, "auto")[0, 0]
    for (i, j), value in marks.items():
        np.testing.assert_allclose(dw[i, j], sums[i, j], rtol=1e-5)
        assert dx[700 + i, 31 + j] == 10 * value
    assert dx.sum(dtype=np.float64) == 111 * 6


def test_byte_offsets_beyond_2_to_the_32(tmp_path):
    """A sparse file of 6.4 GB, of which a widely strided kernel touches a few pages."""
    length = 1_600_000_000
    x = np.memmap(tmp_path / "zeros", np.float32, "w+", shape=(1, 1, length))
    x[0, 0, -3:] = 1, 2, 3
    x[0, 0, 1_200_000_001] = 7
    window = {"stride": 400_000_000}
    y = F.conv1d(x[:, :, :], np.array([[[1.0, 10.0]]], np.float32), **window)
    assert y.tolist() == [[[0, 0, 0, 70]]]
    y = F.conv1d(x, np.array([[[1.0, 10.0, 100.0]]], np.float32), stride=length - 3)
    assert y.tolist() == [[[0, 321]]]
    dy = np.array([[[0.0, 0.0, 0.0, 1.0]]], np.float32)
    dw = _core.conv_backward_weight(1, dy, x, (1, 1, 2), 400_000_000, 0, 1, 1, "auto")
    assert dw.tolist() == [[[0, 7]]]
