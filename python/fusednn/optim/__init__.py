"""Optimisers, learning-rate schedules, gradient clipping and averaged weights."""

from . import lr_scheduler
from .adam import Adam, AdamW
from .adaptive import Adagrad, RMSprop
from .average import EMA
from .clip import clip_grad_norm_, clip_grad_value_
from .optimizer import Optimizer
from .scaler import GradScaler
from .sgd import SGD

__all__ = [
    "EMA",
    "SGD",
    "Adagrad",
    "Adam",
    "AdamW",
    "GradScaler",
    "Optimizer",
    "RMSprop",
    "clip_grad_norm_",
    "clip_grad_value_",
    "lr_scheduler",
]
