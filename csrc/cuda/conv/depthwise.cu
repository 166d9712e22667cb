// Convolutions of one input channel a group: no two outputs share a factor but along the image, so
// each thread computes one element of the result from what the caches hold.
//
//   x (N, G, D, H, W)   w (G * M, 1, KD, KH, KW)   y (N, G * M, OD, OH, OW)
#include "cuda/conv/depthwise.h"

#include "cuda/conv/window.h"
#include "cuda/kernels.h"

namespace fusednn::cuda {

namespace {

constexpr int kThreads = 256;

template <class I>
struct Axis {
    I in, out, kernel, stride, dilation, pad;

    // The taps [first, last) that read real elements in the window that begins at `start`.
    FUSEDNN_DEVICE I first_tap(I start) const {
        return start < 0 ? (-start + dilation - 1) / dilation : I(0);
    }
    FUSEDNN_DEVICE I last_tap(I start) const {
        if (start >= in) return 0;
        const I taps = (in - start - 1) / dilation + 1;
        return taps < kernel ? taps : kernel;
    }
    // The taps [first, last) by which real outputs might read input i, and that output, or -1.
    FUSEDNN_DEVICE I first_reader(I i) const {
        const I behind = i + pad - (out - 1) * stride;
        return behind > 0 ? (behind + dilation - 1) / dilation : I(0);
    }
    FUSEDNN_DEVICE I last_reader(I i) const {
        const I taps = (i + pad) / dilation + 1;
        return taps < kernel ? taps : kernel;
    }
    FUSEDNN_DEVICE I reader(I i, I tap) const {
        const I at = i + pad - tap * dilation;
        return stride == 1 ? at : at % stride == 0 ? at / stride : I(-1);
    }
};

template <class I>
struct Depthwise {
    Axis<I> d, h, w;
    i64 groups, multiplier, batch;
};

template <class I>
Depthwise<I> depthwise_of(const ConvParams& p) {
    const auto axis = [&](int a) {
        return Axis<I>{I(p.in_size[a]), I(p.out_size[a]), I(p.kernel[a]),
                       I(p.stride[a]),  I(p.dilation[a]), I(p.pad[a])};
    };
    return {axis(0), axis(1), axis(2), p.groups, p.out_channels / p.groups, p.batch};
}

template <class T, class I>
__global__ void __launch_bounds__(kThreads, 2)
    forward_kernel(Depthwise<I> p, i64 outputs, const T* __restrict__ x, const T* __restrict__ w,
                   const T* __restrict__ bias, T* __restrict__ y, Format<T> format) {
    const i64 step = i64(gridDim.x) * blockDim.x;
    for (i64 at = i64(blockIdx.x) * blockDim.x + threadIdx.x; at < outputs; at += step) {
        const i64 line = at / p.w.out, slice = line / p.h.out, plane = slice / p.d.out;
        const I start_w = I(at % p.w.out) * p.w.stride - p.w.pad;
        const I start_h = I(line % p.h.out) * p.h.stride - p.h.pad;
        const I start_d = I(slice % p.d.out) * p.d.stride - p.d.pad;
        const i64 channel = plane % (p.groups * p.multiplier);
        const T* image = x + plane / p.multiplier * p.d.in * p.h.in * p.w.in;
        const T* weights = w + channel * p.d.kernel * p.h.kernel * p.w.kernel;
        const I last_d = p.d.last_tap(start_d), last_h = p.h.last_tap(start_h);
        const I first_w = p.w.first_tap(start_w), last_w = p.w.last_tap(start_w);
        Accumulate<T> sum = bias ? format.widen(bias[channel]) : Accumulate<T>(0);
        for (I td = p.d.first_tap(start_d); td < last_d; ++td) {
            for (I th = p.h.first_tap(start_h); th < last_h; ++th) {
                const i64 row =
                    i64(start_d + td * p.d.dilation) * p.h.in + start_h + th * p.h.dilation;
                const T* from = image + row * p.w.in + start_w;
                const T* factors = weights + (i64(td) * p.h.kernel + th) * p.w.kernel;
                for (I tw = first_w; tw < last_w; ++tw) {
                    sum += format.widen(factors[tw]) * format.widen(from[i64(tw) * p.w.dilation]);
                }
            }
        }
        y[at] = format.narrow(sum);
    }
}

template <class T, class I>
__global__ void __launch_bounds__(kThreads, 2)
    backward_input_kernel(Depthwise<I> p, i64 inputs, const T* __restrict__ dy,
                          const T* __restrict__ w, const T* __restrict__ bias, T* __restrict__ dx,
                          Format<T> format) {
    const i64 step = i64(gridDim.x) * blockDim.x;
    const i64 pixels = i64(p.d.out) * p.h.out * p.w.out;
    const i64 taps = i64(p.d.kernel) * p.h.kernel * p.w.kernel;
    for (i64 at = i64(blockIdx.x) * blockDim.x + threadIdx.x; at < inputs; at += step) {
        const i64 line = at / p.w.in, slice = line / p.h.in, plane = slice / p.d.in;
        const I i_w = I(at % p.w.in), i_h = I(line % p.h.in), i_d = I(slice % p.d.in);
        const i64 group = plane % p.groups;
        const I last_d = p.d.last_reader(i_d), last_h = p.h.last_reader(i_h);
        const I first_w = p.w.first_reader(i_w), last_w = p.w.last_reader(i_w);
        Accumulate<T> sum = bias ? format.widen(bias[group]) : Accumulate<T>(0);
        for (i64 m = 0; m < p.multiplier; ++m) {
            const T* from = dy + (plane * p.multiplier + m) * pixels;
            const T* weights = w + (group * p.multiplier + m) * taps;
            for (I td = p.d.first_reader(i_d); td < last_d; ++td) {
                const I out_d = p.d.reader(i_d, td);
                if (out_d < 0) continue;
                for (I th = p.h.first_reader(i_h); th < last_h; ++th) {
                    const I out_h = p.h.reader(i_h, th);
                    if (out_h < 0) continue;
                    const T* row = from + (i64(out_d) * p.h.out + out_h) * p.w.out;
                    const T* factors = weights + (i64(td) * p.h.kernel + th) * p.w.kernel;
                    for (I tw = first_w; tw < last_w; ++tw) {
                        const I out_w = p.w.reader(i_w, tw);
                        if (out_w < 0) continue;
                        sum += format.widen(factors[tw]) * format.widen(row[out_w]);
                    }
                }
            }
        }
        dx[at] = format.narrow(sum);
    }
}

// One block to each weight. `windows` count (image, d, h, w) with the block's threads as their hop.
template <class T, class I>
__global__ void __launch_bounds__(kThreads, 2)
    backward_weight_kernel(Depthwise<I> p, Lattice<I> windows, i64 weights, const T* __restrict__ x,
                           const T* __restrict__ dy, T* __restrict__ dw, Format<T> format) {
    using U = typename Lattice<I>::U;
    using Sum = Accumulate<T>;
    FUSEDNN_SHARED(Sum[kThreads], sums);
    const I image[3] = {p.d.in, p.h.in, p.w.in};
    const i64 pixels = i64(p.d.out) * p.h.out * p.w.out, channels = p.groups * p.multiplier;
    const i64 plane = i64(p.d.in) * p.h.in * p.w.in, positions = p.batch * pixels;
    for (i64 weight = blockIdx.x; weight < weights; weight += gridDim.x) {
        const i64 line = weight / p.w.kernel, slice = line / p.h.kernel;
        const i64 channel = slice / p.d.kernel, group = channel / p.multiplier;
        const I tap_w = I(weight % p.w.kernel) * p.w.dilation;
        const I tap_h = I(line % p.h.kernel) * p.h.dilation;
        const I tap_d = I(slice % p.d.kernel) * p.d.dilation;
        const I tap = I((U(tap_d) * U(p.h.in) + U(tap_h)) * U(p.w.in) + U(tap_w));
        Sum sum = Sum(0);
        if (threadIdx.x < positions) {
            typename Lattice<I>::Digits at = windows.digits(threadIdx.x);
            for (i64 i = threadIdx.x; i < positions; i += kThreads) {
                const Point<I> point = windows.point(at, image);
                const I d = point.d + tap_d, h = point.h + tap_h, column = point.w + tap_w;
                if (d >= 0 && d < p.d.in && h >= 0 && h < p.h.in && column >= 0 &&
                    column < p.w.in) {
                    const i64 pixel = (i64(at.d) * p.h.out + at.h) * p.w.out + at.w;
                    sum += format.widen(dy[(at.outer * channels + channel) * pixels + pixel]) *
                           format.widen(x[group * plane + point.offset_with(tap)]);
                }
                windows.advance(at);
            }
        }
        sums[threadIdx.x] = sum;
        __syncthreads();
        for (int half = kThreads / 2; half > 0; half /= 2) {
            if (int(threadIdx.x) < half) sums[threadIdx.x] += sums[threadIdx.x + half];
            __syncthreads();
        }
        if (threadIdx.x == 0) dw[weight] = format.narrow(sums[0]);
        __syncthreads();
    }
}

template <class T, class I>
void backward_weight(const ConvParams& p, const T* x, const T* dy, T* dw) {
    const i64 weights = p.out_channels * volume(p.kernel);
    Lattice<I> lattice = windows<I>(p, p.in_channels * volume(p.in_size));
    if (!lattice.empty()) lattice.hop = lattice.digits(kThreads);
    launch("depthwise_backward_weight", {blocks_for(weights, 1), kThreads},
           backward_weight_kernel<Storage<T>, I>, depthwise_of<I>(p), lattice, weights, storage(x),
           storage(dy), storage(dw), StorageOf<T>::format());
}

template <class T, class I>
void forward(const ConvParams& p, const T* x, const T* w, const T* bias, T* y) {
    const i64 outputs = p.batch * p.out_channels * volume(p.out_size);
    launch("depthwise_forward", {blocks_for(outputs, kThreads), kThreads},
           forward_kernel<Storage<T>, I>, depthwise_of<I>(p), outputs, storage(x), storage(w),
           storage(bias), storage(y), StorageOf<T>::format());
}

template <class T, class I>
void backward_input(const ConvParams& p, const T* dy, const T* w, const T* bias, T* dx) {
    const i64 inputs = p.batch * p.in_channels * volume(p.in_size);
    launch("depthwise_backward_input", {blocks_for(inputs, kThreads), kThreads},
           backward_input_kernel<Storage<T>, I>, depthwise_of<I>(p), inputs, storage(dy),
           storage(w), storage(bias), storage(dx), StorageOf<T>::format());
}

}  // namespace

template <class T>
void depthwise_forward(const ConvParams& p, const T* x, const T* w, const T* bias, T* y) {
    FUSEDNN_BY_SIZE(T, p, forward, x, w, bias, y);
}

template <class T>
void depthwise_backward_input(const ConvParams& p, const T* dy, const T* w, const T* bias, T* dx) {
    FUSEDNN_BY_SIZE(T, p, backward_input, dy, w, bias, dx);
}

template <class T>
void depthwise_backward_weight(const ConvParams& p, const T* x, const T* dy, T* dw) {
    FUSEDNN_BY_SIZE(T, p, backward_weight, x, dy, dw);
}

#define FUSEDNN_DEPTHWISE(T)                                                                   \
    template void depthwise_forward<T>(const ConvParams&, const T*, const T*, const T*, T*);   \
    template void depthwise_backward_input<T>(const ConvParams&, const T*, const T*, const T*, \
                                              T*);                                             \
    template void depthwise_backward_weight<T>(const ConvParams&, const T*, const T*, T*);
FUSEDNN_INSTANTIATE(FUSEDNN_DEPTHWISE)
FUSEDNN_INSTANTIATE_HALF(FUSEDNN_DEPTHWISE)

}  // namespace fusednn::cuda
