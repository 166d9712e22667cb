"""Helpers around modules."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from .._tensor.shape import cat
from .._tensor.tape import TensorBase, raw
from .._tensor.tensor import Tensor
from ..optim.clip import clip_grad_norm_, clip_grad_value_


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
    values, targets = raw(vec), list(parameters)
    total = sum(math.prod(target._data.shape) for target in targets)
    if values.shape != (total,):
        raise ValueError(f"vector_to_parameters: vec has shape {values.shape}, expected ({total},)")
    at = 0
    for target in targets:
        size = target._data.size
        target._data[...] = values[at : at + size].reshape(target._data.shape)
        target._memory[0] += 1
        at += size


__all__ = [
    "clip_grad_norm_",
    "clip_grad_value_",
    "parameters_to_vector",
    "vector_to_parameters",
]
