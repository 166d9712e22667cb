// The rows of a recurrent layer: the steps that exist, (t, sequence) with time outermost and, where
// lengths differ, the longest sequence first. The sequences that are active at a step are then the
// first ones of the state, and what lies behind a sequence's end is never looked at.
#pragma once
#include "cpu/kernels.h"
#include "cpu/parallel.h"

namespace fusednn {
namespace FUSEDNN_ISA {

template <class T>
class Rows {
  public:
    FUSEDNN_INLINE explicit Rows(const RecurrentParams<T>& p)
        : p_(p), starts_(p.active ? p.steps + 1 : 0) {
        i64 row = 0;
        for (i64 t = 0; p.active && t < p.steps; row += p.active[t++]) starts_.get()[t] = row;
        if (p.active) starts_.get()[p.steps] = row;
    }
    // How many sequences are longer than t, and the first of their rows (of t = steps: the end).
    FUSEDNN_INLINE i64 active(i64 t) const { return p_.active ? p_.active[t] : p_.batch; }
    FUSEDNN_INLINE i64 start(i64 t) const { return p_.active ? starts_.get()[t] : t * p_.batch; }
    // Which sequence the i-th of the state is.
    FUSEDNN_INLINE i64 sequence(i64 i) const { return p_.order ? p_.order[i] : i; }
    // The t of the n-th step in the order of the recurrence.
    FUSEDNN_INLINE i64 time(i64 n) const { return p_.reverse ? p_.steps - 1 - n : n; }
    // The steps [begin, end) in the order of the recurrence: the first in time, the first of their
    // rows, and how many those are.
    FUSEDNN_INLINE i64 first_time(i64 begin, i64 end) const {
        return p_.reverse ? p_.steps - end : begin;
    }
    FUSEDNN_INLINE i64 first_row(i64 begin, i64 end) const { return start(first_time(begin, end)); }
    FUSEDNN_INLINE i64 count(i64 begin, i64 end) const {
        const i64 t = first_time(begin, end);
        return start(t + end - begin) - start(t);
    }

    // Whether x holds the rows as they are.
    FUSEDNN_INLINE bool in_place() const {
        return !p_.active && (p_.x_row == p_.inputs || p_.batch == 1) &&
               (p_.x_step == p_.batch * p_.inputs || p_.steps == 1);
    }
    // body(row, t * x_step + sequence * x_row) for every row of some steps, counted from their
    // first.
    template <class Body>
    FUSEDNN_INLINE void for_inputs(i64 begin, i64 end, const Body& body) const {
        const i64 first = first_time(begin, end), row0 = start(first), steps = end - begin;
        parallel(steps, parallel_slots(steps, count(begin, end) * p_.inputs * i64(sizeof(T))),
                 [&](i64 task, int) {
                     const i64 t = first + task;
                     for (i64 i = 0; i < active(t); ++i) {
                         body(start(t) - row0 + i, t * p_.x_step + sequence(i) * p_.x_row);
                     }
                 });
    }
    // dst (rows, inputs) = the rows of x of some steps.
    FUSEDNN_INLINE void gather(i64 begin, i64 end, T* dst) const {
        const auto& p = p_;
        for_inputs(begin, end, [&](i64 row, i64 at) {
            __builtin_memcpy(dst + row * p.inputs, p.x + at, std::size_t(p.inputs) * sizeof(T));
        });
    }
    // From one sequence's state to the next: padded like the gates' rows (ops/recurrent.cpp), and
    // the same for h and c.
    FUSEDNN_INLINE i64 state_row() const {
        const i64 width = max_of(p_.hidden, p_.outputs), item = sizeof(T);
        return width * item % 512 == 0 ? width + 64 / item : width;
    }
    // state (batch, state_row) = given (batch, width) in the order of the rows, or 0.
    FUSEDNN_INLINE void load_state(const T* given, i64 width, T* state) const {
        const std::size_t bytes = std::size_t(width) * sizeof(T);
        for (i64 i = 0; i < p_.batch; ++i) {
            T* to = state + i * state_row();
            if (given) __builtin_memcpy(to, given + sequence(i) * width, bytes);
            if (!given) __builtin_memset(to, 0, bytes);
        }
    }
    FUSEDNN_INLINE void store_state(const T* state, i64 width, T* to) const {
        if (!to) return;
        for (i64 i = 0; i < p_.batch; ++i) {
            __builtin_memcpy(to + sequence(i) * width, state + i * state_row(),
                             std::size_t(width) * sizeof(T));
        }
    }
    // The first `count` sequences' states as rows without gaps.
    FUSEDNN_INLINE void keep_state(i64 count, const T* state, i64 width, T* to) const {
        for (i64 i = 0; i < count; ++i) {
            __builtin_memcpy(to + i * width, state + i * state_row(),
                             std::size_t(width) * sizeof(T));
        }
    }

    // All sequences' states from rows without gaps.
    FUSEDNN_INLINE void restore_state(const T* from, i64 width, T* state) const {
        for (i64 i = 0; i < p_.batch; ++i) {
            __builtin_memcpy(state + i * state_row(), from + i * width,
                             std::size_t(width) * sizeof(T));
        }
    }

  private:
    const RecurrentParams<T>& p_;
    Workspace<i64> starts_;
};

// Whether there is a c beside h.
FUSEDNN_INLINE bool has_memory(Cell cell) {
    return cell == Cell::lstm || cell == Cell::norm_lstm;
}

// Gates that the weights have.
FUSEDNN_INLINE int gates_of(Cell cell) {
    return has_memory(cell) ? 4 : cell == Cell::gru ? 3 : 1;
}

// body(unit, lanes) over `count` units, a vector at a time; lanes.load and lanes.store move as
// many values as there are; what is loaded beyond is 0.
template <class T>
struct AllLanes {
    FUSEDNN_INLINE Vec<T> load(const T* p) const { return FUSEDNN_ISA::load(p); }
    FUSEDNN_INLINE void store(T* p, Vec<T> v) const { FUSEDNN_ISA::store(p, v); }
    FUSEDNN_INLINE Vec<T> keep(Vec<T> v) const { return v; }
};
template <class T>
struct SomeLanes {
    i64 count;
    FUSEDNN_INLINE Vec<T> load(const T* p) const { return load_partial(p, count); }
    FUSEDNN_INLINE void store(T* p, Vec<T> v) const { store_partial(p, v, count); }
    // v with 0 in the lanes that do not exist.
    FUSEDNN_INLINE Vec<T> keep(Vec<T> v) const {
        Mask<T> lane{};
        for (int i = 0; i < kLanes<T>; ++i) lane[i] = i;
        return select<T>(lane < Int<T>(count), v, Vec<T>{});
    }
};
template <class T, class Body>
FUSEDNN_INLINE void for_units(i64 count, const Body& body) {
    i64 unit = 0;
    for (; unit + kLanes<T> <= count; unit += kLanes<T>) body(unit, AllLanes<T>{});
    if (unit < count) body(unit, SomeLanes<T>{count - unit});
}

// y = mask ? x * mask : 0, for dropout: what is masked out is not looked at, NaN neither.
template <class T>
FUSEDNN_INLINE void masked(i64 count, const T* x, const T* mask, T* y) {
    for_units<T>(count, [&](i64 i, auto lanes) {
        const Vec<T> m = lanes.load(mask + i), scaled = m * lanes.load(x + i);
        lanes.store(y + i, select<T>(m != Vec<T>{}, scaled, Vec<T>{}));
    });
}

// What a hidden unit costs a step: five exponentials and some divisions.
constexpr i64 kUnitCost = 100;

// Runs body(first, last) over `rows` rows of `hidden` units, in parallel if they are many.
template <class Body>
FUSEDNN_INLINE void for_rows(i64 rows, i64 hidden, const Body& body) {
    constexpr i64 units = 4096;
    const i64 group = max_of(units / max_of(hidden, i64(1)), i64(1));
    const i64 tasks = ceil_div(rows, group);
    parallel(tasks, parallel_slots(tasks, rows * hidden * kUnitCost), [&](i64 task, int) {
        FlushDenormals flush;
        body(task * group, min_of((task + 1) * group, rows));
    });
}

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
