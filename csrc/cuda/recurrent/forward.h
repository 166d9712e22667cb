// One direction of one recurrent layer, stretch of steps by stretch of steps; the twin of
// cpu/recurrent/forward.h.
#pragma once
#include "cuda/recurrent/cells.h"

namespace fusednn::cuda {

// What backward needs, as the reserve of RecurrentResults says; `gates` and `c_before` begin with
// row `row`, the others with row `block_row`. gates is null where nothing is kept.
template <class T>
struct Kept {
    i64 row, block_row;
    T *gates, *c_before, *h_before;
    T *by_x, *by_h;        // norm_lstm only: products, normalised,
    Accumulate<T>* scale;  // and what they were scaled by
};

// The parts of a reserve that keeps everything.
template <class T>
Kept<T> parts_of(const RecurrentParams<T>& p, T* reserve) {
    if (!reserve) return {};
    const i64 gates = p.rows * p.gates_row;
    T *c_before = reserve + gates, *h_before = c_before;
    if (has_memory(p.cell)) h_before += p.rows * p.hidden;
    if (p.cell != Cell::norm_lstm) return {0, 0, reserve, c_before, h_before, {}, {}, {}};
    T* by_x = h_before + p.rows * p.outputs;
    // As many values lie before as rows and units times an even number: floats fit in behind them.
    auto* scale = reinterpret_cast<Accumulate<T>*>(by_x + 2 * gates);
    return {0, 0, reserve, c_before, h_before, by_x, by_x + gates, scale};
}

// The states at the beginning of each segment in a reserve with checkpoints. c of 16-bit arrays is
// float, and has two of their elements for each of its own, wherever those lie.
template <class T>
class Checkpoints {
  public:
    Checkpoints(const RecurrentParams<T>& p, T* reserve) : p_(p), reserve_(reserve) {}
    T* h(i64 segment) const { return reserve_ + segment * p_.batch * p_.outputs; }
    // null for cells without c
    T* c(i64 segment) const {
        constexpr i64 items = sizeof(Accumulate<T>) / sizeof(T);
        return has_memory(p_.cell) ? h(p_.segment_count) + segment * p_.batch * p_.hidden * items
                                   : nullptr;
    }

  private:
    const RecurrentParams<T>& p_;
    T* reserve_;
};

template <class T>
class RecurrentSteps {
  public:
    RecurrentSteps(const RecurrentParams<T>& p, const Rows<T>& rows);

    // The state: h (batch, outputs), c (batch, hidden) in the order of the rows.
    void save_state(T* h, T* c) const;
    void set_state(const T* h, const T* c);

    // Steps [begin, end) in the order of the recurrence, from the state on. `to` is null where the
    // outputs are not wanted.
    void run(i64 begin, i64 end, const Kept<T>& keep, const RecurrentResults<T>* to);
    // h_n, c_n.
    void finish(const RecurrentResults<T>& to) const;

  private:
    void input_gates(i64 begin, i64 end, T* gates) const;
    // One step; inputs: x's part of the active rows' gates.
    void plain_step(i64 n, const Kept<T>& keep, T* inputs, const StepState<Storage<T>>& state);
    void norm_step(i64 n, const Kept<T>& keep, T* inputs, const StepState<Storage<T>>& state);
    // All of them in one kernel (sequence.h).
    void whole_sequence(i64 begin, i64 end, const Kept<T>& keep, T* inputs,
                        const RecurrentResults<T>* to);
    StepState<Storage<T>> state_at(i64 n, const Kept<T>& keep, const RecurrentResults<T>* to) const;
    // by_h (active rows, row) = h W_hh^T; false without one: a state of zeros adds nothing.
    bool hidden_product(i64 n, T* by_h, i64 row) const;
    void see() const;

    const RecurrentParams<T>& p_;
    const Rows<T>& rows_;
    const bool norm_, in_sequence_;
    // next_: h' before its projection, then behind it; seen_: h as W_hh meets it, with a mask;
    // by_h_: h's product where it is not kept.
    Workspace<T> bias_, h_, next_, projected_, seen_, by_h_;
    Workspace<Accumulate<T>> c_;
};

// ---- the layer-normalised LSTM (norm_cell.cu)
// -----------------------------------------------------

// Row i of each array is the i-th active sequence.
template <class T>
struct NormStep {
    using Sum = Accumulate<T>;
    i64 hidden;
    Read<T> gain_x, gain_h, gain_c, bias_c;  // the last one or null
    Sum eps;
    Read<T> bias;         // 4 * hidden, or null
    Write<T> by_x, by_h;  // the products; normalised afterwards, if kept
    Write<T> gates;       // what the reserve has of them, or null: nothing is kept
    i64 gates_row;        // from one row to the next of by_x and gates
    i64 h_row;            // of by_h
    Sum* scale;           // (n, 2): what the two products were multiplied by
    Sum* c;
    Write<T> c_before;
    StepState<T> state;
};
template <class T>
void norm_lstm_step(const NormStep<T>& s, i64 rows);

template <class T>
struct NormBackStep {
    using Sum = Accumulate<T>;
    i64 hidden;
    Read<T> gain_x, gain_h, gain_c, bias_c;
    Sum eps;
    i64 gates_row;                     // of what forward kept
    Read<T> gates, by_x, by_h;         // the products normalised
    const Sum* scale;                  // (n, 2)
    Read<T> c_before;                  // (n, hidden)
    Write<T> d_gates, d_by_x, d_by_h;  // (n, 4 * hidden); by_x, by_h: of the products themselves
    Sum *d_cell, *d_gain_c;            // (n, hidden): of gain_c LN(c) + bias_c, and times LN(c)
    const Sum* dh;                     // (n, hidden)
    Sum* dc;
    Read<T> d_out;  // sequence b at b * out_row, or null
    i64 out_row;
    const i64* sequence;
};
template <class T>
void norm_lstm_step_back(const NormBackStep<T>& s, i64 rows);

}  // namespace fusednn::cuda
