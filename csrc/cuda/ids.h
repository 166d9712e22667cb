// Looking at numbers on the GPU that the host must be sure of; no CUDA header is needed to ask.
#pragma once
#include "core/types.h"

namespace fusednn::cuda {

// The first of `count` ids that is not in [0, rows) and not `*allowed` (which may be null), with
// its value in *value; -1 if there is none. Waits for the stream.
i64 first_outside(i64 count, const i64* ids, i64 rows, const i64* allowed, i64* value);

}  // namespace fusednn::cuda
