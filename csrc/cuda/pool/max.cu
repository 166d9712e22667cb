// Max pooling and its gradient, one thread to each element of the result.
//
// x, dx (planes, D, H, W); y, dy, argmax (planes, OD, OH, OW). The first of equals wins, NaN wins
// over all, of several the last. The gradient gathers: an input looks at the outputs whose windows
// hold it, in row-major order, so that sums are the same bits in every run and as on the CPU.
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

template <class T, class I>
__global__ void __launch_bounds__(kThreads, 2)
    forward_kernel(Window<I> window, i64 outputs, const T* __restrict__ x, T* __restrict__ y,
                   void* argmax, int argmax_bytes) {
    const Axis<I>&d = window.d, &h = window.h, &w = window.w;
    const i64 step = i64(gridDim.x) * blockDim.x;
    for (i64 at = i64(blockIdx.x) * blockDim.x + threadIdx.x; at < outputs; at += step) {
        const I column = I(at % w.out), row = I(at / w.out % h.out);
        const i64 slice = at / w.out / h.out;
        const T* plane = x + slice / d.out * d.in * h.in * w.in;
        const I start_d = d.start(I(slice % d.out)), start_h = h.start(row);
        const I start_w = w.start(column);
        const I last_d = d.last_tap(start_d), last_h = h.last_tap(start_h);
        const I first_w = w.first_tap(start_w), last_w = w.last_tap(start_w);
        T best = T(0);
        i64 winner = -1;
        for (I td = d.first_tap(start_d); td < last_d; ++td) {
            for (I th = h.first_tap(start_h); th < last_h; ++th) {
                const T* line =
                    plane +
                    (i64(start_d + td * d.dilation) * h.in + (start_h + th * h.dilation)) * w.in;
                const i64 taps = (i64(td) * h.kernel + th) * w.kernel;
                for (I tw = first_w; tw < last_w; ++tw) {
                    const T value = line[start_w + tw * w.dilation];
                    const bool wins = value > best || value != value;  // nothing is above a NaN
                    if (winner >= 0 && !wins) continue;
                    best = value;
                    winner = taps + tw;
                }
            }
        }
        y[at] = best;
        if (argmax) store_tap(argmax, argmax_bytes, at, winner);
    }
}

template <class T, class I>
__global__ void __launch_bounds__(kThreads, 2)
    backward_kernel(Window<I> window, i64 inputs, const T* __restrict__ dy,
                    const void* __restrict__ argmax, int argmax_bytes, T* __restrict__ dx) {
    const Axis<I>&d = window.d, &h = window.h, &w = window.w;
    const i64 step = i64(gridDim.x) * blockDim.x;
    for (i64 at = i64(blockIdx.x) * blockDim.x + threadIdx.x; at < inputs; at += step) {
        const I column = I(at % w.in), row = I(at / w.in % h.in);
        const i64 slice = at / w.in / h.in;
        const I depth = I(slice % d.in);
        const i64 plane = slice / d.in * d.out * h.out * w.out;
        const I last_d = d.last_output(depth), last_h = h.last_output(row);
        const I first_w = w.first_output(column), last_w = w.last_output(column);
        T sum = T(0);
        for (I od = d.first_output(depth); od < last_d; ++od) {
            const I td = d.tap(od, depth);
            if (td < 0) continue;
            for (I oh = h.first_output(row); oh < last_h; ++oh) {
                const I th = h.tap(oh, row);
                if (th < 0) continue;
                const i64 taps = (i64(td) * h.kernel + th) * w.kernel;
                const i64 line = plane + (i64(od) * h.out + oh) * w.out;
                for (I ow = first_w; ow < last_w; ++ow) {
                    const I tw = w.tap(ow, column);
                    if (tw < 0 || load_tap(argmax, argmax_bytes, line + ow) != taps + tw) continue;
                    sum += dy[line + ow];
                }
            }
        }
        dx[at] = sum;
    }
}

template <class I>
__global__ void __launch_bounds__(kThreads)
    indices_kernel(Window<I> window, i64 outputs, const void* __restrict__ argmax, int argmax_bytes,
                   i64* __restrict__ indices) {
    const Axis<I>&d = window.d, &h = window.h, &w = window.w;
    const i64 step = i64(gridDim.x) * blockDim.x;
    for (i64 at = i64(blockIdx.x) * blockDim.x + threadIdx.x; at < outputs; at += step) {
        const I column = I(at % w.out), row = I(at / w.out % h.out);
        const I slice = I(at / w.out / h.out % d.out);
        const I tap = I(load_tap(argmax, argmax_bytes, at));
        const i64 in_d = d.start(slice) + tap / w.kernel / h.kernel * d.dilation;
        const i64 in_h = h.start(row) + tap / w.kernel % h.kernel * h.dilation;
        indices[at] = (in_d * h.in + in_h) * w.in + w.start(column) + tap % w.kernel * w.dilation;
    }
}

// Do positions within the padded axes fit 32 bits? Their arithmetic is several times as fast.
bool small(const PoolParams& p) {
    constexpr i64 most = i64(1) << 30;
    for (int a = 0; a < 3; ++a) {
        if (p.in_size[a] >= most || p.pad[a] >= most || p.stride[a] >= most ||
            p.kernel[a] >= most || p.dilation[a] >= most || p.out_size[a] * p.stride[a] >= most ||
            p.kernel[a] * p.dilation[a] >= most) {
            return false;
        }
    }
    return true;
}

i64 volume(const i64 (&size)[3]) {
    return size[0] * size[1] * size[2];
}

template <class T, class I>
void forward(const PoolParams& p, const T* x, T* y, void* argmax, int argmax_bytes) {
    const i64 outputs = p.planes * volume(p.out_size);
    launch("max_pool_forward", {blocks_for(outputs, kThreads), kThreads}, forward_kernel<T, I>,
           window_of<I>(p), outputs, x, y, argmax, argmax_bytes);
}

template <class T, class I>
void backward(const PoolParams& p, const T* dy, const void* argmax, int argmax_bytes, T* dx) {
    const i64 inputs = p.planes * volume(p.in_size);
    launch("max_pool_backward", {blocks_for(inputs, kThreads), kThreads}, backward_kernel<T, I>,
           window_of<I>(p), inputs, dy, argmax, argmax_bytes, dx);
}

template <class I>
void indices_of(const PoolParams& p, const void* argmax, int argmax_bytes, i64* indices) {
    const i64 outputs = p.planes * volume(p.out_size);
    launch("max_pool_indices", {blocks_for(outputs, kThreads), kThreads}, indices_kernel<I>,
           window_of<I>(p), outputs, argmax, argmax_bytes, indices);
}

}  // namespace

void max_pool_indices(const PoolParams& p, const void* argmax, int argmax_bytes, i64* indices) {
    small(p) ? indices_of<int>(p, argmax, argmax_bytes, indices)
             : indices_of<i64>(p, argmax, argmax_bytes, indices);
}

template <class T>
void max_pool_forward(const PoolParams& p, const T* x, T* y, void* argmax, int argmax_bytes) {
    small(p) ? forward<T, int>(p, x, y, argmax, argmax_bytes)
             : forward<T, i64>(p, x, y, argmax, argmax_bytes);
}

template <class T>
void max_pool_backward(const PoolParams& p, const T* dy, const void* argmax, int argmax_bytes,
                       T* dx) {
    small(p) ? backward<T, int>(p, dy, argmax, argmax_bytes, dx)
             : backward<T, i64>(p, dy, argmax, argmax_bytes, dx);
}

#define FUSEDNN_MAX_POOL(T)                                                         \
    template void max_pool_forward<T>(const PoolParams&, const T*, T*, void*, int); \
    template void max_pool_backward<T>(const PoolParams&, const T*, const void*, int, T*);
FUSEDNN_INSTANTIATE(FUSEDNN_MAX_POOL)

}  // namespace fusednn::cuda
