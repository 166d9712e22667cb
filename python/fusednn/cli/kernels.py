"""Each kernel beside the same maths in NumPy: how far apart, and how much faster.

The NumPy versions are the ones a careful user would write: whole-array expressions and BLAS, no
Python loop over elements. In float64 they are the truth, in float32 what is timed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from .. import _core
from .. import functional as F
from .._tensor.tape import Array


class Row(NamedTuple):
    """One line of the table."""

    kernel: str
    shape: str
    error: float
    ratio: float


Maths = Callable[..., Any]


def _patches(x: Array, k: int, pad: int, stride: int = 1) -> Array:
    x = np.pad(x, [(0, 0), (0, 0), (pad, pad), (pad, pad)])
    return sliding_window_view(x, (k, k), axis=(2, 3))[:, :, ::stride, ::stride]


def _conv2d(x: Array, w: Array, b: Array) -> Array:
    y = np.tensordot(_patches(x, 3, 1), w, ((1, 4, 5), (1, 2, 3)))
    return np.ascontiguousarray(y.transpose(0, 3, 1, 2)) + b[:, None, None]


def _conv2d_input_grad(dy: Array, w: Array) -> Array:
    turned = w[:, :, ::-1, ::-1].transpose(1, 0, 2, 3)
    y = np.tensordot(_patches(dy, 3, 1), turned, ((1, 4, 5), (1, 2, 3)))
    return np.ascontiguousarray(y.transpose(0, 3, 1, 2))


def _conv2d_weight_grad(dy: Array, x: Array) -> Array:
    return np.asarray(np.tensordot(dy, _patches(x, 3, 1), ((0, 2, 3), (0, 2, 3))))


def _max_pool2d(x: Array) -> Array:
    return np.asarray(np.maximum.reduce(_patches(x, 2, 0, 2), axis=(4, 5)))


def _max_pool2d_grad(dy: Array, x: Array) -> Array:
    n, c, h, w = x.shape
    windows = x.reshape(n, c, h // 2, 2, w // 2, 2).transpose(0, 1, 2, 4, 3, 5)
    flat = windows.reshape(n, c, h // 2, w // 2, 4)
    out = np.zeros_like(flat)
    np.put_along_axis(out, flat.argmax(-1)[..., None], dy[..., None], -1)
    back = out.reshape(n, c, h // 2, w // 2, 2, 2).transpose(0, 1, 2, 4, 3, 5)
    return np.asarray(back.reshape(x.shape))


def _log_softmax(x: Array) -> Array:
    shifted = x - x.max(1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(1, keepdims=True))  # type: ignore[no-any-return]


def _cross_entropy(x: Array, target: Array) -> Array:
    return np.asarray(-_log_softmax(x)[np.arange(len(x)), target].mean())


def _adamw(p: Array, g: Array, m: Array, v: Array) -> Array:
    p, m, v = p * (1 - 1e-3 * 1e-2), m + (g - m) * (1 - 0.9), v * 0.999 + g * g * (1 - 0.999)
    return np.asarray(p - 1e-3 / (1 - 0.9) * m / (np.sqrt(v) / np.sqrt(1 - 0.999) + 1e-8))


def _our_adamw(p: Array, g: Array, m: Array, v: Array) -> Array:
    p, m, v = p.copy(), m.copy(), v.copy()
    _core.adam_step([p], [g], [m], [v], None, [1], 1e-3, 0.9, 0.999, 1e-8, 1e-2, True, False)
    return p


def _cases() -> list[tuple[str, str, Maths, Maths, list[Array]]]:
    random = np.random.default_rng(0)

    def normal(*shape: int) -> Array:
        return random.standard_normal(shape)

    x, w, b, dy = normal(8, 32, 28, 28), normal(32, 32, 3, 3), normal(32), normal(8, 32, 28, 28)
    pooled = normal(8, 32, 14, 14)
    rows, matrix, bias = normal(64, 512), normal(256, 512), normal(256)
    logits, classes = normal(512, 100), random.integers(0, 100, 512)
    size = 100_000
    window = (1, 1, 1, 1, "auto")
    image = "8x32x28x28"
    argmax: list[Any] = []

    def pool_grad(dy: Array, x: Array) -> Array:
        if not argmax:  # what forward leaves behind; not part of backward's time
            argmax.append(_core.max_pool_forward(2, x, 2, None, 0, 1, False, True)[1])
        return _core.max_pool_backward(2, dy, argmax[0], x.shape, 2, None, 0, 1, False)

    return [
        ("conv2d k3", image, lambda x, w, b: F.conv2d(x, w, b, 1, 1), _conv2d, [x, w, b]),
        (
            "conv2d k3, d input",
            image,
            lambda g, w: _core.conv_backward_input(2, g, w, g.shape, *window),
            _conv2d_input_grad,
            [dy, w],
        ),
        (
            "conv2d k3, d weight",
            image,
            lambda g, x: _core.conv_backward_weight(2, g, x, (32, 32, 3, 3), *window),
            _conv2d_weight_grad,
            [dy, x],
        ),
        ("max_pool2d k2", image, lambda x: F.max_pool2d(x, 2), _max_pool2d, [x]),
        ("max_pool2d k2, d input", image, pool_grad, _max_pool2d_grad, [pooled, x]),
        (
            "linear",
            "64x512 -> 256",
            F.linear,
            lambda x, w, b: x @ w.T + b,
            [rows, matrix, bias],
        ),
        ("relu", image, F.relu, lambda x: np.maximum(x, 0), [x]),
        ("log_softmax", "512x100", lambda x: F.log_softmax(x, 1), _log_softmax, [logits]),
        ("cross_entropy", "512x100", F.cross_entropy, _cross_entropy, [logits, classes]),
        (
            "adamw step",
            f"{size}",
            _our_adamw,
            _adamw,
            [normal(size), normal(size), normal(size), abs(normal(size))],
        ),
    ]


def _single(arrays: list[Array]) -> list[Array]:
    return [a.astype(np.float32) if a.dtype == np.float64 else a for a in arrays]


def _double(arrays: list[Array]) -> list[Array]:
    return [a.astype(np.float64) if a.dtype == np.float32 else a for a in arrays]


def _seconds(function: Maths, arrays: list[Array]) -> float:
    start = time.perf_counter()
    function(*arrays)
    return time.perf_counter() - start


def measure(rounds: int = 7) -> list[Row]:
    """The table's rows: float32 kernels, their largest error relative to the largest exact value,
    and NumPy's median time over ours, the two alternating."""
    rows = []
    with _same_threads():
        for kernel, shape, ours, maths, arrays in _cases():
            single = _single(arrays)
            exact = np.asarray(maths(*_double(single)))
            error = np.abs(np.asarray(ours(*single)) - exact).max() / np.abs(exact).max()
            pairs = [(_seconds(ours, single), _seconds(maths, single)) for _ in range(rounds)]
            mine, theirs = (float(np.median(times)) for times in zip(*pairs, strict=True))
            rows.append(Row(kernel, shape, float(error), theirs / mine))
    return rows


def _same_threads() -> AbstractContextManager[Any]:
    """NumPy's BLAS on as many threads as our kernels, where threadpoolctl can see to it."""
    try:
        from threadpoolctl import threadpool_limits
    except ImportError:
        return nullcontext()
    limits: AbstractContextManager[Any] = threadpool_limits(_core.get_num_threads(), "blas")
    return limits


def table(rows: list[Row]) -> str:
    """The rows as text."""
    lines = [f"{'kernel':24}{'shape':16}{'max rel. error':>15}{'speed / NumPy':>15}"]
    lines += [f"{row.kernel:24}{row.shape:16}{row.error:>15.1e}{row.ratio:>14.1f}x" for row in rows]
    return "\n".join(lines)
