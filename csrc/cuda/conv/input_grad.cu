// The gradient of a convolution's input, which the transposed convolution is as well.
//
// dx[c, i] = sum over (o, t) of w[o, c, t] dy[o, q], where q * stride = i + pad - t * dilation.
// With stride s, only every s-th tap or so fits. So inputs are sorted by their position modulo s:
// those of one class x, i = x + s v, all have the same taps t = t0 + u s/g (g the greatest common
// divisor of s and the dilation), and q = v + shift - u dilation/g. That is a convolution of stride
// 1 for each class; a kernel runs all of them at once.
#include "cuda/conv/depthwise.h"
#include "cuda/conv/window.h"
#include "cuda/kernels.h"

namespace fusednn::cuda {

namespace {

// T: the storage type, HalfBits for both 16-bit floats.
template <class T, class I>
using InputGrad = Work<Gather<T, I, true>, Gather<T, I, false>, Output<T, ImageColumns<I>>>;

// Stride 1, or the arrays of every class.
template <class T, class I>
InputGrad<T, I> whole(const ConvParams& p, const T* dy, const T* w, const T* bias, T* dx,
                      Format<T> format) {
    const i64 plane = volume(p.in_size), pixels = volume(p.out_size), taps = volume(p.kernel);
    const i64 channels = p.in_channels / p.groups, outs = p.out_channels / p.groups;
    Lattice<I> positions{}, shifts{};
    for (int a = 0; a < 3; ++a) {
        set_axis(positions, a, p.in_size[a], 1, p.pad[a]);
        set_axis(shifts, a, p.kernel[a], -p.dilation[a], 0);
    }
    positions.outer_stride = I(p.out_channels * pixels);
    shifts.outer_stride = I(pixels);
    return {channels,
            p.batch * plane,
            outs * taps,
            gather<true>(w, outs * channels * taps, p.kernel, list<I>(taps),
                         elements<I>(p.kernel, channels * taps)),
            gather<false>(dy, outs * pixels, p.out_size, positions, shifts),
            {dx, channels * plane, plane, image_columns<I>(p.in_size, p.in_channels * plane),
             wide_lines(dx, plane), bias, channels, nullptr, false, false, format}};
}

// One axis of the classes.
template <class I>
struct ClassAxis {
    I in, kernel, stride, dilation, pad;
    I classes;               // that have inputs
    I tap_step, shift_step;  // stride / g, dilation / g
    I inverse;               // of dilation / g, modulo stride / g
};

i64 greatest_divisor(i64 a, i64 b) {
    while (b) {
        const i64 rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

// x with a x = 1 modulo m, by Euclid's algorithm; a and m have no common divisor.
i64 inverse_of(i64 a, i64 m) {
    i64 x = 1, next_x = 0, rest = a % m, next = m;
    while (next) {
        const i64 times = rest / next, old_x = x, old = rest;
        x = next_x;
        next_x = old_x - times * next_x;
        rest = next;
        next = old - times * next;
    }
    return x < 0 ? x + m : x;
}

template <class I>
ClassAxis<I> class_axis(const ConvParams& p, int a) {
    const i64 stride = p.stride[a], divisor = greatest_divisor(stride, p.dilation[a]);
    const i64 classes = stride < p.in_size[a] ? stride : p.in_size[a];
    const i64 step = stride / divisor, shift = p.dilation[a] / divisor;
    return {I(p.in_size[a]), I(p.kernel[a]), I(stride), I(p.dilation[a]),          I(p.pad[a]),
            I(classes),      I(step),        I(shift),  I(inverse_of(shift, step))};
}

// Products below 2^127 where I is 64 bits wide.
template <class I>
struct Twice {
    using Type = __int128;
};
template <>
struct Twice<int> {
    using Type = i64;
};

template <class T, class I>
struct ClassProblem {
    using Work = InputGrad<T, I>;
    static constexpr bool kVaries = true;
    Work work;
    ClassAxis<I> axes[3];
    i64 images, outs;

    FUSEDNN_DEVICE Work batch(i64 z, int depth) const {
        Work one = work;
        i64 left = z;
        one.n = images;
        one.k = outs;
#pragma unroll
        for (int a = 2; a >= 0; --a) {
            const ClassAxis<I>& axis = axes[a];
            const I x = I(left % axis.classes);
            left /= axis.classes;
            const I count = (axis.in - x - 1) / axis.stride + 1;
            const I divisor = axis.stride / axis.tap_step, rest = (x + axis.pad) % axis.stride;
            using Wide = typename Twice<I>::Type;
            const I first = rest % divisor ? axis.kernel
                                           : I(Wide(rest / divisor) * axis.inverse % axis.tap_step);
            const I taps = first < axis.kernel ? (axis.kernel - first - 1) / axis.tap_step + 1 : 0;
            one.n *= count;
            one.k *= taps;
            one.a.depths.size[a] = one.b.depths.size[a] = taps;
            one.a.depths.step[a] = axis.tap_step;
            one.a.depths.start[a] = first;
            one.b.depths.step[a] = -axis.shift_step;
            one.b.rows.size[a] = count;
            // What is divided is a multiple of the stride, where there are taps.
            const Wide shift = taps ? (Wide(x) + axis.pad - Wide(first) * axis.dilation) : 0;
            one.b.rows.start[a] = I(shift / axis.stride);
            one.out.columns.points.size[a] = count;
            one.out.columns.points.step[a] = axis.stride;
            one.out.columns.points.start[a] = x;
        }
        one.a.prepare(depth);
        one.b.prepare(depth);
        // What is left of z is the group.
        one.a.data += left * work.a.batch;
        one.b.data += left * work.b.batch;
        one.out.data += left * work.out.batch;
        if (one.out.row_bias) one.out.row_bias += left * work.out.bias_batch;
        return one;
    }
};

template <class Given, class I>
void backward(const ConvParams& p, const Given* dy, const Given* w, const Given* bias, Given* dx) {
    using T = Storage<Given>;
    const InputGrad<T, I> all = whole<T, I>(p, storage(dy), storage(w), storage(bias), storage(dx),
                                            StorageOf<Given>::format());
    constexpr bool general = sizeof(I) == 8;
    if constexpr (!general) {  // what is seldom called has one kernel for any stride
        if (p.stride[0] == 1 && p.stride[1] == 1 && p.stride[2] == 1) {
            const SameShapes<InputGrad<T, I>> problem{all};
            return product<false>("conv_backward_input", problem, p.groups);
        }
    }
    if (p.batch * volume(p.in_size) == 0) return;
    ClassProblem<T, I> problem{all, {}, p.batch, p.out_channels / p.groups};
    problem.work.out.wide = false;
    problem.work.n = p.batch;  // of the largest class, the first one
    i64 classes = 1;
    for (int a = 0; a < 3; ++a) {
        problem.axes[a] = class_axis<I>(p, a);
        classes *= problem.axes[a].classes;
        problem.work.n *= (p.in_size[a] - 1) / p.stride[a] + 1;
    }
    product<general>("conv_backward_input", problem, p.groups * classes);
}

}  // namespace

template <class T>
void conv_backward_input(const ConvParams& p, const T* dy, const T* w, const T* bias, T* dx) {
    if (is_depthwise(p)) return depthwise_backward_input(p, dy, w, bias, dx);
    FUSEDNN_BY_SIZE(T, p, backward, dy, w, bias, dx);
}

#define FUSEDNN_CONV_INPUT(T) \
    template void conv_backward_input<T>(const ConvParams&, const T*, const T*, const T*, T*);
FUSEDNN_INSTANTIATE(FUSEDNN_CONV_INPUT)
FUSEDNN_INSTANTIATE_HALF(FUSEDNN_CONV_INPUT)

}  // namespace fusednn::cuda
