// The layer-normalised LSTM cell, forward and backward (Ba, Kiros and Hinton, "Layer
// normalization", 2016, supplement, equations 20 to 22), with LN(x) = (x - mean) / sqrt(variance +
// eps):
//
//   i, f, g, o = gain_x LN(W_ih x) + gain_h LN(W_hh h) + bias    LN over all 4 * hidden values
//   c' = s(f) c + s(i) tanh(g)
//   h' = s(o) tanh(gain_c LN(c') + bias_c)
//
// c itself goes to the next step as it is. Rows are worked on alone: three short passes over what
// lies in L1 by then.
#pragma once
#include "cpu/recurrent/rows.h"
#include "cpu/vmath.h"

namespace fusednn {
namespace FUSEDNN_ISA {

// What both directions of the walk read at every step.
template <class T>
struct NormGains {
    const T *x, *h, *c;  // 4 * hidden, 4 * hidden, hidden
    const T* bias_c;     // hidden, or null
    T eps;
};

template <class T>
FUSEDNN_INLINE NormGains<T> gains_of(const RecurrentParams<T>& p) {
    return {p.gain_ih, p.gain_hh, p.gain_c, p.bias_c, T(p.eps)};
}

// LN(v) = (v - mean - low) * scale; low is what rounding the mean left over.
template <class T>
struct Moments {
    T mean, low, scale;
    FUSEDNN_INLINE Vec<T> normalised(Vec<T> v) const { return ((v - mean) - low) * scale; }
};

template <class T>
FUSEDNN_INLINE Moments<T> moments_of(T mean, Vec<T> sum, Vec<T> squares, i64 count, T eps) {
    const T low = sum_lanes<T>(sum) / T(count);
    const T variance = sum_lanes<T>(squares) / T(count) - low * low;
    return {mean, low, T(1) / T(__builtin_sqrt(max_of(variance, T(0)) + eps))};
}

// Of several arrays at once: their chains of additions overlap. (Not inlined: a call costs nothing
// here, and GCC would warn of a rest of 4 * hidden values that a vector of 4 never leaves.)
template <class T, int N>
__attribute__((noinline)) void find_moments(i64 count, const T* const (&x)[N], T eps,
                                            Moments<T> (&to)[N]) {
    Vec<T> sum[N] = {}, low[N] = {}, squares[N] = {};
    for_units<T>(count, [&](i64 i, auto lanes) {
#pragma GCC unroll 2
        for (int n = 0; n < N; ++n) sum[n] += lanes.load(x[n] + i);
    });
    T mean[N];
    for (int n = 0; n < N; ++n) mean[n] = sum_lanes<T>(sum[n]) / T(count);
    for_units<T>(count, [&](i64 i, auto lanes) {
#pragma GCC unroll 2
        for (int n = 0; n < N; ++n) {
            const Vec<T> d = lanes.keep(lanes.load(x[n] + i) - mean[n]);
            low[n] += d;
            squares[n] = multiply_add(d, d, squares[n]);
        }
    });
    for (int n = 0; n < N; ++n) to[n] = moments_of<T>(mean[n], low[n], squares[n], count, eps);
}

// ---- forward ----------------------------------------

// Row i of each array is the i-th active sequence.
template <class T>
struct NormStep {
    i64 hidden;
    NormGains<T> gain;
    const T* bias;   // 4 * hidden, or null
    i64 gates_row;   // of the next three
    T *by_x, *by_h;  // the products; normalised afterwards, if kept
    T* gates;        // the gates' values out, or null: nothing is kept
    T* scale;        // (n, 2): what the two products were multiplied by
    T* c_before;     // (n, hidden)
    i64 state_row;
    T *c, *out;  // (n, state_row)
};

template <class T>
void norm_lstm_row(const NormStep<T>& s, i64 row) {
    const i64 hidden = s.hidden;
    T *by_x = s.by_x + row * s.gates_row, *by_h = s.by_h + row * s.gates_row;
    T* gates = s.gates ? s.gates + row * s.gates_row : nullptr;
    T *c = s.c + row * s.state_row, *out = s.out + row * s.state_row;
    const T* const products[] = {by_x, by_h};
    Moments<T> of[2];
    find_moments<T, 2>(4 * hidden, products, s.gain.eps, of);
    const auto gate = [&](i64 at, const auto& lanes) {
        const Vec<T> x = of[0].normalised(lanes.load(by_x + at));
        const Vec<T> h = of[1].normalised(lanes.load(by_h + at));
        if (gates) {
            lanes.store(by_x + at, x);
            lanes.store(by_h + at, h);
        }
        const Vec<T> bias = s.bias ? lanes.load(s.bias + at) : Vec<T>{};
        return multiply_add(lanes.load(s.gain.x + at), x,
                            multiply_add(lanes.load(s.gain.h + at), h, bias));
    };
    for_units<T>(hidden, [&](i64 unit, auto lanes) {
        const Quotient<T> i = sigmoid_quotient<T>(gate(unit, lanes));
        const Quotient<T> f = sigmoid_quotient<T>(gate(hidden + unit, lanes));
        const Quotient<T> g = tanh_quotient<T>(gate(2 * hidden + unit, lanes));
        const Vec<T> i_f = i.below * f.below, inverse = T(1) / (i_f * g.below);
        const Vec<T> scaled = inverse * g.below;
        const Vec<T> value[3] = {i.above * (f.below * scaled), f.above * (i.below * scaled),
                                 g.above * (i_f * inverse)};
        const Vec<T> before = lanes.load(c + unit);
        if (gates) {
#pragma GCC unroll 3
            for (int k = 0; k < 3; ++k) lanes.store(gates + k * hidden + unit, value[k]);
            lanes.store(s.c_before + row * hidden + unit, before);
        }
        lanes.store(c + unit, multiply_add(value[1], before, value[0] * value[2]));
    });
    const T* const cell[] = {c};
    Moments<T> of_c[1];
    find_moments<T, 1>(hidden, cell, s.gain.eps, of_c);
    for_units<T>(hidden, [&](i64 unit, auto lanes) {
        const Quotient<T> o = sigmoid_quotient<T>(gate(3 * hidden + unit, lanes));
        const Vec<T> bias = s.gain.bias_c ? lanes.load(s.gain.bias_c + unit) : Vec<T>{};
        const Quotient<T> q = tanh_quotient<T>(multiply_add(
            lanes.load(s.gain.c + unit), of_c[0].normalised(lanes.load(c + unit)), bias));
        const Vec<T> inverse = T(1) / (o.below * q.below), value = o.above * (q.below * inverse);
        if (gates) lanes.store(gates + 3 * hidden + unit, value);
        lanes.store(out + unit, value * (q.above * (o.below * inverse)));
    });
    if (gates) {
        s.scale[2 * row] = of[0].scale;
        s.scale[2 * row + 1] = of[1].scale;
    }
}

// ---- backward ----------------------------------------

template <class T>
struct NormBackStep {
    i64 hidden;
    NormGains<T> gain;
    i64 gates_row;                 // of the next six
    const T *gates, *by_x, *by_h;  // kept by forward; the products normalised
    T *d_gates, *d_by_x, *d_by_h;  // by_x, by_h: of the products themselves
    const T *scale, *c_before;     // (n, 2), (n, hidden)
    T *d_cell, *d_gain_c;          // (n, hidden): of gain_c LN(c) + bias_c, and times LN(c)
    i64 state_row;
    const T* dh;  // (n, state_row)
    T* dc;        // (n, state_row)
};

// Through LN: scale * (dy - mean(dy) - y * mean(dy * y)), dy = gain * d; the means are given.
template <class T>
FUSEDNN_INLINE Vec<T> through_norm(Vec<T> dy, Vec<T> y, T mean, T mean_y, T scale) {
    return scale * ((dy - mean) - y * mean_y);
}

template <class T>
void norm_lstm_row_back(const NormBackStep<T>& s, i64 row) {
    const i64 hidden = s.hidden, at_gates = row * s.gates_row, at = row * hidden;
    const T* gates = s.gates + at_gates;
    const T *by_x = s.by_x + at_gates, *by_h = s.by_h + at_gates;
    T *d_gates = s.d_gates + at_gates, *d_cell = s.d_cell + at, *c = s.d_gain_c + at;
    T* dc = s.dc + row * s.state_row;
    const T *dh = s.dh + row * s.state_row, *before = s.c_before + at;
    // 1: c once more, for a while where d_gain_c will be.
    for_units<T>(hidden, [&](i64 unit, auto lanes) {
        const Vec<T> i_g = lanes.load(gates + unit) * lanes.load(gates + 2 * hidden + unit);
        const Vec<T> f = lanes.load(gates + hidden + unit);
        lanes.store(c + unit, multiply_add(f, lanes.load(before + unit), i_g));
    });
    const T* const cell[] = {c};
    Moments<T> of_c[1];
    find_moments<T, 1>(hidden, cell, s.gain.eps, of_c);
    // 2: h = o tanh(gain_c LN(c) + bias_c), up to the means that LN(c) needs; and those of the
    // products' gradients begin.
    Vec<T> sum_c{}, sum_c_y{}, sum[2] = {}, sum_y[2] = {};
    const auto put_gate = [&](i64 gate, const auto& lanes, Vec<T> d) {
        lanes.store(d_gates + gate, d);
        const Vec<T> dx = d * lanes.load(s.gain.x + gate), dy = d * lanes.load(s.gain.h + gate);
        sum[0] += dx;
        sum[1] += dy;
        sum_y[0] = multiply_add(dx, lanes.load(by_x + gate), sum_y[0]);
        sum_y[1] = multiply_add(dy, lanes.load(by_h + gate), sum_y[1]);
    };
    for_units<T>(hidden, [&](i64 unit, auto lanes) {
        const Vec<T> y = lanes.keep(of_c[0].normalised(lanes.load(c + unit)));
        const Vec<T> gain = lanes.load(s.gain.c + unit), o = lanes.load(gates + 3 * hidden + unit);
        const Vec<T> bias = s.gain.bias_c ? lanes.load(s.gain.bias_c + unit) : Vec<T>{};
        const Vec<T> squashed = vtanh<T>(multiply_add(gain, y, bias)), d = lanes.load(dh + unit);
        const Vec<T> d_y = d * o * (T(1) - squashed * squashed), scaled = d_y * gain;
        lanes.store(d_cell + unit, d_y);
        sum_c += scaled;
        sum_c_y = multiply_add(scaled, y, sum_c_y);
        put_gate(3 * hidden + unit, lanes, d * squashed * o * (T(1) - o));
    });
    const T mean_c = sum_lanes<T>(sum_c) / T(hidden), mean_c_y = sum_lanes<T>(sum_c_y) / T(hidden);
    // 3: c and the gates that made it.
    for_units<T>(hidden, [&](i64 unit, auto lanes) {
        const Vec<T> y = of_c[0].normalised(lanes.load(c + unit)), d_y = lanes.load(d_cell + unit);
        const Vec<T> i = lanes.load(gates + unit), f = lanes.load(gates + hidden + unit);
        const Vec<T> g = lanes.load(gates + 2 * hidden + unit);
        const Vec<T> d =
            lanes.load(dc + unit) +
            through_norm<T>(d_y * lanes.load(s.gain.c + unit), y, mean_c, mean_c_y, of_c[0].scale);
        put_gate(unit, lanes, d * g * i * (T(1) - i));
        put_gate(hidden + unit, lanes, d * lanes.load(before + unit) * f * (T(1) - f));
        put_gate(2 * hidden + unit, lanes, d * i * (T(1) - g * g));
        lanes.store(dc + unit, d * f);
        lanes.store(c + unit, d_y * y);
    });
    // 4: the products.
    const T count = T(4 * hidden);
    const T mean_x = sum_lanes<T>(sum[0]) / count, mean_x_y = sum_lanes<T>(sum_y[0]) / count;
    const T mean_h = sum_lanes<T>(sum[1]) / count, mean_h_y = sum_lanes<T>(sum_y[1]) / count;
    T *d_by_x = s.d_by_x + at_gates, *d_by_h = s.d_by_h + at_gates;
    for_units<T>(4 * hidden, [&](i64 gate, auto lanes) {
        const Vec<T> d = lanes.load(d_gates + gate);
        const Vec<T> dx = d * lanes.load(s.gain.x + gate), dy = d * lanes.load(s.gain.h + gate);
        lanes.store(d_by_x + gate, through_norm<T>(dx, lanes.load(by_x + gate), mean_x, mean_x_y,
                                                   s.scale[2 * row]));
        lanes.store(d_by_h + gate, through_norm<T>(dy, lanes.load(by_h + gate), mean_h, mean_h_y,
                                                   s.scale[2 * row + 1]));
    });
}

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
