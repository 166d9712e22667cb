"""Padding, one-hot codes and flattening."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .._tensor.device import is_array, namespace
from .._tensor.shape import flattened_shape
from .._tensor.tape import Array, Gradients, Node, TensorBase, raw, record, wrap

_MODES = ("constant", "reflect", "replicate", "circular")


def pad(input: Any, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Any:
    """Grows (or, where negative, crops) the last axes.

    pad lists (front, back) of the last axis, then of the one before, ...; at most as many pairs as
    axes. mode: "constant" (value, by default 0), "reflect" (mirror without the edge), "replicate"
    (the edge), "circular". ValueError for a reflection or wrap longer than the axis allows.

    >>> import numpy as np, fusednn.functional as F
    >>> F.pad(np.array([1.0, 2.0]), (1, 0))
    array([0., 1., 2.])
    """
    x = raw(input)
    if not is_array(x):
        raise TypeError(f"pad: input must be a Tensor or an array, got {type(x).__name__}")
    widths = _widths(x.shape, pad)
    if mode not in _MODES:
        raise ValueError(f"pad: mode={mode!r}, expected one of {', '.join(_MODES)}")
    _check_widths(x.shape, widths, mode)
    out = _padded(x, widths, mode, 0 if value is None else value)
    if not isinstance(input, TensorBase):
        return out
    return record(out, _pad_backward, (input,), (), (x.shape, widths, mode))


def _widths(shape: tuple[int, ...], pad: Sequence[int]) -> list[tuple[int, int]]:
    values = [int(n.__index__()) for n in pad]
    if len(values) % 2 or len(values) > 2 * len(shape):
        raise ValueError(
            f"pad: {len(values)} values for input of shape {shape}, expected a pair for each of at "
            f"most {len(shape)} axes"
        )
    pairs = [(values[i], values[i + 1]) for i in range(0, len(values), 2)]
    return [(0, 0)] * (len(shape) - len(pairs)) + pairs[::-1]


def _check_widths(shape: tuple[int, ...], widths: list[tuple[int, int]], mode: str) -> None:
    for axis, (size, (front, back)) in enumerate(zip(shape, widths, strict=True)):
        if size + front + back < 0 or (min(front, back) < 0 and mode != "constant"):
            raise ValueError(
                f"pad: ({front}, {back}) crops axis {axis} of shape {shape} too far, or in "
                f"mode {mode!r}"
            )
        limit = {"reflect": size - 1, "circular": size}.get(mode)
        if limit is not None and max(front, back) > max(limit, 0):
            raise ValueError(
                f"pad: ({front}, {back}) along axis {axis} of shape {shape} is more than mode "
                f"{mode!r} allows ({max(limit, 0)})"
            )
        if mode == "replicate" and size == 0 and max(front, back) > 0:
            raise ValueError(f"pad: axis {axis} of shape {shape} is empty, nothing to replicate")


def _padded(x: Array, widths: list[tuple[int, int]], mode: str, value: float) -> Array:
    shape = tuple(n + front + back for n, (front, back) in zip(x.shape, widths, strict=True))
    if x.dtype.kind in "biu" and mode == "constant" and np.asarray(value, x.dtype) != value:
        raise TypeError(f"pad: value={value} for input of dtype {x.dtype}")
    xp = namespace(x)
    out: Array = xp.full(shape, value, x.dtype) if mode == "constant" else xp.empty(shape, x.dtype)
    inner, outer = _windows(x.shape, widths)
    out[outer] = x[inner]
    if mode != "constant":
        # Axis by axis, from what stands there so far: corners come out of the borders.
        for axis, (front, back) in enumerate(widths):
            if front or back:
                _fill_border(out.swapaxes(axis, 0), front, back, mode)
    return out


def _fill_border(out: Array, front: int, back: int, mode: str) -> None:
    """Fills both ends of the first axis from what lies between them."""
    end = len(out) - back
    if mode == "reflect":
        out[:front] = out[front + 1 : 2 * front + 1][::-1]
        out[end:] = out[end - 1 - back : end - 1][::-1]
    elif mode == "circular":
        size = end - front
        out[:front] = out[size : size + front]
        out[end:] = out[front : front + back]
    else:
        out[:front] = out[front : front + 1]
        out[end:] = out[end - 1 : end]


def _windows(
    shape: tuple[int, ...], widths: list[tuple[int, int]]
) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
    """What of the input stays, and where it stands in the output."""
    inner = tuple(
        slice(max(0, -front), n - max(0, -back))
        for n, (front, back) in zip(shape, widths, strict=True)
    )
    outer = tuple(
        slice(max(0, front), n + front + back - max(0, back))
        for n, (front, back) in zip(shape, widths, strict=True)
    )
    return inner, outer


def _pad_backward(node: Node, grad: Any) -> Gradients:
    shape, widths, mode = node.saved
    if mode == "constant":
        inner, outer = _windows(shape, widths)
        if all(min(pair) >= 0 for pair in widths):
            return (grad[outer],)
        full = namespace(grad).zeros(shape, grad.dtype)
        full[inner] = grad[outer]
        return (full,)
    for axis, (front, back) in enumerate(widths):
        if front or back:
            grad = _folded_back(grad, axis, front, back, mode)
    return (grad,)


def _folded_back(grad: Array, axis: int, front: int, back: int, mode: str) -> Array:
    """Adds the gradient of the borders of one axis to the elements they repeat."""
    grad = grad.swapaxes(axis, 0)
    size = len(grad) - front - back
    inner = grad[front : front + size].copy()
    before, after = grad[:front], grad[front + size :]
    if mode == "reflect":
        inner[1 : front + 1] += before[::-1]
        inner[size - 1 - back : size - 1] += after[::-1]
    elif mode == "circular":
        inner[size - front :] += before
        inner[:back] += after
    else:
        inner[:1] += before.sum(0)
        inner[-1:] += after.sum(0)
    return inner.swapaxes(0, axis)


def one_hot(input: Any, num_classes: int = -1) -> Any:
    """Codes of class numbers: int64 of shape (*input.shape, num_classes), 1 at the class, else 0.

    input holds integers >= 0; num_classes -1 means their largest + 1. ValueError for a class out
    of range. A Tensor in gives a Tensor.

    >>> import numpy as np, fusednn.functional as F
    >>> F.one_hot(np.array([0, 2]))
    array([[1, 0, 0],
           [0, 0, 1]])
    """
    labels = raw(input) if is_array(raw(input)) else np.asarray(raw(input))
    if labels.dtype.kind not in "iu":
        raise TypeError(f"one_hot: input has dtype {labels.dtype}, expected integers")
    if num_classes == -1:
        if labels.size and labels.min() < 0:
            raise ValueError(f"one_hot: there is the class {labels.min()}, expected 0 or more")
        if not labels.size:
            raise ValueError("one_hot: num_classes must be given for an empty input")
        num_classes = int(labels.max()) + 1
    if num_classes < 1 or (labels.size and (labels.min() < 0 or labels.max() >= num_classes)):
        found = f"{labels.min()} ... {labels.max()}" if labels.size else "none"
        raise ValueError(f"one_hot: classes {found} are not all in 0 ... {num_classes - 1}")
    xp = namespace(labels)
    out = xp.zeros((labels.size, num_classes), np.int64)
    out[xp.arange(labels.size), labels.reshape(-1).astype(np.int64)] = 1
    out = out.reshape(*labels.shape, num_classes)
    return wrap(out) if isinstance(input, TensorBase) else out


def flatten(input: Any, start_dim: int = 0, end_dim: int = -1) -> Any:
    """The axes start_dim ... end_dim as one; a view where possible.

    >>> import numpy as np, fusednn.functional as F
    >>> F.flatten(np.zeros((2, 3, 4)), 1).shape
    (2, 12)
    """
    if isinstance(input, TensorBase):
        return input.flatten(start_dim, end_dim)  # type: ignore[attr-defined]
    return input.reshape(flattened_shape(input.shape, start_dim, end_dim))


__all__ = ["flatten", "one_hot", "pad"]
