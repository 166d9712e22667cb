"""Features as heads: what a projection for attention gives, seen head by head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .._tensor.device import namespace
from .._tensor.tape import (
    Array,
    Gradients,
    Node,
    TensorBase,
    new_result,
    raw,
    record_outputs,
)

Parts = Sequence[tuple[int, int]]


def split_heads(input: Any, parts: Parts, time_first: bool = False) -> tuple[Any, ...]:
    """input (N, T, features) cut into one (N, heads, T, width) for each (heads, width) of parts.

    Views, no copies; the gradients come back as one array. time_first: input is (T, N, features).

    >>> import numpy as np, fusednn.functional as F
    >>> [part.shape for part in F.split_heads(np.zeros((2, 5, 12)), [(2, 4), (1, 4)])]
    [(2, 2, 5, 4), (2, 1, 5, 4)]
    """
    x = raw(input)
    total = sum(heads * width for heads, width in parts)
    if x.ndim != 3 or x.shape[2] != total:
        raise ValueError(
            f"split_heads: input has shape {x.shape}, expected three axes, the last of {total}"
        )
    outputs = _views(x, parts, time_first)
    if not isinstance(input, TensorBase):
        return outputs
    context = (x.shape, tuple(parts), time_first)
    return _views_of(input, record_outputs(outputs, _split_heads_backward, (input,), (), context))


def _new_like(shape: tuple[int, ...], grads: Any) -> Array:
    """A new array beside the gradients, some of which may be None."""
    grad = next(one for one in grads if one is not None)
    if isinstance(grad, np.ndarray):
        return new_result(shape, grad.dtype)
    empty: Array = namespace(grad).empty(shape, grad.dtype)
    return empty


def _views_of(source: TensorBase, views: tuple[Any, ...]) -> tuple[Any, ...]:
    # They share its memory, and with that its version: a change in between is seen in backward.
    for view in views:
        view._memory = source._memory
    return views


def _views(x: Array, parts: Parts, time_first: bool) -> tuple[Array, ...]:
    views, at = [], 0
    order = (1, 2, 0, 3) if time_first else (0, 2, 1, 3)
    for heads, width in parts:
        part = x[..., at : at + heads * width]
        views.append(part.reshape(*x.shape[:2], heads, width).transpose(order))
        at += heads * width
    return tuple(views)


def _split_heads_backward(node: Node, grads: Any) -> Gradients:
    shape, parts, time_first = node.saved
    out = _new_like(shape, grads)
    for view, grad in zip(_views(out, parts, time_first), grads, strict=True):
        view[...] = 0 if grad is None else grad
    return (out,)


def split_rows(input: Any, sizes: Sequence[int]) -> tuple[Any, ...]:
    """input (n, ...) cut along its first axis; the gradients come back as one array.

    >>> [part.shape for part in split_rows(np.zeros((5, 2)), (3, 2))]
    [(3, 2), (2, 2)]
    """
    ends = np.cumsum(sizes)
    views = tuple(raw(input)[end - n : end] for n, end in zip(sizes, ends, strict=True))
    if not isinstance(input, TensorBase):
        return views
    context = (raw(input).shape, ends)
    return _views_of(input, record_outputs(views, _split_rows_backward, (input,), (), context))


def _split_rows_backward(node: Node, grads: Any) -> Gradients:
    shape, ends = node.saved
    out = _new_like(shape, grads)
    for begin, end, grad in zip((0, *ends[:-1]), ends, grads, strict=True):
        out[begin:end] = 0 if grad is None else grad
    return (out,)


__all__ = ["split_heads", "split_rows"]
