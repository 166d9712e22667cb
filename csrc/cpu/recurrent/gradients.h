// What the recurrent backward makes of the gates' gradients of a block of steps at once.
#pragma once
#include "cpu/recurrent/rows.h"

namespace fusednn {
namespace FUSEDNN_ISA {

// A block of steps, [begin, end) in the order of the recurrence. Its arrays begin with its rows.
template <class T>
struct BlockGrads {
    i64 begin, end;
    bool add;           // to the weights' gradients of the blocks before
    const T* d_gates;   // (rows, gates_row)
    const T* h_before;  // (rows, outputs), as W_hh met it
    // (rows, inputs), or null if not wanted: the place in g.d_x if that holds the rows in place,
    // else scratch memory that is then put where it belongs; dx_done: it is there already.
    T* dx;
    bool dx_done;
};

// The gradients of the input, of w_ih, w_hh and the biases.
template <class T>
void recurrent_gradients(const RecurrentParams<T>& p, const RecurrentGrads<T>& g,
                         const Rows<T>& rows, const BlockGrads<T>& block);

// d_w_hr (outputs, hidden) from d_h (rows, outputs) and h before its projection (rows, hidden).
template <class T>
void projection_gradient(i64 rows, i64 outputs, i64 hidden, const T* d_h, const T* unprojected,
                         T* d_w_hr, bool add);

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
