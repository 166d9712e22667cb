// Implicit im2col: writes panels of the matrix that a ConvProblem defines straight from the source.
#pragma once
#include "cpu/conv/problem.h"
#include "cpu/gemm/tile.h"

namespace fusednn {
namespace FUSEDNN_ISA {

// Which elements a vector of outputs reads at distance `step`: for steps of 2 and 4 as so many
// vectors, of whose elements every step-th is taken, for other steps one by one.
struct StridedLanes {
    LaneSet part[4];
    int begin, end;
};

template <class T>
FUSEDNN_INLINE StridedLanes strided_lanes(i64 step, i64 begin, i64 end) {
    constexpr i64 lanes = kLanes<T>;
    StridedLanes set;
    set.begin = int(begin);
    set.end = int(end);
    set.part[0] = lanes_between(begin, end);
    if (step != 2 && step != 4) return set;
    // The elements read are [first, last).
    const i64 first = step * begin, last = begin < end ? step * (end - 1) + 1 : first;
    for (i64 i = 0; i < step; ++i) {
        const i64 low = min_of(max_of(first - i * lanes, i64(0)), lanes);
        set.part[i] = lanes_between(low, max_of(min_of(last - i * lanes, lanes), low));
    }
    return set;
}

// Lanes of source elements src[lane * step], those outside the set 0; `whole` is all or no lanes.
template <class T, int kStep>
FUSEDNN_INLINE Vec<T> load_strided(const T* src, i64 step, const StridedLanes& set, LaneSet whole) {
    const auto part = [&](int i) {
        return load_lanes(src + i * kLanes<T>, intersect(set.part[i], whole));
    };
    if constexpr (kStep == 1) return part(0);
    if constexpr (kStep == 2) return even_lanes<T>(part(0), part(1));
    if constexpr (kStep == 4) {
        return even_lanes<T>(even_lanes<T>(part(0), part(1)), even_lanes<T>(part(2), part(3)));
    }
    Vec<T> v{};
    const LaneSet every = lanes_between(0, kLanes<T>);
    if (__builtin_memcmp(&whole, &every, sizeof whole) == 0) {
        for (int lane = set.begin; lane < set.end; ++lane) v[lane] = src[lane * step];
    }
    return v;
}

// Where the columns of one panel lie in the source. Columns are cut into chunks: at most a vector
// of neighbours in one row of the grid. For tap (i, j, l), chunk s reads in a channel's plane from
// row(i, j)[s].offset + col(l)[s].offset, the lanes that both sets have.
template <class T>
class ColumnTable {
  public:
    static constexpr i64 kMaxChunks = kTileCols<T>;
    // How many rows of the panel ahead the source is asked for.
    static constexpr i64 kRowsAhead = 12;

    struct Row {
        i64 offset;
        LaneSet lanes;  // all, or none where the row is outside the source
    };
    struct Col {
        i64 offset;
        StridedLanes lanes;
    };

    // Bytes of workspace that a table takes.
    static FUSEDNN_INLINE i64 workspace(const ConvProblem<T>& p) {
        return kMaxChunks *
               (p.taps[0] * p.taps[1] * i64(sizeof(Row)) + p.taps[2] * i64(sizeof(Col)));
    }

    FUSEDNN_INLINE ColumnTable(const ConvProblem<T>& p, char* workspace)
        : p_(p),
          rows_(reinterpret_cast<Row*>(workspace)),
          cols_(reinterpret_cast<Col*>(rows_ + kMaxChunks * p.taps[0] * p.taps[1])) {}

    // Chooses the columns: [col0, col0 + cols), cols <= kTileCols, to be packed for rows
    // [k0, k0 + kc) or parts of them. Of a kernel with more taps than that, only those are looked
    // at.
    FUSEDNN_INLINE void set_columns(i64 col0, i64 cols, i64 k0, i64 kc) {
        const TapRange taps = taps_of(k0, kc);
        chunks_ = 0;
        for_each_run(p_, col0, cols, kLanes<T>, [&](const GridRun& run, i64 done) {
            dst_[chunks_] = int(done);
            add_chunk(run, taps);
            ++chunks_;
        });
    }

    // Writes rows [k0, k0 + kc) of the panel: dst[r * kTileCols + column]. May run over by less
    // than a vector.
    FUSEDNN_INLINE void pack(i64 k0, i64 kc, T* dst) const {
        if (kc == 0) return;  // no tap reads anything
        if (p_.step[2] == 1) return pack_step<1>(k0, kc, dst);
        if (p_.step[2] == 2) return pack_step<2>(k0, kc, dst);
        if (p_.step[2] == 4) return pack_step<4>(k0, kc, dst);
        return pack_step<0>(k0, kc, dst);
    }

  private:
    // `rows` of the (i, j) from (i0, j0) on, and `cols` of the l from l0 on; both start again at 0
    // after the last.
    struct TapRange {
        i64 i0, j0, rows, l0, cols;
    };

    FUSEDNN_INLINE TapRange taps_of(i64 k0, i64 kc) const {
        const i64 row_taps = p_.taps[0] * p_.taps[1], col_taps = p_.taps[2];
        if (kc >= row_taps * col_taps) return {0, 0, row_taps, 0, col_taps};
        const i64 tap = k0 % (row_taps * col_taps), row = tap / col_taps, col = tap % col_taps;
        return {row / p_.taps[1], row % p_.taps[1], min_of(ceil_div(col + kc, col_taps), row_taps),
                col, min_of(kc, col_taps)};
    }

    FUSEDNN_INLINE void add_chunk(const GridRun& run, const TapRange& taps) {
        i64 i = taps.i0, j = taps.j0;
        for (i64 n = 0; n < taps.rows; ++n) {
            const i64 z = run.q[0] * p_.step[0] + p_.offset[0][i];
            const i64 y = run.q[1] * p_.step[1] + p_.offset[1][j];
            const bool inside = z >= 0 && z < p_.src_size[0] && y >= 0 && y < p_.src_size[1];
            Row* row = rows_ + (i * p_.taps[1] + j) * kMaxChunks + chunks_;
            row->offset = run.image * p_.src_image + (z * p_.src_size[1] + y) * p_.src_size[2];
            row->lanes = lanes_between(0, inside ? kLanes<T> : 0);
            if (++j < p_.taps[1]) continue;
            j = 0;
            if (++i == p_.taps[0]) i = 0;
        }
        const i64 step = p_.step[2];
        i64 l = taps.l0;
        for (i64 n = 0; n < taps.cols; ++n) {
            Col* col = cols_ + l * kMaxChunks + chunks_;
            // Lane x reads column first + x * step: inside where 0 <= that < size.
            const i64 first = run.q[2] * step + p_.offset[2][l];
            i64 begin = 0, end = run.count;
            if (first < 0) begin = min_of(step == 1 ? -first : ceil_div(-first, step), end);
            const i64 room = p_.src_size[2] - first;
            if (room < end * step) {
                end = room <= 0 ? begin : max_of(step == 1 ? room : ceil_div(room, step), begin);
                end = min_of(end, run.count);
            }
            col->offset = first;
            col->lanes = strided_lanes<T>(step, begin, end);
            if (++l == p_.taps[2]) l = 0;
        }
    }

    template <int kStep>
    void pack_step(i64 k0, i64 kc, T* dst) const {
        const i64 row_taps = p_.taps[0] * p_.taps[1], col_taps = p_.taps[2];
        const i64 tap = k0 % p_.tap_count();
        i64 ij = tap / col_taps, l = tap % col_taps;
        const T* plane = p_.src + k0 / p_.tap_count() * p_.src_plane;
        const i64 step = p_.step[2];
        const int chunks = chunks_;
        // Planes lie too far apart for the hardware to see what comes next.
        const i64 ahead = max_of(kRowsAhead / p_.tap_count(), i64(1)) * p_.src_plane;
        for (i64 r = 0; r < kc; ++r, dst += kTileCols<T>) {
            const Row* row = rows_ + ij * kMaxChunks;
            const Col* col = cols_ + l * kMaxChunks;
            for (int s = 0; l == 0 && s < chunks; ++s) {
                __builtin_prefetch(plane + row[s].offset + col[s].offset + ahead);
            }
            // Chunks are written from left to right with whole vectors; what runs over is
            // overwritten by the next chunk or row, or belongs to columns that do not exist.
            for (int s = 0; s < chunks; ++s) {
                store(dst + dst_[s], load_strided<T, kStep>(plane + row[s].offset + col[s].offset,
                                                            step, col[s].lanes, row[s].lanes));
            }
            if (++l == col_taps) {
                l = 0;
                if (++ij == row_taps) {
                    ij = 0;
                    plane += p_.src_plane;
                }
            }
        }
    }

    const ConvProblem<T>& p_;
    Row* rows_;
    Col* cols_;
    int dst_[kMaxChunks];
    int chunks_ = 0;
};

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
