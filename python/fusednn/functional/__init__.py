"""The ops as functions: arrays in, arrays out with no tape; any Tensor in, a Tensor out.

One file per family, named as everywhere else in the project; in each, a backward function stands
right below its forward.
"""

from .activation import (
    elu,
    gelu,
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
from .average import (
    adaptive_avg_pool1d,
    adaptive_avg_pool2d,
    adaptive_avg_pool3d,
    avg_pool1d,
    avg_pool2d,
    avg_pool3d,
    global_pool,
)
from .conv import conv1d, conv2d, conv3d, conv_plan, fold, unfold
from .conv_transpose import conv_transpose1d, conv_transpose2d, conv_transpose3d
from .dense import linear
from .dropout import dropout
from .embedding import embedding, rotary_angles, rotary_embedding
from .heads import split_heads
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
from .norm import batch_norm, group_norm, instance_norm, layer_norm, rms_norm
from .padding import flatten, one_hot, pad
from .pool import (
    adaptive_max_pool1d,
    adaptive_max_pool2d,
    adaptive_max_pool3d,
    max_pool1d,
    max_pool2d,
    max_pool3d,
    max_unpool1d,
    max_unpool2d,
)
from .recurrent import gru, gru_cell, layer_norm_lstm, lstm, lstm_cell, rnn, rnn_cell
from .similarity import cosine_similarity, kl_div, normalize
from .softmax import log_softmax, softmax, softmin

__all__ = [
    "adaptive_avg_pool1d",
    "adaptive_avg_pool2d",
    "adaptive_avg_pool3d",
    "adaptive_max_pool1d",
    "adaptive_max_pool2d",
    "adaptive_max_pool3d",
    "attention_weights",
    "avg_pool1d",
    "avg_pool2d",
    "avg_pool3d",
    "batch_norm",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_plan",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "cosine_similarity",
    "cross_entropy",
    "dropout",
    "elu",
    "embedding",
    "flatten",
    "fold",
    "gelu",
    "global_pool",
    "glu",
    "group_norm",
    "gru",
    "gru_cell",
    "hardsigmoid",
    "hardswish",
    "hardtanh",
    "huber_loss",
    "instance_norm",
    "kl_div",
    "l1_loss",
    "layer_norm",
    "layer_norm_lstm",
    "leaky_relu",
    "linear",
    "locally_connected1d",
    "locally_connected2d",
    "log_softmax",
    "logsigmoid",
    "lstm",
    "lstm_cell",
    "max_pool1d",
    "max_pool2d",
    "max_pool3d",
    "max_unpool1d",
    "max_unpool2d",
    "mish",
    "mse_loss",
    "nll_loss",
    "normalize",
    "one_hot",
    "pad",
    "prelu",
    "relu",
    "relu6",
    "rms_norm",
    "rnn",
    "rnn_cell",
    "rotary_angles",
    "rotary_embedding",
    "scaled_dot_product_attention",
    "selu",
    "sigmoid",
    "silu",
    "smooth_l1_loss",
    "softmax",
    "softmin",
    "softplus",
    "softsign",
    "split_heads",
    "tanh",
    "unfold",
]
