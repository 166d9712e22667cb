"""Learning-rate schedules.

A schedule sets the rate of update 0 when it is made; `step()`, called after each update (or epoch),
sets that of the next. Each of them changes the rate that it finds, so several can be chained.
"""

from .adaptive import OneCycleLR, ReduceLROnPlateau
from .combined import ChainedScheduler, SequentialLR
from .cyclic import CyclicLR
from .falling import CosineAnnealingLR, CosineAnnealingWarmRestarts, PolynomialLR
from .simple import (
    ConstantLR,
    ExponentialLR,
    LambdaLR,
    LinearLR,
    LRScheduler,
    MultiplicativeLR,
    MultiStepLR,
    StepLR,
)
from .warmup import InverseSqrtLR, LinearWarmup

__all__ = [
    "ChainedScheduler",
    "ConstantLR",
    "CosineAnnealingLR",
    "CosineAnnealingWarmRestarts",
    "CyclicLR",
    "ExponentialLR",
    "InverseSqrtLR",
    "LRScheduler",
    "LambdaLR",
    "LinearLR",
    "LinearWarmup",
    "MultiStepLR",
    "MultiplicativeLR",
    "OneCycleLR",
    "PolynomialLR",
    "ReduceLROnPlateau",
    "SequentialLR",
    "StepLR",
]
