"""Losses as layers; see the functions in `fusednn.functional`."""

from __future__ import annotations

from typing import Any

from .. import functional as F
from .module import Module


class _Loss(Module):
    _reductions: tuple[str, ...] = ("none", "mean", "sum")

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__()
        if reduction not in self._reductions:
            known = ", ".join(map(repr, self._reductions[:-1]))
            raise ValueError(
                f"{type(self).__name__}: reduction={reduction!r}, expected {known} or "
                f"{self._reductions[-1]!r}"
            )
        self.reduction = reduction


class MSELoss(_Loss):
    """(input - target)**2.

    >>> import numpy as np
    >>> from fusednn import nn
    >>> nn.MSELoss()(np.array([1.0, 2.0]), np.array([1.0, 4.0]))
    tensor(2., dtype=float64)
    """

    def forward(self, input: Any, target: Any) -> Any:
        """Two of one shape -> a scalar, or that shape for reduction "none"."""
        return F.mse_loss(input, target, self.reduction)


class L1Loss(_Loss):
    """|input - target|."""

    def forward(self, input: Any, target: Any) -> Any:
        """Two of one shape -> a scalar, or that shape for reduction "none"."""
        return F.l1_loss(input, target, self.reduction)


class HuberLoss(_Loss):
    """Quadratic within delta, linear beyond."""

    def __init__(self, reduction: str = "mean", delta: float = 1.0) -> None:
        super().__init__(reduction)
        self.delta = delta

    def forward(self, input: Any, target: Any) -> Any:
        """Two of one shape -> a scalar, or that shape for reduction "none"."""
        return F.huber_loss(input, target, self.reduction, self.delta)


class SmoothL1Loss(_Loss):
    """HuberLoss divided by its width."""

    def __init__(self, reduction: str = "mean", beta: float = 1.0) -> None:
        super().__init__(reduction)
        self.beta = beta

    def forward(self, input: Any, target: Any) -> Any:
        """Two of one shape -> a scalar, or that shape for reduction "none"."""
        return F.smooth_l1_loss(input, target, self.reduction, self.beta)


class KLDivLoss(_Loss):
    """The divergence of a distribution from one given by its logarithm; see `functional.kl_div`."""

    _reductions = ("none", "mean", "batchmean", "sum")

    def __init__(self, reduction: str = "mean", log_target: bool = False) -> None:
        super().__init__(reduction)
        self.log_target = log_target

    def forward(self, input: Any, target: Any) -> Any:
        """Two of one shape -> a scalar, or that shape for reduction "none"."""
        return F.kl_div(input, target, reduction=self.reduction, log_target=self.log_target)


class CosineSimilarity(Module):
    """The cosine of the angle between two; see `functional.cosine_similarity`."""

    def __init__(self, dim: int = 1, eps: float = 1e-8) -> None:
        super().__init__()
        self.dim, self.eps = dim, eps

    def forward(self, x1: Any, x2: Any) -> Any:
        """Two that broadcast -> their shape without dim."""
        return F.cosine_similarity(x1, x2, self.dim, self.eps)


class _Weighted(_Loss):
    weight: Any

    def __init__(self, weight: Any, reduction: str) -> None:
        super().__init__(reduction)
        self.register_buffer("weight", weight)


class CrossEntropyLoss(_Weighted):
    """-log softmax(input)[target]; see `functional.cross_entropy`.

    >>> import numpy as np
    >>> from fusednn import nn
    >>> nn.CrossEntropyLoss()(np.zeros((1, 2)), np.array([1]))
    tensor(0.6931, dtype=float64)
    """

    def __init__(
        self,
        weight: Any = None,
        *,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
        empty: str = "nan",
    ) -> None:
        super().__init__(weight, reduction)
        self.ignore_index = ignore_index
        self.label_smoothing = label_smoothing
        self.empty = empty

    def forward(self, input: Any, target: Any) -> Any:
        """Logits (N, C, ...) and classes (N, ...) or probabilities (N, C, ...)."""
        return F.cross_entropy(
            input,
            target,
            self.weight,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
            label_smoothing=self.label_smoothing,
            empty=self.empty,
        )


class NLLLoss(_Weighted):
    """-input[target] for log-probabilities; see `functional.nll_loss`."""

    def __init__(
        self,
        weight: Any = None,
        *,
        ignore_index: int = -100,
        reduction: str = "mean",
        empty: str = "nan",
    ) -> None:
        super().__init__(weight, reduction)
        self.ignore_index = ignore_index
        self.empty = empty

    def forward(self, input: Any, target: Any) -> Any:
        """Log-probabilities (N, C, ...) and classes (N, ...)."""
        return F.nll_loss(
            input,
            target,
            self.weight,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
            empty=self.empty,
        )


class BCELoss(_Weighted):
    """Binary cross-entropy of probabilities; see `functional.binary_cross_entropy`."""

    def __init__(self, weight: Any = None, *, reduction: str = "mean") -> None:
        super().__init__(weight, reduction)

    def forward(self, input: Any, target: Any) -> Any:
        """Two of one shape -> a scalar, or that shape for reduction "none"."""
        return F.binary_cross_entropy(input, target, self.weight, reduction=self.reduction)


class BCEWithLogitsLoss(_Weighted):
    """Binary cross-entropy of logits; see `functional.binary_cross_entropy_with_logits`."""

    pos_weight: Any

    def __init__(
        self, weight: Any = None, *, reduction: str = "mean", pos_weight: Any = None
    ) -> None:
        super().__init__(weight, reduction)
        self.register_buffer("pos_weight", pos_weight)

    def forward(self, input: Any, target: Any) -> Any:
        """Two of one shape -> a scalar, or that shape for reduction "none"."""
        return F.binary_cross_entropy_with_logits(
            input,
            target,
            self.weight,
            reduction=self.reduction,
            pos_weight=self.pos_weight,
        )
