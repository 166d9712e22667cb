// Casts on the GPU; no CUDA header is needed to ask for one.
#pragma once
#include "core/types.h"

namespace fusednn::cuda {

// y = x between float and a 16-bit float, rounded to nearest even; flat arrays of `size` elements.
void cast(i64 size, DType from, const void* x, DType to, void* y);

}  // namespace fusednn::cuda
