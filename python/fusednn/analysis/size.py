"""How large a network is, and how much work."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from .. import nn
from .._tensor.mode import no_grad
from .._tensor.tape import TensorBase, raw
from ..nn.conv import _Conv
from ..nn.conv_transpose import _ConvTranspose
from ..nn.locally_connected import _LocallyConnected
from ..nn.pool import AvgPool1d, _MaxPool
from ..nn.recurrent import _Stack
from ..nn.symmetry import _GroupConv
from .trace import Call, evaluating, first, inputs, named, watching


def count_parameters(model: nn.Module, trainable: bool | None = None) -> int:
    """The number of weights, shared ones once; trainable: only those that (do not) need gradients.

    >>> from fusednn import nn
    >>> from fusednn.analysis import count_parameters
    >>> count_parameters(nn.Conv2d(3, 1, 3, bias=False))
    27
    """
    return sum(
        parameter.numel()
        for parameter in model.parameters()
        if trainable is None or parameter.requires_grad == trainable
    )


@dataclass(frozen=True)
class Row:
    """One call of a layer. parameters: its own, 0 where an earlier row has counted them; flops:
    multiplications and additions; bytes: of what it reads and writes, each once."""

    name: str
    kind: str
    output_shape: tuple[int, ...]
    parameters: int
    flops: int
    bytes: int


@dataclass(frozen=True)
class Summary:
    """The layers in the order in which they ran, and totals; printed as a table."""

    rows: tuple[Row, ...]
    parameters: int

    @property
    def flops(self) -> int:
        """Of all rows."""
        return sum(row.flops for row in self.rows)

    @property
    def bytes(self) -> int:
        """Of all rows."""
        return sum(row.bytes for row in self.rows)

    def __str__(self) -> str:
        head = ("layer", "type", "output", "parameters", "flops", "bytes")
        cells = [
            (r.name, r.kind, str(r.output_shape), f"{r.parameters:,}", f"{r.flops:,}",
             f"{r.bytes:,}")
            for r in self.rows
        ]  # fmt: skip
        total = ("total", "", "", f"{self.parameters:,}", f"{self.flops:,}", f"{self.bytes:,}")
        table = [head, *cells, total]
        widths = [max(len(line[i]) for line in table) for i in range(len(head))]
        return "\n".join(
            "  ".join(
                cell.ljust(width) if i < 3 else cell.rjust(width)
                for i, (cell, width) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in table
        )


def summary(model: nn.Module, input_shape: Any, *, dtype: Any = None) -> Summary:
    """Every layer's output shape, parameters, operations and bytes for one call of the model.

    input_shape: with the batch, (N, ...), for zeros of `dtype` (float32); or an array, as token ids
    need it; or a list of these for several arguments. A product with an addition counts as two
    operations; layers without products count one for each element of the output (windows: of all
    windows). What happens between layers is not seen.

    >>> from fusednn import nn
    >>> from fusednn.analysis import summary
    >>> print(summary(nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU()), (1, 1, 5, 5)))
    layer  type    output        parameters  flops  bytes
    0      Conv2d  (1, 2, 3, 3)          20    342    252
    1      ReLU    (1, 2, 3, 3)           0     18    144
    total                                20    360    396
    """
    arguments = inputs("summary", input_shape, dtype)
    with no_grad(), evaluating(model), watching(model) as calls:
        model(*arguments)
    seen: set[int] = set()
    rows = tuple(_row(name, call, seen) for name, call in named(calls))
    return Summary(rows, count_parameters(model))


def _row(name: str, call: Call, seen: set[int]) -> Row:
    own = list(call.module.parameters(recurse=False))
    new = [parameter for parameter in own if id(parameter) not in seen]
    seen.update(map(id, new))
    out = first(call.output)
    shape = tuple(out.shape)
    moved = [raw(a) for a in _flat(call.args)] + [raw(a) for a in _flat(call.output)]
    moved += [parameter._data for parameter in own]
    return Row(
        name,
        type(call.module).__name__,
        shape,
        sum(parameter.numel() for parameter in new),
        _flops(call, shape),
        sum(array.nbytes for array in moved),
    )


def _flat(value: Any) -> list[Any]:
    if isinstance(value, (tuple, list)):
        return [one for part in value for one in _flat(part)]
    return [value] if isinstance(value, TensorBase) or hasattr(value, "nbytes") else []


def _taps(kernel: Any, spatial: int) -> int:
    return int(kernel**spatial if hasattr(kernel, "__index__") else math.prod(kernel))


def _flops(call: Call, shape: tuple[int, ...]) -> int:
    module, size = call.module, math.prod(shape)
    if isinstance(module, _Conv):
        copies = 1
        if isinstance(module, (nn.MirrorConv1d, nn.MirrorConv2d)) and module.combine == "max":
            copies = 2 ** len(module._mirrored)
        taps = module.in_channels // module.groups * math.prod(module.kernel_size)
        return copies * size * (2 * taps + (module.bias is not None)) + (copies - 1) * size
    if isinstance(module, _GroupConv):
        channels = module.in_channels * (1 if module._lifting else module.order)
        return size * (2 * channels * module.kernel_size**2 + (module.bias is not None))
    if isinstance(module, _LocallyConnected):
        taps = module.in_channels * math.prod(module.kernel_size)
        return size * (2 * taps + (module.bias is not None))
    if isinstance(module, _ConvTranspose):
        taps = module.out_channels // module.groups * math.prod(module.kernel_size)
        return 2 * int(raw(call.args[0]).size) * taps + (module.bias is not None) * size
    if isinstance(module, nn.Linear):
        return size * (2 * module.in_features + (module.bias is not None))
    if isinstance(module, _Stack):
        return _recurrent_flops(module, raw(call.args[0]).shape)
    if isinstance(module, nn.MultiheadAttention):
        return _attention_flops(module, call.args)
    if isinstance(module, (_MaxPool, AvgPool1d)):
        return size * _taps(module.kernel_size, len(shape) - 2)
    free = (nn.Flatten, nn.Unflatten, nn.Identity, nn.Embedding, nn.Dropout)
    if isinstance(module, free) or next(module.children(), None) is not None:
        return 0
    return size


def _recurrent_flops(module: _Stack, shape: tuple[int, ...]) -> int:
    positions = math.prod(shape[:-1])
    products = sum(weight.numel() for weight in module.parameters() if weight.ndim == 2)
    sums = sum(bias.numel() for bias in module.parameters() if bias.ndim == 1)
    return positions * (2 * products + sums)


def _attention_flops(module: nn.MultiheadAttention, args: tuple[Any, ...]) -> int:
    """The projections into heads, the scores and the weighted sums; out_proj is a layer."""
    query, key, value = (raw(one).shape for one in args[:3])
    rows = [int(math.prod(shape[:-1])) for shape in (query, key, value)]
    widths = [heads * width for heads, width in module._parts()]
    inside = (module.embed_dim, module.kdim, module.vdim)
    total = sum(2 * n * a * b for n, a, b in zip(rows, inside, widths, strict=True))
    if module.in_proj_bias is not None:
        total += sum(n * b for n, b in zip(rows, widths, strict=True))
    batch = 0 if module.batch_first else 1
    keys: int = key[0] if len(key) == 2 else key[1 - batch]
    return total + 2 * rows[0] * keys * module.num_heads * (module.kdim_head + module.vdim_head)


__all__ = ["Row", "Summary", "count_parameters", "summary"]
