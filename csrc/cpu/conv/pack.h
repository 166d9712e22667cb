// Implicit im2col: writes panels of the matrix that a ConvProblem defines straight from the source.
#pragma once
#include "cpu/conv/problem.h"
#include "cpu/gemm/tile.h"

namespace fusednn {
namespace FUSEDNN_ISA {

// Lanes [begin, end) of source elements src[lane * step], the rest 0.
template <class T, int kStep>
FUSEDNN_INLINE Vec<T> load_strided(const T* src, i64 step, i64 begin, i64 end) {
    constexpr i64 lanes = kLanes<T>;
    if constexpr (kStep == 1) return load_between(src, begin, end);
    if constexpr (kStep == 2) {
        // Elements 0, 2, ... of two vectors; the last one read is element 2 * (end - 1).
        const Vec<T> low = load_between(src, min_of(2 * begin, lanes), min_of(2 * end, lanes + 1) - 1);
        const Vec<T> high = load_between(src + lanes, max_of(2 * begin - lanes, i64(0)),
                                         max_of(2 * end - 1 - lanes, i64(0)));
        return even_lanes<T>(low, high);
    }
    Vec<T> v{};
    for (i64 lane = begin; lane < end; ++lane) v[lane] = src[lane * step];
    return v;
}

// Where the columns of one panel lie in the source. Columns are cut into chunks: at most a vector of
// neighbours in one row of the grid. For tap (i, j, l) chunk s reads, in a channel's plane, from
// row_offset[i, j][s] + col_offset[l][s], lanes [begin, end) of col [l][s], or nothing if the row is
// outside (row_offset < 0).
template <class T>
class ColumnTable {
  public:
    static constexpr i64 kMaxChunks = kTileCols<T>;

    // i64 elements of workspace that a table takes.
    static FUSEDNN_INLINE i64 workspace(const ConvProblem<T>& p) {
        return kMaxChunks * (p.taps[0] * p.taps[1] + 3 * p.taps[2]);
    }

    FUSEDNN_INLINE ColumnTable(const ConvProblem<T>& p, i64* workspace)
        : p_(p),
          row_offset_(workspace),
          col_offset_(workspace + kMaxChunks * p.taps[0] * p.taps[1]),
          begin_(col_offset_ + kMaxChunks * p.taps[2]),
          end_(begin_ + kMaxChunks * p.taps[2]) {}

    // Chooses the columns: [col0, col0 + cols), cols <= kTileCols.
    FUSEDNN_INLINE void set_columns(i64 col0, i64 cols) {
        chunks_ = 0;
        for_each_run(p_, col0, cols, kLanes<T>, [&](const GridRun& run, i64 done) {
            dst_[chunks_] = int(done);
            add_chunk(run);
            ++chunks_;
        });
    }

    // Writes rows [k0, k0 + kc) of the panel: dst[r * row_stride + column].
    FUSEDNN_INLINE void pack(i64 k0, i64 kc, T* dst, i64 row_stride) const {
        if (p_.step[2] == 1) return pack_step<1>(k0, kc, dst, row_stride);
        if (p_.step[2] == 2) return pack_step<2>(k0, kc, dst, row_stride);
        return pack_step<0>(k0, kc, dst, row_stride);
    }

  private:
    FUSEDNN_INLINE void add_chunk(const GridRun& run) {
        const i64 s = chunks_;
        for (i64 i = 0; i < p_.taps[0]; ++i) {
            const i64 z = run.q[0] * p_.step[0] + p_.offset[0][i];
            for (i64 j = 0; j < p_.taps[1]; ++j) {
                const i64 y = run.q[1] * p_.step[1] + p_.offset[1][j];
                const bool inside = z >= 0 && z < p_.src_size[0] && y >= 0 && y < p_.src_size[1];
                row_offset_[(i * p_.taps[1] + j) * kMaxChunks + s] =
                    inside ? run.image * p_.src_image + (z * p_.src_size[1] + y) * p_.src_size[2]
                           : -1;
            }
        }
        const i64 step = p_.step[2];
        for (i64 l = 0; l < p_.taps[2]; ++l) {
            // Lane x reads column first + x * step: inside where 0 <= that < size.
            const i64 first = run.q[2] * step + p_.offset[2][l];
            const i64 at = l * kMaxChunks + s;
            col_offset_[at] = first;
            begin_[at] = first >= 0 ? 0 : min_of(ceil_div(-first, step), run.count);
            end_[at] = first >= p_.src_size[2]
                           ? begin_[at]
                           : max_of(min_of(ceil_div(p_.src_size[2] - first, step), run.count),
                                    begin_[at]);
        }
    }

    template <int kStep>
    void pack_step(i64 k0, i64 kc, T* dst, i64 row_stride) const {
        const i64 taps = p_.tap_count();
        i64 channel = k0 / taps, t = k0 % taps;
        const i64 step = p_.step[2];
        for (i64 r = 0; r < kc; ++r) {
            const T* plane = p_.src + channel * p_.src_plane;
            const i64* row_offset = row_offset_ + t / p_.taps[2] * kMaxChunks;
            const i64 l = t % p_.taps[2] * kMaxChunks;
            T* out = dst + r * row_stride;
            // Chunks are written from left to right with whole vectors; what runs over is
            // overwritten by the next chunk or row, or belongs to columns that do not exist.
            for (int s = 0; s < chunks_; ++s) {
                const i64 row = row_offset[s];
                const i64 begin = begin_[l + s], end = row >= 0 ? end_[l + s] : begin;
                const T* src = plane + row + col_offset_[l + s];
                store(out + dst_[s], begin < end ? load_strided<T, kStep>(src, step, begin, end)
                                                 : Vec<T>{});
            }
            if (++t == taps) {
                t = 0;
                ++channel;
            }
        }
    }

    const ConvProblem<T>& p_;
    i64* row_offset_;
    i64* col_offset_;
    i64* begin_;
    i64* end_;
    int dst_[kMaxChunks];
    int chunks_ = 0;
};

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
