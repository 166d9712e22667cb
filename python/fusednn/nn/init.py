"""Initial values, written in place; each function returns its tensor.

Random values come from the generator of `fusednn.manual_seed`. fan_in is the number of inputs that
an output sums over: weight.shape[1] times the kernel's size; fan_out the same for weight.shape[0].
"""

from __future__ import annotations

import math
from typing import Any, TypeVar

import numpy as np

from .. import random
from .._tensor.device import beside
from .._tensor.mode import no_grad
from .._tensor.tape import TensorBase

T = TypeVar("T", bound=TensorBase)


def _shape(op: str, tensor: Any) -> tuple[int, ...]:
    if not isinstance(tensor, TensorBase):
        raise TypeError(f"{op}: expected a Tensor or Parameter, got {type(tensor).__name__}")
    return tensor._data.shape


def _write(op: str, tensor: T, values: Any) -> T:
    _shape(op, tensor)
    dtype = tensor._data.dtype
    if dtype.kind != "f" and (np.asarray(values).astype(dtype) != values).any():
        raise TypeError(f"{op}: the tensor has dtype {dtype}, which cannot hold these values")
    with no_grad():
        tensor._check_writable(op)  # type: ignore[attr-defined]
        tensor._data[...] = beside(np.asarray(values), tensor._data)
        tensor._memory[0] += 1
    return tensor


def _fans(op: str, shape: tuple[int, ...]) -> tuple[int, int]:
    if len(shape) < 2:
        raise ValueError(f"{op}: a tensor of shape {shape} has no fan; expected 2 axes or more")
    taps = math.prod(shape[2:])
    return shape[1] * taps, shape[0] * taps


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """The factor by which a nonlinearity's layer should widen its weights.

    >>> from fusednn.nn import init
    >>> init.calculate_gain("tanh")
    1.6666666666666667
    """
    gains = {
        "linear": 1.0,
        "conv1d": 1.0,
        "conv2d": 1.0,
        "conv3d": 1.0,
        "conv_transpose1d": 1.0,
        "conv_transpose2d": 1.0,
        "conv_transpose3d": 1.0,
        "sigmoid": 1.0,
        "tanh": 5 / 3,
        "relu": math.sqrt(2),
        "selu": 3 / 4,
    }
    if nonlinearity == "leaky_relu":
        return math.sqrt(2 / (1 + (0.01 if param is None else param) ** 2))
    if nonlinearity not in gains:
        known = ", ".join([*gains, "leaky_relu"])
        raise ValueError(f"calculate_gain: unknown nonlinearity {nonlinearity!r}, known: {known}")
    return gains[nonlinearity]


def constant_(tensor: T, val: float) -> T:
    """val everywhere."""
    return _write("constant_", tensor, val)


def zeros_(tensor: T) -> T:
    """0 everywhere."""
    return _write("zeros_", tensor, 0)


def ones_(tensor: T) -> T:
    """1 everywhere."""
    return _write("ones_", tensor, 1)


def eye_(tensor: T) -> T:
    """The identity, for a matrix."""
    if len(_shape("eye_", tensor)) != 2:
        raise ValueError(f"eye_: expected a matrix, got shape {tensor._data.shape}")
    rows, columns = tensor._data.shape
    return _write("eye_", tensor, np.eye(rows, columns))


def dirac_(tensor: T, groups: int = 1) -> T:
    """A convolution's weight that hands on its input: 1 at the middle tap from channel i to i.

    >>> import fusednn as fn
    >>> fn.nn.init.dirac_(fn.zeros(1, 1, 3))
    tensor([[[0., 1., 0.]]])
    """
    shape = _shape("dirac_", tensor)
    if len(shape) not in (3, 4, 5):
        raise ValueError(f"dirac_: expected a convolution's weight of 3 to 5 axes, got {shape}")
    if groups < 1 or shape[0] % groups:
        raise ValueError(f"dirac_: shape[0]={shape[0]} must be divisible by groups={groups}")
    values, each = np.zeros(shape), shape[0] // groups
    middle = tuple(n // 2 for n in shape[2:])
    for group in range(groups):
        for i in range(min(each, shape[1])):
            values[(group * each + i, i, *middle)] = 1
    return _write("dirac_", tensor, values)


def sparse_(tensor: T, sparsity: float, std: float = 0.01) -> T:
    """Normal with standard deviation std, but for a fraction `sparsity` of each column that is 0.

    For a matrix. Martens, "Deep learning via Hessian-free optimization", ICML 2010.
    """
    if len(_shape("sparse_", tensor)) != 2:
        raise ValueError(f"sparse_: expected a matrix, got shape {tensor._data.shape}")
    if not 0 <= sparsity <= 1:
        raise ValueError(f"sparse_: sparsity={sparsity}, expected a fraction in [0, 1]")
    generator = random.next_generator()
    values = std * generator.standard_normal(_shape("sparse_", tensor))
    rows, columns = values.shape
    zeros = math.ceil(sparsity * rows)
    chosen = generator.permuted(np.tile(np.arange(rows)[:, None], columns), axis=0)[:zeros]
    np.put_along_axis(values, chosen, 0, axis=0)
    return _write("sparse_", tensor, values)


def uniform_(tensor: T, a: float = 0.0, b: float = 1.0) -> T:
    """Uniform in [a, b)."""
    values = random.next_generator().random(_shape("uniform_", tensor))
    return _write("uniform_", tensor, a + (b - a) * values)


def normal_(tensor: T, mean: float = 0.0, std: float = 1.0) -> T:
    """Normal with the given mean and standard deviation."""
    values = random.next_generator().standard_normal(_shape("normal_", tensor))
    return _write("normal_", tensor, mean + std * values)


def trunc_normal_(
    tensor: T, mean: float = 0.0, std: float = 1.0, a: float = -2.0, b: float = 2.0
) -> T:
    """Normal, drawn again where outside [a, b]."""
    if not a < b:
        raise ValueError(f"trunc_normal_: a={a} must be below b={b}")
    generator = random.next_generator()
    values = np.asarray(mean + std * generator.standard_normal(_shape("trunc_normal_", tensor)))
    outside = (values < a) | (values > b)
    for _ in range(1000):
        count = int(outside.sum())
        if not count:
            return _write("trunc_normal_", tensor, values)
        values[outside] = mean + std * generator.standard_normal(count)
        outside = (values < a) | (values > b)
    raise ValueError(f"trunc_normal_: [{a}, {b}] is too far out for mean={mean}, std={std}")


def xavier_uniform_(tensor: T, gain: float = 1.0) -> T:
    """Uniform with variance gain**2 * 2 / (fan_in + fan_out).

    Glorot, Bengio, "Understanding the difficulty of training deep feedforward networks",
    AISTATS 2010.

    >>> import fusednn as fn
    >>> bool((abs(fn.nn.init.xavier_uniform_(fn.zeros(3, 3))) <= 1).all())
    True
    """
    fan_in, fan_out = _fans("xavier_uniform_", _shape("xavier_uniform_", tensor))
    bound = gain * math.sqrt(6 / max(fan_in + fan_out, 1))
    return uniform_(tensor, -bound, bound)


def xavier_normal_(tensor: T, gain: float = 1.0) -> T:
    """Normal with variance gain**2 * 2 / (fan_in + fan_out)."""
    fan_in, fan_out = _fans("xavier_normal_", _shape("xavier_normal_", tensor))
    return normal_(tensor, 0.0, gain * math.sqrt(2 / max(fan_in + fan_out, 1)))


def _kaiming_std(op: str, tensor: TensorBase, a: float, mode: str, nonlinearity: str) -> float:
    if mode not in ("fan_in", "fan_out"):
        raise ValueError(f"{op}: mode={mode!r}, expected 'fan_in' or 'fan_out'")
    fan = _fans(op, _shape(op, tensor))[mode == "fan_out"]
    return calculate_gain(nonlinearity, a) / math.sqrt(max(fan, 1))


def kaiming_uniform_(
    tensor: T, a: float = 0.0, mode: str = "fan_in", nonlinearity: str = "leaky_relu"
) -> T:
    """Uniform with variance gain**2 / fan; a is leaky_relu's slope.

    He, Zhang, Ren, Sun, "Delving deep into rectifiers", ICCV 2015.
    """
    bound = math.sqrt(3) * _kaiming_std("kaiming_uniform_", tensor, a, mode, nonlinearity)
    return uniform_(tensor, -bound, bound)


def kaiming_normal_(
    tensor: T, a: float = 0.0, mode: str = "fan_in", nonlinearity: str = "leaky_relu"
) -> T:
    """Normal with variance gain**2 / fan."""
    std = _kaiming_std("kaiming_normal_", tensor, a, mode, nonlinearity)
    return normal_(tensor, 0.0, std)


def orthogonal_(tensor: T, gain: float = 1.0) -> T:
    """Orthonormal rows (or columns, if there are more rows), axes after the first taken as one.

    Saxe, McClelland, Ganguli, "Exact solutions to the nonlinear dynamics of learning in deep
    linear neural networks", ICLR 2014.
    """
    shape = _shape("orthogonal_", tensor)
    if len(shape) < 2:
        raise ValueError(f"orthogonal_: expected 2 axes or more, got shape {shape}")
    rows, columns = shape[0], math.prod(shape[1:])
    values = random.next_generator().standard_normal((max(rows, columns), min(rows, columns)))
    q, r = np.linalg.qr(values)
    q = q * np.sign(np.diag(r))  # makes the distribution uniform
    return _write("orthogonal_", tensor, gain * (q if rows >= columns else q.T).reshape(shape))


def fan_in_uniform_(weight: TensorBase, bias: TensorBase | None) -> None:
    """The default of Linear and the convolutions: both uniform in +-1 / sqrt(fan_in)."""
    shape = weight._data.shape
    fan_in = shape[1] * math.prod(shape[2:])
    bound = 1 / math.sqrt(fan_in) if fan_in else 0.0
    uniform_(weight, -bound, bound)
    if bias is not None:
        uniform_(bias, -bound, bound)
