"""Modules: registration, state, modes, containers, hooks."""

import copy
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


def test_parts_of_containers_lose_nothing():
    layers = [nn.Linear(1, 2), nn.ReLU(), nn.Linear(2, 3), nn.Tanh()]
    whole = nn.Sequential(*layers)
    part = whole[1:3]
    assert list(part._modules) == ["1", "2"]  # their state fits the whole one's
    last = nn.Sigmoid()
    assert list(part.append(last)) == [*layers[1:3], last]
    named = nn.Sequential({"1": layers[1]})
    assert list(named.append(layers[3])) == [layers[1], layers[3]]
    part = nn.ModuleList(layers)[2:]
    assert list(part._modules) == ["0", "1"]
    assert list(part.append(last)) == [*layers[2:], last]
    longer = whole + [last]  # noqa: RUF005
    assert list(longer) == [*layers, last]
    assert len(whole) == 4
    whole += whole
    assert list(whole) == layers * 2
    assert whole.pop() is layers[3]
    assert whole.pop(0) is layers[0]
    assert len(whole) == 6
    assert whole.insert(1, last)[1] is last
    for call in (lambda: whole[7], lambda: whole[-8], lambda: whole.__setitem__(9, last)):
        with pytest.raises(IndexError, match=r"Sequential: index .* is out of range of 7"):
            call()


def test_dictionaries_of_modules_lose_and_take_modules():
    a, b = nn.ReLU(), nn.Tanh()
    modules = nn.ModuleDict([("a", a)])
    modules.update({"b": b})
    assert modules.pop("a") is a
    assert list(modules) == ["b"]
    modules.clear()
    assert len(modules) == 0
    with pytest.raises(KeyError):
        modules.pop("a")


def test_buffers_may_become_persistent_and_back():
    module = nn.Module()
    module.register_buffer("b", np.zeros(2), persistent=False)
    assert not module.state_dict()
    module.register_buffer("b", np.ones(2))
    assert list(module.state_dict()) == ["b"]
    module.register_buffer("b", np.ones(2), persistent=False)
    del module.b
    module.register_buffer("b", np.ones(2))
    assert list(module.state_dict()) == ["b"]


def test_shared_modules_under_each_of_their_names():
    layer = nn.Linear(2, 2)
    model = nn.Sequential(layer, nn.ReLU(), layer)
    assert [name for name, _ in model.named_modules()] == ["", "0", "1"]
    names = [name for name, _ in model.named_modules(remove_duplicate=False)]
    assert names == ["", "0", "1", "2"]
    assert [name for name, _ in model.named_parameters()] == ["0.weight", "0.bias"]
    names = [name for name, _ in model.named_parameters(remove_duplicate=False)]
    assert names == list(model.state_dict())
    assert layer.weight.name == "0.weight"


@pytest.mark.parametrize("state", [None, [1], 3, "weights"])
def test_what_is_no_state_is_refused(state):
    with pytest.raises(TypeError, match="load_state_dict: expected a mapping of names to arrays"):
        nn.Linear(2, 2).load_state_dict(state)


def test_states_that_would_lose_values_are_refused():
    layer = nn.Linear(2, 1)
    before = layer.state_dict()
    good = {"weight": np.zeros((1, 2)), "bias": np.zeros(1)}
    for bad, text in (
        (
            {**good, "weight": np.array([[1e39, 0]])},
            "weight has values of float64 that",
        ),
        ({**good, 0: np.zeros(1)}, "unexpected: 0"),
        ({**good, "bias": [0.0]}, "bias is a list, expected an array"),
    ):
        with pytest.raises(ValueError, match=text):
            layer.load_state_dict(bad)
    assert all((layer.state_dict()[name] == before[name]).all() for name in before)
    layer.load_state_dict({**good, "weight": np.array([[np.inf, np.nan]], ">f8")})
    assert np.isinf(layer.weight.numpy()[0, 0])


def test_states_of_torch_load_as_they_are():
    torch = pytest.importorskip("torch")
    theirs = torch.nn.Linear(3, 2)
    ours = nn.Linear(3, 2)
    ours.load_state_dict(theirs.state_dict())
    np.testing.assert_array_equal(ours.weight.numpy(), theirs.weight.detach().numpy())
    with pytest.raises(ValueError, match="weight is a Tensor, expected an array or a Tensor"):
        ours.load_state_dict(theirs.bfloat16().state_dict())


# ---- hooks, names, vectors -----------------------------------------------------------------------


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


def test_vectors_of_parameters():
    layer = nn.Linear(2, 3)
    vector = nn.utils.parameters_to_vector(layer.parameters())
    assert vector.requires_grad
    nn.utils.vector_to_parameters(np.arange(9, dtype=f32), layer.parameters())
    assert layer.bias.tolist() == [6, 7, 8]
    with pytest.raises(ValueError, match=r"vec has shape \(8,\), expected \(9,\)"):
        nn.utils.vector_to_parameters(np.zeros(8, f32), layer.parameters())
    for bad in ([0.0] * 9, np.zeros(9, int)):
        with pytest.raises(TypeError, match="vector_to_parameters: vec"):
            nn.utils.vector_to_parameters(bad, layer.parameters())


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
