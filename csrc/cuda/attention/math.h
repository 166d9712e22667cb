// What a block does with tiles in shared memory: which lane owns which sums, and how they grow.
//
// A warp owns 8 * kRowsOfLane rows. Lane (g, t) = (lane / 4, lane % 4) owns of each of its rows g +
// 8 i the columns column(n) of the scores and out_column(m) of the result, so that a row's four
// lanes are neighbours in every kind of mathematics.
#pragma once
#include "cuda/attention/problem.h"

namespace fusednn::cuda {

// A tile's rows and their places, whatever the mathematics.
template <int kRowsOfLane_, int kColumns_, int kDim_, int kBlocks_>
struct Layout {
    static constexpr int kWarps = 4, kThreads = 32 * kWarps, kBlocks = kBlocks_;
    static constexpr int kRowsOfLane = kRowsOfLane_, kRows = 8 * kRowsOfLane * kWarps;
    static constexpr int kColumns = kColumns_, kColumnsOfLane = kColumns / 4;
    static constexpr int kDim = kDim_, kOutOfLane = kDim / 4;
    static_assert(64 % kColumns == 0 && kColumns >= 16, "dropout counts keys in groups of 64");

    FUSEDNN_DEVICE static int first_row() { return int(threadIdx.x) / 32 * (8 * kRowsOfLane); }
    FUSEDNN_DEVICE static int row(int i) { return first_row() + int(threadIdx.x) % 32 / 4 + 8 * i; }
};

// Fused multiply-adds: each sum is one chain in the order of the depth.
template <class T, int kRowsOfLane_, int kColumns_, int kDim_, int kBlocks_>
struct Exact : Layout<kRowsOfLane_, kColumns_, kDim_, kBlocks_> {
    using Base = Layout<kRowsOfLane_, kColumns_, kDim_, kBlocks_>;
    using Base::kColumns, Base::kColumnsOfLane, Base::kDim, Base::kOutOfLane, Base::kRows,
        Base::kRowsOfLane, Base::row;
    using Value = T;
    using Sum = T;
    static constexpr int kRun = 16 / int(sizeof(T)), kOutRun = kRun;
    // 16 bytes of padding: rows that are read at once lie in different banks.
    static constexpr int kStride = kDim + kRun;
    using Scores = Sum[kRowsOfLane][kColumnsOfLane];
    using Out = Sum[kRowsOfLane][kOutOfLane];
    // Weights on their way from the lanes that computed them to those that multiply with them.
    struct alignas(16) Exchange {
        T of[kRows][kColumns + kRun];
    };

    FUSEDNN_DEVICE static int column(int n) { return int(threadIdx.x) % 4 + 4 * n; }
    FUSEDNN_DEVICE static int out_column(int m) {
        return m / kRun * (4 * kRun) + int(threadIdx.x) % 4 * kRun + m % kRun;
    }

    // s[row][column] += sum over d < depth of a[row][d] b[column][d]
    template <int kA, int kB>
    FUSEDNN_DEVICE static void multiply(Scores& s, const T (&a)[kA][kStride],
                                        const T (&b)[kB][kStride], int depth) {
#pragma unroll 2
        for (int d = 0; d < depth; d += kRun) {
            Pack<T> x[kRowsOfLane];
#pragma unroll
            for (int i = 0; i < kRowsOfLane; ++i) {
                x[i] = *reinterpret_cast<const Pack<T>*>(&a[row(i)][d]);
            }
#pragma unroll
            for (int n = 0; n < kColumnsOfLane; ++n) {
                const Pack<T> y = *reinterpret_cast<const Pack<T>*>(&b[column(n)][d]);
#pragma unroll
                for (int i = 0; i < kRowsOfLane; ++i)
#pragma unroll
                    for (int e = 0; e < kRun; ++e) s[i][n] += x[i].of[e] * y.of[e];
            }
        }
    }

    // Weights for the other lanes of their warp.
    FUSEDNN_DEVICE static void put(const Scores& w, Exchange& exchange) {
        __syncwarp();
#pragma unroll
        for (int i = 0; i < kRowsOfLane; ++i)
#pragma unroll
            for (int n = 0; n < kColumnsOfLane; ++n) exchange.of[row(i)][column(n)] = w[i][n];
        __syncwarp();
    }

    // out[row][c] += sum over the columns of w[row][column] b[column][c], c < width
    template <int kB>
    FUSEDNN_DEVICE static void add_rows(Out& out, const Scores& w, Exchange& exchange,
                                        const T (&b)[kB][kStride], int width) {
        put(w, exchange);
#pragma unroll 1
        for (int j = 0; j < kColumns; j += kRun) {
            Pack<T> x[kRowsOfLane];
#pragma unroll
            for (int i = 0; i < kRowsOfLane; ++i) {
                x[i] = *reinterpret_cast<const Pack<T>*>(&exchange.of[row(i)][j]);
            }
#pragma unroll
            for (int e = 0; e < kRun; ++e) {
#pragma unroll
                for (int m = 0; m < kOutOfLane; m += kRun) {
                    if (m * 4 >= width) break;
                    const Pack<T> y = *reinterpret_cast<const Pack<T>*>(&b[j + e][out_column(m)]);
#pragma unroll
                    for (int i = 0; i < kRowsOfLane; ++i)
#pragma unroll
                        for (int k = 0; k < kRun; ++k) out[i][m + k] += x[i].of[e] * y.of[k];
                }
            }
        }
    }
};

// ---- for all kinds
// -------------------------------------------------------------------------------

template <class Array>
FUSEDNN_DEVICE void clear(Array& sums) {
#pragma unroll
    for (auto& row : sums)
#pragma unroll
        for (auto& sum : row) sum = 0;
}

// out += w b as Math::add_rows, but weights of 0 add nothing, whatever they meet: NaN and
// infinities of a hidden key do not matter. Only where there are some; slow.
template <class Math, class Tile>
FUSEDNN_DEVICE void careful_add(typename Math::Out& out, const typename Math::Scores& w,
                                typename Math::Exchange& exchange, const Tile& b, int width) {
    using Sum = typename Math::Sum;
    Math::put(w, exchange);
#pragma unroll 1
    for (int j = 0; j < Math::kColumns; ++j) {
#pragma unroll
        for (int i = 0; i < Math::kRowsOfLane; ++i) {
            const Sum weight = Sum(exchange.of[Math::row(i)][j]);
            if (weight == Sum(0)) continue;
#pragma unroll
            for (int m = 0; m < Math::kOutOfLane; ++m) {
                const int column = Math::out_column(m);
                if (column < width) out[i][m] += weight * Sum(b[j][column]);
            }
        }
    }
}

template <class Math, class Tile>
FUSEDNN_DEVICE void add_rows(bool careful, typename Math::Out& out, const typename Math::Scores& w,
                             typename Math::Exchange& exchange, const Tile& b, int width) {
    if (careful) {
        careful_add<Math>(out, w, exchange, b, width);
    } else {
        Math::add_rows(out, w, exchange, b, width);
    }
}

// Whether all sums of this thread are numbers.
template <class Math>
FUSEDNN_DEVICE bool all_finite(const typename Math::Out& out) {
    using Sum = typename Math::Sum;
    Sum zero = 0;
#pragma unroll
    for (int i = 0; i < Math::kRowsOfLane; ++i)
#pragma unroll
        for (int m = 0; m < Math::kOutOfLane; ++m) zero += out[i][m] * Sum(0);
    return zero == zero;
}

// Over the four lanes of a row.
template <class T, class Combine>
FUSEDNN_DEVICE T row_reduce(T value, Combine combine) {
    return warp_reduce<4>(value, combine);
}

namespace detail {
template <class T, int kRun>
struct alignas(sizeof(T) * kRun) StoreRun {
    T of[kRun];
};
}  // namespace detail

// The columns [column0, columns) of this lane's rows that exist, as far as the tile reaches, each
// value times its row's factor.
template <class Math, class T>
FUSEDNN_DEVICE void store_rows(const typename Math::Out& out, const Rows<T>& to, int row0, int rows,
                               int column0, int columns,
                               const typename Math::Sum (&factor)[Math::kRowsOfLane]) {
    constexpr int kRun = Math::kOutRun;
    using Run = detail::StoreRun<T, kRun>;
    const bool wide = to.wide() && column0 % kRun == 0;
#pragma unroll
    for (int i = 0; i < Math::kRowsOfLane; ++i) {
        const int row = row0 + Math::row(i);
        if (row >= rows) continue;
#pragma unroll
        for (int m = 0; m < Math::kOutOfLane; m += kRun) {
            const int column = column0 + Math::out_column(m);
            T* const place = to[row] + column;
            if (wide && column + kRun <= columns) {
                Run run;
#pragma unroll
                for (int k = 0; k < kRun; ++k) run.of[k] = T(out[i][m + k] * factor[i]);
                *reinterpret_cast<Run*>(place) = run;
            } else {
#pragma unroll
                for (int k = 0; k < kRun; ++k) {
                    if (column + k < columns) place[k] = T(out[i][m + k] * factor[i]);
                }
            }
        }
    }
}

}  // namespace fusednn::cuda
