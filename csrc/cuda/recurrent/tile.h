// What the kernels for whole sequences share: blocks of 256 threads whose warps multiply tiles.
#pragma once
#include "cuda/elementwise.h"
#include "cuda/recurrent/sequence.h"

namespace fusednn::cuda {

namespace {

constexpr int kSequenceThreads = 256;
// Shared memory of a block: two to a multiprocessor of sm_80 and sm_90, one on those between.
constexpr i64 kMostShared = 96 << 10;
constexpr i64 kMostHidden = 1024;
// Sequences of a tile; eight would not fit 128 registers.
constexpr int kTileRows = 4;

// The first of the launch's shared memory: (columns, depth).
template <class T>
struct SharedWeights {
    Pack<T> first;
};

// Pairs of lanes add up: first those 16 apart, last neighbours. While there are as many sums as
// lanes on both sides together, each of a pair keeps one half of them. In the end lane l has sum l,
// modulo how many there are, as sum[0].
template <int kApart, class T, int kSums>
FUSEDNN_DEVICE void add_lanes(T (&sum)[kSums]) {
    if constexpr (kApart >= kSums) {
#pragma unroll
        for (int i = 0; i < kSums; ++i) sum[i] += __shfl_xor_sync(kAllLanes, sum[i], kApart);
    } else {
        const bool upper = (threadIdx.x & kApart) != 0;
#pragma unroll
        for (int i = 0; i < kApart; ++i) {
            const T give = upper ? sum[i] : sum[i + kApart];
            const T keep = upper ? sum[i + kApart] : sum[i];
            sum[i] = keep + __shfl_xor_sync(kAllLanes, give, kApart);
        }
    }
    if constexpr (kApart > 1) add_lanes<kApart / 2>(sum);
}

}  // namespace

}  // namespace fusednn::cuda
