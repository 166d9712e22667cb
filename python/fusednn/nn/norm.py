"""Normalisation layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import functional as F
from .._tensor.tape import raw
from .._tensor.tensor import Tensor
from .dense import check_sizes
from .module import Module
from .parameter import Parameter


def _constant(value: float, shape: Any, dtype: Any) -> Parameter:
    return Parameter(np.full(shape, value, np.float32 if dtype is None else dtype))


class _Affine(Module):
    """What may have a scale and a shift."""

    weight: Parameter | None
    bias: Parameter | None

    def _add_affine(self, shape: Any, weight: bool, bias: bool, dtype: Any) -> None:
        self.register_parameter("weight", _constant(1, shape, dtype) if weight else None)
        self.register_parameter("bias", _constant(0, shape, dtype) if bias else None)

    def reset_parameters(self) -> None:
        """weight = 1, bias = 0."""
        for parameter, value in ((self.weight, 1), (self.bias, 0)):
            if parameter is not None:
                parameter._data[...] = value
                parameter._memory[0] += 1


class _Running(_Affine):
    """What keeps running statistics of each channel."""

    _ndims: tuple[int, ...]
    _batched = True
    _statistics = ("running_mean", "running_var")
    running_mean: Tensor | None
    running_var: Tensor | None
    num_batches_tracked: Tensor | None

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        *,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        check_sizes(type(self).__name__, 0, num_features=num_features)
        self.num_features = num_features
        self.eps = eps
        self.momentum = momentum
        self.affine = affine
        self.track_running_stats = track_running_stats
        self._add_affine((num_features,), affine, affine, dtype)
        kind = np.float32 if dtype is None else dtype
        track = track_running_stats
        self.register_buffer("running_mean", np.zeros(num_features, kind) if track else None)
        self.register_buffer("running_var", np.ones(num_features, kind) if track else None)
        self.register_buffer("num_batches_tracked", np.zeros((), np.int64) if track else None)

    def reset_running_stats(self) -> None:
        """Mean 0, variance 1, no batch seen."""
        for name, value in (("running_mean", 0), ("running_var", 1), ("num_batches_tracked", 0)):
            buffer = getattr(self, name)
            if buffer is not None:
                buffer._data[...] = value
                buffer._memory[0] += 1

    def _check_input(self, input: Any) -> None:
        shape = raw(input).shape
        axis = 1 if self._batched else len(shape) - self._ndims[-1] + 1
        if len(shape) not in self._ndims or shape[axis] != self.num_features:
            counts = " or ".join(map(str, self._ndims))
            raise ValueError(
                f"{type(self).__name__}: input has shape {shape}, expected {counts} axes with "
                f"{self.num_features} channels"
            )

    def _count_batch(self) -> float:
        """One more batch; the momentum that it counts with."""
        counter = self.num_batches_tracked
        if counter is None:
            return 0.0
        counter._data[...] += 1
        counter._memory[0] += 1
        return 1 / int(counter._data) if self.momentum is None else self.momentum

    def extra_repr(self) -> str:
        return (
            f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, "
            f"affine={self.affine}, track_running_stats={self.track_running_stats}"
        )


class BatchNorm(_Running):
    """What the batch normalisations of all dimensions share."""

    def forward(self, input: Any, activation: str | None = None) -> Any:
        """(N, C, ...), the same shape; an empty batch leaves the statistics alone.

        activation="relu" applies ReLU in the same pass; a ReLU layer behind this one in a
        Sequential is taken along in the same way.
        """
        self._check_input(input)
        tracked = self.running_mean is not None
        momentum = 0.0
        if self.training and raw(input).size:
            momentum = self._count_batch()
        return F.batch_norm(
            input,
            self.running_mean,
            self.running_var,
            self.weight,
            self.bias,
            self.training or not tracked,
            momentum,
            self.eps,
            activation=activation,
        )


class BatchNorm1d(BatchNorm):
    """Normalises each channel of (N, C) or (N, C, L) over the batch; see `functional.batch_norm`.

    In evaluation by running statistics: running_mean, running_var and, an int64,
    num_batches_tracked. momentum None averages over all batches seen.

    >>> from fusednn import nn
    >>> nn.BatchNorm1d(1, eps=0.0)(np.array([[1.0], [3.0]], np.float32))
    tensor([[-1.],
            [ 1.]], grad_fn=<BatchNormBackward>)
    """

    _ndims = (2, 3)


class BatchNorm2d(BatchNorm):
    """Normalises each channel of (N, C, H, W); see `BatchNorm1d`."""

    _ndims = (4,)


class BatchNorm3d(BatchNorm):
    """Normalises each channel of (N, C, D, H, W); see `BatchNorm1d`."""

    _ndims = (5,)


class _InstanceNorm(_Running):
    """What the instance normalisations share; without N as well."""

    _batched = False

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float = 0.1,
        affine: bool = False,
        track_running_stats: bool = False,
        *,
        dtype: Any = None,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, dtype=dtype)

    def forward(self, input: Any) -> Any:
        """(N, C, ...) or (C, ...), the same shape."""
        self._check_input(input)
        single = len(raw(input).shape) == self._ndims[0]
        batch = input.unsqueeze(0) if single else input
        own = self.training or not self.track_running_stats
        momentum = 0.0 if self.momentum is None else self.momentum
        out = F.instance_norm(
            batch, self.running_mean, self.running_var, self.weight, self.bias, own, momentum,
            self.eps,
        )  # fmt: skip
        return out.squeeze(0) if single else out


class InstanceNorm1d(_InstanceNorm):
    """Normalises each channel of each sequence (N, C, L); see `functional.instance_norm`.

    >>> from fusednn import nn
    >>> nn.InstanceNorm1d(1, eps=0.0)(np.array([[[1.0, 3.0]]]))
    tensor([[[-1.,  1.]]], dtype=float64)
    """

    _ndims = (2, 3)


class InstanceNorm2d(_InstanceNorm):
    """Normalises each channel of each image (N, C, H, W); see `InstanceNorm1d`."""

    _ndims = (3, 4)


class InstanceNorm3d(_InstanceNorm):
    """Normalises each channel of each volume (N, C, D, H, W); see `InstanceNorm1d`."""

    _ndims = (4, 5)


class LayerNorm(_Affine):
    """Normalises over the last axes, of sizes normalized_shape; see `functional.layer_norm`.

    Called with residual=, it gives the pair of what it makes of input + residual, and that sum.

    >>> from fusednn import nn
    >>> nn.LayerNorm(2, eps=0.0, elementwise_affine=False)(np.array([[1.0, 3.0]]))
    tensor([[-1.,  1.]], dtype=float64)
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        *,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.normalized_shape = _shape(normalized_shape)
        self.eps = eps
        self.elementwise_affine = elementwise_affine
        affine = elementwise_affine
        self._add_affine(self.normalized_shape, affine, affine and bias, dtype)

    def forward(self, input: Any, residual: Any = None) -> Any:
        """(..., *normalized_shape), the same shape."""
        return F.layer_norm(
            input, self.normalized_shape, self.weight, self.bias, self.eps, residual=residual
        )

    def extra_repr(self) -> str:
        return (
            f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"
        )


class RMSNorm(_Affine):
    """Divides by the root of the mean square over the last axes; see `functional.rms_norm`.

    Called with residual=, it gives the pair of what it makes of input + residual, and that sum.

    >>> from fusednn import nn
    >>> nn.RMSNorm(2, eps=0.0, elementwise_affine=False)(np.array([[1.0, 7.0]]))
    tensor([[0.2000, 1.4000]], dtype=float64)
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float | None = None,
        elementwise_affine: bool = True,
        *,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.normalized_shape = _shape(normalized_shape)
        self.eps = eps
        self.elementwise_affine = elementwise_affine
        weight = _constant(1, self.normalized_shape, dtype) if elementwise_affine else None
        self.register_parameter("weight", weight)
        self.bias = None

    def forward(self, input: Any, residual: Any = None) -> Any:
        """(..., *normalized_shape), the same shape."""
        return F.rms_norm(input, self.normalized_shape, self.weight, self.eps, residual=residual)

    def extra_repr(self) -> str:
        return (
            f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"
        )


class GroupNorm(_Affine):
    """Normalises groups of channels of each image; see `functional.group_norm`.

    >>> from fusednn import nn
    >>> nn.GroupNorm(2, 4)
    GroupNorm(2, 4, eps=1e-05, affine=True)
    """

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        *,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        check_sizes("GroupNorm", 1, num_groups=num_groups)
        check_sizes("GroupNorm", 0, num_channels=num_channels)
        if num_channels % num_groups:
            raise ValueError(
                f"GroupNorm: num_channels={num_channels} must be divisible by "
                f"num_groups={num_groups}"
            )
        self.num_groups = num_groups
        self.num_channels = num_channels
        self.eps = eps
        self.affine = affine
        self._add_affine((num_channels,), affine, affine, dtype)

    def forward(self, input: Any) -> Any:
        """(N, num_channels, ...), the same shape."""
        return F.group_norm(input, self.num_groups, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return f"{self.num_groups}, {self.num_channels}, eps={self.eps}, affine={self.affine}"


def _shape(value: int | Sequence[int]) -> tuple[int, ...]:
    return (value,) if isinstance(value, int) else tuple(value)
