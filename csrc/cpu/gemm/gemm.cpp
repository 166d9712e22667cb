// C (m x n, row-major) = act(A B + bias), A and B with any strides. See engine.h for the blocking.
#include "cpu/gemm/engine.h"
#include "cpu/gemm/few.h"
#include "cpu/kernels.h"

namespace fusednn {
namespace FUSEDNN_ISA {

namespace {

constexpr int kDotCols = 4;

template <class T>
T finish(const GemmParams<T>& p, i64 i, i64 j, T sum) {
    if (p.accumulate) sum += p.c[i * p.ldc + j];
    if (p.row_bias) sum += p.row_bias[i];
    if (p.col_bias) sum += p.col_bias[j];
    if (p.activation == Activation::relu && sum < T(0)) sum = T(0);
    return sum;
}

// R rows times C columns; one partial sum a lane, the lanes added in a fixed tree.
template <class T, int R, int C>
void dot_tile(const GemmParams<T>& p, i64 row0, i64 col0) {
    constexpr int lanes = kLanes<T>;
    const T* a = p.a + row0 * p.a_row;
    const T* b = p.b + col0 * p.b_col;
    Vec<T> sum[R][C] = {};
    for (i64 q = 0; q < p.k; q += lanes) {
        const i64 left = p.k - q;
        Vec<T> x[R];
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) {
            x[r] =
                left >= lanes ? load(a + r * p.a_row + q) : load_partial(a + r * p.a_row + q, left);
        }
#pragma GCC unroll 4
        for (int c = 0; c < C; ++c) {
            const T* column = b + c * p.b_col + q;
            const Vec<T> y = left >= lanes ? load(column) : load_partial(column, left);
#pragma GCC unroll 4
            for (int r = 0; r < R; ++r) sum[r][c] = multiply_add(x[r], y, sum[r][c]);
        }
    }
    for (int r = 0; r < R; ++r) {
        for (int c = 0; c < C; ++c) {
            T& out = p.c[(row0 + r) * p.ldc + col0 + c];
            out = finish(p, row0 + r, col0 + c, sum_lanes<T>(sum[r][c]));
        }
    }
}

template <class T, int R>
void dot_rows(const GemmParams<T>& p, i64 col0, i64 col1) {
    i64 col = col0;
    for (; col + kDotCols <= col1; col += kDotCols) dot_tile<T, R, kDotCols>(p, 0, col);
    for (; col < col1; ++col) dot_tile<T, R, 1>(p, 0, col);
}

template <class T>
void gemm_dot(const GemmParams<T>& p) {
    // Columns per task: as many as bring 64 KB of B, so that a task is worth claiming.
    const i64 step =
        round_up(max_of(i64(65536 / sizeof(T)) / max_of(p.k, i64(1)), i64(1)), kDotCols);
    const i64 tasks = ceil_div(p.n, step);
    parallel(tasks, parallel_slots(tasks, 2 * p.m * p.n * p.k), [&](i64 task, int) {
        FlushDenormals flush;
        const i64 col0 = task * step, col1 = min_of(col0 + step, p.n);
        switch (p.m) {
            case 1:
                return dot_rows<T, 1>(p, col0, col1);
            case 2:
                return dot_rows<T, 2>(p, col0, col1);
            case 3:
                return dot_rows<T, 3>(p, col0, col1);
            default:
                return dot_rows<T, kDotRows>(p, col0, col1);
        }
    });
}

}  // namespace

template <class T>
void gemm(const GemmParams<T>& p) {
    if (p.m == 0 || p.n == 0) return;
    if (p.m <= kDotRows && p.a_col == 1 && p.b_row == 1) return gemm_dot(p);
    const MatrixA<T> a{p.a, p.a_row, p.a_col};
    blocked_product<T>(
        choose_blocking<T>(p.m, p.n, p.k), p.m, p.n, p.k, a,
        [&](i64 k0, i64 kc, i64 col0, i64 cols, T* dst, int) {
            pack_cols(kc, cols, p.b + k0 * p.b_row + col0 * p.b_col, p.b_row, p.b_col, dst);
        },
        [&](TileFn<T> tile_fn, i64 kc, const T* a_panel, i64 a_row, const T* b_panel, i64, i64 row0,
            int, i64 col0, i64 cols, bool first, bool last) {
            TileOutput<T> out;
            out.c = p.c + row0 * p.ldc + col0;
            out.ldc = p.ldc;
            out.cols = cols;
            out.accumulate = p.accumulate || !first;
            out.row_bias = last && p.row_bias ? p.row_bias + row0 : nullptr;
            out.col_bias = last && p.col_bias ? p.col_bias + col0 : nullptr;
            out.activation = last ? p.activation : Activation::none;
            tile_fn(kc, a_panel, a_row, b_panel, kTileCols<T>, out);
        });
}

template <class T>
void gemm_batches(const GemmParams<T>& p, const GemmBatches& batches) {
    GemmParams<T> one = p;
    for (i64 i = 0; i < batches.count[0]; ++i) {
        for (i64 j = 0; j < batches.count[1]; ++j) {
            one.a = p.a + i * batches.a[0] + j * batches.a[1];
            one.b = p.b + i * batches.b[0] + j * batches.b[1];
            one.c = p.c + (i * batches.count[1] + j) * p.m * p.ldc;
            gemm(one);
        }
    }
}

#define FUSEDNN_GEMM(T)                          \
    template void gemm<T>(const GemmParams<T>&); \
    template void gemm_batches<T>(const GemmParams<T>&, const GemmBatches&);
FUSEDNN_INSTANTIATE(FUSEDNN_GEMM)

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
