"""Convolution layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import _core
from .. import functional as F
from .._tensor.creation import zeros
from ..functional.conv import conv_layer
from ..functional.packed import PackedWeight
from . import init
from .dense import check_sizes, new_parameter
from .module import Module
from .parameter import Parameter

Ints = int | Sequence[int]
Padding = int | str | Sequence[int | Sequence[int]]


def per_axis(owner: str, name: str, value: Any, spatial: int) -> tuple[int, ...]:
    """One int for all spatial axes, or one per axis, as a tuple."""
    values = (value,) * spatial if hasattr(value, "__index__") else tuple(value)
    if len(values) != spatial:
        raise ValueError(f"{owner}: {name}={value} has {len(values)} values, expected {spatial}")
    return tuple(one.__index__() for one in values)


def sides_per_axis(owner: str, value: Any, spatial: int) -> Any:
    """A convolution's padding in ints: one, one per axis, or pairs (front, back), as a tuple."""
    values = (value,) * spatial if hasattr(value, "__index__") else tuple(value)
    if len(values) != spatial:
        raise ValueError(f"{owner}: padding={value} has {len(values)} values, expected {spatial}")
    sides: list[Any] = []
    for one in values:
        if hasattr(one, "__index__"):
            sides.append(one.__index__())
            continue
        pair = tuple(side.__index__() for side in one)
        if len(pair) != 2:
            raise ValueError(f"{owner}: padding={value}, expected an int or a pair for each axis")
        sides.append(pair)
    return tuple(sides)


class _Conv(Module):
    """What the convolutions share; `_spatial` is their number of spatial axes."""

    _spatial: int
    _linear = True  # in its weight and bias, channel by channel
    padding: Any  # a name, or for each axis an int or a pair
    bias: Parameter | None

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Ints,
        stride: Ints = 1,
        padding: Padding = 0,
        dilation: Ints = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        *,
        flip_kernel: bool = False,
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
        if padding_mode not in ("zeros", "reflect", "replicate", "circular"):
            raise ValueError(
                f"{owner}: padding_mode={padding_mode!r}, expected 'zeros', 'reflect', "
                "'replicate' or 'circular'"
            )
        named = isinstance(padding, str)
        if named and padding not in ("valid", "same") and (padding != "causal" or spatial != 1):
            raise ValueError(
                f"{owner}: padding={padding!r}, expected ints, pairs of ints, "
                + ("'valid', 'same' or 'causal'" if spatial == 1 else "'valid' or 'same'")
            )
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.kernel_size = per_axis(owner, "kernel_size", kernel_size, spatial)
        self.stride = per_axis(owner, "stride", stride, spatial)
        self.dilation = per_axis(owner, "dilation", dilation, spatial)
        self.padding = padding if named else sides_per_axis(owner, padding, spatial)
        self.groups = groups
        self.padding_mode = padding_mode
        self.flip_kernel = flip_kernel
        self.weight = new_parameter(*self._weight_shape(), dtype=dtype)
        self.register_parameter("bias", new_parameter(out_channels, dtype=dtype) if bias else None)
        self._packed = PackedWeight()
        self.reset_parameters()

    def _kernel_shape(self) -> tuple[int, ...]:
        return (self.out_channels, self.in_channels // self.groups, *self.kernel_size)

    _weight_shape = _kernel_shape  # a layer may store less than it applies

    def reset_parameters(self) -> None:
        """Draws the parameters anew: uniform in +-1 / sqrt(in_channels / groups * taps)."""
        init.fan_in_uniform_(self.weight, self.bias)

    def forward(self, input: Any) -> Any:
        """(N, in_channels, ...) -> (N, out_channels, ...), also without N."""
        padding = self.padding
        if self.padding_mode != "zeros":
            input, padding = F.pad(input, self._widths(input), self.padding_mode), 0
        return conv_layer(
            self._spatial,
            input,
            self.weight,
            self.bias,
            self.stride,
            padding,
            self.dilation,
            self.groups,
            self.flip_kernel,
            self._packed,
        )

    def _windows(self, input: Any) -> tuple[tuple[int, ...], tuple[tuple[int, int, int, int], ...]]:
        """The output's shape, and per axis stride, dilation, zeros in front and behind."""
        return _core.conv_shape(
            type(self).__name__,
            self._spatial,
            input.shape,
            self._kernel_shape(),
            self.stride,
            self.padding,
            self.dilation,
            self.groups,
        )

    def _widths(self, input: Any) -> list[int]:
        """The padding as `functional.pad` takes it."""
        _, axes = self._windows(input)
        return [side for _, _, *sides in reversed(axes) for side in sides]

    def extra_repr(self) -> str:
        ones = (1,) * self._spatial
        text = (
            f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, "
            f"stride={self.stride}"
        )
        if self.padding != (0,) * self._spatial:
            text += f", padding={self.padding!r}"
        if self.dilation != ones:
            text += f", dilation={self.dilation}"
        if self.groups != 1:
            text += f", groups={self.groups}"
        if self.bias is None:
            text += ", bias=False"
        if self.padding_mode != "zeros":
            text += f", padding_mode={self.padding_mode!r}"
        if self.flip_kernel:
            text += ", flip_kernel=True"
        return text


class Conv1d(_Conv):
    """Convolution along one axis: (N, in_channels, L) -> (N, out_channels, L_out).

    weight (out_channels, in_channels / groups, K), bias (out_channels,); see `functional.conv1d`.
    padding: an int, ((front, back),), "valid", "same" or "causal"; padding_mode: of what:,
    "zeros", "reflect", "replicate" or "circular"; flip_kernel: read the kernel backwards.

    With padding="causal" a sequence can come in stretches, each a multiple of the stride:

    >>> import numpy as np
    >>> from fusednn import nn
    >>> layer, x = nn.Conv1d(2, 4, 3, padding="causal"), np.ones((1, 2, 8), np.float32)
    >>> y, state = layer(x[:, :, :6], layer.initial_state(1))
    >>> y.shape, layer(x[:, :, 6:], state)[0].shape
    ((1, 4, 6), (1, 4, 2))
    """

    _spatial = 1

    def forward(self, input: Any, state: Any = None) -> Any:
        """(N, in_channels, L) -> (N, out_channels, L_out), also without N.

        With a state, a pair: that and the next state, which `detach()` cuts off from gradients.
        """
        if state is None:
            return super().forward(input)
        if self.padding_mode != "zeros":
            raise ValueError(f"Conv1d: state needs padding_mode='zeros', got {self.padding_mode!r}")
        return F.conv1d(
            input,
            self.weight,
            self.bias,
            self.stride,
            self.padding,
            self.dilation,
            self.groups,
            flip_kernel=self.flip_kernel,
            state=state,
        )

    def initial_state(self, batch_size: int | None = None) -> Any:
        """Zeros (batch_size, in_channels, dilation * (K - 1)): the state before a sequence.

        Without the first axis for batch_size None.
        """
        shape = (self.in_channels, self.dilation[0] * (self.kernel_size[0] - 1))
        lead = () if batch_size is None else (batch_size,)
        return zeros(*lead, *shape, dtype=self.weight.dtype)


class Conv2d(_Conv):
    """Convolution along two axes: (N, in_channels, H, W) -> (N, out_channels, H_out, W_out).

    padding: an int, (height, width), ((top, bottom), (left, right)), "valid" or "same"; the rest as
    for Conv1d, without "causal".

    >>> from fusednn import nn
    >>> nn.Conv2d(3, 1, 3, bias=False)
    Conv2d(3, 1, kernel_size=(3, 3), stride=(1, 1), bias=False)
    """

    _spatial = 2


class Conv3d(_Conv):
    """Convolution along three axes: (N, in_channels, D, H, W) -> (N, out_channels, ...).

    >>> import numpy as np
    >>> from fusednn import nn
    >>> nn.Conv3d(1, 2, 2)(np.zeros((1, 1, 3, 3, 3), np.float32)).shape
    (1, 2, 2, 2, 2)
    """

    _spatial = 3


class Unfold(Module):
    """Windows as columns: (N, C, H, W) -> (N, C * kernel, windows); see `functional.unfold`.

    >>> from fusednn import nn
    >>> nn.Unfold(2)(np.zeros((1, 3, 4, 4))).shape
    (1, 12, 9)
    """

    def __init__(
        self, kernel_size: Ints, dilation: Ints = 1, padding: Ints = 0, stride: Ints = 1
    ) -> None:
        super().__init__()
        self.kernel_size, self.dilation = kernel_size, dilation
        self.padding, self.stride = padding, stride

    def forward(self, input: Any) -> Any:
        """(N, C, H, W) -> (N, C * kernel, windows)."""
        return F.unfold(input, self.kernel_size, self.dilation, self.padding, self.stride)

    def extra_repr(self) -> str:
        return _window_text(self)


class Fold(Module):
    """Columns added back to their windows: the transpose of Unfold; see `functional.fold`.

    >>> from fusednn import nn
    >>> nn.Fold((4, 4), 2)(np.zeros((1, 12, 9))).shape
    (1, 3, 4, 4)
    """

    def __init__(
        self,
        output_size: Ints,
        kernel_size: Ints,
        dilation: Ints = 1,
        padding: Ints = 0,
        stride: Ints = 1,
    ) -> None:
        super().__init__()
        self.output_size = output_size
        self.kernel_size, self.dilation = kernel_size, dilation
        self.padding, self.stride = padding, stride

    def forward(self, input: Any) -> Any:
        """(N, C * kernel, windows) -> (N, C, H, W)."""
        return F.fold(
            input, self.output_size, self.kernel_size, self.dilation, self.padding, self.stride
        )

    def extra_repr(self) -> str:
        return f"output_size={self.output_size}, {_window_text(self)}"


def _window_text(module: Unfold | Fold) -> str:
    return (
        f"kernel_size={module.kernel_size}, dilation={module.dilation}, padding={module.padding}, "
        f"stride={module.stride}"
    )
