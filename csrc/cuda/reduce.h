// Sums and maxima over lanes, warps and blocks, in one fixed order: the same bits in every run.
#pragma once
#include "cuda/gpu.h"

namespace fusednn::cuda {

struct Add {
    template <class T>
    FUSEDNN_DEVICE T operator()(T a, T b) const {
        return a + b;
    }
};
struct Larger {  // NaN wins over all
    template <class T>
    FUSEDNN_DEVICE T operator()(T a, T b) const {
        return b > a || b != b ? b : a;
    }
};

// Over kWidth neighbouring lanes, a power of two up to 32; all of them get the result.
template <int kWidth, class T, class Combine>
FUSEDNN_DEVICE T warp_reduce(T value, Combine combine) {
    for (int step = kWidth / 2; step > 0; step /= 2) {
        value = combine(value, __shfl_xor_sync(kAllLanes, value, step));
    }
    return value;
}

// The same where the kernel is told how many lanes, as a loop: a combination is a few instructions.
template <class T, class Combine>
FUSEDNN_DEVICE T lanes_reduce(int width, T value, Combine combine) {
#pragma unroll 1
    for (int step = width / 2; step > 0; step /= 2) {
        value = combine(value, __shfl_xor_sync(kAllLanes, value, step));
    }
    return value;
}

// Of what each warp of a block of kThreads has found; all of them get the result. A barrier before
// the shared values are written lets the last call's be read first.
template <int kThreads, class T, class Combine>
FUSEDNN_DEVICE T join_warps(T value, Combine combine) {
    constexpr int warps = kThreads / 32;
    FUSEDNN_SHARED(T[warps], of_warp);
    const int thread = int(threadIdx.x);
    __syncthreads();
    if (thread % 32 == 0) of_warp[thread / 32] = value;
    __syncthreads();
    value = of_warp[0];
#pragma unroll 1
    for (int warp = 1; warp < warps; ++warp) value = combine(value, of_warp[warp]);
    return value;
}

// Over a block of kThreads; all of them get the result.
template <int kThreads, class T, class Combine>
FUSEDNN_DEVICE T block_reduce(T value, Combine combine) {
    return join_warps<kThreads>(lanes_reduce(32, value, combine), combine);
}

}  // namespace fusednn::cuda
