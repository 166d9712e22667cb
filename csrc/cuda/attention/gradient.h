// What the parts of attention's backward share. Scores are computed again from queries, keys and
// the forward's stats. With P the weights and dP = dO V^T:
//   dS = P * (dP - D), D = sum of P dP over the row = <dO, O>
//   dV = P^T dO, dK = dS^T Q, dQ = dS K
//
// Where one key, the peak, has more than half of a row's weight, its dS is minus the sum of the
// others': their difference from D would be rounding error, see cpu/attention/backward.cpp. The
// kernel of dQ goes first and leaves the peaks for the others.
#pragma once
#include "cuda/attention/tiles.h"

namespace fusednn::cuda {

template <class Sum>
struct Peak {
    int key;  // in its sequence, or -1
    Sum ds;
};

template <class T>
struct GradientCall {
    AttentionParams<T> p;
    AttentionGradients<T> g;
    const Accumulate<T>* dots;   // D of each row
    Peak<Accumulate<T>>* peaks;  // of each row
    Format<T> format;
    Dropout dropout;
    bool masked;

    FUSEDNN_DEVICE i64 rows() const { return p.batch * p.heads * p.queries; }
    FUSEDNN_DEVICE i64 first_row(const Sequence& s, int head) const {
        return (s.batch * p.heads + head) * p.queries + s.query0;
    }
};

// The gradient of the additive mask, once peaks are known: bias_gradient.cu.
template <class T>
void bias_gradient(const GradientCall<T>& call);

// What is known of a query.
template <class Sum>
struct QueryStats {
    Sum maximum, inverse, dot;
};

template <class T>
FUSEDNN_DEVICE QueryStats<Accumulate<T>> query_stats(const GradientCall<T>& call, i64 row,
                                                     bool real) {
    if (!real) return {0, 0, 0};
    return {call.g.stats[row], call.g.stats[call.rows() + row], call.dots[row]};
}

// Two factors of a product of features: rows of a tile and the columns that come and go.
template <class Math>
struct Side {
    using Value = typename Math::Value;
    using RowTile = Value[Math::kRows][Math::kStride];
    using ColumnTile = Value[Math::kColumns][Math::kStride];
    RowTile& row_tile;
    ColumnTile& column_tile;
    Rows<const Value> rows, columns;
    int features;

    FUSEDNN_DEVICE int parts() const { return int(chunks_of(features, Math::kDim)); }
    FUSEDNN_DEVICE void copy_column_tile(int column0, int count, int part) const {
        copy_rows<Math::kThreads, Math::kDim>(column_tile, Math::kColumns, columns, column0, count,
                                              part * Math::kDim, features);
    }
    // The columns' tile, and the rows' too if `both`, by one copy of the code.
    FUSEDNN_DEVICE void copy_tiles(bool both, int row0, int row_count, int column0,
                                   int column_count, int part) const {
#pragma unroll 1
        for (int of_rows = 0; of_rows < (both ? 2 : 1); ++of_rows) {
            // One by one: a choice between structs has both in memory.
            const Rows<const Value> from{of_rows ? rows.data : columns.data,
                                         of_rows ? rows.stride : columns.stride};
            copy_rows<Math::kThreads, Math::kDim>(
                of_rows ? row_tile : column_tile, of_rows ? Math::kRows : Math::kColumns, from,
                of_rows ? row0 : column0, of_rows ? row_count : column_count, part * Math::kDim,
                features);
        }
    }
    FUSEDNN_DEVICE int width(int part) const {
        return whole_steps(features - part * Math::kDim, Math::kDim);
    }
};

FUSEDNN_DEVICE void wait_for_copies() {
    copy_async_commit();
    copy_async_wait<0>();
    __syncthreads();
}

// A block's rows and the columns that it meets, both of one head of one sequence.
template <class Math>
struct Walk {
    int row0, rows;  // rows: all there are
    bool busy;       // has this warp some?

    FUSEDNN_DEVICE Walk(int first, int count)
        : row0(first), rows(count), busy(first + Math::first_row() < count) {}

    // x = the products of the tile's rows with columns [column0, ...), which are in the tiles
    // already if `there`.
    FUSEDNN_DEVICE void multiply(const typename Math::Format& format, typename Math::Scores& x,
                                 const Side<Math>& side, int column0, int columns,
                                 bool there) const {
        clear(x);
#pragma unroll 1
        for (int part = 0; part < side.parts(); ++part) {
            if (!there) {
                if (part > 0) __syncthreads();
                side.copy_tiles(true, row0, rows, column0, columns, part);
                wait_for_copies();
            }
            if (busy) Math::multiply(format, x, side.row_tile, side.column_tile, side.width(part));
        }
    }
    // Starts to load the columns from column0 on, as soon as nobody reads the last ones: what has
    // one part is on its way long before it is needed. The rows come once.
    FUSEDNN_DEVICE void start(const Side<Math>& side, bool with_rows, int column0, int columns,
                              int end) const {
        if (column0 < end && side.parts() == 1) {
            side.copy_tiles(with_rows, row0, rows, column0, columns, 0);
        }
        copy_async_commit();
    }
};

}  // namespace fusednn::cuda
