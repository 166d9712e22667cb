"""What an output looks at: receptive fields, and the connections of a layer."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import _core, nn
from .. import functional as F
from .._tensor.creation import tensor
from .._tensor.tape import Array, TensorBase, raw
from ..nn.conv import _Conv
from ..nn.locally_connected import _LocallyConnected
from ..nn.norm import BatchNorm
from ..nn.pool import AvgPool1d, _MaxPool
from ..nn.symmetry import _GroupConv
from .trace import Call, evaluating, first, named, watching

# ---- connections ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Connections:
    """connections: pairs of an input and an output that a weight joins; weights: independent ones,
    without biases; dense: what a layer that joins everything would have of both."""

    connections: int
    weights: int
    dense: int


def connections(layer: nn.Module, input_shape: Sequence[int]) -> Connections:
    """Counts the connections of a layer for one input of shape (C, ...), without the batch.

    layer: a convolution (mirrored and locally connected ones too) or Linear. Taps that fall on
    padding join nothing. TypeError for other layers, ValueError for shapes that do not fit.

    >>> from fusednn import nn
    >>> from fusednn.analysis import connections
    >>> connections(nn.Conv1d(1, 1, 3), (1, 10))
    Connections(connections=24, weights=3, dense=80)
    """
    shape = tuple(input_shape)
    name = type(layer).__name__
    if isinstance(layer, nn.Linear):
        if not shape or shape[-1] != layer.in_features:
            raise ValueError(
                f"connections: input_shape {shape}, expected (..., {layer.in_features}) for {name}"
            )
        positions, weights = math.prod(shape[:-1]), layer.weight.numel()
        return Connections(positions * weights, weights, positions**2 * weights)
    if not isinstance(layer, (_Conv, _LocallyConnected)):
        raise TypeError(f"connections: layer is a {name}, expected a convolution or Linear")
    spatial = layer._spatial
    if len(shape) != spatial + 1:
        raise ValueError(
            f"connections: input_shape {shape}, expected (C, ...) with {spatial} further sizes"
        )
    groups = layer.groups if isinstance(layer, _Conv) else 1
    kernel = (layer.out_channels, layer.in_channels // groups, *layer.kernel_size)
    output, axes = _core.conv_shape(
        name, spatial, shape, kernel, layer.stride, layer.padding, layer.dilation, groups
    )
    padded = isinstance(layer, _Conv) and layer.padding_mode != "zeros"
    joined = math.prod(kernel[:2])
    for size, out, taps, (stride, dilation, front, _) in zip(
        shape[1:], output[1:], kernel[2:], axes, strict=True
    ):
        at = np.arange(out)[:, None] * stride + np.arange(taps) * dilation - front
        joined *= out * taps if padded else int(((at >= 0) & (at < size)).sum())
    return Connections(joined, layer.weight.numel(), math.prod(shape) * math.prod(output))


# ---- receptive fields ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Field:
    """Position i of a layer's output sees offset + i * stride ... + size - 1 of the input, along
    each axis; None for a layer that sees everything.

    proven: the positions that have a gradient are these, no more and no less.
    """

    name: str
    kind: str
    size: tuple[int, ...] | None
    stride: tuple[int, ...] | None
    offset: tuple[int, ...] | None
    proven: bool

    def __str__(self) -> str:
        if self.size is None:
            return f"{self.name:16} {self.kind:14} everything"
        one = [_short(values) for values in (self.size, self.stride, self.offset)]
        return f"{self.name:16} {self.kind:14} size {one[0]}, stride {one[1]}, offset {one[2]}"


class ReceptiveField(tuple[Field, ...]):
    """The fields of a model's layers in the order in which they ran; printed one a line."""

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            for field in self:
                if field.name == key:
                    return field
            raise KeyError(key)
        return super().__getitem__(key)

    def __str__(self) -> str:
        return "\n".join(map(str, self))


def _short(values: Any) -> str:
    same = len(set(values)) == 1
    return str(values[0]) if same else str(tuple(values))


Reach = tuple[tuple[int, int, int], ...] | None  # per axis size, stride, offset; None: everything


def receptive_field(model: nn.Module, input_shape: Sequence[int]) -> ReceptiveField:
    """What part of the input each layer's output can see.

    input_shape (N, C, ...) with 1 to 3 spatial axes. Size, stride and offset follow from the
    windows of convolutions and pools; branches that are added see what both see. Beyond the input's
    edge, where an offset is negative, they see padding. The result is held against the gradient of
    a position in the middle, in a copy of the model with positive weights, in which no term can
    vanish and pools add up: `Field.proven`. Araujo, Norris, Sim, "Computing receptive fields of
    convolutional neural networks", Distill 2019.

    >>> from fusednn import nn
    >>> from fusednn.analysis import receptive_field
    >>> net = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
    >>> print(receptive_field(net, (1, 1, 8, 8)))
    0                Conv2d         size 3, stride 1, offset -1
    1                ReLU           size 3, stride 1, offset -1
    2                MaxPool2d      size 4, stride 2, offset -1
    """
    shape = tuple(input_shape)
    if not 3 <= len(shape) <= 5:
        raise ValueError(f"receptive_field: input_shape {shape}, expected (N, C, ...), 3 to 5 axes")
    positive = _positive(model)
    values = np.random.default_rng(0).uniform(0.5, 1.5, (1, *shape[1:]))
    x = tensor(values, requires_grad=True)
    with evaluating(positive), watching(positive) as calls:
        positive(x)
    spatial = len(shape) - 2
    known: dict[int, Reach] = {id(x): ((1, 1, 0),) * spatial}
    fields = []
    for name, call in named(calls):
        out = first(call.output)
        reach = _after(call, _known(first(call.args), known), out, spatial)
        known[id(out._node if out._node is not None else out)] = reach
        proven = _proven(x, out, reach, spatial)
        size, stride, offset = (None,) * 3 if reach is None else zip(*reach, strict=True)
        fields.append(Field(name, type(call.module).__name__, size, stride, offset, proven))
    return ReceptiveField(fields)


def _known(value: TensorBase, known: dict[int, Reach]) -> Reach:
    """What a tensor sees: what all known tensors that it was computed from see together."""
    found: list[Reach] = []
    pending: list[Any] = [value._node if value._node is not None else value]
    seen: set[int] = set()
    while pending:
        one = pending.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        if id(one) in known:
            found.append(known[id(one)])
        else:
            pending += getattr(one, "edges", ())
    if not found or any(reach is None for reach in found):
        return None
    return tuple(_union(axes) for axes in zip(*found, strict=True))


def _union(axes: Sequence[tuple[int, int, int]]) -> tuple[int, int, int]:
    strides = {stride for _, stride, _ in axes}
    if len(strides) > 1:
        raise ValueError(f"receptive_field: branches of strides {sorted(strides)} meet")
    start = min(offset for _, _, offset in axes)
    end = max(offset + size for size, _, offset in axes)
    return end - start, strides.pop(), start


def _after(call: Call, reach: Reach, out: Any, spatial: int) -> Reach:
    """What a layer's output sees, if its input sees `reach`."""
    if reach is None:
        return None
    windows = _windows(call.module, call.args[0], spatial)
    if windows is None:
        module = call.module
        mixes = (nn.LayerNorm, nn.GroupNorm, nn.InstanceNorm1d, nn.InstanceNorm2d,
                 nn.InstanceNorm3d, nn.RMSNorm, nn.Linear, nn.MultiheadAttention)  # fmt: skip
        same = out.shape[2:] == call.args[0].shape[2:] and out.ndim == call.args[0].ndim
        return reach if same and not isinstance(module, mixes) else None
    return tuple(
        (size + (taps - 1) * dilation * step, step * stride, offset - front * step)
        for (size, step, offset), (taps, stride, dilation, front) in zip(
            reach, windows, strict=True
        )
    )


def _windows(module: nn.Module, input: Any, spatial: int) -> list[tuple[int, ...]] | None:
    """Per spatial axis taps, stride, dilation and padding in front; None without windows."""
    if isinstance(module, (_Conv, _LocallyConnected)):
        groups = module.groups if isinstance(module, _Conv) else 1
        kernel = (module.out_channels, module.in_channels // groups, *module.kernel_size)
        _, axes = _core.conv_shape(
            "receptive_field", module._spatial, input.shape, kernel, module.stride,
            module.padding, module.dilation, groups,
        )  # fmt: skip
        found: list[Any] = [(k, s, d, p) for k, (s, d, p, _) in zip(kernel[2:], axes, strict=True)]
    elif isinstance(module, _GroupConv):
        found = [(module.kernel_size, module.stride, 1, module.padding)] * spatial
    elif isinstance(module, (_MaxPool, AvgPool1d)):
        axes_count = input.ndim - 2
        dilation = getattr(module, "dilation", 1)
        parts = (module.kernel_size, module.stride, dilation, module.padding)
        spread = [_spread(part, axes_count) for part in parts]
        found = list(zip(*spread, strict=True))
    else:
        return None
    return found[-spatial:]  # axes of a group come before those of the image


def _spread(value: Any, axes: int) -> tuple[int, ...]:
    return (value,) * axes if hasattr(value, "__index__") else tuple(value) * (axes // len(value))


def _positive(model: nn.Module) -> nn.Module:
    """A copy whose weights are positive and whose max-pools add up, so that whatever can have an
    influence has one."""
    out = copy.deepcopy(model).to(np.float64)
    random = np.random.default_rng(1)
    for parameter in out.parameters():
        fan_in = max(1, math.prod(parameter.shape[1:]))
        parameter._data[...] = random.uniform(0.5, 1.5, parameter.shape) / fan_in
        for axis in range(2, parameter.ndim):
            # Heavy at a kernel's edges, so that those of a deep field do not fade from its middle.
            inner = (slice(None),) * axis + (slice(1, -1),)
            parameter._data[inner] *= 0.05
    for module in out.modules():
        if isinstance(module, BatchNorm) and module.running_mean is not None:
            module.running_mean._data[...] = 0
            module.running_var._data[...] = 1  # type: ignore[union-attr]
        if isinstance(module, _MaxPool):
            module.register_forward_hook(_summed)
    return out


def _summed(module: _MaxPool, args: tuple[Any, ...], output: Any) -> Any:
    """The same windows, added up by a convolution of each channel with ones."""
    x, out = args[0], first(output)
    axes = x.ndim - 2
    kernel, stride, dilation, padding = (
        _spread(part, axes)
        for part in (module.kernel_size, module.stride, module.dilation, module.padding)
    )
    sides = []
    for i in range(axes):
        reach = (out.shape[2 + i] - 1) * stride[i] + dilation[i] * (kernel[i] - 1) + 1
        sides.append((padding[i], max(0, reach - padding[i] - x.shape[2 + i])))
    conv = (F.conv1d, F.conv2d, F.conv3d)[axes - 1]
    ones = np.full((x.shape[1], 1, *kernel), 1 / math.prod(kernel))
    total = conv(x, ones, None, stride, sides, dilation, x.shape[1])
    return (total, output[1]) if isinstance(output, tuple) else total


def _proven(x: Any, out: Any, reach: Reach, spatial: int) -> bool:
    if not out.requires_grad or not out._data.size:
        return False
    shape = out.shape
    if reach is None:
        middle = tuple(n // 2 for n in shape)
    else:
        middle = (0,) * (len(shape) - spatial) + tuple(n // 2 for n in shape[-spatial:])
    weights = np.zeros(shape)
    weights[middle] = 1
    x.grad = None
    out.backward(weights, retain_graph=True)
    seen: Array = np.abs(raw(x.grad)).sum((0, 1)) if x.grad is not None else np.zeros(x.shape[2:])
    x.grad = None
    for axis in range(spatial):
        others = tuple(i for i in range(spatial) if i != axis)
        marginal = seen.sum(others)
        # Winograd's algorithm leaves rounding errors where there should be zeros.
        places = np.flatnonzero(marginal > 1e-13 * marginal.max(initial=0))
        first_place, last = (int(places[0]), int(places[-1])) if places.size else (0, -1)
        if reach is None:
            continue  # everything is at least what it sees
        size, stride, offset = reach[axis]
        start = offset + stride * middle[len(shape) - spatial + axis]
        inside = (max(start, 0), min(start + size, x.shape[2 + axis]) - 1)
        if (first_place, last) != inside:
            return False
    return True


__all__ = ["Connections", "Field", "ReceptiveField", "connections", "receptive_field"]
