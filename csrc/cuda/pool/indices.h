// Winners of max pooling as positions; no CUDA header is needed to ask.
#pragma once
#include "core/kernels.h"

namespace fusednn::cuda {

// As ops::max_pool_indices, for taps that max_pool_forward has written: they are not checked.
void max_pool_indices(const PoolParams& params, const void* argmax, int argmax_bytes, i64* indices);

}  // namespace fusednn::cuda
