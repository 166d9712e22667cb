// The contract between the ops (which check) and the kernels (which assume).
//
// Plain structs and one table of function pointers per dtype. No inline functions, no default
// member initialisers: this header is compiled into every ISA build, and an inline function emitted
// there could be linked into the baseline.
//
// All arrays are C-contiguous, 64-bit indexed, and do not overlap unless a comment says so.
#pragma once
#include "core/kept.h"
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

// Products of one shape: number (i, j) of count[0] x count[1] has matrices that begin at
// i * a[0] + j * a[1] and i * b[0] + j * b[1], and the (i * count[1] + j)-th m x ldc elements of C.
struct GemmBatches {
    i64 count[2];
    i64 a[2], b[2];  // 0 where all share a matrix
};

// ---- conv ----------------------------------------

// How a convolution or its input gradient is computed; ops/conv_plan.cpp chooses.
enum class ConvAlgorithm : int {
    implicit_gemm,  // the im2col product, its right-hand matrix made block by block
    winograd,       // minimal filtering: 3 x 3 and 5 x 5, stride and dilation 1
    direct,         // no product: one or few channels a group
};

// Up to so many source (or destination) channels a group, direct kernels beat a matrix product.
constexpr i64 kFewChannels = 4;

// Spatial axes are always three: depth, height, width; axes a call does not have are of size 1 with
// kernel 1, stride 1, dilation 1, padding 0.
struct ConvParams {
    i64 batch, groups;
    i64 in_channels, out_channels;  // totals over all groups
    i64 in_size[3], out_size[3];
    i64 kernel[3], stride[3], dilation[3];
    i64 pad[3];  // zeros in front of each axis; those behind follow from out_size
    ConvAlgorithm algorithm;
    const void* packed = nullptr;  // conv_forward's weights once more, as conv_pack made them
};

// A form of the weights that a forward pass makes before it uses them; `size` elements.
struct ConvPacking {
    enum Form : int { none, winograd, channel_lanes } form;
    i64 size;
};

// ---- pool ----------------------------------------

struct PoolParams {
    i64 planes;  // batch * channels
    i64 in_size[3], out_size[3];
    i64 kernel[3], stride[3], dilation[3], pad[3];
};

// Averages over windows that are listed: output o of axis a covers inputs [begin[a][o], end[a][o]).
// Regular windows, adaptive ones and whole planes are all of this kind.
struct AvgPoolParams {
    i64 planes;
    i64 in_size[3], out_size[3];
    const i64 *begin[3], *end[3];
    // What the sum of a window is divided by: the product over the axes of count[a][o], or, where
    // that is null, `divisor`.
    const i64* count[3];
    double divisor;
    // Windows along the last axis are [o * stride - pad, o * stride - pad + kernel), cut to the
    // input; kernel is 0 where they follow no such rule.
    i64 kernel, stride, pad;
};

// ---- norm ----------------------------------------

struct LayerNormParams {
    i64 rows, size;
    double eps;
    bool rms;  // rms_norm: no mean is taken away
};

struct GroupNormParams {
    i64 batch, groups, channels, inner;
    double eps;
};

struct BatchNormParams {
    i64 outer, channels, inner;
    bool training;  // backward: the statistics are those of x
    bool relu;      // y = relu(normalised)
};

// ---- embedding ----------------------------------------

struct RotaryParams {
    i64 batch, heads, length, width;                 // width: of a head
    i64 batch_stride, head_stride, position_stride;  // of x and y, in elements
    i64 rotated;       // the first `rotated` of the width are turned, the rest copied
    bool interleaved;  // pairs are neighbours (2i, 2i + 1), else (i, i + rotated / 2)
    bool inverse;      // turned back: the gradient
};

// ---- activation ----------------------------------------

// a and b are what the function is given besides x.
enum class Unary : int {
    sigmoid,  // backward reads y
    tanh,     // backward reads y
    gelu,     // the rest read x
    gelu_tanh,
    silu,
    mish,
    leaky_relu,  // a: slope
    elu,         // a: alpha * scale, b: scale
    softplus,    // a: beta, b: threshold
    logsigmoid,
    hardsigmoid,
    hardswish,
    hardtanh,  // a, b: limits
};

struct UnaryParams {
    Unary function;
    i64 size;
    double a, b;
};

// ---- unfold / fold share ConvParams (groups 1, out_channels unused)
// ----------------------------------------

// ---- recurrent ----------------------------------------

enum class Cell : int { rnn_tanh, rnn_relu, rnn_identity, lstm, gru, norm_lstm };

// One direction of one layer over a whole sequence.
//
// Gates stand in the order i, f, g, o (LSTM) or r, z, n (GRU), `hidden` rows of the weights each.
// norm_lstm is the LSTM whose two products and cell are layer-normalised.
// The kernel works on rows: the steps that exist, (t, sequence) with time outermost and, where
// lengths differ, the longest sequence first. `rows` is how many there are.
template <class T>
struct RecurrentParams {
    Cell cell;
    bool reverse;  // from each sequence's own end to its beginning
    i64 steps, batch, rows;
    i64 inputs, hidden;
    i64 outputs;    // values of h: `hidden`, or the size that w_hr projects to (LSTM only)
    i64 gates_row;  // from one row of the reserve's gates to the next: at least their number
    // Both null if all sequences have `steps` steps: how many are longer than t, for each t; and
    // the sequences from the longest to the shortest.
    const i64 *active, *order;
    const T* x;  // sequence b at step t: x[t * x_step + b * x_row ...], `inputs` values
    i64 x_step, x_row;
    const T *w_ih, *w_hh;  // (gates * hidden, inputs), (gates * hidden, outputs)
    const T *b_ih, *b_hh;  // gates * hidden values, or both null
    const T* w_hr;         // (outputs, hidden) or null
    const T *h0, *c0;      // (batch, outputs), (batch, hidden); null means zeros
    KeptMatrix* kept;      // three, for w_ih, w_hh and w_hr packed (forward only), or null
    // In the place of w_ih and w_hh: bfloat16. For float only, and only forward.
    const BFloat16 *w_ih_bf16, *w_hh_bf16;
    // (batch, outputs) or null: what multiplies h on its way into W_hh, the same at every step.
    const T* mask;
    // norm_lstm only: 4 * hidden, 4 * hidden, hidden and hidden values, the last one or null.
    const T *gain_ih, *gain_hh, *gain_c, *bias_c;
    double eps;
    // Steps in the order of the recurrence, rising from 0 to `steps`: backward adds up the weights'
    // gradients block by block (block_count + 1 bounds). Forward does not look at them.
    const i64* blocks;
    i64 block_count;
    // Checkpoints: forward keeps the states at the beginning of these segments (segment_count + 1
    // bounds), backward runs each again. A block that meets a segment holds it, or lies inside it.
    // segment_count is 0 where everything is kept.
    const i64* segments;
    i64 segment_count;
};

template <class T>
struct RecurrentResults {
    T* out;  // `outputs` values at t * out_step + b * out_row, 0 behind a sequence's end; or null
    i64 out_step, out_row;
    T *h_n, *c_n;  // (batch, outputs), (batch, hidden): at each sequence's own end; c_n LSTM only
    // What backward needs, or null: (rows, gates_row) the gates' values (of a GRU r, z, n and
    // U h + b_hn; of an RNN h; of 16-bit arrays all before sigmoid and tanh), then for the LSTM
    // (rows, hidden) c of the step before, then (rows, outputs) h of the step before. norm_lstm:
    // then (rows, gates_row) the normalised product with x, (rows, gates_row) that with h, (rows,
    // 2) what they were multiplied by, of 16-bit arrays as float. With checkpoints: (segments,
    // batch, outputs) h, then of an LSTM (segments, batch, hidden) c, of 16-bit arrays as float.
    T* reserve;
};

// Gradients; what is null is not given (zero) or not wanted.
template <class T>
struct RecurrentGrads {
    const T* reserve;
    const T* d_out;  // laid out by out_step, out_row
    i64 out_step, out_row;
    const T *d_h_n, *d_c_n;
    T* d_x;        // laid out as x
    bool d_x_add;  // add to d_x what it holds: the other direction's part
    T *d_w_ih, *d_w_hh, *d_b_ih, *d_b_hh, *d_w_hr;
    T *d_gain_ih, *d_gain_hh, *d_gain_c, *d_bias_c;
    T *d_h0, *d_c0;
};

// ---- loss ----------------------------------------

enum class Reduction : int { none, mean, sum };

// Logits are (outer, classes, inner): class axis 1 of (N, C, d1, ...); inner = 1 for plain (N, C).
template <class T>
struct CrossEntropyParams {
    i64 outer, classes, inner;
    const i64* target;                  // (outer, inner), checked: a class, or ignore_index
    const Accumulate<T>* class_weight;  // classes values or null
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
    // In the place of key and value, if it has data: a cache in half the bytes. Forward and weights
    // of float only.
    HeadArray<const BFloat16> half_key, half_value;
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
    const Accumulate<T>* stats;       // of the forward
    HeadArray<T> query, key, value;   // key and value with kv_heads
    T* bias;                          // or null
    i64 bias_stride[4];               // of batch, head, query, key; 0 where it is broadcast
    // The weights were the result: output holds them, grad is theirs, both (batch, heads, queries,
    // keys). value_dim is 0, and no value is read.
    bool of_weights;
};

// ---- optim ----------------------------------------

template <class T>
struct FlatArray {
    i64 size;
    T* data;
};

// What one update of a list of parameters has in common, and what is of each: `size` elements;
// state arrays have the parameter's shape. An optional array is null for all of them or for none.
struct SgdOptions {
    double lr, momentum, dampening, weight_decay;
    bool nesterov, maximize;
};
template <class T>
struct SgdTensor {
    i64 size;
    T* param;
    const T* grad;
    T* momentum_buffer;  // null without momentum
    bool first_step;     // momentum_buffer is uninitialised and takes the gradient itself
};

struct AdamOptions {
    double lr, beta1, beta2, eps, weight_decay;
    bool decoupled_decay;  // AdamW: decay the parameter, not the gradient
    bool maximize;
};
template <class T>
struct AdamTensor {
    i64 size;
    T* param;
    const T* grad;
    T *exp_avg, *exp_avg_sq;
    T* max_exp_avg_sq;  // null without amsgrad
    i64 step;           // 1 at the first update
};

struct RmspropOptions {
    double lr, alpha, eps, weight_decay, momentum;
    bool maximize;
};
template <class T>
struct RmspropTensor {
    i64 size;
    T* param;
    const T* grad;
    T* square_avg;
    T* grad_avg;         // null unless centered
    T* momentum_buffer;  // null without momentum
};

struct AdagradOptions {
    double eps, weight_decay;
    bool maximize;
};
template <class T>
struct AdagradTensor {
    i64 size;
    T* param;
    const T* grad;
    T* sum;     // of squared gradients
    double lr;  // of this update, after its decay
};

// ---- the table ----------------------------------------

// Tables of float and double exist on both devices, those of 16-bit floats on GPUs only. There
// weights, biases and their gradients are of the arrays' type, statistics and losses float.

template <class T>
struct KernelTable {
    void (*gemm)(const GemmParams<T>&);
    // Without biases.
    void (*gemm_batches)(const GemmParams<T>&, const GemmBatches&);

    // x (N, C, D, H, W); w (O, C/groups, KD, KH, KW); bias O values or null; y (N, O, OD, OH, OW).
    void (*conv_forward)(const ConvParams&, const T* x, const T* w, const T* bias, T* y);
    // How conv_forward would have the weights for these shapes, and the copy in that form.
    ConvPacking (*conv_packing)(const ConvParams&);
    void (*conv_pack)(const ConvParams&, const T* w, T* packed);
    // bias: in_channels values that are added to dx, or null (the transposed convolution has one).
    void (*conv_backward_input)(const ConvParams&, const T* dy, const T* w, const T* bias, T* dx);
    void (*conv_backward_weight)(const ConvParams&, const T* x, const T* dy, T* dw);
    // db[o] = sum of dy over batch and space; `inner` = out pixels.
    void (*bias_grad)(i64 outer, i64 channels, i64 inner, const T* dy, T* db);

    // columns (N, C * kernel taps, out pixels) <-> x (N, C, D, H, W); fold adds what overlaps.
    void (*unfold)(const ConvParams&, const T* x, T* columns);
    void (*fold)(const ConvParams&, const T* columns, T* x);

    // x (batch, rows, columns) -> y (batch, columns, rows).
    void (*transpose_matrices)(i64 batch, i64 rows, i64 columns, const T* x, T* y);

    // argmax (may be null): which tap of the window won, counted in row-major order, in the
    // smallest integer that holds it: `argmax_bytes` is 1, 2 or 4.
    void (*max_pool_forward)(const PoolParams&, const T* x, T* y, void* argmax, int argmax_bytes);
    void (*max_pool_backward)(const PoolParams&, const T* dy, const void* argmax, int argmax_bytes,
                              T* dx);

    void (*recurrent_forward)(const RecurrentParams<T>&, const RecurrentResults<T>&);
    void (*recurrent_backward)(const RecurrentParams<T>&, const RecurrentGrads<T>&);
    // y = mask ? x * mask : 0 for x, y (outer, repeat, inner), mask (outer, inner); what is masked
    // out is not looked at.
    void (*apply_mask)(i64 outer, i64 repeat, i64 inner, const T* x, const T* mask, T* y);

    void (*relu_forward)(i64 size, const T* x, T* y);
    // y is the forward's output (or input: the sign test is the same); NaN passes the gradient on.
    void (*relu_backward)(i64 size, const T* dy, const T* y, T* dx);

    // x, y, dy, dx flat; saved is what the function's backward reads, x or y.
    void (*unary_forward)(const UnaryParams&, const T* x, T* y);
    void (*unary_backward)(const UnaryParams&, const T* dy, const T* saved, T* dx);
    // x (outer, channels, inner), slope (channels): y = x where positive, else slope * x.
    void (*prelu_forward)(i64 outer, i64 channels, i64 inner, const T* x, const T* slope, T* y);
    void (*prelu_backward)(i64 outer, i64 channels, i64 inner, const T* dy, const T* x,
                           const T* slope, T* dx, T* dslope);

    // x, y (planes, D, H, W) and (planes, OD, OH, OW).
    void (*avg_pool_forward)(const AvgPoolParams&, const T* x, T* y);
    void (*avg_pool_backward)(const AvgPoolParams&, const T* dy, T* dx);
    // Maximum of each window that begin and end list, and its position in the plane.
    void (*adaptive_max_pool)(const AvgPoolParams&, const T* x, T* y, i64* indices);
    // y[plane, indices[plane, i]] = (or +=) x[plane, i]; y is cleared before. indices are checked.
    void (*scatter_planes)(i64 planes, i64 count, i64 size, bool add, const T* x,
                           const i64* indices, T* y);
    void (*gather_planes)(i64 planes, i64 count, i64 size, const T* x, const i64* indices, T* y);

    // x, y (rows, size); weight, bias (size) or null; stats (3, rows): mean, low, rstd. With a
    // residual (rows, size), sum = x + residual is written and normalised.
    void (*layer_norm_forward)(const LayerNormParams&, const T* x, const T* residual,
                               const T* weight, const T* bias, T* sum, T* y, Accumulate<T>* stats);
    // dw, db (size) or null.
    void (*layer_norm_backward)(const LayerNormParams&, const T* dy, const T* x, const T* weight,
                                const Accumulate<T>* stats, T* dx, T* dw, T* db);
    // x, y (batch, channels, inner); stats (3, batch * groups).
    void (*group_norm_forward)(const GroupNormParams&, const T* x, const T* weight, const T* bias,
                               T* y, Accumulate<T>* stats);
    void (*group_norm_backward)(const GroupNormParams&, const T* dy, const T* x, const T* weight,
                                const Accumulate<T>* stats, T* dx, T* dw, T* db);
    // x, y (outer, channels, inner); mean, low, variance (channels); stats (3, channels). `low` is
    // what rounding the mean left over; outer * inner > 0.
    void (*batch_norm_stats)(const BatchNormParams&, const T* x, Accumulate<T>* mean,
                             Accumulate<T>* low, Accumulate<T>* variance);
    void (*batch_norm_apply)(const BatchNormParams&, const T* x, const Accumulate<T>* stats,
                             const T* weight, const T* bias, T* y);
    // y is read where relu is set.
    void (*batch_norm_backward)(const BatchNormParams&, const T* dy, const T* x, const T* y,
                                const Accumulate<T>* stats, const T* weight, T* dx, T* dw, T* db);

    // y (count, width) = the rows of table (rows, width) that ids (count) name; ids are checked.
    void (*embedding_forward)(i64 count, i64 width, const i64* ids, const T* table, T* y);
    // dtable row r = sum of dy over order[starts[r] ... starts[r + 1]), in that order, times
    // scale[r] (or 1, where scale is null).
    void (*embedding_backward)(i64 rows, i64 width, const i64* starts, const i64* order,
                               const T* dy, const Accumulate<T>* scale, T* dtable);
    // cos, sin: entries (rotated / 2) of position `rows[b, t]`, or (b, t) where rows is null.
    void (*rotary)(const RotaryParams&, const T* x, const Accumulate<T>* cos,
                   const Accumulate<T>* sin, const i64* rows, T* y);

    // x, y (outer, classes, inner).
    void (*log_softmax_forward)(i64 outer, i64 classes, i64 inner, const T* x, T* y);
    void (*log_softmax_backward)(i64 outer, i64 classes, i64 inner, const T* dy, const T* y, T* dx);
    void (*softmax_forward)(i64 outer, i64 classes, i64 inner, const T* x, T* y);
    void (*softmax_backward)(i64 outer, i64 classes, i64 inner, const T* dy, const T* y, T* dx);

    // losses (outer, inner) and weights (outer, inner): the loss of each position and what it
    // counts in the mean's denominator (class weight, 0 where ignored); log_prob (same shape as x)
    // or null.
    void (*cross_entropy_forward)(const CrossEntropyParams<T>&, const T* x, Accumulate<T>* losses,
                                  Accumulate<T>* weights);
    // dx = d(loss)/dx * scale[position] (scale is (outer, inner)).
    void (*cross_entropy_backward)(const CrossEntropyParams<T>&, const T* x,
                                   const Accumulate<T>* scale, T* dx);

    // output (batch, heads, queries, value_dim). stats (2, batch, heads, queries) or null: what
    // backward needs of each row, the maximum of its scores (in base 2 unless bias or softcap) and
    // 1 / the sum of the exponentials above it (0: no key).
    void (*attention_forward)(const AttentionParams<T>&, const HeadArray<T>& output,
                              Accumulate<T>* stats);
    void (*attention_backward)(const AttentionParams<T>&, const AttentionGradients<T>&);
    // weights (batch, heads, queries, keys): what the forward multiplies the values with.
    void (*attention_weights)(const AttentionParams<T>&, const Accumulate<T>* stats, T* weights);

    // Updates of `count` parameters, in the order of the list where arrays of several share memory.
    void (*sgd_step)(const SgdOptions&, i64 count, const SgdTensor<T>*);
    void (*adam_step)(const AdamOptions&, i64 count, const AdamTensor<T>*);
    void (*rmsprop_step)(const RmspropOptions&, i64 count, const RmspropTensor<T>*);
    void (*adagrad_step)(const AdagradOptions&, i64 count, const AdagradTensor<T>*);
    // *total = sum of (x * scale)^2 over all arrays, in double; total lies where the arrays do.
    void (*sum_of_squares)(i64 count, const FlatArray<const T>*, double scale, double* total);
    // x *= factor for all arrays, which share no memory.
    void (*scale_arrays)(i64 count, const FlatArray<T>*, double factor);

    // For tests: a value only this ISA build would return (its name).
    const char* isa;
};

}  // namespace fusednn
