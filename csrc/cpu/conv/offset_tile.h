// A register tile whose depth is a list of places: what a convolution reads at each, without a
// copy.
#pragma once
#include "cpu/gemm/tile.h"

namespace fusednn {
namespace FUSEDNN_ISA {

// out[r][column] (+)= sum over i < count of factors[i][r] * src[offset[i] + column], for the rows
// of the tile. Whole vectors of src are read.
template <class T>
using OffsetTileFn = void (*)(i64 count, const i64* offset, const T* src, const T* factors,
                              const TileOutput<T>& out);

// The tile of 1 <= rows <= kTileRows rows and as many vectors as `cols` columns need.
template <class T>
OffsetTileFn<T> offset_tile(int rows, i64 cols);

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
