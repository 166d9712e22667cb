// Every other way in which threads meet: votes, barriers of a warp, named barriers, the whole grid.
#include "kernels/entries.h"

namespace fusednn::cuda {

namespace {

// One warp. out[lane]: how many lanes before this one have a number above 1/2, and its neighbours'.
__global__ void votes_kernel(const float* in, float* out) {
    const int lane = int(threadIdx.x);
    const unsigned voters = __ballot_sync(kAllLanes, in[lane] > 0.5f);
    const int before = __popc(voters & ((1u << lane) - 1));
    const int up = __shfl_up_sync(kAllLanes, before, 1);
    const int down = __shfl_down_sync(kAllLanes, before, 1);
    const int total = __reduce_add_sync(kAllLanes, before);
    out[lane] = float(before) + 0.25f * float(up) + 0.125f * float(down) + 1024.0f * float(total);
    if (lane < 16) out[32 + lane] = float(__reduce_max_sync(0x0000ffffu, int(in[lane] * 100)));
}

// Every warp turns its 32 numbers around, three times, with barriers of the warp alone.
__global__ void reverse_kernel(const float* in, float* out) {
    FUSEDNN_SHARED(float[4][32], buffer);
    const int thread = int(threadIdx.x), warp = thread / 32, lane = thread % 32;
    float v = in[thread];
    for (int r = 0; r < 3; ++r) {
        buffer[warp][lane] = v;
        __syncwarp();
        v = buffer[warp][31 - lane] + 1;
        __syncwarp();
    }
    out[thread] = v;
}

// Warp 0 fills a buffer that warps 1 to 3 read, round after round.
__global__ void named_kernel(const float* in, float* out, int rounds) {
    FUSEDNN_SHARED(float[32], buffer);
    constexpr int full = 1, empty = 2, all = 128;
    const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32;
    for (int r = 0; r < rounds; ++r) {
        if (warp == 0) {
            if (r > 0) named_barrier_sync(empty, all);
            buffer[lane] = in[r * 32 + lane];
            named_barrier_arrive(full, all);
        } else {
            named_barrier_sync(full, all);
            out[(r * 3 + warp - 1) * 32 + lane] = buffer[31 - lane] * float(warp);
            if (r + 1 < rounds) named_barrier_arrive(empty, all);
        }
    }
}

// state[i] <- x[t] + the mean of all states / 2 + i, step after step: each needs all blocks' last.
__global__ void grid_kernel(const float* x, float* state, unsigned* counter, int n, int steps) {
    unsigned phase = 0;
    const int i = int(blockIdx.x) * int(blockDim.x) + int(threadIdx.x);
    for (int t = 0; t < steps; ++t) {
        const float* in = state + (t % 2) * n;
        float* out = state + ((t + 1) % 2) * n;
        float sum = 0;
        for (int k = 0; k < n; ++k) sum += in[k];
        if (i < n) out[i] = x[t] + sum / float(2 * n) + float(i);
        grid_sync(counter, phase);
    }
}

}  // namespace

FUSEDNN_TEST_ENTRY test_votes(const float* in, float* out) {
    return run_entry([&] { launch("votes", {1, 32}, votes_kernel, in, out); });
}

// 128 numbers
FUSEDNN_TEST_ENTRY test_reverse(const float* in, float* out) {
    return run_entry([&] { launch("reverse", {1, 128}, reverse_kernel, in, out); });
}

FUSEDNN_TEST_ENTRY test_named_barriers(const float* in, float* out, int rounds) {
    return run_entry([&] { launch("named_barriers", {1, 128}, named_kernel, in, out, rounds); });
}

// state: (2, n), of zeros; counter: zero
FUSEDNN_TEST_ENTRY test_grid_sync(const float* x, float* state, unsigned* counter, int n,
                                  int steps) {
    return run_entry([&] {
        launch_cooperative("grid_sync", {blocks_for(n, 64), 64}, grid_kernel, x, state, counter, n,
                           steps);
    });
}

}  // namespace fusednn::cuda
