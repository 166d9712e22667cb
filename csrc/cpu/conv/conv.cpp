// Convolution forward and input gradient.
//
//   x  (N, C, D, H, W)             y = dy (N, O, OD, OH, OW)
//   w  (O, C/groups, KD, KH, KW)   bias (O)
//
// Forward, per group:   y[o, q] = bias[o] + sum over (c, tap) of w[o, c, tap] x[c, q*stride +
// tap*dil
// - pad], a product of w as it lies in memory with the implicit im2col matrix (problem.h, pack.h).
// Input gradient, per group and per residue of the input position modulo the stride: the same
// product with dy as the source and the taps that reach the residue, w read as (C/groups, O, taps).
#include "cpu/conv/channel_lanes.h"
#include "cpu/conv/depthwise.h"
#include "cpu/conv/few_channels.h"
#include "cpu/conv/pixel_lanes.h"
#include "cpu/conv/product.h"
#include "cpu/conv/winograd.h"
#include "cpu/kernels.h"

namespace fusednn {
namespace FUSEDNN_ISA {

namespace {

// Cycles that the two forms of the product take, counted in vectors: multiply-adds, packing, and
// what each tile costs besides. The constants are measured (bench/lab/README.md).
template <class T>
FUSEDNN_INLINE bool prefer_channel_lanes(const ConvProblem<T>& p) {
    if (!channel_lanes_apply(p)) return false;
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
    const double pixel_vectors = double(round_up(p.columns(), kLanes<T>) / kLanes<T>);
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
// them.
template <class T, class Matrix>
FUSEDNN_INLINE void run_product(const ConvProblem<T>& p, const ConvWeights<T>& weights,
                                const Matrix& matrix, const T* bias) {
    if (p.rows == 0 || p.columns() == 0) return;
    if (prefer_channel_lanes(p)) {
        conv_channel_lanes(p, weights, bias);
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

// The weights of a group as the matrix of the input gradient: row c, column (o, t).
template <class T>
struct TransposedWeights {
    ConvWeights<T> weights;
    const i64* position;  // of each tap in the kernel
    i64 taps;

    FUSEDNN_INLINE bool in_rows() const { return false; }
    FUSEDNN_INLINE i64 row_stride() const { return 0; }
    FUSEDNN_INLINE const T* rows(i64, i64) const { return nullptr; }
    FUSEDNN_INLINE void pack(i64 row0, int height, i64 k0, i64 kc, T* dst, bool) const {
        if (kc == 0) return;  // no tap reaches this residue
        i64 o = k0 / taps, t = k0 % taps;
        for (i64 r = 0; r < kc; ++r) {
            const T* src =
                weights.w + o * weights.channel_stride + row0 * weights.row_stride + position[t];
            for (int c = 0; c < height; ++c) dst[r * height + c] = src[c * weights.row_stride];
            if (++t == taps) {
                t = 0;
                ++o;
            }
        }
    }
};

// One residue (start) of the input positions modulo the stride, of group 0.
template <class T>
struct ResidueProblem {
    ConvProblem<T> problem;
    ConvWeights<T> weights;
    const i64* position;  // of each tap in the kernel
};

FUSEDNN_INLINE i64 residue_lists(const ConvParams& c) {
    return 2 * (c.kernel[0] + c.kernel[1] + c.kernel[2] + volume(c.kernel));
}

// `list` holds residue_lists(c) elements.
template <class T>
ResidueProblem<T> residue_problem(const ConvParams& c, const i64 (&start)[3], const T* dy,
                                  const T* w, T* dx, i64* list) {
    const i64 channels = c.in_channels / c.groups;
    ConvProblem<T> p;
    p.batch = c.batch;
    p.src_plane = volume(c.out_size);
    p.src_image = c.out_channels * p.src_plane;
    p.src = dy;
    p.channels = c.out_channels / c.groups;
    p.dst_plane = volume(c.in_size);
    p.dst_image = c.in_channels * p.dst_plane;
    p.dst = dx;
    p.rows = channels;

    // Input position i meets output position q at tap k where i = q * stride + k * dilation - pad.
    const i64 kernel_volume = volume(c.kernel);
    i64* kernel_index[3];
    for (int axis = 0; axis < 3; ++axis) {
        i64* offset = list;
        kernel_index[axis] = list + c.kernel[axis];
        list += 2 * c.kernel[axis];
        p.src_size[axis] = c.out_size[axis];
        p.dst_size[axis] = c.in_size[axis];
        p.dst_start[axis] = start[axis];
        p.dst_step[axis] = c.stride[axis];
        p.grid[axis] = ceil_div(c.in_size[axis] - start[axis], c.stride[axis]);
        p.step[axis] = 1;
        p.offset[axis] = offset;
        p.taps[axis] = 0;
        for (i64 k = 0; k < c.kernel[axis]; ++k) {
            const i64 reach = start[axis] + c.pad[axis] - k * c.dilation[axis];
            if (reach % c.stride[axis] != 0) continue;
            offset[p.taps[axis]] = reach / c.stride[axis];
            kernel_index[axis][p.taps[axis]++] = k;
        }
    }
    i64 *position = list, *tap = list + kernel_volume;
    for (i64 k = 0; k < kernel_volume; ++k) tap[k] = -1;
    i64 t = 0;
    for (i64 i = 0; i < p.taps[0]; ++i) {
        for (i64 j = 0; j < p.taps[1]; ++j) {
            for (i64 l = 0; l < p.taps[2]; ++l) {
                position[t] =
                    (kernel_index[0][i] * c.kernel[1] + kernel_index[1][j]) * c.kernel[2] +
                    kernel_index[2][l];
                tap[position[t]] = t;
                ++t;
            }
        }
    }
    return {p, ConvWeights<T>{w, kernel_volume, channels * kernel_volume, kernel_volume, tap},
            position};
}

// Winograd's form of forward (`backward` false) or of the input gradient, group by group. False if
// a result is not finite.
template <class T>
bool conv_winograd(const ConvParams& c, bool backward, const T* src, const T* w, const T* bias,
                   T* dst) {
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
    p.src_image = p.channels * c.groups * src_plane;
    p.dst_image = p.rows * c.groups * dst_plane;
    p.w_row = backward ? kernel_volume : in * kernel_volume;
    p.w_channel = backward ? in * kernel_volume : kernel_volume;
    p.reversed = backward;
    bool finite = true;
    for (i64 group = 0; group < c.groups; ++group) {
        p.src = src + group * p.channels * src_plane;
        p.dst = dst + group * p.rows * dst_plane;
        p.w = w + group * out * in * kernel_volume;
        p.bias = bias ? bias + group * out : nullptr;
        finite = winograd(p) && finite;
    }
    return finite;
}

}  // namespace

template <class T>
void conv_forward(const ConvParams& c, const T* x, const T* w, const T* bias, T* y) {
    if (c.algorithm == ConvAlgorithm::winograd && conv_winograd(c, false, x, w, bias, y)) return;
    Workspace<i64> lists(forward_lists(c));
    const ForwardProblem<T> all = forward_problem(c, x, w, y, lists.get());
    const ConvGroups groups = groups_of(c, false);
    if (c.algorithm == ConvAlgorithm::direct) {
        const bool depthwise = c.groups > 1 && c.groups == c.in_channels;
        if (pixel_lanes_apply(all.problem) && (depthwise || all.problem.rows <= kFewChannels)) {
            return conv_pixel_lanes(&all.problem, &all.weights, 1, groups, bias);
        }
        if (depthwise) return depthwise_forward(c, x, w, bias, y);
        return few_channels_forward(c, x, w, bias, y);
    }
    for (i64 group = 0; group < c.groups; ++group) {
        const ConvProblem<T> p = of_group(all.problem, groups, group);
        const ConvWeights<T> weights = of_group(all.weights, groups, group);
        run_product(p, weights, MatrixA<T>{weights.w, weights.row_stride, 1},
                    bias ? bias + group * p.rows : nullptr);
    }
}

template <class T>
void conv_backward_input(const ConvParams& c, const T* dy, const T* w, T* dx) {
    if (c.algorithm == ConvAlgorithm::winograd &&
        conv_winograd(c, true, dy, w, static_cast<const T*>(nullptr), dx)) {
        return;
    }
    const ConvGroups groups = groups_of(c, true);
    const i64 columns = min_of(c.stride[2], c.in_size[2]), size = residue_lists(c);
    Workspace<i64> lists(columns * size);
    Workspace<ConvProblem<T>> problems(columns);
    Workspace<ConvWeights<T>> weights(columns);
    Workspace<const i64*> position(columns);
    i64 start[3];
    for (start[0] = 0; start[0] < min_of(c.stride[0], c.in_size[0]); ++start[0]) {
        for (start[1] = 0; start[1] < min_of(c.stride[1], c.in_size[1]); ++start[1]) {
            for (start[2] = 0; start[2] < columns; ++start[2]) {
                const ResidueProblem<T> one =
                    residue_problem(c, start, dy, w, dx, lists.get() + start[2] * size);
                problems.get()[start[2]] = one.problem;
                weights.get()[start[2]] = one.weights;
                position.get()[start[2]] = one.position;
            }
            if (columns == 0) continue;
            if (c.algorithm == ConvAlgorithm::direct) {
                conv_pixel_lanes(problems.get(), weights.get(), columns, groups,
                                 static_cast<const T*>(nullptr));
                continue;
            }
            for (i64 i = 0; i < columns * groups.count; ++i) {
                const i64 residue = i % columns, group = i / columns;
                const ConvProblem<T> p = of_group(problems.get()[residue], groups, group);
                const ConvWeights<T> w_group = of_group(weights.get()[residue], groups, group);
                run_product(p, w_group,
                            TransposedWeights<T>{w_group, position.get()[residue], p.tap_count()},
                            static_cast<const T*>(nullptr));
            }
        }
    }
}

#define FUSEDNN_CONV(T)                                                                 \
    template void conv_forward<T>(const ConvParams&, const T*, const T*, const T*, T*); \
    template void conv_backward_input<T>(const ConvParams&, const T*, const T*, T*);
FUSEDNN_INSTANTIATE(FUSEDNN_CONV)

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
