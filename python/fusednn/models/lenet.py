"""A small convolutional network for small images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import nn


class LeNet(nn.Module):
    """Convolutions with ReLU and 2x2 max-pooling, then linear layers: the plan of LeNet-5.

    channels: of the images, which are size x size. widths: the channels of each convolution; every
    one halves the image. kernel_size: odd; convolutions keep the size. hidden: width of a linear
    layer before the last one, None for none. LeCun, Bottou, Bengio, Haffner, "Gradient-based
    learning applied to document recognition", 1998, with ReLU and maxima in place of tanh and
    trained averages.

    >>> import numpy as np
    >>> from fusednn.models import LeNet
    >>> LeNet(size=8)(np.zeros((5, 1, 8, 8), np.float32)).shape
    (5, 10)
    """

    def __init__(
        self,
        channels: int = 1,
        size: int = 28,
        classes: int = 10,
        *,
        widths: Sequence[int] = (16, 32),
        kernel_size: int = 3,
        hidden: int | None = None,
        dtype: Any = np.float32,
    ) -> None:
        super().__init__()
        if kernel_size < 1 or kernel_size % 2 == 0:
            raise ValueError(f"LeNet: kernel_size={kernel_size}, expected an odd number")
        side = size >> len(widths)
        if side < 1:
            raise ValueError(
                f"LeNet: images of size {size} are too small for {len(widths)} halvings"
            )
        self.features = nn.Sequential()
        for width in widths:
            self.features.extend(
                [
                    nn.Conv2d(channels, width, kernel_size, padding=kernel_size // 2, dtype=dtype),
                    nn.ReLU(),
                    nn.MaxPool2d(2),
                ]
            )
            channels = width
        inputs = channels * side * side
        layers: list[nn.Module] = [nn.Flatten()]
        if hidden is not None:
            layers += [nn.Linear(inputs, hidden, dtype=dtype), nn.ReLU()]
            inputs = hidden
        self.classifier = nn.Sequential(*layers, nn.Linear(inputs, classes, dtype=dtype))

    def forward(self, input: Any) -> Any:
        """(N, channels, size, size) -> scores (N, classes)."""
        return self.classifier(self.features(input))
