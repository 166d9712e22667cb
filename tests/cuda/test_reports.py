"""What goes wrong on the device reaches Python, and says where."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
from test_arrays import Foreign

import fusednn.functional as F


@pytest.mark.strict
def test_out_of_bounds(xp):
    with pytest.raises(RuntimeError) as caught:
        F.relu(Foreign(xp.zeros(7), shape=(9,)))
    text = str(caught.value)
    assert text.startswith(
        "relu: relu_forward: in kernel relu_forward: out of bounds: block (0,0,0)"
    )
    assert "reads" in text and "elementwise.h" in text
    assert "global memory, byte 64 of a buffer of 56" in text


@pytest.mark.strict
def test_uninitialised_memory(xp):
    with pytest.raises(RuntimeError, match=r"sigmoid: unary_forward: .*uninitialised memory"):
        F.sigmoid(xp.empty(4, "float32"))


@pytest.mark.strict
def test_freed_memory(xp):
    array = xp.zeros(4)
    kept = {**array.__cuda_array_interface__}
    del array

    class Dangling:
        __cuda_array_interface__ = kept

    with pytest.raises(RuntimeError, match="out of bounds"):
        F.relu(Dangling())


@pytest.mark.strict
def test_an_error_is_reported_once(xp):
    with pytest.raises(RuntimeError):
        F.relu(xp.empty(4))
    assert xp.asnumpy(F.relu(xp.asarray([-1.0, 2.0]))).tolist() == [0.0, 2.0]


@pytest.mark.emulated
def test_the_host_cannot_look_at_device_memory():
    code = """
import ctypes, cupy
array = cupy.zeros(4)
print(array.get().tolist(), flush=True)
ctypes.string_at(array.data.ptr, 8)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "[0.0, 0.0, 0.0, 0.0]"
    assert done.returncode == -signal.SIGSEGV


@pytest.mark.strict
def test_profile(xp):
    from emulated import Profile

    with Profile() as profile:
        F.relu(xp.zeros(1024, "float32"))
        F.max_pool2d(xp.zeros((1, 1, 32, 32), "float32"), 2)
    lines = profile.text.splitlines()
    relu = [line for line in lines if "elementwise.h" in line]
    assert relu and all(line.endswith("x1.00") for line in relu)
    assert any("max.cu" in line and "global read" in line for line in lines)


@pytest.mark.emulated
def test_counts(xp):
    from emulated import take_counts

    array = xp.zeros(2048, "float32")
    take_counts()
    F.relu(array)
    counts = take_counts()
    assert (counts["launches"], counts["blocks"], counts["threads"]) == (1, 2, 512)
