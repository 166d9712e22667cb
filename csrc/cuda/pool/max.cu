// Max pooling and its gradient, one thread to each element of the result.
//
// x, dx (planes, D, H, W); y, dy, argmax (planes, OD, OH, OW). The first of equals wins, NaN wins
// over all, of several the last. The gradient gathers: an input looks at the outputs whose windows
// hold it, in row-major order, so that sums are the same bits in every run and as on the CPU.
#include "cuda/any.h"
#include "cuda/gpu.h"
#include "cuda/kernels.h"
#include "cuda/pool/indices.h"

namespace fusednn::cuda {

namespace {

constexpr int kThreads = 256;

// Tap t of the window at output o reads input o * stride - pad + t * dilation.
template <class I>
struct Axis {
    I in, out, kernel, stride, dilation, pad;

    FUSEDNN_DEVICE I start(I o) const { return o * stride - pad; }
    // The taps that read real elements: a kernel may be huge next to its input, so loops run over
    // these, never over the kernel.
    FUSEDNN_DEVICE I first_tap(I start) const {
        return start < 0 ? (-start + dilation - 1) / dilation : I(0);
    }
    FUSEDNN_DEVICE I last_tap(I start) const {
        if (start >= in) return 0;
        const I taps = (in - start + dilation - 1) / dilation;
        return taps < kernel ? taps : kernel;
    }
    // The outputs whose windows reach over input i.
    FUSEDNN_DEVICE I first_output(I i) const {
        const I before = i + pad - (kernel - 1) * dilation;
        return before > 0 ? (before + stride - 1) / stride : I(0);
    }
    FUSEDNN_DEVICE I last_output(I i) const {
        const I last = (i + pad) / stride + 1;
        return last < out ? last : out;
    }
    // The tap by which output o reads input i, -1 if its taps step over it.
    FUSEDNN_DEVICE I tap(I o, I i) const {
        const I distance = i - start(o);
        if (dilation == 1) return distance;
        return distance % dilation == 0 ? distance / dilation : I(-1);
    }
};

template <class I>
struct Window {
    Axis<I> d, h, w;
};

template <class I>
Window<I> window_of(const PoolParams& p) {
    const auto axis = [&](int a) {
        return Axis<I>{I(p.in_size[a]), I(p.out_size[a]), I(p.kernel[a]),
                       I(p.stride[a]),  I(p.dilation[a]), I(p.pad[a])};
    };
    return {axis(0), axis(1), axis(2)};
}

// Winners in 1, 2 or 4 bytes.
FUSEDNN_DEVICE void store_tap(void* argmax, int bytes, i64 at, i64 tap) {
    if (bytes == 1) static_cast<std::uint8_t*>(argmax)[at] = std::uint8_t(tap);
    if (bytes == 2) static_cast<std::uint16_t*>(argmax)[at] = std::uint16_t(tap);
    if (bytes == 4) static_cast<std::int32_t*>(argmax)[at] = std::int32_t(tap);
}
FUSEDNN_DEVICE i64 load_tap(const void* argmax, int bytes, i64 at) {
    if (bytes == 1) return static_cast<const std::uint8_t*>(argmax)[at];
    if (bytes == 2) return static_cast<const std::uint16_t*>(argmax)[at];
    return static_cast<const std::int32_t*>(argmax)[at];
}

template <class I>
using Unsigned = std::conditional_t<sizeof(I) == 4, std::uint32_t, i64>;

// The place of element `at` of (planes, D, H, W).
template <class I>
struct Place {
    I w, h, d;
    Unsigned<I> plane;
    FUSEDNN_DEVICE Place(Unsigned<I> at, I size_d, I size_h, I size_w) {
        const auto line = at / Unsigned<I>(size_w), slice = line / Unsigned<I>(size_h);
        plane = slice / Unsigned<I>(size_d);
        w = I(at - line * Unsigned<I>(size_w));
        h = I(line - slice * Unsigned<I>(size_h));
        d = I(slice - plane * Unsigned<I>(size_d));
    }
};

template <class T>
__global__ void __launch_bounds__(kThreads, 2)
    forward_kernel(Window<typename Arrays<T>::Index> window, typename Arrays<T>::Position outputs,
                   typename Arrays<T>::In x, typename Arrays<T>::Out y, void* argmax,
                   int argmax_bytes) {
    using Value = typename Arrays<T>::Value;
    using I = typename Arrays<T>::Index;
    const Axis<I>&d = window.d, &h = window.h, &w = window.w;
    const Unsigned<I> at = Unsigned<I>(blockIdx.x) * kThreads + threadIdx.x;
    if (at >= outputs) return;
    const Place<I> o(at, d.out, h.out, w.out);
    const Unsigned<I> plane = o.plane * Unsigned<I>(d.in) * h.in * w.in;
    const I start_d = d.start(o.d), start_h = h.start(o.h), start_w = w.start(o.w);
    const I last_d = d.last_tap(start_d), last_h = h.last_tap(start_h);
    const I first_w = w.first_tap(start_w), last_w = w.last_tap(start_w);
    Value best = Value(0);
    I winner = -1;
#pragma unroll 1
    for (I td = d.first_tap(start_d); td < last_d; ++td) {
#pragma unroll 1
        for (I th = h.first_tap(start_h); th < last_h; ++th) {
            const I line = ((start_d + td * d.dilation) * h.in + start_h + th * h.dilation) * w.in;
            const I taps = (td * h.kernel + th) * w.kernel;
#pragma unroll 1
            for (I tw = first_w; tw < last_w; ++tw) {
                const Value value = x[plane + Unsigned<I>(line + start_w + tw * w.dilation)];
                const bool wins = value > best || value != value;  // nothing is above a NaN
                if (winner >= 0 && !wins) continue;
                best = value;
                winner = taps + tw;
            }
        }
    }
    Arrays<T>::put(y, at, best);
    if (argmax) store_tap(argmax, argmax_bytes, at, winner);
}

template <class T>
__global__ void __launch_bounds__(kThreads, 2)
    backward_kernel(Window<typename Arrays<T>::Index> window, typename Arrays<T>::Position inputs,
                    typename Arrays<T>::In dy, const void* __restrict__ argmax, int argmax_bytes,
                    typename Arrays<T>::Out dx) {
    using Value = typename Arrays<T>::Value;
    using I = typename Arrays<T>::Index;
    const Axis<I>&d = window.d, &h = window.h, &w = window.w;
    const Unsigned<I> at = Unsigned<I>(blockIdx.x) * kThreads + threadIdx.x;
    if (at >= inputs) return;
    const Place<I> i(at, d.in, h.in, w.in);
    const Unsigned<I> plane = i.plane * Unsigned<I>(d.out) * h.out * w.out;
    const I last_d = d.last_output(i.d), last_h = h.last_output(i.h);
    const I first_w = w.first_output(i.w), last_w = w.last_output(i.w);
    Value sum = Value(0);
#pragma unroll 1
    for (I od = d.first_output(i.d); od < last_d; ++od) {
        const I td = d.tap(od, i.d);
        if (td < 0) continue;
#pragma unroll 1
        for (I oh = h.first_output(i.h); oh < last_h; ++oh) {
            const I th = h.tap(oh, i.h);
            if (th < 0) continue;
            const I taps = (td * h.kernel + th) * w.kernel;
            const Unsigned<I> line = plane + Unsigned<I>((od * h.out + oh) * w.out);
#pragma unroll 1
            for (I ow = first_w; ow < last_w; ++ow) {
                const I tw = w.tap(ow, i.w);
                if (tw < 0 || load_tap(argmax, argmax_bytes, line + ow) != taps + tw) continue;
                sum = Arrays<T>::rounded(dy, sum + dy[line + ow]);
            }
        }
    }
    Arrays<T>::put(dx, at, sum);
}

template <class I>
__global__ void __launch_bounds__(kThreads)
    indices_kernel(Window<I> window, Unsigned<I> outputs, const void* __restrict__ argmax,
                   int argmax_bytes, i64* __restrict__ indices) {
    const Axis<I>&d = window.d, &h = window.h, &w = window.w;
    const Unsigned<I> at = Unsigned<I>(blockIdx.x) * kThreads + threadIdx.x;
    if (at >= outputs) return;
    const Place<I> o(at, d.out, h.out, w.out);
    const I tap = I(load_tap(argmax, argmax_bytes, at)), line = tap / w.kernel;
    const i64 in_d = d.start(o.d) + line / h.kernel * d.dilation;
    const i64 in_h = h.start(o.h) + line % h.kernel * h.dilation;
    indices[at] = (in_d * h.in + in_h) * w.in + w.start(o.w) + tap % w.kernel * w.dilation;
}

i64 volume(const i64 (&size)[3]) {
    return size[0] * size[1] * size[2];
}

// Do 32 bits hold positions within the padded axes and within planes? Their arithmetic is several
// times as fast.
bool small(const PoolParams& p) {
    constexpr i64 most = i64(1) << 30;
    for (int a = 0; a < 3; ++a) {
        if (p.in_size[a] >= most || p.pad[a] >= most || p.stride[a] >= most ||
            p.kernel[a] >= most || p.dilation[a] >= most || p.out_size[a] * p.stride[a] >= most ||
            p.kernel[a] * p.dilation[a] >= most) {
            return false;
        }
    }
    return volume(p.in_size) < kMostPositions && volume(p.out_size) < kMostPositions &&
           volume(p.kernel) < kMostPositions;
}

// run(first plane, planes): all, or parts of which a kernel with 32-bit positions takes one each.
template <class Run>
void by_planes(const PoolParams& p, const Run& run) {
    const i64 in = volume(p.in_size), out = volume(p.out_size);
    by_parts(p.planes, in > out ? in : out, run);
}

// The rest of an array of taps.
template <class Taps>
Taps* taps_from(Taps* argmax, i64 bytes) {
    using Byte = std::conditional_t<std::is_const_v<Taps>, const std::uint8_t, std::uint8_t>;
    return argmax ? static_cast<Byte*>(argmax) + bytes : nullptr;
}

LaunchShape threads_for(i64 count) {
    return {blocks_for(count, kThreads), kThreads};
}

}  // namespace

void max_pool_indices(const PoolParams& p, const void* argmax, int argmax_bytes, i64* indices) {
    const i64 out = volume(p.out_size);
    const char* name = "max_pool_indices";
    if (!small(p)) {
        launch(name, threads_for(p.planes * out), indices_kernel<i64>, window_of<i64>(p),
               p.planes * out, argmax, argmax_bytes, indices);
        return;
    }
    by_planes(p, [&](i64 first, i64 planes) {
        launch(name, threads_for(planes * out), indices_kernel<int>, window_of<int>(p),
               planes * out, taps_from(argmax, first * out * argmax_bytes), argmax_bytes,
               indices + first * out);
    });
}

template <class T>
void max_pool_forward(const PoolParams& p, const T* x, T* y, void* argmax, int argmax_bytes) {
    const i64 in = volume(p.in_size), out = volume(p.out_size);
    const char* name = "max_pool_forward";
    if (!small(p)) {
        launch(name, threads_for(p.planes * out), forward_kernel<Any>, window_of<i64>(p),
               p.planes * out, reading_any(x), writing_any(y), argmax, argmax_bytes);
        return;
    }
    by_planes(p, [&](i64 first, i64 planes) {
        launch(name, threads_for(planes * out), forward_kernel<Storage<T>>, window_of<int>(p),
               planes * out, reading(x + first * in), writing(y + first * out),
               taps_from(argmax, first * out * argmax_bytes), argmax_bytes);
    });
}

template <class T>
void max_pool_backward(const PoolParams& p, const T* dy, const void* argmax, int argmax_bytes,
                       T* dx) {
    const i64 in = volume(p.in_size), out = volume(p.out_size);
    const char* name = "max_pool_backward";
    if (!small(p)) {
        launch(name, threads_for(p.planes * in), backward_kernel<Any>, window_of<i64>(p),
               p.planes * in, reading_any(dy), argmax, argmax_bytes, writing_any(dx));
        return;
    }
    by_planes(p, [&](i64 first, i64 planes) {
        launch(name, threads_for(planes * in), backward_kernel<Storage<T>>, window_of<int>(p),
               planes * in, reading(dy + first * out),
               taps_from(argmax, first * out * argmax_bytes), argmax_bytes,
               writing(dx + first * in));
    });
}

#define FUSEDNN_MAX_POOL(T)                                                         \
    template void max_pool_forward<T>(const PoolParams&, const T*, T*, void*, int); \
    template void max_pool_backward<T>(const PoolParams&, const T*, const void*, int, T*);
FUSEDNN_INSTANTIATE(FUSEDNN_MAX_POOL)
FUSEDNN_INSTANTIATE_HALF(FUSEDNN_MAX_POOL)

}  // namespace fusednn::cuda
