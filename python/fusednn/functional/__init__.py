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
from .attention import attention_weights, scaled_dot_product_attention
from .conv import conv1d, conv2d, conv3d, conv_plan, fold, unfold
from .conv_transpose import conv_transpose1d, conv_transpose2d, conv_transpose3d
from .dense import linear
from .dropout import dropout
from .locally_connected import locally_connected1d, locally_connected2d
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
from .softmax import log_softmax, softmax, softmin

__all__ = [
    "attention_weights",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_plan",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "cross_entropy",
    "dropout",
    "elu",
    "flatten",
    "fold",
    "glu",
    "hardsigmoid",
    "hardswish",
    "hardtanh",
    "huber_loss",
    "l1_loss",
    "leaky_relu",
    "linear",
    "locally_connected1d",
    "locally_connected2d",
    "log_softmax",
    "logsigmoid",
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
    "scaled_dot_product_attention",
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
