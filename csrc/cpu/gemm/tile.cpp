#include "cpu/gemm/tile.h"

#include "cpu/kernels.h"

namespace fusednn {
namespace FUSEDNN_ISA {

namespace {

// The instances of tile<> for 1 .. kTileRows rows, both widths and both layouts of A.
template <class T>
struct TileTable {
    TileFn<T> entry[kTileRows][kTileVecs][2];
};

template <class T, int R>
constexpr void fill(TileTable<T>& table) {
    table.entry[R - 1][0][0] = tile<T, R, 1, false>;
    table.entry[R - 1][0][1] = tile<T, R, 1, true>;
    table.entry[R - 1][1][0] = tile<T, R, 2, false>;
    table.entry[R - 1][1][1] = tile<T, R, 2, true>;
    if constexpr (R > 1) fill<T, R - 1>(table);
}

template <class T>
constexpr TileTable<T> make_table() {
    TileTable<T> table{};
    fill<T, kTileRows>(table);
    return table;
}

template <class T>
constexpr TileTable<T> tiles = make_table<T>();

// One element of C from its sum.
template <class T>
FUSEDNN_INLINE void store_sum(T x, const TileOutput<T>& out, i64 r, i64 j) {
    T* c = out.c + r * out.ldc + j;
    if (out.accumulate) x += *c;
    if (out.row_bias) x += out.row_bias[r];
    if (out.col_bias) x += out.col_bias[j];
    if (out.activation == Activation::relu && x < T(0)) x = 0;
    *c = x;
}

template <class T, int C>
void narrow_tile(i64 k, const T* __restrict a, i64 rows, const T* __restrict b, i64 b_row,
                 const TileOutput<T>& out) {
    constexpr int lanes = kLanes<T>, vecs = (kTileRows + lanes - 1) / lanes;
    Vec<T> sum[C][vecs];
#pragma GCC unroll 8
    for (int j = 0; j < C; ++j) {
#pragma GCC unroll 4
        for (int v = 0; v < vecs; ++v) sum[j][v] = Vec<T>{};
    }
    for (i64 p = 0; p < k; ++p) {
        Vec<T> column[vecs];
#pragma GCC unroll 4
        for (int v = 0; v < vecs; ++v) column[v] = load(a + v * lanes);
#pragma GCC unroll 8
        for (int j = 0; j < C; ++j) {
            const Vec<T> x = broadcast(b[j]);
#pragma GCC unroll 4
            for (int v = 0; v < vecs; ++v) sum[j][v] = multiply_add(column[v], x, sum[j][v]);
        }
        a += rows;
        b += b_row;
    }
    T sums[C][vecs * lanes];
    for (int j = 0; j < C; ++j) {
        for (int v = 0; v < vecs; ++v) store(sums[j] + v * lanes, sum[j][v]);
    }
    for (i64 r = 0; r < rows; ++r) {
        for (int j = 0; j < C; ++j) store_sum(sums[j][r], out, r, j);
    }
}

template <class T>
struct NarrowTable {
    TileFn<T> entry[kMostNarrow + 1];
};

template <class T, int C>
constexpr void fill_narrow(NarrowTable<T>& table) {
    if constexpr (C > 0) {
        table.entry[C] = narrow_tile<T, C>;
        fill_narrow<T, C - 1>(table);
    }
}

template <class T>
constexpr NarrowTable<T> make_narrow_table() {
    NarrowTable<T> table{};
    fill_narrow<T, int(kMostNarrow * i64(sizeof(float)) / i64(sizeof(T)))>(table);
    return table;
}

template <class T>
constexpr NarrowTable<T> narrow_tiles = make_narrow_table<T>();

}  // namespace

template <class T>
TileFn<T> narrow_tile_function(i64 cols) {
    return narrow_tiles<T>.entry[cols];
}

template <class T>
TileFn<T> tile_function(int rows, i64 cols, bool packed_a) {
    return tiles<T>.entry[rows - 1][cols > kLanes<T>][packed_a];
}

#define FUSEDNN_TILE(T)                                  \
    template TileFn<T> tile_function<T>(int, i64, bool); \
    template TileFn<T> narrow_tile_function<T>(i64);
FUSEDNN_INSTANTIATE(FUSEDNN_TILE)

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
