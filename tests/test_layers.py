"""Layers and the functions behind them, but for those that have files of their own."""

import numpy as np
import pytest

import fusednn as fn
import fusednn.functional as F
from fusednn import nn

f32, f64 = np.float32, np.float64


def values(*shape, seed=0, dtype=f32):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


# ---- layers --------------------------------------------------------------------------------------


def test_parameter_counts():
    assert sum(p.numel() for p in nn.Conv2d(3, 1, 3, bias=False).parameters()) == 27
    assert nn.Linear(7, 5).weight.shape == (5, 7)
    assert nn.Conv1d(4, 6, 5, groups=2).weight.shape == (6, 2, 5)
    assert nn.Conv3d(1, 2, (1, 2, 3)).weight.shape == (2, 1, 1, 2, 3)
    assert nn.Linear(2, 2, dtype=f64).weight.dtype == f64


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: nn.Linear(-1, 2), ValueError, "Linear: in_features=-1, expected at least 0"),
        (lambda: nn.Linear(1.5, 2), TypeError, "Linear: in_features must be an int, got float"),
        (lambda: nn.Conv2d(3, 4, 3, groups=2), ValueError, "divisible by groups=2"),
        (lambda: nn.Conv2d(3, 4, 3, groups=0), ValueError, "Conv2d: groups=0, expected at least 1"),
        (lambda: nn.Conv2d(3, 4, (3, 3, 3)), ValueError, "kernel_size=.* has 3 values, expected 2"),
        (
            lambda: nn.Conv1d(1, 1, 3, padding="x"),
            ValueError,
            "padding='x', expected ints, pairs of ints, 'valid'",
        ),
        (lambda: nn.Conv1d(1, 1, 3, padding_mode="x"), ValueError, "padding_mode='x', expected"),
        (lambda: nn.Dropout(1.5), ValueError, r"Dropout: p=1.5, expected a probability in \[0, 1"),
        (
            lambda: nn.MSELoss("avg"),
            ValueError,
            "MSELoss: reduction='avg', expected 'none', 'mean'",
        ),
    ],
)
def test_bad_layers_are_refused(make, error, text):
    with pytest.raises(error, match=text):
        make()


def test_padding_names():
    x = np.arange(1, 7, dtype=f64).reshape(1, 1, 6)
    w = np.array([1.0, 10.0, 100.0]).reshape(1, 1, 3)
    assert F.conv1d(x, w, stride=2, padding="same").ravel().tolist() == [321, 543, 65]
    assert F.conv1d(x, w, stride=2, padding=1).ravel().tolist() == [210, 432, 654]
    assert F.conv1d(x, w, padding="valid").shape == (1, 1, 4)
    assert F.conv1d(x, w, padding="same", dilation=2).shape == x.shape
    with pytest.raises(
        ValueError, match="conv1d: padding='full', expected ints, pairs of ints, 'valid', 'same' or"
    ):
        F.conv1d(x, w, padding="full")
    with pytest.raises(ValueError, match="conv1d: stride must be at least 1, got 0"):
        F.conv1d(x, w, stride=0, padding="same")


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
@pytest.mark.parametrize("padding", [1, "same"])
def test_padding_modes_of_convolutions(mode, padding):
    layer = nn.Conv1d(2, 3, 3, padding=padding, padding_mode=mode)
    x = values(1, 2, 6)
    numpys = {"reflect": "reflect", "replicate": "edge", "circular": "wrap"}[mode]
    padded = np.pad(x, [(0, 0), (0, 0), (1, 1)], numpys)
    expected = F.conv1d(padded, layer.weight.numpy(), layer.bias.numpy())
    np.testing.assert_array_equal(layer(x).numpy(), expected)


@pytest.mark.parametrize("mode", ["constant", "reflect", "replicate", "circular"])
def test_pad_matches_numpy(mode):
    x = values(2, 4, 5)
    numpys = {"constant": "constant", "reflect": "reflect", "replicate": "edge"}
    expected = np.pad(x, [(0, 0), (2, 1), (3, 2)], numpys.get(mode, "wrap"))
    np.testing.assert_array_equal(F.pad(x, (3, 2, 2, 1), mode), expected)
    np.testing.assert_array_equal(F.pad(fn.tensor(x), (3, 2, 2, 1), mode).numpy(), expected)


def test_pad_errors():
    x = np.zeros((2, 3))
    assert F.pad(x, (-1, 2), value=5.0).tolist() == [[0, 0, 5, 5]] * 2
    for call, text in (
        (lambda: F.pad(x, (1, 2, 3)), "3 values for input of shape"),
        (lambda: F.pad(x, (1,) * 6), "6 values"),
        (lambda: F.pad(x, (1, 1), "mirror"), "mode='mirror', expected one of constant"),
        (lambda: F.pad(x, (3, 0), "reflect"), r"more than mode 'reflect' allows \(2\)"),
        (lambda: F.pad(x, (0, 4), "circular"), r"more than mode 'circular' allows \(3\)"),
        (lambda: F.pad(x, (-2, -2)), "crops axis 1 of shape"),
        (lambda: F.pad(np.zeros(0), (1, 1), "replicate"), "is empty, nothing to replicate"),
    ):
        with pytest.raises(ValueError, match=text):
            call()


def test_padding_of_integers_is_of_integers():
    assert F.pad(np.ones((1, 2), int), (1, 1), value=3.0).tolist() == [[3, 1, 1, 3]]
    with pytest.raises(TypeError, match=r"pad: value=0\.5 for input of dtype int64"):
        F.pad(np.ones((1, 2), int), (1, 1), value=0.5)


def test_one_hot():
    out = F.one_hot(np.array([[1], [0]]), 3)
    assert out.tolist() == [[[0, 1, 0]], [[1, 0, 0]]]
    assert out.dtype == np.int64
    assert F.one_hot(np.array([], int), 2).shape == (0, 2)
    assert isinstance(F.one_hot(fn.arange(2)), fn.Tensor)
    assert F.one_hot(np.array(1, np.uint8)).tolist() == [0, 1]
    for labels, classes, error, text in (
        (np.array([-1]), -1, ValueError, "one_hot: there is the class -1, expected 0 or more"),
        (np.array([3]), 3, ValueError, r"classes 3 \.\.\. 3 are not all in 0 \.\.\. 2"),
        (np.array([-1]), 3, ValueError, "not all in"),
        (np.array([1.0]), 3, TypeError, "one_hot: input has dtype float64, expected integers"),
        (np.array([], int), -1, ValueError, "num_classes must be given"),
    ):
        with pytest.raises(error, match=text):
            F.one_hot(labels, classes)


def test_dropout():
    fn.manual_seed(0)
    x = np.ones(10_000, f32)
    out = F.dropout(x, 0.3)
    assert set(np.unique(out)) == {0, f32(1 / 0.7)}
    assert abs((out == 0).mean() - 0.3) < 0.02
    assert F.dropout(x, 0.3, training=False) is x
    assert F.dropout(x, 0.0) is x
    bad = fn.tensor(np.array([1.0, np.nan, np.inf]), requires_grad=True)
    gone = F.dropout(bad, 1.0)
    gone.sum().backward()
    assert gone.tolist() == bad.grad.tolist() == [0, 0, 0]
    layer = nn.Dropout(0.5)
    fn.manual_seed(1)
    a, b = layer(x).numpy(), layer(x).numpy()
    fn.manual_seed(1)
    fn.set_num_threads(1)
    np.testing.assert_array_equal(layer(x).numpy(), a)
    assert (a != b).any()
    assert layer.eval()(x).tolist() == x.tolist()
    with pytest.raises(ValueError, match=r"dropout: p=-1, expected a probability"):
        F.dropout(x, -1)


def test_functions_give_arrays_for_arrays_and_tensors_for_tensors():
    x = values(2, 2, 4, 4)
    for function in (
        F.relu,
        F.sigmoid,
        F.silu,
        lambda x: F.softmax(x, 1),
        lambda x: F.log_softmax(x, -1),
        lambda x: F.max_pool2d(x, 2),
        lambda x: F.conv2d(x, np.ones((1, 2, 2, 2), f32)),
        lambda x: F.linear(x, np.ones((3, 4), f32)),
        lambda x: F.unfold(x, 2),
        lambda x: F.mse_loss(x, x),
        lambda x: F.cross_entropy(x, np.zeros((2, 4, 4), int)),
        F.flatten,
        F.dropout,
    ):
        array, tensor = function(x), function(fn.tensor(x, requires_grad=True))
        assert type(array) is np.ndarray
        assert isinstance(tensor, fn.Tensor)
        assert array.dtype == tensor.dtype == f32
        assert tensor.requires_grad
        with fn.no_grad():
            assert not function(fn.tensor(x, requires_grad=True)).requires_grad


def test_indices_of_pooling():
    x = values(1, 2, 6, 6)
    out, where = F.max_pool2d(x, 2, return_indices=True)
    assert where.dtype == np.int64
    flat = x.reshape(1, 2, 36)
    np.testing.assert_array_equal(
        np.take_along_axis(flat, where.reshape(1, 2, 9), 2), out.reshape(1, 2, 9)
    )
    tensor, also = nn.MaxPool2d(2, return_indices=True)(x)
    assert isinstance(also, fn.Tensor)
    np.testing.assert_array_equal(also.numpy(), where)
    np.testing.assert_array_equal(tensor.numpy(), out)


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "softmin"])
def test_softmax_needs_its_axis(name):
    with pytest.raises(TypeError, match="dim must be given"):
        getattr(F, name)(values(2, 3))


@pytest.mark.parametrize(
    "bad",
    [np.arange(3), np.array([True]), np.ones(2, np.float16), np.array(["a"]), np.ones(2, object)],
)
@pytest.mark.parametrize("name", ["relu", "sigmoid", "silu", "elu", "mish", "dropout", "tanh"])
def test_floats_are_demanded(name, bad):
    with pytest.raises(
        TypeError, match=rf"{name}: input has dtype .*, expected float32 or float64"
    ):
        getattr(F, name)(bad)


@pytest.mark.parametrize("name", ["sigmoid", "softplus", "hardswish"])
def test_arrays_are_demanded(name):
    with pytest.raises(
        TypeError, match=f"{name}: input must be a Tensor or a NumPy array, got list"
    ):
        getattr(F, name)([1.0])


def test_activations_far_out_give_no_warning_and_no_nan():
    x = np.array([-1e4, -100, -1e-30, 0, 1e-30, 100, 1e4], f32)
    for name in ("sigmoid", "logsigmoid", "softplus", "silu", "mish", "elu", "selu", "softsign",
                 "hardsigmoid", "hardswish", "tanh", "relu6", "leaky_relu"):  # fmt: skip
        t = fn.tensor(x, requires_grad=True)
        out = getattr(F, name)(t)
        out.sum().backward()
        assert np.isfinite(out.numpy()).all(), name
        assert np.isfinite(t.grad.numpy()).all(), name
        assert np.isnan(getattr(F, name)(np.array([np.nan], f32))).all(), name


def test_unfold_and_fold_as_modules():
    x = np.random.default_rng(0).standard_normal((2, 3, 6, 5))
    unfold, fold = nn.Unfold(3, padding=1, stride=2), nn.Fold((6, 5), 3, padding=1, stride=2)
    columns = unfold(x)
    np.testing.assert_array_equal(columns.numpy(), F.unfold(x, 3, 1, 1, 2))
    np.testing.assert_array_equal(
        fold(columns).numpy(), F.fold(columns.numpy(), (6, 5), 3, 1, 1, 2)
    )
    assert repr(unfold) == "Unfold(kernel_size=3, dilation=1, padding=1, stride=2)"
    assert repr(fold).startswith("Fold(output_size=(6, 5), kernel_size=3")
    np.testing.assert_allclose(nn.Softmin(1)(x).numpy(), F.softmax(-x, 1))


# ---- against torch -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["relu6", "leaky_relu", "elu", "selu", "silu", "mish", "softplus", "logsigmoid", "softsign",
     "hardtanh", "hardsigmoid", "hardswish", "glu"],
)  # fmt: skip
def test_activations_match_torch(name):
    torch = pytest.importorskip("torch")
    a = np.linspace(-8, 8, 66).reshape(3, 22)
    ours, theirs = fn.tensor(a, requires_grad=True), torch.tensor(a, requires_grad=True)
    y, z = getattr(F, name)(ours), getattr(torch.nn.functional, name)(theirs)
    np.testing.assert_allclose(y.numpy(), z.detach().numpy(), rtol=1e-12, atol=1e-14)
    y.square().sum().backward()
    (z * z).sum().backward()
    # torch's hardsigmoid multiplies with a float32 1/6.
    np.testing.assert_allclose(ours.grad.numpy(), theirs.grad.numpy(), rtol=1e-7, atol=1e-13)
