"""Plain stacks of 3x3 convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import nn

_PLANS = {
    11: ((64,), (128,), (256,) * 2, (512,) * 2, (512,) * 2),
    13: ((64,) * 2, (128,) * 2, (256,) * 2, (512,) * 2, (512,) * 2),
    16: ((64,) * 2, (128,) * 2, (256,) * 3, (512,) * 3, (512,) * 3),
    19: ((64,) * 2, (128,) * 2, (256,) * 4, (512,) * 4, (512,) * 4),
}


class VGG(nn.Module):
    """Blocks of 3x3 convolutions with ReLU, each block followed by 2x2 max-pooling.

    plan: the channels of every convolution, block by block. batch_norm: one behind each
    convolution. The last map is averaged to pooled x pooled; hidden: widths of linear layers, with
    dropout, before the last one. With the plan of `vgg16` and pooled=7, hidden=(4096, 4096)
    parameters are named and shaped as torchvision's. Simonyan, Zisserman, "Very deep convolutional
    networks for large-scale image recognition", ICLR 2015.

    >>> import numpy as np
    >>> from fusednn.models import VGG
    >>> VGG(plan=((8, 8), (16, 16)))(np.zeros((2, 3, 16, 16), np.float32)).shape
    (2, 10)
    """

    def __init__(
        self,
        channels: int = 3,
        classes: int = 10,
        *,
        plan: Sequence[Sequence[int]] = ((64, 64), (128, 128), (256, 256)),
        batch_norm: bool = True,
        pooled: int = 1,
        hidden: Sequence[int] = (),
        dropout: float = 0.5,
        dtype: Any = np.float32,
    ) -> None:
        super().__init__()
        self.features = nn.Sequential()
        for block in plan:
            for width in block:
                self.features.append(nn.Conv2d(channels, width, 3, padding=1, dtype=dtype))
                if batch_norm:
                    self.features.append(nn.BatchNorm2d(width, dtype=dtype))
                self.features.append(nn.ReLU())
                channels = width
            self.features.append(nn.MaxPool2d(2))
        self.avgpool = nn.AdaptiveAvgPool2d(pooled)
        inputs = channels * pooled * pooled
        self.classifier = nn.Sequential()
        for width in hidden:
            self.classifier.extend(
                [nn.Linear(inputs, width, dtype=dtype), nn.ReLU(), nn.Dropout(dropout)]
            )
            inputs = width
        self.classifier.append(nn.Linear(inputs, classes, dtype=dtype))
        for module in self.features:
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
                assert module.bias is not None
                nn.init.zeros_(module.bias)

    def forward(self, input: Any) -> Any:
        """(N, channels, H, W), sides a multiple of 2**len(plan) -> scores (N, classes)."""
        return self.classifier(self.avgpool(self.features(input)).flatten(1))


def _vgg(depth: int, classes: int, batch_norm: bool) -> VGG:
    return VGG(
        classes=classes, plan=_PLANS[depth], batch_norm=batch_norm, pooled=7, hidden=(4096, 4096)
    )


def vgg11(classes: int = 1000, *, batch_norm: bool = False) -> VGG:
    """Configuration A of the paper, for images of 224 x 224."""
    return _vgg(11, classes, batch_norm)


def vgg13(classes: int = 1000, *, batch_norm: bool = False) -> VGG:
    """Configuration B."""
    return _vgg(13, classes, batch_norm)


def vgg16(classes: int = 1000, *, batch_norm: bool = False) -> VGG:
    """Configuration D."""
    return _vgg(16, classes, batch_norm)


def vgg19(classes: int = 1000, *, batch_norm: bool = False) -> VGG:
    """Configuration E."""
    return _vgg(19, classes, batch_norm)
