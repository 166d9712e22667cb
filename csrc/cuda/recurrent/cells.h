// The cells for one unit of one sequence, forward and backward, and what a step does with its h.
// The formulas are those of cpu/recurrent/cells.h and backward.cpp, which name their sources.
#pragma once
#include "cuda/recurrent/rows.h"

namespace fusednn::cuda {

namespace {

template <class T>
FUSEDNN_DEVICE T sigmoid_of(T x) {
    const T e = exp(-fabs(x)), r = T(1) / (T(1) + e);
    return x < T(0) ? e * r : r;
}

// ---- forward
// -------------------------------------------------------------------------------------

// x: the gates by x, biases included; u: by h, 0 where there is no product. An RNN has one, a GRU
// three gates.
template <class T>
struct UnitIn {
    T x[4], u[4];
    T b_hn;
    T h, c;  // of the step before
};
template <class T>
struct UnitOut {
    T kept[4];    // what the reserve has of the gates
    T before[4];  // and that of 16-bit arrays: kept, before sigmoid and tanh
    T h, c;
};

template <class T>
FUSEDNN_DEVICE UnitOut<T> cell_of_unit(Cell cell, const UnitIn<T>& in) {
    UnitOut<T> out{};
    if (cell == Cell::lstm) {
#pragma unroll
        for (int n = 0; n < 4; ++n) out.before[n] = in.x[n] + in.u[n];
        const T i = sigmoid_of(out.before[0]), f = sigmoid_of(out.before[1]);
        const T g = tanh(out.before[2]), o = sigmoid_of(out.before[3]);
        out.c = f * in.c + i * g;
        out.h = o * tanh(out.c);
        out.kept[0] = i;
        out.kept[1] = f;
        out.kept[2] = g;
        out.kept[3] = o;
    } else if (cell == Cell::gru) {
        const T u = in.u[2] + in.b_hn;
        out.before[0] = in.x[0] + in.u[0];
        out.before[1] = in.x[1] + in.u[1];
        out.before[3] = u;
        const T r = sigmoid_of(out.before[0]), z = sigmoid_of(out.before[1]);
        out.before[2] = in.x[2] + r * u;
        const T n = tanh(out.before[2]);
        out.h = n + z * (in.h - n);
        out.kept[0] = r;
        out.kept[1] = z;
        out.kept[2] = n;
        out.kept[3] = u;
    } else {
        T h = out.before[0] = in.x[0] + in.u[0];
        if (cell == Cell::rnn_tanh) h = tanh(h);
        if (cell == Cell::rnn_relu && h < T(0)) h = T(0);  // NaN stays
        out.h = out.kept[0] = h;
    }
    return out;
}
// kept, of what stands before sigmoid and tanh. Close to 1 a gate rounded to 16 bits says nothing
// of how far from it it is, and the gradient is a matter of just that.
FUSEDNN_DEVICE void gates_from_before(Cell cell, float (&gates)[4]) {
    if (cell == Cell::rnn_relu || cell == Cell::rnn_identity) return;
#pragma unroll
    for (int n = 0; n < 4; ++n) {
        const bool is_tanh = cell == Cell::rnn_tanh || n == 2;
        if (cell == Cell::gru && n == 3) continue;
        gates[n] = is_tanh ? tanh(gates[n]) : sigmoid_of(gates[n]);
    }
}
FUSEDNN_DEVICE int kept_gates(Cell cell) {
    return cell == Cell::lstm || cell == Cell::gru ? 4 : 1;
}

// Where the h of a step's rows goes: `row` is the i-th active sequence. Null where not wanted.
template <class T>
struct StepState {
    using Value = Accumulate<T>;
    i64 outputs;
    const i64* sequence;  // or null: the i-th
    Write<T> h;           // (batch, outputs): takes the new h
    Write<T> h_before;    // (n, outputs): keeps the old one
    Write<T> out;         // sequence b at b * out_row
    i64 out_row;
    Read<T> mask;  // (batch, outputs), and h times it, as W_hh meets it
    Write<T> seen;

    FUSEDNN_DEVICE void put(i64 row, i64 unit, Value value) const {
        const i64 at = row * outputs + unit, b = sequence ? sequence[row] : row;
        if (h_before) h_before[at] = Read<T>(h)[at];
        h[at] = value;
        if (out) out[b * out_row + unit] = value;
        if (!mask) return;
        const Value factor = mask[b * outputs + unit], rounded = Read<T>(h)[at];
        seen[at] = factor != Value(0) ? rounded * factor : Value(0);
    }
};

// ---- backward
// ------------------------------------------------------------------------------------

template <class T>
FUSEDNN_DEVICE T through_sigmoid(T d, T y) {
    return d * y * (T(1) - y);
}
template <class T>
FUSEDNN_DEVICE T through_tanh(T d, T y) {
    return d * (T(1) - y * y);
}

// kept: the reserve's gates; before: c of the step before, of a GRU h.
template <class T>
struct UnitBackIn {
    T kept[4];
    T before, dh, dc;
};
// d_gates of a GRU are n, r, z, n * r (cpu/recurrent/backward.cpp); dh is what a GRU hands on
// directly, unprojected the LSTM's h before a projection.
template <class T>
struct UnitBackOut {
    T d_gates[4];
    T dh, dc, unprojected;
};

template <class T>
FUSEDNN_DEVICE UnitBackOut<T> cell_of_unit_back(Cell cell, const UnitBackIn<T>& in) {
    UnitBackOut<T> out{};
    if (cell == Cell::lstm) {
        const T i = in.kept[0], f = in.kept[1], g = in.kept[2], o = in.kept[3];
        const T squashed = tanh(f * in.before + i * g);
        const T dc = in.dc + through_tanh(in.dh * o, squashed);
        out.d_gates[0] = through_sigmoid(dc * g, i);
        out.d_gates[1] = through_sigmoid(dc * in.before, f);
        out.d_gates[2] = through_tanh(dc * i, g);
        out.d_gates[3] = through_sigmoid(in.dh * squashed, o);
        out.dc = dc * f;
        out.unprojected = o * squashed;
    } else if (cell == Cell::gru) {
        const T r = in.kept[0], z = in.kept[1], n = in.kept[2], u = in.kept[3];
        const T dn = through_tanh(in.dh * (T(1) - z), n);
        out.d_gates[0] = dn;
        out.d_gates[1] = through_sigmoid(dn * u, r);
        out.d_gates[2] = through_sigmoid(in.dh * (in.before - n), z);
        out.d_gates[3] = dn * r;
        out.dh = in.dh * z;
    } else {
        T d = in.dh;
        if (cell == Cell::rnn_tanh) d = through_tanh(d, in.kept[0]);
        if (cell == Cell::rnn_relu && in.kept[0] <= T(0)) d = T(0);  // NaN passes it on
        out.d_gates[0] = d;
    }
    return out;
}

}  // namespace

}  // namespace fusednn::cuda
