"""What the tests of kernels share: calls on both sides, and how near their results must be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def on_gpu(xp: Any, value: Any) -> Any:
    """NumPy's arrays in `value` as the GPU's."""
    if isinstance(value, np.ndarray):
        return xp.asarray(value)
    if isinstance(value, tuple):
        return tuple(on_gpu(xp, one) for one in value)
    return value


def between_vectors(xp: Any, array: Array) -> Any:
    """A GPU's copy of it that begins one element behind a multiple of 16 bytes."""
    held = np.zeros(array.size + 1, array.dtype)
    held[1:] = array.ravel()
    return xp.asarray(held)[1:].reshape(array.shape)


def in_double(value: Any) -> Any:
    """float32 arrays as float64."""
    if isinstance(value, np.ndarray):
        return value.astype(np.float64) if value.dtype == np.float32 else value
    return value


def close(got: Any, expected: Any, units: float = 32, scale: float | Array = 1.0) -> None:
    """Equal but for `units` roundings of the value, and of `scale`; NaN and inf in one place."""
    bound = np.finfo(got.dtype).eps * units
    with np.errstate(over="ignore"):
        expected = np.asarray(expected).astype(got.dtype)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(expected))
    infinite = np.isinf(expected)
    np.testing.assert_array_equal(got[infinite], expected[infinite])
    normal = np.isfinite(expected)
    if np.ndim(scale):
        scale = np.broadcast_to(scale, got.shape)[normal]
    np.testing.assert_array_less(
        abs(got[normal] - expected[normal]) - bound * (abs(expected[normal]) + scale),
        np.finfo(got.dtype).tiny,
    )


def check(xp: Any, op: Callable[..., Any], *args: Any, units: float = 32, scale: Any = 1.0) -> Any:
    """op on the GPU beside op on the CPU in double; gives the GPU's results. The second run on the
    GPU must have the same bits."""
    with np.errstate(all="ignore"):
        expected = op(*(in_double(one) for one in args))
    results = [op(*(on_gpu(xp, one) for one in args)) for _ in range(2)]
    pairs = [one if isinstance(one, tuple) else (one,) for one in results]
    wanted = expected if isinstance(expected, tuple) else (expected,)
    for got, again, value in zip(*pairs, wanted, strict=True):
        assert (got is None) == (value is None)
        if got is None:
            continue
        assert isinstance(got, xp.ndarray)
        got, again = xp.asnumpy(got), xp.asnumpy(again)
        assert got.tobytes() == again.tobytes()
        if got.dtype.kind == "f":
            close(got, value, units, scale)
        else:
            np.testing.assert_array_equal(got, value)
    return results[0]
