"""Transposed convolution layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import functional as F
from . import init
from .conv import Ints, per_axis, sides_per_axis
from .dense import check_sizes, new_parameter
from .module import Module
from .parameter import Parameter

Padding = int | Sequence[int | Sequence[int]]


class _ConvTranspose(Module):
    """What the transposed convolutions share; `_spatial` is their number of spatial axes."""

    _spatial: int
    bias: Parameter | None

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Ints,
        stride: Ints = 1,
        padding: Padding = 0,
        output_padding: Ints = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: Ints = 1,
        padding_mode: str = "zeros",
        *,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        owner, spatial = type(self).__name__, self._spatial
        check_sizes(owner, 1, groups=groups)
        check_sizes(owner, 0, in_channels=in_channels, out_channels=out_channels)
        if in_channels % groups or out_channels % groups:
            raise ValueError(
                f"{owner}: in_channels={in_channels} and out_channels={out_channels} must both be "
                f"divisible by groups={groups}"
            )
        if padding_mode != "zeros":
            raise ValueError(f"{owner}: padding_mode={padding_mode!r}, expected 'zeros'")
        if isinstance(padding, str):
            raise ValueError(f"{owner}: padding={padding!r}, expected ints or pairs of ints")
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.kernel_size = per_axis(owner, "kernel_size", kernel_size, spatial)
        self.stride = per_axis(owner, "stride", stride, spatial)
        self.padding = sides_per_axis(owner, padding, spatial)
        self.output_padding = per_axis(owner, "output_padding", output_padding, spatial)
        self.dilation = per_axis(owner, "dilation", dilation, spatial)
        self.groups = groups
        self.padding_mode = padding_mode
        shape = (in_channels, out_channels // groups, *self.kernel_size)
        self.weight = new_parameter(*shape, dtype=dtype)
        self.register_parameter("bias", new_parameter(out_channels, dtype=dtype) if bias else None)
        self._function = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[spatial - 1]
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws the parameters anew: uniform in +-1 / sqrt(out_channels / groups * taps)."""
        init.fan_in_uniform_(self.weight, self.bias)

    def forward(self, input: Any, output_size: Sequence[int] | None = None) -> Any:
        """(N, in_channels, ...) -> (N, out_channels, ...), also without N.

        output_size: the spatial sizes (or the whole shape) that the output shall have, in place of
        output_padding; several inputs' sizes lead to one, and this says which was meant.
        """
        extra = self.output_padding
        if output_size is not None:
            extra = self._extra(input.shape, output_size)
        return self._function(
            input,
            self.weight,
            self.bias,
            self.stride,
            self.padding,
            extra,
            self.groups,
            self.dilation,
        )

    def _extra(self, shape: Sequence[int], output_size: Sequence[int]) -> tuple[int, ...]:
        """The output_padding that gives `output_size`."""
        owner, spatial = type(self).__name__, self._spatial
        sizes = tuple(n.__index__() for n in output_size)
        if len(sizes) not in (spatial, len(shape)):
            raise ValueError(
                f"{owner}: output_size={sizes} has {len(sizes)} values, expected {spatial} or "
                f"{len(shape)}"
            )
        extra = []
        for wanted, n, k, s, d, p in zip(
            sizes[-spatial:], shape[-spatial:], self.kernel_size, self.stride, self.dilation,
            self.padding, strict=True,
        ):  # fmt: skip
            front, back = (p, p) if isinstance(p, int) else p
            least = (n - 1) * s - front - back + d * (k - 1) + 1
            most = least + max(s, d) - 1
            if not least <= wanted <= most:
                raise ValueError(
                    f"{owner}: output_size={sizes} for input of shape {tuple(shape)}, expected "
                    f"{least} to {most} where it is {wanted}"
                )
            extra.append(wanted - least)
        return tuple(extra)

    def extra_repr(self) -> str:
        zeros, ones = (0,) * self._spatial, (1,) * self._spatial
        text = (
            f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, "
            f"stride={self.stride}"
        )
        if self.padding != zeros:
            text += f", padding={self.padding}"
        if self.output_padding != zeros:
            text += f", output_padding={self.output_padding}"
        if self.dilation != ones:
            text += f", dilation={self.dilation}"
        if self.groups != 1:
            text += f", groups={self.groups}"
        if self.bias is None:
            text += ", bias=False"
        return text


class ConvTranspose1d(_ConvTranspose):
    """Transposed convolution along one axis: (N, in_channels, L) -> (N, out_channels, L_out).

    weight (in_channels, out_channels / groups, K), bias (out_channels,); see
    `functional.conv_transpose1d`.

    >>> import numpy as np
    >>> from fusednn import nn
    >>> layer = nn.ConvTranspose1d(2, 4, 3, stride=2)
    >>> x = np.zeros((1, 2, 8), np.float32)
    >>> layer(x).shape, layer(x, output_size=[18]).shape
    ((1, 4, 17), (1, 4, 18))
    """

    _spatial = 1


class ConvTranspose2d(_ConvTranspose):
    """Transposed convolution along two axes: (N, in_channels, H, W) -> (N, out_channels, ...).

    >>> import numpy as np
    >>> from fusednn import nn
    >>> nn.ConvTranspose2d(2, 4, 2, stride=2)(np.zeros((1, 2, 3, 4), np.float32)).shape
    (1, 4, 6, 8)
    """

    _spatial = 2


class ConvTranspose3d(_ConvTranspose):
    """Transposed convolution along three axes: (N, in_channels, D, H, W) -> (N, out_channels, ...).

    >>> import numpy as np
    >>> from fusednn import nn
    >>> nn.ConvTranspose3d(1, 2, 2)(np.zeros((1, 1, 1, 1, 1), np.float32)).shape
    (1, 2, 2, 2, 2)
    """

    _spatial = 3
