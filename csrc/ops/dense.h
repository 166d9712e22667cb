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

// Batches with NumPy's rules of broadcasting: one product for each (broadcast) index of the axes
// before the last two. Axes along which both matrices go on evenly are joined to one; `steps` has
// what is left, outermost first, strides in elements.
struct MatmulShapes {
    struct Step {
        i64 size, a, b;
    };
    i64 batch;
    Gemm gemm;
    Shape output;
    std::vector<Step> steps;
};
MatmulShapes matmul_shapes(const char* op, const Shape& a, const Shape& b, bool transpose_a,
                           bool transpose_b);
void matmul(const MatmulShapes& shapes, Device device, DType dtype, const void* a, const void* b,
            void* c);

}  // namespace fusednn::ops
