// A band of an input plane in scratch memory, padded and split by the column stride.
//
//   scratch[depth tap][row][residue of the column modulo the column stride][column / stride]
//
// so that neighbouring outputs read neighbouring elements at any stride, and no load is out of
// bounds.
#pragma once
#include "cpu/conv/problem.h"
#include "cpu/parallel.h"

namespace fusednn {
namespace FUSEDNN_ISA {

constexpr int kRows = 4;  // output rows and vectors that one tap serves: 8 sums,
constexpr int kVecs = 2;  // enough to hide the latency of a multiply-add

// A stride-`step` correlation of a plane, padded by `pad`.
struct Pass {
    i64 src_size[3], pad[3];
    i64 out_size[3];
    i64 kernel[3], step[3], dilation[3];
};

// How the scratch of a pass is laid out.
template <class T>
struct Band {
    i64 rows;       // output rows per band
    i64 src_rows;   // scratch rows per depth tap
    i64 residues;   // min(column stride, kernel reach)
    i64 pitch;      // elements from one residue to the next
    i64 row_pitch;  // and from one row to the next
    i64 size;

    FUSEDNN_INLINE Band(const Pass& p, i64 bytes) {
        const i64 reach = (p.kernel[2] - 1) * p.dilation[2];
        residues = min_of(p.step[2], reach + 1);
        pitch =
            round_up(round_up(p.out_size[2], kVecs * kLanes<T>) + reach / p.step[2] + 1, kLanes<T>);
        row_pitch = residues * pitch;
        const i64 reach_rows = (p.kernel[1] - 1) * p.dilation[1] + 1;
        const i64 fit = bytes / i64(sizeof(T)) / (row_pitch * p.kernel[0]);
        rows = fit > reach_rows ? (fit - reach_rows) / p.step[1] + 1 : 1;
        rows = min_of(round_up(rows, kRows), p.out_size[1]);
        // The kernel below reads whole groups of kRows output rows.
        src_rows = (round_up(rows, kRows) - 1) * p.step[1] + reach_rows;
        size = p.kernel[0] * src_rows * row_pitch;
    }
};

// The part of columns [first, first + kLanes) of a row of `size` that exists.
template <class T>
FUSEDNN_INLINE LaneSet lanes_inside(i64 first, i64 size) {
    constexpr i64 lanes = kLanes<T>;
    const i64 low = min_of(max_of(-first, i64(0)), lanes);
    return lanes_between(low, max_of(min_of(size - first, lanes), low));
}

// Deals the elements of kStep vectors, a power of two, out in turn: v[r] gets every kStep-th from
// the r-th on.
template <class T, int kStep>
FUSEDNN_INLINE void deal(Vec<T> (&v)[kStep]) {
#pragma GCC unroll 2
    for (int count = 1; count < kStep; count *= 2) {
        // v[r * kStep / count + j] is the j-th part of every `count`-th element from r on.
        Vec<T> from[kStep];
#pragma GCC unroll 4
        for (int j = 0; j < kStep; ++j) from[j] = v[j];
        const int half = kStep / count / 2;
#pragma GCC unroll 2
        for (int j = 0; j < kStep / 2; ++j) {
            const int r = j / half, part = j % half;
            v[r * half + part] = even_lanes<T>(from[2 * j], from[2 * j + 1]);
            v[(r + count) * half + part] = odd_lanes<T>(from[2 * j], from[2 * j + 1]);
        }
    }
}

// `rows` scratch rows from source rows that follow each other, for column stride kStep: column by
// column, whose edges are the same in all rows.
template <class T, int kStep>
FUSEDNN_INLINE void copy_rows_dealt(const Pass& p, const Band<T>& band, const T* src, i64 rows,
                                    T* dst) {
    constexpr i64 lanes = kLanes<T>;
    for (i64 i = 0; i < band.pitch; i += lanes) {
        const i64 first = i * kStep - p.pad[2];
        LaneSet inside[kStep];
        for (int j = 0; j < kStep; ++j) {
            inside[j] = lanes_inside<T>(first + j * lanes, p.src_size[2]);
        }
        const bool whole = first >= 0 && first + kStep * lanes <= p.src_size[2];
        for (i64 r = 0; r < rows; ++r) {
            const T* from = src + r * p.src_size[2] + first;
            T* to = dst + r * band.row_pitch + i;
            Vec<T> v[kStep];
#pragma GCC unroll 4
            for (int j = 0; j < kStep; ++j) {
                v[j] = whole ? load(from + j * lanes) : load_lanes(from + j * lanes, inside[j]);
            }
            deal<T, kStep>(v);
#pragma GCC unroll 4
            for (int j = 0; j < kStep; ++j) {
                if (j < band.residues) store(to + j * band.pitch, v[j]);
            }
        }
    }
}

// One scratch row of any column stride.
template <class T>
FUSEDNN_INLINE void copy_row(const Pass& p, const Band<T>& band, const T* src, T* dst) {
    const i64 step = p.step[2];
    for (i64 residue = 0; residue < band.residues; ++residue, dst += band.pitch) {
        // dst[i] is column i * step + residue of the padded row.
        const i64 first = residue - p.pad[2];
        i64 begin = first < 0 ? ceil_div(-first, step) : 0;
        i64 end = first < p.src_size[2] ? ceil_div(p.src_size[2] - first, step) : 0;
        begin = min_of(begin, band.pitch);
        end = max_of(min_of(end, band.pitch), begin);
        for (i64 i = 0; i < begin; ++i) dst[i] = T(0);
        for (i64 i = begin; i < end; ++i) dst[i] = src[first + i * step];
        for (i64 i = end; i < band.pitch; ++i) dst[i] = T(0);
    }
}

template <class T>
FUSEDNN_INLINE void copy_rows(const Pass& p, const Band<T>& band, const T* src, i64 rows, T* dst) {
    if (p.step[2] == 1) return copy_rows_dealt<T, 1>(p, band, src, rows, dst);
    if (p.step[2] == 2) return copy_rows_dealt<T, 2>(p, band, src, rows, dst);
    if (p.step[2] == 4) return copy_rows_dealt<T, 4>(p, band, src, rows, dst);
    for (i64 r = 0; r < rows; ++r) {
        copy_row(p, band, src + r * p.src_size[2], dst + r * band.row_pitch);
    }
}

// Fills the scratch for output rows [row0, row0 + band.rows) of output depth `depth`.
template <class T>
FUSEDNN_INLINE void copy_band(const Pass& p, const Band<T>& band, const T* plane, i64 depth,
                              i64 row0, T* scratch) {
    const i64 top = row0 * p.step[1] - p.pad[1];
    for (i64 i = 0; i < p.kernel[0]; ++i, scratch += band.src_rows * band.row_pitch) {
        const i64 z = depth * p.step[0] + i * p.dilation[0] - p.pad[0];
        const bool inside = z >= 0 && z < p.src_size[0];
        const i64 begin = inside ? min_of(max_of(-top, i64(0)), band.src_rows) : band.src_rows;
        const i64 end = max_of(begin, min_of(p.src_size[1] - top, band.src_rows));
        for (i64 k = 0; k < begin * band.row_pitch; ++k) scratch[k] = T(0);
        if (begin < end) {
            const T* src = plane + (z * p.src_size[1] + top + begin) * p.src_size[2];
            copy_rows(p, band, src, end - begin, scratch + begin * band.row_pitch);
        }
        for (i64 k = end * band.row_pitch; k < band.src_rows * band.row_pitch; ++k) {
            scratch[k] = T(0);
        }
    }
}

// Where each tap reads in the scratch, relative to the first column of output row 0.
template <class T>
FUSEDNN_INLINE void tap_offsets(const Pass& p, const Band<T>& band, i64* offset) {
    for (i64 i = 0; i < p.kernel[0]; ++i) {
        for (i64 j = 0; j < p.kernel[1]; ++j) {
            for (i64 l = 0; l < p.kernel[2]; ++l) {
                const i64 column = l * p.dilation[2];
                *offset++ = (i * band.src_rows + j * p.dilation[1]) * band.row_pitch +
                            column % p.step[2] * band.pitch + column / p.step[2];
            }
        }
    }
}

FUSEDNN_INLINE Pass forward_pass(const ConvParams& c) {
    Pass p;
    for (int axis = 0; axis < 3; ++axis) {
        p.src_size[axis] = c.in_size[axis];
        p.pad[axis] = c.pad[axis];
        p.out_size[axis] = c.out_size[axis];
        p.kernel[axis] = c.kernel[axis];
        p.step[axis] = c.stride[axis];
        p.dilation[axis] = c.dilation[axis];
    }
    return p;
}

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
