// One direction of one recurrent layer.
//
//   pass 1   gates (rows, gates * hidden) = x W_ih^T + b_ih (+ b_hh), all steps at once
//   pass 2   for each step:  recurrent = h W_hh^T, h masked before if there is a mask
//                            the cell, unit by unit (cells.h): gates, c, h
//                            h = h W_hr^T if the layer projects
#include "cpu/recurrent/forward.h"

#include "cpu/gemm/few.h"
#include "cpu/kernels.h"

namespace fusednn {
namespace FUSEDNN_ISA {

namespace {

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

// bfloat16 weights are read as they are where the step waits for them: in batches of a few, if both
// are. Where the products with x are made of many rows at once, they get floats.
template <class T>
bool reads_half_hh(const RecurrentParams<T>& p) {
    return p.w_hh_bf16 && p.w_ih_bf16 && p.batch <= kNarrowRows;
}
template <class T>
bool reads_half_ih(const RecurrentParams<T>& p) {
    return reads_half_hh(p) && (p.steps <= kUsesInPlace || InputAhead<T>::suits(p));
}
// How many values of a weight must be widened.
template <class T>
i64 wide_ih(const RecurrentParams<T>& p) {
    return p.w_ih_bf16 && !reads_half_ih(p) ? gates_of(p.cell) * p.hidden * p.inputs : 0;
}
template <class T>
i64 wide_hh(const RecurrentParams<T>& p) {
    return p.w_hh_bf16 && !reads_half_hh(p) ? gates_of(p.cell) * p.hidden * p.outputs : 0;
}

// p with floats at the given places for the bfloat16 weights that must be widened.
template <class T>
RecurrentParams<T> with_floats(const RecurrentParams<T>& given, T* ih, T* hh) {
    RecurrentParams<T> p = given;
    if (p.w_ih_bf16 && !reads_half_ih(given)) {
        widen_bf16(wide_ih(given), p.w_ih_bf16, ih);
        p.w_ih = ih;
        p.w_ih_bf16 = nullptr;
    }
    if (p.w_hh_bf16 && !reads_half_hh(given)) {
        widen_bf16(wide_hh(given), p.w_hh_bf16, hh);
        p.w_hh = hh;
        p.w_hh_bf16 = nullptr;
    }
    return p;
}

}  // namespace

template <class T>
RecurrentSteps<T>::RecurrentSteps(const RecurrentParams<T>& p)
    : wide_ih_(wide_ih(p)),
      wide_hh_(wide_hh(p)),
      p_(with_floats(p, wide_ih_.get(), wide_hh_.get())),
      rows_(p_),
      fused_(fuses_input(p)),
      ahead_suits_(InputAhead<T>::suits(p)),
      // Step by step the rows of x may lie anywhere, as long as they are all there.
      in_place_(fused_ ? !p.active : rows_.in_place()),
      bias_(p.b_ih ? gates_of(p.cell) * p.hidden : 0),
      h_(p.batch * rows_.state_row()),
      c_(has_memory(p.cell) ? p.batch * rows_.state_row() : 0),
      next_(p.batch * rows_.state_row()),
      mask_(p.mask ? p.batch * rows_.state_row() : 0),
      dropped_(p.mask ? p.batch * rows_.state_row() : 0),
      by_h_(p.cell == Cell::norm_lstm ? p.batch * p.gates_row : 0),
      by_ih_(fused_ ? p.steps : 0, p.batch, gates_of(p.cell), p.hidden, p.inputs, p_.w_ih, 1,
             p.inputs, nullptr, p.kept),
      by_hh_(p.steps, p.batch, gates_of(p.cell), p.hidden, p.outputs, p_.w_hh, 1, p.outputs,
             p_.w_hh_bf16, p.kept ? p.kept + 1 : nullptr),
      by_hr_(p.w_hr ? p.steps : 0, p.batch, 1, p.w_hr ? p.outputs : 0, p.hidden, p.w_hr, 1,
             p.hidden, nullptr, p.kept ? p.kept + 2 : nullptr),
      ahead_(p_, by_hh_.panels()) {
    if (p.b_ih) join_biases(p, bias_.get());
    rows_.load_state(p.h0, p.outputs, h_.get());
    if (has_memory(p.cell)) rows_.load_state(p.c0, p.hidden, c_.get());
    if (p.mask) rows_.load_state(p.mask, p.outputs, mask_.get());
    drop();
}

template <class T>
void RecurrentSteps<T>::drop() {
    const i64 row = rows_.state_row();
    for (i64 i = 0; p_.mask && i < p_.batch; ++i) {
        masked(p_.outputs, h_.get() + i * row, mask_.get() + i * row, dropped_.get() + i * row);
    }
}

template <class T>
void RecurrentSteps<T>::save_state(T* h, T* c) const {
    rows_.keep_state(p_.batch, h_.get(), p_.outputs, h);
    if (c) rows_.keep_state(p_.batch, c_.get(), p_.hidden, c);
}

template <class T>
void RecurrentSteps<T>::set_state(const T* h, const T* c) {
    rows_.restore_state(h, p_.outputs, h_.get());
    if (c) rows_.restore_state(c, p_.hidden, c_.get());
    drop();
}

template <class T>
void RecurrentSteps<T>::finish(const RecurrentResults<T>& to) const {
    rows_.store_state(h_.get(), p_.outputs, to.h_n);
    if (has_memory(p_.cell)) rows_.store_state(c_.get(), p_.hidden, to.c_n);
}

// Pass 1 for some steps, whose rows of x stand at `x`: gates = x W_ih^T + bias.
template <class T>
void RecurrentSteps<T>::input_gates(i64 begin, i64 end, const T* x, T* gates) const {
    // Few rows take a path of their own in gemm(); where the sequence has more, a stretch of it
    // must not end up with other bits than the whole.
    constexpr i64 few = kDotRows + 1;
    const i64 count = rows_.count(begin, end), width = gates_of(p_.cell) * p_.hidden;
    if (p_.w_ih_bf16) {
        return dot_bf16<T>(count, width, p_.inputs, x, p_.inputs, p_.w_ih_bf16, input_bias(), gates,
                           p_.gates_row, false);
    }
    const bool pads = count < few && p_.rows >= few;
    Workspace<T> more_x(pads ? few * p_.inputs : 0), more_gates(pads ? few * width : 0);
    if (pads) {
        const i64 size = count * p_.inputs;
        __builtin_memcpy(more_x.get(), x, std::size_t(size) * sizeof(T));
        __builtin_memset(more_x.get() + size, 0, std::size_t(few * p_.inputs - size) * sizeof(T));
    }
    GemmParams<T> g{};
    g.m = pads ? few : count;
    g.n = width;
    g.k = p_.inputs;
    g.a = pads ? more_x.get() : x;
    g.a_row = p_.inputs;
    g.a_col = 1;
    g.b = p_.w_ih;
    g.b_row = 1;
    g.b_col = p_.inputs;
    g.c = pads ? more_gates.get() : gates;
    g.ldc = pads ? width : p_.gates_row;
    g.col_bias = input_bias();
    gemm(g);
    for (i64 i = 0; pads && i < count; ++i) {
        __builtin_memcpy(gates + i * p_.gates_row, more_gates.get() + i * width,
                         std::size_t(width) * sizeof(T));
    }
}

template <class T>
void RecurrentSteps<T>::run(i64 begin, i64 end, const Kept<T>& keep,
                            const RecurrentResults<T>* to) {
    const auto& p = p_;
    const i64 row0 = rows_.first_row(begin, end), count = rows_.count(begin, end);
    const i64 gates_row = p.gates_row, state_row = rows_.state_row();
    const bool norm = p.cell == Cell::norm_lstm;
    // Rows of x's part, and of x unless in place, begin with row0.
    Workspace<T> own(keep.gates || fused_ ? 0 : count * gates_row);
    T* inputs = own.get();
    if (keep.gates && norm) inputs = keep.by_x + (row0 - keep.block_row) * gates_row;
    if (keep.gates && !norm) inputs = keep.gates + (row0 - keep.row) * gates_row;
    Workspace<T> gathered(in_place_ ? 0 : count * p.inputs);
    if (!in_place_) rows_.gather(begin, end, gathered.get());
    const T* x = in_place_ ? p.x + row0 * p.inputs : gathered.get();
    if (!fused_ && !ahead_suits_) input_gates(begin, end, x, inputs);
    ahead_.start(begin, end, input_bias(), inputs);
    const bool overlap = by_hh_.single(p.hidden * kUnitCost);
    for (i64 n = begin; n < end; ++n) {
        if (ahead_suits_) ahead_.begin_step(n, overlap);
        const i64 t = rows_.time(n), active = rows_.active(t), at = rows_.start(t) - row0;
        if (keep.gates) {
            rows_.keep_state(active, h_.get(), p.outputs,
                             keep.h_before + (row0 + at - keep.block_row) * p.outputs);
        }
        if (norm) {
            norm_step(n, keep, inputs + at * gates_row);
        } else {
            plain_step(n, keep, x + at * p.inputs, inputs + at * gates_row);
        }
        if (p.w_hr) {
            by_hr_.multiply(active, next_.get(), state_row, h_.get(), state_row, false);
        } else {
            __builtin_memcpy(h_.get(), next_.get(), std::size_t(active * state_row) * sizeof(T));
        }
        drop();
        if (to && to->out) write_out(p, *to, rows_, t, h_.get());
    }
}

template <class T>
void RecurrentSteps<T>::plain_step(i64 n, const Kept<T>& keep, const T* x, T* inputs) {
    const auto& p = p_;
    const i64 t = rows_.time(n), first = rows_.start(t);
    Step<T> s{};
    s.rows = rows_.active(t);
    s.hidden = p.hidden;
    s.gates = inputs;
    s.gates_row = p.gates_row;
    s.given = !fused_;
    s.bias = p.b_ih ? bias_.get() : nullptr;
    s.keep = keep.gates != nullptr;
    s.state_row = rows_.state_row();
    s.c = c_.get();
    if (s.keep && has_memory(p.cell)) s.c_before = keep.c_before + (first - keep.row) * p.hidden;
    s.h = h_.get();
    s.b_hn = p.b_hh && p.cell == Cell::gru ? p.b_hh + 2 * p.hidden : nullptr;
    s.out = next_.get();
    typename StepProduct<T>::Factor factors[2];
    int count = 0;
    if (fused_ && in_place_) factors[count++] = {&by_ih_, p.x + t * p.x_step, p.x_row};
    if (fused_ && !in_place_) factors[count++] = {&by_ih_, x, p.inputs};
    // A state of zeros adds nothing to the first step.
    if (n > 0 || p.h0) factors[count++] = {&by_hh_, seen(), s.state_row};
    step(p.cell, s, factors, count, n % 2 == 1, ahead_suits_ ? &ahead_ : nullptr);
}

template <class T>
void RecurrentSteps<T>::norm_step(i64 n, const Kept<T>& keep, T* inputs) {
    const auto& p = p_;
    const i64 t = rows_.time(n), first = rows_.start(t), active = rows_.active(t);
    NormStep<T> s{};
    s.hidden = p.hidden;
    s.gain = gains_of(p);
    s.bias = p.b_ih ? bias_.get() : nullptr;
    s.gates_row = p.gates_row;
    s.by_x = inputs;
    s.by_h = by_h_.get();
    s.state_row = rows_.state_row();
    s.c = c_.get();
    s.out = next_.get();
    if (keep.gates) {
        const i64 row = first - keep.row, block_row = first - keep.block_row;
        s.by_h = keep.by_h + block_row * p.gates_row;
        s.gates = keep.gates + row * p.gates_row;
        s.scale = keep.scale + block_row * 2;
        s.c_before = keep.c_before + row * p.hidden;
    }
    hidden_product(n, s.by_h);
    for_rows(active, p.hidden, [&](i64 begin, i64 end) {
        for (i64 row = begin; row < end; ++row) norm_lstm_row(s, row);
    });
}

template <class T>
void RecurrentSteps<T>::hidden_product(i64 n, T* by_h) {
    const i64 active = rows_.active(rows_.time(n)), width = 4 * p_.hidden, row = p_.gates_row;
    if (n == 0 && !p_.h0) {
        for (i64 i = 0; i < active; ++i) {
            __builtin_memset(by_h + i * row, 0, std::size_t(width) * sizeof(T));
        }
        return;
    }
    if (by_hh_.in_place()) {
        return by_hh_.multiply(active, seen(), rows_.state_row(), by_h, row, false);
    }
    const typename StepProduct<T>::Factor factor{&by_hh_, seen(), rows_.state_row()};
    StepProduct<T>::by_blocks(
        active, &factor, 1, active * p_.hidden * kUnitCost, n % 2 == 1,
        ahead_suits_ ? &ahead_ : nullptr, [](i64, i64) {},
        [&](i64 first, i64 units, const T* c, i64 c_row, i64 c_gate) {
            for (i64 i = 0; i < active; ++i) {
                for (i64 g = 0; g < 4; ++g) {
                    __builtin_memcpy(by_h + i * row + g * p_.hidden + first,
                                     c + i * c_row + g * c_gate, std::size_t(units) * sizeof(T));
                }
            }
        });
}

template <class T>
void recurrent_forward(const RecurrentParams<T>& p, const RecurrentResults<T>& to) {
    RecurrentSteps<T> steps(p);
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

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
