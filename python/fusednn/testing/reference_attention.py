"""Plain twins of scaled dot-product attention: all scores at once, in the dtype of the inputs.

Called with float64 (or long double) arrays they are the truth; with `naive=True` they add one
product after another in the arrays' own precision, as the textbook's loops would. They follow the
definition word for word and share nothing with the kernels: no blocks, no running maxima.

Arrays are (B, H, T, D); key and value may have fewer heads, shared by neighbouring query heads.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .reference import naive_gemm

Array = NDArray[Any]


def allowed(
    shape: tuple[int, ...],
    is_causal: bool | str = False,
    window: tuple[int | None, int | None] = (None, None),
    lengths: tuple[Array | None, Array] | None = None,
    cu_seqlens: tuple[Array, Array] | None = None,
    attn_mask: Array | None = None,
) -> NDArray[np.bool_]:
    """Which of the (B, H, Tq, Tk) pairs may meet: each rule as it is written, pair by pair."""
    batch, _, queries, keys = shape
    result = np.zeros(shape, bool)
    for b in range(batch):
        sequences = [(0, queries, 0, keys)]
        if lengths is not None:
            rows = queries if lengths[0] is None else int(lengths[0][b])
            sequences = [(0, rows, 0, int(lengths[1][b]))]
        if cu_seqlens is not None:
            q, k = cu_seqlens
            ends = (q[:-1], q[1:], k[:-1], k[1:])
            sequences = [(int(a), int(b), int(c), int(d)) for a, b, c, d in zip(*ends, strict=True)]
        for q0, q1, k0, k1 in sequences:
            i = np.arange(q1 - q0)[:, None]
            j = np.arange(k1 - k0)[None, :]
            at = i + ((k1 - k0) - (q1 - q0) if is_causal == "lower_right" else 0)
            ok = np.ones((q1 - q0, k1 - k0), bool)
            if is_causal:
                ok &= j <= at
            if window[0] is not None:
                ok &= j >= at - window[0]
            if window[1] is not None:
                ok &= j <= at + window[1]
            result[b, :, q0:q1, k0:k1] = ok
    if attn_mask is not None:
        result &= attn_mask if attn_mask.dtype == bool else attn_mask != -np.inf
    return result


class Reference(NamedTuple):
    output: Array
    weights: Array  # without dropout
    query: Array | None  # gradients, if grad was given
    key: Array | None
    value: Array | None
    mask: Array | None  # of all (B, H, Tq, Tk) scores


def _shared(array: Array, heads: int) -> Array:
    each = heads // array.shape[1] if array.shape[1] else 1
    return np.repeat(array, each, axis=1)


def _unshared(grad: Array, heads: int) -> Array:
    b, h, t, d = grad.shape
    if not heads:
        return grad
    return np.asarray(grad.reshape(b, heads, h // heads, t, d).sum(axis=2))


def attention(
    query: Array,
    key: Array,
    value: Array,
    grad: Array | None = None,
    *,
    attn_mask: Array | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    keep: Array | None = None,
    naive: bool = False,
    **rules: Any,
) -> Reference:
    """Output, weights and, for `grad` of the output, all gradients.

    keep (B, H, Tq, Tk): what dropout multiplies the weights with. `rules`: those of `allowed`.
    """
    gemm = naive_gemm if naive else np.matmul
    heads, kv_heads = query.shape[1], key.shape[1]
    k, v = _shared(key, heads), _shared(value, heads)
    dtype = query.dtype.type
    s = dtype(query.shape[-1] ** -0.5 if scale is None else scale)
    ok = allowed((*query.shape[:3], key.shape[2]), attn_mask=attn_mask, **rules)
    scores = gemm(query, k.swapaxes(-1, -2)) * s
    slope = np.ones_like(scores)
    if softcap is not None:
        t = np.tanh(scores / dtype(softcap))
        scores, slope = t * dtype(softcap), 1 - t * t
    if attn_mask is not None and attn_mask.dtype != bool:
        scores = np.where(ok, scores + attn_mask, scores)
    scores = np.where(ok, scores, dtype(-np.inf))
    top = scores.max(axis=-1, keepdims=True, initial=-np.inf)
    exps = np.where(ok, np.exp(scores - np.where(np.isneginf(top), 0, top)), 0).astype(dtype)
    sums = exps.sum(axis=-1, keepdims=True)
    weights = np.where(sums == 0, 0, exps / np.where(sums == 0, 1, sums)).astype(dtype)
    used = weights if keep is None else weights * keep.astype(dtype)
    output = gemm(used, v)
    if grad is None:
        return Reference(output, weights, None, None, None, None)
    d_used = gemm(grad, v.swapaxes(-1, -2))
    d_weights = d_used if keep is None else d_used * keep.astype(dtype)
    d_masked = weights * (d_weights - (weights * d_weights).sum(axis=-1, keepdims=True))
    d_scores = d_masked * slope * s
    return Reference(
        output,
        weights,
        gemm(d_scores, k),
        _unshared(gemm(d_scores.swapaxes(-1, -2), query), kv_heads),
        _unshared(gemm(used.swapaxes(-1, -2), grad), kv_heads),
        d_masked,
    )


def dropout_factors(key: int, shape: tuple[int, int, int], p: float) -> Array:
    """What dropout multiplies the weights of (heads of all sequences, Tq, Tk) with: Philox 4x32-10
    of (key; key group, query, head), word by word."""
    heads, queries, keys = shape
    j = np.arange(keys)
    x: list[Any] = [
        np.broadcast_to((j // 64 * 16 + j % 16).astype(np.uint64), shape),
        np.broadcast_to(np.arange(queries, dtype=np.uint64)[:, None], shape),
        np.broadcast_to(np.arange(heads, dtype=np.uint64)[:, None, None], shape),
        np.zeros(shape, np.uint64),
    ]
    low = np.uint64(0xFFFFFFFF)
    k0, k1 = key & 0xFFFFFFFF, key >> 32
    for _ in range(10):
        a, b = x[0] * np.uint64(0xD2511F53), x[2] * np.uint64(0xCD9E8D57)
        x = [
            (b >> np.uint64(32)) ^ x[1] ^ np.uint64(k0),
            b & low,
            (a >> np.uint64(32)) ^ x[3] ^ np.uint64(k1),
            a & low,
        ]
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    words = np.choose(np.broadcast_to(j // 16 % 4, shape), x)
    return np.where(words >= np.uint64(int(p * 2**32)), 1 / (1 - p) if p < 1 else 0.0, 0.0)
