"""Helpers around modules."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import numpy as np

from ..._tensor.shape import cat
from ..._tensor.tape import TensorBase
from ..._tensor.tensor import Tensor
from ...functional.activation import floats
from ...optim.clip import clip_grad_norm_, clip_grad_value_
from ..container import Sequential
from ..conv import _Conv
from ..dense import Identity, Linear
from ..module import Module
from ..norm import BatchNorm
from ..parameter import Parameter
from . import rnn

M = TypeVar("M", bound=Module)


def parameters_to_vector(parameters: Iterable[TensorBase]) -> Tensor:
    """All parameters one after the other in one vector, with gradient.

    >>> from fusednn import nn
    >>> nn.utils.parameters_to_vector(nn.Linear(2, 3).parameters()).shape
    (9,)
    """
    return cat([parameter.reshape(-1) for parameter in parameters])  # type: ignore[attr-defined, no-any-return]


def vector_to_parameters(vec: Any, parameters: Iterable[TensorBase]) -> None:
    """Writes a vector back into the parameters; ValueError unless it has just their length.

    >>> from fusednn import nn
    >>> import fusednn as fn
    >>> layer = nn.Linear(2, 3)
    >>> nn.utils.vector_to_parameters(fn.zeros(9), layer.parameters())
    """
    values, targets = floats("vector_to_parameters", vec, "vec"), list(parameters)
    total = sum(math.prod(target._data.shape) for target in targets)
    if values.shape != (total,):
        raise ValueError(f"vector_to_parameters: vec has shape {values.shape}, expected ({total},)")
    at = 0
    for target in targets:
        size = target._data.size
        target._data[...] = values[at : at + size].reshape(target._data.shape)
        target._memory[0] += 1
        at += size


# ---- folding normalisation into what stands before it --------------------------------------------


def fuse_conv_bn(conv: M, bn: Module) -> M:
    """A convolution that computes bn(conv(x)) for a BatchNorm in evaluation: a new layer.

    weight * s and (bias - mean) * s + shift with s = scale / sqrt(variance + eps), computed in
    float64. conv may be a Conv, MirrorConv or Linear. ValueError in training mode, without running
    statistics, if the channels differ, or for a MirrorConv of maxima.

    >>> from fusednn import nn
    >>> conv, bn = nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8)
    >>> nn.utils.fuse_conv_bn(conv.eval(), bn.eval()).bias is None
    False
    """
    if not isinstance(conv, (_Conv, Linear)) or not isinstance(bn, BatchNorm):
        raise TypeError(
            f"fuse_conv_bn: expected a convolution and a BatchNorm, got {type(conv).__name__} and "
            f"{type(bn).__name__}"
        )
    if not _is_linear(conv):
        raise ValueError(f"fuse_conv_bn: {conv!r} is not linear, so that nothing folds into it")
    if bn.training or bn.running_mean is None or bn.running_var is None:
        raise ValueError("fuse_conv_bn: bn must be in evaluation mode, with running statistics")
    weight = conv.weight._data
    if weight.shape[0] != bn.num_features:
        raise ValueError(
            f"fuse_conv_bn: conv gives {weight.shape[0]} channels, bn takes {bn.num_features}"
        )
    scale = 1 / np.sqrt(bn.running_var._data.astype(np.float64) + bn.eps)
    if bn.weight is not None:
        scale *= bn.weight._data
    shift = -bn.running_mean._data * scale
    if conv.bias is not None:
        shift += conv.bias._data * scale
    if bn.bias is not None:
        shift += bn.bias._data
    fused = copy.deepcopy(conv)
    per_output = scale.reshape(-1, *(1,) * (weight.ndim - 1))
    fused.weight = Parameter((weight * per_output).astype(weight.dtype))
    fused.bias = Parameter(shift.astype(weight.dtype))
    return fused


def _is_linear(module: Module) -> bool:
    return not isinstance(module, _Conv) or module._linear


def fuse_modules(model: M, pairs: Sequence[tuple[str, str]] | None = None) -> M:
    """A copy of the model for evaluation with its BatchNorms folded into their convolutions.

    pairs: dotted names of each convolution and its BatchNorm; by default those that stand side by
    side in a Sequential. A folded BatchNorm becomes an Identity, so that names stay.

    >>> from fusednn import nn
    >>> net = nn.Sequential(nn.Conv1d(2, 4, 3), nn.BatchNorm1d(4), nn.ReLU())
    >>> nn.utils.fuse_modules(net)[1]
    Identity()
    """
    fused = copy.deepcopy(model).eval()
    for first, second in _neighbours(fused) if pairs is None else pairs:
        conv, bn = fused.get_submodule(first), fused.get_submodule(second)
        _replace(fused, first, fuse_conv_bn(conv, bn))
        _replace(fused, second, Identity())
    return fused


def _neighbours(model: Module) -> list[tuple[str, str]]:
    found = []
    for path, module in model.named_modules():
        if not isinstance(module, Sequential):
            continue
        children = [(f"{path}.{n}" if path else n, child) for n, child in module.named_children()]
        for (first, a), (second, b) in itertools.pairwise(children):
            tracked = isinstance(b, BatchNorm) and b.running_mean is not None
            if isinstance(a, (_Conv, Linear)) and _is_linear(a) and tracked:
                found.append((first, second))
    return found


def _replace(model: Module, name: str, module: Module) -> None:
    path, _, last = name.rpartition(".")
    parent = model.get_submodule(path)
    parent._register(parent._modules, last, module)


__all__ = [
    "clip_grad_norm_",
    "clip_grad_value_",
    "fuse_conv_bn",
    "fuse_modules",
    "parameters_to_vector",
    "rnn",
    "vector_to_parameters",
]
