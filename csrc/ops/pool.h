// Pooling on the host: what is neither a shape rule nor worth a kernel.
#pragma once
#include "core/kernels.h"

namespace fusednn::ops {

// Bytes of the smallest integer that holds every tap number of a window: 1, 2 or 4.
int argmax_bytes(const PoolParams& params);

// Winning taps (planes, OD, OH, OW) -> flat positions in the input plane (D, H, W).
// Error if a tap is not one of the window's, or lies in the padding.
void max_pool_indices(const char* op, const PoolParams& params, const void* argmax, i64* indices);

}  // namespace fusednn::ops
