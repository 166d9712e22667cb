// Runs a ConvProblem on the GEMM engine.
#pragma once
#include "cpu/conv/pack.h"
#include "cpu/gemm/engine.h"

namespace fusednn {
namespace FUSEDNN_ISA {

// Copies a tile's columns between its place in the destination and a dense buffer of kTileCols.
template <bool kToBuffer, class T>
FUSEDNN_INLINE void move_columns(const ConvProblem<T>& p, i64 row0, int rows, i64 col0, i64 cols,
                                 T* buffer) {
    for_each_run(p, col0, cols, cols, [&](const GridRun& run, i64 done) {
        i64 at = run.image * p.dst_image;
        at += ((run.q[0] * p.dst_step[0] + p.dst_start[0]) * p.dst_size[1] +
               run.q[1] * p.dst_step[1] + p.dst_start[1]) *
              p.dst_size[2];
        at += run.q[2] * p.dst_step[2] + p.dst_start[2];
        for (int r = 0; r < rows; ++r) {
            T* dst = p.dst + at + p.row_offset(row0 + r);
            T* packed = buffer + r * kTileCols<T> + done;
            for (i64 i = 0; i < run.count; ++i) {
                if (kToBuffer) {
                    packed[i] = dst[i * p.dst_step[2]];
                } else {
                    dst[i * p.dst_step[2]] = packed[i];
                }
            }
        }
    });
}

// The implicit matrix of a 1 x 1 kernel is the source itself, image by image. Not where its rows
// lie so that most of a panel's fall into the same sets of the caches; and narrower vectors, whose
// loads are more of the work, win by it only where few panels of weights read what was packed.
template <class T>
FUSEDNN_INLINE bool rows_in_place(const ConvProblem<T>& p) {
    constexpr i64 kSameSets = 1024;
#if defined(__AVX512F__)
    const bool pays = true;
#else
    const bool pays = p.rows <= 4 * kTileRows;
#endif
    return pays && p.tap_count() == 1 && p.grid[0] * p.grid[1] == 1 && p.step[2] == 1 &&
           p.src_plane == p.grid[2] && p.offset[2][0] == 0 &&
           p.src_plane * i64(sizeof(T)) % kSameSets != 0;
}

// Rows [first, ...) of a matrix (see MatrixA).
template <class A>
struct RowsFrom {
    const A& a;
    i64 first;

    FUSEDNN_INLINE bool in_rows() const { return a.in_rows(); }
    FUSEDNN_INLINE i64 row_stride() const { return a.row_stride(); }
    FUSEDNN_INLINE auto rows(i64 i, i64 p) const { return a.rows(first + i, p); }
    template <class T>
    FUSEDNN_INLINE void pack(i64 row0, int height, i64 k0, i64 kc, T* dst, bool exact) const {
        a.pack(first + row0, height, k0, kc, dst, exact);
    }
};

// dst = rows [first, first + count) of the weights (rows x depth, as `a` gives them) times the
// implicit matrix, plus bias[row].
template <class T, class A>
FUSEDNN_INLINE void conv_product_rows(const ConvProblem<T>& p, const A& a, const T* bias, i64 first,
                                      i64 count) {
    const bool dense = p.dense_dst();
    const i64 positions = p.positions();
    const bool in_place = rows_in_place(p);
    const Blocking cut = choose_blocking<T>(count, p.columns(), p.depth());
    Workspace<char> tables(ColumnTable<T>::workspace(p), cut.slots);
    blocked_product<T>(
        cut, count, p.columns(), p.depth(), RowsFrom<A>{a, first},
        [&](i64 k0, i64 kc, i64 col0, i64 cols, T* dst, int slot) {
            ColumnTable<T> table(p, tables.slot(slot));
            table.set_columns(col0, cols, k0, kc);
            table.pack(k0, kc, dst);
        },
        [&](TileFn<T> tile_fn, i64 kc, const T* a_panel, i64 a_row, const T* b_panel, i64 b_row,
            i64 from, int rows, i64 col0, i64 cols, bool begins, bool last) {
            const i64 row0 = first + from;
            TileOutput<T> out;
            out.cols = cols;
            out.accumulate = !begins;
            out.row_bias = last && bias ? bias + row0 : nullptr;
            out.col_bias = nullptr;
            out.activation = Activation::none;
            const i64 image = col0 / positions, position = col0 % positions;
            if (dense && position + cols <= positions) {
                out.c = p.dst + image * p.dst_image + row0 * p.dst_plane + position;
                out.ldc = p.dst_plane;
                tile_fn(kc, a_panel, a_row, b_panel, b_row, out);
                return;
            }
            T buffer[kTileRows * kTileCols<T>];
            out.c = buffer;
            out.ldc = kTileCols<T>;
            if (out.accumulate) move_columns<true>(p, row0, rows, col0, cols, buffer);
            tile_fn(kc, a_panel, a_row, b_panel, b_row, out);
            move_columns<false>(p, row0, rows, col0, cols, buffer);
        },
        p.src_plane,
        [&](i64 k0, i64 col0, i64 cols) -> const T* {
            const i64 image = col0 / positions, position = col0 % positions;
            if (!in_place || cols < kTileCols<T> || position + cols > positions) return nullptr;
            return p.src + image * p.src_image + k0 * p.src_plane + position;
        });
}

// Bytes of packed weights at once, or half of the destination's. For some of the rows after others
// the source is packed again.
constexpr i64 kPackedRowBytes = 1536 * 1024;

// dst = weights (rows x depth, as `a` gives them) times the implicit matrix, plus bias[row].
template <class T, class A>
FUSEDNN_INLINE void conv_product(const ConvProblem<T>& p, const A& a, const T* bias) {
    if (p.columns() == 0) return;
    const i64 bytes = max_of(kPackedRowBytes, p.rows * p.columns() * i64(sizeof(T)) / 2);
    const i64 fit = bytes / (max_of(min_of(p.depth(), kBlockDepth), i64(1)) * i64(sizeof(T)));
    const i64 parts = ceil_div(p.rows, fit);
    for (i64 part = 0; part < parts; ++part) {
        const i64 first = p.rows * part / parts;
        conv_product_rows(p, a, bias, first, p.rows * (part + 1) / parts - first);
    }
}

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
