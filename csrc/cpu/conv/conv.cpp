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
// Residues that read the same positions of dy are rows of one product, which packs those once.
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

// The weights of a group as the matrix of the input gradient: row (c, residue), column (o, t).
template <class T>
struct TransposedWeights {
    ConvWeights<T> weights;
    const i64* position;  // in the kernel, of each tap of each residue
    i64 taps, residues;

    FUSEDNN_INLINE bool in_rows() const { return false; }
    FUSEDNN_INLINE i64 row_stride() const { return 0; }
    FUSEDNN_INLINE const T* rows(i64, i64) const { return nullptr; }
    FUSEDNN_INLINE void pack(i64 row0, int height, i64 k0, i64 kc, T* dst, bool) const {
        if (kc == 0) return;  // no tap reaches these residues
        i64 channel[kTileRows];
        const i64* tap[kTileRows];
        for (int r = 0; r < height; ++r) {
            channel[r] = (row0 + r) / residues * weights.row_stride;
            tap[r] = position + (row0 + r) % residues * taps;
        }
        i64 o = k0 / taps, t = k0 % taps;
        for (i64 k = 0; k < kc; ++k) {
            const T* src = weights.w + o * weights.channel_stride;
            for (int r = 0; r < height; ++r) dst[k * height + r] = src[channel[r] + tap[r][t]];
            if (++t == taps) {
                t = 0;
                ++o;
            }
        }
    }
};

// Input position i meets output position q at tap k where i = q * stride + k * dilation - pad. So
// residue r of i modulo the stride reads, for grid position j (i = j * stride + r), the outputs
// j + offset for the taps k whose reach, r + pad - k * dilation, is a multiple of the stride.
struct Residues {
    i64 first, count;  // neighbours that read the same outputs
    i64 grid, taps;
};

// A residue's first tap (kernel or more if there is none), and how far apart its taps are.
FUSEDNN_INLINE i64 first_tap(const ConvParams& c, int axis, i64 residue, i64* apart) {
    const i64 stride = c.stride[axis], reach = (residue + c.pad[axis]) % stride;
    *apart = stride;
    if (c.dilation[axis] == 1) return reach;
    for (i64 common = c.dilation[axis]; common != 0;) {  // stride / gcd(stride, dilation)
        const i64 rest = *apart % common;
        *apart = common;
        common = rest;
    }
    *apart = stride / *apart;
    i64 k = 0;
    while (k < *apart && (reach - k * c.dilation[axis]) % stride != 0) ++k;
    return k < *apart ? k : c.kernel[axis];
}

// The offsets of a residue and the taps they belong to; returns how many.
FUSEDNN_INLINE i64 list_taps(const ConvParams& c, int axis, i64 residue, i64* offset, i64* tap) {
    i64 taps = 0, apart;
    for (i64 k = first_tap(c, axis, residue, &apart); k < c.kernel[axis]; k += apart) {
        offset[taps] = (residue + c.pad[axis] - k * c.dilation[axis]) / c.stride[axis];
        tap[taps++] = k;
    }
    return taps;
}

// The residues from `first` on that go together. `offset` takes their offsets; `scratch` has room
// for two times the taps of one residue.
FUSEDNN_INLINE Residues residues_from(const ConvParams& c, int axis, i64 first, i64* offset,
                                      i64* scratch) {
    Residues r;
    r.first = first;
    r.taps = list_taps(c, axis, first, offset, scratch);
    r.grid = ceil_div(c.in_size[axis] - first, c.stride[axis]);
    const i64 last = min_of(c.stride[axis], c.in_size[axis]);
    for (r.count = 1; first + r.count < last; ++r.count) {
        const i64 next = first + r.count;
        if (ceil_div(c.in_size[axis] - next, c.stride[axis]) != r.grid) break;
        if (list_taps(c, axis, next, scratch, scratch + c.kernel[axis]) != r.taps) break;
        i64 equal = 0;
        while (equal < r.taps && scratch[equal] == offset[equal]) ++equal;
        if (equal < r.taps) break;
    }
    return r;
}

// Some residues of each axis, as one problem.
template <class T>
void conv_backward_input_residues(const ConvParams& c, i64 group, const Residues (&residues)[3],
                                  i64* const (&offset)[3], const T* dy, const T* w, const T* bias,
                                  T* dx) {
    const i64 channels = c.in_channels / c.groups, rows = c.out_channels / c.groups;
    const i64 together = residues[0].count * residues[1].count * residues[2].count;
    ConvProblem<T> p;
    p.batch = c.batch;
    p.src_plane = volume(c.out_size);
    p.src_image = c.out_channels * p.src_plane;
    p.src = dy + group * rows * p.src_plane;
    p.channels = rows;
    p.dst_plane = volume(c.in_size);
    p.dst_image = c.in_channels * p.dst_plane;
    p.dst = dx + group * channels * p.dst_plane;
    p.rows = channels * together;
    for (int axis = 0; axis < 3; ++axis) {
        p.src_size[axis] = c.out_size[axis];
        p.dst_size[axis] = c.in_size[axis];
        p.dst_start[axis] = residues[axis].first;
        p.dst_step[axis] = c.stride[axis];
        p.grid[axis] = residues[axis].grid;
        p.step[axis] = 1;
        p.taps[axis] = residues[axis].taps;
        p.offset[axis] = offset[axis];
    }
    const i64 kernel_volume = volume(c.kernel), taps = p.tap_count();
    const i64 longest = max_of(max_of(c.kernel[0], c.kernel[1]), c.kernel[2]);
    Workspace<i64> lists(together * (taps + 1) + kernel_volume + 4 * longest);
    i64 *position = lists.get(), *shift = position + together * taps, *tap = shift + together;
    i64* of_axis[3];
    for (int axis = 0; axis < 3; ++axis) of_axis[axis] = tap + kernel_volume + axis * longest;
    i64* unused = tap + kernel_volume + 3 * longest;
    for (i64 k = 0; k < kernel_volume; ++k) tap[k] = -1;
    i64* next = position;
    for (i64 r = 0; r < together; ++r) {
        const i64 r2 = r % residues[2].count, rest = r / residues[2].count;
        const i64 r1 = rest % residues[1].count, r0 = rest / residues[1].count;
        shift[r] = (r0 * c.in_size[1] + r1) * c.in_size[2] + r2;
        list_taps(c, 0, residues[0].first + r0, unused, of_axis[0]);
        list_taps(c, 1, residues[1].first + r1, unused, of_axis[1]);
        list_taps(c, 2, residues[2].first + r2, unused, of_axis[2]);
        for (i64 i = 0; i < p.taps[0]; ++i) {
            for (i64 j = 0; j < p.taps[1]; ++j) {
                for (i64 l = 0; l < p.taps[2]; ++l, ++next) {
                    *next =
                        (of_axis[0][i] * c.kernel[1] + of_axis[1][j]) * c.kernel[2] + of_axis[2][l];
                    tap[*next] = next - position - r * taps;
                }
            }
        }
    }
    Workspace<T> repeated(bias && together > 1 ? p.rows : 0);
    const T* row_bias = bias ? bias + group * channels : nullptr;
    if (together > 1) {
        p.row_group = together;
        p.row_shift = shift;
        for (i64 row = 0; bias && row < p.rows; ++row) {
            repeated.get()[row] = row_bias[row / together];
        }
        if (bias) row_bias = repeated.get();
    }
    const ConvWeights<T> weights{w + group * rows * channels * kernel_volume, kernel_volume,
                                 channels * kernel_volume, kernel_volume, tap};
    run_product(p, weights, TransposedWeights<T>{weights, position, taps, together}, row_bias);
}

template <class T>
void conv_backward_input_group(const ConvParams& c, i64 group, const T* dy, const T* w,
                               const T* bias, T* dx) {
    const i64 longest = max_of(max_of(c.kernel[0], c.kernel[1]), c.kernel[2]);
    Workspace<i64> lists(5 * longest);
    i64* const offset[3] = {lists.get(), lists.get() + longest, lists.get() + 2 * longest};
    i64* scratch = lists.get() + 3 * longest;
    i64 last[3];
    for (int axis = 0; axis < 3; ++axis) last[axis] = min_of(c.stride[axis], c.in_size[axis]);
    Residues r[3];
    for (i64 z = 0; z < last[0]; z += r[0].count) {
        r[0] = residues_from(c, 0, z, offset[0], scratch);
        for (i64 y = 0; y < last[1]; y += r[1].count) {
            r[1] = residues_from(c, 1, y, offset[1], scratch);
            for (i64 x = 0; x < last[2]; x += r[2].count) {
                r[2] = residues_from(c, 2, x, offset[2], scratch);
                conv_backward_input_residues(c, group, r, offset, dy, w, bias, dx);
            }
        }
    }
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
    for (i64 group = 0; group < c.groups; ++group) {
        conv_backward_input_group(c, group, dy, w, bias, dx);
    }
}

#define FUSEDNN_CONV(T)                                                                 \
    template void conv_forward<T>(const ConvParams&, const T*, const T*, const T*, T*); \
    template void conv_backward_input<T>(const ConvParams&, const T*, const T*, const T*, T*);
FUSEDNN_INSTANTIATE(FUSEDNN_CONV)

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
