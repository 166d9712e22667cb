// The layer-normalised LSTM cell, forward and backward; cpu/recurrent/norm_cell.h has the formulas
// and their source. A block has a row: what is summed over the units is summed by all its threads.
#include "cuda/recurrent/forward.h"

#include "cuda/reduce.h"

namespace fusednn::cuda {

namespace {

constexpr int kThreads = 256;

// Sums over the block, one after the other, by one copy of the code.
template <class T, class... Rest>
FUSEDNN_DEVICE void sums_over_block(T& first, Rest&... rest) {
    T* const all[] = {&first, &rest...};
#pragma unroll 1
    for (int turn = 0; turn < 1 + int(sizeof...(rest)); ++turn) {
        T value = first;
#pragma unroll
        for (int i = 1; i < 1 + int(sizeof...(rest)); ++i) value = turn == i ? *all[i] : value;
        value = block_reduce<kThreads>(value, Add());
#pragma unroll
        for (int i = 0; i < 1 + int(sizeof...(rest)); ++i) *all[i] = turn == i ? value : *all[i];
    }
}

// LN(v) = (v - mean - low) * scale; low is what rounding the mean left over.
template <class T>
struct RowMoments {
    T mean, low, scale;

    FUSEDNN_DEVICE RowMoments() : mean(0), low(0), scale(0) {}

    // Of `count` values that are this block's.
    FUSEDNN_DEVICE RowMoments(const T* x, i64 count, T eps) {
        T sum = T(0);
#pragma unroll 1
        for (i64 i = threadIdx.x; i < count; i += kThreads) sum += x[i];
        sums_over_block(sum);
        mean = sum / T(count);
        T rest = T(0), squares = T(0);
#pragma unroll 1
        for (i64 i = threadIdx.x; i < count; i += kThreads) {
            const T d = x[i] - mean;
            rest += d;
            squares += d * d;
        }
        sums_over_block(rest, squares);
        low = rest / T(count);
        const T variance = squares / T(count) - low * low;
        scale = T(1) / sqrt((variance > T(0) || variance != variance ? variance : T(0)) + eps);
    }
    FUSEDNN_DEVICE T normalised(T v) const { return ((v - mean) - low) * scale; }
};

template <class T>
FUSEDNN_DEVICE void forward_row(const NormStep<T>& s, i64 row) {
    const i64 hidden = s.hidden;
    T *by_x = s.by_x + row * s.gates_row, *by_h = s.by_h + row * s.h_row;
    T* gates = s.gates ? s.gates + row * s.gates_row : nullptr;
    RowMoments<T> of_x, of_h;
#pragma unroll 1
    for (int turn = 0; turn < 2; ++turn) {
        of_x = of_h;
        of_h = RowMoments<T>(turn ? by_h : by_x, 4 * hidden, s.eps);
    }
    T* c = s.c + row * hidden;
    // Where o waits for the moments of c.
    T* o = gates ? gates + 3 * hidden : by_x + 3 * hidden;
#pragma unroll 1
    for (i64 unit = threadIdx.x; unit < hidden; unit += kThreads) {
        T gate[4];
#pragma unroll
        for (int g = 0; g < 4; ++g) {
            const i64 at = g * hidden + unit;
            const T x = of_x.normalised(by_x[at]), h = of_h.normalised(by_h[at]);
            if (gates) {
                by_x[at] = x;
                by_h[at] = h;
            }
            gate[g] = s.gain_x[at] * x + (s.gain_h[at] * h + (s.bias ? s.bias[at] : T(0)));
            gate[g] = g == 2 ? tanh(gate[g]) : sigmoid_of(gate[g]);
            if (gates && g < 3) gates[at] = gate[g];
        }
        o[unit] = gate[3];
        const T before = c[unit];
        if (gates) s.c_before[row * hidden + unit] = before;
        c[unit] = gate[1] * before + gate[0] * gate[2];
    }
    const RowMoments<T> of_c(c, hidden, s.eps);
#pragma unroll 1
    for (i64 unit = threadIdx.x; unit < hidden; unit += kThreads) {
        const T bias = s.bias_c ? s.bias_c[unit] : T(0);
        s.state.put(row, unit, o[unit] * tanh(s.gain_c[unit] * of_c.normalised(c[unit]) + bias));
    }
    if (gates && threadIdx.x == 0) {
        s.scale[2 * row] = of_x.scale;
        s.scale[2 * row + 1] = of_h.scale;
    }
}

template <class T>
__global__ void __launch_bounds__(kThreads) norm_step_kernel(NormStep<T> s, i64 rows) {
#pragma unroll 1
    for (i64 row = blockIdx.x; row < rows; row += gridDim.x) forward_row(s, row);
}

// Through LN: scale * (dy - mean(dy) - y * mean(dy * y)); the means are given.
template <class T>
FUSEDNN_DEVICE T through_norm(T dy, T y, T mean, T mean_y, T scale) {
    return scale * ((dy - mean) - y * mean_y);
}

template <class T>
FUSEDNN_DEVICE void backward_row(const NormBackStep<T>& s, i64 row) {
    const i64 hidden = s.hidden, at = row * hidden, b = s.sequence ? s.sequence[row] : row;
    const T* gates = s.gates + row * s.gates_row;
    const T *by_x = s.by_x + row * s.gates_row, *by_h = s.by_h + row * s.gates_row;
    const T *before = s.c_before + at, *dh = s.dh + at;
    const T* d_out = s.d_out ? s.d_out + b * s.out_row : nullptr;
    T *d_gates = s.d_gates + 4 * at, *d_cell = s.d_cell + at, *dc = s.dc + at;
    // 1: c once more, for a while where d_gain_c will be.
    T* c = s.d_gain_c + at;
#pragma unroll 1
    for (i64 u = threadIdx.x; u < hidden; u += kThreads) {
        c[u] = gates[hidden + u] * before[u] + gates[u] * gates[2 * hidden + u];
    }
    const RowMoments<T> of_c(c, hidden, s.eps);
    // 2: h = o tanh(gain_c LN(c) + bias_c), up to the means that LN(c) needs; and those of the
    // products' gradients begin.
    T sum_c = T(0), sum_c_y = T(0), sum_x = T(0), sum_x_y = T(0), sum_h = T(0), sum_h_y = T(0);
    const auto put_gate = [&](i64 gate, T d) {
        d_gates[gate] = d;
        const T dx = d * s.gain_x[gate], dy = d * s.gain_h[gate];
        sum_x += dx;
        sum_h += dy;
        sum_x_y += dx * by_x[gate];
        sum_h_y += dy * by_h[gate];
    };
#pragma unroll 1
    for (i64 u = threadIdx.x; u < hidden; u += kThreads) {
        const T y = of_c.normalised(c[u]), gain = s.gain_c[u], o = gates[3 * hidden + u];
        const T squashed = tanh(gain * y + (s.bias_c ? s.bias_c[u] : T(0)));
        const T d = d_out ? dh[u] + d_out[u] : dh[u];
        const T d_y = through_tanh(d * o, squashed), scaled = d_y * gain;
        d_cell[u] = d_y;
        sum_c += scaled;
        sum_c_y += scaled * y;
        put_gate(3 * hidden + u, through_sigmoid(d * squashed, o));
    }
    sums_over_block(sum_c, sum_c_y);
    const T mean_c = sum_c / T(hidden), mean_c_y = sum_c_y / T(hidden);
    // 3: c and the gates that made it.
#pragma unroll 1
    for (i64 u = threadIdx.x; u < hidden; u += kThreads) {
        const T y = of_c.normalised(c[u]), d_y = d_cell[u];
        const T i = gates[u], f = gates[hidden + u], g = gates[2 * hidden + u];
        const T d = dc[u] + through_norm(d_y * s.gain_c[u], y, mean_c, mean_c_y, of_c.scale);
        put_gate(u, through_sigmoid(d * g, i));
        put_gate(hidden + u, through_sigmoid(d * before[u], f));
        put_gate(2 * hidden + u, through_tanh(d * i, g));
        dc[u] = d * f;
        c[u] = d_y * y;
    }
    // 4: the products.
    const T count = T(4 * hidden);
    sums_over_block(sum_x, sum_x_y, sum_h, sum_h_y);
    const T mean_x = sum_x / count, mean_x_y = sum_x_y / count;
    const T mean_h = sum_h / count, mean_h_y = sum_h_y / count;
    const T scale_x = s.scale[2 * row], scale_h = s.scale[2 * row + 1];
    T *d_by_x = s.d_by_x + 4 * at, *d_by_h = s.d_by_h + 4 * at;
#pragma unroll 1
    for (i64 u = threadIdx.x; u < hidden; u += kThreads) {
#pragma unroll
        for (int g = 0; g < 4; ++g) {
            const i64 gate = g * hidden + u;
            const T d = d_gates[gate];
            d_by_x[gate] = through_norm(d * s.gain_x[gate], by_x[gate], mean_x, mean_x_y, scale_x);
            d_by_h[gate] = through_norm(d * s.gain_h[gate], by_h[gate], mean_h, mean_h_y, scale_h);
        }
    }
}

template <class T>
__global__ void __launch_bounds__(kThreads) norm_back_kernel(NormBackStep<T> s, i64 rows) {
#pragma unroll 1
    for (i64 row = blockIdx.x; row < rows; row += gridDim.x) backward_row(s, row);
}

}  // namespace

template <class T>
void norm_lstm_step(const NormStep<T>& s, i64 rows) {
    launch("norm_lstm_step", {blocks_for(rows, 1), kThreads}, norm_step_kernel<T>, s, rows);
}

template <class T>
void norm_lstm_step_back(const NormBackStep<T>& s, i64 rows) {
    launch("norm_lstm_step_back", {blocks_for(rows, 1), kThreads}, norm_back_kernel<T>, s, rows);
}

#define FUSEDNN_NORM_CELL(T)                                  \
    template void norm_lstm_step<T>(const NormStep<T>&, i64); \
    template void norm_lstm_step_back<T>(const NormBackStep<T>&, i64);
FUSEDNN_INSTANTIATE(FUSEDNN_NORM_CELL)

}  // namespace fusednn::cuda
