"""Pooling layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import functional as F
from .module import Module

Ints = int | Sequence[int]


class _MaxPool(Module):
    """What the max-pooling layers share."""

    _spatial: int

    def __init__(
        self,
        kernel_size: Ints,
        stride: Ints | None = None,
        padding: Ints = 0,
        dilation: Ints = 1,
        return_indices: bool = False,
        ceil_mode: bool = False,
    ) -> None:
        super().__init__()
        self.kernel_size = kernel_size
        self.stride = kernel_size if stride is None else stride
        self.padding = padding
        self.dilation = dilation
        self.return_indices = return_indices
        self.ceil_mode = ceil_mode
        self._function = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[self._spatial - 1]

    def forward(self, input: Any) -> Any:
        """(N, C, ...) -> (N, C, ...), also without N; with return_indices a pair."""
        return self._function(
            input,
            self.kernel_size,
            self.stride,
            self.padding,
            self.dilation,
            self.ceil_mode,
            self.return_indices,
        )

    def extra_repr(self) -> str:
        return (
            f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}, "
            f"dilation={self.dilation}, ceil_mode={self.ceil_mode}"
        )


class MaxPool1d(_MaxPool):
    """The largest element of each window; see `functional.max_pool1d`.

    >>> import numpy as np
    >>> from fusednn import nn
    >>> nn.MaxPool1d(2)(np.array([[[1.0, 3.0]]]))
    tensor([[[3.]]], dtype=float64)
    """

    _spatial = 1


class MaxPool2d(_MaxPool):
    """The largest element of each window; see `functional.max_pool2d`.

    >>> from fusednn import nn
    >>> nn.MaxPool2d(2)
    MaxPool2d(kernel_size=2, stride=2, padding=0, dilation=1, ceil_mode=False)
    """

    _spatial = 2


class MaxPool3d(_MaxPool):
    """The largest element of each window; see `functional.max_pool3d`."""

    _spatial = 3
