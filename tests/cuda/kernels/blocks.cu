// Blocks that share memory: softmax of rows, a transpose through a padded tile, a histogram.
#include "kernels/entries.h"

namespace fusednn::cuda {

namespace {

constexpr int kThreads = 128, kBins = 64, kTile = 32, kTileRows = 8;

template <class Fn>
FUSEDNN_DEVICE float warp_reduce(float v, Fn fn) {
    for (int d = 16; d; d /= 2) v = fn(v, __shfl_xor_sync(kAllLanes, v, d));
    return v;
}

template <class Fn>
FUSEDNN_DEVICE float block_reduce(float v, float (&partial)[32], float none, Fn fn) {
    const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
    const int warps = (int(blockDim.x) + 31) / 32;
    v = warp_reduce(v, fn);
    __syncthreads();  // somebody may still read what the last call left there
    if (lane == 0) partial[warp] = v;
    __syncthreads();
    return warp_reduce(lane < warps ? partial[lane] : none, fn);
}

struct Max {
    FUSEDNN_DEVICE float operator()(float a, float b) const { return fmaxf(a, b); }
};
struct Sum {
    FUSEDNN_DEVICE float operator()(float a, float b) const { return a + b; }
};

// A block for each row.
__global__ void softmax_kernel(const float* x, float* y, int cols) {
    FUSEDNN_SHARED(float[32], partial);
    x += i64(blockIdx.x) * cols;
    y += i64(blockIdx.x) * cols;
    float m = -INFINITY, sum = 0;
    for (int c = int(threadIdx.x); c < cols; c += kThreads) m = fmaxf(m, x[c]);
    m = block_reduce(m, partial, -INFINITY, Max{});
    for (int c = int(threadIdx.x); c < cols; c += kThreads) sum += expf(x[c] - m);
    sum = block_reduce(sum, partial, 0, Sum{});
    for (int c = int(threadIdx.x); c < cols; c += kThreads) y[c] = expf(x[c] - m) / sum;
}

__global__ void transpose_kernel(const float* in, float* out, int n) {
    FUSEDNN_SHARED(float[kTile][kTile + 1], tile);
    const int x = int(threadIdx.x), x0 = int(blockIdx.x) * kTile, y0 = int(blockIdx.y) * kTile;
    for (int j = int(threadIdx.y); j < kTile; j += kTileRows) {
        if (y0 + j < n && x0 + x < n) tile[j][x] = in[(y0 + j) * n + x0 + x];
    }
    __syncthreads();
    for (int j = int(threadIdx.y); j < kTile; j += kTileRows) {
        if (x0 + j < n && y0 + x < n) out[(x0 + j) * n + y0 + x] = tile[x][j];
    }
}

// Of numbers from 0 to 1, counted in shared memory first.
__global__ void histogram_kernel(const float* in, unsigned* out, int n) {
    FUSEDNN_SHARED(unsigned[kBins], bins);
    const int thread = int(threadIdx.x);
    if (thread < kBins) bins[thread] = 0;
    __syncthreads();
    for (int i = int(blockIdx.x) * kThreads + thread; i < n; i += int(gridDim.x) * kThreads) {
        atomicAdd(&bins[min(kBins - 1, int(in[i] * kBins))], 1u);
    }
    __syncthreads();
    if (thread < kBins) atomicAdd(&out[thread], bins[thread]);
}

}  // namespace

FUSEDNN_TEST_ENTRY test_softmax(const float* x, float* y, int rows, int cols) {
    return run_entry(
        [&] { launch("softmax", {dim3(unsigned(rows)), kThreads}, softmax_kernel, x, y, cols); });
}

FUSEDNN_TEST_ENTRY test_transpose(const float* in, float* out, int n) {
    return run_entry([&] {
        const unsigned tiles = blocks_for(n, kTile);
        launch("transpose", {dim3(tiles, tiles), dim3(kTile, kTileRows)}, transpose_kernel, in, out,
               n);
    });
}

// out: zeros
FUSEDNN_TEST_ENTRY test_histogram(const float* in, unsigned* out, int n) {
    return run_entry([&] { launch("histogram", {4, kThreads}, histogram_kernel, in, out, n); });
}

}  // namespace fusednn::cuda
