// What the recurrent backward makes of the gates' gradients of a block of steps at once.
#pragma once
#include "cuda/recurrent/rows.h"

namespace fusednn::cuda {

// A block of steps, [begin, end) in the order of the recurrence. Its arrays begin with its rows.
template <class T>
struct BlockGrads {
    i64 begin, end;
    bool add;   // to the weights' gradients of the blocks before
    i64 d_row;  // from one row of the next three to the next
    // Of the gates, and as x's product and h's meet them: the same but for norm_lstm.
    const T *d_gates, *d_by_x, *d_by_h;
    const T* h_before;  // (rows, outputs), as W_hh met it
};

// The gradients of the input, of w_ih, w_hh and the biases.
template <class T>
void recurrent_gradients(const RecurrentParams<T>& p, const RecurrentGrads<T>& g,
                         const Rows<T>& rows, const BlockGrads<T>& block);

// norm_lstm: those of the gains and bias_c. by_x, by_h (rows, gates_row) are the normalised
// products, d_cell (rows, hidden) what LN(c) gets, d_gain_c that times LN(c).
template <class T>
void norm_gradients(const RecurrentParams<T>& p, const RecurrentGrads<T>& g, i64 rows,
                    const BlockGrads<T>& block, const T* by_x, const T* by_h,
                    const Accumulate<T>* d_cell, const Accumulate<T>* d_gain_c);

}  // namespace fusednn::cuda
