"""The memory of convolutions beside their results: bounded, whatever the shape; and the values
where work is cut to stay within that."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import fusednn as fn
from fusednn import _core

MB = 1 << 20

# batch, channels, size, outputs, kernel, stride
CASES = {
    "much weight, few images": (2, 320, 20, 320, 3, 2),
    "images of one pixel": (40, 260, 1, 270, 3, 1),
    "images of four pixels": (70, 96, 2, 90, 3, 1),
    "few inputs, many outputs": (3, 30, 20, 700, 3, 1),
    "many outputs of one tap": (2, 256, 12, 2100, 1, 1),
    "many inputs of one tap": (2, 2100, 12, 256, 1, 1),
    "a panel of weights over the bound": (1, 6000, 17, 32, 3, 1),
}


def taps(kernel, stride, size, out):
    """(row, column, the part of a padded image that this tap reads)."""
    reach = stride * (out - 1) + 1
    for i in range(kernel):
        for j in range(kernel):
            yield i, j, np.s_[:, :, i : i + reach : stride, j : j + reach : stride]


def reference(x, w, dy, stride):
    """y, dx and dw in double precision."""
    x, w, dy = (a.astype(np.float64) for a in (x, w, dy))
    pad, out = w.shape[-1] // 2, dy.shape[-1]
    padded = np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    y, d_padded, dw = np.zeros_like(dy), np.zeros_like(padded), np.zeros_like(w)
    for i, j, part in taps(w.shape[-1], stride, x.shape[-1], out):
        y += np.einsum("oc,nchw->nohw", w[:, :, i, j], padded[part], optimize=True)
        d_padded[part] += np.einsum("oc,nohw->nchw", w[:, :, i, j], dy, optimize=True)
        dw[:, :, i, j] = np.einsum("nohw,nchw->oc", dy, padded[part], optimize=True)
    size = x.shape[-1]
    return y, d_padded[:, :, pad : pad + size, pad : pad + size], dw


def extra_memory(call):
    """The result of a call, and the bytes it took beside: what it leaves free for the next."""
    gc.collect()
    _core.empty_cache()
    before = _core.memory_stats()["cached"]
    result = call()
    return result, _core.memory_stats()["cached"] - before


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("threads", [1, 2])
def test_memory_and_values(name, threads, isa):
    batch, channels, size, outputs, kernel, stride = CASES[name]
    pad = kernel // 2
    out = (size + 2 * pad - kernel) // stride + 1
    rng = np.random.default_rng(0)
    x = rng.standard_normal((batch, channels, size, size), dtype=np.float32)
    w = rng.standard_normal((outputs, channels, kernel, kernel), dtype=np.float32)
    dy = rng.standard_normal((batch, outputs, out, out), dtype=np.float32)
    window = ((stride, stride), (pad, pad), (1, 1), 1, "implicit_gemm")
    fn.set_num_threads(threads)
    passes = (
        lambda: _core.conv_forward(2, x, w, None, *window),
        lambda: _core.conv_backward_input(2, dy, w, x.shape, *window),
        lambda: _core.conv_backward_weight(2, dy, x, w.shape, *window),
    )
    for call, right in zip(passes, reference(x, w, dy, stride), strict=True):
        result, extra = extra_memory(call)
        # Memory is taken from the system 2 MB at a time.
        assert extra <= max(2 * MB * threads, result.nbytes) + 2 * MB
        np.testing.assert_allclose(result, right, rtol=0, atol=2e-5 * abs(right).max())


@pytest.mark.parametrize(
    ("size", "kernel", "stride"),
    [((14, 1100), (5, 9), (1, 1)), ((9000,), (16,), (4,)), ((12, 700), (11, 3), (1, 2))],
)
@pytest.mark.parametrize("threads", [1, 2])
def test_bands_of_many_channels(size, kernel, stride, threads, isa):
    """Long rows of 64 channels, for the kernel that takes few on one side: less of each row."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1, 64, *size), dtype=np.float32)
    w = rng.standard_normal((8, 64, *kernel), dtype=np.float32)
    axes = len(size)
    window = (stride, (0,) * axes, (1,) * axes, 1)
    fn.set_num_threads(threads)
    y, extra = extra_memory(lambda: _core.conv_forward(axes, x, w, None, *window, "direct"))
    assert extra <= max(2 * MB * threads, y.nbytes) + 2 * MB
    product = _core.conv_forward(axes, x, w, None, *window, "implicit_gemm")
    np.testing.assert_allclose(y, product, rtol=0, atol=1e-5 * abs(product).max())
