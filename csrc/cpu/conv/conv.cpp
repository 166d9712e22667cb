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
#include "cpu/conv/depthwise.h"
#include "cpu/conv/product.h"
#include "cpu/kernels.h"

namespace fusednn {
namespace FUSEDNN_ISA {

namespace {

FUSEDNN_INLINE i64 volume(const i64 (&size)[3]) {
    return size[0] * size[1] * size[2];
}

template <class T>
void conv_forward_group(const ConvParams& c, i64 group, const T* x, const T* w, const T* bias,
                        T* y) {
    const i64 channels = c.in_channels / c.groups, rows = c.out_channels / c.groups;
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
    Workspace<i64> offsets(c.kernel[0] + c.kernel[1] + c.kernel[2]);
    i64* offset = offsets.get();
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
    const i64 depth = p.depth();
    conv_product(p, MatrixA<T>{w + group * rows * depth, depth, 1},
                 bias ? bias + group * rows : nullptr);
}

// The weights of a group as the matrix of the input gradient: row c, column (o, t), where t counts
// the taps in `tap` (positions in the kernel) that reach the residue.
template <class T>
struct TransposedWeights {
    const T* w;  // of the group: (rows of dy, channels, kernel volume)
    i64 channels, volume;
    const i64* tap;
    i64 taps;

    FUSEDNN_INLINE bool in_rows() const { return false; }
    FUSEDNN_INLINE i64 row_stride() const { return 0; }
    FUSEDNN_INLINE const T* rows(i64, i64) const { return nullptr; }
    FUSEDNN_INLINE void pack(i64 row0, int height, i64 k0, i64 kc, T* dst, bool) const {
        if (kc == 0) return;  // no tap reaches this residue
        i64 o = k0 / taps, t = k0 % taps;
        for (i64 r = 0; r < kc; ++r) {
            const T* src = w + (o * channels + row0) * volume + tap[t];
            for (int c = 0; c < height; ++c) dst[r * height + c] = src[c * volume];
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
                                 const T* w, T* dx) {
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
    Workspace<i64> lists(2 * (c.kernel[0] + c.kernel[1] + c.kernel[2]));
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
    const i64 taps = p.tap_count(), kernel_volume = volume(c.kernel);
    Workspace<i64> tap(taps);
    i64 t = 0;
    for (i64 i = 0; i < p.taps[0]; ++i) {
        for (i64 j = 0; j < p.taps[1]; ++j) {
            for (i64 l = 0; l < p.taps[2]; ++l) {
                tap.get()[t++] =
                    (kernel_index[0][i] * c.kernel[1] + kernel_index[1][j]) * c.kernel[2] +
                    kernel_index[2][l];
            }
        }
    }
    const TransposedWeights<T> weights{w + group * rows * channels * kernel_volume, channels,
                                       kernel_volume, tap.get(), taps};
    conv_product(p, weights, static_cast<const T*>(nullptr));
}

}  // namespace

template <class T>
void conv_forward(const ConvParams& c, const T* x, const T* w, const T* bias, T* y) {
    if (is_depthwise(c)) return depthwise_forward(c, x, w, bias, y);
    for (i64 group = 0; group < c.groups; ++group) conv_forward_group(c, group, x, w, bias, y);
}

template <class T>
void conv_backward_input(const ConvParams& c, const T* dy, const T* w, T* dx) {
    if (is_depthwise(c)) return depthwise_backward_input(c, dy, w, dx);
    i64 start[3];
    for (i64 group = 0; group < c.groups; ++group) {
        for (start[0] = 0; start[0] < min_of(c.stride[0], c.in_size[0]); ++start[0]) {
            for (start[1] = 0; start[1] < min_of(c.stride[1], c.in_size[1]); ++start[1]) {
                for (start[2] = 0; start[2] < min_of(c.stride[2], c.in_size[2]); ++start[2]) {
                    conv_backward_input_residue(c, group, start, dy, w, dx);
                }
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
