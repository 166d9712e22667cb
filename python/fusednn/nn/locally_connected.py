"""Locally connected layers: convolutions whose kernel differs from position to position."""

from __future__ import annotations

import math
from typing import Any

from .. import _core
from .. import functional as F
from . import init
from .conv import Ints, Padding, per_axis
from .dense import check_sizes, new_parameter
from .module import Module
from .parameter import Parameter


class _LocallyConnected(Module):
    """What the two share; `_spatial` is their number of spatial axes."""

    _spatial: int
    bias: Parameter | None

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        input_size: Ints,
        kernel_size: Ints,
        stride: Ints = 1,
        padding: Padding = 0,
        dilation: Ints = 1,
        bias: bool = True,
        *,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        owner, spatial = type(self).__name__, self._spatial
        check_sizes(owner, 0, in_channels=in_channels, out_channels=out_channels)
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.input_size = per_axis(owner, "input_size", input_size, spatial)
        self.kernel_size = per_axis(owner, "kernel_size", kernel_size, spatial)
        self.stride = per_axis(owner, "stride", stride, spatial)
        self.padding = padding
        self.dilation = per_axis(owner, "dilation", dilation, spatial)
        kernel = (out_channels, in_channels, *self.kernel_size)
        output, _ = _core.conv_shape(
            owner, spatial, (in_channels, *self.input_size), kernel, self.stride, padding,
            self.dilation, 1,
        )  # fmt: skip
        self.output_size = output[1:]
        self.weight = new_parameter(*self.output_size, *kernel, dtype=dtype)
        self.register_parameter("bias", new_parameter(*output, dtype=dtype) if bias else None)
        self._function = (F.locally_connected1d, F.locally_connected2d)[spatial - 1]
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws the parameters anew: uniform in +-1 / sqrt(in_channels * taps)."""
        fan_in = self.in_channels * math.prod(self.kernel_size)
        bound = 1 / math.sqrt(fan_in) if fan_in else 0.0
        init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            init.uniform_(self.bias, -bound, bound)

    def forward(self, input: Any) -> Any:
        """(N, in_channels, *input_size) -> (N, out_channels, *output_size), also without N."""
        return self._function(
            input, self.weight, self.bias, self.stride, self.padding, self.dilation
        )

    def extra_repr(self) -> str:
        text = (
            f"{self.in_channels}, {self.out_channels}, input_size={self.input_size}, "
            f"kernel_size={self.kernel_size}, stride={self.stride}"
        )
        if self.padding != 0:
            text += f", padding={self.padding!r}"
        if self.dilation != (1,) * self._spatial:
            text += f", dilation={self.dilation}"
        if self.bias is None:
            text += ", bias=False"
        return text


class LocallyConnected1d(_LocallyConnected):
    """A convolution along one axis with a kernel of its own at each of the L_out positions.

    weight (L_out, out_channels, in_channels, K), bias (out_channels, L_out); the length of the
    input is fixed. See `functional.locally_connected1d`.

    >>> from fusednn import nn
    >>> layer = nn.LocallyConnected1d(1, 1, 10, 3, bias=False)
    >>> layer.weight.shape, nn.Conv1d(1, 1, 3, bias=False).weight.shape  # 24 weights instead of 3
    ((8, 1, 1, 3), (1, 1, 3))
    """

    _spatial = 1


class LocallyConnected2d(_LocallyConnected):
    """A convolution along two axes with a kernel of its own at each position.

    weight (H_out, W_out, out_channels, in_channels, KH, KW), bias (out_channels, H_out, W_out); the
    size of the input is fixed. See `functional.locally_connected2d`.

    >>> import numpy as np
    >>> from fusednn import nn
    >>> nn.LocallyConnected2d(3, 4, (6, 5), 3)(np.zeros((1, 3, 6, 5), np.float32)).shape
    (1, 4, 4, 3)
    """

    _spatial = 2
