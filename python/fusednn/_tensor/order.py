"""Choosing and ordering elements: sorting, triangles, masks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .device import beside, is_array, namespace
from .pointwise import where
from .reduction import normalized_axis
from .tape import Array, TensorBase, raw, wrap

if TYPE_CHECKING:
    from .tensor import Tensor


class Sorted(NamedTuple):
    """What `sort` and `topk` return."""

    values: Tensor
    indices: Tensor


class Order(TensorBase):
    """The part of Tensor that chooses and orders elements."""

    __slots__ = ()

    def sort(self, dim: int = -1, descending: bool = False) -> Sorted:
        """(values, indices) in rising order along dim, NaN last; equals keep their order.

        >>> import fusednn as fn
        >>> values, indices = fn.tensor([3.0, 1.0, 2.0]).sort()
        >>> indices
        tensor([1, 2, 0])
        """
        return self._picked(self._order("sort", dim, descending), dim)

    def argsort(self, dim: int = -1, descending: bool = False) -> Tensor:
        """The indices that `sort` gives."""
        return wrap(self._order("argsort", dim, descending))

    def topk(self, k: int, dim: int = -1, largest: bool = True) -> Sorted:
        """(values, indices) of the k largest (or smallest) elements along dim, in order.

        >>> import fusednn as fn
        >>> fn.tensor([3.0, 1.0, 2.0]).topk(2).values
        tensor([3., 2.])
        """
        axis = self._axis("topk", dim)
        size = self._data.shape[axis] if self._data.ndim else 1
        if not 0 <= k <= size:
            raise ValueError(f"topk: k={k}, expected 0 to {size} for shape {self._data.shape}")
        order = self._order("topk", dim, largest)
        return self._picked(
            order[(slice(None),) * axis + (slice(k),)] if order.ndim else order, dim
        )

    def _axis(self, op: str, dim: int) -> int:
        return normalized_axis(op, dim, self._data.ndim or 1)

    def _order(self, op: str, dim: int, descending: bool) -> Array:
        axis = self._axis(op, dim)
        data = self._data
        if data.ndim == 0:
            return namespace(data).zeros((), np.int64)  # type: ignore[no-any-return]
        if not descending:
            return np.argsort(data, axis, kind="stable")
        # Stable in falling order: the reverse of the rising order of the reverse.
        rising = np.argsort(np.flip(data, axis), axis, kind="stable")
        return np.flip(data.shape[axis] - 1 - rising, axis)

    def _picked(self, order: Array, dim: int) -> Sorted:
        indices = wrap(namespace(order).ascontiguousarray(order) if order.ndim else order)
        if order.ndim == 0:
            return Sorted(self.clone(), indices)  # type: ignore[attr-defined]
        axis = self._axis("sort", dim)
        values = self.gather(axis, indices)  # type: ignore[attr-defined]
        return Sorted(values, indices)

    def tril(self, diagonal: int = 0) -> Tensor:
        """The lower triangle of the last two axes; 0 above `diagonal`."""
        return self._triangle("tril", np.tri, diagonal)

    def triu(self, diagonal: int = 0) -> Tensor:
        """The upper triangle of the last two axes; 0 below `diagonal`."""
        return self._triangle("triu", lambda n, m, k, t: np.tri(n, m, k - 1, t) == 0, diagonal)

    def _triangle(self, op: str, mask: Any, diagonal: int) -> Tensor:
        shape = self._data.shape
        if len(shape) < 2:
            raise ValueError(f"{op}: expected 2 axes or more, got shape {shape}")
        kept = beside(mask(shape[-2], shape[-1], diagonal, np.bool_), self._data)
        zero = False if self._data.dtype.kind == "b" else 0
        return where(kept, self, zero)  # type: ignore[no-any-return]

    def nonzero(self) -> Tensor:
        """The positions of what is not 0, one per row: (count, ndim)."""
        return wrap(np.argwhere(self._data))

    def masked_select(self, mask: Tensor | Array) -> Tensor:
        """The elements where the boolean `mask` is True, along one axis; both broadcast."""
        chosen = raw(mask)
        if not is_array(chosen) or chosen.dtype.kind != "b":
            raise TypeError("masked_select: mask must be a boolean Tensor or array")
        try:
            shape = np.broadcast_shapes(self._data.shape, chosen.shape)
        except ValueError:
            raise ValueError(
                f"masked_select: mask of shape {chosen.shape} does not fit {self._data.shape}"
            ) from None
        whole = self.expand(shape)  # type: ignore[attr-defined]
        return whole[np.broadcast_to(chosen, shape)]  # type: ignore[no-any-return]
