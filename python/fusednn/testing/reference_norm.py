"""Plain twins of the normalisations: the formulas in NumPy, in whatever dtype they are given.

Called with wider arrays they are the truth; with the kernel's dtype, the naive version.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def normalize(x: Array, axes: tuple[int, ...], eps: float, rms: bool = False) -> Array:
    """(x - mean) / sqrt(variance + eps) over axes; rms: x / sqrt(mean of squares + eps).

    >>> normalize(np.array([1.0, 3.0]), (0,), 0.0).tolist()
    [-1.0, 1.0]
    """
    centered = x if rms else x - x.mean(axes, keepdims=True)
    square: Array = (centered * centered).mean(axes, keepdims=True)
    result: Array = centered / np.sqrt(square + x.dtype.type(eps))
    return result


def normalize_backward(
    grad: Array, x: Array, axes: tuple[int, ...], eps: float, rms: bool = False
) -> Array:
    """Gradient of sum(grad * normalize(x))."""
    centered = x if rms else x - x.mean(axes, keepdims=True)
    square = (centered * centered).mean(axes, keepdims=True)
    rstd = 1 / np.sqrt(square + x.dtype.type(eps))
    xhat = centered * rstd
    rest = grad - xhat * (grad * xhat).mean(axes, keepdims=True)
    if not rms:
        rest = rest - grad.mean(axes, keepdims=True)
    result: Array = rest * rstd
    return result
