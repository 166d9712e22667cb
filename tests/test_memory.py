"""Recycled memory for results: alignment, exact counts, reuse, bounds; kernels trust none of it."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading

import numpy as np
import pytest

import fusednn as fn
import fusednn.functional as F
from fusednn import _core

MB = 1 << 20


def python(code: str, **environment: str) -> str:
    """What `code` prints in a new process; AssertionError with its errors if it fails."""
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, **environment},
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def in_use() -> int:
    return _core.memory_stats()["in_use"]


def result_of(elements: int) -> np.ndarray:
    """An array of `elements` float32 that an op has made."""
    return F.relu(np.ones(elements, np.float32))


@pytest.mark.parametrize("elements", [0, 1, 255, 256, 257, 1000, 65536, 524288, 524289, 3_000_000])
def test_results_are_aligned_and_counted(elements):
    gc.collect()
    before = in_use()
    y = result_of(elements)
    if y.nbytes > 1024:  # smaller ones are NumPy's own
        assert y.ctypes.data % 64 == 0
        assert y.nbytes <= in_use() - before <= max(1.5 * y.nbytes + 512, y.nbytes + 2 * MB)
    assert y.shape == (elements,) and (y == 1).all()
    del y
    assert in_use() == before


def test_blocks_much_larger_are_not_taken():
    """2 MB and a little need a mapping of 4 MB; what is half larger than that is too much."""
    _core.empty_cache()  # or a block that fits might be free
    result_of(6 * MB // 4 - 64)  # is free at once
    test_results_are_aligned_and_counted(524289)


def test_memory_is_used_again():
    for elements in (1000, 65536, 3_000_000):
        y = result_of(elements)
        address = y.ctypes.data
        del y
        addresses = {result_of(elements).ctypes.data for _ in range(5)}
        assert addresses == {address}


def test_an_array_in_use_keeps_its_memory():
    y = result_of(1_000_000)
    view = y[::2].reshape(500, 1000)
    held = in_use()
    del y
    assert in_use() == held  # the view owns the block now
    others = [result_of(1_000_000) * 2 for _ in range(5)]
    _core.empty_cache()
    assert (view == 1).all() and len(others) == 5
    del view
    assert in_use() <= held - 4_000_000


def test_released_by_another_thread():
    gc.collect()
    before = in_use()
    arrays = [result_of(5000 + i) for i in range(200)]
    halves = arrays[::2], arrays[1::2]
    del arrays

    def drop(half):
        while half:
            half.pop()
            result_of(5000)

    threads = [threading.Thread(target=drop, args=(half,)) for half in halves]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert in_use() == before


def test_what_is_kept_is_bounded():
    limit = _core.memory_stats()["limit"]
    assert 0 < limit <= 512 * MB
    size = 1 << 18
    arrays = [result_of(size) for _ in range(limit // (4 * size) + 100)]
    del arrays
    assert _core.memory_stats()["cached"] <= limit


def test_empty_cache():
    y = result_of(30_000_000)
    del y
    cached, resident = _core.memory_stats()["cached"], resident_bytes()
    assert cached >= 120_000_000
    _core.empty_cache()
    assert cached - _core.memory_stats()["cached"] >= 120_000_000
    assert resident - resident_bytes() > 100_000_000
    assert (result_of(1000) == 1).all()


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")


def test_impossible_sizes_are_memory_errors():
    x = np.ones((1, 1, 4, 4), np.float32)
    before = in_use()
    for padding in (1 << 22, 1 << 21):  # 2^48 bytes of result, and 2^46
        with pytest.raises(MemoryError):
            _core.unfold(x, 1, 1, padding, 1)
    assert in_use() == before
    assert (result_of(1000) == 1).all()


CHANGING_SIZES = f"""
import os, random
import numpy as np
import fusednn as fn
import fusednn.functional as F
def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")
random.seed(0)
w = np.ones((64, 16, 3, 3), np.float32)
source = np.ones(16 * 120 * 120, np.float32)
F.conv2d(source.reshape(1, 16, 120, 120), w, padding=1)
for call in range(400):
    h, w_ = random.randint(20, 120), random.randint(20, 120)
    y = F.conv2d(source[: 16 * h * w_].reshape(1, 16, h, w_), w, padding=1)
    F.max_pool2d(F.relu(y), 2)
    if call == 50: settled = resident()
print((resident() - settled) / {MB})
"""


def test_changing_sizes_reach_a_steady_state():
    """400 images with sides from 20 to 120 pixels, so areas 1 to 36."""
    assert float(python(CHANGING_SIZES)) < 16


def test_first_call_finds_memory_present():
    """An output under 256 KB faults in no new pages on the first call, also without huge pages.

    Fresh, its 62 pages would cost about 0.1 ms: several times the op itself.
    """
    code = """
import ctypes, resource
ctypes.CDLL(None).prctl(41, 1, 0, 0, 0)  # PR_SET_THP_DISABLE
import numpy as np
import fusednn as fn
import fusednn.functional as F
faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
x = np.ones(1000, np.float32)
F.relu(x)  # the code itself is paged in
x = np.ones(62_500, np.float32)
before = faults()
y = F.relu(x)
print(faults() - before)
"""
    assert int(python(code)) < 20


DIGEST = """
import hashlib
import numpy as np
import fusednn as fn
import fusednn as fn
import fusednn.functional as F
fn.set_num_threads(2)
rng = np.random.default_rng(0)
hash = hashlib.sha256()
def array(*shape): return rng.standard_normal(shape).astype(dtype)
def add(*tensors):
    for tensor in tensors:
        value = tensor.numpy() if isinstance(tensor, fn.Tensor) else tensor
        hash.update(np.ascontiguousarray(value))
for dtype in ("float32", "float64"):
    for shape, out, kernel, options in (
        ((2, 5, 17, 19), 7, 3, dict(padding=1)),
        ((3, 8, 31, 30), 16, 5, dict(padding=2)),
        ((1, 3, 33, 35), 9, 7, dict(stride=2, padding=3)),
        ((2, 12, 23, 21), 12, 3, dict(groups=12, dilation=2)),
        ((4, 64, 28, 28), 64, 3, dict(padding=1)),
        ((4, 64, 14, 14), 32, 1, {}),
    ):
        x, w, b = (
            fn.tensor(array(*s), requires_grad=True)
            for s in (shape, (out, shape[1] // options.get("groups", 1), kernel, kernel), (out,))
        )
        y = F.relu(F.conv2d(x, w, b, **options))
        z = F.max_pool2d(y, 3, 2, 1)
        (z * z).sum().backward()
        add(y, z, x.grad, w.grad, b.grad)
    x, w, b = (fn.tensor(array(*s), requires_grad=True) for s in ((37, 53), (11, 53), (11,)))
    target = rng.integers(0, 11, 37)
    loss = F.cross_entropy(F.linear(x, w, b), target)
    loss.backward()
    add(loss, x.grad, w.grad, b.grad)
    add(F.softmax(array(300, 257), 1), F.log_softmax(array(5, 7, 9), 1))
print(hash.hexdigest(), fn.cpu_isa())
"""


@pytest.mark.parametrize("isa", _core.usable_isas())
def test_kernels_do_not_rely_on_what_memory_holds(isa):
    """Blocks full of NaN instead of leftovers change no bit of any result."""
    plain = python(DIGEST, FUSEDNN_ISA=isa, FUSEDNN_POISON_MEMORY="0")
    assert plain.endswith(isa)
    assert python(DIGEST, FUSEDNN_ISA=isa, FUSEDNN_POISON_MEMORY="1") == plain


def test_results_that_python_fills():
    for shape in ((), (0,), (3, 4), (2, 3, 4, 5, 1, 1, 1, 1), (300, 300)):
        for is_double in (False, True):
            a = _core.empty(shape, is_double)
            assert a.shape == shape
            assert a.dtype == (np.float64 if is_double else np.float32)
            assert a.flags.c_contiguous
            assert a.flags.writeable
    with pytest.raises(ValueError, match="more than 8 dimensions"):
        _core.empty((1,) * 9, False)
    with pytest.raises(TypeError, match="empty: shape must be"):
        _core.empty("3", False)


def test_sums_and_products_of_tensors_lie_in_recycled_memory():
    a = fn.tensor(np.ones((4, 40_000), np.float32), requires_grad=True)
    before = in_use()
    results = [a + a, a - a, a * a, a + 1.0, 2 * a]
    assert in_use() - before >= 5 * a.numpy().nbytes
    for found, expected in zip(results, (2, 0, 1, 2, 2), strict=True):
        np.testing.assert_array_equal(found.numpy(), np.full((4, 40_000), expected, np.float32))
    # Others stay what NumPy makes of them: broadcast, strided, of two kinds.
    np.testing.assert_array_equal((a + np.ones(40_000, np.float32)).numpy(), results[0].numpy())
    turned = a.transpose(0, 1)
    assert (turned + turned).numpy().flags.f_contiguous
    mask = a * np.zeros((4, 40_000), bool)
    assert mask.dtype == np.float32
    assert not mask.numpy().any()
    (a * a + a).sum().backward()
    np.testing.assert_array_equal(a.grad.numpy(), np.full((4, 40_000), 3, np.float32))
