// The three products of a convolution as windows over images (cuda/gemm/tile.h), and the arithmetic
// of its axes. Tap t of the window at output q reads input q * stride - pad + t * dilation.
#pragma once
#include <string>

#include "core/errors.h"
#include "cuda/gemm/product.h"

namespace fusednn::cuda {

namespace {

inline i64 volume(const i64 (&size)[3]) {
    return size[0] * size[1] * size[2];
}

// Do 32 bits hold places within the padded axes, sums of two of them, and offsets in the arrays?
inline bool small(const ConvParams& p) {
    constexpr i64 most = i64(1) << 30, elements = (i64(1) << 31) - 4096;
    for (int a = 0; a < 3; ++a) {
        if (p.in_size[a] >= most || p.pad[a] >= most || p.stride[a] >= most ||
            p.kernel[a] >= most || p.dilation[a] >= most || p.out_size[a] >= most ||
            p.out_size[a] * p.stride[a] >= most || p.kernel[a] * p.dilation[a] >= most ||
            p.in_size[a] + p.pad[a] >= most) {
            return false;
        }
    }
    return p.batch * p.in_channels * volume(p.in_size) < elements &&
           p.batch * p.out_channels * volume(p.out_size) < elements &&
           p.out_channels * (p.in_channels / p.groups) * volume(p.kernel) < elements;
}

// The host function `function`<T, index type> for the sizes of `p`. 16-bit floats have kernels with
// 32-bit positions only.
[[noreturn]] inline void refuse_large() {
    throw NoKernel(std::string(current_op()) +
                   ": no CUDA kernel for 16-bit floats of 2^31 elements and more");
}
#define FUSEDNN_BY_SIZE(T, p, function, ...) \
    if (small(p)) {                          \
        function<T, int>(p, __VA_ARGS__);    \
    } else if constexpr (sizeof(T) == 2) {   \
        refuse_large();                      \
    } else {                                 \
        function<T, i64>(p, __VA_ARGS__);    \
    }

template <class I>
void set_axis(Lattice<I>& lattice, int axis, i64 size, i64 step, i64 start) {
    lattice.size[axis] = I(size);
    lattice.step[axis] = I(step);
    lattice.start[axis] = I(start);
}

// Number i of things that lie `stride` apart.
template <class I>
Lattice<I> list(i64 stride) {
    Lattice<I> lattice{};
    for (int a = 0; a < 3; ++a) set_axis(lattice, a, 1, 0, 0);
    lattice.outer_stride = I(stride);
    return lattice;
}
// Every element of images.
template <class I>
Lattice<I> elements(const i64 (&size)[3], i64 outer_stride) {
    Lattice<I> lattice{};
    for (int a = 0; a < 3; ++a) set_axis(lattice, a, size[a], 1, 0);
    lattice.outer_stride = I(outer_stride);
    return lattice;
}
// Outputs, as where their windows begin in the input; taps, as what they add to that.
template <class I>
Lattice<I> windows(const ConvParams& p, i64 outer_stride) {
    Lattice<I> lattice{};
    for (int a = 0; a < 3; ++a) set_axis(lattice, a, p.out_size[a], p.stride[a], -p.pad[a]);
    lattice.outer_stride = I(outer_stride);
    return lattice;
}
template <class I>
Lattice<I> taps(const ConvParams& p, i64 outer_stride) {
    Lattice<I> lattice{};
    for (int a = 0; a < 3; ++a) set_axis(lattice, a, p.kernel[a], p.dilation[a], 0);
    lattice.outer_stride = I(outer_stride);
    return lattice;
}

template <bool kAlong, class T, class I>
Gather<T, I, kAlong> gather(const T* data, i64 batch, const i64 (&image)[3], const Lattice<I>& rows,
                            const Lattice<I>& depths) {
    return {data, batch, {I(image[0]), I(image[1]), I(image[2])}, rows, depths};
}

template <class I>
ImageColumns<I> image_columns(const i64 (&image)[3], i64 outer_stride) {
    return {elements<I>(image, outer_stride), {I(image[0]), I(image[1]), I(image[2])}};
}

// Can 16 bytes be moved at once from every multiple of 16 bytes within lines of this length?
template <class T>
bool wide_lines(const T* data, i64 line) {
    return detail::whole_packs(data) && line % Pack<T>::kSize == 0;
}

// Every group of several has one input channel: no product to gain from.
inline bool is_depthwise(const ConvParams& p) {
    return p.groups > 1 && p.groups == p.in_channels;
}

}  // namespace

}  // namespace fusednn::cuda
