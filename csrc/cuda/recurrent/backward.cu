// Backpropagation through time of one direction of one recurrent layer, exact; the twin of
// cpu/recurrent/backward.cpp.
//
// Block of steps by block of steps, the last one first; where they are cut depends on shapes alone.
//
//   pass 1   for each step, last to first:  a thread to a unit of a sequence: dh += d_out, through
//                                           the cell: d_gates, dc (dh = dh W_hr before, if the
//                                           layer projects)
//                                           dh of the step before = d_gates W_hh, masked
//   pass 2   all steps of the block at once (gradients.cu):  d_W_ih += d_gates^T x,
//            d_W_hh += d_gates^T h_before,  d_b += column sums of d_gates,  d_x = d_gates W_ih
//
// Where sequence_back_suits(), pass 1 is one kernel for all steps of a block.
//
// With checkpoints, forward runs again for a segment of steps when the walk comes to its end.
#include "cuda/elementwise.h"
#include "cuda/recurrent/forward.h"
#include "cuda/recurrent/gradients.h"
#include "cuda/recurrent/sequence.h"

namespace fusednn::cuda {

namespace {

constexpr int kThreads = 256;

// What the cell reads and writes at one step; row i of each array is the i-th active sequence.
template <class T>
struct BackStep {
    using Sum = Accumulate<T>;
    Cell cell;
    i64 hidden;
    Read<T> gates;  // the reserve's
    i64 gates_row;
    Write<T> d_gates;      // (n, kept gates * hidden)
    Read<T> before;        // (n, hidden): c of an LSTM, h of a GRU, of the step before
    Sum* dh;               // (n, hidden); of a GRU it takes the part that goes to h directly
    Read<T> projected_dh;  // (n, hidden) in its place, behind a projection
    Sum* dc;               // (n, hidden) LSTM only
    Write<T> unprojected;  // (n, hidden): h before its projection, or null
    Read<T> d_out;         // sequence b at b * out_row, or null
    i64 out_row;
    const i64* sequence;
};

template <class T>
__global__ void __launch_bounds__(kThreads) back_kernel(BackStep<T> s, i64 size) {
    const int kept = kept_gates(s.cell);
    const i64 at = i64(blockIdx.x) * kThreads + threadIdx.x;
    if (at >= size) return;
    const i64 row = quotient(at, s.hidden), unit = at - row * s.hidden;
    UnitBackIn<Accumulate<T>> in{};
#pragma unroll
    for (int g = 0; g < 4; ++g) {
        if (g < kept) in.kept[g] = s.gates[row * s.gates_row + g * s.hidden + unit];
    }
    if constexpr (sizeof(T) == 2) gates_from_before(s.cell, in.kept);
    in.dh = s.projected_dh ? s.projected_dh[at] : s.dh[at];
    if (s.d_out) in.dh += s.d_out[(s.sequence ? s.sequence[row] : row) * s.out_row + unit];
    if (kept == 4) in.before = s.before[at];
    if (s.dc) in.dc = s.dc[at];
    const auto out = cell_of_unit_back(s.cell, in);
#pragma unroll
    for (int g = 0; g < 4; ++g) {
        if (g < kept) s.d_gates[(row * kept + g) * s.hidden + unit] = out.d_gates[g];
    }
    if (s.cell == Cell::gru) s.dh[at] = out.dh;
    if (s.dc) s.dc[at] = out.dc;
    if (s.unprojected) s.unprojected[at] = out.unprojected;
}

// outer = dh += d_out for the rows of a step.
template <class T>
__global__ void __launch_bounds__(kThreads)
    add_output_grad(i64 size, i64 outputs, Read<T> d_out, i64 out_row, const i64* sequence,
                    Accumulate<T>* dh, Write<T> outer) {
    const i64 at = i64(blockIdx.x) * kThreads + threadIdx.x;
    if (at >= size) return;
    const i64 row = quotient(at, outputs), unit = at - row * outputs;
    Accumulate<T> d = dh[at];
    if (d_out) d += d_out[(sequence ? sequence[row] : row) * out_row + unit];
    outer[at] = dh[at] = d;
}

// dh = masked through, or dh += it; without a mask, through itself.
template <class T>
__global__ void __launch_bounds__(kThreads)
    mask_grad(i64 size, i64 outputs, bool add, Read<T> through, Read<T> mask, const i64* sequence,
              Accumulate<T>* dh) {
    using Sum = Accumulate<T>;
    const i64 at = i64(blockIdx.x) * kThreads + threadIdx.x;
    if (at >= size) return;
    const i64 row = quotient(at, outputs), unit = at - row * outputs;
    const Sum factor = mask ? mask[(sequence ? sequence[row] : row) * outputs + unit] : Sum(1);
    const Sum d = factor != Sum(0) ? through[at] * factor : Sum(0);
    dh[at] = add ? dh[at] + d : d;
}

LaunchShape each(i64 size) {
    return {blocks_for(size, kThreads), kThreads};
}

// The most rows that any of the stretches has.
template <class T>
i64 most_rows(const Rows<T>& rows, const i64* bounds, i64 count) {
    i64 most = 0;
    for (i64 i = 0; i < count; ++i) {
        const i64 here = rows.count(bounds[i], bounds[i + 1]);
        most = here > most ? here : most;
    }
    return most;
}

template <class T>
class Walk {
  public:
    Walk(const RecurrentParams<T>& p, const RecurrentGrads<T>& g, const Rows<T>& rows);
    // `again` runs forward where there are checkpoints, else it is null.
    void run(RecurrentSteps<T>* again);

  private:
    // Products of 16-bit arrays are 16 bits; dh and dc are float.
    static constexpr bool kHalf = sizeof(T) == 2;

    void run_again(RecurrentSteps<T>& again, i64 block_begin, i64 block_end);
    void step(i64 n, i64 block_row);
    void sequence(i64 begin, i64 end, i64 block_row);
    void plain_step(i64 n, i64 at);
    void norm_step(i64 n, i64 at);
    void to_step_before(i64 n, const T* d_gates);
    void gradients(i64 begin, i64 end, bool first);

    const RecurrentParams<T>& p_;
    const RecurrentGrads<T>& g_;
    const Rows<T>& rows_;
    const bool has_c_, gru_, norm_, in_sequence_;
    const i64 d_row_;  // of d_gates
    // The most rows of a block, of a segment, and of both; the last two 0 without checkpoints.
    const i64 block_rows_, segment_rows_, both_rows_;
    i64 segment_;  // whose rows kept_ has: those before it are still to come
    Kept<T> kept_;
    Workspace<T> d_gates_;
    Workspace<Accumulate<T>> dh_, dc_;
    // With a projection: dh before and after it, and h before it.
    Workspace<T> inner_dh_, outer_dh_, unprojected_;
    // dh on its way through a mask, or from 16 bits to float; h_before as W_hh met it, with a mask.
    Workspace<T> through_, masked_h_;
    // With normalisation: the products' gradients, and those behind LN(c), times it.
    Workspace<T> d_by_x_, d_by_h_;
    Workspace<Accumulate<T>> d_cell_, d_gain_c_;
    // With checkpoints: what kept_ points to.
    Workspace<T> gates_, c_before_, h_before_, by_x_, by_h_;
    Workspace<Accumulate<T>> scale_;
};

template <class T>
Walk<T>::Walk(const RecurrentParams<T>& p, const RecurrentGrads<T>& g, const Rows<T>& rows)
    : p_(p),
      g_(g),
      rows_(rows),
      has_c_(has_memory(p.cell)),
      gru_(p.cell == Cell::gru),
      norm_(p.cell == Cell::norm_lstm),
      in_sequence_(sequence_back_suits(p)),
      d_row_((has_c_ || gru_ ? 4 : 1) * p.hidden),
      block_rows_(most_rows(rows, p.blocks, p.block_count)),
      segment_rows_(most_rows(rows, p.segments, p.segment_count)),
      both_rows_(!p.segment_count              ? 0
                 : segment_rows_ > block_rows_ ? segment_rows_
                                               : block_rows_),
      segment_(p.segment_count),
      kept_(parts_of(p, const_cast<T*>(g.reserve))),
      d_gates_(block_rows_ * d_row_),
      dh_(p.batch * p.outputs),
      dc_(has_c_ ? p.batch * p.hidden : 0),
      inner_dh_(p.w_hr ? p.batch * p.hidden : 0),
      outer_dh_(p.w_hr ? block_rows_ * p.outputs : 0),
      unprojected_(p.w_hr ? block_rows_ * p.hidden : 0),
      through_(p.mask || kHalf ? p.batch * p.outputs : 0),
      masked_h_(p.mask ? block_rows_ * p.outputs : 0),
      d_by_x_(norm_ ? block_rows_ * d_row_ : 0),
      d_by_h_(norm_ ? block_rows_ * d_row_ : 0),
      d_cell_(norm_ ? block_rows_ * p.hidden : 0),
      d_gain_c_(norm_ ? block_rows_ * p.hidden : 0),
      gates_(segment_rows_ * p.gates_row),
      c_before_(has_c_ ? segment_rows_ * p.hidden : 0),
      h_before_(both_rows_ * p.outputs),
      by_x_(norm_ ? both_rows_ * p.gates_row : 0),
      by_h_(norm_ ? both_rows_ * p.gates_row : 0),
      scale_(norm_ ? both_rows_ * 2 : 0) {
    rows.load_state(g.d_h_n, p.outputs, dh_.get());
    if (has_c_) rows.load_state(g.d_c_n, p.hidden, dc_.get());
    if (p.segment_count == 0) return;
    kept_ = {0,           0,           gates_.get(), c_before_.get(), h_before_.get(),
             by_x_.get(), by_h_.get(), scale_.get()};
}

template <class T>
void Walk<T>::run(RecurrentSteps<T>* again) {
    for (i64 block = p_.block_count - 1; block >= 0; --block) {
        const i64 begin = p_.blocks[block], end = p_.blocks[block + 1];
        const i64 row0 = rows_.first_row(begin, end);
        for (i64 n = end; n > begin;) {
            if (again && n <= p_.segments[segment_]) run_again(*again, begin, end);
            // As far as what forward kept reaches.
            const i64 kept = again ? p_.segments[segment_] : 0, first = kept > begin ? kept : begin;
            if (in_sequence_) sequence(first, n, row0);
            for (; !in_sequence_ && n > first; --n) step(n - 1, row0);
            n = first;
        }
        gradients(begin, end, block + 1 == p_.block_count);
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
void Walk<T>::step(i64 n, i64 block_row) {
    const i64 t = rows_.time(n), active = rows_.active(t), at = rows_.start(t) - block_row;
    if (p_.w_hr) {
        launch("recurrent_output_grad", each(active * p_.outputs), add_output_grad<Storage<T>>,
               active * p_.outputs, p_.outputs,
               reading(g_.d_out ? g_.d_out + t * g_.out_step : nullptr), g_.out_row,
               rows_.sequences(), dh_.get(), writing(outer_dh_.get() + at * p_.outputs));
        multiply<T>(active, p_.hidden, p_.outputs,
                    {outer_dh_.get() + at * p_.outputs, p_.outputs, 1}, {p_.w_hr, p_.hidden, 1},
                    inner_dh_.get(), p_.hidden, false);
    }
    norm_ ? norm_step(n, at) : plain_step(n, at);
    if (n == 0 && !g_.d_h0) return;
    to_step_before(n, norm_ ? d_by_h_.get() + at * d_row_
                            : d_gates_.get() + at * d_row_ + (gru_ ? p_.hidden : 0));
}

template <class T>
void Walk<T>::sequence(i64 begin, i64 end, i64 block_row) {
    SequenceBack<Storage<T>> s{};
    s.cell = p_.cell;
    s.reverse = p_.reverse;
    s.begin = begin;
    s.end = end;
    s.all_steps = p_.steps;
    s.batch = p_.batch;
    s.hidden = p_.hidden;
    s.view = rows_.view(begin, end);
    s.w_hh = reading(p_.w_hh);
    s.to_state = g_.d_h0 != nullptr;
    s.gates = reading<T>(kept_.gates);
    s.gates_first = kept_.row;
    s.gates_row = p_.gates_row;
    s.before = reading<T>(gru_ ? kept_.h_before : kept_.c_before);
    s.before_first = gru_ ? kept_.block_row : kept_.row;
    s.d_gates = writing(d_gates_.get());
    s.d_first = block_row;
    s.d_row = d_row_;
    s.dh = dh_.get();
    s.dc = dc_.get();
    s.mask = reading(p_.mask);
    s.d_out = reading(g_.d_out);
    s.out_step = g_.out_step;
    s.out_row = g_.out_row;
    run_sequence_back(s);
}

template <class T>
void Walk<T>::plain_step(i64 n, i64 at) {
    const i64 t = rows_.time(n), start = rows_.start(t), size = rows_.active(t) * p_.hidden;
    BackStep<Storage<T>> s{};
    s.cell = p_.cell;
    s.hidden = p_.hidden;
    s.gates = reading<T>(kept_.gates + (start - kept_.row) * p_.gates_row);
    s.gates_row = p_.gates_row;
    s.d_gates = writing(d_gates_.get() + at * d_row_);
    if (has_c_) s.before = reading<T>(kept_.c_before + (start - kept_.row) * p_.hidden);
    if (gru_) s.before = reading<T>(kept_.h_before + (start - kept_.block_row) * p_.hidden);
    s.dh = dh_.get();
    if (p_.w_hr) s.projected_dh = reading<T>(inner_dh_.get());
    s.dc = dc_.get();
    if (p_.w_hr) s.unprojected = writing(unprojected_.get() + at * p_.hidden);
    if (g_.d_out && !p_.w_hr) s.d_out = reading(g_.d_out + t * g_.out_step);
    s.out_row = g_.out_row;
    s.sequence = rows_.sequences();
    launch("recurrent_cell_back", each(size), back_kernel<Storage<T>>, s, size);
}

template <class T>
void Walk<T>::norm_step(i64 n, i64 at) {
    const i64 t = rows_.time(n), start = rows_.start(t);
    const i64 row = start - kept_.row, block_row = start - kept_.block_row;
    NormBackStep<Storage<T>> s{};
    s.hidden = p_.hidden;
    s.gain_x = reading(p_.gain_ih);
    s.gain_h = reading(p_.gain_hh);
    s.gain_c = reading(p_.gain_c);
    s.bias_c = reading(p_.bias_c);
    s.eps = Accumulate<T>(p_.eps);
    s.gates_row = p_.gates_row;
    s.gates = reading<T>(kept_.gates + row * p_.gates_row);
    s.by_x = reading<T>(kept_.by_x + block_row * p_.gates_row);
    s.by_h = reading<T>(kept_.by_h + block_row * p_.gates_row);
    s.scale = kept_.scale + block_row * 2;
    s.c_before = reading<T>(kept_.c_before + row * p_.hidden);
    s.d_gates = writing(d_gates_.get() + at * d_row_);
    s.d_by_x = writing(d_by_x_.get() + at * d_row_);
    s.d_by_h = writing(d_by_h_.get() + at * d_row_);
    s.d_cell = d_cell_.get() + at * p_.hidden;
    s.d_gain_c = d_gain_c_.get() + at * p_.hidden;
    s.dh = dh_.get();
    s.dc = dc_.get();
    if (g_.d_out) s.d_out = reading(g_.d_out + t * g_.out_step);
    s.out_row = g_.out_row;
    s.sequence = rows_.sequences();
    norm_lstm_step_back(s, rows_.active(t));
}

// dh = (what a GRU hands on directly +) mask * d_gates W_hh.
template <class T>
void Walk<T>::to_step_before(i64 n, const T* d_gates) {
    const i64 active = rows_.active(rows_.time(n)), width = gates_of(p_.cell) * p_.hidden;
    const bool through = p_.mask || kHalf;
    T* to = through_.get();
    if constexpr (!kHalf) {
        if (!through) to = dh_.get();
    }
    multiply<T>(active, p_.outputs, width, {d_gates, d_row_, 1}, {p_.w_hh, p_.outputs, 1}, to,
                p_.outputs, gru_ && !through);
    if (!through) return;
    launch("recurrent_mask_grad", each(active * p_.outputs), mask_grad<Storage<T>>,
           active * p_.outputs, p_.outputs, gru_, reading<T>(to), reading(p_.mask),
           rows_.sequences(), dh_.get());
}

template <class T>
void Walk<T>::gradients(i64 begin, i64 end, bool first) {
    const auto& p = p_;
    const i64 row0 = rows_.first_row(begin, end), count = rows_.count(begin, end);
    BlockGrads<T> block{};
    block.begin = begin;
    block.end = end;
    block.add = !first;
    block.d_row = d_row_;
    block.d_gates = d_gates_.get();
    block.d_by_x = norm_ ? d_by_x_.get() : block.d_gates;
    block.d_by_h = norm_ ? d_by_h_.get() : block.d_gates;
    block.h_before = kept_.h_before + (row0 - kept_.block_row) * p.outputs;
    if (p.mask) {
        mask_rows(rows_.view(begin, end), p.outputs, block.h_before, p.mask, masked_h_.get());
        block.h_before = masked_h_.get();
    }
    recurrent_gradients(p, g_, rows_, block);
    if (norm_) {
        const i64 kept = (row0 - kept_.block_row) * p.gates_row;
        norm_gradients<T>(p, g_, count, block, kept_.by_x + kept, kept_.by_h + kept, d_cell_.get(),
                          d_gain_c_.get());
    }
    if (g_.d_w_hr) {
        multiply<T>(p.outputs, p.hidden, count, {outer_dh_.get(), 1, p.outputs},
                    {unprojected_.get(), p.hidden, 1}, g_.d_w_hr, p.hidden, !first);
    }
}

}  // namespace

template <class T>
void recurrent_backward(const RecurrentParams<T>& p, const RecurrentGrads<T>& g) {
    const Rows<T> rows(p);
    Walk<T> walk(p, g, rows);
    if (p.segment_count == 0) return walk.run(nullptr);
    RecurrentSteps<T> again(p, rows);
    walk.run(&again);
}

#define FUSEDNN_RECURRENT_BACKWARD(T) \
    template void recurrent_backward<T>(const RecurrentParams<T>&, const RecurrentGrads<T>&);
FUSEDNN_INSTANTIATE(FUSEDNN_RECURRENT_BACKWARD)
FUSEDNN_INSTANTIATE_HALF(FUSEDNN_RECURRENT_BACKWARD)

}  // namespace fusednn::cuda
