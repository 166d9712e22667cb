"""Layers that keep what they know about flips and quarter turns by construction."""

from __future__ import annotations

import math
from typing import Any

from .. import functional as F
from .._tensor.shape import cat
from .._tensor.tape import Array, TensorBase, raw
from ..functional import symmetry
from . import init
from .conv import Ints, Padding, _Conv
from .dense import check_sizes, new_parameter
from .module import Module
from .parameter import Parameter

# ---- mirrors -------------------------------------------------------------------------------------


class _Mirror(_Conv):
    """What the two share. A flip of the input along `axis` flips the output, and does no more.

    A patch and its mirror image get the same response, either because the kernel is its own mirror
    image, or because it and its mirror images respond together.
    """

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
        axis: str = "horizontal",
        combine: str = "symmetric",
        dtype: Any = None,
    ) -> None:
        name = type(self).__name__
        known = {"horizontal": (-1,), "vertical": (-2,), "both": (-2, -1)}
        if self._spatial == 1:
            known = {"horizontal": (-1,)}
        if axis not in known:
            raise ValueError(f"{name}: axis={axis!r}, expected {_one_of(known)}")
        kinds = ("symmetric", "sum", "mean", "max")
        if combine not in kinds:
            raise ValueError(f"{name}: combine={combine!r}, expected {_one_of(kinds)}")
        self.axis, self.combine = axis, combine
        self._mirrored = known[axis]
        self._linear = combine != "max"
        self._function = (F.conv1d, F.conv2d)[self._spatial - 1]
        super().__init__(
            in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias,
            padding_mode, dtype=dtype,
        )  # fmt: skip
        self._check_padding(name)

    def _check_padding(self, name: str) -> None:
        if self.padding == "causal":
            raise ValueError(f"{name}: padding='causal' is on one side alone, a flip swaps sides")
        for axis in self._mirrored if not isinstance(self.padding, str) else ():
            sides = self.padding[axis]
            if isinstance(sides, tuple) and sides[0] != sides[1]:
                raise ValueError(
                    f"{name}: padding={self.padding} has {sides[0]} in front and {sides[1]} "
                    f"behind along a mirrored axis, expected equal sides (axis={self.axis!r})"
                )

    def _weight_shape(self) -> tuple[int, ...]:
        shape = list(self._kernel_shape())
        if self.combine == "symmetric":
            for axis in self._mirrored:
                shape[axis] = (shape[axis] + 1) // 2
        return tuple(shape)

    def reset_parameters(self) -> None:
        """Draws the parameters anew: uniform in +-1 / sqrt(in_channels / groups * taps of the whole
        kernel)."""
        fan_in = math.prod(self._kernel_shape()[1:])
        bound = 1 / math.sqrt(fan_in) if fan_in else 0.0
        init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            init.uniform_(self.bias, -bound, bound)

    def forward(self, input: Any) -> Any:
        """(N, in_channels, ...) -> (N, out_channels, ...), also without N."""
        self._check_windows(input)
        padding = self.padding
        if self.padding_mode != "zeros":
            input, padding = F.pad(input, self._widths(input), self.padding_mode), 0
        window = (self.bias, self.stride, padding, self.dilation, self.groups)
        if self.combine != "max":
            return self._function(input, self._kernel(), *window)
        kernels: list[Any] = [self.weight]
        for axis in self._mirrored:
            kernels += [kernel.flip(axis) for kernel in kernels]
        # With the bias in each: rounding is monotone, so that the largest of the sums is the sum
        # with the largest.
        maps = [self._function(input, kernel, *window) for kernel in kernels]
        while len(maps) > 1:
            maps = [symmetry.larger_map(*maps[i : i + 2]) for i in range(0, len(maps), 2)]
        return maps[0]

    def _kernel(self) -> Any:
        """The one kernel, its own mirror image to the last bit, that the layer amounts to."""
        kernel: Any = self.weight
        for axis in self._mirrored:
            if self.combine == "symmetric":
                half = self.kernel_size[axis] // 2
                rest = kernel[..., :half] if axis == -1 else kernel[..., :half, :]
                kernel = cat([kernel, rest.flip(axis)], axis)
            else:
                kernel = kernel + kernel.flip(axis)
        return kernel * 0.5 ** len(self._mirrored) if self.combine == "mean" else kernel

    def _check_windows(self, input: Any) -> None:
        output, axes = self._windows(input)
        for axis in self._mirrored:
            stride, dilation, front, _ = axes[axis]
            reach = (output[axis] - 1) * stride + dilation * (self.kernel_size[axis] - 1) + 1
            behind = reach - front - input.shape[axis]
            if behind != front:
                raise ValueError(
                    f"{type(self).__name__}: the windows on an input of shape {input.shape} begin "
                    f"{front} before it and end {behind} after it along a mirrored axis; a flip "
                    f"would move them (stride={self.stride}, padding={self.padding!r})"
                )

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, axis={self.axis!r}, combine={self.combine!r}"


class MirrorConv1d(_Mirror):
    """A convolution whose output reverses when its input does: (N, C, L) -> (N, O, L_out).

    combine: "symmetric", a kernel that reads the same both ways, of which weight (O, C / groups,
    ceil(K / 2)) stores the front half with the middle; or "sum", "mean" or "max" of the responses
    of a kernel, weight (O, C / groups, K), and its reverse at each position: for sum and mean one
    convolution with their sum or mean. The bias is added once. Other arguments as for Conv1d;
    even kernels are allowed.

    ValueError for padding that differs from side to side, and for windows that do not end as far
    behind the input as they begin before it. Cohen, Welling, "Group equivariant convolutional
    networks", ICML 2016, section 4, for the group of one reflection.

    >>> import numpy as np
    >>> from fusednn import nn
    >>> layer, x = nn.MirrorConv1d(2, 3, 4, combine="max"), np.ones((1, 2, 9), np.float32)
    >>> bool((layer(x[..., ::-1]).numpy() == layer(x).numpy()[..., ::-1]).all())
    True
    """

    _spatial = 1


class MirrorConv2d(_Mirror):
    """A convolution that a flip of its input merely flips: (N, C, H, W) -> (N, O, H_out, W_out).

    axis: "horizontal" (left and right change places), "vertical" (top and bottom) or "both", which
    combines all four flips. The rest as for MirrorConv1d; weight is (O, C / groups, KH, KW), with
    combine="symmetric" half of that along each mirrored axis.

    >>> from fusednn import nn
    >>> nn.MirrorConv2d(3, 8, 5).weight.shape, nn.MirrorConv2d(3, 8, 5, axis="both").weight.shape
    ((8, 3, 5, 3), (8, 3, 3, 3))
    """

    _spatial = 2


def _one_of(names: Any) -> str:
    quoted = [repr(name) for name in names]
    return quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} or {quoted[-1]}"


# ---- groups --------------------------------------------------------------------------------------


class _GroupConv(Module):
    """What the four share: kernels stored once, applied in all orientations by one convolution."""

    _mirrored: bool
    _lifting: bool
    bias: Parameter | None

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        stride: int = 1,
        padding: int = 0,
        bias: bool = True,
        *,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        check_sizes(name, 0, in_channels=in_channels, out_channels=out_channels, padding=padding)
        check_sizes(name, 1, kernel_size=kernel_size, stride=stride)
        self.in_channels, self.out_channels = in_channels, out_channels
        self.kernel_size, self.stride, self.padding = kernel_size, stride, padding
        self.order = 8 if self._mirrored else 4
        self._table = symmetry.filter_table(self._mirrored, kernel_size, self._lifting)
        parts = () if self._lifting else (self.order,)
        shape = (out_channels, in_channels, *parts, kernel_size, kernel_size)
        self.weight = new_parameter(*shape, dtype=dtype)
        self.register_parameter("bias", new_parameter(out_channels, dtype=dtype) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws the parameters anew: uniform in +-1 / sqrt(products that an output sums)."""
        init.fan_in_uniform_(self.weight, self.bias)

    def forward(self, input: Any) -> Any:
        """(N, in_channels, [order,] H, W) -> (N, out_channels, order, H_out, W_out)."""
        self._check(input.shape)
        size, kernel = self.out_channels * self.order, self.kernel_size
        channels = self.in_channels * (1 if self._lifting else self.order)
        filters = symmetry.kernel_orbit(self.weight, self._table)
        filters = filters.reshape(size, channels, kernel, kernel)
        bias: Any = self.bias
        if bias is not None:
            bias = bias.unsqueeze(1).expand(-1, self.order).reshape(size)
        if not self._lifting:
            input = input.reshape(input.shape[0], channels, *input.shape[-2:])
        out = F.conv2d(input, filters, bias, self.stride, self.padding)
        return out.reshape(out.shape[0], self.out_channels, self.order, *out.shape[-2:])

    def _check(self, shape: tuple[int, ...]) -> None:
        name = type(self).__name__
        parts = (self.in_channels,) if self._lifting else (self.in_channels, self.order)
        if len(shape) != len(parts) + 3 or shape[1:-2] != parts:
            expected = ", ".join(map(str, parts))
            raise ValueError(f"{name}: input has shape {shape}, expected (N, {expected}, H, W)")
        for length in shape[-2:]:
            rest = length + 2 * self.padding - self.kernel_size
            if rest >= 0 and rest % self.stride:
                raise ValueError(
                    f"{name}: windows of {self.kernel_size} with stride={self.stride} and "
                    f"padding={self.padding} leave {rest % self.stride} of {length} positions "
                    f"over (input {shape}); a turn would move them"
                )

    def extra_repr(self) -> str:
        text = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}"
        text += f", stride={self.stride}, padding={self.padding}"
        return text if self.bias is not None else f"{text}, bias=False"


class P4ConvZ2(_GroupConv):
    """Images to maps on the group p4 of shifts and quarter turns: (N, C, H, W) -> (N, O, 4, H, W).

    Map r is the convolution with the kernel turned r times counter-clockwise; weight (O, C, K, K),
    bias (O,), stride and padding are ints. Turning the input turns the maps and moves them on by
    one: out[:, :, r] becomes out[:, :, r - 1], turned. A mean or maximum over the third axis is
    equivariant as an image is; `GlobalPool` over all gives what no quarter turn changes.

    ValueError for inputs of another shape, and for a stride whose windows do not end at the edge.
    Cohen, Welling, "Group equivariant convolutional networks", ICML 2016, arXiv:1602.07576,
    section 6.1.

    >>> import numpy as np
    >>> from fusednn import nn
    >>> layer, x = nn.P4ConvZ2(1, 2, 3), np.eye(5, dtype=np.float32)[None, None]
    >>> y, turned = layer(x).numpy(), layer(np.rot90(x, 1, (2, 3))).numpy()
    >>> bool(np.allclose(turned, np.rot90(np.roll(y, 1, 2), 1, (3, 4)), atol=1e-6))
    True
    """

    _mirrored, _lifting = False, True


class P4ConvP4(_GroupConv):
    """A convolution on the group p4: (N, C, 4, H, W) -> (N, O, 4, H_out, W_out).

    weight (O, C, 4, K, K), bias (O,). Map r sums over the input's maps s, each with part s - r of
    the kernel, turned r times. Otherwise as P4ConvZ2.

    >>> import numpy as np
    >>> from fusednn import nn
    >>> net = nn.Sequential(nn.P4ConvZ2(1, 2, 3), nn.ReLU(), nn.P4ConvP4(2, 5, 3))
    >>> net(np.zeros((1, 1, 8, 8), np.float32)).shape
    (1, 5, 4, 4, 4)
    """

    _mirrored, _lifting = False, False


class P4MConvZ2(_GroupConv):
    """Images to maps on the group p4m, with flips too: (N, C, H, W) -> (N, O, 8, H_out, W_out).

    Map 4 m + r is the convolution with the kernel turned r times and, if m is 1, then flipped left
    to right. Otherwise as P4ConvZ2.

    >>> import numpy as np
    >>> from fusednn import nn
    >>> nn.P4MConvZ2(3, 2, 3, padding=1)(np.zeros((1, 3, 6, 6), np.float32)).shape
    (1, 2, 8, 6, 6)
    """

    _mirrored, _lifting = True, True


class P4MConvP4M(_GroupConv):
    """A convolution on the group p4m: (N, C, 8, H, W) -> (N, O, 8, H_out, W_out).

    weight (O, C, 8, K, K), bias (O,). Otherwise as P4ConvP4, with the order of P4MConvZ2.

    >>> from fusednn import nn
    >>> nn.P4MConvP4M(2, 3, 3).weight.shape
    (3, 2, 8, 3, 3)
    """

    _mirrored, _lifting = True, False


# ---- pooling over transformed inputs -------------------------------------------------------------


class GroupPool(Module):
    """Any module made invariant: the "mean", "sum" or "max" of its outputs for an input's images
    under a group.

    group: "mirror" (the input and its left-right flip), "c4" (its four quarter turns) or "d4"
    (both, eight). The module gets all of them as one batch: input (N, ..., H, W) -> module of
    (2, 4 or 8 * N, ..., H, W) -> combined over the images. Outputs are scores or vectors: maps are
    not turned back.

    ValueError where c4 or d4 meet images that are not square, TypeError for a module's output that
    is no Tensor. The sum over a group of Cohen, Welling, ICML 2016, section 6.3, taken outside.

    >>> import numpy as np
    >>> from fusednn import nn
    >>> net = nn.GroupPool(nn.Sequential(nn.Flatten(), nn.Linear(9, 2)), group="c4")
    >>> x = np.arange(9, dtype=np.float32).reshape(1, 1, 3, 3)
    >>> bool(np.allclose(net(x).numpy(), net(np.rot90(x, 1, (2, 3))).numpy(), atol=1e-5))
    True
    """

    def __init__(self, module: Module, group: str = "mirror", reduce: str = "mean") -> None:
        super().__init__()
        if not isinstance(module, Module):
            raise TypeError(f"GroupPool: module must be a Module, got {type(module).__name__}")
        elements = {"mirror": (0, 4), "c4": range(4), "d4": range(8)}
        if group not in elements:
            raise ValueError(f"GroupPool: group={group!r}, expected {_one_of(elements)}")
        if reduce not in ("mean", "sum", "max"):
            raise ValueError(f"GroupPool: reduce={reduce!r}, expected 'mean', 'sum' or 'max'")
        self.module, self.group, self.reduce = module, group, reduce
        self._elements = tuple(elements[group])

    def forward(self, input: Any) -> Any:
        """(N, ..., H, W) -> what the module gives for (N, ..., H, W)."""
        shape = input.shape
        if len(shape) < 2 + (self.group != "mirror"):
            raise ValueError(f"GroupPool: input has shape {shape}, expected (N, ..., H, W)")
        if self.group != "mirror" and shape[-1] != shape[-2]:
            raise ValueError(
                f"GroupPool: input has shape {shape}; group={self.group!r} needs square images"
            )
        out = self.module(cat([symmetry.D4.act(input, g) for g in self._elements]))
        if not isinstance(out, TensorBase):
            raise TypeError(
                f"GroupPool: the module gave a {type(out).__name__}, expected one Tensor"
            )
        count = len(self._elements)
        found: Array = raw(out)
        if found.ndim == 0 or found.shape[0] != count * shape[0]:
            raise ValueError(
                f"GroupPool: the module gave shape {found.shape} for a batch of "
                f"{count * shape[0]}, expected that many rows"
            )
        parts: Any = out.reshape(count, shape[0], *found.shape[1:])  # type: ignore[attr-defined]
        if self.reduce == "max":
            return parts.amax(0)
        return parts.mean(0) if self.reduce == "mean" else parts.sum(0)

    def extra_repr(self) -> str:
        return f"group={self.group!r}, reduce={self.reduce!r}"


__all__ = [
    "GroupPool",
    "MirrorConv1d",
    "MirrorConv2d",
    "P4ConvP4",
    "P4ConvZ2",
    "P4MConvP4M",
    "P4MConvZ2",
]
