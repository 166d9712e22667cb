"""Matrix products of any batch shape on the compiled GEMM."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy import ndarray

from .. import _core
from .arithmetic import unbroadcast
from .autocast import autocasting, narrowed
from .device import as_array, check_device, is_array, is_half
from .tape import Array, Gradients, Node, TensorBase, needs, raw, record

if TYPE_CHECKING:
    from .tensor import Tensor


_MOST_AXES = 8  # of an array that the compiled code reads


def _oriented(x: Array) -> tuple[Array, bool]:
    """x, or its transpose where that is what lies contiguously in memory, and which of the two."""
    turned = x.swapaxes(-1, -2)
    if turned.flags.c_contiguous and not x.flags.c_contiguous:
        return turned, True
    return x, False


def _product(a: Array, b: Array) -> Array:
    """a @ b for arrays of 2 or more axes whose shapes were checked."""
    if b.ndim == 2 and a.ndim > 2 and a.flags.c_contiguous:
        # One large product is faster than many small ones.
        rows = _rows(a)
        b, turn_b = _oriented(b)
        out = _core.matmul(rows, b, False, turn_b)
        return out.reshape(*a.shape[:-1], out.shape[-1])
    a, turn_a = _oriented(a)
    b, turn_b = _oriented(b)
    if a.ndim <= _MOST_AXES and b.ndim <= _MOST_AXES:
        return _core.matmul(a, b, turn_a, turn_b)
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a, b = (
        np.broadcast_to(x, (*batch, *x.shape[-2:])).reshape(math.prod(batch), *x.shape[-2:])
        for x in (a, b)
    )
    out = _core.matmul(a, b, turn_a, turn_b)
    return out.reshape(*batch, *out.shape[-2:])


def _rows(x: Array) -> Array:
    """x as a matrix; with its sizes spelled out, as -1 means nothing beside a 0."""
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


def _check(a: Any, b: Any) -> None:
    for name, x in (("input", a), ("other", b)):
        if not is_array(x):
            raise TypeError(f"matmul: {name} must be a Tensor or an array, got {type(x).__name__}")
        if x.dtype.char not in "fd" and (type(x) is ndarray or not is_half(x.dtype)):
            raise TypeError(f"matmul: {name} has dtype {x.dtype}, expected float32 or float64")
        if x.ndim == 0:
            raise ValueError(f"matmul: {name} has no axes, expected at least 1")
    if type(a) is not ndarray or type(b) is not ndarray:
        check_device("matmul", "input", a, "other", b)
    if a.dtype.char != b.dtype.char:
        raise TypeError(
            f"matmul: input has dtype {a.dtype}, other {b.dtype}; nothing is cast silently, "
            "convert one with .to(dtype)"
        )
    inner = b.shape[-2] if b.ndim > 1 else b.shape[0]
    if a.shape[-1] != inner:
        raise ValueError(
            f"matmul: input of shape {a.shape} has {a.shape[-1]} columns, expected {inner} "
            f"for other of shape {b.shape}"
        )
    try:
        np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    except ValueError:
        raise ValueError(
            f"matmul: the batch axes of {a.shape} and {b.shape} do not broadcast"
        ) from None


def _forward(a: Any, b: Any) -> Array:
    if a.ndim >= 2 and b.ndim >= 2:
        return _product(a, b)
    out = _product(a[None] if a.ndim == 1 else a, b[:, None] if b.ndim == 1 else b)
    if b.ndim == 1:
        out = out[..., 0]
    return out[..., 0, :] if a.ndim == 1 and b.ndim > 1 else out[..., 0] if a.ndim == 1 else out


def matmul(input: Any, other: Any) -> Any:
    """input @ other with NumPy's rules for vectors and batches. Arrays in, array out.

    input (..., n, k), other (..., k, m) -> (..., n, m); float32 or float64, not mixed. Errors:
    ValueError for shapes that do not fit, TypeError for other dtypes.

    >>> import fusednn as fn
    >>> fn.matmul(fn.ones(2, 3), fn.ones(3))
    tensor([3., 3.])
    """
    if autocasting() is not None:
        input, other = narrowed("matmul", input, other)
    a, b = raw(input), raw(other)
    _check(a, b)
    data = _forward(a, b)
    if not (isinstance(input, TensorBase) or isinstance(other, TensorBase)):
        return data
    keep = (input if needs(other) else None, other if needs(input) else None)
    return record(data, _matmul_backward, (input, other), keep, (a.shape, b.shape))


def _matmul_backward(node: Node, grad: Any) -> Gradients:
    x, y = node.edges
    a, b, a_shape, b_shape = node.saved
    grad = as_array(grad)
    # Vectors become matrices, as forward made them.
    if len(a_shape) == 1:
        grad = grad[..., None, :] if len(b_shape) > 1 else grad[..., None]
    if len(b_shape) == 1:
        grad = grad[..., None]
    grad_a = grad_b = None
    if x is not None:
        b = b[:, None] if b.ndim == 1 else b
        grad_a = _product(grad, b.swapaxes(-1, -2))
        wide = (1, *a_shape) if len(a_shape) == 1 else a_shape
        grad_a = _shaped(unbroadcast(grad_a, wide), a_shape)
    if y is not None:
        a = a[None] if a.ndim == 1 else a
        tall = (*b_shape, 1) if len(b_shape) == 1 else b_shape
        if len(tall) == 2 and a.ndim > 2:
            # The sum over the batch is one product as well.
            grad_b = _product(_rows(a).T, _rows(grad))
        else:
            grad_b = unbroadcast(_product(a.swapaxes(-1, -2), grad), tall)
        grad_b = _shaped(grad_b, b_shape)
    return grad_a, grad_b


def _shaped(grad: Array, shape: tuple[int, ...]) -> Array:
    # A reshape that changes nothing would still look like a view, which leaves must copy.
    return grad if grad.shape == shape else grad.reshape(shape)


class LinearAlgebra(TensorBase):
    """The matrix products of Tensor."""

    __slots__ = ()

    def __matmul__(self, other: Tensor | Array) -> Tensor:
        if not (isinstance(other, TensorBase) or is_array(other)):
            return NotImplemented
        return matmul(self, other)  # type: ignore[no-any-return]

    def __rmatmul__(self, other: Tensor | Array) -> Tensor:
        if not (isinstance(other, TensorBase) or is_array(other)):
            return NotImplemented
        return matmul(other, self)  # type: ignore[no-any-return]

    def mm(self, other: Tensor | Array) -> Tensor:
        """The product of two matrices."""
        return self._product("mm", 2, other)

    def bmm(self, other: Tensor | Array) -> Tensor:
        """The products of two batches of matrices: (b, n, k) by (b, k, m)."""
        return self._product("bmm", 3, other)

    def _product(self, op: str, ndim: int, other: Tensor | Array) -> Tensor:
        y = raw(other)
        if not is_array(y):
            raise TypeError(f"{op}: other must be a Tensor or an array, got {type(y).__name__}")
        if self._data.ndim != ndim or y.ndim != ndim or self._data.shape[:-2] != y.shape[:-2]:
            raise ValueError(
                f"{op}: shapes {self._data.shape} and {y.shape}, expected {ndim} axes each"
                + ", the first of one size" * (ndim == 3)
            )
        return matmul(self, other)  # type: ignore[no-any-return]

    def matmul(self, other: Tensor | Array) -> Tensor:
        """self @ other; see `fusednn.matmul`."""
        return matmul(self, other)  # type: ignore[no-any-return]
