"""Small networks whose scores no flip, or no quarter turn, of the image can change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import nn


def _sides(owner: str, size: int, halvings: int) -> None:
    # A window that does not fit would leave out one edge, and which one depends on the flip.
    if size % (1 << halvings):
        raise ValueError(
            f"{owner}: size={size}, expected a multiple of {1 << halvings} for {halvings} halvings"
        )


class MirrorCNN(nn.Module):
    """Mirror convolutions with ReLU and 2x2 max-pooling, the maximum over all positions, a linear
    layer: (N, channels, size, size) -> scores (N, classes) that a flip does not change.

    widths: the channels of each convolution; all but the last halve the image. axis, combine: of
    `nn.MirrorConv2d`. ValueError for a size that cannot be halved so often.

    >>> import numpy as np
    >>> from fusednn.models import MirrorCNN
    >>> net, x = MirrorCNN(size=8), np.random.default_rng(0).random((2, 1, 8, 8), np.float32)
    >>> bool(np.allclose(net(x).numpy(), net(x[..., ::-1]).numpy(), atol=1e-5))
    True
    """

    def __init__(
        self,
        channels: int = 1,
        size: int = 28,
        classes: int = 10,
        *,
        widths: Sequence[int] = (16, 32, 64),
        axis: str = "horizontal",
        combine: str = "max",
        dtype: Any = np.float32,
    ) -> None:
        super().__init__()
        _sides("MirrorCNN", size, len(widths) - 1)
        self.features = nn.Sequential()
        for i, width in enumerate(widths):
            if i:
                self.features.append(nn.MaxPool2d(2))
            self.features.extend(
                [
                    nn.MirrorConv2d(
                        channels, width, 3, padding=1, axis=axis, combine=combine, dtype=dtype
                    ),
                    nn.ReLU(),
                ]
            )
            channels = width
        self.features.append(nn.GlobalPool("max"))
        self.classifier = nn.Linear(channels, classes, dtype=dtype)

    def forward(self, input: Any) -> Any:
        """(N, channels, size, size) -> (N, classes)."""
        return self.classifier(self.features(input))


class RotationCNN(nn.Module):
    """Convolutions on a group of quarter turns, with ReLU and 2x2 max-pooling, the maximum over all
    positions and orientations, a linear layer: scores (N, classes) that no element changes.

    group: "c4", the four quarter turns, or "d4", flips too. widths: the channels of each
    convolution, in all orientations; all but the last halve the image. Cohen, Welling, "Group
    equivariant convolutional networks", ICML 2016, section 8.1, after whose networks it is built.

    >>> import numpy as np
    >>> from fusednn.models import RotationCNN
    >>> net, x = RotationCNN(size=8), np.random.default_rng(0).random((2, 1, 8, 8), np.float32)
    >>> bool(np.allclose(net(x).numpy(), net(np.rot90(x, 1, (2, 3))).numpy(), atol=1e-5))
    True
    """

    def __init__(
        self,
        channels: int = 1,
        size: int = 28,
        classes: int = 10,
        *,
        group: str = "c4",
        widths: Sequence[int] = (8, 16, 32),
        dtype: Any = np.float32,
    ) -> None:
        super().__init__()
        _sides("RotationCNN", size, len(widths) - 1)
        if group not in ("c4", "d4"):
            raise ValueError(f"RotationCNN: group={group!r}, expected 'c4' or 'd4'")
        lift, conv = {
            "c4": (nn.P4ConvZ2, nn.P4ConvP4),
            "d4": (nn.P4MConvZ2, nn.P4MConvP4M),
        }[group]
        self.features = nn.Sequential()
        for i, width in enumerate(widths):
            if i:
                self.features.append(nn.MaxPool3d((1, 2, 2)))
            layer = conv if i else lift
            self.features.extend([layer(channels, width, 3, padding=1, dtype=dtype), nn.ReLU()])
            channels = width
        self.features.append(nn.GlobalPool("max"))
        self.classifier = nn.Linear(channels, classes, dtype=dtype)

    def forward(self, input: Any) -> Any:
        """(N, channels, size, size) -> (N, classes)."""
        return self.classifier(self.features(input))


__all__ = ["MirrorCNN", "RotationCNN"]
