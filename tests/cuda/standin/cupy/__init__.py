"""A stand-in for CuPy over the emulator's memory, for the tests in this folder.

Arrays live in the emulated devices' memory, which host code cannot touch. What fusednn's kernels
compute comes from the emulated kernels; everything else is computed by NumPy on copies. As with
CuPy, NumPy arrays and these do not mix, and nothing is copied to the host unless asked.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from . import cuda
from ._library import library

__version__ = "emulated"

bool_, int8, int32, int64 = np.bool_, np.int8, np.int32, np.int64
uint8, uint16, float16, float32, float64 = np.uint8, np.uint16, np.float16, np.float32, np.float64
inf, nan, newaxis, pi = np.inf, np.nan, None, np.pi


class _Buffer:
    """Memory on the current device."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.ptr = library.emulator_malloc(nbytes) if nbytes else 0
        if nbytes and not self.ptr:
            raise MemoryError(f"emulator: no room for {nbytes} bytes")
        cuda.used_bytes += nbytes

    def __del__(self) -> None:
        if self.nbytes:
            cuda.used_bytes -= self.nbytes
            library.emulator_free(self.ptr)


class _Address:
    """Lets NumPy describe memory that it cannot look at."""

    def __init__(self, ptr: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.__array_interface__ = {
            "version": 3,
            "data": (ptr, False),
            "shape": shape,
            "typestr": dtype.str,
        }


class MemoryPointer:
    def __init__(self, ptr: int) -> None:
        self.ptr = ptr


def _host(value: Any) -> Any:
    """Device arrays in `value`, at any depth of lists and tuples, as copies on the host."""
    if isinstance(value, ndarray):
        return value.get()
    if isinstance(value, np.ndarray):
        raise TypeError("Unsupported type <class 'numpy.ndarray'>")
    if isinstance(value, list | tuple):
        return type(value)(_host(one) for one in value)
    return value


def _device(value: Any) -> Any:
    """Arrays and NumPy scalars in `value` on the device; CuPy's reductions give arrays too."""
    if isinstance(value, np.ndarray | np.generic):
        return array(value)
    if isinstance(value, list | tuple):
        return type(value)(_device(one) for one in value)
    return value


class ndarray:
    """An array in the memory of a device."""

    __slots__ = ("__weakref__", "_buffer", "_map", "base")
    __hash__ = None  # type: ignore[assignment]

    def __init__(
        self, buffer: _Buffer, described: np.ndarray[Any, Any], base: ndarray | None = None
    ) -> None:
        self._buffer = buffer
        self._map = described  # shape, strides and address; its elements are out of reach
        self.base = base  # whose memory a view reads

    def _view(self, described: np.ndarray[Any, Any]) -> ndarray:
        return ndarray(self._buffer, described, self if self.base is None else self.base)

    # ---- what it is

    @property
    def shape(self) -> tuple[int, ...]:
        return self._map.shape

    @property
    def strides(self) -> tuple[int, ...]:
        return self._map.strides

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._map.dtype

    @property
    def ndim(self) -> int:
        return self._map.ndim

    @property
    def size(self) -> int:
        return self._map.size

    @property
    def nbytes(self) -> int:
        return self._map.nbytes

    @property
    def itemsize(self) -> int:
        return self._map.itemsize

    @property
    def flags(self) -> Any:
        return self._map.flags

    @property
    def data(self) -> MemoryPointer:
        return MemoryPointer(self._map.ctypes.data if self.size else 0)

    @property
    def device(self) -> cuda.Device:
        return cuda.Device(0 if self._buffer.ptr < cuda.second_heap() else 1)

    @property
    def T(self) -> ndarray:
        return self._view(self._map.T)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "version": 3,
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.data.ptr, False),
            "strides": None if self.flags.c_contiguous else self.strides,
            "stream": cuda.get_current_stream().ptr or 1,
        }

    def __dlpack__(self, **options: Any) -> Any:
        return self  # read by `from_dlpack` below, and by nobody else

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self.device.id

    def __len__(self) -> int:
        return len(self._map)

    def __repr__(self) -> str:
        return repr(self.get())

    def __bool__(self) -> bool:
        return bool(self.get())

    def __int__(self) -> int:
        return int(self.get())

    def __float__(self) -> float:
        return float(self.get())

    def item(self, *index: int) -> Any:
        return self.get().item(*index)

    def tolist(self) -> Any:
        return self.get().tolist()

    # ---- its elements

    def _whole(self) -> Any:
        """A copy of the whole buffer, and this array's view of the copy."""
        raw = np.empty(self._buffer.nbytes, np.uint8)
        if raw.nbytes:
            assert library.emulator_to_host(raw.ctypes.data, self._buffer.ptr, raw.nbytes) == 0
        offset = self._map.ctypes.data - self._buffer.ptr if self.size else 0
        view: Any = np.ndarray(
            self.shape, self.dtype, raw.data if raw.nbytes else None, offset, self.strides
        )
        return raw, view

    def get(self) -> Any:
        return self._whole()[1].copy()

    def set(self, values: Any) -> None:
        self[...] = array(values)

    def __getitem__(self, index: Any) -> ndarray:
        basic = index if isinstance(index, tuple) else (index,)
        if all(one is None or one is ... or isinstance(one, int | slice) for one in basic):
            # A number as an array without axes, not as a scalar, which would have to be read.
            return self._view(self._map[(*basic, ...)] if ... not in basic else self._map[index])
        return _device(self.get()[_host(index)])

    def __setitem__(self, index: Any, values: Any) -> None:
        if not self.size:
            return
        raw, view = self._whole()
        view[_host(index)] = _host(values)
        assert library.emulator_to_device(self._buffer.ptr, raw.ctypes.data, raw.nbytes) == 0

    def fill(self, value: Any) -> None:
        self[...] = value

    def reshape(self, *shape: Any, order: str = "C") -> ndarray:
        size = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
        try:
            return self._view(np.reshape(self._map, size, copy=False))
        except ValueError:
            return array(self.get().reshape(size))

    def transpose(self, *axes: Any) -> ndarray:
        return self._view(self._map.transpose(*axes))

    def swapaxes(self, a: int, b: int) -> ndarray:
        return self._view(self._map.swapaxes(a, b))

    def ravel(self) -> ndarray:
        return self.reshape(-1)

    def astype(self, dtype: Any, copy: bool = True) -> ndarray:
        if self.dtype == dtype and not copy:
            return self
        return array(self.get().astype(dtype))

    # ---- NumPy's protocols

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(
            "Implicit conversion to a NumPy array is not allowed. "
            "Please use `.get()` to construct a NumPy array explicitly."
        )

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        out = kwargs.pop("out", None)
        result = getattr(ufunc, method)(*_host(inputs), **_host_values(kwargs))
        if out is None:
            return _device(result)
        out[0][...] = _device(result)
        return out[0]

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return _device(function(*_host(args), **_host_values(kwargs)))

    def __getattr__(self, name: str) -> Any:
        """Methods of NumPy's arrays that make new ones."""
        if name.startswith("_") or not hasattr(np.ndarray, name):
            raise AttributeError(f"the stand-in's array has no {name!r}")

        def method(*args: Any, **kwargs: Any) -> Any:
            return _device(getattr(self.get(), name)(*_host(args), **_host_values(kwargs)))

        return method


def _host_values(mapping: dict[str, Any]) -> dict[str, Any]:
    return {key: _host(value) for key, value in mapping.items()}


_BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor")


def _add_operators() -> None:
    def binary(name: str) -> Any:
        def operator(self: ndarray, other: Any) -> Any:
            return _device(getattr(self.get(), name)(_host(other)))

        return operator

    def inplace(name: str) -> Any:
        def operator(self: ndarray, other: Any) -> Any:
            self[...] = getattr(self, name)(other)
            return self

        return operator

    def unary(name: str) -> Any:
        return lambda self: _device(getattr(self.get(), name)())

    for name in _BINARY:
        setattr(ndarray, f"__{name}__", binary(f"__{name}__"))
        setattr(ndarray, f"__r{name}__", binary(f"__r{name}__"))
        setattr(ndarray, f"__i{name}__", inplace(f"__{name}__"))
    for name in ("eq", "ne", "lt", "le", "gt", "ge"):
        setattr(ndarray, f"__{name}__", binary(f"__{name}__"))
    for name in ("neg", "pos", "abs", "invert"):
        setattr(ndarray, f"__{name}__", unary(f"__{name}__"))


_add_operators()


# ---- making arrays -------------------------------------------------------------------------------


def empty(shape: Any, dtype: Any = float, order: str = "C") -> ndarray:
    dtype = np.dtype(dtype)
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    buffer = _Buffer(int(np.prod(shape, dtype=np.int64)) * dtype.itemsize)
    # Without elements there is no memory either, but NumPy wants an address.
    described = np.asarray(_Address(buffer.ptr or 64, shape, dtype))
    # The interface has no letters for ml_dtypes' bfloat16.
    return ndarray(buffer, described.view(dtype))


def array(value: Any, dtype: Any = None, copy: bool = True) -> ndarray:
    """A new array with the elements of a device array, a NumPy array, or anything NumPy takes."""
    host = np.asarray(value.get() if isinstance(value, ndarray) else value, dtype, order="C")
    out = empty(host.shape, host.dtype)
    if host.nbytes:
        assert library.emulator_to_device(out._buffer.ptr, host.ctypes.data, host.nbytes) == 0
    return out


def asarray(value: Any, dtype: Any = None) -> ndarray:
    if isinstance(value, ndarray) and (dtype is None or value.dtype == dtype):
        return value
    if hasattr(value, "__cuda_array_interface__") and not isinstance(value, ndarray):
        return asarray(_borrow(value), dtype)
    return array(value, dtype)


def _borrow(owner: Any) -> ndarray:
    """The memory of a foreign object, which stays alive as long as this array."""
    interface = owner.__cuda_array_interface__
    dtype = owner.dtype if isinstance(owner, ndarray) else np.dtype(interface["typestr"])
    described = np.asarray(_Address(interface["data"][0], interface["shape"], dtype)).view(dtype)
    if interface.get("strides"):
        described = np.lib.stride_tricks.as_strided(described, strides=interface["strides"])
    whole = owner._buffer if isinstance(owner, ndarray) else owner.array._buffer
    return ndarray(whole, described)


def from_dlpack(value: Any) -> ndarray:
    return _borrow(value.__dlpack__(stream=cuda.get_current_stream().ptr))


def ascontiguousarray(value: Any, dtype: Any = None) -> ndarray:
    value = asarray(value, dtype)
    return value if value.flags.c_contiguous else array(value)


def asnumpy(value: Any) -> Any:
    return value.get() if isinstance(value, ndarray) else np.asarray(value)


def empty_like(value: ndarray, dtype: Any = None) -> ndarray:
    return empty(value.shape, dtype or value.dtype)


def zeros_like(value: ndarray, dtype: Any = None) -> ndarray:
    return zeros(value.shape, dtype or value.dtype)


def zeros(shape: Any, dtype: Any = float) -> ndarray:
    return array(np.zeros(shape, dtype))


def get_array_module(*values: Any) -> Any:
    import cupy

    return cupy if any(isinstance(one, ndarray) for one in values) else np


class _MemoryPool:
    def used_bytes(self) -> int:
        return cuda.used_bytes

    def total_bytes(self) -> int:
        return cuda.used_bytes

    def free_all_blocks(self) -> None: ...


def get_default_memory_pool() -> _MemoryPool:
    return _MemoryPool()


def __getattr__(name: str) -> Any:
    """Every other function is NumPy's, on copies."""
    function = getattr(np, name, None)
    if name.startswith("_") or function is None:
        raise AttributeError(f"the stand-in for CuPy has no {name!r}")
    if not callable(function) or isinstance(function, type):
        return function

    def on_copies(*args: Any, **kwargs: Any) -> Any:
        return _device(function(*_host(args), **_host_values(kwargs)))

    return on_copies
