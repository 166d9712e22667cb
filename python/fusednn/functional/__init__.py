"""The ops as functions: arrays in, arrays out with no tape; any Tensor in, a Tensor out.

One file per family, named as everywhere else in the project; in each, a backward function stands
right below its forward.
"""

from .activation import (
    elu,
    glu,
    hardsigmoid,
    hardswish,
    hardtanh,
    leaky_relu,
    logsigmoid,
    mish,
    prelu,
    relu,
    relu6,
    selu,
    sigmoid,
    silu,
    softplus,
    softsign,
    tanh,
)
from .conv import conv1d, conv2d, conv3d, conv_plan, fold, unfold
from .dense import linear
from .dropout import dropout
from .loss import (
    binary_cross_entropy,
    binary_cross_entropy_with_logits,
    cross_entropy,
    huber_loss,
    l1_loss,
    mse_loss,
    nll_loss,
    smooth_l1_loss,
)
from .padding import flatten, one_hot, pad
from .pool import max_pool1d, max_pool2d, max_pool3d
from .recurrent import gru, gru_cell, lstm, lstm_cell, rnn, rnn_cell
from .softmax import log_softmax, softmax, softmin

__all__ = [
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_plan",
    "cross_entropy",
    "dropout",
    "elu",
    "flatten",
    "fold",
    "glu",
    "gru",
    "gru_cell",
    "hardsigmoid",
    "hardswish",
    "hardtanh",
    "huber_loss",
    "l1_loss",
    "leaky_relu",
    "linear",
    "log_softmax",
    "logsigmoid",
    "lstm",
    "lstm_cell",
    "max_pool1d",
    "max_pool2d",
    "max_pool3d",
    "mish",
    "mse_loss",
    "nll_loss",
    "one_hot",
    "pad",
    "prelu",
    "relu",
    "relu6",
    "rnn",
    "rnn_cell",
    "selu",
    "sigmoid",
    "silu",
    "smooth_l1_loss",
    "softmax",
    "softmin",
    "softplus",
    "softsign",
    "tanh",
    "unfold",
]
