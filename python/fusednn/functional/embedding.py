"""Embeddings: rows of a table by number, and positions as rotations."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import _core
from .._tensor.tape import Array, Gradients, Node, TensorBase, needs, raw, record


def embedding(
    input: Any, weight: Any, padding_idx: int | None = None, *, scale_grad_by_freq: bool = False
) -> Any:
    """Rows of weight: input (...) of any integer dtype, weight (V, D) -> (..., D).

    The gradient of a row is the sum over the places that name it, in their order; that of row
    padding_idx (negative counts from the end) is 0; scale_grad_by_freq divides by the number of
    places. ValueError naming value and place for an id that is not in [0, V), TypeError for ids
    that are no integers.

    >>> import numpy as np, fusednn.functional as F
    >>> F.embedding(np.array([2, 0]), np.array([[1.0], [2.0], [3.0]]))
    array([[3.],
           [1.]])
    """
    ids, table = raw(input), raw(weight)
    skipped = _padding_row(padding_idx, table)
    out = _core.embedding_forward(ids, table)
    if not (isinstance(weight, TensorBase) or isinstance(input, TensorBase)):
        return out
    keep = (input,) if needs(weight) else ()
    context = (table.shape[0], skipped, scale_grad_by_freq)
    return record(out, _embedding_backward, (weight,), keep, context)


def _embedding_backward(node: Node, grad: Any) -> Gradients:
    return (_core.embedding_backward(grad, *node.saved),)


def _padding_row(padding_idx: int | None, table: Any) -> int:
    if padding_idx is None:
        return -1
    rows = np.shape(table)[0] if np.ndim(table) else 0
    if not -rows <= padding_idx < rows:
        raise ValueError(
            f"embedding: padding_idx={padding_idx} is out of range for weight of shape "
            f"{np.shape(table)}"
        )
    return padding_idx % rows


def rotary_embedding(
    input: Any,
    cos: Any,
    sin: Any,
    position_ids: Any = None,
    *,
    interleaved: bool = False,
    num_heads: int = 0,
    rotary_dim: int = 0,
) -> Any:
    """Turns pairs (u, v) of every head by angles that grow with the position.

    u' = u * cos - v * sin, v' = u * sin + v * cos. input: (N, heads, T, E), or (N, T, heads * E)
    with num_heads. The first rotary_dim of a head's E numbers (0: all) are turned, the rest kept;
    pairs are (i, i + rotary_dim / 2), or (2 i, 2 i + 1) if interleaved. cos, sin: (positions,
    rotary_dim / 2), of which position_ids (N, T) picks rows, without it the first T in order; or
    (N, T, rotary_dim / 2) for each place. They are constants: no gradient flows to them.
    ValueError for shapes that do not fit and positions out of range.

    Su et al., "RoFormer", Neurocomputing 568 (2024); the options are those of ONNX's
    RotaryEmbedding.

    >>> import numpy as np, fusednn.functional as F
    >>> quarter = np.array([[1.0], [0.0]]), np.array([[0.0], [1.0]])
    >>> F.rotary_embedding(np.ones((1, 1, 2, 2)), *quarter)[0, 0]
    array([[ 1.,  1.],
           [-1.,  1.]])
    """
    if needs(cos) or needs(sin):
        raise ValueError("rotary_embedding: cos and sin are constants, but one requires grad")
    options = (raw(cos), raw(sin), raw(position_ids), interleaved, num_heads, rotary_dim)
    out = _core.rotary(raw(input), *options, False)
    if not isinstance(input, TensorBase):
        return out
    if not needs(input):
        return record(out, _rotary_embedding_backward, (input,))
    return record(out, _rotary_embedding_backward, (input,), (cos, sin, position_ids), options[3:])


def _rotary_embedding_backward(node: Node, grad: Any) -> Gradients:
    cos, sin, ids, interleaved, num_heads, rotary_dim = node.saved
    return (_core.rotary(grad, cos, sin, ids, interleaved, num_heads, rotary_dim, True),)


def rotary_angles(
    length: int, rotary_dim: int, base: float = 10000.0, *, dtype: Any = np.float32
) -> tuple[Array, Array]:
    """cos and sin (length, rotary_dim / 2) of position * base**(-2 i / rotary_dim).

    For `rotary_embedding`; computed in float64.

    >>> import fusednn.functional as F
    >>> cos, sin = F.rotary_angles(2, 2)
    >>> cos.shape
    (2, 1)
    """
    if rotary_dim < 0 or rotary_dim % 2 or length < 0:
        raise ValueError(
            f"rotary_angles: length={length} and rotary_dim={rotary_dim}, expected a length of at "
            "least 0 and an even rotary_dim"
        )
    frequency = base ** (-np.arange(0, rotary_dim, 2) / max(rotary_dim, 1))
    angle = np.outer(np.arange(length), frequency)
    return np.cos(angle).astype(dtype), np.sin(angle).astype(dtype)


__all__ = ["embedding", "rotary_angles", "rotary_embedding"]
