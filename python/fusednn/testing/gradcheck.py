"""Gradients against finite differences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy import ndarray

from .._tensor.creation import tensor
from .._tensor.mode import no_grad
from .._tensor.tape import Array, TensorBase
from .._tensor.tensor import Tensor


def gradcheck(
    f: Callable[..., Any],
    inputs: Any,
    eps: float = 1e-6,
    atol: float = 1e-6,
    rtol: float = 1e-5,
) -> bool:
    """True if the gradients of f agree with central differences; else AssertionError.

    f takes the inputs and returns a Tensor or several; it must be a function of them alone. inputs:
    one or a sequence; float64 arrays and float64 Tensors that require grad are checked, the others
    are handed on. The outputs are weighted with fixed random numbers and added, so that each input
    element has one derivative; it may differ by atol + rtol * |derivative|. The error names the
    worst element. TypeError for float32 inputs, whose differences would be noise.

    >>> import numpy as np, fusednn as fn
    >>> fn.testing.gradcheck(lambda x: x * x, np.array([1.0, 2.0]))
    True
    """
    given: Sequence[Any] = inputs if isinstance(inputs, (tuple, list)) else (inputs,)
    arguments = [_argument(i, value) for i, value in enumerate(given)]
    checked = [i for i, value in enumerate(arguments) if getattr(value, "requires_grad", False)]
    if not checked:
        raise ValueError("gradcheck: no input is a float64 array or a Tensor that requires grad")
    outputs = _outputs(f(*arguments))
    random = np.random.default_rng(0)
    weights = [random.uniform(0.5, 1.5, out.shape) for out in outputs]
    for out, weight in zip(outputs, weights, strict=True):
        if isinstance(out, Tensor) and out.requires_grad:
            out.backward(np.asarray(weight, out.dtype), retain_graph=True)
    problems = []
    for i in checked:
        analytic = arguments[i].grad
        found = np.zeros(arguments[i].shape) if analytic is None else analytic.numpy()
        if found.shape != arguments[i].shape:
            raise AssertionError(
                f"gradcheck: the gradient of input {i} has shape {found.shape}, expected "
                f"{arguments[i].shape}"
            )
        numeric = _differences(f, arguments, i, weights, eps)
        worst = _worst(found, numeric, atol, rtol)
        if worst is not None:
            problems.append((worst[0], i, worst[1], found, numeric))
    for i in checked:
        arguments[i].grad = None
    if not problems:
        return True
    _, i, place, found, numeric = max(problems, key=lambda problem: problem[0])
    count = int((~_close(found, numeric, atol, rtol)).sum())
    raise AssertionError(
        f"gradcheck: worst at input {i}, element {place}: the gradient is {found[place]:.9g}, "
        f"central differences give {numeric[place]:.9g} (difference "
        f"{abs(found[place] - numeric[place]):.3g}, allowed "
        f"{atol + rtol * abs(numeric[place]):.3g}); {count} of {found.size} elements of this "
        f"input are off"
    )


def _argument(index: int, value: Any) -> Any:
    array = value._data if isinstance(value, TensorBase) else value
    if not isinstance(array, ndarray) or array.dtype.kind != "f":
        return value
    if isinstance(value, TensorBase) and not value._requires_grad:
        return value
    if array.dtype != np.float64:
        raise TypeError(f"gradcheck: input {index} has dtype {array.dtype}, expected float64")
    return tensor(array, requires_grad=True)


def _outputs(result: Any) -> list[Any]:
    out = list(result) if isinstance(result, (tuple, list)) else [result]
    for one in out:
        if not isinstance(one, (Tensor, ndarray)):
            raise TypeError(f"gradcheck: f must return Tensors, got {type(one).__name__}")
    return [one for one in out if one.dtype.kind == "f"]


def _total(f: Callable[..., Any], arguments: list[Any], weights: list[Array]) -> float:
    with no_grad():
        outputs = _outputs(f(*arguments))
    pairs = zip(outputs, weights, strict=True)
    return sum(float((np.asarray(out) * weight).sum()) for out, weight in pairs)


def _differences(
    f: Callable[..., Any], arguments: list[Any], index: int, weights: list[Array], eps: float
) -> Array:
    data = arguments[index]._data
    out = np.empty(data.shape)
    for place in np.ndindex(data.shape):
        kept = data[place]
        data[place] = kept + eps
        above = _total(f, arguments, weights)
        data[place] = kept - eps
        below = _total(f, arguments, weights)
        data[place] = kept
        out[place] = (above - below) / (2 * eps)
    return out


def _close(found: Array, numeric: Array, atol: float, rtol: float) -> Any:
    # Not `difference > allowed`: NaN must count as wrong.
    return abs(found - numeric) <= atol + rtol * abs(numeric)


def _worst(
    found: Array, numeric: Array, atol: float, rtol: float
) -> tuple[float, tuple[int, ...]] | None:
    if _close(found, numeric, atol, rtol).all():
        return None
    excess = abs(found - numeric) / (atol + rtol * abs(numeric))
    excess = np.where(np.isnan(excess), np.inf, excess)
    place = np.unravel_index(int(excess.argmax()), excess.shape)
    return float(excess[place]), tuple(int(i) for i in place)
