"""Losses. reduction is "mean" (default), "sum" or "none"; arrays in, array out."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy import add, ndarray

from .. import _core
from .._tensor.arithmetic import unbroadcast
from .._tensor.autocast import autocasting, common_half, in_float32, widened
from .._tensor.device import as_array, check_device, is_array, is_float, is_half, namespace
from .._tensor.tape import Array, Gradients, Node, TensorBase, raw, record
from .activation import _logistic, floats

_REDUCTIONS = ("none", "mean", "sum")


def _check_reduction(op: str, reduction: str) -> None:
    if reduction not in _REDUCTIONS:
        raise ValueError(f"{op}: reduction={reduction!r}, expected 'none', 'mean' or 'sum'")


def _reduced(values: Array, reduction: str) -> Any:
    if reduction == "none":
        return values
    total = add.reduce(values, axis=None)
    if reduction == "sum":
        return total
    return total / values.size if values.size else total + math.nan


def _spread(grad: Any, reduction: str, size: int) -> Any:
    """The gradient that reaches each value: an array, or one number for all."""
    return grad / size if reduction == "mean" and size else grad


def _finish(
    out: Any, inputs: tuple[Any, ...], backward: Any, keep: Any = (), context: Any = ()
) -> Any:
    for one in inputs:
        if isinstance(one, TensorBase):
            return record(out, backward, inputs, keep, context)
    return out if type(out) is ndarray else as_array(out)


# ---- classes -------------------------------------------------------------------------------------


def cross_entropy(
    input: Any,
    target: Any,
    weight: Any = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    empty: str = "nan",
) -> Any:
    """-log softmax(input)[target], the loss of a classifier.

    input: logits (N, C), (N, C, d1, ...) or (C,). target: integer classes (N,), (N, d1, ...) or (),
    where ignore_index counts nothing; or probabilities, floats of input's shape. weight (C,) counts
    the classes; the mean divides by the weights of the targets. label_smoothing e takes e of each
    target and spreads it evenly over the classes (Szegedy et al., "Rethinking the Inception
    architecture", CVPR 2016). empty: what the mean over no target is, "nan" or "zero"; the gradient
    is 0 in both cases. ValueError for a class out of range, TypeError for other dtypes.

    >>> import numpy as np, fusednn.functional as F
    >>> F.cross_entropy(np.zeros((1, 2)), np.array([1]))
    array(0.69314718)
    """
    classes = raw(target)
    classes = classes if is_array(classes) else np.asarray(classes)
    _check_options("cross_entropy", reduction, empty)
    if is_float(classes.dtype):
        return _soft_cross_entropy(input, target, weight, reduction, label_smoothing, empty)
    return _class_loss(
        "cross_entropy",
        input,
        target if isinstance(target, TensorBase) else classes,
        weight,
        ignore_index,
        label_smoothing,
        reduction,
        empty,
    )


def nll_loss(
    input: Any,
    target: Any,
    weight: Any = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    empty: str = "nan",
) -> Any:
    """-input[target] for log-probabilities: `cross_entropy` without its log_softmax.

    >>> import numpy as np, fusednn.functional as F
    >>> F.nll_loss(np.array([[-1.0, -2.0]]), np.array([1]))
    array(2.)
    """
    _check_options("nll_loss", reduction, empty)
    known = isinstance(target, TensorBase) or is_array(target)
    labels = target if known else np.asarray(target)
    return _class_loss("nll_loss", input, labels, weight, ignore_index, 0.0, reduction, empty)


def _check_options(op: str, reduction: str, empty: str) -> None:
    _check_reduction(op, reduction)
    if empty not in ("nan", "zero"):
        raise ValueError(f"{op}: empty={empty!r}, expected 'nan' or 'zero'")


def _class_loss(
    op: str,
    input: Any,
    target: Any,
    weight: Any,
    ignore_index: int,
    smoothing: float,
    reduction: str,
    empty: str,
) -> Any:
    if autocasting() is not None:
        input, weight = widened(input, weight)
    losses, counts = _core.cross_entropy_forward(
        op, raw(input), raw(target), raw(weight), ignore_index, smoothing
    )
    divisor = 1.0
    if reduction == "none":
        out: Any = losses
    else:
        out = add.reduce(losses, axis=None)
        if reduction == "mean":
            divisor = add.reduce(counts, axis=None)
            out = out / divisor if divisor else out * 0 + (math.nan if empty == "nan" else 0)
    context = (op, ignore_index, smoothing, divisor, raw(target).shape)
    return _finish(out, (input,), _cross_entropy_backward, (input, target, weight), context)


def _cross_entropy_backward(node: Node, grad: Any) -> Gradients:
    x, target, weight, op, ignore_index, smoothing, divisor, shape = node.saved
    if divisor == 0:  # the mean over no target: nothing to learn from
        return (np.zeros_like(x),)
    dtype = np.dtype(np.float32) if is_half(x.dtype) else x.dtype
    scale = as_array(grad / divisor).astype(dtype, copy=False)
    if scale.shape != shape:
        scale = namespace(x).full(shape, scale, dtype)
    return (_core.cross_entropy_backward(op, x, target, weight, ignore_index, smoothing, scale),)


def _soft_cross_entropy(
    input: Any, target: Any, weight: Any, reduction: str, smoothing: float, empty: str
) -> Any:
    if autocasting() is not None or common_half(input, target) is not None:
        input, target = widened(input, target)
    op = "cross_entropy"
    x, t = floats(op, input), floats(op, target, "target")
    check_device(op, "input", x, "target", t)
    if t.shape != x.shape or x.ndim == 0:
        raise ValueError(
            f"{op}: target of probabilities has shape {t.shape}, expected {x.shape} like input"
        )
    if t.dtype.char != x.dtype.char:
        raise TypeError(f"{op}: target has dtype {t.dtype}, expected {x.dtype} like input")
    if not 0 <= smoothing <= 1:
        raise ValueError(f"{op}: label_smoothing={smoothing}, expected a number in [0, 1]")
    axis = 1 if x.ndim > 1 else 0
    classes = x.shape[axis]
    w: Any = x.dtype.type(1)
    if weight is not None:
        w = floats(op, weight, "weight")
        if w.dtype.char != x.dtype.char:
            raise TypeError(f"{op}: weight has dtype {w.dtype}, expected {x.dtype}")
        if w.shape != (classes,):
            raise ValueError(f"{op}: weight has shape {w.shape}, expected ({classes},)")
        w = w.reshape(classes, *(1,) * (x.ndim - axis - 1)).copy()
    log_p = _core.log_softmax_forward(x, axis)
    wanted = (t * (1 - smoothing) + smoothing / max(classes, 1)) * w
    losses = -add.reduce(wanted * log_p, axis=axis)
    out = _reduced(as_array(losses), reduction)
    if reduction == "mean" and not losses.size and empty == "zero":
        out = x.dtype.type(0)
    context = (log_p, wanted, w, axis, smoothing, reduction, losses.size)
    return _finish(out, (input, target), _soft_cross_entropy_backward, (), context)


def _soft_cross_entropy_backward(node: Node, grad: Any) -> Gradients:
    x_edge, t_edge = node.edges
    log_p, wanted, w, axis, smoothing, reduction, count = node.saved
    scale = -_spread(grad, reduction, count)
    if reduction == "none":
        scale = np.expand_dims(scale, axis)
    return (
        None
        if x_edge is None
        else _core.log_softmax_backward(
            as_array(wanted * scale).astype(w.dtype, copy=False), log_p, axis
        ),
        None if t_edge is None else log_p * (w * scale * (1 - smoothing)),
    )


# ---- distances -----------------------------------------------------------------------------------


def _pair(op: str, input: Any, target: Any) -> tuple[Array, Array]:
    x, t = floats(op, input), floats(op, target, "target")
    if x.dtype.char != t.dtype.char:
        raise TypeError(f"{op}: target has dtype {t.dtype}, expected {x.dtype} like input")
    if x.shape != t.shape:
        # Broadcasting (4, 1) against (4,) to (4, 4) is never what was meant.
        raise ValueError(f"{op}: target has shape {t.shape}, expected {x.shape} like input")
    if type(x) is not ndarray or type(t) is not ndarray:
        check_device(op, "input", x, "target", t)
    return x, t


@in_float32("input", "target")
def mse_loss(input: Any, target: Any, reduction: str = "mean") -> Any:
    """(input - target)**2 for two of one shape.

    >>> import numpy as np, fusednn.functional as F
    >>> F.mse_loss(np.array([1.0, 2.0]), np.array([1.0, 4.0]))
    array(2.)
    """
    _check_reduction("mse_loss", reduction)
    x, t = _pair("mse_loss", input, target)
    difference = x - t
    out = _reduced(difference * difference, reduction)
    return _finish(out, (input, target), _mse_backward, (), (difference, reduction, x.size))


def _mse_backward(node: Node, grad: Any) -> Gradients:
    x_edge, t_edge = node.edges
    difference, reduction, size = node.saved
    grad_x = difference * (_spread(grad, reduction, size) * 2)
    return None if x_edge is None else grad_x, None if t_edge is None else -grad_x


@in_float32("input", "target")
def l1_loss(input: Any, target: Any, reduction: str = "mean") -> Any:
    """|input - target| for two of one shape.

    >>> import numpy as np, fusednn.functional as F
    >>> F.l1_loss(np.array([1.0, 2.0]), np.array([1.0, 4.0]))
    array(1.)
    """
    _check_reduction("l1_loss", reduction)
    x, t = _pair("l1_loss", input, target)
    difference = x - t
    out = _reduced(abs(difference), reduction)
    context = (np.sign(difference), reduction, x.size)
    return _finish(out, (input, target), _slope_backward, (), context)


def _slope_backward(node: Node, grad: Any) -> Gradients:
    x_edge, t_edge = node.edges
    slope, reduction, size = node.saved
    grad_x = slope * _spread(grad, reduction, size)
    return None if x_edge is None else grad_x, None if t_edge is None else -grad_x


@in_float32("input", "target")
def huber_loss(input: Any, target: Any, reduction: str = "mean", delta: float = 1.0) -> Any:
    """Quadratic within delta of the target, linear beyond: e**2 / 2 or delta * (|e| - delta / 2).

    Huber, "Robust estimation of a location parameter", Annals of Math. Statistics 35 (1964).

    >>> import numpy as np, fusednn.functional as F
    >>> F.huber_loss(np.array([0.0, 3.0]), np.array([1.0, 0.0]))
    array(1.5)
    """
    _check_reduction("huber_loss", reduction)
    if not delta > 0:
        raise ValueError(f"huber_loss: delta={delta}, expected a positive number")
    x, t = _pair("huber_loss", input, target)
    difference = x - t
    size = abs(difference)
    values = np.where(size <= delta, difference * difference * 0.5, (size - delta / 2) * delta)
    slope = np.minimum(np.maximum(difference, -delta), delta)
    out = _reduced(values, reduction)
    return _finish(out, (input, target), _slope_backward, (), (slope, reduction, x.size))


@in_float32("input", "target")
def smooth_l1_loss(input: Any, target: Any, reduction: str = "mean", beta: float = 1.0) -> Any:
    """huber_loss divided by its width: e**2 / (2 * beta) within beta, |e| - beta / 2 beyond.

    >>> import numpy as np, fusednn.functional as F
    >>> F.smooth_l1_loss(np.array([0.0, 3.0]), np.array([1.0, 0.0]))
    array(1.5)
    """
    if not beta >= 0:
        raise ValueError(f"smooth_l1_loss: beta={beta}, expected a number >= 0")
    if beta == 0:
        return l1_loss(input, target, reduction)
    loss = huber_loss(input, target, reduction, beta)
    return loss if beta == 1 else loss / beta


@in_float32("input", "target")
def binary_cross_entropy(
    input: Any, target: Any, weight: Any = None, *, reduction: str = "mean"
) -> Any:
    """-target * log input - (1 - target) * log(1 - input) for probabilities in [0, 1].

    Logarithms are cut at -100, so that a certain and wrong answer has a finite loss. From logits
    `binary_cross_entropy_with_logits` is exact, and cheaper. weight (broadcast) scales the losses.
    ValueError for an input outside of [0, 1].

    >>> import numpy as np, fusednn.functional as F
    >>> F.binary_cross_entropy(np.array([0.5, 1.0]), np.array([1.0, 1.0]))
    array(0.34657359)
    """
    op = "binary_cross_entropy"
    _check_reduction(op, reduction)
    x, t = _pair(op, input, target)
    if x.size and not (x.min() >= 0 and x.max() <= 1):
        raise ValueError(f"{op}: input has values from {x.min()} to {x.max()}, expected [0, 1]")
    w = _scale(op, "weight", weight, x)
    with np.errstate(divide="ignore"):
        log_x, log_rest = np.maximum(np.log(x), -100), np.maximum(np.log1p(-x), -100)
    values = as_array(-(t * log_x + (1 - t) * log_rest) * w)
    context = (w, log_rest - log_x, reduction, x.size)
    return _finish(
        _reduced(values, reduction),
        (input, target),
        _probability_backward,
        (input, target),
        context,
    )


def _probability_backward(node: Node, grad: Any) -> Gradients:
    x_edge, t_edge = node.edges
    x, t, w, logit, reduction, size = node.saved
    scale = w * _spread(grad, reduction, size)
    slope = (x - t) / np.maximum(x * (1 - x), x.dtype.type(1e-12))
    return (
        None if x_edge is None else slope * scale,
        None if t_edge is None else logit * scale,
    )


def _scale(op: str, name: str, value: Any, x: Array) -> Any:
    """A factor of the losses, of x's dtype and a shape that broadcasts to x's; 1 for None."""
    if value is None:
        return x.dtype.type(1)
    scale = floats(op, value, name)
    if scale.dtype.char != x.dtype.char:
        raise TypeError(f"{op}: {name} has dtype {scale.dtype}, expected {x.dtype}")
    try:
        fits = np.broadcast_shapes(scale.shape, x.shape) == x.shape
    except ValueError:
        fits = False
    if not fits:
        raise ValueError(f"{op}: {name} of shape {scale.shape} does not broadcast to {x.shape}")
    return scale.copy()


@in_float32("input", "target")
def binary_cross_entropy_with_logits(
    input: Any,
    target: Any,
    weight: Any = None,
    *,
    reduction: str = "mean",
    pos_weight: Any = None,
) -> Any:
    """-target * log s - (1 - target) * log(1 - s) with s = sigmoid(input), without overflow.

    input, target: one shape, target in [0, 1]. weight (broadcast) scales the losses, pos_weight
    (broadcast) their positive part.

    >>> import numpy as np, fusednn.functional as F
    >>> F.binary_cross_entropy_with_logits(np.zeros(2), np.array([0.0, 1.0]))
    array(0.69314718)
    """
    op = "binary_cross_entropy_with_logits"
    _check_reduction(op, reduction)
    x, t = _pair(op, input, target)
    w, positive = _scale(op, "weight", weight, x), _scale(op, "pos_weight", pos_weight, x)
    softplus = np.log1p(np.exp(-abs(x))) + np.maximum(-x, 0)  # -log sigmoid(x)
    values = as_array(((1 - t) * x + (1 + (positive - 1) * t) * softplus) * w)
    context = (w, positive, softplus, reduction, x.size)
    return _finish(
        _reduced(values, reduction), (input, target), _bce_backward, (input, target), context
    )


def _bce_backward(node: Node, grad: Any) -> Gradients:
    x_edge, t_edge = node.edges
    x, t, w, positive, softplus, reduction, size = node.saved
    scale = w * _spread(grad, reduction, size)
    return (
        None
        if x_edge is None
        else unbroadcast(((1 - t) - (1 + (positive - 1) * t) * _logistic(-x)) * scale, x.shape),
        None if t_edge is None else unbroadcast(((positive - 1) * softplus - x) * scale, t.shape),
    )


__all__ = [
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "cross_entropy",
    "huber_loss",
    "l1_loss",
    "mse_loss",
    "nll_loss",
    "smooth_l1_loss",
]
