// Backpropagation through time of one direction of one recurrent layer, exact.
//
// Block of steps by block of steps, the last one first; where they are cut depends on shapes alone.
//
//   pass 1   for each step, last to first:  dh += d_out;  dh = dh W_hr if the layer projects
//                                           the cell, unit by unit: d_gates, dc
//                                           dh of the step before = d_gates W_hh, masked
//            d_x = d_gates W_ih here for wide batches (fuses_input), else in pass 2
//   pass 2   all steps of the block at once (gradients.cpp):  d_W_ih += d_gates^T x,
//            d_W_hh += d_gates^T h_before,  d_b += column sums of d_gates
//
// With checkpoints, forward runs again for a segment of steps when the walk comes to its end.
//
// d_gates is (rows, 4 * hidden) in the weights' order for the LSTM and (rows, hidden) for an RNN.
// For the GRU it is n, r, z, n * r: the middle two and the first or the last are then neighbours,
// as the product with x (n) and the one with h (n * r) need them.
#include "cpu/recurrent/forward.h"
#include "cpu/recurrent/gradients.h"

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

// The most rows that any of the stretches has.
template <class T>
i64 most_rows(const Rows<T>& rows, const i64* bounds, i64 count) {
    i64 most = 0;
    for (i64 i = 0; i < count; ++i) most = max_of(most, rows.count(bounds[i], bounds[i + 1]));
    return most;
}

template <class T>
class Walk {
  public:
    Walk(const RecurrentParams<T>& p, const RecurrentGrads<T>& g, const Rows<T>& rows);
    // `again` runs forward where there are checkpoints, else it is null.
    void run(RecurrentSteps<T>* again);

  private:
    void run_again(RecurrentSteps<T>& again, i64 block_begin, i64 block_end);
    void step(i64 n, i64 block_row, T* dx);
    void norm_step(i64 active, i64 start, i64 at);
    void to_step_before(i64 active, const T* d_gates);
    void gradients(i64 begin, i64 end, bool first, T* dx);

    const RecurrentParams<T>& p_;
    const RecurrentGrads<T>& g_;
    const Rows<T>& rows_;
    const bool has_c_, is_gru_, is_norm_, in_place_, fused_;
    const i64 d_row_, state_row_;
    // The most rows of a block, of a segment, and of both; the last two 0 without checkpoints.
    const i64 block_rows_, segment_rows_, both_rows_;
    i64 segment_;  // whose rows kept_ has: those before it are still to come
    Kept<T> kept_;
    Workspace<T> d_gates_, dh_, dc_;
    // With a projection: dh before and after it, and h before it.
    Workspace<T> inner_dh_, outer_dh_, unprojected_;
    // With a mask: the mask, dh on its way through it, h_before as W_hh met it.
    Workspace<T> mask_, through_, masked_h_;
    Workspace<T> own_dx_;
    // With normalisation: the products' gradients, and those behind LN(c), times it.
    Workspace<T> d_by_x_, d_by_h_, d_cell_, d_gain_c_;
    // With checkpoints: what kept_ points to.
    Workspace<T> gates_, c_before_, h_before_, by_x_, by_h_, scale_;
    const StepProduct<T> by_hh_, by_hr_, by_ih_;
};

template <class T>
Walk<T>::Walk(const RecurrentParams<T>& p, const RecurrentGrads<T>& g, const Rows<T>& rows)
    : p_(p),
      g_(g),
      rows_(rows),
      has_c_(has_memory(p.cell)),
      is_gru_(p.cell == Cell::gru),
      is_norm_(p.cell == Cell::norm_lstm),
      in_place_(rows.in_place()),
      fused_(g.d_x && fuses_input(p)),
      d_row_(p.gates_row),
      state_row_(rows.state_row()),
      block_rows_(most_rows(rows, p.blocks, p.block_count)),
      segment_rows_(most_rows(rows, p.segments, p.segment_count)),
      both_rows_(p.segment_count ? max_of(segment_rows_, block_rows_) : 0),
      segment_(p.segment_count),
      kept_(parts_of(p, const_cast<T*>(g.reserve))),
      d_gates_(block_rows_ * d_row_),
      dh_(p.batch * state_row_),
      dc_(has_c_ ? p.batch * state_row_ : 0),
      inner_dh_(p.w_hr ? p.batch * state_row_ : 0),
      outer_dh_(p.w_hr ? block_rows_ * p.outputs : 0),
      unprojected_(p.w_hr ? block_rows_ * p.hidden : 0),
      mask_(p.mask ? p.batch * state_row_ : 0),
      through_(p.mask ? p.batch * state_row_ : 0),
      masked_h_(p.mask ? block_rows_ * p.outputs : 0),
      own_dx_(g.d_x && !in_place_ ? block_rows_ * p.inputs : 0),
      d_by_x_(is_norm_ ? block_rows_ * d_row_ : 0),
      d_by_h_(is_norm_ ? block_rows_ * d_row_ : 0),
      d_cell_(is_norm_ ? block_rows_ * p.hidden : 0),
      d_gain_c_(is_norm_ ? block_rows_ * p.hidden : 0),
      gates_(segment_rows_ * d_row_),
      c_before_(has_c_ ? segment_rows_ * p.hidden : 0),
      h_before_(both_rows_ * p.outputs),
      by_x_(is_norm_ ? both_rows_ * d_row_ : 0),
      by_h_(is_norm_ ? both_rows_ * d_row_ : 0),
      scale_(is_norm_ ? both_rows_ * 2 : 0),
      by_hh_(p.steps, p.batch, 1, p.outputs, gates_of(p.cell) * p.hidden, p.w_hh, p.outputs, 1),
      by_hr_(p.w_hr ? p.steps : 0, p.batch, 1, p.w_hr ? p.hidden : 0, p.outputs, p.w_hr, p.hidden,
             1),
      by_ih_(fused_ ? p.steps : 0, p.batch, 1, p.inputs, gates_of(p.cell) * p.hidden, p.w_ih,
             p.inputs, 1) {
    rows.load_state(g.d_h_n, p.outputs, dh_.get());
    if (has_c_) rows.load_state(g.d_c_n, p.hidden, dc_.get());
    if (p.mask) rows.load_state(p.mask, p.outputs, mask_.get());
    if (p.segment_count == 0) return;
    kept_ = {0,           0,           gates_.get(), c_before_.get(), h_before_.get(),
             by_x_.get(), by_h_.get(), scale_.get()};
}

template <class T>
void Walk<T>::run(RecurrentSteps<T>* again) {
    for (i64 block = p_.block_count - 1; block >= 0; --block) {
        const i64 begin = p_.blocks[block], end = p_.blocks[block + 1];
        const i64 row0 = rows_.first_row(begin, end);
        T* dx = in_place_ && g_.d_x ? g_.d_x + row0 * p_.inputs : own_dx_.get();
        for (i64 n = end - 1; n >= begin; --n) {
            if (again && n < p_.segments[segment_]) run_again(*again, begin, end);
            step(n, row0, dx);
        }
        gradients(begin, end, block + 1 == p_.block_count, g_.d_x ? dx : nullptr);
    }
    rows_.store_state(dh_.get(), p_.outputs, g_.d_h0);
    if (has_c_) rows_.store_state(dc_.get(), p_.hidden, g_.d_c0);
}

template <class T>
void Walk<T>::run_again(RecurrentSteps<T>& again, i64 block_begin, i64 block_end) {
    const Checkpoints<T> states(p_, const_cast<T*>(g_.reserve));
    --segment_;
    const i64 begin = p_.segments[segment_], end = p_.segments[segment_ + 1];
    const bool holds_block = begin <= block_begin && end >= block_end;
    kept_.row = rows_.first_row(begin, end);
    kept_.block_row = holds_block ? kept_.row : rows_.first_row(block_begin, block_end);
    again.set_state(states.h(segment_), states.c(segment_));
    again.run(begin, end, kept_, nullptr);
}

template <class T>
void Walk<T>::step(i64 n, i64 block_row, T* dx) {
    const auto& p = p_;
    const i64 t = rows_.time(n), active = rows_.active(t), start = rows_.start(t);
    const i64 at = start - block_row;  // in the arrays of the block
    add_output_grad(p, g_, rows_, t, dh_.get());
    if (p.w_hr) {
        rows_.keep_state(active, dh_.get(), p.outputs, outer_dh_.get() + at * p.outputs);
        by_hr_.multiply(active, dh_.get(), state_row_, inner_dh_.get(), state_row_, false);
    }
    if (is_norm_) {
        norm_step(active, start, at);
        if (n > 0 || g_.d_h0) to_step_before(active, d_by_h_.get() + at * d_row_);
        return;
    }
    BackStep<T> s;
    s.hidden = p.hidden;
    s.gates = kept_.gates + (start - kept_.row) * d_row_;
    s.d_gates = d_gates_.get() + at * d_row_;
    s.gates_row = d_row_;
    s.c_before = kept_.c_before + (start - kept_.row) * p.hidden;
    s.h_before = kept_.h_before + (start - kept_.block_row) * p.outputs;
    s.state_row = state_row_;
    s.dh = p.w_hr ? inner_dh_.get() : dh_.get();
    s.dc = dc_.get();
    s.unprojected = p.w_hr ? unprojected_.get() + at * p.hidden : nullptr;
    cell_step(p.cell, active, s);
    if (n > 0 || g_.d_h0) to_step_before(active, s.d_gates + (is_gru_ ? p.hidden : 0));
    if (fused_) {
        by_ih_.multiply(active, s.d_gates, d_row_, dx + at * p.inputs, p.inputs,
                        in_place_ && g_.d_x_add);
    }
}

template <class T>
void Walk<T>::norm_step(i64 active, i64 start, i64 at) {
    const i64 row = start - kept_.row, block_row = start - kept_.block_row;
    NormBackStep<T> s;
    s.hidden = p_.hidden;
    s.gain = gains_of(p_);
    s.gates_row = d_row_;
    s.gates = kept_.gates + row * d_row_;
    s.by_x = kept_.by_x + block_row * d_row_;
    s.by_h = kept_.by_h + block_row * d_row_;
    s.d_gates = d_gates_.get() + at * d_row_;
    s.d_by_x = d_by_x_.get() + at * d_row_;
    s.d_by_h = d_by_h_.get() + at * d_row_;
    s.scale = kept_.scale + block_row * 2;
    s.c_before = kept_.c_before + row * p_.hidden;
    s.d_cell = d_cell_.get() + at * p_.hidden;
    s.d_gain_c = d_gain_c_.get() + at * p_.hidden;
    s.state_row = state_row_;
    s.dh = dh_.get();
    s.dc = dc_.get();
    for_rows(active, p_.hidden, [&](i64 begin, i64 end) {
        for (i64 i = begin; i < end; ++i) norm_lstm_row_back(s, i);
    });
}

// dh = (what a GRU hands on directly +) mask * d_gates W_hh.
template <class T>
void Walk<T>::to_step_before(i64 active, const T* d_gates) {
    T* dh = dh_.get();
    if (!p_.mask) return by_hh_.multiply(active, d_gates, d_row_, dh, state_row_, is_gru_);
    T* through = through_.get();
    by_hh_.multiply(active, d_gates, d_row_, through, state_row_, false);
    for (i64 i = 0; i < active; ++i) {
        const i64 at = i * state_row_;
        if (!is_gru_) {
            masked(p_.outputs, through + at, mask_.get() + at, dh + at);
            continue;
        }
        masked(p_.outputs, through + at, mask_.get() + at, through + at);
        for_units<T>(p_.outputs, [&](i64 unit, auto lanes) {
            lanes.store(dh + at + unit,
                        lanes.load(dh + at + unit) + lanes.load(through + at + unit));
        });
    }
}

template <class T>
void Walk<T>::gradients(i64 begin, i64 end, bool first, T* dx) {
    const auto& p = p_;
    const i64 row0 = rows_.first_row(begin, end), t0 = rows_.first_time(begin, end);
    BlockGrads<T> block{};
    block.begin = begin;
    block.end = end;
    block.add = !first;
    block.d_gates = d_gates_.get();
    block.d_by_x = is_norm_ ? d_by_x_.get() : block.d_gates;
    block.d_by_h = is_norm_ ? d_by_h_.get() : block.d_gates;
    block.h_before = kept_.h_before + (row0 - kept_.block_row) * p.outputs;
    for (i64 t = t0; p.mask && t < t0 + end - begin; ++t) {
        for (i64 i = 0; i < rows_.active(t); ++i) {
            const i64 at = (rows_.start(t) - row0 + i) * p.outputs;
            masked(p.outputs, block.h_before + at, mask_.get() + i * state_row_,
                   masked_h_.get() + at);
        }
    }
    if (p.mask) block.h_before = masked_h_.get();
    block.dx = dx;
    block.dx_done = fused_;
    recurrent_gradients(p, g_, rows_, block);
    if (is_norm_) {
        const i64 kept = (row0 - kept_.block_row) * d_row_;
        norm_gradients(p, g_, rows_.count(begin, end), block, kept_.by_x + kept, kept_.by_h + kept,
                       d_cell_.get(), d_gain_c_.get());
    }
    if (g_.d_w_hr) {
        projection_gradient(rows_.count(begin, end), p.outputs, p.hidden, outer_dh_.get(),
                            unprojected_.get(), g_.d_w_hr, !first);
    }
}

}  // namespace

template <class T>
void recurrent_backward(const RecurrentParams<T>& p, const RecurrentGrads<T>& g) {
    const Rows<T> rows(p);
    Walk<T> walk(p, g, rows);
    if (p.segment_count == 0) return walk.run(nullptr);
    RecurrentSteps<T> again(p);
    walk.run(&again);
}

#define FUSEDNN_RECURRENT_BACKWARD(T) \
    template void recurrent_backward<T>(const RecurrentParams<T>&, const RecurrentGrads<T>&);
FUSEDNN_INSTANTIATE(FUSEDNN_RECURRENT_BACKWARD)

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
