"""Residual networks, for photographs and for small images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import functional as F
from .. import nn


class BasicBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut.

    >>> import numpy as np
    >>> from fusednn.models import BasicBlock
    >>> BasicBlock(4, 8, stride=2)(np.zeros((1, 4, 6, 6), np.float32)).shape
    (1, 8, 3, 3)
    """

    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int = 1, *, dtype: Any = None) -> None:
        super().__init__()
        self.conv1 = _conv3x3(inputs, width, stride, dtype)
        self.bn1 = nn.BatchNorm2d(width, dtype=dtype)
        self.conv2 = _conv3x3(width, width, 1, dtype)
        self.bn2 = nn.BatchNorm2d(width, dtype=dtype)
        self.downsample = _shortcut(inputs, width, stride, dtype)

    def forward(self, input: Any) -> Any:
        """(N, inputs, H, W) -> (N, width, H / stride, W / stride)."""
        out = _normed(self.bn1, self.conv1(input))
        out = self.bn2(self.conv2(out))
        return F.relu(out + (input if self.downsample is None else self.downsample(input)))


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions beside a shortcut, four times as wide outside.

    The stride is that of the 3x3 convolution.

    >>> import numpy as np
    >>> from fusednn.models import Bottleneck
    >>> Bottleneck(8, 4)(np.zeros((1, 8, 6, 6), np.float32)).shape
    (1, 16, 6, 6)
    """

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int = 1, *, dtype: Any = None) -> None:
        super().__init__()
        outputs = width * self.expansion
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False, dtype=dtype)
        self.bn1 = nn.BatchNorm2d(width, dtype=dtype)
        self.conv2 = _conv3x3(width, width, stride, dtype)
        self.bn2 = nn.BatchNorm2d(width, dtype=dtype)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False, dtype=dtype)
        self.bn3 = nn.BatchNorm2d(outputs, dtype=dtype)
        self.downsample = _shortcut(inputs, outputs, stride, dtype)

    def forward(self, input: Any) -> Any:
        """(N, inputs, H, W) -> (N, 4 * width, H / stride, W / stride)."""
        out = _normed(self.bn1, self.conv1(input))
        out = _normed(self.bn2, self.conv2(out))
        out = self.bn3(self.conv3(out))
        return F.relu(out + (input if self.downsample is None else self.downsample(input)))


def _conv3x3(inputs: int, outputs: int, stride: int, dtype: Any) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False, dtype=dtype)


def _shortcut(inputs: int, outputs: int, stride: int, dtype: Any) -> nn.Sequential | None:
    if stride == 1 and inputs == outputs:
        return None
    conv = nn.Conv2d(inputs, outputs, 1, stride, bias=False, dtype=dtype)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs, dtype=dtype))


def _normed(norm: nn.Module, input: Any) -> Any:
    """norm, then ReLU: in one pass, unless the norm is folded away."""
    if isinstance(norm, nn.BatchNorm2d):
        return norm(input, activation="relu")
    return F.relu(norm(input))


class ResNet(nn.Module):
    """A stem, stages of residual blocks, the mean over space and a linear layer.

    layers: blocks per stage; widths: channels per stage (four times that behind a Bottleneck). From
    the second stage on each begins with stride 2. small_images: a 3x3 stem without pooling instead
    of 7x7 with stride 2 and max-pooling. Parameters are named and shaped as torchvision's. He,
    Zhang, Ren, Sun, "Deep residual learning for image recognition", CVPR 2016.

    >>> import numpy as np
    >>> from fusednn.models import BasicBlock, ResNet
    >>> net = ResNet(BasicBlock, (1, 1), widths=(8, 16), classes=10, small_images=True)
    >>> net(np.zeros((2, 3, 8, 8), np.float32)).shape
    (2, 10)
    """

    def __init__(
        self,
        block: type[BasicBlock] | type[Bottleneck],
        layers: Sequence[int],
        *,
        channels: int = 3,
        classes: int = 1000,
        widths: Sequence[int] = (64, 128, 256, 512),
        small_images: bool = False,
        dtype: Any = np.float32,
    ) -> None:
        super().__init__()
        if len(layers) != len(widths):
            raise ValueError(
                f"ResNet: layers={tuple(layers)} and widths={tuple(widths)} differ in length"
            )
        inputs = widths[0]
        if small_images:
            self.conv1 = _conv3x3(channels, inputs, 1, dtype)
        else:
            self.conv1 = nn.Conv2d(channels, inputs, 7, 2, 3, bias=False, dtype=dtype)
        self.bn1 = nn.BatchNorm2d(inputs, dtype=dtype)
        self.maxpool = nn.Identity() if small_images else nn.MaxPool2d(3, 2, 1)
        self._stages = [f"layer{i + 1}" for i in range(len(layers))]
        for i, (name, count, width) in enumerate(zip(self._stages, layers, widths, strict=True)):
            stage = nn.Sequential()
            for j in range(count):
                stage.append(block(inputs, width, 2 if i and not j else 1, dtype=dtype))
                inputs = width * block.expansion
            self.add_module(name, stage)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(inputs, classes, dtype=dtype)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, input: Any) -> Any:
        """(N, channels, H, W) -> scores (N, classes)."""
        out = self.maxpool(_normed(self.bn1, self.conv1(input)))
        for name in self._stages:
            out = self.get_submodule(name)(out)
        return self.fc(self.avgpool(out).flatten(1))

    def fused(self) -> ResNet:
        """A copy for evaluation, every BatchNorm folded into its convolution.

        >>> from fusednn.models import resnet20
        >>> resnet20().fused().bn1
        Identity()
        """
        names = dict(self.named_modules())
        pairs = [
            (name, other)
            for name, module in names.items()
            if isinstance(module, nn.Conv2d)
            for other in (_norm_behind(name),)
            if isinstance(names.get(other), nn.BatchNorm2d)
        ]
        return nn.utils.fuse_modules(self, pairs)


def _norm_behind(name: str) -> str:
    path, _, last = name.rpartition(".")
    other = last.replace("conv", "bn") if last.startswith("conv") else str(int(last) + 1)
    return f"{path}.{other}" if path else other


def resnet18(classes: int = 1000) -> ResNet:
    """18 layers for images of 224 x 224."""
    return ResNet(BasicBlock, (2, 2, 2, 2), classes=classes)


def resnet34(classes: int = 1000) -> ResNet:
    """34 layers."""
    return ResNet(BasicBlock, (3, 4, 6, 3), classes=classes)


def resnet50(classes: int = 1000) -> ResNet:
    """50 layers, of bottlenecks."""
    return ResNet(Bottleneck, (3, 4, 6, 3), classes=classes)


def resnet20(classes: int = 10, *, channels: int = 3) -> ResNet:
    """The paper's 20 layers for images of 32 x 32."""
    return ResNet(
        BasicBlock, (3, 3, 3), channels=channels, classes=classes, widths=(16, 32, 64),
        small_images=True,
    )  # fmt: skip
