// One direction of one recurrent layer.
//
//   pass 1   gates (rows, gates * hidden) = x W_ih^T + b_ih (+ b_hh), all steps at once
//   pass 2   for each step:  products = h W_hh^T, h masked before if there is a mask
//                            a thread to a unit of a sequence: gates, c, h, the output
//                            h = h W_hr^T if the layer projects
//            or, where sequence_suits(), one kernel for all steps
#include "cuda/recurrent/forward.h"

#include "cuda/elementwise.h"
#include "cuda/recurrent/sequence.h"

namespace fusednn::cuda {

namespace {

constexpr int kThreads = 256;

// b_ih + b_hh, but for a GRU's b_hn, which stands inside the product with r.
template <class T>
__global__ void __launch_bounds__(kThreads)
    join_biases(i64 width, i64 both, Read<T> b_ih, Read<T> b_hh, Write<T> bias) {
    const i64 j = i64(blockIdx.x) * kThreads + threadIdx.x;
    if (j < width) bias[j] = j < both ? b_ih[j] + b_hh[j] : b_ih[j];
}

// What the cell reads and writes at one step; row i of each array is the i-th active sequence.
template <class T>
struct CellStep {
    Cell cell;
    i64 hidden;
    Write<T> gates;  // (n, gates_row): x's part; the gates' values out if `keep`
    i64 gates_row;
    bool keep;
    Read<T> products;      // (n, gates * hidden) or null
    Read<T> b_hn;          // GRU only, or null
    Accumulate<T>* c;      // (n, hidden) LSTM only
    Write<T> c_before;     // likewise, or null
    Write<T> unprojected;  // (n, hidden): h before its projection; or null, and `state` takes it
    StepState<T> state;
};

template <class T>
__global__ void __launch_bounds__(kThreads) cell_kernel(CellStep<T> s, i64 size) {
    constexpr bool kHalf = sizeof(T) == 2;
    const int gates = gates_of(s.cell), kept = kept_gates(s.cell);
    const i64 at = i64(blockIdx.x) * kThreads + threadIdx.x;
    if (at >= size) return;
    const i64 row = quotient(at, s.hidden), unit = at - row * s.hidden;
    const Write<T> mine = s.gates + (row * s.gates_row + unit);
    UnitIn<Accumulate<T>> in{};
#pragma unroll
    for (int g = 0; g < 4; ++g) {
        if (g < gates) in.x[g] = Read<T>(mine)[g * s.hidden];
        if (g < gates && s.products) in.u[g] = s.products[(row * gates + g) * s.hidden + unit];
    }
    if (s.b_hn) in.b_hn = s.b_hn[unit];
    if (s.c) in.c = s.c[at];
    if (s.cell == Cell::gru) in.h = Read<T>(s.state.h)[at];
    const auto out = cell_of_unit(s.cell, in);
#pragma unroll
    for (int g = 0; g < 4; ++g) {
        if (s.keep && g < kept) mine[g * s.hidden] = kHalf ? out.before[g] : out.kept[g];
    }
    if (s.c_before) s.c_before[at] = in.c;
    if (s.c) s.c[at] = out.c;
    if (s.unprojected) {
        s.unprojected[at] = out.h;
    } else {
        s.state.put(row, unit, out.h);
    }
}

// The projected h of a step.
template <class T>
__global__ void __launch_bounds__(kThreads) put_kernel(StepState<T> state, i64 size, Read<T> h) {
    const i64 at = i64(blockIdx.x) * kThreads + threadIdx.x;
    if (at >= size) return;
    const i64 row = quotient(at, state.outputs);
    state.put(row, at - row * state.outputs, h[at]);
}

}  // namespace

template <class T>
RecurrentSteps<T>::RecurrentSteps(const RecurrentParams<T>& p, const Rows<T>& rows)
    : p_(p),
      rows_(rows),
      norm_(p.cell == Cell::norm_lstm),
      in_sequence_(sequence_suits(p)),
      bias_(p.b_ih ? gates_of(p.cell) * p.hidden : 0),
      h_(p.batch * p.outputs),
      next_(p.w_hr ? p.batch * p.hidden : 0),
      projected_(p.w_hr ? p.batch * p.outputs : 0),
      seen_(p.mask ? p.batch * p.outputs : 0),
      by_h_(in_sequence_ ? 0 : p.batch * gates_of(p.cell) * p.hidden),
      c_(has_memory(p.cell) ? p.batch * p.hidden : 0) {
    if (p.b_ih) {
        const i64 width = gates_of(p.cell) * p.hidden;
        launch("join_biases", {blocks_for(width, kThreads), kThreads}, join_biases<Storage<T>>,
               width, p.cell == Cell::gru ? 2 * p.hidden : width, reading(p.b_ih), reading(p.b_hh),
               writing(bias_.get()));
    }
    rows_.load_state(p.h0, p.outputs, h_.get());
    if (has_memory(p.cell)) rows_.load_state(p.c0, p.hidden, c_.get());
    see();
}

template <class T>
void RecurrentSteps<T>::see() const {
    if (p_.mask) rows_.mask_state(h_.get(), p_.outputs, p_.mask, seen_.get());
}

template <class T>
void RecurrentSteps<T>::save_state(T* h, T* c) const {
    copy_values<T>(h, h_.get(), p_.batch * p_.outputs);
    if (c) copy_bytes(c, c_.get(), p_.batch * p_.hidden * i64(sizeof(Accumulate<T>)));
}

template <class T>
void RecurrentSteps<T>::set_state(const T* h, const T* c) {
    copy_values<T>(h_.get(), h, p_.batch * p_.outputs);
    if (c) copy_bytes(c_.get(), c, p_.batch * p_.hidden * i64(sizeof(Accumulate<T>)));
    see();
}

template <class T>
void RecurrentSteps<T>::finish(const RecurrentResults<T>& to) const {
    rows_.store_state(h_.get(), p_.outputs, to.h_n);
    if (has_memory(p_.cell)) rows_.store_state(c_.get(), p_.hidden, to.c_n);
}

// Pass 1 for some steps. How the product cuts its depth is chosen by all rows of the call: a
// segment of it has the same bits as the whole.
template <class T>
void RecurrentSteps<T>::input_gates(i64 begin, i64 end, T* gates) const {
    const RowsView view = rows_.view(begin, end);
    const i64 count = rows_.count(begin, end);
    const bool in_place = rows_.in_place();
    const Workspace<T> gathered(in_place ? 0 : count * p_.inputs);
    if (!in_place) {
        move_rows(Move::gather, view, p_.inputs, gathered.get(), const_cast<T*>(p_.x), p_.x_step,
                  p_.x_row);
    }
    GemmParams<T> g{};
    g.m = count;
    g.n = gates_of(p_.cell) * p_.hidden;
    g.k = p_.inputs;
    g.a = in_place ? p_.x + view.row0 * p_.inputs : gathered.get();
    g.a_row = p_.inputs;
    g.a_col = 1;
    g.b = p_.w_ih;
    g.b_row = 1;
    g.b_col = p_.inputs;
    g.c = gates;
    g.ldc = p_.gates_row;
    g.col_bias = p_.b_ih && !norm_ ? bias_.get() : nullptr;
    gemm_part(g, p_.rows);
}

template <class T>
StepState<Storage<T>> RecurrentSteps<T>::state_at(i64 n, const Kept<T>& keep,
                                                  const RecurrentResults<T>* to) const {
    const i64 t = rows_.time(n);
    StepState<Storage<T>> state{};
    state.outputs = p_.outputs;
    state.sequence = rows_.sequences();
    state.h = writing(h_.get());
    if (keep.gates) {
        state.h_before = writing(keep.h_before + (rows_.start(t) - keep.block_row) * p_.outputs);
    }
    if (to && to->out) state.out = writing(to->out + t * to->out_step);
    if (to) state.out_row = to->out_row;
    state.mask = reading(p_.mask);
    state.seen = writing(seen_.get());
    return state;
}

template <class T>
void RecurrentSteps<T>::run(i64 begin, i64 end, const Kept<T>& keep,
                            const RecurrentResults<T>* to) {
    const i64 row0 = rows_.first_row(begin, end), gates_row = p_.gates_row;
    const Workspace<T> own(keep.gates ? 0 : rows_.count(begin, end) * gates_row);
    T* inputs = own.get();
    if (keep.gates && norm_) inputs = keep.by_x + (row0 - keep.block_row) * gates_row;
    if (keep.gates && !norm_) inputs = keep.gates + (row0 - keep.row) * gates_row;
    input_gates(begin, end, inputs);
    if (to && to->out && p_.active) {
        move_rows(Move::clear, rows_.view(begin, end), p_.outputs, static_cast<T*>(nullptr),
                  to->out, to->out_step, to->out_row);
    }
    if (in_sequence_) return whole_sequence(begin, end, keep, inputs, to);
    for (i64 n = begin; n < end; ++n) {
        T* mine = inputs + (rows_.start(rows_.time(n)) - row0) * gates_row;
        const auto state = state_at(n, keep, to);
        norm_ ? norm_step(n, keep, mine, state) : plain_step(n, keep, mine, state);
    }
}

template <class T>
void RecurrentSteps<T>::whole_sequence(i64 begin, i64 end, const Kept<T>& keep, T* inputs,
                                       const RecurrentResults<T>* to) {
    const auto& p = p_;
    const i64 depth = sequence_depth<T>(p.hidden), size = p.batch * depth;
    const Workspace<T> h(2 * size), seen(p.mask ? 2 * size : 0);
    const RowsView dense{0, 1, p.batch, 0, nullptr, nullptr};
    const auto move = [&](Move way, const Workspace<T>& state, const Workspace<T>& padded, i64 n) {
        move_rows(way, dense, p.hidden, state.get(), padded.get() + n % 2 * size, 0, depth);
    };
    clear_values(h.get(), 2 * size);
    move(Move::put, h_, h, begin);
    if (p.mask) {
        clear_values(seen.get(), 2 * size);
        move(Move::put, seen_, seen, begin);
    }
    Sequence<Storage<T>> s{};
    s.cell = p.cell;
    s.reverse = p.reverse;
    s.begin = begin;
    s.end = end;
    s.all_steps = p.steps;
    s.batch = p.batch;
    s.hidden = p.hidden;
    s.view = rows_.view(begin, end);
    s.w_hh = reading(p.w_hh);
    s.b_hn = reading(p.b_hh && p.cell == Cell::gru ? p.b_hh + 2 * p.hidden : nullptr);
    s.from_zeros = !p.h0;
    s.depth = depth;
    s.gates = writing(inputs);
    s.row0 = s.view.row0;
    s.gates_row = p.gates_row;
    s.keep = keep.gates != nullptr;
    s.c_before = writing(keep.c_before);
    s.h_before = writing(keep.h_before);
    s.c_row = keep.row;
    s.h_row = keep.block_row;
    s.c = c_.get();
    s.h = writing(h.get());
    s.seen = writing(seen.get());
    s.mask = reading(p.mask);
    if (to) {
        s.out = writing(to->out);
        s.out_step = to->out_step;
        s.out_row = to->out_row;
    }
    run_sequence(s);
    move(Move::gather, h_, h, end);
    if (p.mask) move(Move::gather, seen_, seen, end);
}

template <class T>
void RecurrentSteps<T>::plain_step(i64 n, const Kept<T>& keep, T* inputs,
                                   const StepState<Storage<T>>& state) {
    const auto& p = p_;
    const i64 t = rows_.time(n), active = rows_.active(t), size = active * p.hidden;
    const bool product = hidden_product(n, by_h_.get(), gates_of(p.cell) * p.hidden);
    CellStep<Storage<T>> s{};
    s.cell = p.cell;
    s.hidden = p.hidden;
    s.gates = writing(inputs);
    s.gates_row = p.gates_row;
    s.keep = keep.gates != nullptr;
    s.products = reading<T>(product ? by_h_.get() : nullptr);
    s.b_hn = reading(p.b_hh && p.cell == Cell::gru ? p.b_hh + 2 * p.hidden : nullptr);
    s.c = c_.get();
    if (s.keep && s.c) {
        s.c_before = writing(keep.c_before + (rows_.start(t) - keep.row) * p.hidden);
    }
    s.unprojected = writing(next_.get());
    s.state = state;
    launch("recurrent_cell", {blocks_for(size, kThreads), kThreads}, cell_kernel<Storage<T>>, s,
           size);
    if (!p.w_hr) return;
    multiply<T>(active, p.outputs, p.hidden, {next_.get(), p.hidden, 1}, {p.w_hr, 1, p.hidden},
                projected_.get(), p.outputs, false);
    launch("recurrent_state", {blocks_for(active * p.outputs, kThreads), kThreads},
           put_kernel<Storage<T>>, state, active * p.outputs, reading<T>(projected_.get()));
}

template <class T>
void RecurrentSteps<T>::norm_step(i64 n, const Kept<T>& keep, T* inputs,
                                  const StepState<Storage<T>>& state) {
    const auto& p = p_;
    const i64 first = rows_.start(rows_.time(n)), active = rows_.active(rows_.time(n));
    T* by_h = by_h_.get();
    NormStep<Storage<T>> s{};
    s.hidden = p.hidden;
    s.gain_x = reading(p.gain_ih);
    s.gain_h = reading(p.gain_hh);
    s.gain_c = reading(p.gain_c);
    s.bias_c = reading(p.bias_c);
    s.eps = Accumulate<T>(p.eps);
    s.bias = reading<T>(p.b_ih ? bias_.get() : nullptr);
    s.gates_row = p.gates_row;
    s.h_row = 4 * p.hidden;
    s.by_x = writing(inputs);
    s.c = c_.get();
    s.state = state;
    if (keep.gates) {
        const i64 row = first - keep.row, block_row = first - keep.block_row;
        s.h_row = p.gates_row;
        by_h = keep.by_h + block_row * p.gates_row;
        s.gates = writing(keep.gates + row * p.gates_row);
        s.scale = keep.scale + block_row * 2;
        s.c_before = writing(keep.c_before + row * p.hidden);
    }
    s.by_h = writing(by_h);
    if (!hidden_product(n, by_h, s.h_row)) clear_values(by_h, active * s.h_row);
    norm_lstm_step(s, active);
}

template <class T>
bool RecurrentSteps<T>::hidden_product(i64 n, T* by_h, i64 row) const {
    if (n == 0 && !p_.h0) return false;
    const T* seen = p_.mask ? seen_.get() : h_.get();
    multiply<T>(rows_.active(rows_.time(n)), gates_of(p_.cell) * p_.hidden, p_.outputs,
                {seen, p_.outputs, 1}, {p_.w_hh, 1, p_.outputs}, by_h, row, false);
    return true;
}

template <class T>
void recurrent_forward(const RecurrentParams<T>& p, const RecurrentResults<T>& to) {
    const Rows<T> rows(p);
    RecurrentSteps<T> steps(p, rows);
    if (p.segment_count == 0 || !to.reserve) {
        steps.run(0, p.steps, parts_of(p, to.reserve), &to);
    } else {
        const Checkpoints<T> kept(p, to.reserve);
        for (i64 i = 0; i < p.segment_count; ++i) {
            steps.save_state(kept.h(i), kept.c(i));
            steps.run(p.segments[i], p.segments[i + 1], {}, &to);
        }
    }
    steps.finish(to);
}

#define FUSEDNN_RECURRENT_FORWARD(T)  \
    template class RecurrentSteps<T>; \
    template void recurrent_forward<T>(const RecurrentParams<T>&, const RecurrentResults<T>&);
FUSEDNN_INSTANTIATE(FUSEDNN_RECURRENT_FORWARD)
FUSEDNN_INSTANTIATE_HALF(FUSEDNN_RECURRENT_FORWARD)

}  // namespace fusednn::cuda
