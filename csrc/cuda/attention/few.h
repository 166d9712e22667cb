// Attention for few queries, as in generation, has kernels of its own: few.cu.
#pragma once
#include "cuda/attention/scores.h"

namespace fusednn::cuda {

constexpr i64 kMostFewQueries = 8;

template <class T>
bool few_queries(const AttentionParams<T>& p);

template <class T>
void few_forward(const AttentionParams<T>& p, const Format<T>& format, const HeadArray<T>& output,
                 Accumulate<T>* stats);

}  // namespace fusednn::cuda
