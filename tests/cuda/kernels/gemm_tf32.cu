// C (m, n) = A (m, k) B (k, n), row-major floats: tensor cores in tf32, tiles copied asynchronously
// into two stages of shared memory. k and n are multiples of 4.
#include "kernels/entries.h"

namespace fusednn::cuda {

namespace {

constexpr int kM = 64, kN = 64, kK = 32, kStages = 2;
constexpr int kWarpsM = 2, kWarpsN = 2, kThreads = 32 * kWarpsM * kWarpsN;
constexpr int kWarpM = kM / kWarpsM, kWarpN = kN / kWarpsN;  // a warp's tile
constexpr int kTilesM = kWarpM / 16, kTilesN = kWarpN / 8;
constexpr int kPadA = 4, kPadB = 8;  // rows of 36 and 72 words: fragments meet no bank conflict

struct Tiles {
    float a[kStages][kM][kK + kPadA];
    float b[kStages][kK][kN + kPadB];
};

// How many bytes of a vector of four lie before the edge.
FUSEDNN_DEVICE int bytes_before(int left) {
    return left <= 0 ? 0 : left >= 4 ? 16 : left * 4;
}

struct Matrices {
    const float *a, *b;
    float* c;
    int m, n, k;
};

FUSEDNN_DEVICE void load(Tiles& s, int stage, const Matrices& p, int m0, int n0, int k0) {
    for (int i = int(threadIdx.x); i < kM * kK / 4; i += kThreads) {
        const int r = i / (kK / 4), c = i % (kK / 4) * 4, row = m0 + r, col = k0 + c;
        const int bytes = row < p.m ? bytes_before(p.k - col) : 0;
        copy_async<16>(&s.a[stage][r][c], bytes ? p.a + i64(row) * p.k + col : p.a, bytes);
    }
    for (int i = int(threadIdx.x); i < kK * kN / 4; i += kThreads) {
        const int r = i / (kN / 4), c = i % (kN / 4) * 4, row = k0 + r, col = n0 + c;
        const int bytes = row < p.k ? bytes_before(p.n - col) : 0;
        copy_async<16>(&s.b[stage][r][c], bytes ? p.b + i64(row) * p.n + col : p.b, bytes);
    }
}

__global__ void __launch_bounds__(kThreads) gemm_kernel(Matrices p) {
    FUSEDNN_DYNAMIC_SHARED(Tiles, s);
    const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32, g = lane / 4,
              t = lane % 4;
    const int m0 = int(blockIdx.y) * kM, n0 = int(blockIdx.x) * kN;
    const int wm = warp / kWarpsN * kWarpM, wn = warp % kWarpsN * kWarpN;
    float acc[kTilesM][kTilesN][4] = {};

    const int steps = (p.k + kK - 1) / kK;
    load(s, 0, p, m0, n0, 0);
    copy_async_commit();
    for (int step = 0; step < steps; ++step) {
        if (step + 1 < steps) load(s, (step + 1) % kStages, p, m0, n0, (step + 1) * kK);
        copy_async_commit();
        copy_async_wait<1>();
        __syncthreads();
        const int st = step % kStages;
        for (int kk = 0; kk < kK; kk += 8) {
            std::uint32_t a[kTilesM][4], b[kTilesN][2];
            for (int i = 0; i < kTilesM; ++i) {
                const int r = wm + i * 16 + g;
                a[i][0] = to_tf32(s.a[st][r][kk + t]);
                a[i][1] = to_tf32(s.a[st][r + 8][kk + t]);
                a[i][2] = to_tf32(s.a[st][r][kk + t + 4]);
                a[i][3] = to_tf32(s.a[st][r + 8][kk + t + 4]);
            }
            for (int j = 0; j < kTilesN; ++j) {
                const int c = wn + j * 8 + g;
                b[j][0] = to_tf32(s.b[st][kk + t][c]);
                b[j][1] = to_tf32(s.b[st][kk + t + 4][c]);
            }
            for (int i = 0; i < kTilesM; ++i) {
                for (int j = 0; j < kTilesN; ++j) mma_tf32(acc[i][j], a[i], b[j]);
            }
        }
        __syncthreads();
    }
    for (int i = 0; i < kTilesM; ++i) {
        for (int j = 0; j < kTilesN; ++j) {
            for (int h = 0; h < 2; ++h) {
                const int r = m0 + wm + i * 16 + g + 8 * h, c = n0 + wn + j * 8 + 2 * t;
                if (r >= p.m) continue;
                if (c < p.n) p.c[i64(r) * p.n + c] = acc[i][j][2 * h];
                if (c + 1 < p.n) p.c[i64(r) * p.n + c + 1] = acc[i][j][2 * h + 1];
            }
        }
    }
}

}  // namespace

FUSEDNN_TEST_ENTRY test_gemm_tf32(const float* a, const float* b, float* c, int m, int n, int k) {
    return run_entry([&] {
        const dim3 grid(blocks_for(n, kN), blocks_for(m, kM));
        launch("gemm_tf32", {grid, kThreads, sizeof(Tiles)}, gemm_kernel,
               Matrices{a, b, c, m, n, k});
    });
}

}  // namespace fusednn::cuda
