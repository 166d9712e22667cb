"""What test_coverage.py calls: a case or more for every public function, module and Tensor method.

An array is given by its shape (drawn from a normal distribution, with a gradient), by `positive`
(likewise, but from 0.5 to 2), or as it is (integers and booleans).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

import fusednn as fn
import fusednn.functional as F
from fusednn import nn


@dataclass(frozen=True)
class Positive:
    shape: tuple[int, ...]


def positive(*shape: int) -> Positive:
    return Positive(shape)


def ints(values: Any) -> np.ndarray[Any, Any]:
    return np.array(values, np.int64)


IDS = ints([[1, 0, 3], [2, 2, 1]])
CLASSES = ints([2, 0, 1, -100])
MASK = np.array([[True, False, True, True]] * 3)
IMAGE, WEIGHT = (2, 4, 6, 7), (6, 4, 3, 3)
SIGNAL, VOLUME = (2, 4, 9), (1, 2, 4, 5, 4)

# name -> cases, each (function, array...). What needs other than arrays is in the function.
FUNCTIONS: dict[str, list[tuple[Any, ...]]] = {
    "adaptive_avg_pool1d": [(lambda x: F.adaptive_avg_pool1d(x, 4), SIGNAL)],
    "adaptive_avg_pool2d": [(lambda x: F.adaptive_avg_pool2d(x, (4, 3)), IMAGE)],
    "adaptive_avg_pool3d": [(lambda x: F.adaptive_avg_pool3d(x, 2), VOLUME)],
    "adaptive_max_pool1d": [(lambda x: F.adaptive_max_pool1d(x, 4), SIGNAL)],
    "adaptive_max_pool2d": [
        (lambda x: F.adaptive_max_pool2d(x, (4, 3)), IMAGE),
        (lambda x: F.adaptive_max_pool2d(x, 3, return_indices=True), IMAGE),
    ],
    "adaptive_max_pool3d": [(lambda x: F.adaptive_max_pool3d(x, 2), VOLUME)],
    "avg_pool1d": [(lambda x: F.avg_pool1d(x, 3, 2, 1), SIGNAL)],
    "avg_pool2d": [(lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False), IMAGE)],
    "avg_pool3d": [(lambda x: F.avg_pool3d(x, 2, ceil_mode=True), VOLUME)],
    "batch_norm": [
        (lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True), IMAGE, (4,), (4,)),
        (lambda x, m, v: F.batch_norm(x, given(m), given(v)), IMAGE, (4,), positive(4)),
        (
            lambda x, w: F.batch_norm(x, None, None, w, training=True, activation="relu"),
            (3, 4),
            (4,),
        ),
    ],
    "binary_cross_entropy": [
        (lambda x, y: F.binary_cross_entropy(x.sigmoid(), y.sigmoid()), (3, 4), (3, 4)),
    ],
    "binary_cross_entropy_with_logits": [
        (lambda x, y: F.binary_cross_entropy_with_logits(x, y.sigmoid()), (3, 4), (3, 4)),
    ],
    "conv1d": [(lambda x, w, b: F.conv1d(x, w, b, padding=1), SIGNAL, (5, 4, 3), (5,))],
    "conv2d": [
        (lambda x, w, b: F.conv2d(x, w, b, stride=2, padding=1), IMAGE, WEIGHT, (6,)),
        (lambda x, w: F.conv2d(x, w, groups=2, dilation=2), IMAGE, (6, 2, 2, 2)),
        (lambda x, w: F.conv2d(x, w, groups=4, padding="same"), IMAGE, (4, 1, 3, 3)),
        (lambda x, w: F.conv2d(x, w, padding=1, flip_kernel=True), IMAGE, WEIGHT),
    ],
    "conv3d": [(lambda x, w: F.conv3d(x, w, padding=1), VOLUME, (3, 2, 3, 2, 3))],
    "conv_transpose1d": [(lambda x, w: F.conv_transpose1d(x, w, stride=2), SIGNAL, (4, 3, 3))],
    "conv_transpose2d": [
        (lambda x, w, b: F.conv_transpose2d(x, w, b, 2, 1, 1), IMAGE, (4, 3, 3, 3), (3,)),
    ],
    "conv_transpose3d": [(lambda x, w: F.conv_transpose3d(x, w), VOLUME, (2, 2, 2, 2, 2))],
    "cosine_similarity": [(F.cosine_similarity, (3, 4), (3, 4))],
    "cross_entropy": [
        (lambda x: F.cross_entropy(x, place(CLASSES, x), label_smoothing=0.1), (4, 3)),
        (lambda x, y: F.cross_entropy(x, y.softmax(1)), (4, 3), (4, 3)),
        (lambda x, w: F.cross_entropy(x, place(CLASSES, x), given(w)), (4, 3), positive(3)),
    ],
    "dropout": [(lambda x: F.dropout(x, 0.4), (5, 9))],
    "elu": [(F.elu, (3, 4))],
    "embedding": [
        (lambda w: F.embedding(place(IDS, w), w), (4, 5)),
        (lambda w: F.embedding(place(IDS, w), w, 2, scale_grad_by_freq=True), (4, 5)),
    ],
    "flatten": [(lambda x: F.flatten(x, 1), IMAGE)],
    "fold": [(lambda x: F.fold(x, (4, 5), 2), (2, 8, 12))],
    "gelu": [(F.gelu, (3, 4)), (lambda x: F.gelu(x, approximate="tanh"), (3, 4))],
    "global_pool": [
        (lambda x: F.global_pool(x, "mean"), IMAGE),
        (lambda x: F.global_pool(x, "max"), IMAGE),
    ],
    "glu": [(lambda x: F.glu(x, 1), (3, 4))],
    "group_norm": [(lambda x, w, b: F.group_norm(x, 2, w, b), IMAGE, (4,), (4,))],
    "gru": [
        (lambda x, a, b: F.gru(x, None, [a, b]), (5, 2, 3), (12, 3), (12, 4)),
    ],
    "gru_cell": [(F.gru_cell, (2, 3), (2, 4), (12, 3), (12, 4))],
    "hardsigmoid": [(F.hardsigmoid, (3, 4))],
    "hardswish": [(F.hardswish, (3, 4))],
    "hardtanh": [(F.hardtanh, (3, 4))],
    "huber_loss": [(F.huber_loss, (3, 4), (3, 4))],
    "instance_norm": [(lambda x, w, b: F.instance_norm(x, weight=w, bias=b), IMAGE, (4,), (4,))],
    "kl_div": [(lambda x, y: F.kl_div(x.log_softmax(1), y.softmax(1)), (3, 4), (3, 4))],
    "l1_loss": [(F.l1_loss, (3, 4), (3, 4))],
    "layer_norm": [
        (lambda x, w, b: F.layer_norm(x, (4,), w, b), (3, 4), (4,), (4,)),
        (lambda x, r: F.layer_norm(x, (4,), residual=r), (3, 4), (3, 4)),
    ],
    "layer_norm_lstm": [
        (
            lambda x, *w: F.layer_norm_lstm(x, None, w)[0],
            (5, 2, 3), (16, 3), (16, 4), (16,), (16,), (16,), (16,), (4,), (4,),
        ),
    ],
    "leaky_relu": [(F.leaky_relu, (3, 4))],
    "linear": [(F.linear, (2, 3, 4), (5, 4), (5,))],
    "locally_connected1d": [
        (lambda x, w: F.locally_connected1d(x, w, padding=1), SIGNAL, (9, 3, 4, 3)),
    ],
    "locally_connected2d": [(F.locally_connected2d, (2, 2, 4, 5), (2, 3, 3, 2, 3, 3))],
    "log_softmax": [(lambda x: F.log_softmax(x, 1), (3, 4))],
    "logsigmoid": [(F.logsigmoid, (3, 4))],
    "lstm": [(lambda x, a, b: F.lstm(x, None, [a, b]), (5, 2, 3), (16, 3), (16, 4))],
    "lstm_cell": [
        (lambda x, h, c, a, b: F.lstm_cell(x, (h, c), a, b), (2, 3), (2, 4), (2, 4), (16, 3),
         (16, 4)),
    ],
    "max_pool1d": [
        (lambda x: F.max_pool1d(x, 3, 2, 1), SIGNAL),
        (lambda x: F.max_pool1d(x, 300, 2, 150, return_indices=True), (2, 3, 301)),
    ],
    "max_pool2d": [
        (lambda x: F.max_pool2d(x, 3, 2, 1), IMAGE),
        (lambda x: F.max_pool2d(x, (2, 3), (1, 2), (1, 0), (2, 1), return_indices=True), IMAGE),
    ],
    "max_pool3d": [(lambda x: F.max_pool3d(x, 2, 1, 1, return_indices=True), VOLUME)],
    "max_unpool1d": [
        (lambda x: F.max_unpool1d(*F.max_pool1d(x, 2, return_indices=True), 2), (2, 3, 8)),
    ],
    "max_unpool2d": [
        (lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2), (2, 3, 8, 6)),
    ],
    "mish": [(F.mish, (3, 4))],
    "mse_loss": [(F.mse_loss, (3, 4), (3, 4))],
    "nll_loss": [(lambda x: F.nll_loss(x, place(CLASSES, x)), (4, 3))],
    "normalize": [(F.normalize, (3, 4)), (lambda x: F.normalize(x, 1.0, 0), (3, 4))],
    "one_hot": [(lambda x: F.one_hot(place(IDS, x), 5), (1,))],
    "pad": [
        (lambda x: F.pad(x, (1, 2), value=3.0), IMAGE),
        (lambda x: F.pad(x, (2, 1, 0, 3), "reflect"), IMAGE),
        (lambda x: F.pad(x, (2, 1), "replicate"), SIGNAL),
        (lambda x: F.pad(x, (2, 1), "circular"), SIGNAL),
        (lambda x: F.pad(x, (-1, 2)), SIGNAL),
    ],
    "prelu": [(F.prelu, IMAGE, (4,))],
    "relu": [(F.relu, (3, 4))],
    "relu6": [(F.relu6, (3, 4))],
    "rms_norm": [
        (lambda x, w: F.rms_norm(x, 4, w), (3, 4), (4,)),
        (lambda x, r: F.rms_norm(x, 4, residual=r), (3, 4), (3, 4)),
    ],
    "rnn": [(lambda x, a, b: F.rnn(x, None, [a, b]), (5, 2, 3), (4, 3), (4, 4))],
    "rnn_cell": [(F.rnn_cell, (2, 3), (2, 4), (4, 3), (4, 4))],
    "rotary_embedding": [
        (
            lambda x: F.rotary_embedding(
                x, *(given(place(a, x)) for a in F.rotary_angles(5, 8, dtype=np_dtype(x)))
            ),
            (2, 3, 5, 8),
        ),
    ],
    "scaled_dot_product_attention": [
        (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
         (2, 2, 5, 8), (2, 2, 5, 8), (2, 2, 5, 8)),
    ],
    "attention_weights": [(F.attention_weights, (2, 2, 5, 8), (2, 2, 5, 8))],
    "selu": [(F.selu, (3, 4))],
    "sigmoid": [(F.sigmoid, (3, 4))],
    "silu": [(F.silu, (3, 4))],
    "smooth_l1_loss": [(F.smooth_l1_loss, (3, 4), (3, 4))],
    "softmax": [(lambda x: F.softmax(x, 0), (3, 4))],
    "softmin": [(lambda x: F.softmin(x, 1), (3, 4))],
    "softplus": [(F.softplus, (3, 4))],
    "softsign": [(F.softsign, (3, 4))],
    "split_heads": [(lambda x: F.split_heads(x, ((2, 3), (1, 2))), (2, 5, 8))],
    "tanh": [(F.tanh, (3, 4))],
    "unfold": [(lambda x: F.unfold(x, 2, padding=1, stride=2), (2, 3, 4, 5))],
}  # fmt: skip

# Those without arrays: they have no device.
FUNCTIONS_OF_NUMBERS = {"conv_plan", "rotary_angles"}


def place(array: Any, like: Any) -> Any:
    """Integers (or a table) beside a Tensor."""
    return fn.tensor(array, device=like.device)


def np_dtype(like: Any) -> Any:
    """NumPy's dtype for what is computed on the CPU: float32 beside 16 bits."""
    return like.dtype if like.dtype.char == "d" else np.dtype(np.float32)


def given(x: Any) -> Any:
    """Statistics, class weights and tables: no gradient, and float32 beside 16 bits."""
    return x.detach().to(np_dtype(x))


def attention_input(layer: Any, x: Any) -> Any:
    return layer(x, x, x)


# name -> cases, each (module's factory, array...) or (factory, function of module and arrays,
# array...).
MODULES: dict[str, list[tuple[Any, ...]]] = {
    **{
        name: [(getattr(nn, name), (3, 4))]
        for name in (
            "ELU", "GELU", "SELU", "Hardsigmoid", "Hardswish", "Hardtanh", "LeakyReLU",
            "LogSigmoid", "Mish", "PReLU", "ReLU", "ReLU6", "Sigmoid", "SiLU", "Softplus",
            "Softsign", "Tanh", "GLU", "Dropout", "Flatten", "Identity",
        )
    },
    **{name: [(lambda name=name: getattr(nn, name)(1), (3, 4))]
       for name in ("LogSoftmax", "Softmax", "Softmin")},
    **{name: [(getattr(nn, name), (3, 4), (3, 4))]
       for name in ("MSELoss", "L1Loss", "HuberLoss", "SmoothL1Loss", "CosineSimilarity",)},
    "BCELoss": [(nn.BCELoss, lambda m, x, y: m(x.sigmoid(), y.sigmoid()), (3, 4), (3, 4))],
    "BCEWithLogitsLoss": [
        (nn.BCEWithLogitsLoss, lambda m, x, y: m(x, y.sigmoid()), (3, 4), (3, 4)),
    ],
    "CrossEntropyLoss": [(nn.CrossEntropyLoss, lambda m, x: m(x, place(CLASSES, x)), (4, 3))],
    "NLLLoss": [(nn.NLLLoss, lambda m, x: m(x, place(CLASSES, x)), (4, 3))],
    "KLDivLoss": [
        (nn.KLDivLoss, lambda m, x, y: m(x.log_softmax(1), y.softmax(1)), (3, 4), (3, 4)),
    ],
    "Unflatten": [(lambda: nn.Unflatten(1, (2, 2)), (3, 4))],
    "Linear": [(lambda: nn.Linear(4, 5), (2, 3, 4))],
    "Embedding": [(lambda: nn.Embedding(4, 5), lambda m, x: m(place(IDS, x)) * x, (5,))],
    "Conv1d": [(lambda: nn.Conv1d(4, 3, 3, padding_mode="circular", padding=1), SIGNAL)],
    "Conv2d": [
        (lambda: nn.Conv2d(4, 3, 3, 2, 1, padding_mode="reflect"), IMAGE),
        (lambda: nn.Conv2d(4, 4, 3, groups=4, padding_mode="replicate", padding=1), IMAGE),
    ],
    "Conv3d": [(lambda: nn.Conv3d(2, 3, 2), VOLUME)],
    "ConvTranspose1d": [(lambda: nn.ConvTranspose1d(4, 3, 3, 2), SIGNAL)],
    "ConvTranspose2d": [(lambda: nn.ConvTranspose2d(4, 3, 3, 2, 1), IMAGE)],
    "ConvTranspose3d": [(lambda: nn.ConvTranspose3d(2, 3, 2), VOLUME)],
    "LocallyConnected1d": [(lambda: nn.LocallyConnected1d(4, 3, 9, 3), SIGNAL)],
    "LocallyConnected2d": [(lambda: nn.LocallyConnected2d(4, 3, (6, 7), 3), IMAGE)],
    "Fold": [(lambda: nn.Fold((4, 5), 2), (2, 8, 12))],
    "Unfold": [(lambda: nn.Unfold(2), (2, 3, 4, 5))],
    "BatchNorm1d": [(lambda: nn.BatchNorm1d(4), (5, 4))],
    "BatchNorm2d": [(lambda: nn.BatchNorm2d(4), IMAGE)],
    "BatchNorm3d": [(lambda: nn.BatchNorm3d(2), VOLUME)],
    "InstanceNorm1d": [(lambda: nn.InstanceNorm1d(4, affine=True), SIGNAL)],
    "InstanceNorm2d": [(lambda: nn.InstanceNorm2d(4, track_running_stats=True), IMAGE)],
    "InstanceNorm3d": [(lambda: nn.InstanceNorm3d(2), VOLUME)],
    "GroupNorm": [(lambda: nn.GroupNorm(2, 4), IMAGE)],
    "LayerNorm": [(lambda: nn.LayerNorm(4), (3, 4))],
    "RMSNorm": [(lambda: nn.RMSNorm(4), (3, 4))],
    "AdaptiveAvgPool1d": [(lambda: nn.AdaptiveAvgPool1d(4), SIGNAL)],
    "AdaptiveAvgPool2d": [(lambda: nn.AdaptiveAvgPool2d(4), IMAGE)],
    "AdaptiveAvgPool3d": [(lambda: nn.AdaptiveAvgPool3d(2), VOLUME)],
    "AdaptiveMaxPool1d": [(lambda: nn.AdaptiveMaxPool1d(4), SIGNAL)],
    "AdaptiveMaxPool2d": [(lambda: nn.AdaptiveMaxPool2d(4), IMAGE)],
    "AdaptiveMaxPool3d": [(lambda: nn.AdaptiveMaxPool3d(2), VOLUME)],
    "AvgPool1d": [(lambda: nn.AvgPool1d(2), SIGNAL)],
    "AvgPool2d": [(lambda: nn.AvgPool2d(2), IMAGE)],
    "AvgPool3d": [(lambda: nn.AvgPool3d(2), VOLUME)],
    "GlobalPool": [(nn.GlobalPool, IMAGE)],
    "MaxPool1d": [(lambda: nn.MaxPool1d(2), SIGNAL)],
    "MaxPool2d": [(lambda: nn.MaxPool2d(2, return_indices=True), IMAGE)],
    "MaxPool3d": [(lambda: nn.MaxPool3d(2), VOLUME)],
    "MaxUnpool1d": [
        (lambda: nn.MaxUnpool1d(2), lambda m, x: m(*F.max_pool1d(x, 2, return_indices=True)),
         (2, 3, 8)),
    ],
    "MaxUnpool2d": [
        (lambda: nn.MaxUnpool2d(2), lambda m, x: m(*F.max_pool2d(x, 2, return_indices=True)),
         (2, 3, 8, 6)),
    ],
    "MirrorConv1d": [(lambda: nn.MirrorConv1d(4, 6, 3, padding=1), SIGNAL)],
    "MirrorConv2d": [(lambda: nn.MirrorConv2d(4, 6, 3, padding=1), IMAGE)],
    "P4ConvZ2": [(lambda: nn.P4ConvZ2(2, 3, 3, padding=1), (2, 2, 5, 5))],
    "P4ConvP4": [(lambda: nn.P4ConvP4(2, 3, 3), (2, 2, 4, 5, 5))],
    "P4MConvZ2": [(lambda: nn.P4MConvZ2(2, 3, 3, padding=1), (2, 2, 5, 5))],
    "P4MConvP4M": [(lambda: nn.P4MConvP4M(2, 2, 3), (2, 2, 8, 5, 5))],
    "GroupPool": [
        (lambda: nn.GroupPool(nn.Conv2d(4, 3, 3), "mirror"), (2, 4, 5, 5)),
        (lambda: nn.GroupPool(nn.Conv2d(4, 3, 3), "c4", "max"), (2, 4, 5, 5)),
    ],
    "Sequential": [(lambda: nn.Sequential(nn.Linear(4, 3), nn.Tanh()), (3, 4))],
    "SinusoidalPositionalEncoding": [(lambda: nn.SinusoidalPositionalEncoding(8, 10), (2, 5, 8))],
    "RNN": [(lambda: nn.RNN(3, 4), (5, 2, 3))],
    "LSTM": [(lambda: nn.LSTM(3, 4), (5, 2, 3))],
    "GRU": [(lambda: nn.GRU(3, 4), (5, 2, 3))],
    "LayerNormLSTM": [(lambda: nn.LayerNormLSTM(3, 4), (5, 2, 3))],
    "RNNCell": [(lambda: nn.RNNCell(3, 4), (2, 3))],
    "LSTMCell": [(lambda: nn.LSTMCell(3, 4), (2, 3))],
    "GRUCell": [(lambda: nn.GRUCell(3, 4), (2, 3))],
    "MultiheadAttention": [(lambda: nn.MultiheadAttention(8, 2), attention_input, (5, 2, 8))],
    "TransformerEncoderLayer": [(lambda: nn.TransformerEncoderLayer(8, 2, 16), (5, 2, 8))],
    "TransformerEncoder": [
        (lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16), 2), (5, 2, 8)),
    ],
    "TransformerDecoderLayer": [
        (lambda: nn.TransformerDecoderLayer(8, 2, 16), (5, 2, 8), (4, 2, 8)),
    ],
    "TransformerDecoder": [
        (lambda: nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, 16), 2), (5, 2, 8),
         (4, 2, 8)),
    ],
    "Transformer": [
        (lambda: nn.Transformer(8, 2, 1, 1, 16), (5, 2, 8), (4, 2, 8)),
    ],
}  # fmt: skip

# What computes nothing by itself.
NOT_CALLED = {
    "KVCache", "Module", "ModuleDict", "ModuleList", "Parameter", "ParameterDict", "ParameterList",
    "init", "utils",
}  # fmt: skip
