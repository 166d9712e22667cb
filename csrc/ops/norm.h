// Normalisation: shape rules, and the running statistics of batch_norm.
#pragma once
#include "ops/shapes.h"

namespace fusednn::ops {

// An array argument and its shape, or null where it was not given.
struct NamedShape {
    const char* name;
    const Shape* shape;
};

// Normalised over the last axes, which must be `normalized`; weight and bias have that shape.
LayerNormParams layer_norm_shapes(const char* op, bool rms, const Shape& input,
                                  const Shape& normalized, const std::vector<NamedShape>& affine,
                                  double eps);

// Input (N, C, ...) with C divisible by groups; weight and bias (C,).
GroupNormParams group_norm_shapes(const char* op, const Shape& input, i64 groups,
                                  const std::vector<NamedShape>& affine, double eps);

// Input (N, C, ...); every array (C,). In training a channel needs more than one value, unless the
// batch is empty.
BatchNormParams batch_norm_shapes(const char* op, const Shape& input,
                                  const std::vector<NamedShape>& channel_arrays, bool training,
                                  bool relu);

// running = (1 - momentum) * running + momentum * found, the variance made unbiased.
template <class T>
void update_running(const BatchNormParams& params, const T* mean, const T* low, const T* variance,
                    double momentum, T* running_mean, T* running_variance);

}  // namespace fusednn::ops
