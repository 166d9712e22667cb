// Depthwise convolution: one input channel a group, so there is no matrix product in it. Here stand
// the forward pass with a stride and the weight gradient; the rest is in pixel_lanes.cpp.
//
//   x  (N, C, D, H, W)     y = dy (N, C * m, OD, OH, OW)     w (C * m, 1, KD, KH, KW)
//
// Both work on a plane in bands of output rows, from scratch memory (scratch.h) that stays in the
// L1 cache: each tap is one offset into it and one multiply-add per vector of outputs.
#include "cpu/conv/depthwise.h"

#include "cpu/conv/scratch.h"
#include "cpu/kernels.h"

namespace fusednn {
namespace FUSEDNN_ISA {

namespace {

constexpr i64 kScratchBytes = 16 * 1024;  // half of the smallest L1 data cache in use

// Writes a block of kRows x kVecs sums; rows and columns that do not exist are dropped.
template <class T>
FUSEDNN_INLINE void store_sums(const Vec<T> (&sum)[kRows][kVecs], i64 rows, i64 cols, i64 width,
                               T* out) {
    constexpr int lanes = kLanes<T>;
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
        if (r >= rows) break;
#pragma GCC unroll 2
        for (int v = 0; v < kVecs; ++v) {
            const i64 left = cols - v * lanes;
            T* dst = out + r * width + v * lanes;
            if (left >= lanes) {
                store(dst, sum[r][v]);
            } else if (left > 0) {
                store_partial(dst, sum[r][v], left);
            }
        }
    }
}

// A band of the output from its scratch: out[row][col] = bias + sum of taps.
template <class T>
void correlate_band(const Pass& p, const Band<T>& band, i64 rows, i64 taps, const i64* offset,
                    const T* w, T bias, const T* scratch, T* out) {
    constexpr int lanes = kLanes<T>;
    const i64 width = p.out_size[2], row_step = p.step[1] * band.row_pitch;
    for (i64 row = 0; row < rows; row += kRows) {
        for (i64 col = 0; col < width; col += kVecs * lanes) {
            const T* base = scratch + row * row_step + col;
            Vec<T> sum[kRows][kVecs];
#pragma GCC unroll 4
            for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
                for (int v = 0; v < kVecs; ++v) sum[r][v] = broadcast(bias);
            }
            for (i64 t = 0; t < taps; ++t) {
                const Vec<T> weight = broadcast(w[t]);
                const T* src = base + offset[t];
#pragma GCC unroll 4
                for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
                    for (int v = 0; v < kVecs; ++v) {
                        sum[r][v] =
                            multiply_add(weight, load(src + r * row_step + v * lanes), sum[r][v]);
                    }
                }
            }
            store_sums<T>(sum, rows - row, width - col, width, out + row * width + col);
        }
    }
}

// A whole plane (all depths) of one pass.
template <class T>
void correlate_plane(const Pass& p, const Band<T>& band, const i64* offset, const T* src,
                     const T* w, T bias, T* scratch, T* out) {
    const i64 taps = p.kernel[0] * p.kernel[1] * p.kernel[2];
    const i64 width = p.out_size[2];
    for (i64 depth = 0; depth < p.out_size[0]; ++depth) {
        for (i64 row = 0; row < p.out_size[1]; row += band.rows) {
            copy_band(p, band, src, depth, row, scratch);
            const i64 rows = min_of(band.rows, p.out_size[1] - row);
            T* dst = out + (depth * p.out_size[1] + row) * width;
            correlate_band(p, band, rows, taps, offset, w, bias, scratch, dst);
        }
    }
}

}  // namespace

template <class T>
void depthwise_forward(const ConvParams& c, const T* x, const T* w, const T* bias, T* y) {
    const i64 planes = c.batch * c.out_channels, out_plane = volume(c.out_size);
    if (planes == 0 || out_plane == 0) return;
    const Pass pass = forward_pass(c);
    const Band<T> band(pass, kScratchBytes);
    const i64 taps = volume(c.kernel), multiplier = c.out_channels / c.in_channels;
    Workspace<i64> offset(taps);
    tap_offsets(pass, band, offset.get());
    const int slots = parallel_slots(planes, 2 * planes * out_plane * taps);
    Workspace<T> scratch(band.size, slots);
    parallel(planes, slots, [&](i64 plane, int slot) {
        FlushDenormals flush;
        const i64 image = plane / c.out_channels, channel = plane % c.out_channels;
        const T* src = x + (image * c.in_channels + channel / multiplier) * volume(c.in_size);
        correlate_plane(pass, band, offset.get(), src, w + channel * taps,
                        bias ? bias[channel] : T(0), scratch.slot(slot), y + plane * out_plane);
    });
}

namespace {

// Taps whose sums are kept in registers while a band is read: all of a 3 x 3 kernel.
constexpr int kTapGroup = 9;

// sums[t] (a vector each) += dy * x over a band, for `count` taps.
template <class T>
void multiply_band(const Pass& p, const Band<T>& band, i64 rows, const i64* offset, int count,
                   const T* scratch, const T* dy, Vec<T>* sums) {
    constexpr int lanes = kLanes<T>;
    const i64 width = p.out_size[2], row_step = p.step[1] * band.row_pitch;
    i64 at[kTapGroup];
    Vec<T> sum[kTapGroup];
    for (int t = 0; t < kTapGroup; ++t) {
        at[t] = offset[min_of(t, count - 1)];
        sum[t] = Vec<T>{};
    }
    // A column of vectors with the rows inside: the parts of the last one are the same in all rows.
    for (i64 col = 0; col < width; col += lanes) {
        // Both factors stop at the row's end: what lies behind it may be infinite.
        const LaneSet inside = lanes_between(0, min_of(width - col, i64(lanes)));
        for (i64 row = 0; row < rows; ++row) {
            const T* src = scratch + row * row_step + col;
            const Vec<T> g = load_lanes(dy + row * width + col, inside);
#pragma GCC unroll 9
            for (int t = 0; t < kTapGroup; ++t) {
                sum[t] = multiply_add(g, load_lanes(src + at[t], inside), sum[t]);
            }
        }
    }
    for (int t = 0; t < count; ++t) sums[t] += sum[t];
}

}  // namespace

template <class T>
void depthwise_backward_weight(const ConvParams& c, const T* x, const T* dy, T* dw) {
    const i64 taps = volume(c.kernel), multiplier = c.out_channels / c.in_channels;
    const i64 out_plane = volume(c.out_size);
    const Pass pass = forward_pass(c);
    const Band<T> band(pass, kScratchBytes);
    Workspace<i64> offset(taps);
    tap_offsets(pass, band, offset.get());
    // One task a channel: the images of a channel are added in order.
    const int slots =
        parallel_slots(c.out_channels, 2 * c.batch * c.out_channels * out_plane * taps);
    Workspace<T> scratch(band.size, slots), sums(taps * kLanes<T>, slots);
    parallel(c.out_channels, slots, [&](i64 channel, int slot) {
        FlushDenormals flush;
        auto* sum = reinterpret_cast<Vec<T>*>(sums.slot(slot));
        for (i64 t = 0; t < taps; ++t) sum[t] = Vec<T>{};
        for (i64 image = 0; image < c.batch; ++image) {
            const T* src = x + (image * c.in_channels + channel / multiplier) * volume(c.in_size);
            const T* grad = dy + (image * c.out_channels + channel) * out_plane;
            for (i64 depth = 0; depth < c.out_size[0]; ++depth) {
                for (i64 row = 0; row < c.out_size[1]; row += band.rows) {
                    copy_band(pass, band, src, depth, row, scratch.slot(slot));
                    for (i64 t = 0; t < taps; t += kTapGroup) {
                        multiply_band(
                            pass, band, min_of(band.rows, c.out_size[1] - row), offset.get() + t,
                            int(min_of(taps - t, i64(kTapGroup))), scratch.slot(slot),
                            grad + (depth * c.out_size[1] + row) * c.out_size[2], sum + t);
                    }
                }
            }
        }
        for (i64 t = 0; t < taps; ++t) dw[channel * taps + t] = sum_lanes<T>(sum[t]);
    });
}

#define FUSEDNN_DEPTHWISE(T)                                                                 \
    template void depthwise_forward<T>(const ConvParams&, const T*, const T*, const T*, T*); \
    template void depthwise_backward_weight<T>(const ConvParams&, const T*, const T*, T*);
FUSEDNN_INSTANTIATE(FUSEDNN_DEPTHWISE)

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
