"""Reading and writing parts of a tensor, with gradients.

Basic indices (ints, slices, None, ...) give views. Integer and boolean arrays (NumPy's, Tensors or
lists) gather copies, by NumPy's rules.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy import ndarray

from .. import _core
from .arithmetic import operand, unbroadcast
from .device import as_array, beside, check_device, is_array, may_share, namespace, on_gpu
from .inplace import InPlace
from .reduction import normalized_axis
from .tape import (
    Array,
    Gradients,
    Node,
    Slices,
    TensorBase,
    needs,
    raw,
    record,
    record_view,
)

if TYPE_CHECKING:
    from .tensor import Tensor


def _plain(index: Any, data: Array) -> tuple[tuple[Any, ...], bool]:
    """The index as a tuple that NumPy understands, and whether it is a basic one (a view)."""
    items = index if type(index) is tuple else (index,)
    basic = True
    out = []
    for item in items:
        kind = type(item)
        if kind is slice or kind is int or item is None or item is Ellipsis:
            out.append(item)
            continue
        if isinstance(item, np.integer):
            out.append(int(item))
            continue
        basic = False
        if isinstance(item, TensorBase):
            item = item._data
        array = item if is_array(item) else beside(np.asarray(item), data)
        if type(array) is not ndarray or type(data) is not ndarray:
            check_device("indexing", "an index", array, "the tensor", data)
        if array.dtype.kind not in "iub":
            if array.size or array.dtype.kind != "f":
                raise TypeError(
                    f"indexing: an index has dtype {array.dtype}, expected integers, booleans, "
                    "slices, None or ..."
                )
            array = array.astype(np.int64)  # an empty list
        # The caller may change a list or an array before backward.
        out.append(array.copy())
    return tuple(out), basic


def _view_index(index: tuple[Any, ...]) -> tuple[Any, ...]:
    # With an ellipsis NumPy gives a view even where all axes are picked.
    return index if any(item is Ellipsis for item in index) else (*index, Ellipsis)


def _slice_backward(node: Node, grad: Any) -> Gradients:
    index, shape, strides = node.saved
    return (Slices(shape, ((index, grad),), strides),)


def _gather_backward(node: Node, grad: Any) -> Gradients:
    index, shape = node.saved
    return (scatter_add(index, as_array(grad), shape),)


def scatter_add(index: tuple[Any, ...], grad: Any, shape: tuple[int, ...]) -> Any:
    """Zeros of `shape` plus grad at x[index], where positions may repeat.

    Faster than np.add.at, and sums in float64.
    """
    full = namespace(grad).zeros(shape, grad.dtype)
    arrays = [item for item in index if is_array(item)]
    if all(item.dtype.kind == "b" for item in arrays):
        full[index] = grad  # a mask picks each position once
        return full
    if not grad.size:
        return full
    if type(grad) is not ndarray and on_gpu(grad):
        # Each position gathers its gradients, in their order: no atomic additions.
        places = namespace(grad).arange(full.size).reshape(shape)[index].ravel()
        columns = namespace(grad).ascontiguousarray(grad).reshape(-1, 1)
        sums = _core.embedding_backward(columns, places, full.size, -1, False)
        return sums.reshape(shape)
    if len(index) == 1 and arrays[0].size and shape[0]:
        return _add_rows(full, arrays[0], grad)
    positions = np.arange(full.size).reshape(shape)[index]
    sums = np.bincount(positions.ravel(), grad.ravel(), full.size)
    return sums.reshape(shape).astype(grad.dtype, copy=False)


def _add_rows(full: Array, rows: Array, grad: Array) -> Array:
    """full[rows[i]] += grad[i] by sorting: equal rows become neighbours that one call sums."""
    rows = rows.ravel()
    rows = np.where(rows < 0, rows + full.shape[0], rows)
    grad = grad.reshape(rows.size, *full.shape[1:])
    order = np.argsort(rows, kind="stable")
    rows = rows[order]
    starts = np.flatnonzero(np.concatenate(([True], rows[1:] != rows[:-1])))
    full[rows[starts]] = np.add.reduceat(grad[order], starts, axis=0, dtype=np.float64)
    return full


def _setitem_backward(node: Node, grad: Any) -> Gradients:
    target, value = node.edges
    index, value_shape = node.saved
    grad_target = grad_value = None
    if target is not None:
        grad_target = grad.copy()
        grad_target[index] = 0
    if value is not None:
        part = as_array(grad[index])
        # A value may have axes of size 1 in front that the part has not.
        extra = max(len(value_shape) - part.ndim, 0)
        grad_value = unbroadcast(part, value_shape[extra:]).reshape(value_shape)
    return grad_target, grad_value


def _positions(index: Any) -> Any:
    array = raw(index)
    return array if is_array(array) else np.asarray(array)


class Indexing(InPlace):
    """Subscripts of Tensor."""

    __slots__ = ()

    def __getitem__(self, index: Any) -> Tensor:
        data = self._data
        items, basic = _plain(index, data)
        try:
            out = data[_view_index(items)] if basic else data[items]
        except IndexError as error:
            raise IndexError(f"indexing a tensor of shape {data.shape}: {error}") from None
        if basic:
            strides = None if data.flags.c_contiguous else data.strides
            return record_view(self, out, _slice_backward, (items, data.shape, strides))
        return record(out, _gather_backward, (self,), (), (items, data.shape))

    def __setitem__(self, index: Any, value: Any) -> None:
        items, _ = _plain(index, self._data)
        new = operand(self, value, "setitem")
        if new is NotImplemented:
            raise TypeError(
                f"setitem: expected a Tensor, an array or a number, got {type(value).__name__}"
            )
        tracked = self._check_writable("setitem", needs(value))
        if tracked:
            # Repeated positions keep one value, and one gradient; which one NumPy does not say.
            self._check_unique("setitem", items)
        if is_array(new) and may_share(new, self._data):
            new = new.copy()
        recorded = None
        if tracked:
            context = (items, getattr(new, "shape", ()))
            recorded = record(self._data, _setitem_backward, (self, value), (), context)
        try:
            self._data[items] = new
        except (ValueError, IndexError) as error:
            text = f"setitem on a tensor of shape {self._data.shape}: {error}"
            raise type(error)(text) from None
        self._written(recorded)

    def _check_unique(self, op: str, items: tuple[Any, ...]) -> None:
        if not any(is_array(item) and item.dtype.kind != "b" for item in items):
            return
        positions = (
            namespace(self._data).arange(self._data.size).reshape(self._data.shape)[items].ravel()
        )
        if np.unique(positions).size != positions.size:
            raise ValueError(f"{op}: the index names a position twice, so gradients are undefined")

    def __iter__(self) -> Iterator[Tensor]:
        if self._data.ndim == 0:
            raise TypeError("iteration over a tensor without axes")
        return (self[i] for i in range(self._data.shape[0]))

    def __len__(self) -> int:
        if self._data.ndim == 0:
            raise TypeError("len() of a tensor without axes")
        return int(self._data.shape[0])

    def index_select(self, dim: int, index: Tensor | Array) -> Tensor:
        """The slices at the positions `index` (a vector of integers) along dim, copied."""
        lead = (slice(None),) * normalized_axis("index_select", dim, self._data.ndim)
        positions = _positions(index)
        if positions.ndim > 1:
            raise ValueError(f"index_select: index has shape {positions.shape}, expected a vector")
        return self[(*lead, positions.reshape(-1))]

    def gather(self, dim: int, index: Tensor | Array) -> Tensor:
        """out[i][j][k] = self[i][index[i][j][k]][k] for dim = 1, and so on; index has self's rank
        and is not larger along the other axes."""
        positions = _positions(index)
        if positions.ndim != self._data.ndim:
            raise ValueError(
                f"gather: index has {positions.ndim} axes, expected {self._data.ndim} as input"
            )
        axis = normalized_axis("gather", dim, self._data.ndim)
        xp, axes = namespace(positions), range(positions.ndim)
        grids = [
            xp.arange(n).reshape([-1 if i == j else 1 for j in axes])
            for i, n in enumerate(positions.shape)
        ]
        return self[tuple(positions if i == axis else grid for i, grid in enumerate(grids))]
