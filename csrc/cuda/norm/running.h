// What batch_norm does between its kernels, on the GPU; no CUDA header is needed to ask for it.
#pragma once
#include "core/kernels.h"

namespace fusednn::cuda {

// stats (3, channels): mean, low and rstd of the batch in training, else those of the running
// statistics. In training these, where given, are brought up to date; an empty batch leaves them.
template <class T>
void batch_norm_running(const BatchNormParams&, const T* x, Accumulate<T>* running_mean,
                        Accumulate<T>* running_var, double momentum, double eps,
                        Accumulate<T>* stats);

}  // namespace fusednn::cuda
