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

}  // namespace

template <class T>
TileFn<T> tile_function(int rows, i64 cols, bool packed_a) {
    return tiles<T>.entry[rows - 1][cols > kLanes<T>][packed_a];
}

#define FUSEDNN_TILE(T) template TileFn<T> tile_function<T>(int, i64, bool);
FUSEDNN_INSTANTIATE(FUSEDNN_TILE)

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
