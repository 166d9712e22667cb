// Attention for few queries, as in generation, has kernels of its own: few.cu.
#pragma once
#include "cuda/attention/scores.h"

namespace fusednn::cuda {

constexpr i64 kMostFewQueries = 8;

template <class T>
bool few_queries(const AttentionParams<T>& p);

template <class T>
void few_forward(const AttentionParams<T>& p, const HeadArray<T>& output, T* stats);

}  // namespace fusednn::cuda
