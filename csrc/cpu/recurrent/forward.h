// One direction of one recurrent layer, stretch of steps by stretch of steps.
#pragma once
#include "cpu/recurrent/cells.h"
#include "cpu/recurrent/norm_cell.h"
#include "cpu/recurrent/product.h"

namespace fusednn {
namespace FUSEDNN_ISA {

// What backward needs, as the reserve of RecurrentResults says; `gates` and `c_before` begin with
// row `row`, the others with row `block_row`. gates is null where nothing is kept.
template <class T>
struct Kept {
    i64 row, block_row;
    T *gates, *c_before, *h_before;
    T *by_x, *by_h, *scale;  // norm_lstm only: products, normalised, and what they were scaled by
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
    return {0, 0, reserve, c_before, h_before, by_x, by_x + gates, by_x + 2 * gates};
}

// The states at the beginning of each segment in a reserve with checkpoints.
template <class T>
class Checkpoints {
  public:
    Checkpoints(const RecurrentParams<T>& p, T* reserve) : p_(p), reserve_(reserve) {}
    T* h(i64 segment) const { return reserve_ + segment * p_.batch * p_.outputs; }
    // null for cells without c
    T* c(i64 segment) const {
        return has_memory(p_.cell) ? h(p_.segment_count) + segment * p_.batch * p_.hidden : nullptr;
    }

  private:
    const RecurrentParams<T>& p_;
    T* reserve_;
};

template <class T>
class RecurrentSteps {
  public:
    // Packs the weights.
    explicit RecurrentSteps(const RecurrentParams<T>& p);

    // The state: h (batch, outputs), c (batch, hidden) in the order of the rows.
    void save_state(T* h, T* c) const;
    void set_state(const T* h, const T* c);

    // Steps [begin, end) in the order of the recurrence, from the state on. A stretch begins where
    // the one before it ended. `to` is null where the outputs are not wanted.
    void run(i64 begin, i64 end, const Kept<T>& keep, const RecurrentResults<T>* to);
    // h_n, c_n.
    void finish(const RecurrentResults<T>& to) const;

  private:
    void input_gates(i64 begin, i64 end, const T* x, T* gates) const;
    // One step; inputs: x's part of the active rows' gates.
    void plain_step(i64 n, const Kept<T>& keep, const T* x, T* inputs);
    void norm_step(i64 n, const Kept<T>& keep, T* inputs);
    // by_h (active rows, gates_row) = h W_hh^T.
    void hidden_product(i64 n, T* by_h);
    // What the products with x begin with.
    const T* input_bias() const {
        return p_.b_ih && p_.cell != Cell::norm_lstm ? bias_.get() : nullptr;
    }
    // h as W_hh meets it.
    const T* seen() const { return p_.mask ? dropped_.get() : h_.get(); }
    void drop();

    // w_ih and w_hh as floats, where they are bfloat16 and read as floats; p_ has them.
    Workspace<T> wide_ih_, wide_hh_;
    const RecurrentParams<T> p_;
    const Rows<T> rows_;
    const bool fused_, ahead_suits_;
    // Whether the rows of x are read where they are.
    const bool in_place_;
    Workspace<T> bias_;
    // next_: h' before its projection, or of all units before it takes h's place. dropped_: h as
    // W_hh meets it, if there is a mask; mask_: that, in the order of the rows.
    // by_h_: h's product, where it is not kept.
    Workspace<T> h_, c_, next_, mask_, dropped_, by_h_;
    const StepProduct<T> by_ih_, by_hh_, by_hr_;
    InputAhead<T> ahead_;
};

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
