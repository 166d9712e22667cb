"""Limits on gradients."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from .. import _core
from .._tensor.autocast import cast_array
from .._tensor.device import is_half, is_writable
from .._tensor.tape import SHARED, Array, TensorBase, wrap
from .optimizer import alike


def _with_grads(op: str, parameters: Any) -> list[TensorBase]:
    given = [parameters] if isinstance(parameters, TensorBase) else list(parameters)
    for one in given:
        if not isinstance(one, TensorBase):
            raise TypeError(f"{op}: parameters must be Tensors, got {type(one).__name__}")
    return [one for one in dict.fromkeys(given) if one._grad is not None]


def _sum_of_squares(arrays: list[Array], scale: float) -> float:
    """sum (array * scale)**2 over all arrays in float64."""
    wide = [cast_array(a, np.dtype(np.float32)) if is_half(a.dtype) else a for a in arrays]
    sums = [_core.sum_of_squares(some, scale) for some in alike(wide, lambda array: array)]
    return sum(map(float, sums))  # what is on a GPU is waited for here, once


def _largest(arrays: list[Array]) -> float:
    """The largest magnitude; NaN if there is one."""
    return max_or_nan([float(abs(a).max()) for a in arrays if a.size])


def max_or_nan(values: list[float]) -> float:
    """max of values >= 0, but NaN if one is NaN; 0 for none."""
    return math.nan if any(math.isnan(value) for value in values) else max(values, default=0.0)


def _norm(arrays: list[Array], norm_type: float) -> float:
    if norm_type == math.inf:
        return _largest(arrays)
    if norm_type == 2:
        total = _sum_of_squares(arrays, 1.0)
        if 1e-200 < total < math.inf:
            return math.sqrt(total)
        # Squares out of float64's range: once more, relative to the largest element.
    top = _largest(arrays)
    if top == 0 or not math.isfinite(top):
        return top
    if norm_type == 2:
        total = _sum_of_squares(arrays, 1 / top)
    else:
        with np.errstate(under="ignore"):
            total = sum(float((abs(a.astype(np.float64) / top) ** norm_type).sum()) for a in arrays)
    return float(top * total ** (1 / norm_type))


def clip_grad_norm_(
    parameters: TensorBase | Iterable[TensorBase],
    max_norm: float,
    error_if_nonfinite: bool = False,
    *,
    norm_type: float = 2.0,
) -> float:
    """Scales all gradients together so that their common norm is at most max_norm.

    Returns the norm before, a Python float computed in float64 without overflow. Gradients change
    only if it is larger than max_norm; if it is not finite they stay as they are, or RuntimeError
    is raised if asked. ValueError for a max_norm that is negative or NaN. Pascanu, Mikolov, Bengio,
    "On the difficulty of training recurrent neural networks", ICML 2013.

    >>> import fusednn as fn
    >>> w = fn.tensor([3.0, 4.0], requires_grad=True)
    >>> (w * w.detach()).sum().backward()
    >>> fn.optim.clip_grad_norm_([w], max_norm=1.0)
    5.0
    >>> w.grad
    tensor([0.6000, 0.8000])
    """
    limit, power = float(max_norm), float(norm_type)
    if not limit >= 0:
        raise ValueError(f"clip_grad_norm_: max_norm={max_norm}, expected a number >= 0")
    if not power > 0:
        raise ValueError(f"clip_grad_norm_: norm_type={norm_type}, expected a number > 0")
    chosen = _with_grads("clip_grad_norm_", parameters)
    norm = _norm([p._grad._data for p in chosen if p._grad is not None], power)
    if not math.isfinite(norm):
        if error_if_nonfinite:
            raise RuntimeError(f"clip_grad_norm_: the norm of the gradients is {norm}")
        return norm
    if norm > limit:
        factor = limit / (norm + 1e-6)
        _scale(list(_own_grads(chosen)), factor)
    return norm


def _scale(grads: list[Array], factor: float) -> None:
    whole = []
    for grad in grads:
        if factor < 1e-30 and grad.dtype.char == "f":
            # Near float32's smallest normal number the factor would lose its digits.
            grad[...] = grad.astype(np.float64) * factor
        elif grad.flags.c_contiguous and not is_half(grad.dtype):
            whole.append(grad)
        else:
            np.multiply(grad, factor, out=grad)
    for some in alike(whole, lambda array: array):
        _core.scale_arrays(some, factor)


def _own_grads(parameters: list[TensorBase]) -> Iterator[Array]:
    """The gradients' arrays, to be changed: each once, also if parameters share one."""
    done: set[int] = set()
    for parameter in parameters:
        grad = _own_grad(parameter)
        if id(grad) not in done:
            done.add(id(grad))
            yield grad


def _own_grad(parameter: TensorBase) -> Array:
    """The gradient's array, to be changed; a copy takes its place where a user holds the memory."""
    grad = parameter._grad
    assert grad is not None
    if grad._memory[1] == SHARED or not is_writable(grad._data):
        grad = parameter._grad = wrap(grad._data.copy())
    grad._memory[0] += 1
    return grad._data


def clip_grad_value_(parameters: TensorBase | Iterable[TensorBase], clip_value: float) -> None:
    """Cuts every element of the gradients to [-clip_value, clip_value]; NaN stays.

    ValueError for a clip_value that is negative or NaN.

    >>> import fusednn as fn
    >>> w = fn.tensor([1.0, 2.0], requires_grad=True)
    >>> (w * 5).sum().backward()
    >>> fn.optim.clip_grad_value_([w], 2.0)
    >>> w.grad
    tensor([2., 2.])
    """
    limit = float(clip_value)
    if not limit >= 0:
        raise ValueError(f"clip_grad_value_: clip_value={clip_value}, expected a number >= 0")
    for grad in _own_grads(_with_grads("clip_grad_value_", parameters)):
        np.minimum(np.maximum(grad, -limit, out=grad), limit, out=grad)
