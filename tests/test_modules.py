"""Modules: registration, state, modes, layers, initialisation; and the functions behind them."""

import copy
import math
import pickle

import numpy as np
import pytest

import fusednn as fn
import fusednn.functional as F
from fusednn import nn

f32, f64 = np.float32, np.float64


def values(*shape, seed=0, dtype=f32):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3, padding=1)
        self.blocks = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8, bias=False)])
        self.head = nn.Sequential(nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3))
        self.scale = nn.Parameter(np.ones(1, f32))
        self.register_buffer("seen", np.zeros((), np.int64))
        self.register_buffer("scratch", np.zeros(2, f32), persistent=False)

    def forward(self, x):
        x = F.max_pool2d(self.conv(x), 2).flatten(1)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x) * self.scale


NAMES = [
    "scale",
    "conv.weight",
    "conv.bias",
    "blocks.0.weight",
    "blocks.0.bias",
    "blocks.1.weight",
    "head.2.weight",
    "head.2.bias",
]


# ---- registration --------------------------------------------------------------------------------


def test_names_of_parameters_buffers_and_modules():
    net = Net()
    assert [name for name, _ in net.named_parameters()] == NAMES
    assert [p.name for p in net.parameters()] == NAMES
    assert [name for name, _ in net.named_buffers()] == ["seen", "scratch"]
    assert [name for name, _ in net.named_children()] == ["conv", "blocks", "head"]
    assert [name for name, _ in net.named_modules()][:4] == ["", "conv", "blocks", "blocks.0"]
    assert len(list(net.modules())) == 9
    assert list(net.children()) == [net.conv, net.blocks, net.head]
    assert len(list(net.buffers())) == 2
    assert net.get_submodule("head.2") is net.head[2]
    assert net.get_submodule("") is net
    with pytest.raises(AttributeError, match=r"Net has no module 'head\.7'"):
        net.get_submodule("head.7")


def test_shared_parameters_come_once_but_are_saved_under_each_name():
    net = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    net[1].weight = net[0].weight
    assert [name for name, _ in net.named_parameters()] == ["0.weight"]
    assert len(list(net.named_parameters(remove_duplicate=False))) == 2
    assert list(net.state_dict()) == ["0.weight", "1.weight"]
    twice = nn.Sequential(net[0], net[0])
    assert len(list(twice.modules())) == 2
    assert list(twice.state_dict()) == ["0.weight", "1.weight"]


def test_attributes_register_and_unregister():
    m = nn.Module()
    m.p = nn.Parameter(np.zeros(2, f32))
    m.child = nn.ReLU()
    m.plain = 3
    m.tensor = fn.zeros(2)
    assert list(dict(m.named_parameters())) == ["p"]
    m.p = None
    assert m.p is None
    assert list(m.parameters()) == []
    m.p = nn.Parameter(np.ones(2, f32))
    assert list(m.state_dict()) == ["p"]
    del m.p, m.child
    assert not hasattr(m, "p")
    assert list(m.children()) == []
    assert m.plain == 3


def test_registration_errors():
    class Forgot(nn.Module):
        def __init__(self):
            self.layer = nn.ReLU()

    with pytest.raises(AttributeError, match=r"Forgot: call super\(\).__init__\(\) before setting"):
        Forgot()
    m = nn.Linear(2, 2)
    with pytest.raises(TypeError, match="weight is one of the parameters; it cannot become a int"):
        m.weight = 3
    with pytest.raises(TypeError, match="one of the modules"):
        nn.Sequential(nn.ReLU()).__setattr__("0", 3)
    with pytest.raises(ValueError, match=r"name 'a\.b' must be a string without a dot"):
        m.register_buffer("a.b", None)
    with pytest.raises(ValueError, match="Linear already has 'in_features'"):
        m.register_parameter("in_features", None)
    with pytest.raises(TypeError, match="'x' must be a Parameter or None, got Tensor"):
        m.register_parameter("x", fn.zeros(1))
    with pytest.raises(TypeError, match="buffer 'x' must be a Tensor, an array or None, got list"):
        m.register_buffer("x", [1.0])
    with pytest.raises(TypeError, match="Sequential: expected a Module, got function"):
        nn.Sequential(lambda x: x)
    with pytest.raises(NotImplementedError, match="Module has no forward"):
        nn.Module()(1)


def test_a_parameter_owns_its_memory():
    a = np.ones(3, f32)
    p = nn.Parameter(a)
    a[:] = 9
    assert p.tolist() == [1, 1, 1]
    assert not np.shares_memory(nn.Parameter(fn.from_numpy(a)).numpy(), a)
    assert p.requires_grad
    assert p.is_leaf
    assert repr(p) == "Parameter containing:\ntensor([1., 1., 1.], requires_grad=True)"
    assert not nn.Parameter(a, requires_grad=False).requires_grad
    with pytest.raises(TypeError, match="Parameter: data has dtype int64, expected float32"):
        nn.Parameter(np.arange(3))
    with pytest.raises(TypeError, match="must be a Tensor or an array, got list"):
        nn.Parameter([1.0])


# ---- state ---------------------------------------------------------------------------------------


def test_state_dict_holds_copies_under_torchs_names():
    net = Net()
    state = net.state_dict()
    assert sorted(state) == sorted([*NAMES, "seen"])
    assert all(type(value) is np.ndarray for value in state.values())
    state["scale"][:] = 5
    assert net.scale.tolist() == [1]


def test_load_state_dict_writes_into_the_same_parameters():
    a, b = Net(), Net()
    kept = b.conv.weight
    report = b.load_state_dict(a.state_dict())
    assert report.missing_keys == report.unexpected_keys == []
    assert b.conv.weight is kept
    for name, value in a.state_dict().items():
        np.testing.assert_array_equal(b.state_dict()[name], value)
    as_tensors = {name: fn.tensor(value) for name, value in a.state_dict().items()}
    Net().load_state_dict(as_tensors)
    wide = {k: v.astype(f64) if v.dtype == f32 else v for k, v in a.state_dict().items()}
    b.load_state_dict(wide)
    assert b.conv.weight.dtype == f32


def test_load_state_dict_lists_everything_wrong_and_changes_nothing():
    net = Net()
    before = net.state_dict()
    state = {name: value + 1 for name, value in before.items()}
    del state["scale"], state["blocks.0.bias"]
    state["extra"] = np.zeros(1)
    state["conv.bias"] = np.zeros(3, f32)
    state["seen"] = np.zeros((), f32)
    state["head.2.bias"] = [1.0]
    with pytest.raises(ValueError, match="load_state_dict: the state does not fit Net") as caught:
        net.load_state_dict(state)
    for part in (
        "missing: scale, blocks.0.bias",
        "unexpected: extra",
        "conv.bias has shape (3,), expected (2,)",
        "seen has dtype float32, expected int64",
        "head.2.bias is a list, expected an array",
    ):
        assert part in str(caught.value)
    for name, value in before.items():
        np.testing.assert_array_equal(net.state_dict()[name], value)


def test_load_state_dict_not_strict():
    net = Net()
    report = net.load_state_dict({"scale": np.full(1, 7, f32), "extra": np.zeros(1)}, strict=False)
    assert net.scale.tolist() == [7]
    assert report.unexpected_keys == ["extra"]
    assert "conv.weight" in report.missing_keys
    with pytest.raises(ValueError, match="mismatched: scale has shape"):
        net.load_state_dict({"scale": np.zeros(2, f32)}, strict=False)


def test_loading_never_writes_into_a_users_array():
    mine = np.zeros(2, f32)
    m = nn.Module()
    m.register_buffer("a", mine)
    m.register_buffer("b", fn.from_numpy(mine))
    m.load_state_dict({"a": np.ones(2, f32), "b": np.ones(2, f32)})
    assert mine.tolist() == [0, 0]
    assert m.b.tolist() == [1, 1]


def test_loading_counts_as_a_change_in_place():
    layer = nn.Linear(2, 2)
    y = layer(fn.ones(1, 2, requires_grad=True)).sum()
    layer.load_state_dict(layer.state_dict())
    with pytest.raises(RuntimeError, match="linear: a value that the gradient of linear needs"):
        y.backward()


def test_copies_of_modules():
    net = Net()
    for twin in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert twin.conv.weight is twin.conv._parameters["weight"]
        assert twin.conv.weight is not net.conv.weight
        assert isinstance(twin.conv.weight, nn.Parameter)
        assert twin.blocks[0] is twin.blocks._modules["0"]
        twin.scale.detach().zero_()
        assert net.scale.tolist() == [1]


# ---- modes, dtypes -------------------------------------------------------------------------------


def test_modes():
    net = Net()
    assert net.eval() is net
    assert not net.head[1].training
    net.train()
    assert net.head[1].training
    net.requires_grad_(False)
    assert not any(p.requires_grad for p in net.parameters())
    net.requires_grad_()
    net(values(2, 1, 4, 4)).sum().backward()
    assert all(p.grad is not None for p in net.parameters())
    net.zero_grad()
    assert all(p.grad is None for p in net.parameters())
    order = []
    net.head.apply(lambda m: order.append(type(m).__name__))
    assert order == ["ReLU", "Dropout", "Linear", "Sequential"]


def test_to():
    net = Net()
    weight = net.conv.weight
    net(values(1, 1, 4, 4)).sum().backward()
    assert net.double() is net
    assert net.conv.weight is weight
    assert weight.dtype == weight.grad.dtype == f64
    assert net.seen.dtype == np.int64
    assert net(values(1, 1, 4, 4, dtype=f64)).dtype == f64
    assert net.float().to("cpu").cpu().conv.weight.dtype == f32
    with pytest.raises(ValueError, match="to: device 'cuda' is not available"):
        net.to("cuda")
    with pytest.raises(TypeError, match="must be float32 or float64, got int64"):
        net.to(np.int64)


def test_modules_called_on_plain_arrays_give_tensors():
    image = values(2, 1, 8, 8)
    for module in (
        nn.Conv2d(1, 2, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Identity(),
        nn.Dropout(),
        nn.Sigmoid(),
        nn.Sequential(),
        Net(),
    ):
        out = module(image[:, :, :4, :4] if isinstance(module, Net) else image)
        assert isinstance(out, fn.Tensor), module
    labels = np.arange(3)
    assert nn.Identity()(labels) is labels

    class Two(nn.Module):
        def forward(self, x, *, mask):
            return x * mask.unsqueeze(0)

    assert Two()(values(2, 3), mask=np.ones(3, f32)).shape == (2, 3)


def test_repr():
    assert repr(Net()) == (
        "Net(\n"
        "  (conv): Conv2d(1, 2, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1))\n"
        "  (blocks): ModuleList(\n"
        "    (0): Linear(in_features=8, out_features=8, bias=True)\n"
        "    (1): Linear(in_features=8, out_features=8, bias=False)\n"
        "  )\n"
        "  (head): Sequential(\n"
        "    (0): ReLU()\n"
        "    (1): Dropout(p=0.5)\n"
        "    (2): Linear(in_features=8, out_features=3, bias=True)\n"
        "  )\n"
        ")"
    )
    assert repr(nn.Conv1d(4, 4, 3, 2, "same", 2, 4, False, "reflect")) == (
        "Conv1d(4, 4, kernel_size=(3,), stride=(2,), padding='same', dilation=(2,), groups=4, "
        "bias=False, padding_mode='reflect')"
    )


# ---- containers ----------------------------------------------------------------------------------


def test_sequential():
    s = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    assert len(s) == 3
    assert isinstance(s[-1], nn.Linear)
    assert isinstance(s[:2], nn.Sequential)
    assert len(s[:2]) == 2
    assert [type(m).__name__ for m in s] == ["Linear", "ReLU", "Linear"]
    s.append(nn.Tanh())
    s.insert(1, nn.Sigmoid())
    del s[2]
    assert [type(m).__name__ for m in s] == ["Linear", "Sigmoid", "Linear", "Tanh"]
    assert list(s._modules) == ["0", "1", "2", "3"]
    s[1] = nn.ReLU()
    assert isinstance(s[1], nn.ReLU)
    named = nn.Sequential({"a": nn.Linear(2, 2), "b": nn.ReLU()})
    assert list(named.state_dict()) == ["a.weight", "a.bias"]
    assert named(values(1, 2)).shape == (1, 2)
    assert nn.Sequential()(fn.ones(1)).tolist() == [1]


def test_module_list_and_dict():
    items = nn.ModuleList(nn.Linear(1, 1) for _ in range(3))
    items.extend([nn.ReLU()])
    assert len(items) == 4
    assert list(items.state_dict())[-1] == "2.bias"
    d = nn.ModuleDict({"a": nn.ReLU()})
    d["b"] = nn.Linear(1, 1)
    d.update({"c": nn.Tanh()})
    assert "b" in d
    assert list(d) == list(d.keys()) == ["a", "b", "c"]
    assert [name for name, _ in d.items()] == ["a", "b", "c"]
    assert len(list(d.values())) == len(d) == 3
    del d["a"]
    assert list(d.state_dict()) == ["b.weight", "b.bias"]
    with pytest.raises(TypeError, match="ModuleDict: expected a Module, got int"):
        d["x"] = 3


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


def test_one_hot():
    out = F.one_hot(np.array([[1], [0]]), 3)
    assert out.tolist() == [[[0, 1, 0]], [[1, 0, 0]]]
    assert out.dtype == np.int64
    assert F.one_hot(np.array([], int), 2).shape == (0, 2)
    assert isinstance(F.one_hot(fn.arange(2)), fn.Tensor)
    assert F.one_hot(np.array(1, np.uint8)).tolist() == [0, 1]
    for labels, classes, error, text in (
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


# ---- losses --------------------------------------------------------------------------------------


def test_cross_entropy_over_no_target():
    x = fn.tensor([[1.0, 2.0, 3.0]], requires_grad=True)
    target = np.array([-100])
    loss = F.cross_entropy(x, target)
    assert math.isnan(loss.item())
    loss.backward()
    assert x.grad.tolist() == [[0, 0, 0]]
    assert F.cross_entropy(x, target, reduction="sum").item() == 0
    assert F.cross_entropy(x, target, reduction="none").tolist() == [0]
    zero = F.cross_entropy(x, target, empty="zero")
    assert zero.item() == 0
    x.grad = None
    zero.backward()
    assert x.grad.tolist() == [[0, 0, 0]]
    empty = np.zeros((0, 3), f32)
    assert math.isnan(F.cross_entropy(empty, np.zeros(0, int)))
    assert F.cross_entropy(empty, np.zeros(0, int), empty="zero") == 0
    assert F.cross_entropy(empty, empty, empty="zero") == 0
    assert math.isnan(F.cross_entropy(empty, empty))
    with pytest.raises(ValueError, match="cross_entropy: empty='no', expected 'nan' or 'zero'"):
        F.cross_entropy(x, target, empty="no")


def test_class_weights_with_smoothing():
    loss = F.cross_entropy(
        np.array([[2.0, 0.0]]), np.array([0]), np.array([1.0, 16.0]), label_smoothing=0.1
    )
    assert loss == pytest.approx(1.822124, abs=1e-6)


def test_targets():
    x = np.zeros((2, 3))
    with pytest.raises(ValueError, match=r"-4.* out of bounds"):
        F.cross_entropy(x, np.array([0, -4]), ignore_index=-1)
    out = F.cross_entropy(x, np.array([255, 1]), ignore_index=255, reduction="none")
    assert out.tolist() == [0, pytest.approx(math.log(3))]
    assert F.cross_entropy(x[0], np.int64(2)) == pytest.approx(math.log(3))
    assert F.cross_entropy(x, fn.arange(2)) == pytest.approx(math.log(3))
    with pytest.raises(ValueError, match="cross_entropy: reduction='avg', expected 'none'"):
        F.cross_entropy(x, np.array([0, 1]), reduction="avg")
    with pytest.raises(ValueError, match=r"probabilities has shape \(2, 2\), expected \(2, 3\)"):
        F.cross_entropy(x, np.zeros((2, 2)))
    with pytest.raises(TypeError, match="target has dtype float32, expected float64 like input"):
        F.cross_entropy(x, np.zeros((2, 3), f32))
    with pytest.raises(ValueError, match="label_smoothing=2"):
        F.cross_entropy(x, x, label_smoothing=2)
    with pytest.raises(ValueError, match=r"weight has shape \(2,\), expected \(3,\)"):
        F.cross_entropy(x, x, np.zeros(2))


def test_losses_demand_one_shape():
    for name in ("mse_loss", "l1_loss", "huber_loss", "binary_cross_entropy_with_logits"):
        with pytest.raises(
            ValueError, match=rf"{name}: target has shape \(4,\), expected \(4, 1\)"
        ):
            getattr(F, name)(np.zeros((4, 1)), np.zeros(4))
        with pytest.raises(TypeError, match=f"{name}: target has dtype float32, expected float64"):
            getattr(F, name)(np.zeros(2), np.zeros(2, f32))
    assert math.isnan(F.mse_loss(np.zeros(0), np.zeros(0)))
    with pytest.raises(ValueError, match="huber_loss: delta=0"):
        F.huber_loss(np.zeros(2), np.zeros(2), delta=0)
    with pytest.raises(
        ValueError, match=r"pos_weight of shape \(3,\) does not broadcast|broadcast"
    ):
        F.binary_cross_entropy_with_logits(np.zeros(2), np.zeros(2), pos_weight=np.zeros(3))


def test_logits_far_out():
    x, t = np.array([-1e4, 1e4, 1e4]), np.array([0.0, 1.0, 0.0])
    out = F.binary_cross_entropy_with_logits(x, t, reduction="none")
    assert out.tolist() == [0, 0, 1e4]


def test_losses_as_modules():
    x, y = values(4, 3), np.array([0, 2, 1, 1])
    weight = np.array([1, 2, 3], f32)
    loss = nn.CrossEntropyLoss(weight, label_smoothing=0.1, ignore_index=1)
    assert isinstance(loss(x, y), fn.Tensor)
    assert loss(x, y).item() == F.cross_entropy(x, y, weight, label_smoothing=0.1, ignore_index=1)
    assert list(loss.state_dict()) == ["weight"]
    assert nn.NLLLoss()(x, y).item() == F.nll_loss(x, y)
    for module, function in (
        (nn.MSELoss(), F.mse_loss),
        (nn.L1Loss(), F.l1_loss),
        (nn.HuberLoss(), F.huber_loss),
        (nn.SmoothL1Loss(), F.smooth_l1_loss),
        (nn.BCEWithLogitsLoss(), F.binary_cross_entropy_with_logits),
    ):
        assert module(x, abs(x)).item() == function(x, abs(x))


# ---- initialisation ------------------------------------------------------------------------------


def test_default_initialisations():
    fn.manual_seed(0)
    layer = nn.Linear(400, 300)
    bound = 1 / 20
    for p in layer.parameters():
        a = p.numpy()
        assert abs(a).max() <= bound
        assert abs(a.std() - bound / math.sqrt(3)) < 0.1 * bound
    conv = nn.Conv2d(8, 16, 5, groups=2)
    assert abs(conv.weight.numpy()).max() <= 1 / math.sqrt(4 * 25)
    assert abs(conv.weight.numpy()).max() > 0.95 / math.sqrt(4 * 25)
    fn.manual_seed(0)
    again = nn.Linear(400, 300)
    np.testing.assert_array_equal(again.weight.numpy(), layer.weight.numpy())
    assert nn.Linear(0, 3).bias.tolist() == [0, 0, 0]


def test_init_functions():
    fn.manual_seed(0)
    w = fn.zeros(200, 100, requires_grad=True)
    init = nn.init
    for function, std, most in (
        (lambda: init.uniform_(w, -1, 3), 4 / math.sqrt(12), 3),
        (lambda: init.normal_(w, 0, 2), 2, 12),
        (lambda: init.trunc_normal_(w, 0, 1, -2, 2), 0.88, 2),
        (lambda: init.xavier_uniform_(w), math.sqrt(2 / 300), math.sqrt(6 / 300)),
        (lambda: init.xavier_normal_(w, 2), 2 * math.sqrt(2 / 300), 1),
        (lambda: init.kaiming_uniform_(w), math.sqrt(2 / 100), math.sqrt(6 / 100)),
        (lambda: init.kaiming_normal_(w, mode="fan_out", nonlinearity="relu"), 0.1, 1),
    ):
        assert function() is w
        assert w.numpy().std() == pytest.approx(std, rel=0.03)
        assert abs(w.numpy()).max() <= most
    assert w.requires_grad
    init.orthogonal_(w, gain=2)
    np.testing.assert_allclose(w.numpy().T @ w.numpy(), 4 * np.eye(100), atol=1e-4)
    assert init.constant_(w, 3).numpy().min() == 3
    assert init.zeros_(w).numpy().max() == 0
    assert init.ones_(w).numpy().min() == 1
    np.testing.assert_array_equal(init.eye_(fn.zeros(2, 3)).numpy(), np.eye(2, 3))
    for call, text in (
        (lambda: init.xavier_normal_(fn.zeros(3)), r"shape \(3,\) has no fan"),
        (lambda: init.kaiming_normal_(w, mode="in"), "mode='in', expected 'fan_in'"),
        (lambda: init.calculate_gain("swish"), "unknown nonlinearity 'swish'"),
        (lambda: init.eye_(fn.zeros(3)), "eye_: expected a matrix"),
        (lambda: init.trunc_normal_(w, 0, 1, 2, 1), "a=2 must be below b=1"),
        (lambda: init.trunc_normal_(w, 0, 1e-9, 2, 3), "too far out"),
        (lambda: init.orthogonal_(fn.zeros(3)), "expected 2 axes"),
    ):
        with pytest.raises(ValueError, match=text):
            call()


def test_dirac_hands_on_the_input():
    x = np.random.default_rng(0).standard_normal((2, 4, 7, 5)).astype(f32)
    for groups in (1, 2):
        conv = nn.Conv2d(4, 4, 3, padding=1, groups=groups, bias=False)
        nn.init.dirac_(conv.weight, groups)
        np.testing.assert_array_equal(conv(x).numpy(), x)
    assert nn.init.dirac_(fn.zeros(4, 2, 3)).numpy().sum() == 2
    with pytest.raises(ValueError, match="expected a convolution's weight of 3 to 5 axes"):
        nn.init.dirac_(fn.zeros(3, 3))
    with pytest.raises(ValueError, match=r"shape\[0\]=3 must be divisible by groups=2"):
        nn.init.dirac_(fn.zeros(3, 3, 3), 2)


def test_sparse_has_its_zeros_in_every_column():
    fn.manual_seed(0)
    w = nn.init.sparse_(fn.zeros(50, 20), 0.3, std=2).numpy()
    assert ((w == 0).sum(0) == 15).all()
    assert len({tuple(column) for column in (w == 0).T.tolist()}) > 15
    assert w[w != 0].std() == pytest.approx(2, rel=0.1)
    assert not nn.init.sparse_(fn.zeros(5, 2), 1).numpy().any()
    for call, text in (
        (lambda: nn.init.sparse_(fn.zeros(3), 0.1), "expected a matrix"),
        (lambda: nn.init.sparse_(fn.zeros(3, 3), 1.5), "sparsity=1.5, expected a fraction"),
    ):
        with pytest.raises(ValueError, match=text):
            call()


def test_forward_hooks():
    layer, log = nn.Linear(2, 2, bias=False), []
    nn.init.eye_(layer.weight)
    x = np.ones((1, 2), f32)
    first = layer.register_forward_pre_hook(lambda m, args: log.append((m, args[0].shape)))
    second = layer.register_forward_pre_hook(lambda m, args: args[0] * 3)
    third = layer.register_forward_hook(lambda m, args, out: log.append(out.tolist()))
    fourth = layer.register_forward_hook(lambda m, args, out: out + args[0])
    assert layer(x).tolist() == [[6, 6]]
    assert log == [(layer, (1, 2)), [[3, 3]]]
    fourth.remove()
    second.remove()
    assert layer(x).tolist() == [[1, 1]]
    third.remove()
    third.remove()
    first.remove()
    assert layer(x).tolist() == [[1, 1]]
    assert len(log) == 4
    # Another module has none, and a hook that is no function is refused.
    assert nn.Linear(2, 2)._hooks is None
    with pytest.raises(TypeError, match="must be callable, got int"):
        layer.register_forward_hook(3)
    # Gradients flow through what hooks return.
    layer.register_forward_hook(lambda m, args, out: out * 2)
    layer(x).sum().backward()
    assert layer.weight.grad.tolist() == [[2, 2], [2, 2]]


def test_parameters_and_buffers_by_name():
    model = nn.Sequential(nn.Linear(2, 3))
    model[0].register_buffer("count", np.zeros(1))
    assert model.get_parameter("0.weight") is model[0].weight
    assert model.get_buffer("0.count") is model[0].count
    for call, text in (
        (lambda: model.get_parameter("0.count"), "has no parameter '0.count'"),
        (lambda: model.get_parameter("1.weight"), "has no module '1'"),
        (lambda: model.get_buffer("weight"), "has no buffer 'weight'"),
    ):
        with pytest.raises(AttributeError, match=text):
            call()
    with pytest.raises(ValueError, match="device 'cuda' is not available"):
        model.cuda()


def test_lists_and_dictionaries_of_parameters():
    shared = nn.Parameter(np.ones(2))
    weights = nn.ParameterList([shared, np.zeros(3, f32)])
    weights.append(fn.zeros(1)).extend([np.ones(4)])
    assert len(weights) == 4
    assert weights[0] is shared
    assert weights[-1].shape == (4,)
    weights[1] = np.ones(5)
    assert [p.shape for p in weights] == [(2,), (5,), (1,), (4,)]
    assert [name for name, _ in weights.named_parameters()] == ["0", "1", "2", "3"]
    named = nn.ParameterDict({"a": shared, "b": np.ones(1)})
    named["c"] = np.ones(3)
    del named["b"]
    assert list(named) == list(named.keys()) == ["a", "c"]
    assert "c" in named
    assert len(named) == 2
    assert named["a"] is shared
    assert [name for name, _ in named.items()] == ["a", "c"]
    assert [p.shape for p in named.values()] == [(2,), (3,)]
    assert repr(named) == "ParameterDict(a: float64[2], c: float64[3])"
    assert repr(nn.ParameterList([shared])) == "ParameterList(float64[2])"
    owner = nn.Module()
    owner.weights = weights
    other = nn.Module()
    other.weights = nn.ParameterList([np.zeros(n) for n in (2, 5, 1, 4)])
    other.load_state_dict(owner.state_dict())
    assert other.weights[0].tolist() == [1, 1]
    with pytest.raises(TypeError, match="Parameter: data must be"):
        nn.ParameterList([3])


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


def test_binary_cross_entropy_of_probabilities():
    torch = pytest.importorskip("torch")
    random = np.random.default_rng(0)
    p, t, w = random.uniform(0, 1, (3, 4)), random.uniform(0, 1, (3, 4)), random.uniform(0, 2, 4)
    p[0, :2], t[0, :2] = [0, 1], [1, 1]
    for reduction in ("mean", "sum", "none"):
        x = fn.tensor(p, requires_grad=True)
        out = F.binary_cross_entropy(x, t, w, reduction=reduction)
        y = torch.tensor(p, requires_grad=True)
        expected = torch.nn.functional.binary_cross_entropy(
            y, torch.tensor(t), torch.tensor(w), reduction=reduction
        )
        np.testing.assert_allclose(out.numpy(), expected.detach().numpy(), rtol=1e-12)
        out.sum().backward()
        expected.sum().backward()
        # torch's guard against 0 is a float32 number
        np.testing.assert_allclose(x.grad.numpy(), y.grad.numpy(), rtol=1e-7)
    inside = random.uniform(0.1, 0.9, (3, 4))
    assert fn.testing.gradcheck(
        lambda a, b: F.binary_cross_entropy(a, b, w), (inside, random.uniform(0, 1, (3, 4)))
    )
    assert nn.BCELoss(reduction="sum")(np.array([1.0]), np.array([0.0])) == 100
    assert np.isnan(F.binary_cross_entropy(np.zeros(0), np.zeros(0)))
    with pytest.raises(ValueError, match=r"input has values from -0\.1 to 0\.5, expected \[0, 1\]"):
        F.binary_cross_entropy(np.array([-0.1, 0.5]), np.zeros(2))
    with pytest.raises(ValueError, match="expected \\[0, 1\\]"):
        F.binary_cross_entropy(np.array([np.nan]), np.zeros(1))
    with pytest.raises(ValueError, match=r"weight of shape \(3,\) does not broadcast to \(2,\)"):
        F.binary_cross_entropy(np.zeros(2), np.zeros(2), np.ones(3))


def test_vectors_of_parameters():
    layer = nn.Linear(2, 3)
    vector = nn.utils.parameters_to_vector(layer.parameters())
    assert vector.requires_grad
    nn.utils.vector_to_parameters(np.arange(9, dtype=f32), layer.parameters())
    assert layer.bias.tolist() == [6, 7, 8]
    with pytest.raises(ValueError, match=r"vec has shape \(8,\), expected \(9,\)"):
        nn.utils.vector_to_parameters(np.zeros(8, f32), layer.parameters())


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


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_losses_match_torch(reduction):
    torch = pytest.importorskip("torch")
    TF = torch.nn.functional
    a, b = values(4, 3, 5, dtype=f64), abs(values(4, 3, 5, seed=1, dtype=f64)) % 1
    labels = np.random.default_rng(2).integers(0, 3, (4, 5))
    labels[0, 0] = 1
    weight = np.array([0.5, 2.0, 3.0])
    o = {"reduction": reduction}
    cases = [
        (F.mse_loss, TF.mse_loss, b, o),
        (F.l1_loss, TF.l1_loss, b, o),
        (F.huber_loss, TF.huber_loss, b, o),
        (F.smooth_l1_loss, TF.smooth_l1_loss, b, o),
        (F.binary_cross_entropy_with_logits, TF.binary_cross_entropy_with_logits, b, o),
        (F.cross_entropy, TF.cross_entropy, labels, o),
        (F.cross_entropy, TF.cross_entropy, labels, {**o, "ignore_index": 1, "weight": weight}),
        (
            F.cross_entropy,
            TF.cross_entropy,
            labels,
            {**o, "label_smoothing": 0.3, "weight": weight},
        ),
        (F.cross_entropy, TF.cross_entropy, b, {**o, "label_smoothing": 0.3, "weight": weight}),
        (F.nll_loss, TF.nll_loss, labels, {**o, "ignore_index": 2, "weight": weight}),
    ]
    for ours, theirs, target, options in cases:
        x, t = fn.tensor(a, requires_grad=True), torch.tensor(a, requires_grad=True)
        wrapped = {
            k: torch.tensor(v) if isinstance(v, np.ndarray) else v for k, v in options.items()
        }
        y, z = ours(x, target, **options), theirs(t, torch.tensor(target), **wrapped)
        np.testing.assert_allclose(y.numpy(), z.detach().numpy(), rtol=1e-12)
        (y * y).sum().backward()
        (z * z).sum().backward()
        np.testing.assert_allclose(x.grad.numpy(), t.grad.numpy(), rtol=1e-11, atol=1e-14)


def test_weights_move_to_and_from_torch():
    torch = pytest.importorskip("torch")

    def build(m):
        return m.Sequential(
            m.Conv2d(2, 4, 3, padding=1, stride=2),
            m.ReLU(),
            m.MaxPool2d(2, ceil_mode=True),
            m.Flatten(),
            m.Linear(16, 5),
        )

    ours, theirs = build(nn), build(torch.nn)
    ours.load_state_dict({k: v.numpy() for k, v in theirs.state_dict().items()})
    x = values(3, 2, 7, 7)
    y, z = ours(x), theirs(torch.tensor(x))
    np.testing.assert_allclose(y.numpy(), z.detach().numpy(), rtol=1e-4, atol=1e-5)
    y.square().sum().backward()
    (z * z).sum().backward()
    for (name, p), q in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        np.testing.assert_allclose(
            p.grad.numpy(), q.grad.numpy(), rtol=1e-3, atol=1e-4, err_msg=name
        )
    theirs.load_state_dict({k: torch.tensor(v) for k, v in ours.state_dict().items()})
