"""Scaled dot-product attention, fused: no array of queries times keys is ever made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import _core, random
from .._tensor.tape import TensorBase, raw

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
    """softmax(query key^T * scale) value for each head: what each query finds in the values.

    >>> import numpy as np, fusednn.functional as F
    >>> F.scaled_dot_product_attention(np.zeros((1, 2)), np.zeros((2, 2)), np.array([[1.0], [3.0]]))
    array([[2.]])
    """
    causal = _causal(is_causal)
    extra = _extra(dropout_p if training else 0.0, window, softcap, lengths, cu_seqlens)
    arrays = raw(query), raw(key), raw(value)
    out, _ = _core.attention_forward(
        *arrays, raw(attn_mask), causal, scale, enable_gqa, extra, False
    )
    return out


def _causal(is_causal: Any) -> int:
    try:
        return _CAUSAL[is_causal]
    except (KeyError, TypeError):
        raise ValueError(
            f"{_OP}: is_causal={is_causal!r}, expected True, False or 'lower_right'"
        ) from None


def _extra(dropout: float, window: Window, softcap: Any, lengths: Any, cu_seqlens: Any) -> Any:
    """What the kernel takes as its tuple of rare arguments, or None."""
    if not dropout and window is None and softcap is None and lengths is None:
        if cu_seqlens is None:
            return None
    if window is None or isinstance(window, int):
        left = right = window
    else:
        left, right = window
    if lengths is not None and cu_seqlens is not None:
        raise ValueError(f"{_OP}: lengths and cu_seqlens exclude each other")
    key = int(random.next_generator().bit_generator.random_raw()) if dropout else 0
    query_lengths, key_lengths = _pair(lengths, True)
    query_starts, key_starts = _pair(cu_seqlens, False)
    return (
        left,
        right,
        0.0 if softcap is None else float(softcap),
        float(dropout),
        key,
        query_lengths,
        key_lengths,
        query_starts,
        key_starts,
    )


def _pair(value: Any, keys_only: bool) -> tuple[Any, Any]:
    if value is None:
        return None, None
    if isinstance(value, tuple) and len(value) == 2 and not np.isscalar(value[0]):
        return np.asarray(raw(value[0])), np.asarray(raw(value[1]))
    one = np.asarray(raw(value))
    return (None if keys_only else one), one


__all__ = ["scaled_dot_product_attention"]
