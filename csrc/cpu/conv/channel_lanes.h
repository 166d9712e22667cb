// A ConvProblem with destination channels in the lanes and positions as the rows of the tile.
//
// The product of product.h is transposed: a tile is up to kTileRows neighbouring positions of one
// grid row times kTileCols destination channels. Then
//   - the source needs no packing at all: the elements that a tile broadcasts for one (tap,
//   channel)
//     lie `step` apart in one row of the source;
//   - taps that fall into the padding are left out instead of multiplied by 0 (18 % of all in a
//     7 x 7 image with a 3 x 3 kernel);
//   - no lane is idle where planes are small and channels many.
// What it costs: weights are transposed into W[panel][source channel][tap][kTileCols], and tiles
// are transposed on the way out.
#pragma once
#include "cpu/conv/problem.h"
#include "cpu/gemm/tile.h"

namespace fusednn {
namespace FUSEDNN_ISA {

// Tiles of this kind read every step-th element: 1 or 2.
template <class T>
FUSEDNN_INLINE bool channel_lanes_apply(const ConvProblem<T>& p) {
    return p.step[2] <= 2;
}

// W, and how many elements it has.
template <class T>
FUSEDNN_INLINE i64 channel_lanes_packed_size(const ConvProblem<T>& p) {
    return round_up(p.rows, i64(kTileCols<T>)) * p.depth();
}
template <class T>
void channel_lanes_pack(const ConvProblem<T>& problem, const ConvWeights<T>& weights, T* packed);

// packed: W if it was made before, or null.
template <class T>
void conv_channel_lanes(const ConvProblem<T>& problem, const ConvWeights<T>& weights,
                        const T* packed, const T* bias);

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
