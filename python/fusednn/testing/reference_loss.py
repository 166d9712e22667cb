"""Activations, softmax and cross-entropy in plain NumPy, in whatever dtype they are given.

Called with float64 arrays they are the truth; with float32 arrays, the naive version that bounds
the error of the kernels.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def log_softmax(x: Array, axis: int) -> Array:
    """x minus the logarithm of the sum of exp(x) along an axis.

    >>> np.exp(log_softmax(np.zeros((1, 4)), 1)).tolist()
    [[0.25, 0.25, 0.25, 0.25]]
    """
    shifted = x - x.max(axis=axis, keepdims=True)
    result: Array = shifted - np.log(np.exp(shifted).sum(axis=axis, keepdims=True))
    return result


def softmax(x: Array, axis: int) -> Array:
    """exp(x) scaled to sum 1 along an axis."""
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    result: Array = e / e.sum(axis=axis, keepdims=True)
    return result


def softmax_backward(grad: Array, y: Array, axis: int) -> Array:
    """Gradient of softmax from its output y."""
    result: Array = y * (grad - (grad * y).sum(axis=axis, keepdims=True))
    return result


def log_softmax_backward(grad: Array, y: Array, axis: int) -> Array:
    """Gradient of log_softmax from its output y."""
    result: Array = grad - np.exp(y) * grad.sum(axis=axis, keepdims=True)
    return result


def cross_entropy(
    x: Array,
    target: NDArray[np.int64],
    weight: Array | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    log_probabilities: bool = False,
) -> tuple[Array, Array]:
    """Loss of every position and what it counts in a mean; x is (N, C, ...), target (N, ...)."""
    classes = x.shape[1]
    w = np.ones(classes, x.dtype) if weight is None else weight
    minus_log_p = -x if log_probabilities else -log_softmax(x, 1)
    kept = target != ignore_index
    safe = np.where(kept, target, 0)
    picked = np.take_along_axis(minus_log_p, safe[:, None], 1)[:, 0]
    per_class = w.reshape(1, -1, *[1] * (x.ndim - 2))
    loss = (1 - label_smoothing) * w[safe] * picked
    if label_smoothing:
        loss = loss + label_smoothing / classes * (per_class * minus_log_p).sum(axis=1)
    zero = x.dtype.type(0)
    return (
        np.where(kept, loss, zero).astype(x.dtype),
        np.where(kept, w[safe], zero).astype(x.dtype),
    )


def cross_entropy_backward(
    x: Array,
    target: NDArray[np.int64],
    scale: Array,
    weight: Array | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    log_probabilities: bool = False,
) -> Array:
    """Gradient of sum(scale * loss) in x."""
    classes = x.shape[1]
    shape = (1, -1, *[1] * (x.ndim - 2))
    w = np.ones(classes, x.dtype) if weight is None else weight
    kept = target != ignore_index
    safe = np.where(kept, target, 0)
    one_hot = np.arange(classes).reshape(shape) == safe[:, None]
    hard = ((1 - label_smoothing) * w[safe])[:, None] * one_hot
    soft = label_smoothing / classes * w.reshape(shape)
    coefficient = hard + soft  # of -log p
    grad = -coefficient
    if not log_probabilities:
        grad = softmax(x, 1) * coefficient.sum(axis=1, keepdims=True) - coefficient
    scaled = np.where(kept[:, None], grad * scale[:, None], 0)
    return scaled.astype(x.dtype)
