"""Elementwise nonlinearities. Arrays in, arrays out; a Tensor in, a Tensor out.

Inputs are float32 or float64 of any shape; TypeError otherwise. `inplace` is accepted where PyTorch
has it and changes nothing: the result is always new memory (which the kernels recycle).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy import ndarray

from .. import _core
from .._tensor.tape import Array, Gradients, Node, TensorBase, raw, record


def floats(op: str, input: Any, argument: str = "input") -> Array:
    """The array of an argument that must be float32 or float64; TypeError otherwise."""
    array = raw(input)
    if not isinstance(array, ndarray):
        kind = type(array).__name__
        raise TypeError(f"{op}: {argument} must be a Tensor or a NumPy array, got {kind}")
    if array.dtype.char not in "fd":
        raise TypeError(f"{op}: {argument} has dtype {array.dtype}, expected float32 or float64")
    return array


def finish(
    out: Any,
    input: Any,
    backward: Any,
    keep: tuple[Any, ...] = (),
    context: tuple[Any, ...] = (),
    keep_output: bool = False,
) -> Any:
    """`out` as an array if input is one, else as a recorded Tensor."""
    if isinstance(input, TensorBase):
        return record(out, backward, (input,), keep, context, keep_output)
    return out if type(out) is ndarray else np.asarray(out)


# ---- relu and its relatives ----------------------------------------------------------------------


def relu(input: Any, inplace: bool = False) -> Any:
    """max(input, 0); NaN stays NaN; the gradient at 0 is 0.

    >>> import numpy as np, fusednn.functional as F
    >>> F.relu(np.array([-1.0, 2.0]))
    array([0., 2.])
    """
    if not isinstance(input, TensorBase):
        return _core.relu_forward(input)
    return record(
        _core.relu_forward(input._data), _relu_backward, (input,), (), (), keep_output=True
    )


def _relu_backward(node: Node, grad: Any) -> Gradients:
    return (_core.relu_backward(np.asarray(grad), node.saved[0]),)


def leaky_relu(input: Any, negative_slope: float = 0.01, inplace: bool = False) -> Any:
    """input where positive, else negative_slope * input.

    >>> import numpy as np, fusednn.functional as F
    >>> F.leaky_relu(np.array([-1.0, 2.0]), 0.5)
    array([-0.5,  2. ])
    """
    x = floats("leaky_relu", input)
    out = np.where(x > 0, x, x * negative_slope)
    return finish(out, input, _leaky_relu_backward, (input,), (negative_slope,))


def _leaky_relu_backward(node: Node, grad: Any) -> Gradients:
    x, slope = node.saved
    return (np.where(x > 0, grad, grad * slope),)


def prelu(input: Any, weight: Any) -> Any:
    """leaky_relu with a learnt slope: weight holds one, or one per channel (axis 1 of input).

    He, Zhang, Ren, Sun, "Delving deep into rectifiers", ICCV 2015.

    >>> import numpy as np, fusednn.functional as F
    >>> F.prelu(np.array([-1.0, 2.0]), np.array([0.5]))
    array([-0.5,  2. ])
    """
    x, w = floats("prelu", input), floats("prelu", weight, "weight")
    if x.dtype.char != w.dtype.char:
        raise TypeError(f"prelu: weight has dtype {w.dtype}, expected {x.dtype} like input")
    channels = x.shape[1] if x.ndim > 1 else 1
    if w.size != 1 and w.shape != (channels,):
        raise ValueError(
            f"prelu: weight has shape {w.shape}, expected (1,) or ({channels},) for input of "
            f"shape {x.shape}"
        )
    shape = (1, w.size, *(1,) * (x.ndim - 2)) if w.size > 1 else (1,) * x.ndim
    out = np.where(x > 0, x, x * w.reshape(shape))
    if not (isinstance(input, TensorBase) or isinstance(weight, TensorBase)):
        return out
    return record(out, _prelu_backward, (input, weight), (input, weight), (shape,))


def _prelu_backward(node: Node, grad: Any) -> Gradients:
    x_edge, w_edge = node.edges
    x, w, shape = node.saved
    grad_x = grad_w = None
    if x_edge is not None:
        grad_x = np.where(x > 0, grad, grad * w.reshape(shape))
    if w_edge is not None:
        axes = tuple(i for i in range(x.ndim) if w.size == 1 or i != 1)
        grad_w = np.add.reduce(np.minimum(x, 0) * grad, axis=axes).reshape(w.shape)
    return grad_x, grad_w


def hardtanh(input: Any, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Any:
    """input cut to [min_val, max_val].

    >>> import numpy as np, fusednn.functional as F
    >>> F.hardtanh(np.array([-3.0, 0.5]))
    array([-1. ,  0.5])
    """
    x = floats("hardtanh", input)
    if not min_val < max_val:
        raise ValueError(f"hardtanh: min_val={min_val} must be below max_val={max_val}")
    out = np.minimum(np.maximum(x, min_val), max_val)
    return finish(out, input, _hardtanh_backward, (input,), (min_val, max_val))


def _hardtanh_backward(node: Node, grad: Any) -> Gradients:
    x, low, high = node.saved
    return (grad * ((x > low) & (x < high)),)


def relu6(input: Any, inplace: bool = False) -> Any:
    """min(max(input, 0), 6).

    >>> import numpy as np, fusednn.functional as F
    >>> F.relu6(np.array([-1.0, 8.0]))
    array([0., 6.])
    """
    return hardtanh(input, 0.0, 6.0)


def elu(input: Any, alpha: float = 1.0, inplace: bool = False) -> Any:
    """input where positive, else alpha * (exp(input) - 1).

    Clevert, Unterthiner, Hochreiter, "Fast and accurate deep network learning by ELUs", ICLR 2016.

    >>> import numpy as np, fusednn.functional as F
    >>> F.elu(np.array([0.0, 2.0]))
    array([0., 2.])
    """
    return _scaled_elu("elu", input, alpha, 1.0)


def selu(input: Any, inplace: bool = False) -> Any:
    """elu with the two constants that keep mean 0 and variance 1 from layer to layer.

    Klambauer et al., "Self-normalizing neural networks", NeurIPS 2017.

    >>> import numpy as np, fusednn.functional as F
    >>> F.selu(np.array([0.0, 1.0]))
    array([0.        , 1.05070099])
    """
    return _scaled_elu("selu", input, 1.6732632423543772, 1.0507009873554805)


def _scaled_elu(op: str, input: Any, alpha: float, scale: float) -> Any:
    x = floats(op, input)
    out = np.where(x > 0, x * scale, np.expm1(np.minimum(x, 0)) * (alpha * scale))
    return finish(out, input, _elu_backward, (input,), (alpha * scale, scale))


def _elu_backward(node: Node, grad: Any) -> Gradients:
    x, alpha, scale = node.saved
    return (grad * np.where(x > 0, scale, np.exp(np.minimum(x, 0)) * alpha).astype(x.dtype),)


# ---- sigmoid and its relatives -------------------------------------------------------------------


def _logistic(x: Array) -> Any:
    # exp(-x) overflows to inf for x below -88 (float32), and 1 / inf is the right 0.
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-x))


def sigmoid(input: Any) -> Any:
    """1 / (1 + exp(-input)).

    >>> import numpy as np, fusednn.functional as F
    >>> F.sigmoid(np.array([0.0]))
    array([0.5])
    """
    return finish(_logistic(floats("sigmoid", input)), input, _sigmoid_backward, keep_output=True)


def _sigmoid_backward(node: Node, grad: Any) -> Gradients:
    (out,) = node.saved
    return (grad * out * (1 - out),)


def logsigmoid(input: Any) -> Any:
    """log(sigmoid(input)), finite for large negative input.

    >>> import numpy as np, fusednn.functional as F
    >>> F.logsigmoid(np.array([-1000.0]))
    array([-1000.])
    """
    x = floats("logsigmoid", input)
    out = np.minimum(x, 0) - np.log1p(np.exp(-abs(x)))
    return finish(out, input, _logsigmoid_backward, (input,))


def _logsigmoid_backward(node: Node, grad: Any) -> Gradients:
    return (grad * _logistic(-node.saved[0]),)


def softplus(input: Any, beta: float = 1.0, threshold: float = 20.0) -> Any:
    """log(1 + exp(beta * input)) / beta; input itself where beta * input > threshold.

    >>> import numpy as np, fusednn.functional as F
    >>> F.softplus(np.array([0.0, 100.0]))
    array([  0.69314718, 100.        ])
    """
    x = floats("softplus", input)
    scaled = x * beta
    smooth = (np.maximum(scaled, 0) + np.log1p(np.exp(-abs(scaled)))) / beta
    out = np.where(scaled > threshold, x, smooth)
    return finish(out, input, _softplus_backward, (input,), (beta, threshold))


def _softplus_backward(node: Node, grad: Any) -> Gradients:
    x, beta, threshold = node.saved
    scaled = x * beta
    return (np.where(scaled > threshold, grad, grad * _logistic(scaled)),)


def silu(input: Any, inplace: bool = False) -> Any:
    """input * sigmoid(input), also called swish.

    Elfwing, Uchibe, Doya, "Sigmoid-weighted linear units", Neural Networks 107 (2018).

    >>> import numpy as np, fusednn.functional as F
    >>> F.silu(np.array([0.0]))
    array([0.])
    """
    x = floats("silu", input)
    return finish(x * _logistic(x), input, _silu_backward, (input,))


def _silu_backward(node: Node, grad: Any) -> Gradients:
    (x,) = node.saved
    s = _logistic(x)
    return (grad * (s * (1 + x * (1 - s))),)


def mish(input: Any, inplace: bool = False) -> Any:
    """input * tanh(softplus(input)). Misra, "Mish", BMVC 2020.

    >>> import numpy as np, fusednn.functional as F
    >>> F.mish(np.array([0.0]))
    array([0.])
    """
    x = floats("mish", input)
    return finish(x * _tanh_softplus(x), input, _mish_backward, (input,))


def _tanh_softplus(x: Array) -> Any:
    return np.tanh(np.maximum(x, 0) + np.log1p(np.exp(-abs(x))))


def _mish_backward(node: Node, grad: Any) -> Gradients:
    (x,) = node.saved
    t = _tanh_softplus(x)
    return (grad * (t + x * (1 - t * t) * _logistic(x)),)


def hardsigmoid(input: Any, inplace: bool = False) -> Any:
    """input / 6 + 1 / 2 cut to [0, 1].

    >>> import numpy as np, fusednn.functional as F
    >>> F.hardsigmoid(np.array([-4.0, 0.0]))
    array([0. , 0.5])
    """
    x = floats("hardsigmoid", input)
    out = np.minimum(np.maximum(x / 6 + 0.5, 0), 1)
    return finish(out, input, _hardsigmoid_backward, (input,))


def _hardsigmoid_backward(node: Node, grad: Any) -> Gradients:
    (x,) = node.saved
    return (grad * ((x > -3) & (x < 3)) * (1 / 6),)


def hardswish(input: Any, inplace: bool = False) -> Any:
    """input * hardsigmoid(input). Howard et al., "Searching for MobileNetV3", ICCV 2019.

    >>> import numpy as np, fusednn.functional as F
    >>> F.hardswish(np.array([-4.0, 3.0]))
    array([-0.,  3.])
    """
    x = floats("hardswish", input)
    out = x * np.minimum(np.maximum(x / 6 + 0.5, 0), 1)
    return finish(out, input, _hardswish_backward, (input,))


def _hardswish_backward(node: Node, grad: Any) -> Gradients:
    (x,) = node.saved
    inner = (x / 3 + 0.5) * (x > -3)
    return (grad * np.where(x >= 3, 1, inner).astype(x.dtype),)


def tanh(input: Any) -> Any:
    """The hyperbolic tangent.

    >>> import numpy as np, fusednn.functional as F
    >>> F.tanh(np.array([0.0]))
    array([0.])
    """
    return finish(np.tanh(floats("tanh", input)), input, _tanh_backward, keep_output=True)


def _tanh_backward(node: Node, grad: Any) -> Gradients:
    (out,) = node.saved
    return (grad * (1 - out * out),)


def softsign(input: Any) -> Any:
    """input / (1 + |input|).

    >>> import numpy as np, fusednn.functional as F
    >>> F.softsign(np.array([1.0]))
    array([0.5])
    """
    x = floats("softsign", input)
    return finish(x / (1 + abs(x)), input, _softsign_backward, (input,))


def _softsign_backward(node: Node, grad: Any) -> Gradients:
    (x,) = node.saved
    below = 1 + abs(x)
    return (grad / (below * below),)


def glu(input: Any, dim: int = -1) -> Any:
    """a * sigmoid(b) for the two halves a, b of input along dim.

    Dauphin et al., "Language modeling with gated convolutional networks", ICML 2017.

    >>> import numpy as np, fusednn.functional as F
    >>> F.glu(np.array([4.0, 0.0]))
    array([2.])
    """
    x = floats("glu", input)
    if not -x.ndim <= dim < x.ndim or x.shape[dim] % 2:
        raise ValueError(f"glu: input of shape {x.shape} has no even axis dim={dim}")
    a, b = np.split(x, 2, dim)
    return finish(a * _logistic(b), input, _glu_backward, (input,), (dim,))


def _glu_backward(node: Node, grad: Any) -> Gradients:
    x, dim = node.saved
    a, b = np.split(x, 2, dim)
    s = _logistic(b)
    return (np.concatenate((grad * s, grad * a * s * (1 - s)), dim),)


__all__ = [
    "elu",
    "glu",
    "hardsigmoid",
    "hardswish",
    "hardtanh",
    "leaky_relu",
    "logsigmoid",
    "mish",
    "prelu",
    "relu",
    "relu6",
    "selu",
    "sigmoid",
    "silu",
    "softplus",
    "softsign",
    "tanh",
]
