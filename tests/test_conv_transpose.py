"""Transposed convolution: values and gradients on every ISA, layers, refused calls."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import fusednn as fn
import fusednn.functional as F
from fusednn import nn
from fusednn.testing import reference, reference_conv

OPS = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}


def normal(*shape, dtype="float64", seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


# (batch, in channels, out channels, groups), size, kernel, the rest of the window
CASES = [
    ((2, 3, 4, 1), (7,), (3,), {}),
    ((1, 1, 1, 1), (1,), (1,), {}),
    ((2, 4, 6, 2), (5,), (4,), {"stride": 3, "padding": 1, "output_padding": 2}),
    ((1, 2, 3, 1), (6,), (2,), {"stride": 5}),  # gaps that no input reaches
    ((1, 2, 3, 1), (6,), (3,), {"dilation": 4, "output_padding": 3, "padding": ((0, 5),)}),
    ((1, 3, 2, 1), (1,), (5,), {"stride": 1000, "padding": 2}),
    ((1, 2, 2, 1), (9,), (2,), {"padding": 4}),  # more taken away than the kernel is long
    ((1, 5, 3, 1), (20,), (32,), {"stride": 16, "padding": 8}),  # a window that overlaps once
    ((2, 5, 1, 1), (9,), (64,), {"stride": 64}),
    ((1, 3, 7, 1), (4, 5), (2, 2), {"stride": 2}),
    ((1, 6, 4, 2), (4, 5), (4, 6), {"stride": (4, 3), "padding": (0, 1), "dilation": (3, 1)}),
    ((2, 3, 5, 1), (5, 6), (3, 3), {}),
    ((2, 3, 5, 1), (5, 6), (3, 3), {"stride": 2, "padding": 1, "output_padding": 1}),
    ((1, 4, 6, 2), (4, 7), (2, 5), {"stride": (3, 1), "padding": ((1, 0), (0, 3))}),
    ((2, 5, 5, 5), (6, 17), (3, 3), {"stride": 2, "padding": 1}),
    ((2, 6, 3, 3), (5, 9), (3, 3), {"padding": 1}),  # several inputs a channel
    ((1, 3, 6, 3), (5, 9), (4, 4), {"stride": 2, "padding": 1}),
    ((2, 16, 16, 1), (9, 14), (3, 3), {"padding": 1}),
    ((1, 17, 18, 1), (8, 8), (5, 5), {"padding": ((2, 1), (0, 2))}),
    ((2, 33, 15, 1), (8, 9), (4, 4), {"stride": 2, "padding": 1}),
    ((1, 2, 3, 1), (3, 4, 2), (2, 3, 2), {"stride": (1, 2, 3), "output_padding": (0, 1, 2)}),
    ((0, 3, 4, 1), (5, 5), (3, 3), {"stride": 2}),
    ((2, 0, 4, 1), (5, 5), (3, 3), {"stride": 2}),
    ((2, 3, 0, 1), (5, 5), (3, 3), {"stride": 2}),
    ((2, 3, 4, 1), (0, 5), (3, 3), {"output_padding": 0}),  # no input: the bias alone
    *(((1, 3, 2, 1), (3, width), (3, 3), {"stride": 2}) for width in (3, 4, 7, 8, 9, 15, 16, 17)),
]


def arrays(case, dtype):
    (batch, ins, outs, groups), size, kernel, window = case
    shapes = (batch, ins, *size), (ins, outs // groups, *kernel), (outs,)
    made = [normal(*shape, dtype=dtype, seed=i) for i, shape in enumerate(shapes)]
    return made, {**window, "groups": groups}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_values_and_gradients(case, isa, dtype):
    (x, w, b), window = arrays(case, dtype)
    for bias in (b, None):
        tensors = [fn.tensor(a, requires_grad=True) for a in (x, w, bias) if a is not None]
        y = OPS[len(case[1])](*tensors, **window)
        exact = reference_conv.conv_transpose_forward(x, w, bias, **window)
        naive = exact.astype(dtype)
        reference.assert_accurate(y.numpy(), exact, naive, factor=64, what="y")
        dy = normal(*y.shape, dtype=dtype, seed=3)
        y.backward(fn.tensor(dy))
        grads = reference_conv.conv_transpose_backward(dy, x, w, **window)
        for name, tensor, truth in zip(("dx", "dw", "db"), tensors, grads, strict=False):
            ours = tensor.grad.numpy()
            assert ours.dtype == dtype
            scale = float(np.abs(truth).max(initial=1.0))
            allowed = (2e-5 if dtype == "float32" else 4e-14) * scale
            np.testing.assert_allclose(
                ours, truth.astype(float), rtol=0, atol=allowed, err_msg=name
            )


@pytest.mark.parametrize("groups", [1, 2, 8])
@pytest.mark.parametrize("stride", [1, 2, (4, 3)])
def test_direct_and_product_agree(groups, stride, isa, dtype):
    """Whichever would be chosen: few output channels, depthwise, each bias in its place."""
    x, w, b = (normal(*shape, dtype=dtype, seed=2) for shape in (
        (2, 8, 9, 11), (8, 1, 4, 3), (groups,)))  # fmt: skip
    for bias in (b, None):
        direct, product = (
            F.conv_transpose2d(x, w, bias, stride, 1, groups=groups, algorithm=algorithm)
            for algorithm in ("direct", "implicit_gemm")
        )
        tolerance = 1e-5 if dtype == "float32" else 1e-13
        np.testing.assert_allclose(direct, product, rtol=0, atol=tolerance * 10)


@pytest.mark.parametrize("algorithm", ["implicit_gemm", "winograd"])
def test_algorithms(algorithm, isa):
    x, w, b = normal(2, 16, 9, 8), normal(16, 18, 3, 3, seed=1), normal(18, seed=2)
    y = F.conv_transpose2d(x, w, b, padding=1, algorithm=algorithm)
    exact = reference_conv.conv_transpose_forward(x, w, b, padding=1)
    np.testing.assert_allclose(y, exact.astype(float), rtol=0, atol=1e-12)


@pytest.mark.parametrize("case", [CASES[i] for i in (9, 10, 13, 14, 16, 17, 19)], ids=str)
def test_same_bits_at_any_thread_count(case, isa, dtype):
    sizes, size, kernel, window = case
    larger = ((sizes[0] * 2, sizes[1] * 5, sizes[2] * 5, sizes[3]), tuple(n * 3 for n in size))
    (x, w, b), window = arrays((*larger, kernel, window), dtype)
    fn.set_num_threads(1)
    single = F.conv_transpose2d(x, w, b, **window)
    for threads in (2, 3):
        fn.set_num_threads(threads)
        np.testing.assert_array_equal(F.conv_transpose2d(x, w, b, **window), single)


def test_it_is_the_transpose_of_the_convolution():
    """<conv(x), y> = <x, conv_transpose(y)>, and every gradient is the other's."""
    w = normal(6, 2, 3, 4)
    window = {"stride": (2, 3), "padding": ((1, 0), 2), "dilation": (1, 2), "groups": 2}
    x = normal(2, 4, 11, 14)
    y = F.conv2d(x, w, **window)
    back = F.conv_transpose2d(y, w, output_padding=(0, 2), **window)
    back = np.pad(back, [(0, 0), (0, 0), *((0, n - m) for n, m in zip(x.shape[2:], back.shape[2:],
                                                                     strict=True))])  # fmt: skip
    assert back.shape == x.shape
    np.testing.assert_allclose((y * y).sum(), (x * back).sum(), rtol=1e-12)
    tensor = fn.tensor(x, requires_grad=True)
    F.conv2d(tensor, w, **window).backward(fn.tensor(y))
    np.testing.assert_allclose(tensor.grad.numpy(), back, rtol=0, atol=1e-12)


def test_values_by_hand():
    x, w = np.array([[[1.0, 2.0]]]), np.array([[[1.0, 10.0, 100.0]]])
    assert F.conv_transpose1d(x, w).tolist() == [[[1, 12, 120, 200]]]
    assert F.conv_transpose1d(x, w, stride=2).tolist() == [[[1, 10, 102, 20, 200]]]
    assert F.conv_transpose1d(x, w, np.array([5.0]), stride=2, padding=1).tolist() == [
        [[15, 107, 25]]
    ]
    assert F.conv_transpose1d(x, w, stride=4).tolist() == [[[1, 10, 100, 0, 2, 20, 200]]]
    assert F.conv_transpose1d(x, w, stride=2, output_padding=1).tolist() == [
        [[1, 10, 102, 20, 200, 0]]
    ]
    assert F.conv_transpose1d(x[0], w).tolist() == [[1, 12, 120, 200]]


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_gradcheck(axes):
    x, w, b = normal(2, 4, *(3, 4, 2)[:axes]), normal(4, 3, *(3, 2, 3)[:axes]), normal(6)
    window = {"stride": 2, "padding": 1, "output_padding": 1, "groups": 2, "dilation": 2}
    assert fn.testing.gradcheck(lambda *three: OPS[axes](*three, **window), (x, w, b))


@pytest.mark.parametrize("view", ["strided", "reversed", "transposed", "big-endian", "read-only"])
def test_any_view_is_read(view, dtype):
    x, w = normal(2, 3, 5, 4, dtype=dtype), normal(3, 4, 3, 3, dtype=dtype)
    expected = F.conv_transpose2d(x, w, stride=2)

    def seen(a):
        if view == "strided":
            return np.repeat(a, 2, -1)[..., ::2]
        if view == "reversed":
            return np.ascontiguousarray(a[:, ::-1, ::-1])[:, ::-1, ::-1]
        if view == "transposed":
            return np.ascontiguousarray(a.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
        if view == "big-endian":
            return a.astype(a.dtype.newbyteorder(">"))
        a = a.copy()
        a.flags.writeable = False
        return a

    np.testing.assert_array_equal(F.conv_transpose2d(seen(x), seen(w), stride=2), expected)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_nan_and_infinity_stay_where_they_are(value, isa):
    x, w = normal(1, 16, 12, 12, dtype="float32"), np.abs(normal(16, 16, 3, 3, dtype="float32"))
    x[0, 3, 7, 5] = value
    y = F.conv_transpose2d(x, w + 0.1)
    touched = np.zeros((14, 14), bool)
    touched[7:10, 5:8] = True
    assert np.isfinite(y[0][:, ~touched]).all()
    assert (~np.isfinite(y[0][:, touched])).all()


_X, _W = np.ones((1, 3, 4, 4)), np.ones((3, 2, 3, 3))


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: F.conv_transpose2d(_X[:, :2], _W), ValueError,
         ["weight expects 3", "got 2", "(1, 2, 4, 4)", "(3, 2, 3, 3)"]),
        (lambda: F.conv_transpose2d(_X, _W, groups=2), ValueError,
         ["3 channels", "groups = 2", "does not divide"]),
        (lambda: F.conv_transpose2d(_X, _W, groups=0), ValueError, ["groups", "got 0"]),
        (lambda: F.conv_transpose2d(_X[0, 0], _W), ValueError,
         ["input", "(4, 4)", "(N, C, H, W) or (C, H, W)"]),
        (lambda: F.conv_transpose2d(_X, _W[0]), ValueError,
         ["weight", "(2, 3, 3)", "(in_channels, out_channels / groups, kH, kW)"]),
        (lambda: F.conv_transpose2d(_X, _W, np.ones(3)), ValueError, ["bias", "(3,)", "(2,)"]),
        (lambda: F.conv_transpose2d(_X, _W, stride=0), ValueError, ["stride", "got 0"]),
        (lambda: F.conv_transpose2d(_X, _W, output_padding=1), ValueError,
         ["output_padding 1", "along H", "less than stride or dilation"]),
        (lambda: F.conv_transpose2d(_X, _W, output_padding=-1), ValueError,
         ["output_padding", "got -1"]),
        (lambda: F.conv_transpose2d(_X, _W, padding="same"), ValueError,
         ["padding='same'", "expected ints or pairs"]),
        (lambda: F.conv_transpose2d(_X, _W, padding=3), ValueError,
         ["output would have size 0", "H = 4", "padding 3"]),
        (lambda: F.conv_transpose2d(_X, _W, stride=2**61), ValueError, ["overflow"]),
        (lambda: F.conv_transpose2d(_X, _W, stride=2**62), ValueError, ["overflow"]),
        (lambda: F.conv_transpose2d(_X, _W, dilation=2**62), ValueError, ["overflow"]),
        (lambda: F.conv_transpose2d(_X, _W.astype("f4")), TypeError, ["weight", "float32"]),
        (lambda: F.conv_transpose2d(_X.astype(int), _W), TypeError, ["input", "int64"]),
        (lambda: F.conv_transpose2d(_X, _W, algorithm="fft"), ValueError, ["algorithm", "'fft'"]),
        (lambda: F.conv_transpose2d(_X, np.ones((3, 5, 3, 3)), stride=2, algorithm="direct"),
         ValueError,
         ["at most 4 output channels per group", "3 input and 5 output channels in 1 groups"]),
        (lambda: F.conv_transpose2d(_X, _W, stride=2, algorithm="winograd"), ValueError,
         ["'winograd' needs a 3 x 3 or 5 x 5 kernel"]),
        (lambda: F.conv_transpose2d(_X, np.ones((3, 2, 0, 3))), ValueError, ["at least 1"]),
    ],
)  # fmt: skip
def test_refused_calls_say_what_is_wrong(call, error, words):
    with pytest.raises(error) as caught:
        call()
    for word in ["conv_transpose2d", *words]:
        assert word in str(caught.value)


# ---- layers --------------------------------------------------------------------------------------


def test_output_size_chooses_among_the_possible():
    layer = nn.ConvTranspose2d(2, 3, 3, stride=(2, 3), padding=((1, 0), 1))
    x = normal(1, 2, 4, 5, dtype="float32")
    assert layer(x).shape == (1, 3, 8, 13)
    for height, width in itertools.product((8, 9), (13, 14, 15)):
        assert layer(x, [height, width]).shape == (1, 3, height, width)
        assert layer(x, output_size=(1, 3, height, width)).shape == (1, 3, height, width)
        assert layer(x[0], (3, height, width)).shape == (3, height, width)
    with pytest.raises(
        ValueError, match=r"output_size=\(10, 13\) .* expected 8 to 9 where it is 10"
    ):
        layer(x, (10, 13))
    with pytest.raises(ValueError, match="has 3 values, expected 2 or 4"):
        layer(x, (3, 8, 13))


def test_refused_layers():
    for arguments, text in (
        ({"padding_mode": "reflect"}, "padding_mode='reflect', expected 'zeros'"),
        ({"padding": "same"}, "padding='same', expected ints or pairs of ints"),
        ({"groups": 2}, "divisible by groups=2"),
    ):
        with pytest.raises(ValueError, match=f"ConvTranspose1d: .*{text}"):
            nn.ConvTranspose1d(3, 3, 2, **arguments)


def test_layers_have_torchs_names_and_defaults():
    layer = nn.ConvTranspose2d(4, 6, (2, 3), 2, 1, 1, 2, False, 2)
    assert repr(layer) == (
        "ConvTranspose2d(4, 6, kernel_size=(2, 3), stride=(2, 2), padding=(1, 1), "
        "output_padding=(1, 1), dilation=(2, 2), groups=2, bias=False)"
    )
    assert {name: a.shape for name, a in layer.state_dict().items()} == {"weight": (4, 3, 2, 3)}
    fn.manual_seed(0)
    weight = nn.ConvTranspose1d(2, 50, 4).weight.numpy()
    assert 0.9 < np.abs(weight).max() * (50 * 4) ** 0.5 <= 1


def test_weights_move_to_torch():
    torch = pytest.importorskip("torch", reason="torch is not installed (extra 'peers')")
    arguments = (6, 4, 3, 2, 1, 1, 2, True, 2)
    for ours, peer, size in (
        (nn.ConvTranspose1d, torch.nn.ConvTranspose1d, (7,)),
        (nn.ConvTranspose2d, torch.nn.ConvTranspose2d, (7, 5)),
        (nn.ConvTranspose3d, torch.nn.ConvTranspose3d, (3, 4, 5)),
    ):
        layer, twin = ours(*arguments), peer(*arguments)
        twin.load_state_dict({k: torch.tensor(v) for k, v in layer.state_dict().items()})
        x = normal(2, 6, *size, dtype="float32")
        expected = twin(torch.tensor(x)).detach().numpy()
        np.testing.assert_allclose(layer(x).numpy(), expected, rtol=1e-4, atol=1e-5)
