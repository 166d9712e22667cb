"""New tensors: from values, from arrays, filled, and random."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy import ndarray

from .. import random
from .device import as_array, as_cupy, device_of, dtype_named, is_array, making, moved, on_gpu
from .shape import _sizes
from .tape import SHARED, Array, TensorBase, raw, wrap
from .tensor import Tensor, supported_dtype


def _first_leaf(value: Any) -> Any:
    while isinstance(value, (list, tuple)) and value:
        value = value[0]
    return value


def _to_array(op: str, value: Any, dtype: Any, device: str | None) -> Array:
    if isinstance(value, TensorBase):
        value = value._data
    if on_gpu(value):
        return _gpu_copy(op, value, dtype)  # type: ignore[no-any-return]
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
    given = dtype_named(dtype) if dtype is not None else array.dtype
    wanted = supported_dtype(op, given, device)
    if wanted == array.dtype:
        return array
    if array.dtype.kind not in "fiub":
        raise TypeError(f"{op}: cannot make {wanted} of dtype {array.dtype}")
    return array.astype(wanted)


def _gpu_copy(op: str, value: Any, dtype: Any) -> Any:
    array = as_cupy(value)
    given = array.dtype if dtype is None else dtype_named(dtype)
    wanted = supported_dtype(op, given, device_of(array))
    with making(op, device_of(array)) as cupy:
        return cupy.array(array, wanted)


def tensor(
    data: Any, requires_grad: bool = False, *, dtype: Any = None, device: str | None = None
) -> Tensor:
    """A new Tensor with a copy of `data`: an array, a Tensor, a number or nested lists.

    Arrays keep their dtype (float32, float64, integers or bool); Python floats become float32.
    TypeError for other dtypes (float16 and "bfloat16" are for GPUs), and for requires_grad on what
    is not a float. device is "cpu", "cuda" or "cuda:N"; without it an array on a GPU is copied
    there, and all else on the CPU.

    >>> import fusednn as fn
    >>> fn.tensor([[1.0, 2.5]], requires_grad=True)
    tensor([[1.0000, 2.5000]], requires_grad=True)
    """
    array = _to_array("tensor", data, dtype, device)
    out = wrap(array if device is None else moved("tensor", array, device))
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
    """A Tensor that shares the memory of another library's array (DLPack), read-only too; of one
    on a GPU as well.

    >>> import numpy as np, fusednn as fn
    >>> fn.from_dlpack(np.arange(3.0))
    tensor([0., 1., 2.], dtype=float64)
    """
    if isinstance(source, TensorBase):
        return source.detach()  # type: ignore[attr-defined, no-any-return]
    if on_gpu(source):
        return from_gpu("from_dlpack", source)
    if not hasattr(source, "__dlpack__"):
        raise TypeError(f"from_dlpack: {type(source).__name__} has no __dlpack__")
    try:
        array = np.from_dlpack(source)
    except RuntimeError as error:  # a dtype or device that NumPy lacks
        raise TypeError(f"from_dlpack: {error}") from None
    supported_dtype("from_dlpack", array.dtype)
    return from_numpy(array)


def from_gpu(op: str, source: Any) -> Tensor:
    """A Tensor that shares an array on a GPU."""
    array = as_cupy(source)
    supported_dtype(op, array.dtype, device_of(array))
    out = wrap(array)
    out._memory[1] = SHARED
    return out


# ---- filled --------------------------------------------------------------------------------------


def _filled(
    op: str, make: Any, size: Any, dtype: Any, requires_grad: bool, device: str | None
) -> Tensor:
    """make(namespace, shape, dtype) as a tensor; a dtype of None is float32."""
    sizes = _sizes(op, size)
    wanted = supported_dtype(op, dtype_named(np.float32 if dtype is None else dtype), device)
    try:
        with making(op, device) as xp:
            array = make(xp, sizes, wanted)
    except (ValueError, MemoryError) as error:
        raise ValueError(f"{op}: shape {sizes}: {error}") from None
    out = wrap(array)
    if requires_grad:
        out.requires_grad = True
    return out


def zeros(
    *size: Any, dtype: Any = None, requires_grad: bool = False, device: str | None = None
) -> Tensor:
    """Zeros of a shape: zeros(2, 3) or zeros((2, 3)); float32 unless dtype says otherwise.

    >>> import fusednn as fn
    >>> fn.zeros(2)
    tensor([0., 0.])
    """
    return _filled("zeros", lambda xp, s, t: xp.zeros(s, t), size, dtype, requires_grad, device)


def ones(
    *size: Any, dtype: Any = None, requires_grad: bool = False, device: str | None = None
) -> Tensor:
    """Ones of a shape; float32 unless dtype says otherwise.

    >>> import fusednn as fn
    >>> fn.ones(2)
    tensor([1., 1.])
    """
    return _filled("ones", lambda xp, s, t: xp.ones(s, t), size, dtype, requires_grad, device)


def full(
    size: Any,
    fill_value: Any,
    *,
    dtype: Any = None,
    requires_grad: bool = False,
    device: str | None = None,
) -> Tensor:
    """One number everywhere; float32 for a Python float, int64 for an int.

    >>> import fusednn as fn
    >>> fn.full((2,), 0.5)
    tensor([0.5000, 0.5000])
    """
    if dtype is None and type(fill_value) is not float:
        dtype = as_array(raw(fill_value)).dtype
    size = size if isinstance(size, (tuple, list)) else (size,)
    number = raw(fill_value)
    return _filled(
        "full", lambda xp, s, t: xp.full(s, number, t), size, dtype, requires_grad, device
    )


def zeros_like(
    input: Tensor | Array,
    *,
    dtype: Any = None,
    requires_grad: bool = False,
    device: str | None = None,
) -> Tensor:
    """Zeros of input's shape, and its dtype and device unless given.

    >>> import fusednn as fn
    >>> fn.zeros_like(fn.ones(2))
    tensor([0., 0.])
    """
    shape, own, place = _like("zeros_like", input)
    return zeros(shape, dtype=dtype or own, requires_grad=requires_grad, device=device or place)


def ones_like(
    input: Tensor | Array,
    *,
    dtype: Any = None,
    requires_grad: bool = False,
    device: str | None = None,
) -> Tensor:
    """Ones of input's shape, and its dtype and device unless given.

    >>> import fusednn as fn
    >>> fn.ones_like(fn.zeros(2))
    tensor([1., 1.])
    """
    shape, own, place = _like("ones_like", input)
    return ones(shape, dtype=dtype or own, requires_grad=requires_grad, device=device or place)


def _like(op: str, input: Any) -> tuple[tuple[int, ...], Any, str]:
    array = raw(input)
    if not is_array(array):
        raise TypeError(f"{op}: input must be a Tensor or an array, got {type(array).__name__}")
    return array.shape, array.dtype, device_of(array)


def arange(*bounds: Any, dtype: Any = None, device: str | None = None) -> Tensor:
    """start, start + step, ... below end: arange(end) or arange(start, end[, step]).

    int64 if all are ints, else float32.

    >>> import fusednn as fn
    >>> fn.arange(3)
    tensor([0, 1, 2])
    """
    if not 1 <= len(bounds) <= 3:
        raise TypeError(f"arange: expected end, or start, end and step, got {len(bounds)} numbers")
    if len(bounds) == 3 and bounds[2] == 0:
        raise ValueError("arange: step is 0")
    if dtype is None:
        dtype = np.int64 if all(isinstance(bound, int) for bound in bounds) else np.float32
    wanted = supported_dtype("arange", np.dtype(dtype))
    with making("arange", device) as xp:
        return wrap(xp.arange(*bounds, dtype=wanted))


# ---- random --------------------------------------------------------------------------------------


def _random(
    op: str, draw: str, size: Any, dtype: Any, requires_grad: bool, device: str | None
) -> Tensor:
    wanted = np.dtype(np.float32 if dtype is None else dtype)
    if wanted.char not in "fd":
        raise TypeError(f"{op}: dtype {wanted}, expected float32 or float64")
    generator = random.next_generator()

    def make(xp: Any, sizes: tuple[int, ...], wanted: Any) -> Array:
        # Drawn on the CPU: the same bits on every device.
        return xp.asarray(getattr(generator, draw)(sizes, wanted.type))  # type: ignore[no-any-return]

    return _filled(op, make, size, wanted, requires_grad, device)


def rand(
    *size: Any, dtype: Any = None, requires_grad: bool = False, device: str | None = None
) -> Tensor:
    """Uniform values in [0, 1), from the generator of `manual_seed`; float32 or float64.

    >>> import fusednn as fn
    >>> fn.rand(2, 3).shape
    (2, 3)
    """
    return _random("rand", "random", size, dtype, requires_grad, device)


def randn(
    *size: Any, dtype: Any = None, requires_grad: bool = False, device: str | None = None
) -> Tensor:
    """Standard normal values, from the generator of `manual_seed`; float32 or float64.

    >>> import fusednn as fn
    >>> fn.randn(2, 3).shape
    (2, 3)
    """
    return _random("randn", "standard_normal", size, dtype, requires_grad, device)
