// The rows of a recurrent layer, as in cpu/recurrent/rows.h: the steps that exist, (t, sequence)
// with time outermost and, where lengths differ, the longest sequence first. The host walks over
// the steps; kernels that move rows have the same lists on the device.
#pragma once
#include <vector>

#include "cuda/arrays.h"
#include "cuda/gpu.h"
#include "cuda/kernels.h"

namespace fusednn::cuda {

// Arrays that kernels read and write, maybe the same one twice: without the promise of In and Out.
template <class T>
using Read = std::conditional_t<sizeof(T) == 2, HalfIn, const T*>;
template <class T>
using Write = std::conditional_t<sizeof(T) == 2, HalfOut, T*>;

// Whether there is a c beside h.
FUSEDNN_HOST_DEVICE bool has_memory(Cell cell) {
    return cell == Cell::lstm || cell == Cell::norm_lstm;
}
// Gates that the weights have.
FUSEDNN_HOST_DEVICE int gates_of(Cell cell) {
    return has_memory(cell) ? 4 : cell == Cell::gru ? 3 : 1;
}

// Steps [time, time + steps) as the device sees them.
struct RowsView {
    i64 time, steps, batch;
    i64 row0;             // the first row of those steps
    const i64* starts;    // of each t its first row, of t = all steps the end; or null: no lengths
    const i64* sequence;  // which sequence the i-th of the state is, or null: the i-th

    FUSEDNN_DEVICE i64 start(i64 t) const { return starts ? starts[t] : t * batch; }
    FUSEDNN_DEVICE i64 active(i64 t) const { return start(t + 1) - start(t); }
    FUSEDNN_DEVICE i64 sequence_of(i64 i) const { return sequence ? sequence[i] : i; }
};

// What move_rows does with a row (width) and its place at t * step + sequence * row of a padded
// array. put: 0 to the places of steps that do not exist; clear: only that. Rows beside 16-bit
// arrays may be float.
enum class Move : int { gather, put, add, clear };
template <class T, class Row>
void move_rows(Move move, const RowsView& view, i64 width, Row* rows, T* padded, i64 step, i64 row);
// to = mask ? from * mask : 0 for rows of some steps, mask (batch, width) by sequence.
template <class T>
void mask_rows(const RowsView& view, i64 width, const T* from, const T* mask, T* to);

// Copies and clears on the device; no bytes are no work.
inline void copy_bytes(void* to, const void* from, i64 bytes) {
    if (bytes == 0) return;
    check(cudaMemcpyAsync(to, from, std::size_t(bytes), cudaMemcpyDeviceToDevice, current_stream()),
          "copying a state");
}
template <class T>
void copy_values(T* to, const T* from, i64 count) {
    copy_bytes(to, from, count * i64(sizeof(T)));
}
template <class T>
void clear_values(T* to, i64 count) {
    if (count == 0) return;
    check(cudaMemsetAsync(to, 0, std::size_t(count) * sizeof(T), current_stream()),
          "clearing a state");
}

// The host's side; the lists are copied to the device once.
template <class T>
class Rows {
  public:
    explicit Rows(const RecurrentParams<T>& p);

    // How many sequences are longer than t, and the first of their rows (of t = steps: the end).
    i64 active(i64 t) const { return p_.active ? p_.active[t] : p_.batch; }
    i64 start(i64 t) const { return p_.active ? lists_[std::size_t(t)] : t * p_.batch; }
    // The t of the n-th step in the order of the recurrence.
    i64 time(i64 n) const { return p_.reverse ? p_.steps - 1 - n : n; }
    // Of the steps [begin, end) in the order of the recurrence.
    i64 first_time(i64 begin, i64 end) const { return p_.reverse ? p_.steps - end : begin; }
    i64 first_row(i64 begin, i64 end) const { return start(first_time(begin, end)); }
    i64 count(i64 begin, i64 end) const {
        const i64 t = first_time(begin, end);
        return start(t + end - begin) - start(t);
    }
    RowsView view(i64 begin, i64 end) const;
    const i64* sequences() const { return sequences_; }  // on the device, or null

    // Whether x holds the rows as they are.
    bool in_place() const {
        return !p_.active && (p_.x_row == p_.inputs || p_.batch == 1) &&
               (p_.x_step == p_.batch * p_.inputs || p_.steps == 1);
    }
    // state (batch, width) = given (batch, width) in the order of the rows, or 0; and back.
    template <class Row>
    void load_state(const T* given, i64 width, Row* state) const {
        if (!given) return clear_values(state, p_.batch * width);
        move_rows(Move::gather, state_view(), width, state, const_cast<T*>(given), 0, width);
    }
    template <class Row>
    void store_state(Row* state, i64 width, T* to) const {
        if (to) move_rows(Move::put, state_view(), width, state, to, 0, width);
    }
    // seen = state, masked.
    void mask_state(const T* state, i64 width, const T* mask, T* seen) const;

  private:
    RowsView state_view() const { return {0, 1, p_.batch, 0, nullptr, sequences_}; }

    const RecurrentParams<T>& p_;
    const std::vector<i64> lists_;
    const Workspace<i64> memory_;
    const i64 *starts_, *sequences_;
};

// The product with a matrix: c (m, n) = a b, or += it.
template <class T>
struct Factor {
    const T* data;
    i64 row, column;  // element (i, j) at i * row + j * column
};
template <class T>
void multiply(i64 m, i64 n, i64 k, const Factor<T>& a, const Factor<T>& b, T* c, i64 ldc,
              bool accumulate) {
    GemmParams<T> g{};
    g.m = m;
    g.n = n;
    g.k = k;
    g.a = a.data;
    g.a_row = a.row;
    g.a_col = a.column;
    g.b = b.data;
    g.b_row = b.row;
    g.b_col = b.column;
    g.c = c;
    g.ldc = ldc;
    g.accumulate = accumulate;
    gemm(g);
}

}  // namespace fusednn::cuda
