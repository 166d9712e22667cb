#include "ops/dense.h"

#include "core/dispatch.h"
#include "core/errors.h"
#include "ops/dtype.h"

namespace fusednn::ops {

LinearShapes linear_shapes(const char* op, const Shape& input, const Shape& weight,
                           const Shape* bias) {
    if (weight.size() != 2) {
        throw Error(std::string(op) + ": weight has shape " + text(weight) +
                    ", expected (out_features, in_features)");
    }
    if (input.empty() || input.back() != weight[1]) {
        throw Error(std::string(op) + ": input has shape " + text(input) + ", expected (..., " +
                    std::to_string(weight[1]) + ") for weight of shape " + text(weight));
    }
    if (bias) require_shape(op, "bias", *bias, {weight[0]});
    LinearShapes shapes;
    shapes.in_features = weight[1];
    shapes.out_features = weight[0];
    shapes.output.assign(input.begin(), input.end() - 1);
    shapes.rows = checked_size(op, shapes.output);
    shapes.output.push_back(weight[0]);
    checked_size(op, shapes.output);
    return shapes;
}

MatmulShapes matmul_shapes(const char* op, const Shape& a, const Shape& b, bool transpose_a,
                           bool transpose_b) {
    const std::string shapes = " (shapes " + text(a) + " and " + text(b) + ")";
    if (a.size() != b.size() || (a.size() != 2 && a.size() != 3)) {
        throw Error(std::string(op) + ": expected two matrices or two batches of matrices" +
                    shapes);
    }
    const std::size_t rank = a.size();
    if (rank == 3 && a[0] != b[0]) {
        throw Error(std::string(op) + ": batches differ, " + std::to_string(a[0]) + " and " +
                    std::to_string(b[0]) + shapes);
    }
    MatmulShapes result;
    result.batch = rank == 3 ? a[0] : 1;
    Gemm& gemm = result.gemm;
    gemm.m = a[rank - (transpose_a ? 1 : 2)];
    gemm.k = a[rank - (transpose_a ? 2 : 1)];
    gemm.n = b[rank - (transpose_b ? 2 : 1)];
    gemm.transpose_a = transpose_a;
    gemm.transpose_b = transpose_b;
    gemm.relu = false;
    const i64 other = b[rank - (transpose_b ? 1 : 2)];
    if (gemm.k != other) {
        throw Error(std::string(op) + ": inner sizes differ, " + std::to_string(gemm.k) + " and " +
                    std::to_string(other) + shapes);
    }
    if (rank == 3) result.output.push_back(result.batch);
    result.output.push_back(gemm.m);
    result.output.push_back(gemm.n);
    checked_size(op, result.output);
    return result;
}

void gemm(const Gemm& gemm, Device device, DType dtype, const void* a, const void* b,
          const void* col_bias, void* c) {
    with_device_dtype(dtype, [&](auto zero) {
        using T = decltype(zero);
        GemmParams<T> p{};
        p.m = gemm.m;
        p.n = gemm.n;
        p.k = gemm.k;
        p.a = static_cast<const T*>(a);
        p.a_row = gemm.transpose_a ? 1 : gemm.k;
        p.a_col = gemm.transpose_a ? gemm.m : 1;
        p.b = static_cast<const T*>(b);
        p.b_row = gemm.transpose_b ? 1 : gemm.n;
        p.b_col = gemm.transpose_b ? gemm.k : 1;
        p.c = static_cast<T*>(c);
        p.ldc = gemm.n;
        p.col_bias = static_cast<const T*>(col_bias);
        p.activation = gemm.relu ? Activation::relu : Activation::none;
        kernels<T>(device).gemm(p);
    });
}

}  // namespace fusednn::ops
