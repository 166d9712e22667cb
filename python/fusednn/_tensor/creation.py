"""New tensors: from values, from arrays, filled, and random."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy import ndarray

from .. import random
from .shape import _sizes
from .tape import SHARED, Array, TensorBase, wrap
from .tensor import Tensor, supported_dtype


def _first_leaf(value: Any) -> Any:
    while isinstance(value, (list, tuple)) and value:
        value = value[0]
    return value


def _to_array(op: str, value: Any, dtype: Any) -> Array:
    if isinstance(value, TensorBase):
        value = value._data
    if isinstance(value, (list, tuple)):
        # Rows that are tensors: their arrays, not their elements one by one.
        value = [item._data if isinstance(item, TensorBase) else item for item in value]
    try:
        array = np.array(value, order="C")  # always a copy
    except ValueError as error:
        raise ValueError(f"{op}: {error}") from None
    # Python's floats have no dtype of their own; NumPy's do.
    numpys = isinstance(_first_leaf(value), (ndarray, np.generic, TensorBase))
    if dtype is None and array.dtype.char == "d" and not numpys:
        dtype = np.float32
    wanted = supported_dtype(op, np.dtype(dtype) if dtype is not None else array.dtype)
    if wanted == array.dtype:
        return array
    if array.dtype.kind not in "fiub":
        raise TypeError(f"{op}: cannot make {wanted} of dtype {array.dtype}")
    return array.astype(wanted)


def tensor(data: Any, requires_grad: bool = False, *, dtype: Any = None) -> Tensor:
    """A new Tensor with a copy of `data`: an array, a Tensor, a number or nested lists.

    Arrays keep their dtype (float32, float64, integers or bool); Python floats become float32.
    TypeError for other dtypes, and for requires_grad on what is not a float.

    >>> import fusednn as fn
    >>> fn.tensor([[1.0, 2.5]], requires_grad=True)
    tensor([[1.0000, 2.5000]], requires_grad=True)
    """
    out = wrap(_to_array("tensor", data, dtype))
    if requires_grad:
        out.requires_grad = True
    return out


def from_numpy(array: Array) -> Tensor:
    """A Tensor that shares the array's memory; any layout and byte order, read-only as well.

    Later writes to the array are seen by the tensor. What backward needs of it is copied when an op
    is recorded, so such writes never change a gradient. TypeError unless an array of float32,
    float64, integers or bool is given.

    >>> import numpy as np, fusednn as fn
    >>> a = np.zeros(2, np.float32)
    >>> t = fn.from_numpy(a)
    >>> a[0] = 5
    >>> t
    tensor([5., 0.])
    """
    if not isinstance(array, ndarray):
        raise TypeError(f"from_numpy: expected a NumPy array, got {type(array).__name__}")
    supported_dtype("from_numpy", array.dtype)
    out = wrap(array.view(ndarray))
    out._memory[1] = SHARED
    return out


def from_dlpack(source: Any) -> Tensor:
    """A Tensor that shares the memory of another library's CPU array (DLPack), read-only too.

    >>> import numpy as np, fusednn as fn
    >>> fn.from_dlpack(np.arange(3.0))
    tensor([0., 1., 2.], dtype=float64)
    """
    if isinstance(source, TensorBase):
        return source.detach()  # type: ignore[attr-defined, no-any-return]
    if not hasattr(source, "__dlpack__"):
        raise TypeError(f"from_dlpack: {type(source).__name__} has no __dlpack__")
    return from_numpy(np.from_dlpack(source))


# ---- filled --------------------------------------------------------------------------------------


def _finish(op: str, array: Array, requires_grad: bool) -> Tensor:
    out = wrap(array.astype(supported_dtype(op, array.dtype), copy=False))
    if requires_grad:
        out.requires_grad = True
    return out


def zeros(*size: Any, dtype: Any = np.float32, requires_grad: bool = False) -> Tensor:
    """Zeros of a shape: zeros(2, 3) or zeros((2, 3)).

    >>> import fusednn as fn
    >>> fn.zeros(2)
    tensor([0., 0.])
    """
    return _finish("zeros", np.zeros(_sizes("zeros", size), dtype), requires_grad)


def ones(*size: Any, dtype: Any = np.float32, requires_grad: bool = False) -> Tensor:
    """Ones of a shape.

    >>> import fusednn as fn
    >>> fn.ones(2)
    tensor([1., 1.])
    """
    return _finish("ones", np.ones(_sizes("ones", size), dtype), requires_grad)


def full(size: Any, fill_value: Any, *, dtype: Any = None, requires_grad: bool = False) -> Tensor:
    """One number everywhere; float32 for a Python float, int64 for an int.

    >>> import fusednn as fn
    >>> fn.full((2,), 0.5)
    tensor([0.5000, 0.5000])
    """
    if dtype is None:
        kind = type(fill_value)
        dtype = np.float32 if kind is float else np.asarray(fill_value).dtype
    size = size if isinstance(size, (tuple, list)) else (size,)
    return _finish("full", np.full(_sizes("full", size), fill_value, dtype), requires_grad)


def zeros_like(input: Tensor | Array) -> Tensor:
    """Zeros of input's shape and dtype.

    >>> import fusednn as fn
    >>> fn.zeros_like(fn.ones(2))
    tensor([0., 0.])
    """
    return zeros(*input.shape, dtype=input.dtype)


def ones_like(input: Tensor | Array) -> Tensor:
    """Ones of input's shape and dtype.

    >>> import fusednn as fn
    >>> fn.ones_like(fn.zeros(2))
    tensor([1., 1.])
    """
    return ones(*input.shape, dtype=input.dtype)


def arange(*bounds: Any, dtype: Any = None) -> Tensor:
    """start, start + step, ... below end: arange(end) or arange(start, end[, step]).

    int64 if all are ints, else float32.

    >>> import fusednn as fn
    >>> fn.arange(3)
    tensor([0, 1, 2])
    """
    if dtype is None:
        dtype = np.int64 if all(isinstance(bound, int) for bound in bounds) else np.float32
    return _finish("arange", np.arange(*bounds, dtype=dtype), False)


# ---- random --------------------------------------------------------------------------------------


def rand(*size: Any, dtype: Any = np.float32, requires_grad: bool = False) -> Tensor:
    """Uniform values in [0, 1), from the generator of `manual_seed`.

    >>> import fusednn as fn
    >>> fn.rand(2, 3).shape
    (2, 3)
    """
    values = random.next_generator().random(_sizes("rand", size), np.dtype(dtype).type)
    return _finish("rand", np.asarray(values), requires_grad)


def randn(*size: Any, dtype: Any = np.float32, requires_grad: bool = False) -> Tensor:
    """Standard normal values, from the generator of `manual_seed`.

    >>> import fusednn as fn
    >>> fn.randn(2, 3).shape
    (2, 3)
    """
    values = random.next_generator().standard_normal(_sizes("randn", size), np.dtype(dtype).type)
    return _finish("randn", np.asarray(values), requires_grad)
