#include "ops/dense.h"

#include <algorithm>

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

namespace {

// The axes before the last two of both, aligned at their ends; 1 where there is none.
i64 batch_size(const Shape& shape, std::size_t axis, std::size_t axes) {
    const std::size_t missing = axes - (shape.size() - 2);
    return axis < missing ? 1 : shape[axis - missing];
}

}  // namespace

MatmulShapes matmul_shapes(const char* op, const Shape& a, const Shape& b, bool transpose_a,
                           bool transpose_b) {
    const std::string shapes = " (shapes " + text(a) + " and " + text(b) + ")";
    if (a.size() < 2 || b.size() < 2) {
        throw Error(std::string(op) + ": expected matrices or batches of matrices" + shapes);
    }
    MatmulShapes result;
    Gemm& gemm = result.gemm;
    gemm.m = a[a.size() - (transpose_a ? 1 : 2)];
    gemm.k = a[a.size() - (transpose_a ? 2 : 1)];
    gemm.n = b[b.size() - (transpose_b ? 2 : 1)];
    gemm.transpose_a = transpose_a;
    gemm.transpose_b = transpose_b;
    gemm.relu = false;
    const i64 other = b[b.size() - (transpose_b ? 1 : 2)];
    if (gemm.k != other) {
        throw Error(std::string(op) + ": inner sizes differ, " + std::to_string(gemm.k) + " and " +
                    std::to_string(other) + shapes);
    }
    const std::size_t axes = std::max(a.size(), b.size()) - 2;
    i64 a_step = gemm.m * gemm.k, b_step = gemm.k * gemm.n;
    result.batch = 1;
    for (std::size_t axis = axes; axis-- > 0;) {
        const i64 in_a = batch_size(a, axis, axes), in_b = batch_size(b, axis, axes);
        if (in_a != in_b && in_a != 1 && in_b != 1) {
            throw Error(std::string(op) + ": batches differ, " + std::to_string(in_a) + " and " +
                        std::to_string(in_b) + shapes);
        }
        const i64 size = in_a == 1 ? in_b : in_a;
        result.output.insert(result.output.begin(), size);
        result.batch = checked_product(op, result.batch, size);
        const MatmulShapes::Step step{size, in_a == 1 ? 0 : a_step, in_b == 1 ? 0 : b_step};
        a_step *= in_a;
        b_step *= in_b;
        if (size == 1) continue;
        std::vector<MatmulShapes::Step>& steps = result.steps;
        if (!steps.empty() && step.a == steps[0].a * steps[0].size &&
            step.b == steps[0].b * steps[0].size) {
            steps[0].size *= size;
        } else {
            steps.insert(steps.begin(), step);
        }
    }
    result.output.push_back(gemm.m);
    result.output.push_back(gemm.n);
    checked_size(op, result.output);
    return result;
}

namespace {

template <class T>
GemmParams<T> gemm_params(const Gemm& gemm, const void* a, const void* b, void* c) {
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
    p.activation = gemm.relu ? Activation::relu : Activation::none;
    return p;
}

// The kernels know two batch axes; more of them, which no joining has removed, are walked here.
template <class T>
void matmul_axes(const MatmulShapes& shapes, std::size_t axis, Device device, GemmParams<T>& p) {
    const std::vector<MatmulShapes::Step>& steps = shapes.steps;
    if (axis + 2 < steps.size()) {
        const T *a = p.a, *b = p.b;
        for (i64 i = 0; i < steps[axis].size; ++i) {
            p.a = a + i * steps[axis].a;
            p.b = b + i * steps[axis].b;
            matmul_axes(shapes, axis + 1, device, p);
        }
        return;
    }
    GemmBatches batches{{1, 1}, {0, 0}, {0, 0}};
    const auto set = [&](int digit, const MatmulShapes::Step& step) {
        batches.count[digit] = step.size;
        batches.a[digit] = step.a;
        batches.b[digit] = step.b;
    };
    if (steps.size() > axis) set(1, steps.back());
    if (steps.size() > axis + 1) set(0, steps[axis]);
    kernels<T>(device).gemm_batches(p, batches);
    p.c += batches.count[0] * batches.count[1] * p.m * p.n;
}

}  // namespace

void matmul(const MatmulShapes& shapes, Device device, DType dtype, const void* a, const void* b,
            void* c) {
    if (shapes.batch == 0) return;
    with_device_dtype(dtype, [&](auto zero) {
        using T = decltype(zero);
        GemmParams<T> p = gemm_params<T>(shapes.gemm, a, b, c);
        matmul_axes(shapes, 0, device, p);
    });
}

void gemm(const Gemm& gemm, Device device, DType dtype, const void* a, const void* b,
          const void* col_bias, void* c) {
    with_device_dtype(dtype, [&](auto zero) {
        using T = decltype(zero);
        GemmParams<T> p = gemm_params<T>(gemm, a, b, c);
        p.col_bias = static_cast<const T*>(col_bias);
        kernels<T>(device).gemm(p);
    });
}

}  // namespace fusednn::ops
