// The register tile of attention's matrix products: C (rows x cols) = A (rows x k) B (k x cols).
//
// As the tile of gemm/tile.h, with what attention needs besides: A is read in place, in rows or
// transposed (P in P V, and in the gradients' P^T dO), and running sums are rescaled on the way.
#pragma once
#include "cpu/gemm/tile.h"

namespace fusednn {
namespace FUSEDNN_ISA {

// What becomes of a tile: c = (A B + add * decay[row]) * factor[row].
template <class T>
struct ProductOutput {
    T* c;
    i64 ldc;
    i64 cols;      // columns that exist; the tile's others are dropped
    const T* add;  // rows ld_add apart, or null for 0
    i64 ld_add;
    const T* decay;   // one value a row, or null for 1
    const T* factor;  // one value a row, or null for 1
};

enum class Layout : int { rows, columns };

// Element (r, p) of A stands at a[r * a_stride + p] (rows) or a[p * a_stride + r] (columns); row p
// of B at b + p * b_stride, as many whole vectors as `cols` columns touch.
template <class T>
using ProductFn = void (*)(i64 k, const T* a, i64 a_stride, const T* b, i64 b_stride,
                           const ProductOutput<T>& out);

// The tile of 1 <= rows <= kTileRows and 1 <= cols <= kTileCols.
template <class T>
ProductFn<T> product_function(Layout layout, i64 rows, i64 cols);

// C (rows x n) for 1 <= rows <= kTileRows. B's rows hold round_up(n, lanes) elements.
template <class T>
FUSEDNN_INLINE void panel_product(Layout layout, i64 rows, i64 n, i64 k, const T* a, i64 a_stride,
                                  const T* b, i64 b_stride, ProductOutput<T> out) {
    for (i64 col = 0; col < n; col += kTileCols<T>) {
        out.cols = min_of(n - col, i64(kTileCols<T>));
        product_function<T>(layout, rows, out.cols)(k, a, a_stride, b + col, b_stride, out);
        out.c += kTileCols<T>;
        if (out.add) out.add += kTileCols<T>;
    }
}

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
