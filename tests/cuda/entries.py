"""The kernels of tests/cuda/kernels: in the emulated extension, or, on a GPU, in the library that
FUSEDNN_TEST_KERNELS names (bench/gpu_check.sh builds it)."""

from __future__ import annotations

import ctypes
import os
from typing import Any

import pytest
from conftest import EMULATED


def _library() -> ctypes.CDLL:
    if EMULATED:
        from cupy._library import library

        return library
    path = os.environ.get("FUSEDNN_TEST_KERNELS")
    if not path:
        pytest.skip("the test kernels are not built for this GPU (FUSEDNN_TEST_KERNELS)")
    return ctypes.CDLL(path)


def call(name: str, *arguments: Any) -> None:
    """Runs an entry and waits; RuntimeError with its text if it fails.

    Device arrays are passed as pointers, text and integers as themselves.
    """
    entry = _library()[name]
    entry.restype = ctypes.c_char_p
    text = entry(*map(_native, arguments))
    if text is not None:
        raise RuntimeError(text.decode())


def _native(value: Any) -> Any:
    if isinstance(value, int):
        return ctypes.c_int(value)
    if isinstance(value, str):
        return value.encode()
    return ctypes.c_void_p(value.data.ptr)
