// Convolution: shape rules and the calls that run it. Pointers are to arrays of `dtype` on
// `device`, laid out as core/kernels.h says, and of the shapes that conv_shapes checked.
#pragma once
#include "ops/shapes.h"

namespace fusednn::ops {

void conv_forward(const ConvParams& params, Device device, DType dtype, const void* input,
                  const void* weight, const void* bias, void* output);
// bias (in_channels values, or null) is for the transposed convolution, which this pass is as well.
void conv_backward_input(const ConvParams& params, Device device, DType dtype, const void* grad,
                         const void* weight, const void* bias, void* grad_input);
void conv_backward_weight(const ConvParams& params, Device device, DType dtype, const void* grad,
                          const void* input, void* grad_weight);

// grad (outer, channels, inner...) summed over all axes but 1 (the last one for linear: inner 1).
void bias_grad(Device device, DType dtype, i64 outer, i64 channels, i64 inner, const void* grad,
               void* grad_bias);

// Multiply-adds times two of the forward pass, saturating: what a call costs.
i64 conv_cost(const ConvParams& params);

}  // namespace fusednn::ops
