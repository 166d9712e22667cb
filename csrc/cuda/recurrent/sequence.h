// The recurrence of an RNN, LSTM or GRU without projection in one kernel: for few sequences, whose
// steps are too short to be products of their own.
#pragma once
#include "cuda/recurrent/forward.h"

namespace fusednn::cuda {

// Whether a call goes this way; by shapes alone. Of 16-bit arrays it is sequence_half.cu's.
template <class T>
bool sequence_suits(const RecurrentParams<T>& p);

// What the steps [begin, end) in the order of the recurrence read and write.
template <class T>
struct Sequence {
    Cell cell;
    bool reverse;
    i64 begin, end;
    i64 all_steps, batch, hidden;
    RowsView view;  // for its lists only
    Read<T> w_hh;
    Read<T> b_hn;     // GRU only, or null
    bool from_zeros;  // the first step of all has no product
    i64 depth;        // from one row of h to the next: `hidden` in whole vectors of a warp
    // Row `row0` on of x's part of the gates; the gates' values out if `keep`.
    Write<T> gates;
    i64 row0, gates_row;
    bool keep;
    Write<T> c_before, h_before;  // rows from c_row and h_row on; c_before LSTM only
    i64 c_row, h_row;
    Accumulate<T>* c;  // (batch, hidden) LSTM only
    Write<T> h, seen;  // (2, batch, depth) by the parity of the step; seen null without a mask
    Read<T> mask;
    Write<T> out;  // or null
    i64 out_step, out_row;
};
template <class T>
void run_sequence(const Sequence<T>& s);

// ---- backward (sequence_back.cu)
// -----------------------------------------------------------------

template <class T>
bool sequence_back_suits(const RecurrentParams<T>& p);

// What the steps [begin, end) read and write, the last one first.
template <class T>
struct SequenceBack {
    Cell cell;
    bool reverse;
    i64 begin, end;
    i64 all_steps, batch, hidden;
    RowsView view;  // for its lists only
    Read<T> w_hh;
    bool to_state;  // whether the gradient of the state before the first step of all is wanted
    Read<T> gates;  // the reserve's, from row gates_first on
    i64 gates_first, gates_row;
    Read<T> before;  // c of an LSTM, h of a GRU, of the step before, from row before_first on
    i64 before_first;
    Write<T> d_gates;  // from row d_first on
    i64 d_first, d_row;
    Accumulate<T>*dh, *dc;  // (batch, hidden), before and after; dc LSTM only
    Read<T> mask;
    Read<T> d_out;  // or null
    i64 out_step, out_row;
};
template <class T>
void run_sequence_back(const SequenceBack<T>& s);

// What all blocks together may read of the others' results in a step: more takes the caches longer
// than a product by tiles.
constexpr i64 kMostTraffic = i64(40) << 20;

// From one row of h to the next: a warp's lanes read 16 bytes each, and what lies behind `hidden`
// is zero.
template <class T>
i64 sequence_depth(i64 hidden) {
    constexpr i64 line = 32 * 16 / i64(sizeof(T));
    return (hidden + line - 1) / line * line;
}

// ---- 16-bit arrays (sequence_half.cu, sequence_half_back.cu)
// --------------------------------------------------------------------

template <>
void run_sequence<HalfBits>(const Sequence<HalfBits>& s);
template <>
void run_sequence_back<HalfBits>(const SequenceBack<HalfBits>& s);
#define FUSEDNN_SEQUENCE_SUITS(T)                        \
    template <>                                          \
    bool sequence_suits<T>(const RecurrentParams<T>& p); \
    template <>                                          \
    bool sequence_back_suits<T>(const RecurrentParams<T>& p);
FUSEDNN_INSTANTIATE_HALF(FUSEDNN_SEQUENCE_SUITS)

}  // namespace fusednn::cuda
