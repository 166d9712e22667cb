// The contract between the ops (which check) and the kernels (which assume).
//
// Plain structs and one table of function pointers per dtype. No inline functions, no default
// member initialisers: this header is compiled into every ISA build, and an inline function emitted
// there could be linked into the baseline.
//
// All arrays are C-contiguous, 64-bit indexed, and do not overlap unless a comment says so.
#pragma once
#include "core/types.h"

namespace fusednn {

// ---- dense ----------------------------------------

enum class Activation : int { none, relu };

// C (m x n, row stride ldc) = act(A B + bias), or C += A B when `accumulate`.
// a(i, p) = a[i * a_row + p * a_col], b(p, j) = b[p * b_row + j * b_col].
template <class T>
struct GemmParams {
    i64 m, n, k;
    const T* a;
    i64 a_row, a_col;
    const T* b;
    i64 b_row, b_col;
    T* c;
    i64 ldc;
    bool accumulate;
    const T* row_bias;  // m values or null
    const T* col_bias;  // n values or null
    Activation activation;
};

// ---- conv ----------------------------------------

// How a convolution or its input gradient is computed; ops/conv_plan.cpp chooses.
enum class ConvAlgorithm : int {
    implicit_gemm,  // the im2col product, its right-hand matrix made block by block
    winograd,       // minimal filtering: 3 x 3 and 5 x 5, stride and dilation 1
    direct,         // no product: one input channel a group
};

// Spatial axes are always three: depth, height, width; axes a call does not have are of size 1 with
// kernel 1, stride 1, dilation 1, padding 0.
struct ConvParams {
    i64 batch, groups;
    i64 in_channels, out_channels;  // totals over all groups
    i64 in_size[3], out_size[3];
    i64 kernel[3], stride[3], dilation[3];
    i64 pad[3];  // zeros in front of each axis; those behind follow from out_size
    ConvAlgorithm algorithm;
};

// ---- pool ----------------------------------------

struct PoolParams {
    i64 planes;  // batch * channels
    i64 in_size[3], out_size[3];
    i64 kernel[3], stride[3], dilation[3], pad[3];
};

// ---- unfold / fold share ConvParams (groups 1, out_channels unused)
// ----------------------------------------

// ---- loss ----------------------------------------

enum class Reduction : int { none, mean, sum };

// Logits are (outer, classes, inner): class axis 1 of (N, C, d1, ...); inner = 1 for plain (N, C).
template <class T>
struct CrossEntropyParams {
    i64 outer, classes, inner;
    const i64* target;      // (outer, inner), checked: a class, or ignore_index
    const T* class_weight;  // classes values or null
    i64 ignore_index;
    double label_smoothing;  // in [0, 1]
    bool input_is_log_prob;  // nll_loss: the input already holds log-probabilities
};

// ---- attention ----------------------------------------

// Element (b, h, t, i) stands at data[b * batch + h * head + t * row + i].
template <class T>
struct HeadArray {
    T* data;
    i64 batch, head, row;
};

// softmax(scores) V with scores[i, j] = softcap(scale * <query i, key j>) + bias[i, j] for each
// head. Which keys query i sees: of its sequence those j with i + offset - left <= j <= i + offset
// + right and mask[i, j] != 0; offset is the surplus of keys if `lower_right`, else 0.
template <class T>
struct AttentionParams {
    i64 batch, heads, kv_heads;  // heads is a multiple of kv_heads: h reads h / (heads / kv_heads)
    i64 queries, keys, dim, value_dim;
    HeadArray<const T> query, key, value;
    const std::uint8_t* mask;  // or null; strides of batch, head, query, key, the last one 0 or 1
    i64 mask_stride[4];
    const T* bias;  // likewise
    i64 bias_stride[4];
    bool lower_right;
    i64 left, right;
    const i64 *query_lengths, *key_lengths;  // (batch), or null: rows that are real
    i64 sequences;                           // packed into the axes of queries and keys; else 1
    const i64 *query_starts, *key_starts;    // sequences + 1 each, or null
    double scale;
    double softcap;  // 0: none; else cap * tanh(score / cap)
    double dropout;  // probability that a weight becomes 0
    std::uint64_t dropout_key;
};

// The results of attention's backward and what it reads besides the forward's arguments.
template <class T>
struct AttentionGradients {
    HeadArray<const T> output, grad;  // of the forward, and of its output
    const T* stats;                   // of the forward
    HeadArray<T> query, key, value;   // key and value with kv_heads
    T* bias;                          // or null
    i64 bias_stride[4];               // of batch, head, query, key; 0 where it is broadcast
};

// ---- optim ----------------------------------------

// One parameter tensor of `size` elements; state arrays have its shape.
template <class T>
struct SgdParams {
    i64 size;
    T* param;
    const T* grad;
    T* momentum_buffer;  // null without momentum
    bool first_step;     // momentum_buffer is uninitialised and takes the gradient itself
    double lr, momentum, dampening, weight_decay;
    bool nesterov, maximize;
};

template <class T>
struct AdamParams {
    i64 size;
    T* param;
    const T* grad;
    T *exp_avg, *exp_avg_sq;
    T* max_exp_avg_sq;  // null without amsgrad
    double lr, beta1, beta2, eps, weight_decay;
    i64 step;              // 1 at the first update
    bool decoupled_decay;  // AdamW: decay the parameter, not the gradient
    bool maximize;
};

template <class T>
struct RmspropParams {
    i64 size;
    T* param;
    const T* grad;
    T* square_avg;
    T* grad_avg;         // null unless centered
    T* momentum_buffer;  // null without momentum
    double lr, alpha, eps, weight_decay, momentum;
    bool maximize;
};

template <class T>
struct AdagradParams {
    i64 size;
    T* param;
    const T* grad;
    T* sum;     // of squared gradients
    double lr;  // of this update, after its decay
    double eps, weight_decay;
    bool maximize;
};

// ---- the table ----------------------------------------

template <class T>
struct KernelTable {
    void (*gemm)(const GemmParams<T>&);

    // x (N, C, D, H, W); w (O, C/groups, KD, KH, KW); bias O values or null; y (N, O, OD, OH, OW).
    void (*conv_forward)(const ConvParams&, const T* x, const T* w, const T* bias, T* y);
    void (*conv_backward_input)(const ConvParams&, const T* dy, const T* w, T* dx);
    void (*conv_backward_weight)(const ConvParams&, const T* x, const T* dy, T* dw);
    // db[o] = sum of dy over batch and space; `inner` = out pixels.
    void (*bias_grad)(i64 outer, i64 channels, i64 inner, const T* dy, T* db);

    // columns (N, C * kernel taps, out pixels) <-> x (N, C, D, H, W); fold adds what overlaps.
    void (*unfold)(const ConvParams&, const T* x, T* columns);
    void (*fold)(const ConvParams&, const T* columns, T* x);

    // argmax (may be null): which tap of the window won, counted in row-major order, in the
    // smallest integer that holds it: `argmax_bytes` is 1, 2 or 4.
    void (*max_pool_forward)(const PoolParams&, const T* x, T* y, void* argmax, int argmax_bytes);
    void (*max_pool_backward)(const PoolParams&, const T* dy, const void* argmax, int argmax_bytes,
                              T* dx);

    void (*relu_forward)(i64 size, const T* x, T* y);
    // y is the forward's output (or input: the sign test is the same); NaN passes the gradient on.
    void (*relu_backward)(i64 size, const T* dy, const T* y, T* dx);

    // x, y (outer, classes, inner).
    void (*log_softmax_forward)(i64 outer, i64 classes, i64 inner, const T* x, T* y);
    void (*log_softmax_backward)(i64 outer, i64 classes, i64 inner, const T* dy, const T* y, T* dx);
    void (*softmax_forward)(i64 outer, i64 classes, i64 inner, const T* x, T* y);
    void (*softmax_backward)(i64 outer, i64 classes, i64 inner, const T* dy, const T* y, T* dx);

    // losses (outer, inner) and weights (outer, inner): the loss of each position and what it
    // counts in the mean's denominator (class weight, 0 where ignored); log_prob (same shape as x)
    // or null.
    void (*cross_entropy_forward)(const CrossEntropyParams<T>&, const T* x, T* losses, T* weights);
    // dx = d(loss)/dx * scale[position] (scale is (outer, inner)).
    void (*cross_entropy_backward)(const CrossEntropyParams<T>&, const T* x, const T* scale, T* dx);

    // output (batch, heads, queries, value_dim). stats (2, batch, heads, queries) or null: what
    // backward needs of each row, the maximum of its scores (in base 2 unless bias or softcap) and
    // 1 / the sum of the exponentials above it (0: no key).
    void (*attention_forward)(const AttentionParams<T>&, const HeadArray<T>& output, T* stats);
    void (*attention_backward)(const AttentionParams<T>&, const AttentionGradients<T>&);
    // weights (batch, heads, queries, keys): what the forward multiplies the values with.
    void (*attention_weights)(const AttentionParams<T>&, const T* stats, T* weights);

    void (*sgd_step)(const SgdParams<T>&);
    void (*adam_step)(const AdamParams<T>&);
    void (*rmsprop_step)(const RmspropParams<T>&);
    void (*adagrad_step)(const AdagradParams<T>&);

    // For tests: a value only this ISA build would return (its name).
    const char* isa;
};

}  // namespace fusednn
