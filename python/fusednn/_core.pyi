"""The compiled kernels. Private: the public faces are `fusednn.functional`, `nn` and `optim`.

Arrays are float32 or float64 and all of one dtype; what is not C-contiguous is copied inside.
Window arguments are an int for all spatial axes or a sequence with one int per axis. `spatial` is
the number of spatial axes (1, 2 or 3) and selects the name used in error messages.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Ints = int | Sequence[int]
Padding = int | str | Sequence[int | Sequence[int]]

# ---- conv (bindings/conv.cpp) --------------------------------------------------------------------
class PackedWeight:
    """A weight in the form that the kernels read, kept between calls with the same values."""

    @property
    def nbytes(self) -> int: ...

def conv_forward(
    spatial: int,
    input: Array,
    weight: Array,
    bias: Array | None,
    stride: Ints,
    padding: Padding,
    dilation: Ints,
    groups: int,
    algorithm: str,
    packed: PackedWeight | None = None,
    /,
) -> Array: ...
def conv_backward_input(
    spatial: int,
    grad: Array,
    weight: Array,
    input_shape: tuple[int, ...],
    stride: Ints,
    padding: Padding,
    dilation: Ints,
    groups: int,
    algorithm: str,
    /,
) -> Array: ...
def conv_backward_weight(
    spatial: int,
    grad: Array,
    input: Array,
    weight_shape: tuple[int, ...],
    stride: Ints,
    padding: Padding,
    dilation: Ints,
    groups: int,
    algorithm: str,
    /,
) -> Array: ...
def conv_backward_bias(spatial: int, grad: Array, /) -> Array: ...
def conv_plan(
    spatial: int,
    input_shape: tuple[int, ...],
    weight_shape: tuple[int, ...],
    stride: Ints,
    padding: Padding,
    dilation: Ints,
    groups: int,
    /,
) -> tuple[str, str]:
    """The algorithm that "auto" chooses for the forward pass, and why."""

def conv_shape(
    op: str,
    spatial: int,
    input_shape: tuple[int, ...],
    weight_shape: tuple[int, ...],
    stride: Ints,
    padding: Padding,
    dilation: Ints,
    groups: int,
    /,
) -> tuple[tuple[int, ...], tuple[tuple[int, int, int, int], ...]]:
    """The output's shape; per axis stride, dilation, zeros in front, zeros read behind."""

# ---- conv_transpose (bindings/conv_transpose.cpp) ------------------------------------------------
def conv_transpose_forward(
    spatial: int,
    input: Array,
    weight: Array,
    bias: Array | None,
    stride: Ints,
    padding: Padding,
    output_padding: Ints,
    dilation: Ints,
    groups: int,
    algorithm: str,
    /,
) -> Array: ...
def conv_transpose_backward_input(
    spatial: int,
    grad: Array,
    weight: Array,
    input_shape: tuple[int, ...],
    stride: Ints,
    padding: Padding,
    output_padding: Ints,
    dilation: Ints,
    groups: int,
    algorithm: str,
    /,
) -> Array: ...
def conv_transpose_backward_weight(
    spatial: int,
    grad: Array,
    input: Array,
    weight_shape: tuple[int, ...],
    stride: Ints,
    padding: Padding,
    output_padding: Ints,
    dilation: Ints,
    groups: int,
    algorithm: str,
    /,
) -> Array: ...

# ---- unfold (bindings/unfold.cpp) ----------------------------------------------------------------
def unfold(
    input: Array, kernel_size: Ints, dilation: Ints, padding: Ints, stride: Ints, /
) -> Array: ...
def fold(
    input: Array,
    output_size: Ints,
    kernel_size: Ints,
    dilation: Ints,
    padding: Ints,
    stride: Ints,
    /,
) -> Array: ...

# ---- pool (bindings/pool.cpp) --------------------------------------------------------------------
def max_pool_forward(
    spatial: int,
    input: Array,
    kernel_size: Ints,
    stride: Ints | None,
    padding: Ints,
    dilation: Ints,
    ceil_mode: bool,
    want_argmax: bool,
    /,
) -> tuple[Array, Array | None]:
    """The pooled array and, if wanted, the winning tap of each window (uint8, uint16 or int32)."""

def max_pool_backward(
    spatial: int,
    grad: Array,
    argmax: Array,
    input_shape: tuple[int, ...],
    kernel_size: Ints,
    stride: Ints | None,
    padding: Ints,
    dilation: Ints,
    ceil_mode: bool,
    /,
) -> Array: ...
def max_pool_indices(
    spatial: int,
    argmax: Array,
    input_shape: tuple[int, ...],
    kernel_size: Ints,
    stride: Ints | None,
    padding: Ints,
    dilation: Ints,
    ceil_mode: bool,
    /,
) -> NDArray[np.int64]:
    """Winning taps as flat positions in the input plane, as torch's `return_indices` gives."""

# ---- dense (bindings/dense.cpp) ------------------------------------------------------------------
def linear_forward(input: Array, weight: Array, bias: Array | None, relu: bool, /) -> Array:
    """input (..., in) @ weight (out, in)^T + bias, then ReLU if asked."""

def linear_backward_input(grad: Array, weight: Array, /) -> Array: ...
def linear_backward_weight(grad: Array, input: Array, /) -> Array: ...
def linear_backward_bias(grad: Array, /) -> Array: ...
def matmul(a: Array, b: Array, transpose_a: bool, transpose_b: bool, /) -> Array:
    """Products of matrices; batches broadcast. The flags transpose the last two axes."""

# ---- activation (bindings/activation.cpp) --------------------------------------------------------
def cast(input: Array, dtype: str, /) -> Array:
    """Between float32 and the 16-bit floats, on a GPU."""

def relu_forward(input: Array, /) -> Array: ...
def relu_backward(grad: Array, output: Array, /) -> Array: ...
def unary_forward(op: str, function: str, input: Array, a: float, b: float, /) -> Array:
    """One of the functions of ops/activation.cpp; `op` is the name in error messages."""

def unary_backward(
    op: str, function: str, grad: Array, saved: Array, a: float, b: float, /
) -> Array: ...
def prelu_forward(input: Array, weight: Array, /) -> Array: ...
def prelu_backward(grad: Array, input: Array, weight: Array, /) -> tuple[Array, Array]: ...

# ---- norm (bindings/norm.cpp) --------------------------------------------------------------------
def layer_norm_forward(
    rms: bool,
    input: Array,
    normalized_shape: Ints,
    weight: Array | None,
    bias: Array | None,
    residual: Array | None,
    eps: float,
    /,
) -> tuple[Array, Array, Array | None]:
    """The result, statistics for backward (3, rows), and input + residual if there is one."""

def layer_norm_backward(
    rms: bool,
    grad: Array,
    input: Array,
    normalized_shape: Ints,
    weight: Array | None,
    stats: Array,
    want_weight: bool,
    want_bias: bool,
    /,
) -> tuple[Array, Array | None, Array | None]: ...
def group_norm_forward(
    op: str,
    input: Array,
    num_groups: int,
    weight: Array | None,
    bias: Array | None,
    eps: float,
    /,
) -> tuple[Array, Array]: ...
def group_norm_backward(
    op: str,
    grad: Array,
    input: Array,
    num_groups: int,
    weight: Array | None,
    stats: Array,
    want_weight: bool,
    want_bias: bool,
    /,
) -> tuple[Array, Array | None, Array | None]: ...
def batch_norm_forward(
    input: Array,
    running_mean: Array | None,
    running_var: Array | None,
    weight: Array | None,
    bias: Array | None,
    training: bool,
    momentum: float,
    eps: float,
    relu: bool,
    /,
) -> tuple[Array, Array]:
    """The result and statistics for backward; in training running_mean and _var are written."""

def batch_norm_backward(
    grad: Array,
    input: Array,
    output: Array | None,
    weight: Array | None,
    stats: Array,
    training: bool,
    want_weight: bool,
    want_bias: bool,
    /,
) -> tuple[Array, Array | None, Array | None]:
    """output: the forward's, where it applied ReLU."""

# ---- embedding (bindings/embedding.cpp) ----------------------------------------------------------
def embedding_forward(ids: NDArray[Any], weight: Array, /) -> Array: ...
def embedding_backward(
    grad: Array,
    ids: NDArray[Any],
    num_embeddings: int,
    padding_idx: int,
    scale_grad_by_freq: bool,
    /,
) -> Array:
    """padding_idx is -1 for none."""

def rotary(
    input: Array,
    cos: Array,
    sin: Array,
    position_ids: NDArray[Any] | None,
    interleaved: bool,
    num_heads: int,
    rotary_dim: int,
    inverse: bool,
    /,
) -> Array: ...

# ---- average and adaptive pooling (bindings/average.cpp) -----------------------------------------
def avg_pool_forward(
    op: str,
    spatial: int,
    input: Array,
    kernel_size: Ints,
    stride: Ints | None,
    padding: Ints,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
    /,
) -> Array: ...
def avg_pool_backward(
    op: str,
    spatial: int,
    grad: Array,
    input_shape: tuple[int, ...],
    kernel_size: Ints,
    stride: Ints | None,
    padding: Ints,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
    /,
) -> Array: ...
def adaptive_avg_forward(op: str, spatial: int, input: Array, output_size: Ints, /) -> Array: ...
def adaptive_avg_backward(
    op: str, spatial: int, grad: Array, input_shape: tuple[int, ...], output_size: Ints, /
) -> Array: ...
def global_pool_forward(input: Array, sum: bool, /) -> Array: ...
def global_pool_backward(grad: Array, input_shape: tuple[int, ...], sum: bool, /) -> Array: ...
def adaptive_max_forward(
    op: str, spatial: int, input: Array, output_size: Ints, /
) -> tuple[Array, NDArray[np.int64]]: ...
def scatter_planes(
    op: str,
    spatial: int,
    input: Array,
    indices: NDArray[Any],
    output_shape: tuple[int, ...],
    add: bool,
    /,
) -> Array:
    """input's values at flat positions of the output's planes (the last `spatial` axes)."""

def gather_planes(op: str, spatial: int, input: Array, indices: NDArray[Any], /) -> Array: ...

# ---- softmax and loss (bindings/loss.cpp) --------------------------------------------------------
def softmax_forward(input: Array, dim: int, /) -> Array: ...
def softmax_backward(grad: Array, output: Array, dim: int, /) -> Array: ...
def log_softmax_forward(input: Array, dim: int, /) -> Array: ...
def log_softmax_backward(grad: Array, output: Array, dim: int, /) -> Array: ...
def cross_entropy_forward(
    op: str,
    input: Array,
    target: NDArray[Any],
    weight: Array | None,
    ignore_index: int,
    label_smoothing: float,
    /,
) -> tuple[Array, Array]:
    """Per-position losses, and what each counts in the mean's denominator; both of target's shape.

    op "cross_entropy" takes logits, "nll_loss" log-probabilities.
    """

def cross_entropy_backward(
    op: str,
    input: Array,
    target: NDArray[Any],
    weight: Array | None,
    ignore_index: int,
    label_smoothing: float,
    scale: Array,
    /,
) -> Array:
    """Gradient of sum(scale * losses) in input; scale has target's shape."""

# ---- attention (bindings/attention.cpp) ----------------------------------------------------------
# causal: 0 none, 1 upper left, 2 lower right. extra: None, or (window left, window right, softcap,
# dropout, its key, lengths of queries, of keys, starts of packed queries, of keys).
def attention_forward(
    query: Array,
    key: Array,
    value: Array,
    mask: Array | None,
    causal: int,
    scale: float | None,
    enable_gqa: bool,
    extra: tuple[Any, ...] | None,
    want_stats: bool,
    /,
) -> tuple[Array, Array | None]:
    """The output and, if wanted, what backward needs of each row."""

def attention_backward(
    query: Array,
    key: Array,
    value: Array,
    mask: Array | None,
    causal: int,
    scale: float | None,
    enable_gqa: bool,
    extra: tuple[Any, ...] | None,
    grad: Array,
    output: Array,
    stats: Array,
    want_mask: bool,
    /,
) -> tuple[Array, Array, Array, Array | None]:
    """Gradients of query, key, value, and of an additive mask if wanted."""

def attention_weights(
    query: Array,
    key: Array,
    mask: Array | None,
    causal: int,
    scale: float | None,
    enable_gqa: bool,
    extra: tuple[Any, ...] | None,
    want_stats: bool,
    /,
) -> tuple[Array, Array]:
    """The weights, and what backward needs of each row."""

def attention_weights_backward(
    query: Array,
    key: Array,
    mask: Array | None,
    causal: int,
    scale: float | None,
    enable_gqa: bool,
    extra: tuple[Any, ...] | None,
    grad: Array,
    weights: Array,
    stats: Array,
    want_mask: bool,
    /,
) -> tuple[Array, Array, None, Array | None]:
    """Gradients of query, key, nothing, and of an additive mask if wanted."""

# ---- optim (bindings/optim.cpp) ------------------------------------------------------------------
def sgd_step(
    param: list[Array],
    grad: list[Array],
    momentum_buffer: list[Array] | None,
    first_step: list[bool],
    lr: float,
    momentum: float,
    dampening: float,
    weight_decay: float,
    nesterov: bool,
    maximize: bool,
    /,
) -> None: ...
def adam_step(
    param: list[Array],
    grad: list[Array],
    exp_avg: list[Array],
    exp_avg_sq: list[Array],
    max_exp_avg_sq: list[Array] | None,
    step: list[int],
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    decoupled_decay: bool,
    maximize: bool,
    /,
) -> None: ...
def rmsprop_step(
    param: list[Array],
    grad: list[Array],
    square_avg: list[Array],
    grad_avg: list[Array] | None,
    momentum_buffer: list[Array] | None,
    lr: float,
    alpha: float,
    eps: float,
    weight_decay: float,
    momentum: float,
    maximize: bool,
    /,
) -> None: ...
def adagrad_step(
    param: list[Array],
    grad: list[Array],
    sum: list[Array],
    lr: list[float],
    eps: float,
    weight_decay: float,
    maximize: bool,
    /,
) -> None: ...
def sum_of_squares(input: list[Array], scale: float, /) -> Any:
    """Sum of (input * scale)**2 over all arrays, in float64: a float, or one element on a GPU."""

def scale_arrays(input: list[Array], factor: float, /) -> None:
    """input *= factor, for all arrays."""

# ---- runtime (bindings/runtime.cpp) --------------------------------------------------------------
__version__: str

def set_num_threads(n: int, /) -> None: ...
def get_num_threads() -> int: ...
def set_float32_precision(precision: str, /) -> None: ...
def get_float32_precision() -> str: ...
def available_cpus() -> int: ...
def cpu_isa() -> str: ...
def usable_isas() -> list[str]: ...
def compiled_isas() -> list[str]: ...
def set_isa(name: str, /) -> None: ...
def empty(shape: tuple[int, ...], is_double: bool, /) -> Array:
    """An array of undefined contents, float64 or float32, in recycled memory: see `new_result`."""

def memory_stats() -> dict[str, int]: ...
def empty_cache() -> None: ...
def build_info() -> dict[str, str]: ...
def has_cuda() -> bool: ...
def cuda_status() -> str: ...

# ---- recurrent (bindings/recurrent.cpp) ----------------------------------------------------------
# options: (op, nonlinearity, num_layers, bidirectional, batch_first).
RecurrentOptions = tuple[str, str, int, bool, bool]
# masks of dropout between the layers, the mask of recurrent dropout, checkpoint_every, eps
RecurrentExtra = tuple[Sequence[Array] | None, Array | None, int | None, float | None]

class KeptWeights:
    """Packed weights of a recurrent layer, kept between calls with the same values."""

    @property
    def nbytes(self) -> int: ...

def recurrent_forward(
    options: RecurrentOptions,
    input: Array,
    h0: Array | None,
    c0: Array | None,
    weights: Sequence[Array],
    lengths: Array | None,
    extra: RecurrentExtra | None,
    keep: bool,
    kept: KeptWeights | None = None,
    /,
) -> tuple[Array | None, Array, Array | None, tuple[Array, ...] | None]: ...
def recurrent_backward(
    options: RecurrentOptions,
    input: Array,
    h0: Array | None,
    c0: Array | None,
    weights: Sequence[Array],
    lengths: Array | None,
    extra: RecurrentExtra | None,
    saved: tuple[Array, ...],
    grads: tuple[Array | None, Array | None, Array | None],
    wanted: tuple[bool, ...],
    /,
) -> tuple[Array | None, ...]: ...
