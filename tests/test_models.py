"""Networks: shapes, names that fit torch's, training, folded normalisation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fusednn as fn
import fusednn.functional as F
from fusednn import models, nn, optim

f32 = np.float32


def values(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(f32)


def stirred(net: Any) -> Any:
    """The net with statistics and scales that are not 0 and 1, in evaluation mode."""
    rng = np.random.default_rng(5)
    for module in net.modules():
        if isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d)):
            shape = module.num_features
            module.weight._data[:] = rng.uniform(0.5, 1.5, shape)
            module.bias._data[:] = rng.standard_normal(shape) / 3
            module.running_mean._data[:] = rng.standard_normal(shape) / 3
            module.running_var._data[:] = rng.uniform(0.5, 2, shape)
    return net.eval()


# ---- folding -------------------------------------------------------------------------------------


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("affine", [True, False])
def test_fuse_conv_bn(bias, affine):
    for conv, bn, shape in (
        (nn.Conv1d(3, 4, 3, bias=bias), nn.BatchNorm1d(4, affine=affine), (2, 3, 9)),
        (nn.Conv2d(4, 6, 3, 2, 1, groups=2, bias=bias), nn.BatchNorm2d(6, affine=affine),
         (2, 4, 7, 8)),
        (nn.Conv3d(2, 3, 2, bias=bias), nn.BatchNorm3d(3, affine=affine), (1, 2, 4, 4, 4)),
        (nn.Linear(5, 3, bias=bias), nn.BatchNorm1d(3, affine=affine), (7, 5)),
    ):  # fmt: skip
        bn(conv(values(*shape)))  # statistics that are not 0 and 1
        bn.eval()
        x = values(*shape, seed=1)
        fused = nn.utils.fuse_conv_bn(conv, bn)
        np.testing.assert_allclose(fused(x).numpy(), bn(conv(x)).numpy(), rtol=1e-4, atol=1e-5)
        assert type(fused) is type(conv)
        assert (conv.bias is not None) == bias


def test_fuse_refuses():
    conv = nn.Conv2d(3, 4, 3)
    with pytest.raises(ValueError, match="bn must be in evaluation mode"):
        nn.utils.fuse_conv_bn(conv, nn.BatchNorm2d(4))
    with pytest.raises(ValueError, match="with running statistics"):
        nn.utils.fuse_conv_bn(conv, nn.BatchNorm2d(4, track_running_stats=False).eval())
    with pytest.raises(ValueError, match="conv gives 4 channels, bn takes 5"):
        nn.utils.fuse_conv_bn(conv, nn.BatchNorm2d(5).eval())
    with pytest.raises(TypeError, match="got ReLU and BatchNorm2d"):
        nn.utils.fuse_conv_bn(nn.ReLU(), nn.BatchNorm2d(4).eval())


def test_fuse_modules():
    net = stirred(models.VGG(plan=((4, 6), (8,)), hidden=(5,)))
    fused = nn.utils.fuse_modules(net)
    assert not any(isinstance(m, nn.BatchNorm2d) for m in fused.modules())
    assert sum(isinstance(m, nn.BatchNorm2d) for m in net.modules()) == 3
    x = values(2, 3, 8, 8)
    np.testing.assert_allclose(fused(x).numpy(), net(x).numpy(), rtol=1e-4, atol=1e-5)
    for net in (models.resnet20(), models.ResNet(models.Bottleneck, (1, 2), widths=(4, 8))):
        stirred(net)
        fused = net.fused()
        assert not any(isinstance(m, nn.BatchNorm2d) for m in fused.modules())
        x = values(2, 3, 32, 32)
        expected = net(x).numpy()
        scale = np.abs(expected).max()
        np.testing.assert_allclose(fused(x).numpy(), expected, rtol=1e-4, atol=1e-5 * scale)


def test_sequential_takes_the_relu_along():
    """The same numbers as layer by layer, gradient too; and a hook still sees what lies between."""
    bn, relu = nn.BatchNorm2d(3), nn.ReLU()
    net = nn.Sequential(nn.Conv2d(2, 3, 3), bn, relu, nn.BatchNorm2d(3), nn.ReLU(), nn.ReLU())
    x = fn.tensor(values(2, 2, 7, 7), requires_grad=True)
    y = net(x)
    y.sum().backward()
    grad = x.grad.numpy().copy()
    x.grad = None
    out: Any = x
    for layer in net:
        out = layer(out)
    out.sum().backward()
    np.testing.assert_array_equal(out.numpy(), y.numpy())
    np.testing.assert_allclose(x.grad.numpy(), grad, rtol=1e-5, atol=1e-6)
    seen: list[Any] = []
    handle = bn.register_forward_hook(lambda module, args, out: seen.append(out.numpy()))
    np.testing.assert_array_equal(net(x).numpy(), y.numpy())
    assert (seen[0] < 0).any()
    handle.remove()
    relu.register_forward_pre_hook(lambda module, args: seen.append(args[0].numpy()))
    net(x)
    assert (seen[1] < 0).any()


def test_a_norm_of_ones_own_keeps_its_signature():
    class Doubled(nn.BatchNorm1d):
        def forward(self, input: Any) -> Any:  # type: ignore[override]
            return super().forward(input) * 2

    x = values(5, 3)
    y = nn.Sequential(Doubled(3), nn.ReLU())(x).numpy()
    np.testing.assert_allclose(y, np.maximum(nn.BatchNorm1d(3)(x).numpy() * 2, 0), rtol=1e-6)


# ---- networks ------------------------------------------------------------------------------------


def count(net: Any) -> int:
    return sum(p.numpy().size for p in net.parameters())


def test_sizes_are_the_papers():
    assert count(models.resnet18()) == 11_689_512
    assert count(models.resnet34()) == 21_797_672
    assert count(models.resnet50()) == 25_557_032
    assert count(models.resnet20()) == 272_474
    assert count(models.VGG(plan=((8,),), batch_norm=False)) == 27 * 8 + 8 + 80 + 10


def test_names_are_torchvisions():
    names = list(models.resnet18().state_dict())
    assert names[:6] == ["conv1.weight", "bn1.weight", "bn1.bias", "bn1.running_mean",
                         "bn1.running_var", "bn1.num_batches_tracked"]  # fmt: skip
    assert "layer2.0.downsample.1.running_var" in names
    assert names[-2:] == ["fc.weight", "fc.bias"]
    assert len(names) == 122
    assert len(models.resnet50().state_dict()) == 320
    vgg = models.VGG(plan=((4,), (8,)), batch_norm=False, hidden=(6,))
    assert list(vgg.state_dict()) == [
        "features.0.weight", "features.0.bias", "features.3.weight", "features.3.bias",
        "classifier.0.weight", "classifier.0.bias", "classifier.3.weight", "classifier.3.bias",
    ]  # fmt: skip


def test_shapes():
    assert models.resnet18(7)(values(1, 3, 64, 64)).shape == (1, 7)
    net = models.ResNet(models.BasicBlock, (1,), channels=1, classes=4, widths=(8,))
    assert net(values(2, 1, 20, 20)).shape == (2, 4)
    with pytest.raises(ValueError, match="differ in length"):
        models.ResNet(models.BasicBlock, (1, 2), widths=(8,))


@pytest.mark.parametrize(
    "make",
    [
        lambda: models.VGG(plan=((8,), (16,)), classes=3),
        lambda: models.ResNet(
            models.BasicBlock, (1, 1), widths=(8, 16), classes=3, small_images=True
        ),
    ],
)
def test_networks_learn(make):
    """Which of three patches is bright."""
    fn.manual_seed(0)
    rng = np.random.default_rng(0)
    target = rng.integers(0, 3, 96)
    x = rng.standard_normal((96, 3, 12, 12)).astype(f32)
    x[np.arange(96), target, 2:6, 2:6] += 2
    net = make()
    optimizer = optim.Adam(net.parameters(), lr=1e-2)
    for _ in range(15):
        optimizer.zero_grad()
        F.cross_entropy(net(x), target).backward()
        optimizer.step()
    net.eval()
    assert (net(x).numpy().argmax(1) == target).mean() > 0.9


def test_resnet_against_torch():
    """The same blocks written with torch's layers, weights moved by name."""
    torch = pytest.importorskip("torch", reason="torch is not installed (extra 'peers')")
    tnn = torch.nn

    class Block(tnn.Module):
        def __init__(self, inputs: int, width: int, stride: int) -> None:
            super().__init__()
            self.conv1 = tnn.Conv2d(inputs, width, 3, stride, 1, bias=False)
            self.bn1 = tnn.BatchNorm2d(width)
            self.conv2 = tnn.Conv2d(width, width, 3, 1, 1, bias=False)
            self.bn2 = tnn.BatchNorm2d(width)
            self.downsample = tnn.Sequential(
                tnn.Conv2d(inputs, width, 1, stride, bias=False), tnn.BatchNorm2d(width)
            )

        def forward(self, x: Any) -> Any:
            out = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
            return torch.relu(out + self.downsample(x))

    peer, ours = Block(4, 6, 2), models.BasicBlock(4, 6, 2)
    ours.load_state_dict({k: v.numpy() for k, v in peer.state_dict().items()})
    x = values(3, 4, 9, 9)
    a, b = fn.tensor(x, requires_grad=True), torch.tensor(x, requires_grad=True)
    y, z = ours(a), peer(b)
    y.sum().backward()
    z.sum().backward()
    np.testing.assert_allclose(y.numpy(), z.detach().numpy(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(a.grad.numpy(), b.grad.numpy(), rtol=1e-3, atol=1e-4)
    for (name, p), q in zip(ours.named_parameters(), peer.parameters(), strict=True):
        np.testing.assert_allclose(
            p.grad.numpy(), q.grad.numpy(), rtol=1e-3, atol=1e-4, err_msg=name
        )
