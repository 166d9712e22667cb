// Matrix products and linear layers.
#pragma once
#include "ops/shapes.h"

namespace fusednn::ops {

// c (m x n) = op(a) op(b) (+ bias per column, then ReLU), row-major; a flag transposes its matrix,
// which then lies as (k x m) or (n x k).
struct Gemm {
    i64 m, n, k;
    bool transpose_a, transpose_b;
    bool relu;
};
void gemm(const Gemm& gemm, Device device, DType dtype, const void* a, const void* b,
          const void* col_bias, void* c);

struct MatmulShapes {
    i64 batch;
    Gemm gemm;
    Shape output;
};
MatmulShapes matmul_shapes(const char* op, const Shape& a, const Shape& b, bool transpose_a,
                           bool transpose_b);

}  // namespace fusednn::ops
