"""Views that only change how the memory is read, and joining and splitting of tensors.

A view shares memory with its source, and its version: a change through one is seen by the other.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy import ndarray

from .arithmetic import _clone_backward, unbroadcast
from .autocast import autocasting, widened
from .device import check_device, is_array, on_gpu
from .reduction import normalized_axis
from .sums import sum_over
from .tape import Array, Gradients, Node, TensorBase, raw, record, record_view

if TYPE_CHECKING:
    from .tensor import Tensor


def _sizes(op: str, sizes: Any) -> tuple[int, ...]:
    """(2, 3) from f(2, 3), f((2, 3)) or f([2, 3])."""
    if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)):
        sizes = sizes[0]
    try:
        return tuple([size.__index__() for size in sizes])
    except AttributeError:
        raise TypeError(f"{op}: sizes must be ints, got {tuple(sizes)}") from None


def _reshape_backward(node: Node, grad: Any) -> Gradients:
    return (grad.reshape(node.saved[0]),)


def _permute_backward(node: Node, grad: Any) -> Gradients:
    return (grad.transpose(node.saved[0]),)


def _expand_backward(node: Node, grad: Any) -> Gradients:
    return (unbroadcast(grad, node.saved[0]),)


def _flip_backward(node: Node, grad: Any) -> Gradients:
    return (np.flip(grad, node.saved[0]),)


def _repeat_backward(node: Node, grad: Any) -> Gradients:
    shape, repeats = node.saved
    split = [n for pair in zip(repeats, shape, strict=True) for n in pair]
    axes = tuple(range(0, len(split), 2))
    return (sum_over(grad.reshape(split), axes),)


class Shape(TensorBase):
    """The shape part of Tensor."""

    __slots__ = ()

    def reshape(self, *shape: int | Sequence[int]) -> Tensor:
        """The same elements in another shape; -1 stands for what is left. A view where possible.

        >>> import fusednn as fn
        >>> fn.arange(6.0).reshape(2, -1).shape
        (2, 3)
        """
        sizes = _sizes("reshape", shape)
        data = self._data
        try:
            out = data.reshape(sizes)
        except ValueError:
            raise ValueError(
                f"reshape: {data.size} elements of shape {data.shape} do not fill shape {sizes}"
            ) from None
        return record_view(self, out, _reshape_backward, (data.shape,))

    def view(self, *shape: int | Sequence[int]) -> Tensor:
        """`reshape` that never copies: ValueError where the layout in memory does not allow it."""
        out = self.reshape(*shape)
        if out._memory is not self._memory and out._data.size:
            raise ValueError(
                f"view: shape {self._data.shape} with strides {self._data.strides} cannot be read "
                f"as {out._data.shape} without a copy; use reshape"
            )
        return out

    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> Tensor:
        """Joins the axes start_dim ... end_dim into one.

        >>> import fusednn as fn
        >>> fn.zeros(2, 3, 4).flatten(1).shape
        (2, 12)
        """
        return self.reshape(flattened_shape(self._data.shape, start_dim, end_dim))

    def ravel(self) -> Tensor:
        """All elements along one axis."""
        return self.reshape(-1)

    def unflatten(self, dim: int, sizes: Sequence[int]) -> Tensor:
        """Splits one axis into several; the inverse of flatten."""
        axis = normalized_axis("unflatten", dim, self._data.ndim)
        shape = self._data.shape
        return self.reshape(
            *shape[:axis], *_sizes("unflatten", (tuple(sizes),)), *shape[axis + 1 :]
        )

    def permute(self, *dims: int | Sequence[int]) -> Tensor:
        """The axes in another order, as a view.

        >>> import fusednn as fn
        >>> fn.zeros(2, 3, 4).permute(2, 0, 1).shape
        (4, 2, 3)
        """
        ndim = self._data.ndim
        order = tuple(normalized_axis("permute", d, ndim) for d in _sizes("permute", dims))
        if sorted(order) != list(range(ndim)):
            raise ValueError(f"permute: dims {order} are not an order of {ndim} axes")
        inverse = [0] * ndim
        for to, source in enumerate(order):
            inverse[source] = to
        data = self._data.transpose(order)
        return record_view(self, data, _permute_backward, (tuple(inverse),))

    def transpose(self, dim0: int, dim1: int) -> Tensor:
        """Two axes swapped, as a view."""
        order = list(range(self._data.ndim))
        a = normalized_axis("transpose", dim0, len(order) or 1)
        b = normalized_axis("transpose", dim1, len(order) or 1)
        if order:
            order[a], order[b] = b, a
        axes = tuple(order)
        return record_view(self, self._data.transpose(axes), _permute_backward, (axes,))

    swapaxes = transpose

    def t(self) -> Tensor:
        """The transpose of a matrix; a tensor of fewer axes as it is."""
        if self._data.ndim > 2:
            raise ValueError(f"t: expected at most 2 axes, got shape {self._data.shape}")
        return self.T

    @property
    def T(self) -> Tensor:
        """All axes in reverse order, as a view."""
        order = tuple(range(self._data.ndim))[::-1]
        return record_view(self, self._data.transpose(order), _permute_backward, (order,))

    @property
    def mT(self) -> Tensor:
        """The last two axes swapped, as a view."""
        return self.transpose(-1, -2)

    def movedim(self, source: int, destination: int) -> Tensor:
        """One axis moved to another place, as a view."""
        ndim = self._data.ndim
        order = list(range(ndim))
        at = normalized_axis("movedim", source, ndim or 1)
        to = normalized_axis("movedim", destination, ndim or 1)
        if order:
            order.insert(to, order.pop(at))
        return self.permute(order)

    def squeeze(self, dim: int | Sequence[int] | None = None) -> Tensor:
        """Without its axes of size 1, or without those of `dim` that are of size 1."""
        shape = self._data.shape
        dims = range(len(shape)) if dim is None else dim if isinstance(dim, Sequence) else (dim,)
        gone = {normalized_axis("squeeze", d, len(shape) or 1) for d in dims}
        return self.reshape([n for i, n in enumerate(shape) if not (n == 1 and i in gone)])

    def unsqueeze(self, dim: int) -> Tensor:
        """With a new axis of size 1 before axis `dim`."""
        shape = self._data.shape
        axis = normalized_axis("unsqueeze", dim, len(shape) + 1)
        return self.reshape(*shape[:axis], 1, *shape[axis:])

    def expand(self, *sizes: int | Sequence[int]) -> Tensor:
        """Axes of size 1 read as larger ones, and new axes in front, as a view; -1 keeps a size.

        >>> import fusednn as fn
        >>> fn.tensor([[1.0], [2.0]]).expand(2, 3)
        tensor([[1., 1., 1.],
                [2., 2., 2.]])
        """
        shape = self._data.shape
        wanted = _sizes("expand", sizes)
        lead = len(wanted) - len(shape)
        full = tuple(
            shape[i - lead] if size == -1 and i >= lead else size for i, size in enumerate(wanted)
        )
        try:
            data = np.broadcast_to(self._data, full)
        except ValueError:
            raise ValueError(f"expand: shape {shape} cannot be read as {wanted}") from None
        return record_view(self, data, _expand_backward, (shape,))

    def expand_as(self, other: Tensor | Array) -> Tensor:
        """`expand` to other's shape."""
        return self.expand(other.shape)

    def broadcast_to(self, shape: Sequence[int]) -> Tensor:
        """`expand` to a shape without -1."""
        return self.expand(tuple(shape))

    def repeat(self, *repeats: int | Sequence[int]) -> Tensor:
        """Copies of the tensor side by side: repeats[i] of them along axis i."""
        counts = _sizes("repeat", repeats)
        shape = self._data.shape
        if len(counts) < len(shape):
            raise ValueError(f"repeat: {len(counts)} repeats for a tensor of {len(shape)} axes")
        if min(counts, default=0) < 0:
            raise ValueError(f"repeat: repeats {counts} must not be negative")
        wide = (1,) * (len(counts) - len(shape)) + shape
        out = self.reshape(wide)
        return record(np.tile(out._data, counts), _repeat_backward, (out,), (), (wide, counts))

    def flip(self, *dims: int | Sequence[int]) -> Tensor:
        """Reversed along `dims`, as a view."""
        ndim = self._data.ndim
        axes = tuple(normalized_axis("flip", d, ndim) for d in _sizes("flip", dims))
        return record_view(self, np.flip(self._data, axes), _flip_backward, (axes,))

    def contiguous(self) -> Tensor:
        """self if its elements lie in row-major order without gaps, else such a copy."""
        if self._data.flags.c_contiguous:
            return self  # type: ignore[return-value]
        return record(_owned(self._data), _clone_backward, (self,))

    def clone(self) -> Tensor:
        """A copy with its own memory; gradients flow through it."""
        return record(_owned(self._data), _clone_backward, (self,))

    def split(self, split_size: int | Sequence[int], dim: int = 0) -> tuple[Tensor, ...]:
        """Views of consecutive parts along dim, each of split_size (the last may be smaller), or of
        the given sizes."""
        axis = normalized_axis("split", dim, self._data.ndim)
        total = self._data.shape[axis]
        if isinstance(split_size, int):
            if split_size <= 0:
                raise ValueError(f"split: split_size must be positive, got {split_size}")
            sizes = [min(split_size, total - at) for at in range(0, total, split_size)] or [0]
        else:
            sizes = list(split_size)
            if sum(sizes) != total or min(sizes, default=0) < 0:
                raise ValueError(f"split: sizes {sizes} do not add up to {total} along dim {dim}")
        parts, at = [], 0
        for size in sizes:
            index = (slice(None),) * axis + (slice(at, at + size),)
            parts.append(self[index])  # type: ignore[index]
            at += size
        return tuple(parts)

    def chunk(self, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
        """Views of at most `chunks` parts of equal size along dim; the last may be smaller."""
        if chunks <= 0:
            raise ValueError(f"chunk: chunks must be positive, got {chunks}")
        axis = normalized_axis("chunk", dim, self._data.ndim)
        return self.split(max(1, math.ceil(self._data.shape[axis] / chunks)), dim)

    def unbind(self, dim: int = 0) -> tuple[Tensor, ...]:
        """Views of all slices along dim, without that axis."""
        axis = normalized_axis("unbind", dim, self._data.ndim)
        lead = (slice(None),) * axis
        return tuple(self[(*lead, i)] for i in range(self._data.shape[axis]))  # type: ignore[index]


def _owned(data: Array) -> Array:
    """A copy in row-major order and the machine's byte order."""
    if type(data) is not ndarray and on_gpu(data):
        return data.copy()
    return np.array(data, data.dtype.newbyteorder("="), order="C")


def flattened_shape(shape: tuple[int, ...], start_dim: int, end_dim: int) -> tuple[int, ...]:
    """The shape after joining the axes start_dim ... end_dim."""
    if not shape:
        return (1,)
    start = normalized_axis("flatten", start_dim, len(shape))
    end = normalized_axis("flatten", end_dim, len(shape))
    if start > end:
        raise ValueError(f"flatten: start_dim={start_dim} comes after end_dim={end_dim}")
    return (*shape[:start], math.prod(shape[start : end + 1]), *shape[end + 1 :])


# ---- joining -------------------------------------------------------------------------------------


def _joined(op: str, tensors: Any) -> tuple[list[Any], list[Array]]:
    parts = list(tensors)
    if not parts:
        raise ValueError(f"{op}: expected at least one tensor")
    arrays = [raw(part) for part in parts]
    if autocasting() is not None and len({getattr(one, "dtype", None) for one in arrays}) > 1:
        parts = list(widened(*parts))
        arrays = [raw(part) for part in parts]
    for i, array in enumerate(arrays):
        if not is_array(array):
            kind = type(array).__name__
            raise TypeError(f"{op}: tensors[{i}] must be a Tensor or an array, got {kind}")
        if type(array) is not ndarray or type(arrays[0]) is not ndarray:
            check_device(op, "tensors[0]", arrays[0], f"tensors[{i}]", array)
        if array.dtype.newbyteorder("=") != arrays[0].dtype.newbyteorder("="):
            raise TypeError(
                f"{op}: tensors[0] has dtype {arrays[0].dtype}, tensors[{i}] {array.dtype}; "
                "nothing is cast silently, convert with .to(dtype)"
            )
    return parts, arrays


def _finish(out: Array, parts: list[Any], backward: Any, context: tuple[Any, ...]) -> Any:
    if not any(isinstance(part, TensorBase) for part in parts):
        return out
    return record(out, backward, tuple(parts), (), context)


def cat(tensors: Iterable[Any], dim: int = 0) -> Any:
    """Tensors or arrays joined along an axis they have; the other sizes must agree.

    All arrays in: array out. ValueError names the part that does not fit.

    >>> import fusednn as fn
    >>> fn.cat([fn.zeros(2), fn.ones(1)])
    tensor([0., 0., 1.])
    """
    parts, arrays = _joined("cat", tensors)
    first = arrays[0].shape
    axis = normalized_axis("cat", dim, len(first))
    for i, array in enumerate(arrays):
        shape = array.shape
        if len(shape) != len(first) or shape[:axis] + shape[axis + 1 :] != (
            first[:axis] + first[axis + 1 :]
        ):
            raise ValueError(
                f"cat: tensors[{i}] has shape {shape}, tensors[0] {first}; they may differ along "
                f"dim {dim} alone"
            )
    sizes = tuple(array.shape[axis] for array in arrays)
    return _finish(np.concatenate(arrays, axis), parts, _cat_backward, (axis, sizes))


def _cat_backward(node: Node, grad: Any) -> Gradients:
    axis, sizes = node.saved
    lead = (slice(None),) * axis
    grads, at = [], 0
    for edge, size in zip(node.edges, sizes, strict=True):
        grads.append(None if edge is None else grad[(*lead, slice(at, at + size))])
        at += size
    return grads


def stack(tensors: Iterable[Any], dim: int = 0) -> Any:
    """Tensors or arrays of one shape joined along a new axis. All arrays in: array out.

    >>> import fusednn as fn
    >>> fn.stack([fn.zeros(2), fn.ones(2)], dim=1).shape
    (2, 2)
    """
    parts, arrays = _joined("stack", tensors)
    axis = normalized_axis("stack", dim, arrays[0].ndim + 1)
    for i, array in enumerate(arrays):
        if array.shape != arrays[0].shape:
            raise ValueError(
                f"stack: tensors[{i}] has shape {array.shape}, tensors[0] {arrays[0].shape}"
            )
    return _finish(np.stack(arrays, axis), parts, _stack_backward, (axis,))


def _stack_backward(node: Node, grad: Any) -> Gradients:
    lead = (slice(None),) * node.saved[0]
    return [None if edge is None else grad[(*lead, i)] for i, edge in enumerate(node.edges)]
