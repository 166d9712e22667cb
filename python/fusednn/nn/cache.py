"""What generation keeps of attention's keys and values."""

from __future__ import annotations

from typing import Any

import numpy as np

from .._tensor.autocast import cast_array
from .._tensor.device import beside, namespace
from .._tensor.tape import Array


class KVCache:
    """Keys and values of the positions so far, (N, heads, length, width) each.

    static: filled by the first call, and read by the later ones, as for a decoder's memory. dtype
    "bfloat16" (with the package ml_dtypes) rounds float32 to the nearest bfloat16: half the memory,
    and half of what a step of generation reads. An output then differs by at most
    (1 + 2**-9) * exp(2 * d) - 1 of the weighted sum of |values|, where d = 2**-9 * scale * the
    largest sum of |query * key|: for keys and queries of usual sizes, well under one percent.
    ImportError without the package, ValueError for another dtype.

    >>> cache = KVCache()
    >>> keys, values = cache.append(np.zeros((1, 2, 3, 4)), np.zeros((1, 2, 3, 5)))
    >>> keys, values = cache.append(np.ones((1, 2, 1, 4)), np.ones((1, 2, 1, 5)))
    >>> cache.length, keys.shape
    (4, (1, 2, 4, 4))
    """

    def __init__(self, static: bool = False, dtype: str | None = None) -> None:
        self.static, self.dtype = static, dtype
        self.length = 0
        self._buffers: list[Array] = []
        self._stored: Any = None if dtype is None else _stored_dtype(dtype)

    def append(self, key: Array, value: Array) -> tuple[Array, Array]:
        """Adds positions (N, heads, T, width); all keys and values, as views."""
        if self._stored is not None and not key.dtype == value.dtype == np.float32:
            raise TypeError(
                f"KVCache: dtype={self.dtype!r} holds float32 rounded, got key of {key.dtype} and "
                f"value of {value.dtype}"
            )
        new = self.length + key.shape[2]
        if not self._buffers or new > self._buffers[0].shape[2]:
            # Doubled, so that all copies together cost no more than the last.
            room = max(new, 2 * self.length)
            grown = [
                namespace(a).empty((*a.shape[:2], room, a.shape[3]), self._stored or a.dtype)
                for a in (key, value)
            ]
            for to, old in zip(grown, self._buffers, strict=False):
                to[:, :, : self.length] = old[:, :, : self.length]
            self._buffers = grown
        for to, part in zip(self._buffers, (key, value), strict=True):
            to[:, :, self.length : new] = part if self._stored is None else self._rounded(part)
        self.length = new
        return self.contents()

    def _rounded(self, part: Array) -> Array:
        """What is to be stored; NumPy rounds on the way into the buffer."""
        return part if isinstance(part, np.ndarray) else cast_array(part, self._stored)

    def contents(self) -> tuple[Array, Array]:
        """All keys and values, as views."""
        keys, values = self._buffers
        return keys[:, :, : self.length], values[:, :, : self.length]

    def reorder(self, rows: Array) -> None:
        """Row i of the batch becomes the old row rows[i], as beam search needs it."""
        self._buffers = [buffer[beside(rows, buffer)] for buffer in self._buffers]


def _stored_dtype(name: str) -> Any:
    if name != "bfloat16":
        raise ValueError(f"KVCache: dtype={name!r}, expected None or 'bfloat16'")
    try:
        from ml_dtypes import bfloat16
    except ImportError:
        raise ImportError(
            "KVCache: dtype='bfloat16' needs the package ml_dtypes: pip install ml_dtypes"
        ) from None
    return np.dtype(bfloat16)
