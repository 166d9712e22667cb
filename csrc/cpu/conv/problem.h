// One convolution as a matrix product, whose right-hand matrix (im2col) is never formed.
//
// A problem is a grid of positions q (per image: grid[0] x grid[1] x grid[2]) and a set of taps.
// For position q, tap t and source channel c it reads source(c, q * step + offset[t]), 0 outside,
// and it writes dst(row, q * dst_step + dst_start). Both directions are of this form:
//   forward         source x,  step = stride, offset = tap * dilation - pad; dst y, dst_step 1
//   backward input  source dy, one problem for each residue of the input position modulo the
//   stride;
//                   the taps are those that reach the residue, step 1; dst dx, dst_step = stride.
//                   Residues that read the same source positions, with weights of their own, are
//                   rows of one problem
// The product has rows = dst channels of a group (times residues), columns = batch * grid
// positions, and k runs over (source channel, tap), taps fastest.
#pragma once
#include "core/kernels.h"
#include "cpu/parallel.h"

namespace fusednn {
namespace FUSEDNN_ISA {

template <class T>
struct ConvProblem {
    i64 batch;
    i64 grid[3];
    // Source: the group's first channel of image 0, and how far apart channels and images lie.
    const T* src;
    i64 src_size[3], src_plane, src_image;
    i64 channels;  // that k runs over
    i64 taps[3];   // per axis; offset[axis] holds that many
    const i64* offset[3];
    i64 step[3];
    // Destination.
    T* dst;
    i64 dst_size[3], dst_plane, dst_image;
    i64 dst_start[3], dst_step[3];
    i64 rows;
    // Row r writes channel r / row_group of the destination, row_shift[r % row_group] elements
    // further on (null for a group of 1).
    i64 row_group = 1;
    const i64* row_shift = nullptr;

    FUSEDNN_INLINE i64 positions() const { return grid[0] * grid[1] * grid[2]; }
    FUSEDNN_INLINE i64 row_offset(i64 row) const {
        if (row_group == 1) return row * dst_plane;
        return row / row_group * dst_plane + row_shift[row % row_group];
    }
    FUSEDNN_INLINE i64 tap_count() const { return taps[0] * taps[1] * taps[2]; }
    FUSEDNN_INLINE i64 depth() const { return channels * tap_count(); }
    FUSEDNN_INLINE i64 columns() const { return batch * positions(); }
    // True if the columns of one image are the whole of a destination plane, in order.
    FUSEDNN_INLINE bool dense_dst() const {
        bool dense = true;
        for (int axis = 0; axis < 3; ++axis) {
            dense = dense && dst_step[axis] == 1 && grid[axis] == dst_size[axis];
        }
        return dense;
    }
};

// The weights of a problem: element (row, channel, kernel position) at w[row * row_stride + channel
// * channel_stride + position]. tap[position] is the tap that reads it, or -1 for none.
template <class T>
struct ConvWeights {
    const T* w;
    i64 row_stride, channel_stride, volume;
    const i64* tap;
};

FUSEDNN_INLINE i64 volume(const i64 (&size)[3]) {
    return size[0] * size[1] * size[2];
}

// A 1 x 1 kernel of step 1 sees no neighbours: its images may as well be single rows, which are cut
// into vectors with fewer rests.
FUSEDNN_INLINE ConvParams flattened(ConvParams c) {
    bool pointwise = true;
    for (int axis = 0; axis < 3; ++axis) {
        pointwise = pointwise && c.kernel[axis] == 1 && c.stride[axis] == 1 && c.pad[axis] == 0 &&
                    c.in_size[axis] == c.out_size[axis];
    }
    if (!pointwise) return c;
    c.in_size[2] = c.out_size[2] = volume(c.in_size);
    c.in_size[0] = c.in_size[1] = c.out_size[0] = c.out_size[1] = 1;
    return c;
}

// The forward problem of group 0 and its weights; `lists` holds forward_lists(c) elements.
template <class T>
struct ForwardProblem {
    ConvProblem<T> problem;
    ConvWeights<T> weights;
};

FUSEDNN_INLINE i64 forward_lists(const ConvParams& c) {
    return c.kernel[0] + c.kernel[1] + c.kernel[2] + volume(c.kernel);
}

template <class T>
FUSEDNN_INLINE ForwardProblem<T> forward_problem(const ConvParams& c, const T* x, const T* w, T* y,
                                                 i64* lists) {
    const i64 kernel_volume = volume(c.kernel);
    ConvProblem<T> p;
    p.batch = c.batch;
    p.src_plane = volume(c.in_size);
    p.src_image = c.in_channels * p.src_plane;
    p.src = x;
    p.channels = c.in_channels / c.groups;
    p.dst_plane = volume(c.out_size);
    p.dst_image = c.out_channels * p.dst_plane;
    p.dst = y;
    p.rows = c.out_channels / c.groups;
    for (int axis = 0; axis < 3; ++axis) {
        p.grid[axis] = p.dst_size[axis] = c.out_size[axis];
        p.dst_start[axis] = 0;
        p.dst_step[axis] = 1;
        p.src_size[axis] = c.in_size[axis];
        p.step[axis] = c.stride[axis];
        p.taps[axis] = c.kernel[axis];
        p.offset[axis] = lists;
        for (i64 i = 0; i < c.kernel[axis]; ++i) *lists++ = i * c.dilation[axis] - c.pad[axis];
    }
    for (i64 t = 0; t < kernel_volume; ++t) lists[t] = t;
    return {p, ConvWeights<T>{w, p.depth(), kernel_volume, kernel_volume, lists}};
}

// Some columns in a row of the grid: up to `count` positions that differ in q[2] alone.
struct GridRun {
    i64 image;
    i64 q[3];
    i64 count;
};

// Visits the runs of the columns [col0, col0 + cols), at most `longest` positions each:
// body(run, columns before it).
template <class T, class Body>
FUSEDNN_INLINE void for_each_run(const ConvProblem<T>& p, i64 col0, i64 cols, i64 longest,
                                 const Body& body) {
    GridRun run;
    run.image = col0 / p.positions();
    const i64 rest = col0 % p.positions();
    run.q[2] = rest % p.grid[2];
    run.q[1] = rest / p.grid[2] % p.grid[1];
    run.q[0] = rest / p.grid[2] / p.grid[1];
    for (i64 done = 0; done < cols; done += run.count) {
        run.count = min_of(min_of(cols - done, longest), p.grid[2] - run.q[2]);
        body(run, done);
        run.q[2] += run.count;
        if (run.q[2] < p.grid[2]) continue;
        run.q[2] = 0;
        if (++run.q[1] < p.grid[1]) continue;
        run.q[1] = 0;
        if (++run.q[0] < p.grid[0]) continue;
        run.q[0] = 0;
        ++run.image;
    }
}

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
