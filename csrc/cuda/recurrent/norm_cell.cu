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
    template <class Values>
    FUSEDNN_DEVICE RowMoments(const Values& x, i64 count, T eps) {
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
FUSEDNN_DEVICE T squashed_gate(int gate, T before) {
    return gate == 2 ? tanh(before) : sigmoid_of(before);
}

template <class T>
FUSEDNN_DEVICE void forward_row(const NormStep<T>& s, i64 row) {
    using Sum = Accumulate<T>;
    const i64 hidden = s.hidden;
    const bool keep = bool(s.gates);
    const Write<T> by_x = s.by_x + row * s.gates_row, by_h = s.by_h + row * s.h_row;
    RowMoments<Sum> of_x, of_h;
#pragma unroll 1
    for (int turn = 0; turn < 2; ++turn) {
        of_x = of_h;
        of_h = RowMoments<Sum>(Read<T>(turn ? by_h : by_x), 4 * hidden, s.eps);
    }
    const auto gate = [&](int g, i64 unit) {
        const i64 at = g * hidden + unit;
        const Sum x = of_x.normalised(Read<T>(by_x)[at]), h = of_h.normalised(Read<T>(by_h)[at]);
        const Sum before = s.gain_x[at] * x + (s.gain_h[at] * h + (s.bias ? s.bias[at] : Sum(0)));
        const Sum value = squashed_gate(g, before);
        if (keep) {
            by_x[at] = x;
            by_h[at] = h;
            s.gates[row * s.gates_row + at] = sizeof(T) == 2 ? before : value;
        }
        return value;
    };
    Sum* c = s.c + row * hidden;
#pragma unroll 1
    for (i64 unit = threadIdx.x; unit < hidden; unit += kThreads) {
        const Sum i = gate(0, unit), f = gate(1, unit), g = gate(2, unit);
        const Sum before = c[unit];
        if (keep) s.c_before[row * hidden + unit] = before;
        c[unit] = f * before + i * g;
    }
    const RowMoments<Sum> of_c(c, hidden, s.eps);
#pragma unroll 1
    for (i64 unit = threadIdx.x; unit < hidden; unit += kThreads) {
        const Sum o = gate(3, unit), bias = s.bias_c ? s.bias_c[unit] : Sum(0);
        s.state.put(row, unit, o * tanh(s.gain_c[unit] * of_c.normalised(c[unit]) + bias));
    }
    if (keep && threadIdx.x == 0) {
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
    using Sum = Accumulate<T>;
    const i64 hidden = s.hidden, at = row * hidden, b = s.sequence ? s.sequence[row] : row;
    const Read<T> gates = s.gates + row * s.gates_row;
    const Read<T> by_x = s.by_x + row * s.gates_row, by_h = s.by_h + row * s.gates_row;
    const Read<T> before = s.c_before + at;
    const Write<T> d_gates = s.d_gates + 4 * at;
    const Sum* dh = s.dh + at;
    Sum *d_cell = s.d_cell + at, *dc = s.dc + at;
    const auto gate = [&](int g, i64 u) {
        const Sum kept = gates[g * hidden + u];
        return sizeof(T) == 2 ? squashed_gate(g, kept) : kept;
    };
    // 1: c once more, for a while where d_gain_c will be.
    Sum* c = s.d_gain_c + at;
#pragma unroll 1
    for (i64 u = threadIdx.x; u < hidden; u += kThreads) {
        c[u] = gate(1, u) * before[u] + gate(0, u) * gate(2, u);
    }
    const RowMoments<Sum> of_c(c, hidden, s.eps);
    // 2: h = o tanh(gain_c LN(c) + bias_c), up to the means that LN(c) needs; and those of the
    // products' gradients begin.
    Sum sum_c = Sum(0), sum_c_y = Sum(0), sum_x = Sum(0), sum_x_y = Sum(0), sum_h = Sum(0),
        sum_h_y = Sum(0);
    const auto put_gate = [&](i64 gate, Sum d) {
        d_gates[gate] = d;
        const Sum dx = d * s.gain_x[gate], dy = d * s.gain_h[gate];
        sum_x += dx;
        sum_h += dy;
        sum_x_y += dx * by_x[gate];
        sum_h_y += dy * by_h[gate];
    };
#pragma unroll 1
    for (i64 u = threadIdx.x; u < hidden; u += kThreads) {
        const Sum y = of_c.normalised(c[u]), gain = s.gain_c[u], o = gate(3, u);
        const Sum squashed = tanh(gain * y + (s.bias_c ? s.bias_c[u] : Sum(0)));
        const Sum d = s.d_out ? dh[u] + s.d_out[b * s.out_row + u] : dh[u];
        const Sum d_y = through_tanh(d * o, squashed), scaled = d_y * gain;
        d_cell[u] = d_y;
        sum_c += scaled;
        sum_c_y += scaled * y;
        put_gate(3 * hidden + u, through_sigmoid(d * squashed, o));
    }
    sums_over_block(sum_c, sum_c_y);
    const Sum mean_c = sum_c / Sum(hidden), mean_c_y = sum_c_y / Sum(hidden);
    // 3: c and the gates that made it.
#pragma unroll 1
    for (i64 u = threadIdx.x; u < hidden; u += kThreads) {
        const Sum y = of_c.normalised(c[u]), d_y = d_cell[u];
        const Sum i = gate(0, u), f = gate(1, u), g = gate(2, u);
        const Sum d = dc[u] + through_norm(d_y * s.gain_c[u], y, mean_c, mean_c_y, of_c.scale);
        put_gate(u, through_sigmoid(d * g, i));
        put_gate(hidden + u, through_sigmoid(d * before[u], f));
        put_gate(2 * hidden + u, through_tanh(d * i, g));
        dc[u] = d * f;
        c[u] = d_y * y;
    }
    // 4: the products.
    const Sum count = Sum(4 * hidden);
    sums_over_block(sum_x, sum_x_y, sum_h, sum_h_y);
    const Sum mean_x = sum_x / count, mean_x_y = sum_x_y / count;
    const Sum mean_h = sum_h / count, mean_h_y = sum_h_y / count;
    const Sum scale_x = s.scale[2 * row], scale_h = s.scale[2 * row + 1];
    const Write<T> d_by_x = s.d_by_x + 4 * at, d_by_h = s.d_by_h + 4 * at;
#pragma unroll 1
    for (i64 u = threadIdx.x; u < hidden; u += kThreads) {
#pragma unroll
        for (int g = 0; g < 4; ++g) {
            const i64 gate = g * hidden + u;
            const Sum d = Read<T>(d_gates)[gate];
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
FUSEDNN_NORM_CELL(HalfBits)

}  // namespace fusednn::cuda
