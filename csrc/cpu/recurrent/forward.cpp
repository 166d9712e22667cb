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
    i64 hidden;
    T* gates;  // x's part in; the gates' values out if `keep`
    i64 gates_row;
    bool keep;
    const T* recurrent;  // (n, gates * hidden), or null before the first step of a zero state
    T* c;                // (n, hidden) LSTM only
    T* c_before;         // (n, hidden) or null
    const T* h;          // (n, hidden) of the step before, GRU only
    const T* b_hn;       // GRU only, or null
    T* out;              // (n, hidden); may be h
};

template <class T>
void lstm_rows(const Step<T>& s, i64 first, i64 last) {
    const i64 hidden = s.hidden;
    for (i64 row = first; row < last; ++row) {
        T* gates = s.gates + row * s.gates_row;
        const T* recurrent = s.recurrent ? s.recurrent + row * 4 * hidden : nullptr;
        for_units<T>(hidden, [&](i64 unit, auto lanes) {
            Vec<T> gate[4];
#pragma GCC unroll 4
            for (int g = 0; g < 4; ++g) {
                gate[g] = lanes.load(gates + g * hidden + unit);
                if (recurrent) gate[g] += lanes.load(recurrent + g * hidden + unit);
            }
            gate[0] = vsigmoid<T>(gate[0]);
            gate[1] = vsigmoid<T>(gate[1]);
            gate[2] = vtanh<T>(gate[2]);
            gate[3] = vsigmoid<T>(gate[3]);
            T* at = s.c + row * hidden + unit;
            const Vec<T> before = lanes.load(at);
            const Vec<T> c = multiply_add(gate[1], before, gate[0] * gate[2]);
            if (s.keep) {
#pragma GCC unroll 4
                for (int g = 0; g < 4; ++g) lanes.store(gates + g * hidden + unit, gate[g]);
                lanes.store(s.c_before + row * hidden + unit, before);
            }
            lanes.store(at, c);
            lanes.store(s.out + row * hidden + unit, gate[3] * vtanh<T>(c));
        });
    }
}

template <class T>
void gru_rows(const Step<T>& s, i64 first, i64 last) {
    const i64 hidden = s.hidden;
    for (i64 row = first; row < last; ++row) {
        T* gates = s.gates + row * s.gates_row;
        const T* recurrent = s.recurrent ? s.recurrent + row * 3 * hidden : nullptr;
        for_units<T>(hidden, [&](i64 unit, auto lanes) {
            Vec<T> x[3], u[3] = {};
#pragma GCC unroll 3
            for (int g = 0; g < 3; ++g) {
                x[g] = lanes.load(gates + g * hidden + unit);
                if (recurrent) u[g] = lanes.load(recurrent + g * hidden + unit);
            }
            if (s.b_hn) u[2] += lanes.load(s.b_hn + unit);
            const Vec<T> r = vsigmoid<T>(x[0] + u[0]), z = vsigmoid<T>(x[1] + u[1]);
            const Vec<T> n = vtanh<T>(multiply_add(r, u[2], x[2]));
            const Vec<T> before = lanes.load(s.h + row * hidden + unit);
            if (s.keep) {
                const Vec<T> kept[4] = {r, z, n, u[2]};
#pragma GCC unroll 4
                for (int g = 0; g < 4; ++g) lanes.store(gates + g * hidden + unit, kept[g]);
            }
            lanes.store(s.out + row * hidden + unit, multiply_add(z, before - n, n));
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
void rnn_rows(Cell cell, const Step<T>& s, i64 first, i64 last) {
    for (i64 row = first; row < last; ++row) {
        T* gates = s.gates + row * s.gates_row;
        const T* recurrent = s.recurrent ? s.recurrent + row * s.hidden : nullptr;
        for_units<T>(s.hidden, [&](i64 unit, auto lanes) {
            Vec<T> h = lanes.load(gates + unit);
            if (recurrent) h += lanes.load(recurrent + unit);
            h = activate<T>(cell, h);
            if (s.keep) lanes.store(gates + unit, h);
            lanes.store(s.out + row * s.hidden + unit, h);
        });
    }
}

template <class T>
void cell_step(Cell cell, i64 rows, const Step<T>& s) {
    for_rows(rows, s.hidden, [&](i64 first, i64 last) {
        if (cell == Cell::lstm) return lstm_rows(s, first, last);
        if (cell == Cell::gru) return gru_rows(s, first, last);
        rnn_rows(cell, s, first, last);
    });
}

// Pass 1.
template <class T>
void input_gates(const RecurrentParams<T>& p, const Rows<T>& rows, T* gates, i64 gates_row) {
    const i64 width = gates_of(p.cell) * p.hidden;
    const bool in_place = rows.in_place();
    Workspace<T> gathered(in_place ? 0 : p.rows * p.inputs), bias(p.b_ih ? width : 0);
    if (!in_place) rows.gather(gathered.get());
    if (p.b_ih) {
        // A GRU's b_hn stands inside the product with r.
        const i64 both = p.cell == Cell::gru ? 2 * p.hidden : width;
        for (i64 j = 0; j < width; ++j) {
            bias.get()[j] = j < both ? p.b_ih[j] + p.b_hh[j] : p.b_ih[j];
        }
    }
    GemmParams<T> g{};
    g.m = p.rows;
    g.n = width;
    g.k = p.inputs;
    g.a = in_place ? p.x : gathered.get();
    g.a_row = p.inputs;
    g.a_col = 1;
    g.b = p.w_ih;
    g.b_row = 1;
    g.b_col = p.inputs;
    g.c = gates;
    g.ldc = gates_row;
    g.col_bias = p.b_ih ? bias.get() : nullptr;
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
            __builtin_memcpy(out, h + i * p.outputs, bytes);
        } else {
            __builtin_memset(out, 0, bytes);
        }
    }
}

}  // namespace

template <class T>
void recurrent_forward(const RecurrentParams<T>& p, const RecurrentResults<T>& to) {
    const Rows<T> rows(p);
    const bool is_lstm = p.cell == Cell::lstm;
    const i64 width = gates_of(p.cell) * p.hidden;
    const i64 gates_row = to.reserve ? kept_of(p.cell) * p.hidden : width;
    Workspace<T> own_gates(to.reserve ? 0 : p.rows * width);
    T* gates = to.reserve ? to.reserve : own_gates.get();
    T* c_before = to.reserve && is_lstm ? to.reserve + p.rows * gates_row : nullptr;
    T* h_before =
        to.reserve ? to.reserve + p.rows * (gates_row + (is_lstm ? p.hidden : 0)) : nullptr;
    input_gates(p, rows, gates, gates_row);

    Workspace<T> h(p.batch * p.outputs), c(is_lstm ? p.batch * p.hidden : 0);
    Workspace<T> recurrent(p.batch * width), unprojected(p.w_hr ? p.batch * p.hidden : 0);
    rows.load_state(p.h0, p.outputs, h.get());
    if (is_lstm) rows.load_state(p.c0, p.hidden, c.get());
    // A state of zeros adds nothing to the first step.
    const i64 uses = p.h0 ? p.steps : p.steps - 1;
    const StepProduct<T> by_hh(uses, p.batch, width, p.outputs, p.w_hh, 1, p.outputs);
    const StepProduct<T> by_hr(p.w_hr ? p.steps : 0, p.batch, p.w_hr ? p.outputs : 0, p.hidden,
                               p.w_hr, 1, p.hidden);
    for (i64 n = 0; n < p.steps; ++n) {
        const i64 t = rows.time(n), active = rows.active(t), start = rows.start(t);
        if (h_before) {
            __builtin_memcpy(h_before + start * p.outputs, h.get(),
                             std::size_t(active * p.outputs) * sizeof(T));
        }
        const bool first = n == 0 && !p.h0;
        if (!first) by_hh.multiply(active, h.get(), p.outputs, recurrent.get(), width, false);
        Step<T> s;
        s.hidden = p.hidden;
        s.gates = gates + start * gates_row;
        s.gates_row = gates_row;
        s.keep = to.reserve != nullptr;
        s.recurrent = first ? nullptr : recurrent.get();
        s.c = c.get();
        s.c_before = c_before ? c_before + start * p.hidden : nullptr;
        s.h = h.get();
        s.b_hn = p.b_hh && p.cell == Cell::gru ? p.b_hh + 2 * p.hidden : nullptr;
        s.out = p.w_hr ? unprojected.get() : h.get();
        cell_step(p.cell, active, s);
        if (p.w_hr) {
            by_hr.multiply(active, unprojected.get(), p.hidden, h.get(), p.outputs, false);
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
