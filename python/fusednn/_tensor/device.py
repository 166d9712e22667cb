"""Where arrays are: on the CPU (NumPy's) or on a GPU (CuPy's), and how they get there.

The glue around the kernels is written once. A function that is given an array, `np.exp(x)` or
`np.where(chosen, x, y)`, is NumPy's in the source and runs where the array is: NumPy hands it on to
CuPy. What makes an array of nothing asks for the `namespace` of an array it belongs to. Nothing is
moved unless the user says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeGuard

import numpy as np
from numpy import asarray, generic, ndarray
from numpy.typing import NDArray

from .. import _core

# Device memory, and memory that a GPU and the CPU share, in DLPack's numbers.
_DLPACK_CUDA = (2, 13)


def on_gpu(value: Any) -> bool:
    """Is it an array on a GPU, of whatever library? False for Tensors."""
    if isinstance(value, (ndarray, generic, float, int)):
        return False
    if hasattr(value, "__cuda_array_interface__"):
        return True
    place = getattr(value, "__dlpack_device__", None)
    return place is not None and not hasattr(value, "_memory") and int(place()[0]) in _DLPACK_CUDA


def is_array(value: Any) -> TypeGuard[NDArray[Any]]:
    """Is it NumPy's array, or one on a GPU?"""
    return isinstance(value, ndarray) or on_gpu(value)


def as_array(data: Any) -> Any:
    """An array as it is; what NumPy made a number of, as an array again."""
    if type(data) is ndarray or hasattr(data, "__cuda_array_interface__"):
        return data
    return asarray(data)


def _cupy() -> Any:
    import cupy  # type: ignore[import-not-found, unused-ignore]

    return cupy


def as_cupy(value: Any) -> Any:
    """CuPy's view of any library's array on a GPU."""
    cupy = _cupy()
    if isinstance(value, cupy.ndarray):
        return value
    if hasattr(value, "__cuda_array_interface__"):
        return cupy.asarray(value)
    return cupy.from_dlpack(value)


def namespace(array: Any) -> Any:
    """The library whose functions make arrays beside `array`: NumPy, or CuPy for a GPU's."""
    if type(array) is ndarray or not hasattr(array, "__cuda_array_interface__"):
        return np
    return _cupy()


def device_of(array: Any) -> str:
    """Where an array is: "cpu" or "cuda:0"."""
    if type(array) is ndarray or not hasattr(array, "__cuda_array_interface__"):
        return "cpu"
    return f"cuda:{as_cupy(array).device.id}"


def is_bfloat16(dtype: Any) -> bool:
    """Whether this is the dtype that the package ml_dtypes adds to NumPy, or its scalar type; known
    by its name, so that the package is not needed."""
    name = getattr(dtype, "name", None) or getattr(dtype, "__name__", None)
    return name == "bfloat16"


def is_half(dtype: np.dtype[Any]) -> bool:
    """Is it one of the 16-bit floats, which only a GPU computes in?"""
    return dtype.char == "e" or is_bfloat16(dtype)


def is_float(dtype: np.dtype[Any]) -> bool:
    """Is it a float's dtype? bfloat16's kind is not NumPy's "f"."""
    return dtype.kind == "f" or is_bfloat16(dtype)


def dtype_named(dtype: Any) -> Any:
    """np.dtype(dtype), which knows the name "bfloat16" as well."""
    if isinstance(dtype, str) and dtype == "bfloat16":
        try:
            from ml_dtypes import bfloat16
        except ImportError:
            raise ImportError(
                "bfloat16 needs the package ml_dtypes; pip install 'fusednn[cuda]'"
            ) from None
        return np.dtype(bfloat16)
    return np.dtype(dtype)


def is_device(value: Any) -> TypeGuard[str]:
    """Is it a name of a device rather than of a dtype?"""
    return isinstance(value, str) and value.partition(":")[0] in ("cpu", "cuda")


def _number(op: str, device: Any) -> int:
    """The number of a GPU, -1 for the CPU; ValueError for what is not here."""
    if device == "cpu":
        return -1
    if not is_device(device) or not (device == "cuda" or device[5:].isdecimal()):
        raise ValueError(f"{op}: device {device!r}, expected 'cpu', 'cuda' or 'cuda:N'")
    if not _core.has_cuda():
        raise ValueError(f"{op}: device {device!r} is not available: {_core.cuda_status()}")
    try:
        cupy = _cupy()
    except ImportError:
        raise ValueError(
            f"{op}: device {device!r} needs CuPy; pip install 'fusednn[cuda]'"
        ) from None
    if device == "cuda":
        return int(cupy.cuda.Device().id)
    number = int(device[5:])
    if number >= cupy.cuda.runtime.getDeviceCount():
        raise ValueError(f"{op}: device {device!r} is not available: {_core.cuda_status()}")
    return number


@contextmanager
def making(op: str, device: Any) -> Iterator[Any]:
    """The namespace for new arrays on `device` (None: the CPU); that GPU is the current one."""
    number = -1 if device is None else _number(op, device)
    if number < 0:
        yield np
    else:
        cupy = _cupy()
        with cupy.cuda.Device(number):
            yield cupy


def moved(op: str, array: Any, device: Any) -> Any:
    """The array on `device`: itself if it is there, else a copy."""
    number = _number(op, device)
    if not hasattr(array, "__cuda_array_interface__"):
        if number < 0:
            return array
        cupy = _cupy()
        with cupy.cuda.Device(number):
            return cupy.asarray(asarray(array, array.dtype.newbyteorder("="), order="C"))
    if number < 0:
        return host(array)
    array = as_cupy(array)
    if array.device.id == number:
        return array
    cupy = _cupy()
    with cupy.cuda.Device(number):
        return cupy.array(array)


def beside(array: Any, like: Any) -> Any:
    """A NumPy array on the device of `like`."""
    return array if type(like) is ndarray else moved("to", array, device_of(like))


def host(array: Any) -> Any:
    """The elements as NumPy's array: a copy of what is on a GPU, others as they are."""
    return as_cupy(array).get() if hasattr(array, "__cuda_array_interface__") else array


def check_device(op: str, first: str, a: Any, second: str, b: Any) -> None:
    """ValueError unless both arrays are on one device."""
    here, there = device_of(a), device_of(b)
    if here != there:
        raise ValueError(
            f"{op}: {first} is on {here}, {second} on {there}; nothing is moved silently, move one "
            "with .to(device)"
        )


def is_writable(array: Any) -> bool:
    """False for NumPy's read-only arrays; CuPy has none."""
    return getattr(array.flags, "writeable", True)


def may_share(a: Any, b: Any) -> bool:
    """Could the arrays share memory? On a GPU nobody asks: a copy is cheap there."""
    if type(a) is ndarray and type(b) is ndarray:
        return np.may_share_memory(a, b)
    return device_of(a) == device_of(b)
