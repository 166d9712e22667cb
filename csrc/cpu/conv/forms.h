// What the forward pass and the input gradient share: how groups lie, and the choice between the
// two forms of the product.
#pragma once
#include "cpu/conv/channel_lanes.h"
#include "cpu/conv/pixel_lanes.h"
#include "cpu/conv/product.h"
#include "cpu/conv/winograd.h"

namespace fusednn {
namespace FUSEDNN_ISA {

// Cycles that the two forms of the product take, counted in vectors: multiply-adds, packing, and
// what each tile costs besides. The constants are measured (docs/kernels/conv.md).
template <class T>
FUSEDNN_INLINE bool prefer_channel_lanes(const ConvProblem<T>& p) {
    if (!channel_lanes_apply(p) || p.row_group > 1) return false;
    double reached = double(p.channels);  // taps that read inside the source, of a mean position
    for (int axis = 0; axis < 3; ++axis) {
        double inside_axis = 0;
        for (i64 k = 0; k < p.taps[axis]; ++k) {
            const i64 first = p.offset[axis][k], step = p.step[axis];
            const i64 begin = first < 0 ? ceil_div(-first, step) : 0;
            const i64 end = first < p.src_size[axis] ? ceil_div(p.src_size[axis] - first, step) : 0;
            inside_axis += double(max_of(min_of(end, p.grid[axis]) - begin, i64(0)));
        }
        reached *= inside_axis / double(p.grid[axis]);
    }
    const double columns = double(p.columns()), depth = double(p.depth());
    const bool packs_rows = p.columns() > kPanelsInRows * kTileCols<T>;
    const i64 narrow =
        packs_rows ? narrow_columns<T>(p.columns(), min_of(p.rows, i64(kTileRows)), p.depth()) : 0;
    double pixel_vectors = double(ceil_div(p.columns() - narrow, i64(kLanes<T>)));
    // A narrow tile does a column at a time, and no less than the latency of a multiply-add.
    if (narrow) pixel_vectors += double(max_of(narrow, i64(4)) + 1) / kTileRows;
    const double pixels = pixel_vectors * (depth * double(p.rows + 6) + 40);
    // Few positions in a tile leave the multiply-add units waiting for their own results.
    const i64 tiles = ceil_div(p.grid[2], i64(kTileRows));
    const double idle = max_of(4.0 * double(tiles) / double(p.grid[2] * kTileVecs), 1.0);
    const double per_position = kTileVecs * reached * idle + 18 + 0.3 * double(p.tap_count());
    const double channels = columns * double(ceil_div(p.rows, i64(kTileCols<T>))) * per_position +
                            0.6 * double(p.rows) * depth;
    return channels < pixels;
}

// Runs a problem in the better of the two forms; `matrix` is `weights` as the pixel form reads
// them, `packed` as the channel form does, if that was made before (or null).
template <class T, class Matrix>
FUSEDNN_INLINE void run_product(const ConvProblem<T>& p, const ConvWeights<T>& weights,
                                const Matrix& matrix, const T* packed, const T* bias) {
    if (p.rows == 0 || p.columns() == 0) return;
    if (prefer_channel_lanes(p)) {
        conv_channel_lanes(p, weights, packed, bias);
    } else {
        conv_product(p, matrix, bias);
    }
}

// How the groups lie for the forward pass, or (transposed) for the input gradient.
FUSEDNN_INLINE ConvGroups groups_of(const ConvParams& c, bool transposed) {
    const i64 in = c.in_channels / c.groups, out = c.out_channels / c.groups;
    const i64 x = in * volume(c.in_size), y = out * volume(c.out_size);
    return {c.groups, transposed ? y : x, transposed ? x : y, in * out * volume(c.kernel)};
}

// The problem of another group than the first.
template <class T>
FUSEDNN_INLINE ConvProblem<T> of_group(ConvProblem<T> p, const ConvGroups& groups, i64 group) {
    p.src += group * groups.src;
    p.dst += group * groups.dst;
    return p;
}
template <class T>
FUSEDNN_INLINE ConvWeights<T> of_group(ConvWeights<T> w, const ConvGroups& groups, i64 group) {
    w.w += group * groups.weights;
    return w;
}

// Winograd's form of forward (`backward` false) or of the input gradient, of group 0.
template <class T>
FUSEDNN_INLINE WinogradProblem<T> winograd_problem(const ConvParams& c, bool backward, const T* src,
                                                   const T* w, const T* bias, T* dst) {
    const i64 in = c.in_channels / c.groups, out = c.out_channels / c.groups;
    const i64 kernel_volume = volume(c.kernel);
    const i64 src_plane = volume(backward ? c.out_size : c.in_size);
    const i64 dst_plane = volume(backward ? c.in_size : c.out_size);
    WinogradProblem<T> p;
    p.batch = c.batch;
    p.channels = backward ? out : in;
    p.rows = backward ? in : out;
    p.kernel = c.kernel[2];
    for (int axis = 0; axis < 2; ++axis) {
        const i64 reach = c.kernel[axis + 1] - 1;
        p.src_size[axis] = (backward ? c.out_size : c.in_size)[axis + 1];
        p.dst_size[axis] = (backward ? c.in_size : c.out_size)[axis + 1];
        p.pad[axis] = backward ? reach - c.pad[axis + 1] : c.pad[axis + 1];
    }
    p.src = src;
    p.src_image = p.channels * c.groups * src_plane;
    p.dst = dst;
    p.dst_image = p.rows * c.groups * dst_plane;
    p.w = w;
    p.w_row = backward ? kernel_volume : in * kernel_volume;
    p.w_channel = backward ? in * kernel_volume : kernel_volume;
    p.reversed = backward;
    p.packed = nullptr;
    p.bias = bias;
    return p;
}

// All groups; false if a result is not finite.
template <class T>
FUSEDNN_INLINE bool run_winograd_groups(WinogradProblem<T> p, const ConvGroups& groups) {
    bool finite = true;
    for (i64 group = 0; group < groups.count; ++group) {
        finite = winograd(p) && finite;
        p.src += groups.src;
        p.dst += groups.dst;
        p.w += groups.weights;
        if (p.packed) p.packed += winograd_packed_size(p);
        if (p.bias) p.bias += p.rows;
    }
    return finite;
}

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
