// The cells, forward: gates, c and h of some units from the products of a step.
//
// LSTM (Hochreiter & Schmidhuber 1997, forget gate by Gers et al. 2000):
//   c' = s(f) c + s(i) tanh(g),  h' = s(o) tanh(c')
// GRU (Cho et al. 2014), the reset gate behind the product:
//   n = tanh(x_n + r (U h + b)),  h' = (1 - z) n + z h
#pragma once
#include "cpu/recurrent/rows.h"
#include "cpu/vmath.h"

namespace fusednn {
namespace FUSEDNN_ISA {

// What the cell reads and writes at one step; row i of each array is the i-th active sequence.
template <class T>
struct Step {
    i64 rows, hidden;
    T* gates;  // (n, gates_row): the gates' values out if `keep`
    i64 gates_row;
    bool given;     // x's part of the gates, biases included, is what `gates` holds
    const T* bias;  // otherwise: gates * hidden values, or null
    bool keep;
    i64 state_row;
    T* c;           // (n, state_row) LSTM only
    T* c_before;    // (n, hidden) or null
    const T* h;     // (n, state_row) of the step before, GRU only
    const T* b_hn;  // GRU only, or null
    T* out;         // (n, state_row)
};

// What products give for the gates of some units: those of row i and gate g at
// data[i * row + g * gate]. data is null where there is no product: before the first step of a zero
// state.
template <class T>
struct Products {
    const T* data;
    i64 row, gate;
    FUSEDNN_INLINE const T* at(i64 i) const { return data ? data + i * row : nullptr; }
};

// A gate's value before any product of this step; `gates` begins at unit `first`.
template <class T, class Lanes>
FUSEDNN_INLINE Vec<T> start(const Step<T>& s, const Lanes& lanes, const T* gates, i64 at,
                            i64 first) {
    if (s.given) return lanes.load(gates + at);
    return s.bias ? lanes.load(s.bias + first + at) : Vec<T>{};
}

template <class T>
void lstm_units(const Step<T>& s, const Products<T>& u, i64 first, i64 count) {
    const i64 hidden = s.hidden;
    for (i64 row = 0; row < s.rows; ++row) {
        T* gates = s.gates + row * s.gates_row + first;
        const T* products = u.at(row);
        const i64 at = row * s.state_row + first;
        const auto gate = [&](i64 unit, const auto& lanes, int g) {
            const Vec<T> x = start(s, lanes, gates, g * hidden + unit, first);
            return products ? x + lanes.load(products + g * u.gate + unit) : x;
        };
        // Two loops, c and then h: in one, the chain of operations of a unit is so long that too
        // few units overlap. Quotients whose NaN would spread anyway share a division: c needs i, f
        // and g, and h needs o and c.
        for_units<T>(count, [&](i64 unit, auto lanes) {
            const Quotient<T> i = sigmoid_quotient<T>(gate(unit, lanes, 0));
            const Quotient<T> f = sigmoid_quotient<T>(gate(unit, lanes, 1));
            const Quotient<T> g = tanh_quotient<T>(gate(unit, lanes, 2));
            const Vec<T> i_f = i.below * f.below, inverse = T(1) / (i_f * g.below);
            const Vec<T> scaled = inverse * g.below;
            const Vec<T> value[3] = {i.above * (f.below * scaled), f.above * (i.below * scaled),
                                     g.above * (i_f * inverse)};
            const Vec<T> before = lanes.load(s.c + at + unit);
            if (s.keep) {
#pragma GCC unroll 3
                for (int k = 0; k < 3; ++k) lanes.store(gates + k * hidden + unit, value[k]);
                lanes.store(s.c_before + row * hidden + first + unit, before);
            }
            lanes.store(s.c + at + unit, multiply_add(value[1], before, value[0] * value[2]));
        });
        for_units<T>(count, [&](i64 unit, auto lanes) {
            const Quotient<T> o = sigmoid_quotient<T>(gate(unit, lanes, 3));
            const Quotient<T> c = tanh_quotient<T>(lanes.load(s.c + at + unit));
            const Vec<T> inverse = T(1) / (o.below * c.below);
            const Vec<T> value = o.above * (c.below * inverse);
            if (s.keep) lanes.store(gates + 3 * hidden + unit, value);
            lanes.store(s.out + at + unit, value * (c.above * (o.below * inverse)));
        });
    }
}

template <class T>
void gru_units(const Step<T>& s, const Products<T>& given, i64 first, i64 count) {
    const i64 hidden = s.hidden;
    for (i64 row = 0; row < s.rows; ++row) {
        T* gates = s.gates + row * s.gates_row + first;
        const T* products = given.at(row);
        const i64 at = row * s.state_row + first;
        for_units<T>(count, [&](i64 unit, auto lanes) {
            Vec<T> x[3], u[3] = {};
#pragma GCC unroll 3
            for (int g = 0; g < 3; ++g) {
                x[g] = lanes.load(gates + g * hidden + unit);
                if (products) u[g] = lanes.load(products + g * given.gate + unit);
            }
            if (s.b_hn) u[2] += lanes.load(s.b_hn + first + unit);
            const Vec<T> r = vsigmoid<T>(x[0] + u[0]), z = vsigmoid<T>(x[1] + u[1]);
            const Vec<T> n = vtanh<T>(multiply_add(r, u[2], x[2]));
            const Vec<T> before = lanes.load(s.h + at + unit);
            if (s.keep) {
                const Vec<T> kept[4] = {r, z, n, u[2]};
#pragma GCC unroll 4
                for (int g = 0; g < 4; ++g) lanes.store(gates + g * hidden + unit, kept[g]);
            }
            lanes.store(s.out + at + unit, multiply_add(z, before - n, n));
        });
    }
}

template <class T>
FUSEDNN_INLINE Vec<T> activate(Cell cell, Vec<T> x) {
    if (cell == Cell::rnn_tanh) return vtanh<T>(x);
    // Written so that NaN stays NaN.
    return cell == Cell::rnn_relu ? select<T>(x < Vec<T>{}, Vec<T>{}, x) : x;
}

template <class T>
void rnn_units(Cell cell, const Step<T>& s, const Products<T>& u, i64 first, i64 count) {
    for (i64 row = 0; row < s.rows; ++row) {
        T* gates = s.gates + row * s.gates_row + first;
        const T* products = u.at(row);
        for_units<T>(count, [&](i64 unit, auto lanes) {
            Vec<T> h = start(s, lanes, gates, unit, first);
            if (products) h += lanes.load(products + unit);
            h = activate<T>(cell, h);
            if (s.keep) lanes.store(gates + unit, h);
            lanes.store(s.out + row * s.state_row + first + unit, h);
        });
    }
}

// The cell for units [first, first + count) of all rows.
template <class T>
void cell_units(Cell cell, const Step<T>& s, const Products<T>& u, i64 first, i64 count) {
    if (cell == Cell::lstm) return lstm_units(s, u, first, count);
    if (cell == Cell::gru) return gru_units(s, u, first, count);
    rnn_units(cell, s, u, first, count);
}

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
