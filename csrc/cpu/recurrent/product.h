// C (m x n) = A (m x k) B (k x n) for a B that many steps multiply with: packed once, read by every
// step. A stands in rows.
//
// A step of a batch of one or a few reads all of B for as many multiply-adds as there are rows: the
// cache that holds B decides, so B is laid out to be read once, front to back. Wider batches use
// the GEMM engine's tile.
#pragma once
#include "cpu/parallel.h"

namespace fusednn {
namespace FUSEDNN_ISA {

template <class T>
class StepProduct {
  public:
    // B as it lies in memory: b[p * b_row + j * b_col], which must stay there. `m` is the most rows
    // A will have, `uses` how many products will come: few are made without packing.
    StepProduct(i64 uses, i64 m, i64 n, i64 k, const T* b, i64 b_row, i64 b_col);
    // c = A B, or c += A B.
    void multiply(i64 m, const T* a, i64 a_row, T* c, i64 ldc, bool accumulate) const;

  private:
    void pack(i64 panel) const;

    const T* b_;
    i64 b_row_, b_col_;
    i64 n_, k_;
    bool in_place_;
    i64 width_;  // columns of a panel
    i64 depth_;  // rows of B in a block of k
    i64 panels_;
    Workspace<T> packed_;  // panel after panel, each k_ x width_
};

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
