#include "cpu/conv/offset_tile.h"

namespace fusednn {
namespace FUSEDNN_ISA {

namespace {

template <class T, int R, int V>
void tile_of(i64 count, const i64* offset, const T* src, const T* factors,
             const TileOutput<T>& out) {
    constexpr int lanes = kLanes<T>;
    Vec<T> sum[R][V];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
        for (int v = 0; v < V; ++v) sum[r][v] = Vec<T>{};
    }
    for (i64 i = 0; i < count; ++i) {
        Vec<T> x[V];
#pragma GCC unroll 2
        for (int v = 0; v < V; ++v) x[v] = load(src + offset[i] + v * lanes);
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
            const Vec<T> factor = broadcast(factors[r]);
#pragma GCC unroll 2
            for (int v = 0; v < V; ++v) sum[r][v] = multiply_add(factor, x[v], sum[r][v]);
        }
        factors += R;
    }
    store_sums<T, R, V>(sum, out);
}

template <class T>
struct TileTable {
    OffsetTileFn<T> entry[kTileRows][kTileVecs];
};

template <class T, int R>
constexpr void fill(TileTable<T>& table) {
    table.entry[R - 1][0] = tile_of<T, R, 1>;
    table.entry[R - 1][1] = tile_of<T, R, 2>;
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

}  // namespace

template <class T>
OffsetTileFn<T> offset_tile(int rows, i64 cols) {
    return tiles<T>.entry[rows - 1][cols > kLanes<T>];
}

template OffsetTileFn<float> offset_tile<float>(int, i64);
template OffsetTileFn<double> offset_tile<double>(int, i64);

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
