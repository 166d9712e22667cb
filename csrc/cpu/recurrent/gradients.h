// What the recurrent backward makes of the gates' gradients of all steps at once.
#pragma once
#include "cpu/recurrent/rows.h"

namespace fusednn {
namespace FUSEDNN_ISA {

// The gradients of the input, of w_ih, w_hh and the biases, from d_gates (rows, gates_row) and
// h_before (rows, outputs). dx (rows, inputs) is g.d_x itself if that holds the rows in place, else
// scratch memory that is then put where it belongs; `dx_done`: it is there already.
template <class T>
void recurrent_gradients(const RecurrentParams<T>& p, const RecurrentGrads<T>& g,
                         const Rows<T>& rows, const T* d_gates, const T* h_before, T* dx,
                         bool dx_done);

// d_w_hr (outputs, hidden) from d_h (rows, outputs) and h before its projection (rows, hidden).
template <class T>
void projection_gradient(i64 rows, i64 outputs, i64 hidden, const T* d_h, const T* unprojected,
                         T* d_w_hr);

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
