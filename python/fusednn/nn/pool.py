"""Pooling layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import functional as F
from .module import Module

Ints = int | Sequence[int]
Sizes = int | None | Sequence[int | None]


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


# ---- averages ------------------------------------------------------------------------------------


class AvgPool1d(Module):
    """The mean of each window; see `functional.avg_pool1d`.

    >>> import numpy as np
    >>> from fusednn import nn
    >>> nn.AvgPool1d(2)(np.array([[[1.0, 3.0]]]))
    tensor([[[2.]]], dtype=float64)
    """

    def __init__(
        self,
        kernel_size: Ints,
        stride: Ints | None = None,
        padding: Ints = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
    ) -> None:
        super().__init__()
        self.kernel_size = kernel_size
        self.stride = kernel_size if stride is None else stride
        self.padding = padding
        self.ceil_mode = ceil_mode
        self.count_include_pad = count_include_pad

    def forward(self, input: Any) -> Any:
        """(N, C, L) -> (N, C, L_out), also without N."""
        return F.avg_pool1d(
            input, self.kernel_size, self.stride, self.padding, self.ceil_mode,
            self.count_include_pad,
        )  # fmt: skip

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class AvgPool2d(AvgPool1d):
    """The mean of each window; see `functional.avg_pool2d`.

    >>> from fusednn import nn
    >>> nn.AvgPool2d(2)
    AvgPool2d(kernel_size=2, stride=2, padding=0)
    """

    _function = staticmethod(F.avg_pool2d)

    def __init__(
        self,
        kernel_size: Ints,
        stride: Ints | None = None,
        padding: Ints = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> None:
        super().__init__(kernel_size, stride, padding, ceil_mode, count_include_pad)
        self.divisor_override = divisor_override

    def forward(self, input: Any) -> Any:
        """(N, C, ...) -> (N, C, ...), also without N."""
        return self._function(
            input, self.kernel_size, self.stride, self.padding, self.ceil_mode,
            self.count_include_pad, self.divisor_override,
        )  # fmt: skip


class AvgPool3d(AvgPool2d):
    """The mean of each window; see `functional.avg_pool3d`."""

    _function = staticmethod(F.avg_pool3d)


# ---- adaptive, global, and the way back ----------------------------------------------------------


class _AdaptiveAvgPool(Module):
    """What the adaptive averages share."""

    _spatial: int

    def __init__(self, output_size: Sizes) -> None:
        super().__init__()
        self.output_size = output_size
        self._function = (F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d)[
            self._spatial - 1
        ]

    def forward(self, input: Any) -> Any:
        """(N, C, ...) -> (N, C, *output_size), also without N."""
        return self._function(input, self.output_size)

    def extra_repr(self) -> str:
        return f"output_size={self.output_size}"


class AdaptiveAvgPool1d(_AdaptiveAvgPool):
    """Means of output_size windows that share the axis out; see `functional.adaptive_avg_pool1d`.

    >>> import numpy as np
    >>> from fusednn import nn
    >>> nn.AdaptiveAvgPool1d(1)(np.array([[[1.0, 3.0, 2.0]]]))
    tensor([[[2.]]], dtype=float64)
    """

    _spatial = 1


class AdaptiveAvgPool2d(_AdaptiveAvgPool):
    """Means of windows that share two axes out; see `functional.adaptive_avg_pool2d`."""

    _spatial = 2


class AdaptiveAvgPool3d(_AdaptiveAvgPool):
    """Means of windows that share three axes out; see `functional.adaptive_avg_pool3d`."""

    _spatial = 3


class _AdaptiveMaxPool(Module):
    """What the adaptive maxima share."""

    _spatial: int

    def __init__(self, output_size: Sizes, return_indices: bool = False) -> None:
        super().__init__()
        self.output_size = output_size
        self.return_indices = return_indices
        self._function = (F.adaptive_max_pool1d, F.adaptive_max_pool2d, F.adaptive_max_pool3d)[
            self._spatial - 1
        ]

    def forward(self, input: Any) -> Any:
        """(N, C, ...) -> (N, C, *output_size), also without N; with return_indices a pair."""
        return self._function(input, self.output_size, self.return_indices)

    def extra_repr(self) -> str:
        return f"output_size={self.output_size}"


class AdaptiveMaxPool1d(_AdaptiveMaxPool):
    """Maxima of output_size windows that share the axis out; see `functional.adaptive_max_pool1d`.

    >>> import numpy as np
    >>> from fusednn import nn
    >>> nn.AdaptiveMaxPool1d(1)(np.array([[[1.0, 3.0, 2.0]]]))
    tensor([[[3.]]], dtype=float64)
    """

    _spatial = 1


class AdaptiveMaxPool2d(_AdaptiveMaxPool):
    """Maxima of windows that share two axes out; see `functional.adaptive_max_pool2d`."""

    _spatial = 2


class AdaptiveMaxPool3d(_AdaptiveMaxPool):
    """Maxima of windows that share three axes out; see `functional.adaptive_max_pool3d`."""

    _spatial = 3


class GlobalPool(Module):
    """One number per channel: (N, C, ...) -> (N, C), the "mean", "max" or "sum" of all positions.

    >>> import numpy as np
    >>> from fusednn import nn
    >>> nn.GlobalPool("max")(np.array([[[1.0, 3.0, 2.0]]]))
    tensor([[3.]], dtype=float64)
    """

    def __init__(self, reduce: str = "mean") -> None:
        super().__init__()
        if reduce not in ("mean", "max", "sum"):
            raise ValueError(f"GlobalPool: reduce={reduce!r}, expected 'mean', 'max' or 'sum'")
        self.reduce = reduce

    def forward(self, input: Any) -> Any:
        """(N, C, ...) -> (N, C)."""
        return F.global_pool(input, self.reduce)

    def extra_repr(self) -> str:
        return f"reduce={self.reduce!r}"


class _MaxUnpool(Module):
    """What the inverses of max pooling share."""

    _spatial: int

    def __init__(self, kernel_size: Ints, stride: Ints | None = None, padding: Ints = 0) -> None:
        super().__init__()
        self.kernel_size = kernel_size
        self.stride = kernel_size if stride is None else stride
        self.padding = padding
        self._function = (F.max_unpool1d, F.max_unpool2d)[self._spatial - 1]

    def forward(self, input: Any, indices: Any, output_size: Any = None) -> Any:
        """Maxima and their positions (N, C, ...) -> what they were taken from, zeros elsewhere."""
        return self._function(
            input, indices, self.kernel_size, self.stride, self.padding, output_size
        )

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class MaxUnpool1d(_MaxUnpool):
    """Puts maxima back where they came from; see `functional.max_unpool1d`."""

    _spatial = 1


class MaxUnpool2d(_MaxUnpool):
    """Puts maxima back where they came from; see `functional.max_unpool2d`."""

    _spatial = 2
