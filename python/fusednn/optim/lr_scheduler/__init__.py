"""Learning-rate schedules.

A schedule sets the rate of update 0 when it is made; `step()`, called after each update (or epoch),
sets that of the next. Each of them changes the rate that it finds, so several can be chained.
"""

from .adaptive import OneCycleLR, ReduceLROnPlateau
from .combined import ChainedScheduler, SequentialLR
from .simple import (
    ConstantLR,
    CosineAnnealingLR,
    ExponentialLR,
    InverseSqrtLR,
    LambdaLR,
    LinearLR,
    LinearWarmup,
    LRScheduler,
    MultiplicativeLR,
    MultiStepLR,
    StepLR,
)

__all__ = [
    "ChainedScheduler",
    "ConstantLR",
    "CosineAnnealingLR",
    "ExponentialLR",
    "InverseSqrtLR",
    "LRScheduler",
    "LambdaLR",
    "LinearLR",
    "LinearWarmup",
    "MultiStepLR",
    "MultiplicativeLR",
    "OneCycleLR",
    "ReduceLROnPlateau",
    "SequentialLR",
    "StepLR",
]
