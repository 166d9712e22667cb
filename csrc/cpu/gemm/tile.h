// The register tile of the GEMM engine: C (rows x cols) = A (rows x k) B (k x cols), all of C in
// vector registers while k runs.
//
// Sizes by the register file: rows * vecs accumulators, vecs registers for a row of B, and one for
// the broadcast element of A must fit; beyond 8 to 10 accumulators (FMA latency x issue width) size
// buys fewer loads per multiply-add: one row of B serves `rows` of A and the other way round.
#pragma once
#include "core/kernels.h"
#include "cpu/simd.h"

namespace fusednn {
namespace FUSEDNN_ISA {

#if defined(__AVX512F__)
constexpr int kTileRows = 14;  // 28 of 32 registers accumulate
#elif defined(__aarch64__)
constexpr int kTileRows = 12;  // 24 of 32
#elif defined(__AVX2__)
constexpr int kTileRows = 6;  // 12 of 16
#else
constexpr int kTileRows = 4;  // 8 of 16: without FMA every product takes a register too
#endif
constexpr int kTileVecs = 2;
template <class T>
constexpr int kTileCols = kTileVecs * kLanes<T>;

// Where a tile goes and what happens on the way.
template <class T>
struct TileOutput {
    T* c;
    i64 ldc;
    i64 cols;  // columns that exist; the tile's others are dropped
    bool accumulate;
    const T* row_bias;  // of the tile's first row, or null
    const T* col_bias;  // of the tile's first column, or null
    Activation activation;
};

// Sums in registers -> C. Each question is asked once for all of them.
template <class T, int R, int V>
FUSEDNN_INLINE void store_sums(const Vec<T> (&sum)[R][V], const TileOutput<T>& out) {
    constexpr int lanes = kLanes<T>;
    const i64 tail = out.cols - (V - 1) * lanes;  // columns in the last vector
    const bool whole = tail == lanes;
    Vec<T> x[R][V];
    const auto each = [&](const auto& body) {
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
            for (int v = 0; v < V; ++v) body(r, v, out.c + r * out.ldc + v * lanes, x[r][v]);
        }
    };
    each([&](int r, int v, T*, Vec<T>& to) { to = sum[r][v]; });
    if (out.accumulate && whole) {
        each([&](int, int, const T* c, Vec<T>& to) { to += load(c); });
    } else if (out.accumulate) {
        each([&](int, int v, const T* c, Vec<T>& to) {
            to += v < V - 1 ? load(c) : load_partial(c, tail);
        });
    }
    if (out.row_bias) {
        each([&](int r, int, T*, Vec<T>& to) { to += broadcast(out.row_bias[r]); });
    }
    if (out.col_bias) {
        Vec<T> bias[V];
#pragma GCC unroll 2
        for (int v = 0; v < V; ++v) {
            bias[v] = v < V - 1 ? load(out.col_bias + v * lanes)
                                : load_partial(out.col_bias + v * lanes, tail);
        }
        each([&](int, int v, T*, Vec<T>& to) { to += bias[v]; });
    }
    if (out.activation == Activation::relu) {
        // Written so that NaN stays NaN.
        each([&](int, int, T*, Vec<T>& to) { to = select<T>(to < Vec<T>{}, Vec<T>{}, to); });
    }
    if (whole) {
        each([&](int, int, T* c, Vec<T>& to) { store(c, to); });
    } else {
        each([&](int, int v, T* c, Vec<T>& to) {
            v < V - 1 ? store(c, to) : store_partial(c, to, tail);
        });
    }
}

// A is packed (element (r, p) at a[p * R + r]) or lies in rows (at a[r * a_row + p]).
// Row p of B stands at b + p * b_row and holds V vectors.
template <class T, int R, int V, bool kPackedA>
void tile(i64 k, const T* __restrict a, i64 a_row, const T* __restrict b, i64 b_row,
          const TileOutput<T>& out) {
    constexpr int lanes = kLanes<T>;
    Vec<T> sum[R][V];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
        for (int v = 0; v < V; ++v) sum[r][v] = Vec<T>{};
    }
    for (i64 p = 0; p < k; ++p) {
        Vec<T> row[V];
#pragma GCC unroll 2
        for (int v = 0; v < V; ++v) row[v] = load(b + v * lanes);
        b += b_row;
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
            const Vec<T> x = broadcast(kPackedA ? a[r] : a[r * a_row]);
#pragma GCC unroll 2
            for (int v = 0; v < V; ++v) sum[r][v] = multiply_add(x, row[v], sum[r][v]);
        }
        a += kPackedA ? R : 1;
    }
    store_sums<T, R, V>(sum, out);
}

template <class T>
using TileFn = void (*)(i64, const T*, i64, const T*, i64, const TileOutput<T>&);

// The tile of 1 <= rows <= kTileRows rows and as many vectors as `cols` columns need.
template <class T>
TileFn<T> tile_function(int rows, i64 cols, bool packed_a);

// What is left of the columns behind the last whole vector may be a few: they would cost as much as
// a vector of them. A narrow tile has the rows of A in its lanes instead, and the columns one by
// one. Only where a vector holds most of a tile's rows, and the latency of a multiply-add is
// hidden.
#if defined(__AVX512F__)
constexpr i64 kMostNarrow = 8;
#else
constexpr i64 kMostNarrow = 0;
#endif
constexpr i64 kNarrowTileRows = 10, kNarrowTileDepth = 64;  // at least

// How many of the columns at the end of a panel go to a narrow tile.
template <class T>
FUSEDNN_INLINE i64 narrow_columns(i64 cols, i64 rows, i64 k) {
    const i64 tail = cols % kLanes<T>;
    const bool pays = tail <= kMostNarrow * i64(sizeof(float)) / i64(sizeof(T)) &&
                      rows >= kNarrowTileRows && k >= kNarrowTileDepth;
    return pays ? tail : 0;
}

// The tile of 1 <= cols <= kMostNarrow columns. A is packed; in the place of a_row it takes the
// number of rows. What it reads behind a panel of A is not used.
template <class T>
TileFn<T> narrow_tile_function(i64 cols);

// How `m` rows are cut into panels: as few as possible, heights differing by at most one, so that
// no panel is much less efficient than the others.
struct RowPanels {
    i64 count;
    i64 base;   // height of the later panels
    i64 extra;  // the first `extra` panels are one row higher

    FUSEDNN_INLINE explicit RowPanels(i64 m, i64 most = kTileRows)
        : count(ceil_div(m, most)), base(count ? m / count : 0), extra(count ? m % count : 0) {}
    FUSEDNN_INLINE i64 start(i64 panel) const { return panel * base + min_of(panel, extra); }
    FUSEDNN_INLINE int height(i64 panel) const { return int(base + (panel < extra)); }
};

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
