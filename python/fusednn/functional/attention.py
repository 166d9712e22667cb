"""Scaled dot-product attention, fused: no array of queries times keys is made on the way."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import _core, random
from .._tensor.arithmetic import unbroadcast
from .._tensor.autocast import autocasting, widened
from .._tensor.device import as_array, as_cupy, beside, is_array, on_gpu
from .._tensor.mode import grad_enabled
from .._tensor.tape import Gradients, Node, TensorBase, needs, raw, record

_OP = "scaled_dot_product_attention"
_CAUSAL = {False: 0, True: 1, "lower_right": 2}

Window = int | None | Sequence[int | None]


def scaled_dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool | str = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    training: bool = True,
    window: Window = None,
    softcap: float | None = None,
    lengths: Any = None,
    cu_seqlens: Any = None,
) -> Any:
    """softmax(query key^T * scale + attn_mask) value for each head, in memory linear in T.

    query (..., H, Tq, D), key (..., H, Tk, D), value (..., H, Tk, Dv) -> (..., H, Tq, Dv), float32
    or float64, 2 to 4 axes (more: the leading ones as one batch); the axes before T broadcast.
    scale None means 1 / sqrt(D). enable_gqa: query's heads are a multiple of the others', and
    neighbours share keys. Rows may lie anywhere: a (B, T, H, D) array with its axes 1 and 2
    swapped is read in place, and the result lies in memory as query does.

    Which keys a query sees, all at once:
    attn_mask, broadcast to (..., H, Tq, Tk): booleans, True = may attend; or floats of query's
    dtype, added to the scores, where -inf hides a key.
    is_causal: True hides key j from query i < j (the upper-left rule, also for Tq != Tk);
    "lower_right" lines up the last query with the last key, as a cache of keys needs it.
    window: (left, right) keys beside a query's own place (as is_causal places it), None or a
    negative number for no limit; an int for both.
    lengths: (B,) integers: keys at and behind a row's length are padding; or a pair of such for
    queries and keys. cu_seqlens: (N + 1,) integers 0 = c0 <= c1 ...: T holds N sequences one after
    the other, of which each sees only itself; or a pair for queries and keys.
    A query that sees no key gives 0, with gradient 0. A hidden key never matters, even if its
    numbers are NaN.

    softcap c: scores become c * tanh(score / c) before attn_mask is added. dropout_p: each weight
    is 0 with this probability if `training`, the others grow by 1 / (1 - dropout_p).

    key and value may be bfloat16 (arrays of the package ml_dtypes) beside a float32 query: a cache
    in half the bytes, widened exactly where it is read; sums are float32. Such calls have no
    gradient.

    Gradients for query, key, value and an additive mask. ValueError for shapes that do not fit,
    TypeError for dtypes, and where a gradient would have to flow to or past bfloat16.

    Vaswani et al., "Attention is all you need", NeurIPS 2017, section 3.2.1; Dao et al.,
    "FlashAttention", NeurIPS 2022.

    >>> import numpy as np, fusednn.functional as F
    >>> F.scaled_dot_product_attention(np.zeros((1, 2)), np.zeros((2, 2)), np.array([[1.0], [3.0]]))
    array([[2.]])
    """
    causal = _causal(is_causal)
    extra = None
    if dropout_p or not (window is softcap is lengths is cu_seqlens is None):
        extra = _extra(query, dropout_p if training else 0.0, window, softcap, lengths, cu_seqlens)
    options = (causal, scale, enable_gqa, extra)
    if autocasting() is not None:
        query, key, value, attn_mask = widened(query, key, value, attn_mask)
    if getattr(query, "ndim", 0) > 4:
        return _merged(query, key, value, attn_mask, options)
    for one in (query, key, value, attn_mask):
        if isinstance(one, TensorBase):
            return _tracked(query, key, value, attn_mask, options)
    return _core.attention_forward(query, key, value, attn_mask, *options, False)[0]


Options = tuple[int, float | None, bool, Any]  # causal, scale, enable_gqa, extra


def _tracked(query: Any, key: Any, value: Any, mask: Any, options: Options) -> Any:
    inputs = (query, key, value, mask)
    track = grad_enabled() and any(needs(one) for one in inputs)
    arrays = raw(query), raw(key), raw(value), raw(mask)
    out, stats = _core.attention_forward(*arrays, *options, track)
    return record(
        out, _scaled_dot_product_attention_backward, inputs, inputs, (options, stats), True
    )


def _scaled_dot_product_attention_backward(node: Node, grad: Any) -> Gradients:
    q, k, v, mask, _, stats, out = node.saved
    options: Options = node.saved[4]
    *grads, grad_mask = _core.attention_backward(
        q, k, v, mask, *options, as_array(grad), out, stats, node.edges[3] is not None
    )
    # Axes that were broadcast come back in full.
    parts = zip(node.edges, grads, (q, k, v), strict=False)
    return (
        *(None if edge is None else unbroadcast(found, x.shape) for edge, found, x in parts),
        grad_mask,
    )


def _merged(query: Any, key: Any, value: Any, mask: Any, options: Options) -> Any:
    """More than four axes: the leading ones become one."""
    inputs = (query, key, value) if mask is None else (query, key, value, mask)
    for one, name in zip(inputs, ("query", "key", "value", "attn_mask"), strict=False):
        if not is_array(raw(one)):
            raise TypeError(f"{_OP}: {name} must be a NumPy array, got {type(one).__name__}")
    shapes = [tuple(one.shape) for one in inputs]
    try:
        lead = np.broadcast_shapes(*(shape[:-3] for shape in shapes[:3]))
        if len(shapes) > 3 and np.broadcast_shapes(shapes[3][:-3], lead) != lead:
            raise ValueError
    except ValueError:
        names = ", ".join(
            f"{name} {shape}"
            for name, shape in zip(("query", "key", "value", "attn_mask"), shapes, strict=False)
        )
        raise ValueError(f"{_OP}: the axes before the heads do not broadcast: {names}") from None
    q, k, v = (_four(one, lead) for one in inputs[:3])
    if mask is not None and mask.ndim > 3:
        mask = _four(mask, lead)
    if any(isinstance(one, TensorBase) for one in (query, key, value, mask)):
        out = _tracked(q, k, v, mask, options)
    else:
        out = _core.attention_forward(q, k, v, mask, *options, False)[0]
    return out.reshape(*lead, *out.shape[1:])


def _four(one: Any, lead: tuple[int, ...]) -> Any:
    if one.shape[:-3] != lead:
        shape = (*lead, *one.shape[-3:])
        one = np.broadcast_to(one, shape) if is_array(one) else one.expand(shape)
    return one.reshape(math.prod(lead), *one.shape[-3:])


def attention_weights(
    query: Any,
    key: Any,
    attn_mask: Any = None,
    is_causal: bool | str = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    window: Window = None,
    softcap: float | None = None,
    lengths: Any = None,
    cu_seqlens: Any = None,
) -> Any:
    """The weights that `scaled_dot_product_attention` uses, (..., H, Tq, Tk), to look at.

    Arguments as there (2 to 4 axes). Rows add up to 1, or are 0 where a query sees no key. This
    makes the array of all queries times all keys that the fused op avoids. Gradients for query, key
    and an additive mask, so that a loss may ask for weights of a kind; those of hidden keys take no
    part, whatever their gradient.

    >>> import numpy as np, fusednn.functional as F
    >>> F.attention_weights(np.zeros((2, 2)), np.zeros((2, 2)), is_causal=True)
    array([[1. , 0. ],
           [0.5, 0.5]])
    """
    extra = _extra(query, 0.0, window, softcap, lengths, cu_seqlens)
    options: Options = (_causal(is_causal), scale, enable_gqa, extra)
    inputs = (query, key, attn_mask)
    track = grad_enabled() and any(needs(one) for one in inputs)
    weights, stats = _core.attention_weights(raw(query), raw(key), raw(attn_mask), *options, track)
    if not any(isinstance(one, TensorBase) for one in inputs):
        return weights
    context = (options, stats)
    return record(weights, _attention_weights_backward, inputs, inputs, context, True)


def _attention_weights_backward(node: Node, grad: Any) -> Gradients:
    q, k, mask, _, stats, weights = node.saved
    options: Options = node.saved[3]
    grad_q, grad_k, _, grad_mask = _core.attention_weights_backward(
        q, k, mask, *options, as_array(grad), weights, stats, node.edges[2] is not None
    )
    parts = zip(node.edges, (grad_q, grad_k), (q, k), strict=False)
    return (
        *(None if edge is None else unbroadcast(found, x.shape) for edge, found, x in parts),
        grad_mask,
    )


# ---- arguments -----------------------------------------------------------------------------------


def _causal(is_causal: Any) -> int:
    try:
        return _CAUSAL[is_causal]
    except (KeyError, TypeError):
        raise ValueError(
            f"{_OP}: is_causal={is_causal!r}, expected True, False or 'lower_right'"
        ) from None


def _extra(
    query: Any, dropout: float, window: Window, softcap: Any, lengths: Any, cu_seqlens: Any
) -> Any:
    """The rare arguments, as the kernel's binding takes them."""
    if lengths is not None and cu_seqlens is not None:
        raise ValueError(f"{_OP}: lengths and cu_seqlens exclude each other")
    if softcap is not None and not (hasattr(softcap, "__float__") and softcap > 0):
        raise ValueError(f"{_OP}: softcap={softcap!r}, expected a positive number")
    left, right = _window(window)
    # A draw of its own for each call; backward uses the same number.
    key = int(random.next_generator().bit_generator.random_raw()) if dropout else 0
    return (
        left,
        right,
        0.0 if softcap is None else softcap,
        dropout,
        key,
        *_pair(query, lengths, True),
        *_pair(query, cu_seqlens, False),
    )


def _window(window: Any) -> tuple[Any, Any]:
    if window is None or hasattr(window, "__index__"):
        return window, window
    try:
        left, right = window
    except (TypeError, ValueError):
        raise ValueError(f"{_OP}: window={window!r}, expected an int or (left, right)") from None
    return left, right


def _pair(query: Any, value: Any, keys_only: bool) -> tuple[Any, Any]:
    """Arrays for queries and keys from a pair of them, or from one for both (or for keys only)."""
    if value is None:
        return None, None
    if isinstance(value, tuple) and len(value) == 2 and _has_axes(value[0]):
        return _copy(query, value[0]), _copy(query, value[1])
    one = _copy(query, value)
    return (None if keys_only else one), one


def _has_axes(value: Any) -> bool:
    ndim = getattr(value, "ndim", None)
    return bool(np.ndim(value) if ndim is None else ndim)


def _copy(query: Any, value: Any) -> Any:
    """A copy, since backward reads it again; what is no array yet goes to the query's device."""
    value = raw(value)
    if on_gpu(value):
        return as_cupy(value).copy()
    # NumPy's arrays stay where they are, and are refused beside a GPU's.
    one = np.array(value)
    return one if isinstance(value, np.ndarray) else beside(one, raw(query))


__all__ = ["attention_weights", "scaled_dot_product_attention"]
