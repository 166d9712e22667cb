"""Elementwise nonlinearities. Arrays in, arrays out; a Tensor in, a Tensor out.

Inputs are float32 or float64 of any shape, on a GPU also 16 bits; TypeError otherwise. `inplace` is
accepted where PyTorch has it and changes nothing: the result is always new memory (which the
kernels recycle).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy import ndarray

from .. import _core
from .._tensor.autocast import autocasting, in_float32, widened
from .._tensor.device import as_array, is_array, is_half
from .._tensor.tape import Array, Gradients, Node, TensorBase, raw, record


def floats(op: str, input: Any, argument: str = "input") -> Array:
    """The array of an argument that must be float32 or float64, or 16 bits on a GPU; TypeError
    otherwise."""
    array = raw(input)
    if not is_array(array):
        kind = type(array).__name__
        raise TypeError(f"{op}: {argument} must be a Tensor or a NumPy array, got {kind}")
    # Other libraries' dtypes, of arrays on a GPU, are looked at by the bindings.
    dtype = getattr(array, "dtype", None)
    if isinstance(dtype, np.dtype) and dtype.char not in "fd":
        if type(array) is not ndarray and is_half(dtype):
            return array
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
    return out if type(out) is ndarray else as_array(out)


# ---- one kernel for all of them ------------------------------------------------------------------

# Functions whose gradient is one of the output; the others' is one of the input.
_BY_OUTPUT = ("sigmoid", "tanh")


def _unary(
    kernel: str, backward: Any, input: Any, a: float = 0.0, b: float = 0.0, op: str = ""
) -> Any:
    op = op or kernel
    if not isinstance(input, TensorBase):
        array = input if is_array(input) else floats(op, input)
        return _core.unary_forward(op, kernel, array, a, b)
    out = _core.unary_forward(op, kernel, input._data, a, b)
    if kernel in _BY_OUTPUT:
        return record(out, backward, (input,), (), (kernel, a, b), keep_output=True)
    return record(out, backward, (input,), (input,), (kernel, a, b))


def _backward_of(op: str) -> Any:
    """The backward function of an op, which the tape knows by its name."""

    def backward(node: Node, grad: Any) -> Gradients:
        if op in _BY_OUTPUT:
            kernel, a, b, saved = node.saved
        else:
            saved, kernel, a, b = node.saved
        return (_core.unary_backward(op, kernel, as_array(grad), saved, a, b),)

    backward.__name__ = f"_{op}_backward"
    return backward


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
    return (_core.relu_backward(as_array(grad), node.saved[0]),)


def leaky_relu(input: Any, negative_slope: float = 0.01, inplace: bool = False) -> Any:
    """input where positive, else negative_slope * input.

    >>> import numpy as np, fusednn.functional as F
    >>> F.leaky_relu(np.array([-1.0, 2.0]), 0.5)
    array([-0.5,  2. ])
    """
    return _unary("leaky_relu", _leaky_relu_backward, input, negative_slope)


_leaky_relu_backward = _backward_of("leaky_relu")


def prelu(input: Any, weight: Any) -> Any:
    """leaky_relu with a learnt slope: weight holds one, or one per channel (axis 1 of input).

    He, Zhang, Ren, Sun, "Delving deep into rectifiers", ICCV 2015.

    >>> import numpy as np, fusednn.functional as F
    >>> F.prelu(np.array([-1.0, 2.0]), np.array([0.5]))
    array([-0.5,  2. ])
    """
    if autocasting() is not None:
        input, weight = widened(input, weight)
    out = _core.prelu_forward(raw(input), raw(weight))
    if not (isinstance(input, TensorBase) or isinstance(weight, TensorBase)):
        return out
    return record(out, _prelu_backward, (input, weight), (input, weight))


def _prelu_backward(node: Node, grad: Any) -> Gradients:
    x_edge, w_edge = node.edges
    dx, dw = _core.prelu_backward(as_array(grad), *node.saved)
    return None if x_edge is None else dx, None if w_edge is None else dw


def hardtanh(input: Any, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Any:
    """input cut to [min_val, max_val].

    >>> import numpy as np, fusednn.functional as F
    >>> F.hardtanh(np.array([-3.0, 0.5]))
    array([-1. ,  0.5])
    """
    if not min_val < max_val:
        raise ValueError(f"hardtanh: min_val={min_val} must be below max_val={max_val}")
    return _unary("hardtanh", _hardtanh_backward, input, min_val, max_val)


_hardtanh_backward = _backward_of("hardtanh")


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
    return _unary("elu", _elu_backward, input, alpha, 1.0)


def selu(input: Any, inplace: bool = False) -> Any:
    """elu with the two constants that keep mean 0 and variance 1 from layer to layer.

    Klambauer et al., "Self-normalizing neural networks", NeurIPS 2017.

    >>> import numpy as np, fusednn.functional as F
    >>> F.selu(np.array([0.0, 1.0]))
    array([0.        , 1.05070099])
    """
    alpha, scale = 1.6732632423543772, 1.0507009873554805
    return _unary("elu", _selu_backward, input, alpha * scale, scale, "selu")


_elu_backward = _backward_of("elu")
_selu_backward = _backward_of("selu")


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
    return _unary("sigmoid", _sigmoid_backward, input)


_sigmoid_backward = _backward_of("sigmoid")


def logsigmoid(input: Any) -> Any:
    """log(sigmoid(input)), finite for large negative input.

    >>> import numpy as np, fusednn.functional as F
    >>> F.logsigmoid(np.array([-1000.0]))
    array([-1000.])
    """
    return _unary("logsigmoid", _logsigmoid_backward, input)


_logsigmoid_backward = _backward_of("logsigmoid")


def softplus(input: Any, beta: float = 1.0, threshold: float = 20.0) -> Any:
    """log(1 + exp(beta * input)) / beta; input itself where beta * input > threshold.

    >>> import numpy as np, fusednn.functional as F
    >>> F.softplus(np.array([0.0, 100.0]))
    array([  0.69314718, 100.        ])
    """
    return _unary("softplus", _softplus_backward, input, beta, threshold)


_softplus_backward = _backward_of("softplus")


def silu(input: Any, inplace: bool = False) -> Any:
    """input * sigmoid(input), also called swish.

    Elfwing, Uchibe, Doya, "Sigmoid-weighted linear units", Neural Networks 107 (2018).

    >>> import numpy as np, fusednn.functional as F
    >>> F.silu(np.array([0.0]))
    array([0.])
    """
    return _unary("silu", _silu_backward, input)


_silu_backward = _backward_of("silu")


def gelu(input: Any, approximate: str = "none") -> Any:
    """input * P(Z <= input) for a standard normal Z.

    approximate="tanh": input / 2 * (1 + tanh(sqrt(2 / pi) * (input + 0.044715 * input**3))).
    Hendrycks, Gimpel, "Gaussian error linear units", 2016.

    >>> import numpy as np, fusednn.functional as F
    >>> F.gelu(np.array([0.0, 1.0]))
    array([0.        , 0.84134475])
    """
    if approximate == "none":
        return _unary("gelu", _gelu_backward, input)
    if approximate == "tanh":
        return _unary("gelu_tanh", _gelu_backward, input, op="gelu")
    raise ValueError(f"gelu: approximate={approximate!r}, expected 'none' or 'tanh'")


_gelu_backward = _backward_of("gelu")


def mish(input: Any, inplace: bool = False) -> Any:
    """input * tanh(softplus(input)). Misra, "Mish", BMVC 2020.

    >>> import numpy as np, fusednn.functional as F
    >>> F.mish(np.array([0.0]))
    array([0.])
    """
    return _unary("mish", _mish_backward, input)


_mish_backward = _backward_of("mish")


def hardsigmoid(input: Any, inplace: bool = False) -> Any:
    """input / 6 + 1 / 2 cut to [0, 1].

    >>> import numpy as np, fusednn.functional as F
    >>> F.hardsigmoid(np.array([-4.0, 0.0]))
    array([0. , 0.5])
    """
    return _unary("hardsigmoid", _hardsigmoid_backward, input)


_hardsigmoid_backward = _backward_of("hardsigmoid")


def hardswish(input: Any, inplace: bool = False) -> Any:
    """input * hardsigmoid(input). Howard et al., "Searching for MobileNetV3", ICCV 2019.

    >>> import numpy as np, fusednn.functional as F
    >>> F.hardswish(np.array([-4.0, 3.0]))
    array([-0.,  3.])
    """
    return _unary("hardswish", _hardswish_backward, input)


_hardswish_backward = _backward_of("hardswish")


def tanh(input: Any) -> Any:
    """The hyperbolic tangent.

    >>> import numpy as np, fusednn.functional as F
    >>> F.tanh(np.array([0.0]))
    array([0.])
    """
    return _unary("tanh", _tanh_backward, input)


_tanh_backward = _backward_of("tanh")


@in_float32("input", rounded=True)
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


@in_float32("input", rounded=True)
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
    "gelu",
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
