// Backpropagation through time of one direction of one recurrent layer, exact.
//
//   pass 1   for each step, last to first:  dh += d_out;  dh = dh W_hr if the layer projects
//                                           the cell, unit by unit: d_gates, dc
//                                           dh of the step before = d_gates W_hh
//            d_x = d_gates W_ih here for wide batches (fuses_input), else in pass 2
//   pass 2   all steps at once (gradients.cpp):  d_W_ih = d_gates^T x,
//            d_W_hh = d_gates^T h_before,  d_b = column sums of d_gates
//
// d_gates is (rows, 4 * hidden) in the weights' order for the LSTM and (rows, hidden) for an RNN.
// For the GRU it is n, r, z, n * r: the middle two and the first or the last are then neighbours,
// as the product with x (n) and the one with h (n * r) need them.
#include "cpu/recurrent/gradients.h"
#include "cpu/recurrent/product.h"
#include "cpu/vmath.h"

namespace fusednn {
namespace FUSEDNN_ISA {

namespace {

// What the cell reads and writes at one step; row i of each array is the i-th active sequence.
template <class T>
struct BackStep {
    i64 hidden;
    const T* gates;  // the reserve's
    T* d_gates;
    i64 gates_row;      // of both
    const T* c_before;  // (n, hidden) LSTM only
    const T* h_before;  // (n, hidden) GRU only
    i64 state_row;
    T* dh;           // (n, state_row); of a GRU it takes the part that goes to h directly
    T* dc;           // (n, state_row) LSTM only
    T* unprojected;  // (n, hidden): h before its projection, or null
};

template <class T>
FUSEDNN_INLINE Vec<T> through_sigmoid(Vec<T> d, Vec<T> y) {
    return d * y * (T(1) - y);
}
template <class T>
FUSEDNN_INLINE Vec<T> through_tanh(Vec<T> d, Vec<T> y) {
    return d * (T(1) - y * y);
}

template <class T>
void lstm_rows(const BackStep<T>& s, i64 first, i64 last) {
    const i64 hidden = s.hidden;
    for (i64 row = first; row < last; ++row) {
        const T* gates = s.gates + row * s.gates_row;
        T* d_gates = s.d_gates + row * s.gates_row;
        for_units<T>(hidden, [&](i64 unit, auto lanes) {
            const i64 at = row * hidden + unit, state = row * s.state_row + unit;
            const Vec<T> i = lanes.load(gates + unit), f = lanes.load(gates + hidden + unit);
            const Vec<T> g = lanes.load(gates + 2 * hidden + unit);
            const Vec<T> o = lanes.load(gates + 3 * hidden + unit);
            const Vec<T> before = lanes.load(s.c_before + at), dh = lanes.load(s.dh + state);
            const Vec<T> squashed = vtanh<T>(multiply_add(f, before, i * g));
            const Vec<T> dc = lanes.load(s.dc + state) + through_tanh<T>(dh * o, squashed);
            lanes.store(d_gates + unit, through_sigmoid<T>(dc * g, i));
            lanes.store(d_gates + hidden + unit, through_sigmoid<T>(dc * before, f));
            lanes.store(d_gates + 2 * hidden + unit, through_tanh<T>(dc * i, g));
            lanes.store(d_gates + 3 * hidden + unit, through_sigmoid<T>(dh * squashed, o));
            lanes.store(s.dc + state, dc * f);
            if (s.unprojected) lanes.store(s.unprojected + at, o * squashed);
        });
    }
}

template <class T>
void gru_rows(const BackStep<T>& s, i64 first, i64 last) {
    const i64 hidden = s.hidden;
    for (i64 row = first; row < last; ++row) {
        const T* gates = s.gates + row * s.gates_row;
        T* d_gates = s.d_gates + row * s.gates_row;
        for_units<T>(hidden, [&](i64 unit, auto lanes) {
            const i64 at = row * hidden + unit, state = row * s.state_row + unit;
            const Vec<T> r = lanes.load(gates + unit), z = lanes.load(gates + hidden + unit);
            const Vec<T> n = lanes.load(gates + 2 * hidden + unit);
            const Vec<T> u = lanes.load(gates + 3 * hidden + unit);
            const Vec<T> before = lanes.load(s.h_before + at), dh = lanes.load(s.dh + state);
            const Vec<T> dn = through_tanh<T>(dh * (T(1) - z), n);
            lanes.store(d_gates + unit, dn);
            lanes.store(d_gates + hidden + unit, through_sigmoid<T>(dn * u, r));
            lanes.store(d_gates + 2 * hidden + unit, through_sigmoid<T>(dh * (before - n), z));
            lanes.store(d_gates + 3 * hidden + unit, dn * r);
            lanes.store(s.dh + state, dh * z);
        });
    }
}

template <class T>
void rnn_rows(Cell cell, const BackStep<T>& s, i64 first, i64 last) {
    for (i64 row = first; row < last; ++row) {
        for_units<T>(s.hidden, [&](i64 unit, auto lanes) {
            const Vec<T> h = lanes.load(s.gates + row * s.gates_row + unit);
            Vec<T> d = lanes.load(s.dh + row * s.state_row + unit);
            if (cell == Cell::rnn_tanh) d = through_tanh<T>(d, h);
            // NaN passes the gradient on, as in relu.
            if (cell == Cell::rnn_relu) d = select<T>(h <= Vec<T>{}, Vec<T>{}, d);
            lanes.store(s.d_gates + row * s.gates_row + unit, d);
        });
    }
}

template <class T>
void cell_step(Cell cell, i64 rows, const BackStep<T>& s) {
    for_rows(rows, s.hidden, [&](i64 first, i64 last) {
        if (cell == Cell::lstm) return lstm_rows(s, first, last);
        if (cell == Cell::gru) return gru_rows(s, first, last);
        rnn_rows(cell, s, first, last);
    });
}

// dh (n, outputs) += d_out at step t.
template <class T>
void add_output_grad(const RecurrentParams<T>& p, const RecurrentGrads<T>& g, const Rows<T>& rows,
                     i64 t, T* dh) {
    if (!g.d_out) return;
    for (i64 i = 0; i < rows.active(t); ++i) {
        const T* from = g.d_out + t * g.out_step + rows.sequence(i) * g.out_row;
        T* to = dh + i * rows.state_row();
        for_units<T>(p.outputs, [&](i64 unit, auto lanes) {
            lanes.store(to + unit, lanes.load(to + unit) + lanes.load(from + unit));
        });
    }
}

}  // namespace

template <class T>
void recurrent_backward(const RecurrentParams<T>& p, const RecurrentGrads<T>& g) {
    const Rows<T> rows(p);
    const bool is_lstm = p.cell == Cell::lstm, is_gru = p.cell == Cell::gru;
    const i64 d_row = p.gates_row, state_row = rows.state_row();
    const T* c_before = g.reserve + p.rows * d_row;
    const T* h_before = c_before + (is_lstm ? p.rows * p.hidden : 0);
    Workspace<T> d_gates(p.rows * d_row);
    Workspace<T> dh(p.batch * state_row), dc(is_lstm ? p.batch * state_row : 0);
    rows.load_state(g.d_h_n, p.outputs, dh.get());
    if (is_lstm) rows.load_state(g.d_c_n, p.hidden, dc.get());
    // With a projection: dh before and after it, and h before it.
    Workspace<T> inner_dh(p.w_hr ? p.batch * state_row : 0);
    Workspace<T> outer_dh(p.w_hr ? p.rows * p.outputs : 0);
    Workspace<T> unprojected(p.w_hr ? p.rows * p.hidden : 0);
    const StepProduct<T> by_hh(p.steps, p.batch, 1, p.outputs, gates_of(p.cell) * p.hidden, p.w_hh,
                               p.outputs, 1);
    const StepProduct<T> by_hr(p.w_hr ? p.steps : 0, p.batch, 1, p.w_hr ? p.hidden : 0, p.outputs,
                               p.w_hr, p.hidden, 1);
    const bool in_place = rows.in_place(), fused = g.d_x && fuses_input(p);
    Workspace<T> own_dx(g.d_x && !in_place ? p.rows * p.inputs : 0);
    T* dx = in_place ? g.d_x : own_dx.get();
    const StepProduct<T> by_ih(fused ? p.steps : 0, p.batch, 1, p.inputs,
                               gates_of(p.cell) * p.hidden, p.w_ih, p.inputs, 1);
    for (i64 n = p.steps - 1; n >= 0; --n) {
        const i64 t = rows.time(n), active = rows.active(t), start = rows.start(t);
        add_output_grad(p, g, rows, t, dh.get());
        if (p.w_hr) {
            rows.keep_state(active, dh.get(), p.outputs, outer_dh.get() + start * p.outputs);
            by_hr.multiply(active, dh.get(), state_row, inner_dh.get(), state_row, false);
        }
        BackStep<T> s;
        s.hidden = p.hidden;
        s.gates = g.reserve + start * d_row;
        s.d_gates = d_gates.get() + start * d_row;
        s.gates_row = d_row;
        s.c_before = c_before + start * p.hidden;
        s.h_before = h_before + start * p.outputs;
        s.state_row = state_row;
        s.dh = p.w_hr ? inner_dh.get() : dh.get();
        s.dc = dc.get();
        s.unprojected = p.w_hr ? unprojected.get() + start * p.hidden : nullptr;
        cell_step(p.cell, active, s);
        if (n > 0 || g.d_h0) {
            by_hh.multiply(active, s.d_gates + (is_gru ? p.hidden : 0), d_row, dh.get(), state_row,
                           is_gru);
        }
        if (fused) {
            by_ih.multiply(active, s.d_gates, d_row, dx + start * p.inputs, p.inputs,
                           in_place && g.d_x_add);
        }
    }
    rows.store_state(dh.get(), p.outputs, g.d_h0);
    if (is_lstm) rows.store_state(dc.get(), p.hidden, g.d_c0);
    recurrent_gradients(p, g, rows, d_gates.get(), h_before, dx, fused);
    if (g.d_w_hr) {
        projection_gradient(p.rows, p.outputs, p.hidden, outer_dh.get(), unprojected.get(),
                            g.d_w_hr);
    }
}

#define FUSEDNN_RECURRENT_BACKWARD(T) \
    template void recurrent_backward<T>(const RecurrentParams<T>&, const RecurrentGrads<T>&);
FUSEDNN_INSTANTIATE(FUSEDNN_RECURRENT_BACKWARD)

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
