// C (m, n) = A (m, k) B (k, n), row-major: bf16 in, float out. Three stages of asynchronous copies,
// fragments through load_matrix_x4. k and n are multiples of 8.
#include "kernels/entries.h"

namespace fusednn::cuda {

namespace {

constexpr int kM = 32, kN = 64, kK = 32, kStages = 3, kWarps = 4, kThreads = 32 * kWarps;
constexpr int kWarpM = kM / 2, kWarpN = kN / 2;  // 16 x 32: four products wide
constexpr int kPad = 8;  // rows of 80 and 144 bytes: eight rows meet eight different banks

struct Tiles {
    bf16 a[kStages][kM][kK + kPad];
    bf16 b[kStages][kK][kN + kPad];
};

struct Matrices {
    const bf16 *a, *b;
    float* c;
    int m, n, k;
};

FUSEDNN_DEVICE void load(Tiles& s, int stage, const Matrices& p, int m0, int n0, int k0) {
    for (int i = int(threadIdx.x); i < kM * kK / 8; i += kThreads) {
        const int r = i / (kK / 8), c = i % (kK / 8) * 8, row = m0 + r, col = k0 + c;
        const bool inside = row < p.m && col < p.k;
        copy_async<16>(&s.a[stage][r][c], inside ? p.a + i64(row) * p.k + col : p.a,
                       inside ? 16 : 0);
    }
    for (int i = int(threadIdx.x); i < kK * kN / 8; i += kThreads) {
        const int r = i / (kN / 8), c = i % (kN / 8) * 8, row = k0 + r, col = n0 + c;
        const bool inside = row < p.k && col < p.n;
        copy_async<16>(&s.b[stage][r][c], inside ? p.b + i64(row) * p.n + col : p.b,
                       inside ? 16 : 0);
    }
}

__global__ void __launch_bounds__(kThreads) gemm_kernel(Matrices p) {
    FUSEDNN_DYNAMIC_SHARED(Tiles, s);
    const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32, g = lane / 4,
              t = lane % 4;
    const int m0 = int(blockIdx.y) * kM, n0 = int(blockIdx.x) * kN;
    const int wm = warp / 2 * kWarpM, wn = warp % 2 * kWarpN;
    // Lanes 0 to 15 point to the rows of the left 16 x 8, the others to those of the right.
    const int row = lane % 16, right = lane / 16 * 8;
    float acc[4][4] = {};

    const int steps = (p.k + kK - 1) / kK;
    for (int stage = 0; stage < kStages - 1; ++stage) {
        if (stage < steps) load(s, stage, p, m0, n0, stage * kK);
        copy_async_commit();
    }
    for (int step = 0; step < steps; ++step) {
        copy_async_wait<kStages - 2>();
        __syncthreads();  // this step's tiles are there, and nobody reads the last one's any more
        const int next = step + kStages - 1;
        if (next < steps) load(s, next % kStages, p, m0, n0, next * kK);
        copy_async_commit();
        const int st = step % kStages;
        for (int kk = 0; kk < kK; kk += 16) {
            std::uint32_t a[4];
            load_matrix_x4(a, &s.a[st][wm + row][kk + right]);
            for (int j = 0; j < 2; ++j) {
                std::uint32_t r[4];
                load_matrix_x4_transposed(r, &s.b[st][kk + row][wn + j * 16 + right]);
                const std::uint32_t left_b[2] = {r[0], r[1]}, right_b[2] = {r[2], r[3]};
                mma_bf16(acc[2 * j], a, left_b);
                mma_bf16(acc[2 * j + 1], a, right_b);
            }
        }
    }
    copy_async_wait<0>();
    for (int j = 0; j < 4; ++j) {
        for (int h = 0; h < 2; ++h) {
            const int r = m0 + wm + g + 8 * h, c = n0 + wn + j * 8 + 2 * t;
            if (r < p.m && c < p.n) {
                reinterpret_cast<float2*>(p.c + i64(r) * p.n + c)[0] =
                    make_float2(acc[j][2 * h], acc[j][2 * h + 1]);
            }
        }
    }
}

}  // namespace

FUSEDNN_TEST_ENTRY test_gemm_bf16(const void* a, const void* b, float* c, int m, int n, int k) {
    return run_entry([&] {
        const dim3 grid(blocks_for(n, kN), blocks_for(m, kM));
        launch("gemm_bf16", {grid, kThreads, sizeof(Tiles)}, gemm_kernel,
               Matrices{static_cast<const bf16*>(a), static_cast<const bf16*>(b), c, m, n, k});
    });
}

}  // namespace fusednn::cuda
