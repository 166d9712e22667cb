"""Fully connected layers and reshaping."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import functional as F
from . import init
from .module import Module
from .parameter import Parameter


def new_parameter(*shape: int, dtype: Any = None) -> Parameter:
    """A Parameter of undefined contents."""
    return Parameter(np.empty(shape, np.float32 if dtype is None else dtype))


def check_sizes(owner: str, minimum: int, **sizes: int) -> None:
    """ValueError for a layer's size below `minimum`, TypeError if it is not an int."""
    for name, size in sizes.items():
        if not hasattr(size, "__index__") or isinstance(size, bool):
            raise TypeError(f"{owner}: {name} must be an int, got {type(size).__name__}")
        if size < minimum:
            raise ValueError(f"{owner}: {name}={size}, expected at least {minimum}")


class Linear(Module):
    """input @ weight.T + bias: (..., in_features) -> (..., out_features).

    weight (out_features, in_features) and bias (out_features,) start uniform in
    +-1 / sqrt(in_features).

    >>> from fusednn import nn
    >>> nn.Linear(3, 2)(np.zeros((5, 3), np.float32)).shape
    (5, 2)
    """

    bias: Parameter | None

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, *, dtype: Any = None
    ) -> None:
        super().__init__()
        check_sizes("Linear", 0, in_features=in_features, out_features=out_features)
        self.in_features = in_features
        self.out_features = out_features
        self.weight = new_parameter(out_features, in_features, dtype=dtype)
        self.register_parameter("bias", new_parameter(out_features, dtype=dtype) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws the parameters anew."""
        init.fan_in_uniform_(self.weight, self.bias)

    def forward(self, input: Any) -> Any:
        """(..., in_features) -> (..., out_features)."""
        return F.linear(input, self.weight, self.bias)

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}"
        )


class Flatten(Module):
    """Joins the axes start_dim ... end_dim; by default all but the batch.

    >>> from fusednn import nn
    >>> nn.Flatten()(np.zeros((2, 3, 4), np.float32)).shape
    (2, 12)
    """

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        super().__init__()
        self.start_dim = start_dim
        self.end_dim = end_dim

    def forward(self, input: Any) -> Any:
        """(N, a, b, ...) -> (N, a * b * ...)."""
        return F.flatten(input, self.start_dim, self.end_dim)

    def extra_repr(self) -> str:
        return f"start_dim={self.start_dim}, end_dim={self.end_dim}"


class Unflatten(Module):
    """Splits one axis into several; the inverse of Flatten."""

    def __init__(self, dim: int, unflattened_size: Any) -> None:
        super().__init__()
        self.dim = dim
        self.unflattened_size = tuple(unflattened_size)

    def forward(self, input: Any) -> Any:
        """(..., n, ...) -> (..., a, b, ...)."""
        return input.unflatten(self.dim, self.unflattened_size)

    def extra_repr(self) -> str:
        return f"dim={self.dim}, unflattened_size={self.unflattened_size}"


class Identity(Module):
    """Gives back its input; takes and ignores any arguments."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()

    def forward(self, input: Any) -> Any:
        """input."""
        return input
