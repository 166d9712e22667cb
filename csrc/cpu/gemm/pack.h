// Packers of the GEMM engine: they copy blocks of a matrix into the order in which tile<> reads it.
#pragma once
#include "cpu/gemm/tile.h"

namespace fusednn {
namespace FUSEDNN_ISA {

// dst[p * height + r] = a[r * a_row + p * a_col] for r < height <= kTileRows, p < k.
// Whole vectors are stored, so unless `exact`, up to kPackSlack<T> elements behind the panel are
// overwritten: panels are packed in order, and the workspace ends with that many spare elements.
template <class T>
constexpr i64 kPackSlack = 2 * kLanes<T>;

template <class T>
FUSEDNN_INLINE void pack_rows(i64 k, int height, const T* a, i64 a_row, i64 a_col, T* dst,
                              bool exact) {
    constexpr int lanes = kLanes<T>;
    constexpr int groups = (kTileRows + lanes - 1) / lanes;  // of rows, each transposed as a block
    // What the vector loops leave to the exact one covers what their last stores spoil.
    const i64 vector_end = exact ? k - lanes : k;
    i64 p = 0;
    const auto pack_exactly = [&](i64 end) {
        for (; p < end; ++p) {
            for (int r = 0; r < height; ++r) dst[p * height + r] = a[r * a_row + p * a_col];
        }
    };
    if (a_row == 1) {
        for (; p < vector_end; ++p) {
#pragma GCC unroll 6
            for (int g = 0; g < groups; ++g) {
                if (g * lanes >= height) break;
                store(dst + p * height + g * lanes,
                      load_partial(a + g * lanes + p * a_col,
                                   i64(min_of(height - g * lanes, lanes))));
            }
        }
    } else if (a_col == 1) {
        pack_exactly(min_of(elements_to_line(a, a_row), k));
        for (; p + lanes <= vector_end; p += lanes) {
            Vec<T> block[groups][lanes];
#pragma GCC unroll 6
            for (int g = 0; g < groups; ++g) {
#pragma GCC unroll 16
                for (int r = 0; r < lanes; ++r) {
                    block[g][r] = load(a + min_of(g * lanes + r, height - 1) * a_row + p);
                }
                transpose<T>(block[g]);
            }
            // A store may run into the next p's place, which is written after it.
#pragma GCC unroll 16
            for (int i = 0; i < lanes; ++i) {
#pragma GCC unroll 6
                for (int g = 0; g < groups; ++g) {
                    if (g * lanes < height) store(dst + (p + i) * height + g * lanes, block[g][i]);
                }
            }
        }
    }
    pack_exactly(k);
}

// dst[p * kTileCols + j] = b[p * b_row + j * b_col] for j < cols <= kTileCols, p < k; the panel's
// other columns become 0.
template <class T>
FUSEDNN_INLINE void pack_cols(i64 k, i64 cols, const T* b, i64 b_row, i64 b_col, T* dst) {
    constexpr int lanes = kLanes<T>;
    constexpr int width = kTileCols<T>;
    if (b_col == 1) {
        const i64 second = max_of(cols - lanes, i64(0));
        const i64 first = min_of(cols, i64(lanes));
        for (i64 p = 0; p < k; ++p) {
            const T* row = b + p * b_row;
            store(dst + p * width, cols >= lanes ? load(row) : load_partial(row, first));
            store(dst + p * width + lanes,
                  cols == width ? load(row + lanes) : load_partial(row + lanes, second));
        }
        return;
    }
    i64 p = 0;
    const auto pack_exactly = [&](i64 end) {
        for (; p < end; ++p) {
            for (i64 j = 0; j < width; ++j) {
                dst[p * width + j] = j < cols ? b[p * b_row + j * b_col] : T(0);
            }
        }
    };
    if (b_row == 1) {
        pack_exactly(min_of(elements_to_line(b, b_col), k));
        for (; p + lanes <= k; p += lanes) {
#pragma GCC unroll 2
            for (int v = 0; v < kTileVecs; ++v) {
                Vec<T> block[lanes];
#pragma GCC unroll 16
                for (int j = 0; j < lanes; ++j) {
                    const i64 col = v * lanes + j;
                    block[j] = col < cols ? load(b + col * b_col + p) : Vec<T>{};
                }
                transpose<T>(block);
#pragma GCC unroll 16
                for (int j = 0; j < lanes; ++j) {
                    store(dst + (p + j) * width + v * lanes, block[j]);
                }
            }
        }
    }
    pack_exactly(k);
}

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
