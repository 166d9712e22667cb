"""Normalisation: (x - mean) / sqrt(variance + eps) * weight + bias, over different sets of axes.

Means and variances are exact to rounding also where the mean is large against the spread (two
passes, and the mean in two parts). Inputs are float32 or float64, on a GPU also 16-bit floats;
weight and bias have the input's dtype, and so have running statistics, of 16-bit inputs float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import _core
from .._tensor.autocast import autocasting, widened
from .._tensor.device import check_device, is_array, is_half, namespace, on_gpu
from .._tensor.tape import Array, Gradients, Node, TensorBase, raw, record, record_outputs
from .activation import floats

# ---- batch_norm ----------------------------------------------------------------------------------


def batch_norm(
    input: Any,
    running_mean: Any,
    running_var: Any,
    weight: Any = None,
    bias: Any = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
    *,
    activation: str | None = None,
) -> Any:
    """Normalises each channel: by batch and space in training, by running statistics otherwise.

    input (N, C) or (N, C, ...); the others (C,) or None. In training the running statistics, where
    given, are brought up to date in place: (1 - momentum) * old + momentum * new, with the unbiased
    variance; an empty batch leaves them alone. activation="relu" applies ReLU in the same pass.
    ValueError for one value per channel in training, and for missing statistics in evaluation.

    Ioffe, Szegedy, "Batch normalization", ICML 2015.

    >>> import numpy as np, fusednn.functional as F
    >>> F.batch_norm(np.array([[1.0], [3.0]]), None, None, training=True, eps=0.0)
    array([[-1.],
           [ 1.]])
    """
    if activation not in (None, "relu"):
        raise ValueError(f"batch_norm: activation={activation!r}, expected None or 'relu'")
    relu = activation is not None
    if autocasting() is not None:
        input, weight, bias = widened(input, weight, bias)
    out, stats = _core.batch_norm_forward(
        raw(input), raw(running_mean), raw(running_var), raw(weight), raw(bias), bool(training),
        momentum, eps, relu,
    )  # fmt: skip
    if training:
        for one in (running_mean, running_var):
            if isinstance(one, TensorBase):
                one._memory[0] += 1
    if not (
        isinstance(input, TensorBase)
        or isinstance(weight, TensorBase)
        or isinstance(bias, TensorBase)
    ):
        return out
    return record(
        out, _batch_norm_backward, (input, weight, bias), (input, weight),
        (stats, bool(training), relu), keep_output=relu,
    )  # fmt: skip


def _batch_norm_backward(node: Node, grad: Any) -> Gradients:
    x_edge, w_edge, b_edge = node.edges
    x, w, stats, training, relu, *out = node.saved
    dx, dw, db = _core.batch_norm_backward(
        grad, x, out[0] if relu else None, w, stats, training, w_edge is not None,
        b_edge is not None,
    )  # fmt: skip
    return None if x_edge is None else dx, dw, db


# ---- layer_norm and rms_norm ---------------------------------------------------------------------


def layer_norm(
    input: Any,
    normalized_shape: int | Sequence[int],
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
    *,
    residual: Any = None,
) -> Any:
    """Normalises over the last axes, whose sizes are normalized_shape (also those of weight, bias).

    residual (of input's shape): input + residual is normalised, and the result is the pair
    (normalised, input + residual), made in one pass.

    Ba, Kiros, Hinton, "Layer normalization", 2016.

    >>> import numpy as np, fusednn.functional as F
    >>> F.layer_norm(np.array([[1.0, 3.0]]), (2,), eps=0.0)
    array([[-1.,  1.]])
    """
    return _layer_norm(False, input, normalized_shape, weight, bias, eps, residual)


def rms_norm(
    input: Any,
    normalized_shape: int | Sequence[int],
    weight: Any = None,
    eps: float | None = None,
    *,
    residual: Any = None,
) -> Any:
    """input / sqrt(mean of its squares + eps) * weight over the last axes, as `layer_norm`.

    eps None is the dtype's machine epsilon. Zhang, Sennrich, "Root mean square layer
    normalization", NeurIPS 2019.

    >>> import numpy as np, fusednn.functional as F
    >>> F.rms_norm(np.array([[1.0, 7.0]]), (2,), eps=0.0)
    array([[0.2, 1.4]])
    """
    if eps is None:
        dtype = getattr(raw(input), "dtype", None)
        half = isinstance(dtype, np.dtype) and is_half(dtype) and on_gpu(raw(input))
        eps = float(np.finfo(np.float32 if half else floats("rms_norm", input).dtype).eps)
    return _layer_norm(True, input, normalized_shape, weight, None, eps, residual)


def _layer_norm(
    rms: bool, input: Any, shape: Any, weight: Any, bias: Any, eps: float, residual: Any
) -> Any:
    if autocasting() is not None:
        input, weight, bias, residual = widened(input, weight, bias, residual)
    if type(shape) is list:
        shape = tuple(shape)  # the caller may change a list before backward
    x = raw(input)
    out, stats, total = _core.layer_norm_forward(
        rms, x, shape, raw(weight), raw(bias), raw(residual), eps
    )
    inputs = (input, weight, bias) if total is None else (input, residual, weight, bias)
    if not any(isinstance(one, TensorBase) for one in inputs):
        return out if total is None else (out, total)
    if total is None:
        backward = _rms_norm_backward if rms else _layer_norm_backward
        return record(out, backward, inputs, (input, weight), (stats, shape))
    return record_outputs(
        (out, total), _residual_norm_backward, inputs, (weight,), (stats, shape, rms),
        keep_outputs=True,
    )  # fmt: skip


def _layer_norm_backward(node: Node, grad: Any) -> Gradients:
    return _norm_gradients(False, node, grad)


def _rms_norm_backward(node: Node, grad: Any) -> Gradients:
    return _norm_gradients(True, node, grad)


def _norm_gradients(rms: bool, node: Node, grad: Any) -> Gradients:
    x_edge, w_edge, b_edge = node.edges
    x, w, stats, shape = node.saved
    dx, dw, db = _core.layer_norm_backward(
        rms, grad, x, shape, w, stats, w_edge is not None, b_edge is not None
    )
    return None if x_edge is None else dx, dw, db


def _residual_norm_backward(node: Node, grads: Any) -> Gradients:
    x_edge, r_edge, w_edge, b_edge = node.edges
    w, stats, shape, rms, _, total = node.saved
    dy, dtotal = grads
    dx, dw, db = dtotal, None, None
    if dy is not None:
        dx, dw, db = _core.layer_norm_backward(
            rms, dy, total, shape, w, stats, w_edge is not None, b_edge is not None
        )
        if dtotal is not None:
            dx += dtotal
    # Views, which a leaf copies: both inputs have this gradient.
    return None if x_edge is None else dx.view(), None if r_edge is None else dx.view(), dw, db


# ---- group_norm and instance_norm ----------------------------------------------------------------


def group_norm(
    input: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Any:
    """Normalises, for each image, groups of C / num_groups channels with their positions.

    input (N, C) or (N, C, ...); weight, bias (C,) or None. Wu, He, "Group normalization", ECCV
    2018.

    >>> import numpy as np, fusednn.functional as F
    >>> F.group_norm(np.array([[[1.0, 3.0]]]), 1, eps=0.0)
    array([[[-1.,  1.]]])
    """
    return _group_norm("group_norm", input, num_groups, weight, bias, eps)


def _group_norm(op: str, input: Any, groups: int, weight: Any, bias: Any, eps: float) -> Any:
    if autocasting() is not None:
        input, weight, bias = widened(input, weight, bias)
    out, stats = _core.group_norm_forward(op, raw(input), groups, raw(weight), raw(bias), eps)
    if not (
        isinstance(input, TensorBase)
        or isinstance(weight, TensorBase)
        or isinstance(bias, TensorBase)
    ):
        return out
    return record(
        out, _group_norm_backward, (input, weight, bias), (input, weight), (op, stats, groups)
    )


def _group_norm_backward(node: Node, grad: Any) -> Gradients:
    x_edge, w_edge, b_edge = node.edges
    x, w, op, stats, groups = node.saved
    dx, dw, db = _core.group_norm_backward(
        op, grad, x, groups, w, stats, w_edge is not None, b_edge is not None
    )
    return None if x_edge is None else dx, dw, db


def instance_norm(
    input: Any,
    running_mean: Any = None,
    running_var: Any = None,
    weight: Any = None,
    bias: Any = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    """Normalises each channel of each image by its own positions.

    input (N, C, ...) with more than one position; the others (C,) or None. Running statistics,
    where given, take momentum * the mean over the batch; with use_input_stats=False they are what
    is normalised by. Ulyanov, Vedaldi, Lempitsky, "Instance normalization", 2016.

    >>> import numpy as np, fusednn.functional as F
    >>> F.instance_norm(np.array([[[1.0, 3.0]]]), eps=0.0)
    array([[[-1.,  1.]]])
    """
    if autocasting() is not None:
        input, weight, bias = widened(input, weight, bias)
    x = floats("instance_norm", input)
    if not use_input_stats:
        return batch_norm(input, running_mean, running_var, weight, bias, False, momentum, eps)
    if x.ndim < 3 or x[0:1, 0:1].size == 1:
        raise ValueError(
            f"instance_norm: input has shape {x.shape}, expected (N, C, ...) with more than 1 "
            "position"
        )
    out = _group_norm("instance_norm", input, x.shape[1], weight, bias, eps)
    if running_mean is not None or running_var is not None:
        _update_instance_statistics(x, running_mean, running_var, momentum, eps)
    return out


def _update_instance_statistics(
    x: Array, running_mean: Any, running_var: Any, momentum: float, eps: float
) -> None:
    batch, channels = x.shape[:2]
    if batch == 0:
        return
    kind = np.dtype(np.float32) if is_half(x.dtype) else x.dtype
    mean, var = namespace(x).zeros((2, batch * channels), kind)
    _core.batch_norm_forward(
        x.reshape(1, batch * channels, -1), mean, var, None, None, True, 1.0, eps, False
    )
    for running, found in ((running_mean, mean), (running_var, var)):
        if running is None:
            continue
        old = raw(running)
        if not is_array(old) or old.shape != (channels,):
            raise ValueError(f"instance_norm: running statistics must have shape ({channels},)")
        check_device("instance_norm", "running statistics", old, "input", x)
        old *= 1 - momentum
        old += momentum * found.reshape(batch, channels).mean(0)
        if isinstance(running, TensorBase):
            running._memory[0] += 1


__all__ = ["batch_norm", "group_norm", "instance_norm", "layer_norm", "rms_norm"]
