// Input gradient of convolution, and so the transposed convolution.
//
//   dy (N, O, OD, OH, OW)   w (O, C/groups, KD, KH, KW)   dx (N, C, D, H, W)
//
// Per group and per residue of the input position modulo the stride: the product of conv.cpp with
// dy as the source and the taps that reach the residue, w read as (C/groups, O, taps). Residues
// that read the same positions of dy are rows of one product, which packs those once.
#include "cpu/conv/few_channels.h"
#include "cpu/conv/forms.h"
#include "cpu/conv/pixel_lanes.h"
#include "cpu/kernels.h"

namespace fusednn {
namespace FUSEDNN_ISA {

namespace {

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

// Some residues of each axis as one problem, of group 0.
template <class T>
struct ResidueProblem {
    ConvProblem<T> problem;
    ConvWeights<T> weights;
    const i64* position;  // of each tap of each residue in the kernel
};

// Room for the lists of a problem of `together` residues.
FUSEDNN_INLINE i64 residue_lists(const ConvParams& c, i64 together) {
    return 2 * (c.kernel[0] + c.kernel[1] + c.kernel[2] + volume(c.kernel)) + together;
}

// `list` holds residue_lists(c, together) elements.
template <class T>
ResidueProblem<T> residue_problem(const ConvParams& c, const Residues (&residues)[3], const T* dy,
                                  const T* w, T* dx, i64* list) {
    const i64 channels = c.in_channels / c.groups, kernel_volume = volume(c.kernel);
    const i64 together = residues[0].count * residues[1].count * residues[2].count;
    ConvProblem<T> p;
    p.batch = c.batch;
    p.src_plane = volume(c.out_size);
    p.src_image = c.out_channels * p.src_plane;
    p.src = dy;
    p.channels = c.out_channels / c.groups;
    p.dst_plane = volume(c.in_size);
    p.dst_image = c.in_channels * p.dst_plane;
    p.dst = dx;
    p.rows = channels * together;
    i64 *offset[3], *of_axis[3];
    for (int axis = 0; axis < 3; ++axis) {
        offset[axis] = list;
        of_axis[axis] = list + c.kernel[axis];
        list += 2 * c.kernel[axis];
        p.src_size[axis] = c.out_size[axis];
        p.dst_size[axis] = c.in_size[axis];
        p.dst_start[axis] = residues[axis].first;
        p.dst_step[axis] = c.stride[axis];
        p.grid[axis] = residues[axis].grid;
        p.step[axis] = 1;
        p.taps[axis] = residues[axis].taps;
        p.offset[axis] = offset[axis];
    }
    i64 *position = list, *tap = list + kernel_volume, *shift = tap + kernel_volume;
    for (i64 k = 0; k < kernel_volume; ++k) tap[k] = -1;
    i64* next = position;
    for (i64 r = 0; r < together; ++r) {
        const i64 rest = r / residues[2].count;
        const i64 at[3] = {rest / residues[1].count, rest % residues[1].count,
                           r % residues[2].count};
        shift[r] = (at[0] * c.in_size[1] + at[1]) * c.in_size[2] + at[2];
        for (int axis = 0; axis < 3; ++axis) {  // their offsets are the same for all
            list_taps(c, axis, residues[axis].first + at[axis], offset[axis], of_axis[axis]);
        }
        for (i64 i = 0; i < p.taps[0]; ++i) {
            for (i64 j = 0; j < p.taps[1]; ++j) {
                for (i64 l = 0; l < p.taps[2]; ++l, ++next) {
                    *next =
                        (of_axis[0][i] * c.kernel[1] + of_axis[1][j]) * c.kernel[2] + of_axis[2][l];
                    tap[*next] = next - position;
                }
            }
        }
    }
    if (together > 1) {
        p.row_group = together;
        p.row_shift = shift;
    }
    return {p, ConvWeights<T>{w, kernel_volume, channels * kernel_volume, kernel_volume, tap},
            position};
}

// The input gradient with positions in the lanes: all residues of the columns at once.
template <class T>
void backward_input_pixel_lanes(const ConvParams& c, const T* dy, const T* w, const T* bias,
                                T* dx) {
    const i64 columns = min_of(c.stride[2], c.in_size[2]), size = residue_lists(c, 1);
    Workspace<i64> lists(columns * size);
    Workspace<ConvProblem<T>> problems(columns);
    Workspace<ConvWeights<T>> weights(columns);
    const auto single = [&](int axis, i64 residue, i64* list) {
        return Residues{residue, 1, ceil_div(c.in_size[axis] - residue, c.stride[axis]),
                        list_taps(c, axis, residue, list, list + c.kernel[axis])};
    };
    Residues r[3];
    for (i64 z = 0; z < min_of(c.stride[0], c.in_size[0]); ++z) {
        r[0] = single(0, z, lists.get());
        for (i64 y = 0; y < min_of(c.stride[1], c.in_size[1]); ++y) {
            r[1] = single(1, y, lists.get());
            for (i64 x = 0; x < columns; ++x) {
                i64* list = lists.get() + x * size;
                r[2] = single(2, x, list);
                const ResidueProblem<T> one = residue_problem(c, r, dy, w, dx, list);
                problems.get()[x] = one.problem;
                weights.get()[x] = one.weights;
            }
            conv_pixel_lanes(problems.get(), weights.get(), columns, groups_of(c, true), bias);
        }
    }
}

// The input gradient of step 1 is a convolution of dy, with the kernels reversed and their two
// channels exchanged.
template <class T>
void backward_input_few_channels(const ConvParams& c, const T* dy, const T* w, const T* bias,
                                 T* dx) {
    ConvParams reverse = c;
    reverse.in_channels = c.out_channels;
    reverse.out_channels = c.in_channels;
    for (int axis = 0; axis < 3; ++axis) {
        reverse.in_size[axis] = c.out_size[axis];
        reverse.out_size[axis] = c.in_size[axis];
        reverse.pad[axis] = (c.kernel[axis] - 1) * c.dilation[axis] - c.pad[axis];
    }
    const i64 in = c.in_channels / c.groups, out = c.out_channels / c.groups;
    const i64 taps = volume(c.kernel);
    Workspace<T> weights(c.groups * in * out * taps);
    T* to = weights.get();
    for (i64 group = 0; group < c.groups; ++group) {
        for (i64 i = 0; i < in; ++i) {
            for (i64 o = 0; o < out; ++o, to += taps) {
                const T* from = w + ((group * out + o) * in + i) * taps;
                for (i64 t = 0; t < taps; ++t) to[t] = from[taps - 1 - t];
            }
        }
    }
    few_channels_forward(reverse, dy, weights.get(), bias, dx);
}

// The input gradient of the residues `r` as a product, group by group.
template <class T>
void backward_input_product(const ConvParams& c, const Residues (&r)[3], const T* dy, const T* w,
                            const T* bias, T* dx) {
    const i64 together = r[0].count * r[1].count * r[2].count;
    const i64 channels = c.in_channels / c.groups;
    Workspace<i64> lists(residue_lists(c, together));
    const ResidueProblem<T> all = residue_problem(c, r, dy, w, dx, lists.get());
    const ConvGroups groups = groups_of(c, true);
    Workspace<T> repeated(bias ? channels * together : 0);  // the bias of each row
    for (i64 group = 0; group < groups.count; ++group) {
        for (i64 row = 0; bias && row < channels * together; ++row) {
            repeated.get()[row] = bias[group * channels + row / together];
        }
        const ConvProblem<T> p = of_group(all.problem, groups, group);
        const ConvWeights<T> weights = of_group(all.weights, groups, group);
        run_product(p, weights,
                    TransposedWeights<T>{weights, all.position, p.tap_count(), together},
                    static_cast<const T*>(nullptr), bias ? repeated.get() : nullptr);
    }
}

// All residues, each by a product.
template <class T>
void backward_input_products(const ConvParams& c, const T* dy, const T* w, const T* bias, T* dx) {
    const i64 longest = max_of(max_of(c.kernel[0], c.kernel[1]), c.kernel[2]);
    Workspace<i64> lists(3 * longest);
    const auto from = [&](int axis, i64 first) {
        return residues_from(c, axis, first, lists.get(), lists.get() + longest);
    };
    Residues r[3];
    for (i64 z = 0; z < min_of(c.stride[0], c.in_size[0]); z += r[0].count) {
        r[0] = from(0, z);
        for (i64 y = 0; y < min_of(c.stride[1], c.in_size[1]); y += r[1].count) {
            r[1] = from(1, y);
            for (i64 x = 0; x < min_of(c.stride[2], c.in_size[2]); x += r[2].count) {
                r[2] = from(2, x);
                backward_input_product(c, r, dy, w, bias, dx);
            }
        }
    }
}

// Every residue writes some elements of every line of dx. So that a line is still in a cache when
// the next residue comes to it, they take some images at a time: as many as this, or as make
// packing the weights anew a small part of the work.
constexpr i64 kImagesBytes = 4 << 20, kImagesPerWeights = 8;

FUSEDNN_INLINE i64 images_at_once(const ConvParams& c, i64 element) {
    if (c.stride[0] == 1 && c.stride[1] == 1 && c.stride[2] == 1) return c.batch;
    const i64 image = c.in_channels * volume(c.in_size) * element;
    const i64 weights = c.in_channels * c.out_channels / c.groups * volume(c.kernel) * element;
    return max_of(max_of(kImagesBytes, kImagesPerWeights * weights) / image, i64(1));
}

}  // namespace

template <class T>
void conv_backward_input(const ConvParams& params, const T* dy, const T* w, const T* bias, T* dx) {
    ConvParams c = flattened(params);
    const i64 image = c.in_channels * volume(c.in_size);
    if (image == 0) return;
    if (c.algorithm == ConvAlgorithm::winograd &&
        run_winograd_groups(winograd_problem(c, true, dy, w, bias, dx), groups_of(c, true))) {
        return;
    }
    if (c.algorithm == ConvAlgorithm::direct) {
        return c.in_channels <= kFewChannels * c.groups
                   ? backward_input_pixel_lanes(c, dy, w, bias, dx)
                   : backward_input_few_channels(c, dy, w, bias, dx);
    }
    const i64 images = images_at_once(c, i64(sizeof(T)));
    for (i64 first = 0; first < params.batch; first += images) {
        c.batch = min_of(images, params.batch - first);
        backward_input_products(c, dy + first * c.out_channels * volume(c.out_size), w, bias,
                                dx + first * image);
    }
}

#define FUSEDNN_CONV_INPUT_GRAD(T) \
    template void conv_backward_input<T>(const ConvParams&, const T*, const T*, const T*, T*);
FUSEDNN_INSTANTIATE(FUSEDNN_CONV_INPUT_GRAD)

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
