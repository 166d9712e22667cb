"""The emulator's functions (tests/cuda/emulator/capi.cpp), which are in the extension itself."""

import ctypes

from fusednn import _core

library = ctypes.CDLL(_core.__file__)
_size, _pointer = ctypes.c_size_t, ctypes.c_void_p
library.emulator_malloc.restype = _pointer
library.emulator_malloc.argtypes = [_size]
library.emulator_free.argtypes = [_pointer]
library.emulator_to_device.argtypes = [_pointer, _pointer, _size]
library.emulator_to_host.argtypes = [_pointer, _pointer, _size]
library.emulator_second_heap.restype = ctypes.c_uint64
library.emulator_profile.restype = ctypes.c_char_p
library.emulator_last_report.restype = ctypes.c_char_p
