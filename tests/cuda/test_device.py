"""Tensors, modules and the glue around kernels on a GPU, beside the CPU."""

from __future__ import annotations

import copy

import numpy as np
import pytest

import fusednn as fn
import fusednn.functional as F
from fusednn import nn

RNG = np.random.default_rng(0)
X = RNG.standard_normal((3, 4)).astype("float32")
Y = RNG.standard_normal((3, 4)).astype("float32")


def both(function, *arrays):
    """Results and gradients of a function of Tensors, on the CPU and on the GPU, must be equal."""
    outs, grads = [], []
    for device in ("cpu", "cuda"):
        leaves = [fn.tensor(a, requires_grad=a.dtype.kind == "f", device=device) for a in arrays]
        out = function(*leaves)
        assert out.device == leaves[0].device
        if out.requires_grad:
            weights = np.linspace(1, 2, out.numel(), dtype=out.dtype).reshape(out.shape)
            out.backward(fn.tensor(weights, device=device))
        outs.append(out.cpu().detach().numpy())
        grads.append([None if x.grad is None else x.grad.cpu().numpy() for x in leaves])
        for leaf in leaves:
            assert leaf.grad is None or leaf.grad.device == leaf.device
    np.testing.assert_allclose(outs[1], outs[0], rtol=1e-5, atol=1e-6)
    for mine, expected in zip(grads[1], grads[0], strict=True):
        assert (mine is None) == (expected is None)
        if mine is not None:
            np.testing.assert_allclose(mine, expected, rtol=1e-5, atol=1e-6)


OPS = {
    "add": lambda x, y: x + y * 2 - 1,
    "div": lambda x, y: x / (y * y + 1),
    "rdiv": lambda x, y: 1 / (x * x + 1),
    "pow": lambda x, y: (abs(x) + 1) ** y,
    "square": lambda x, y: x**2,
    "broadcast": lambda x, y: x[:1] * y + y[:, :1],
    "exp": lambda x, y: x.exp() + abs(y),
    "clamp": lambda x, y: x.clamp(-0.5, 0.5),
    "where": lambda x, y: fn.where(x > 0, x, y),
    "maximum": lambda x, y: fn.maximum(x, y),
    "masked_fill": lambda x, y: x.masked_fill(y > 0, 3.0),
    "sum": lambda x, y: x.sum(),
    "sum of an axis": lambda x, y: x.sum(1) + y.mean(1),
    "var": lambda x, y: x.var(0),
    "std": lambda x, y: x.std(),
    "norm": lambda x, y: x.norm(),
    "logsumexp": lambda x, y: x.logsumexp(1),
    "prod": lambda x, y: x.prod(1),
    "max": lambda x, y: x.max(),
    "max of an axis": lambda x, y: x.max(1).values,
    "amin": lambda x, y: x.amin(0),
    "cumsum": lambda x, y: x.cumsum(1),
    "reshape": lambda x, y: x.reshape(2, 6).T.flatten(),
    "expand": lambda x, y: x[:, None].expand(3, 2, 4) * 2,
    "flip": lambda x, y: x.flip(0) * y,
    "repeat": lambda x, y: x.repeat(2, 1),
    "cat": lambda x, y: fn.cat([x, y], 1),
    "stack": lambda x, y: fn.stack([x, y]),
    "slice": lambda x, y: x[1:, ::2] * 3,
    "rows": lambda x, y: fn.stack([x[0], x[2], x[0] * y[1]]),
    "gather": lambda x, y: x[[2, 0, 2]] * y[0],
    "mask": lambda x, y: x[x > 0],
    "two indices": lambda x, y: x[[0, 0, 1], [1, 1, 2]],
    "sort": lambda x, y: x.sort(1).values,
    "topk": lambda x, y: x.topk(2).values,
    "tril": lambda x, y: x.tril(),
    "pad": lambda x, y: F.pad(x, (1, 2), value=3.0) + F.pad(y, (2, 1), "reflect"),
    "setitem": lambda x, y: assigned(x * 1, y),
    "to": lambda x, y: x.to("float64") * y.double(),
    "relu": lambda x, y: x.relu().tanh().sigmoid(),
    "softmax": lambda x, y: x.softmax(1) * y.log_softmax(0),
    "mse": lambda x, y: F.mse_loss(x, y),
    "huber": lambda x, y: F.huber_loss(x, y),
    "bce": lambda x, y: F.binary_cross_entropy_with_logits(x, y.sigmoid()),
    "soft": lambda x, y: F.cross_entropy(x, y.softmax(1), label_smoothing=0.1),
    "softsign": lambda x, y: F.softsign(x) + F.glu(y, 1).sum(),
    "matmul": lambda x, y: x @ y.T,
    "norm pool": lambda x, y: F.avg_pool1d(F.layer_norm(x, (4,))[None], 2),
}


def assigned(x, y):
    x[1] = y[0]
    x[:, 0] = 2.0
    return x


@pytest.mark.parametrize("name", OPS)
def test_ops(name):
    both(OPS[name], X, Y)


def test_moving():
    x = fn.tensor([1.0, 2.0], requires_grad=True)
    assert x.device == "cpu" and x.cpu() is x and not x.is_cuda
    y = x.cuda()
    assert y.device == "cuda:0" and y.is_cuda and y.cuda() is y and y.to("cuda:0") is y
    assert repr(y.detach()) == "tensor([1., 2.], device='cuda:0')"
    (y * y).sum().backward()
    assert x.grad.device == "cpu" and x.grad.tolist() == [2.0, 4.0]
    z = x.to("cuda", "float64")
    assert z.dtype == "float64" and z.device == "cuda:0"
    z.sum().backward()
    assert x.grad.tolist() == [3.0, 5.0]
    assert x.to(y).device == "cuda:0" and y.to(x).device == "cpu"
    assert y.tolist() == [1.0, 2.0] and y[1].item() == 2.0 and float(y[0]) == 1.0
    with pytest.raises(TypeError, match=r"numpy: the tensor is on cuda:0; copy it to the CPU"):
        y.numpy()
    with pytest.raises(TypeError, match="numpy: the tensor is on cuda:0"):
        np.asarray(y)


def test_devices_that_are_not_here():
    x = fn.ones(1)
    for name in ("cuda:7", "cuda:x", "gpu"):
        with pytest.raises((ValueError, TypeError)):
            x.to(device=name)
    with pytest.raises(ValueError, match="to: device 'cuda:7' is not available: "):
        x.to("cuda:7")
    with pytest.raises(ValueError, match="zeros: device 'gpu', expected 'cpu', 'cuda' or 'cuda:N'"):
        fn.zeros(2, device="gpu")


def test_two_gpus():
    a, b = fn.ones(2, device="cuda:0"), fn.ones(2, device="cuda:1")
    assert (a + b.to("cuda:0")).tolist() == [2.0, 2.0]
    with pytest.raises(ValueError, match="add: input is on cuda:0, other on cuda:1; nothing is"):
        a + b


@pytest.mark.parametrize(
    "op",
    [
        lambda x, y: x + y,
        lambda x, y: y - x,
        lambda x, y: x * y.numpy(),
        lambda x, y: x == y,
        lambda x, y: fn.where(x > 0, x, y),
        lambda x, y: fn.cat([x, y]),
        lambda x, y: fn.maximum(x, y),
        lambda x, y: x @ y,
        lambda x, y: x.copy_(y),
        lambda x, y: x[np.array([0])],
        lambda x, y: F.mse_loss(x, y),
        lambda x, y: F.prelu(x, y[:1]),
        lambda x, y: setattr(x, "grad", y),
        lambda x, y: nn.Linear(2, 2)(x),
    ],
)
def test_devices_do_not_mix(op):
    with pytest.raises(ValueError, match=r"on (cuda:0|the CPU|cpu)"):
        op(fn.ones(2, device="cuda"), fn.ones(2))


def test_new_tensors(xp):
    assert fn.tensor([1, 2], device="cuda").device == "cuda:0"
    for made in (
        fn.zeros(2, 3, device="cuda"),
        fn.ones(2, 3, device="cuda"),
        fn.full((2, 3), 2.0, device="cuda"),
        fn.rand(2, 3, device="cuda"),
        fn.randn(2, 3, device="cuda"),
    ):
        assert made.device == "cuda:0" and made.shape == (2, 3) and made.dtype == "float32"
        assert fn.zeros_like(made).device == "cuda:0"
        assert fn.ones_like(made, device="cpu").device == "cpu"
    assert fn.arange(3, device="cuda").tolist() == [0, 1, 2]
    for draw in (fn.rand, fn.randn):
        fn.manual_seed(5)
        expected = draw(7)
        fn.manual_seed(5)
        assert draw(7, device="cuda").tolist() == expected.tolist()
    array = xp.asarray(X)
    shared, copied = fn.from_dlpack(array), fn.tensor(array)
    array[...] = xp.asarray(Y)
    np.testing.assert_array_equal(shared.cpu().numpy(), Y)
    np.testing.assert_array_equal(copied.cpu().numpy(), X)
    assert fn.tensor(array, device="cpu").device == "cpu"
    np.testing.assert_array_equal(xp.asnumpy(xp.from_dlpack(fn.tensor(array))), Y)


def test_random_numbers_are_the_same_on_both():
    results = []
    for device in ("cpu", "cuda"):
        fn.manual_seed(3)
        x = fn.ones(4, 9, device=device, requires_grad=True)
        y = F.dropout(x, 0.4)
        y.sum().backward()
        z = fn.zeros(5, device=device).normal_()
        w = nn.init.kaiming_uniform_(fn.zeros(3, 5, device=device))
        results.append([one.cpu().detach().numpy() for one in (y, x.grad, z, w)])
    for mine, expected in zip(*results, strict=True):
        np.testing.assert_array_equal(mine, expected)


def test_dropped_elements_are_not_looked_at(xp):
    x = np.full(100, np.nan, "float32")
    assert 20 < np.isnan(xp.asnumpy(F.dropout(xp.asarray(x), 0.5))).sum() < 80


def test_in_place():
    x = fn.zeros(3, device="cuda")
    x += 1
    x[0] = 5.0
    x.mul_(fn.full((3,), 2.0, device="cuda")).clamp_(max=9)
    assert x.tolist() == [9.0, 2.0, 2.0]
    with fn.no_grad():
        x.fill_(0).copy_(fn.arange(3.0, device="cuda"))
    assert x.tolist() == [0.0, 1.0, 2.0]
    y = fn.ones(2, device="cuda", requires_grad=True)
    z = (y * 2).exp()
    z += 1
    with pytest.raises(RuntimeError, match="was changed in place"):
        z.sum().backward()


def test_leaves_own_their_gradients():
    x = fn.ones(2, 3, device="cuda", requires_grad=True)
    x.reshape(6).backward(fn.ones(6, device="cuda"))
    before = x.grad
    x.reshape(3, 2).T.sum().backward()
    assert x.grad is before and x.grad.tolist() == [[2.0] * 3] * 2
    handle = x.register_hook(lambda grad: grad * 10)
    x.sum().backward()
    handle.remove()
    assert x.grad.tolist() == [[12.0] * 3] * 2


def test_modules():
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Dropout(0.0))
    twin = copy.deepcopy(model).cuda()
    assert all(p.device == "cuda:0" for p in twin.parameters())
    assert all(b.device == "cuda:0" for b in twin.buffers())
    out, expected = twin(fn.tensor(X, device="cuda")), model(X)
    np.testing.assert_allclose(out.cpu().detach().numpy(), expected.detach().numpy(), atol=1e-5)
    state = twin.state_dict()
    assert all(isinstance(array, np.ndarray) for array in state.values())
    np.testing.assert_allclose(state["1.running_mean"], model.state_dict()["1.running_mean"], 1e-4)
    twin.load_state_dict(model.state_dict())
    assert twin[0].weight.device == "cuda:0"
    again = copy.deepcopy(twin)
    assert again[0].weight.device == "cuda:0"
    twin(fn.tensor(X, device="cuda")).sum().backward()
    fn.optim.clip_grad_norm_(twin.parameters(), 1e-3)
    fn.optim.clip_grad_value_(twin.parameters(), 1e-4)
    twin.to("cpu", "float64")
    assert twin[0].weight.dtype == "float64" and twin[0].weight.device == "cpu"
    assert twin[0].weight.grad.device == "cpu" and twin[0].weight.grad.dtype == "float64"


def test_modules_take_the_arrays_of_the_gpu(xp):
    layer = nn.ReLU()
    out = layer(xp.asarray(X))
    assert isinstance(out, fn.Tensor) and out.device == "cuda:0"


def test_checkpoints(tmp_path):
    from fusednn.io import load_checkpoint, save_checkpoint

    model = nn.BatchNorm1d(4).cuda()
    optimizer = fn.optim.Adam(model.parameters(), lr=0.1)
    model(fn.tensor(X, device="cuda")).sum().backward()
    optimizer.step()
    save_checkpoint(tmp_path / "one.safetensors", model=model, optimizer=optimizer)
    other = nn.BatchNorm1d(4)
    second = fn.optim.Adam(other.parameters(), lr=0.1)
    load_checkpoint(tmp_path / "one.safetensors", model=other, optimizer=second)
    for name, value in model.state_dict().items():
        np.testing.assert_array_equal(other.state_dict()[name], value)
    for name, entry in optimizer.state_dict()["state"].items():
        for key, value in entry.items():
            np.testing.assert_array_equal(second.state_dict()["state"][name][key], value)
