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
#include "cpu/conv/product.h"
#include "cpu/conv/winograd.h"
#include "cpu/kernels.h"

namespace fusednn {
namespace FUSEDNN_ISA {

namespace {

FUSEDNN_INLINE i64 volume(const i64 (&size)[3]) {
    return size[0] * size[1] * size[2];
}

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

template <class T>
void conv_forward_group(const ConvParams& c, i64 group, const T* x, const T* w, const T* bias,
                        T* y) {
    const i64 channels = c.in_channels / c.groups, rows = c.out_channels / c.groups;
    const i64 kernel_volume = volume(c.kernel), depth = channels * kernel_volume;
    ConvProblem<T> p;
    p.batch = c.batch;
    p.src_plane = volume(c.in_size);
    p.src_image = c.in_channels * p.src_plane;
    p.src = x + group * channels * p.src_plane;
    p.channels = channels;
    p.dst_plane = volume(c.out_size);
    p.dst_image = c.out_channels * p.dst_plane;
    p.dst = y + group * rows * p.dst_plane;
    p.rows = rows;
    Workspace<i64> lists(c.kernel[0] + c.kernel[1] + c.kernel[2] + kernel_volume);
    i64* offset = lists.get();
    for (int axis = 0; axis < 3; ++axis) {
        p.grid[axis] = p.dst_size[axis] = c.out_size[axis];
        p.dst_start[axis] = 0;
        p.dst_step[axis] = 1;
        p.src_size[axis] = c.in_size[axis];
        p.step[axis] = c.stride[axis];
        p.taps[axis] = c.kernel[axis];
        p.offset[axis] = offset;
        for (i64 i = 0; i < c.kernel[axis]; ++i) *offset++ = i * c.dilation[axis] - c.pad[axis];
    }
    i64* tap = offset;
    for (i64 t = 0; t < kernel_volume; ++t) tap[t] = t;
    const T* weights = w + group * rows * depth;
    run_product(p, ConvWeights<T>{weights, depth, kernel_volume, kernel_volume, tap},
                MatrixA<T>{weights, depth, 1}, bias ? bias + group * rows : nullptr);
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

// One residue (start) of the input positions modulo the stride.
template <class T>
void conv_backward_input_residue(const ConvParams& c, i64 group, const i64 (&start)[3], const T* dy,
                                 const T* w, const T* bias, T* dx) {
    const i64 channels = c.in_channels / c.groups, rows = c.out_channels / c.groups;
    ConvProblem<T> p;
    p.batch = c.batch;
    p.src_plane = volume(c.out_size);
    p.src_image = c.out_channels * p.src_plane;
    p.src = dy + group * rows * p.src_plane;
    p.channels = rows;
    p.dst_plane = volume(c.in_size);
    p.dst_image = c.in_channels * p.dst_plane;
    p.dst = dx + group * channels * p.dst_plane;
    p.rows = channels;

    // Input position i meets output position q at tap k where i = q * stride + k * dilation - pad.
    const i64 kernel_volume = volume(c.kernel);
    Workspace<i64> lists(2 * (c.kernel[0] + c.kernel[1] + c.kernel[2]) + 2 * kernel_volume);
    i64* list = lists.get();
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
    const ConvWeights<T> weights{w + group * rows * channels * kernel_volume, kernel_volume,
                                 channels * kernel_volume, kernel_volume, tap};
    run_product(p, weights, TransposedWeights<T>{weights, position, t},
                bias ? bias + group * channels : nullptr);
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
        p.bias = bias ? bias + group * p.rows : nullptr;
        finite = winograd(p) && finite;
    }
    return finite;
}

}  // namespace

template <class T>
void conv_forward(const ConvParams& c, const T* x, const T* w, const T* bias, T* y) {
    if (c.algorithm == ConvAlgorithm::direct) return depthwise_forward(c, x, w, bias, y);
    if (c.algorithm == ConvAlgorithm::winograd && conv_winograd(c, false, x, w, bias, y)) return;
    for (i64 group = 0; group < c.groups; ++group) conv_forward_group(c, group, x, w, bias, y);
}

template <class T>
void conv_backward_input(const ConvParams& c, const T* dy, const T* w, const T* bias, T* dx) {
    if (c.algorithm == ConvAlgorithm::direct) return depthwise_backward_input(c, dy, w, bias, dx);
    if (c.algorithm == ConvAlgorithm::winograd && conv_winograd(c, true, dy, w, bias, dx)) return;
    i64 start[3];
    for (i64 group = 0; group < c.groups; ++group) {
        for (start[0] = 0; start[0] < min_of(c.stride[0], c.in_size[0]); ++start[0]) {
            for (start[1] = 0; start[1] < min_of(c.stride[1], c.in_size[1]); ++start[1]) {
                for (start[2] = 0; start[2] < min_of(c.stride[2], c.in_size[2]); ++start[2]) {
                    conv_backward_input_residue(c, group, start, dy, w, bias, dx);
                }
            }
        }
    }
}

#define FUSEDNN_CONV(T)                                                                 \
    template void conv_forward<T>(const ConvParams&, const T*, const T*, const T*, T*); \
    template void conv_backward_input<T>(const ConvParams&, const T*, const T*, const T*, T*);
FUSEDNN_INSTANTIATE(FUSEDNN_CONV)

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
