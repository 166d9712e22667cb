// Depthwise convolution: one input channel a group, so there is no matrix product in it. Here stand
// the forward pass with a stride and the weight gradient; the rest is in pixel_lanes.cpp.
//
//   x  (N, C, D, H, W)     y = dy (N, C * m, OD, OH, OW)     w (C * m, 1, KD, KH, KW)
//
// Both share one scheme. A plane is worked on in bands of output rows; what a band
// reads is first copied, with its padding, into scratch memory that stays in the L1 cache:
//
//   scratch[depth tap][row][residue of the column modulo the column stride][column / stride]
//
// so that neighbouring outputs read neighbouring elements at any stride, and no load is out of
// bounds. Then each tap is one offset into the scratch and one multiply-add per vector of outputs.
#include "cpu/conv/depthwise.h"

#include "cpu/conv/problem.h"
#include "cpu/kernels.h"

namespace fusednn {
namespace FUSEDNN_ISA {

namespace {

constexpr i64 kScratchBytes = 16 * 1024;  // half of the smallest L1 data cache in use
constexpr int kRows = 4;                  // output rows and vectors that one tap serves: 8 sums,
constexpr int kVecs = 2;                  // enough to hide the latency of a multiply-add

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

    FUSEDNN_INLINE explicit Band(const Pass& p) {
        const i64 reach = (p.kernel[2] - 1) * p.dilation[2];
        residues = min_of(p.step[2], reach + 1);
        pitch =
            round_up(round_up(p.out_size[2], kVecs * kLanes<T>) + reach / p.step[2] + 1, kLanes<T>);
        row_pitch = residues * pitch;
        const i64 reach_rows = (p.kernel[1] - 1) * p.dilation[1] + 1;
        const i64 fit = kScratchBytes / i64(sizeof(T)) / (row_pitch * p.kernel[0]);
        rows = fit > reach_rows ? (fit - reach_rows) / p.step[1] + 1 : 1;
        rows = min_of(round_up(rows, kRows), p.out_size[1]);
        // The kernel below reads whole groups of kRows output rows.
        src_rows = (round_up(rows, kRows) - 1) * p.step[1] + reach_rows;
        size = p.kernel[0] * src_rows * row_pitch;
    }
};

// One scratch row: source row `src` (null: a row of padding).
template <class T>
FUSEDNN_INLINE void copy_row(const Pass& p, const Band<T>& band, const T* src, T* dst) {
    for (i64 residue = 0; residue < band.residues; ++residue, dst += band.pitch) {
        // dst[i] is column i * step + residue of the padded row.
        const i64 first = residue - p.pad[2];
        if (!src) {
            for (i64 i = 0; i < band.pitch; ++i) dst[i] = T(0);
            continue;
        }
        const i64 step = p.step[2];
        i64 begin = first < 0 ? ceil_div(-first, step) : 0;
        i64 end = first < p.src_size[2] ? ceil_div(p.src_size[2] - first, step) : 0;
        begin = min_of(begin, band.pitch);
        end = max_of(min_of(end, band.pitch), begin);
        if (step == 1) {
            constexpr i64 lanes = kLanes<T>;
            for (i64 i = 0; i < band.pitch; i += lanes) {
                if (i >= begin && i + lanes <= end) {
                    store(dst + i, load(src + first + i));
                } else {
                    const i64 low = min_of(max_of(begin - i, i64(0)), lanes);
                    const i64 high = max_of(min_of(end - i, lanes), low);
                    store(dst + i, load_lanes(src + first + i, lanes_between(low, high)));
                }
            }
            continue;
        }
        for (i64 i = 0; i < begin; ++i) dst[i] = T(0);
        for (i64 i = begin; i < end; ++i) dst[i] = src[first + i * step];
        for (i64 i = end; i < band.pitch; ++i) dst[i] = T(0);
    }
}

// Fills the scratch for output rows [row0, row0 + band.rows) of output depth `depth`.
template <class T>
FUSEDNN_INLINE void copy_band(const Pass& p, const Band<T>& band, const T* plane, i64 depth,
                              i64 row0, T* scratch) {
    for (i64 i = 0; i < p.kernel[0]; ++i) {
        const i64 z = depth * p.step[0] + i * p.dilation[0] - p.pad[0];
        for (i64 r = 0; r < band.src_rows; ++r) {
            const i64 y = row0 * p.step[1] + r - p.pad[1];
            const bool inside = z >= 0 && z < p.src_size[0] && y >= 0 && y < p.src_size[1];
            copy_row(p, band, inside ? plane + (z * p.src_size[1] + y) * p.src_size[2] : nullptr,
                     scratch + (i * band.src_rows + r) * band.row_pitch);
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

}  // namespace

template <class T>
void depthwise_forward(const ConvParams& c, const T* x, const T* w, const T* bias, T* y) {
    const i64 planes = c.batch * c.out_channels, out_plane = volume(c.out_size);
    if (planes == 0 || out_plane == 0) return;
    const Pass pass = forward_pass(c);
    const Band<T> band(pass);
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

constexpr int kTapGroup = 8;  // taps whose sums are kept in registers while a band is read

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
    for (i64 row = 0; row < rows; ++row) {
        for (i64 col = 0; col < width; col += lanes) {
            const T* grad = dy + row * width + col;
            const T* src = scratch + row * row_step + col;
            const i64 left = width - col;
            const Vec<T> g = left >= lanes ? load(grad) : load_partial(grad, left);
#pragma GCC unroll 8
            for (int t = 0; t < kTapGroup; ++t) {
                // Both factors stop at the row's end: what lies behind it may be infinite.
                const Vec<T> v =
                    left >= lanes ? load(src + at[t]) : load_partial(src + at[t], left);
                sum[t] = multiply_add(g, v, sum[t]);
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
    const Band<T> band(pass);
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
