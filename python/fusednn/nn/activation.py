"""Activations as layers; see the functions of the same name in `fusednn.functional`.

`inplace` is accepted for code written for PyTorch; the result is always new memory.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import functional as F
from .module import Module
from .parameter import Parameter


class _Plain(Module):
    """A function without arguments."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.inplace = inplace

    def extra_repr(self) -> str:
        return "inplace=True" if self.inplace else ""


class ReLU(_Plain):
    """max(input, 0).

    >>> from fusednn import nn
    >>> nn.ReLU()(np.array([-1.0, 2.0]))
    tensor([0., 2.], dtype=float64)
    """

    def forward(self, input: Any) -> Any:
        """Same shape."""
        return F.relu(input)


class ReLU6(_Plain):
    """min(max(input, 0), 6)."""

    def forward(self, input: Any) -> Any:
        """Same shape."""
        return F.relu6(input)


class SELU(_Plain):
    """The self-normalising ELU."""

    def forward(self, input: Any) -> Any:
        """Same shape."""
        return F.selu(input)


class SiLU(_Plain):
    """input * sigmoid(input)."""

    def forward(self, input: Any) -> Any:
        """Same shape."""
        return F.silu(input)


class Mish(_Plain):
    """input * tanh(softplus(input))."""

    def forward(self, input: Any) -> Any:
        """Same shape."""
        return F.mish(input)


class GELU(Module):
    """input * P(Z <= input) for a standard normal Z; approximate="tanh" for the formula with tanh.

    >>> from fusednn import nn
    >>> nn.GELU()(np.array([1.0]))
    tensor([0.8413], dtype=float64)
    """

    def __init__(self, approximate: str = "none") -> None:
        super().__init__()
        self.approximate = approximate

    def forward(self, input: Any) -> Any:
        """Same shape."""
        return F.gelu(input, self.approximate)

    def extra_repr(self) -> str:
        return f"approximate={self.approximate!r}"


class Hardsigmoid(_Plain):
    """input / 6 + 1 / 2 cut to [0, 1]."""

    def forward(self, input: Any) -> Any:
        """Same shape."""
        return F.hardsigmoid(input)


class Hardswish(_Plain):
    """input * hardsigmoid(input)."""

    def forward(self, input: Any) -> Any:
        """Same shape."""
        return F.hardswish(input)


class Sigmoid(Module):
    """1 / (1 + exp(-input))."""

    def forward(self, input: Any) -> Any:
        """Same shape."""
        return F.sigmoid(input)


class LogSigmoid(Module):
    """log(sigmoid(input))."""

    def forward(self, input: Any) -> Any:
        """Same shape."""
        return F.logsigmoid(input)


class Tanh(Module):
    """The hyperbolic tangent."""

    def forward(self, input: Any) -> Any:
        """Same shape."""
        return F.tanh(input)


class Softsign(Module):
    """input / (1 + |input|)."""

    def forward(self, input: Any) -> Any:
        """Same shape."""
        return F.softsign(input)


class LeakyReLU(Module):
    """input where positive, else negative_slope * input."""

    def __init__(self, negative_slope: float = 0.01, inplace: bool = False) -> None:
        super().__init__()
        self.negative_slope = negative_slope

    def forward(self, input: Any) -> Any:
        """Same shape."""
        return F.leaky_relu(input, self.negative_slope)

    def extra_repr(self) -> str:
        return f"negative_slope={self.negative_slope}"


class PReLU(Module):
    """leaky_relu with a learnt slope, one for all or one per channel."""

    def __init__(self, num_parameters: int = 1, init: float = 0.25, *, dtype: Any = None) -> None:
        super().__init__()
        self.num_parameters = num_parameters
        self.weight = Parameter(
            np.full(num_parameters, init, np.float32 if dtype is None else dtype)
        )

    def forward(self, input: Any) -> Any:
        """Same shape."""
        return F.prelu(input, self.weight)

    def extra_repr(self) -> str:
        return f"num_parameters={self.num_parameters}"


class ELU(Module):
    """input where positive, else alpha * (exp(input) - 1)."""

    def __init__(self, alpha: float = 1.0, inplace: bool = False) -> None:
        super().__init__()
        self.alpha = alpha

    def forward(self, input: Any) -> Any:
        """Same shape."""
        return F.elu(input, self.alpha)

    def extra_repr(self) -> str:
        return f"alpha={self.alpha}"


class Hardtanh(Module):
    """input cut to [min_val, max_val]."""

    def __init__(self, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> None:
        super().__init__()
        self.min_val = min_val
        self.max_val = max_val

    def forward(self, input: Any) -> Any:
        """Same shape."""
        return F.hardtanh(input, self.min_val, self.max_val)

    def extra_repr(self) -> str:
        return f"min_val={self.min_val}, max_val={self.max_val}"


class Softplus(Module):
    """log(1 + exp(beta * input)) / beta."""

    def __init__(self, beta: float = 1.0, threshold: float = 20.0) -> None:
        super().__init__()
        self.beta = beta
        self.threshold = threshold

    def forward(self, input: Any) -> Any:
        """Same shape."""
        return F.softplus(input, self.beta, self.threshold)

    def extra_repr(self) -> str:
        return f"beta={self.beta}, threshold={self.threshold}"


class GLU(Module):
    """a * sigmoid(b) for the two halves of input along dim."""

    def __init__(self, dim: int = -1) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, input: Any) -> Any:
        """Half the size along dim."""
        return F.glu(input, self.dim)

    def extra_repr(self) -> str:
        return f"dim={self.dim}"


class Softmax(Module):
    """exp(input) scaled to sum 1 along dim, which must be given.

    >>> from fusednn import nn
    >>> nn.Softmax(dim=-1)(np.zeros((1, 2)))
    tensor([[0.5000, 0.5000]], dtype=float64)
    """

    def __init__(self, dim: int | None = None) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, input: Any) -> Any:
        """Same shape."""
        return F.softmax(input, self.dim)

    def extra_repr(self) -> str:
        return f"dim={self.dim}"


class Softmin(Module):
    """softmax of -input along dim, which must be given."""

    def __init__(self, dim: int | None = None) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, input: Any) -> Any:
        """Same shape."""
        return F.softmin(input, self.dim)

    def extra_repr(self) -> str:
        return f"dim={self.dim}"


class LogSoftmax(Module):
    """The logarithm of softmax along dim, which must be given."""

    def __init__(self, dim: int | None = None) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, input: Any) -> Any:
        """Same shape."""
        return F.log_softmax(input, self.dim)

    def extra_repr(self) -> str:
        return f"dim={self.dim}"


class Dropout(Module):
    """Zeroes elements with probability p in training; does nothing in evaluation.

    >>> from fusednn import nn
    >>> nn.Dropout(0.5).eval()(np.ones(2))
    tensor([1., 1.], dtype=float64)
    """

    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        super().__init__()
        if not 0 <= p <= 1:
            raise ValueError(f"Dropout: p={p}, expected a probability in [0, 1]")
        self.p = p

    def forward(self, input: Any) -> Any:
        """Same shape."""
        return F.dropout(input, self.p, self.training)

    def extra_repr(self) -> str:
        return f"p={self.p}"
