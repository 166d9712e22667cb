// One direction of one recurrent layer.
//
//   pass 1   gates (rows, gates * hidden) = x W_ih^T + b_ih (+ b_hh), all steps at once
//   pass 2   for each step:  recurrent = h W_hh^T
//                            the cell, unit by unit: gates, c, h
//                            h = h W_hr^T if the layer projects
//
// LSTM (Hochreiter & Schmidhuber 1997, forget gate by Gers et al. 2000):
//   c' = s(f) c + s(i) tanh(g),  h' = s(o) tanh(c')
// GRU (Cho et al. 2014), the reset gate behind the product:
//   n = tanh(x_n + r (U h + b)),  h' = (1 - z) n + z h
#include "cpu/recurrent/product.h"
#include "cpu/recurrent/rows.h"
#include "cpu/vmath.h"

namespace fusednn {
namespace FUSEDNN_ISA {

namespace {

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

// x's part of some units' gates lies scattered, two cache lines in a row; it comes while the
// product runs.
template <class T>
void prefetch_gates(Cell cell, const Step<T>& s, i64 first, i64 count) {
    constexpr i64 line = 64 / i64(sizeof(T));
    for (i64 row = 0; row < s.rows; ++row) {
        for (int g = 0; g < gates_of(cell); ++g) {
            const T* at = s.gates + row * s.gates_row + g * s.hidden + first;
            for (i64 unit = 0; unit < count; unit += line) __builtin_prefetch(at + unit, 1);
        }
    }
}

// One step: the products and the cell, block of units by block of units.
template <class T>
void step(Cell cell, const Step<T>& s, const typename StepProduct<T>::Factor* factors, int count,
          bool backwards, InputAhead<T>* ahead) {
    const i64 cost = s.rows * s.hidden * kUnitCost, width = gates_of(cell) * s.hidden;
    if (count > 0 && !factors[0].product->in_place()) {
        return StepProduct<T>::by_blocks(
            s.rows, factors, count, cost, backwards, ahead,
            [&](i64 first, i64 units) {
                if (s.given) prefetch_gates(cell, s, first, units);
            },
            [&](i64 first, i64 units, const T* c, i64 row, i64 gate) {
                cell_units(cell, s, Products<T>{c, row, gate}, first, units);
            });
    }
    Workspace<T> product(count * s.rows * width);
    if (count > 0) {
        factors[0].product->multiply(s.rows, factors[0].a, factors[0].a_row, product.get(), width,
                                     false);
    }
    // Units of a task: enough to be worth claiming.
    const i64 block = round_up(max_of(i64(4096) / max_of(s.rows, i64(1)), i64(64)), 64);
    const i64 tasks = ceil_div(s.hidden, block);
    parallel(tasks, parallel_slots(tasks, cost), [&](i64 task, int) {
        FlushDenormals flush;
        const i64 first = task * block;
        const Products<T> part{count > 0 ? product.get() + first : nullptr, width, s.hidden};
        cell_units(cell, s, part, first, min_of(block, s.hidden - first));
    });
}

// b_ih + b_hh, but for a GRU's b_hn, which stands inside the product with r.
template <class T>
void join_biases(const RecurrentParams<T>& p, T* bias) {
    const i64 width = gates_of(p.cell) * p.hidden;
    const i64 both = p.cell == Cell::gru ? 2 * p.hidden : width;
    for (i64 j = 0; j < width; ++j) bias[j] = j < both ? p.b_ih[j] + p.b_hh[j] : p.b_ih[j];
}

// Pass 1: gates = x W_ih^T + bias; the rows of x stand at `x`.
template <class T>
void input_gates(const RecurrentParams<T>& p, const T* x, const T* bias, T* gates) {
    GemmParams<T> g{};
    g.m = p.rows;
    g.n = gates_of(p.cell) * p.hidden;
    g.k = p.inputs;
    g.a = x;
    g.a_row = p.inputs;
    g.a_col = 1;
    g.b = p.w_ih;
    g.b_row = 1;
    g.b_col = p.inputs;
    g.c = gates;
    g.ldc = p.gates_row;
    g.col_bias = bias;
    gemm(g);
}

// The active rows' h into `out`; the other sequences have ended and give 0.
template <class T>
void write_out(const RecurrentParams<T>& p, const RecurrentResults<T>& to, const Rows<T>& rows,
               i64 t, const T* h) {
    const std::size_t bytes = std::size_t(p.outputs) * sizeof(T);
    for (i64 i = 0; i < p.batch; ++i) {
        T* out = to.out + t * to.out_step + rows.sequence(i) * to.out_row;
        if (i < rows.active(t)) {
            __builtin_memcpy(out, h + i * rows.state_row(), bytes);
        } else {
            __builtin_memset(out, 0, bytes);
        }
    }
}

// What is the same in every step.
template <class T>
Step<T> every_step(const RecurrentParams<T>& p, const Rows<T>& rows, const T* bias, bool keep) {
    Step<T> s{};
    s.hidden = p.hidden;
    s.gates_row = p.gates_row;
    s.given = !fuses_input(p);
    s.bias = bias;
    s.keep = keep;
    s.state_row = rows.state_row();
    s.b_hn = p.b_hh && p.cell == Cell::gru ? p.b_hh + 2 * p.hidden : nullptr;
    return s;
}

}  // namespace

template <class T>
void recurrent_forward(const RecurrentParams<T>& p, const RecurrentResults<T>& to) {
    using Factor = typename StepProduct<T>::Factor;
    const Rows<T> rows(p);
    const bool is_lstm = p.cell == Cell::lstm, fused = fuses_input(p);
    const i64 groups = gates_of(p.cell), width = groups * p.hidden;
    const i64 gates_row = p.gates_row, state_row = rows.state_row();
    Workspace<T> own_gates(to.reserve || fused ? 0 : p.rows * gates_row), bias(p.b_ih ? width : 0);
    T* gates = to.reserve ? to.reserve : own_gates.get();
    T* c_before = to.reserve && is_lstm ? to.reserve + p.rows * gates_row : nullptr;
    T* h_before =
        to.reserve ? to.reserve + p.rows * (gates_row + (is_lstm ? p.hidden : 0)) : nullptr;
    if (p.b_ih) join_biases(p, bias.get());
    const T* given_bias = p.b_ih ? bias.get() : nullptr;

    // Step by step the rows of x may lie anywhere, as long as they are all there.
    const bool in_place = fused ? !p.active : rows.in_place();
    Workspace<T> gathered(in_place ? 0 : p.rows * p.inputs);
    if (!in_place) rows.gather(gathered.get());
    const T* x = in_place ? p.x : gathered.get();

    Workspace<T> h(p.batch * state_row), c(is_lstm ? p.batch * state_row : 0);
    // h' before its projection, or of all units before it takes h's place.
    Workspace<T> next(p.batch * state_row);
    rows.load_state(p.h0, p.outputs, h.get());
    if (is_lstm) rows.load_state(p.c0, p.hidden, c.get());
    const StepProduct<T> by_ih(fused ? p.steps : 0, p.batch, groups, p.hidden, p.inputs, p.w_ih, 1,
                               p.inputs);
    const StepProduct<T> by_hh(p.steps, p.batch, groups, p.hidden, p.outputs, p.w_hh, 1, p.outputs);
    const StepProduct<T> by_hr(p.w_hr ? p.steps : 0, p.batch, 1, p.w_hr ? p.outputs : 0, p.hidden,
                               p.w_hr, 1, p.hidden);
    const bool runs_ahead = InputAhead<T>::suits(p);
    if (!fused && !runs_ahead) input_gates(p, x, given_bias, gates);
    InputAhead<T> ahead(p, by_hh.panels(), x, given_bias, gates);
    const bool overlap = by_hh.single(p.hidden * kUnitCost);
    Step<T> s = every_step(p, rows, given_bias, to.reserve != nullptr);
    s.c = c.get();
    s.h = h.get();
    s.out = next.get();
    for (i64 n = 0; n < p.steps; ++n) {
        if (runs_ahead) ahead.begin_step(n, overlap);
        const i64 t = rows.time(n), active = rows.active(t), first = rows.start(t);
        if (h_before) {
            rows.keep_state(active, h.get(), p.outputs, h_before + first * p.outputs);
        }
        s.rows = active;
        s.gates = gates + first * gates_row;
        s.c_before = c_before ? c_before + first * p.hidden : nullptr;
        Factor factors[2];
        int count = 0;
        if (fused && in_place) factors[count++] = {&by_ih, x + t * p.x_step, p.x_row};
        if (fused && !in_place) factors[count++] = {&by_ih, x + first * p.inputs, p.inputs};
        // A state of zeros adds nothing to the first step.
        if (n > 0 || p.h0) factors[count++] = {&by_hh, h.get(), state_row};
        step(p.cell, s, factors, count, n % 2 == 1, runs_ahead ? &ahead : nullptr);
        if (p.w_hr) {
            by_hr.multiply(active, next.get(), state_row, h.get(), state_row, false);
        } else {
            __builtin_memcpy(h.get(), next.get(), std::size_t(active * state_row) * sizeof(T));
        }
        if (to.out) write_out(p, to, rows, t, h.get());
    }
    rows.store_state(h.get(), p.outputs, to.h_n);
    if (is_lstm) rows.store_state(c.get(), p.hidden, to.c_n);
}

template <class T>
void apply_mask(i64 size, const T* x, const T* mask, T* y) {
    constexpr i64 chunk = 16384;
    const i64 tasks = ceil_div(size, chunk);
    parallel(tasks, parallel_slots(tasks, size * 3 * i64(sizeof(T))), [&](i64 task, int) {
        const i64 begin = task * chunk, count = min_of(chunk, size - begin);
        for_units<T>(count, [&](i64 i, auto lanes) {
            const Vec<T> m = lanes.load(mask + begin + i);
            const Vec<T> scaled = m * lanes.load(x + begin + i);
            lanes.store(y + begin + i, select<T>(m != Vec<T>{}, scaled, Vec<T>{}));
        });
    });
}

#define FUSEDNN_RECURRENT_FORWARD(T)                                                           \
    template void recurrent_forward<T>(const RecurrentParams<T>&, const RecurrentResults<T>&); \
    template void apply_mask<T>(i64, const T*, const T*, T*);
FUSEDNN_INSTANTIATE(FUSEDNN_RECURRENT_FORWARD)

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
