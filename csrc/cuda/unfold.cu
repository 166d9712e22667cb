// Sliding windows as columns, and their sum back into an array; one thread to each element of the
// result. x (N, C, D, H, W) <-> columns (N, C * KD * KH * KW, OD * OH * OW), zeros for padding.
#include "cuda/conv/window.h"
#include "cuda/kernels.h"

namespace fusednn::cuda {

namespace {

constexpr int kThreads = 256;

template <class I>
struct Windows {
    I in[3], out[3], kernel[3], stride[3], dilation[3], pad[3];
};

template <class I>
Windows<I> windows_of(const ConvParams& p) {
    Windows<I> w;
    for (int a = 0; a < 3; ++a) {
        w.in[a] = I(p.in_size[a]);
        w.out[a] = I(p.out_size[a]);
        w.kernel[a] = I(p.kernel[a]);
        w.stride[a] = I(p.stride[a]);
        w.dilation[a] = I(p.dilation[a]);
        w.pad[a] = I(p.pad[a]);
    }
    return w;
}

template <class T, class I>
__global__ void __launch_bounds__(kThreads, 2)
    unfold_kernel(Windows<I> p, i64 size, const T* __restrict__ x, T* __restrict__ columns) {
    const i64 step = i64(gridDim.x) * blockDim.x;
    for (i64 at = i64(blockIdx.x) * blockDim.x + threadIdx.x; at < size; at += step) {
        i64 left = at;
        I place[3];
#pragma unroll
        for (int a = 2; a >= 0; --a) {
            place[a] = I(left % p.out[a]) * p.stride[a] - p.pad[a];
            left /= p.out[a];
        }
#pragma unroll
        for (int a = 2; a >= 0; --a) {
            place[a] += I(left % p.kernel[a]) * p.dilation[a];
            left /= p.kernel[a];
        }
        const bool inside = place[0] >= 0 && place[0] < p.in[0] && place[1] >= 0 &&
                            place[1] < p.in[1] && place[2] >= 0 && place[2] < p.in[2];
        columns[at] =
            inside ? x[((left * p.in[0] + place[0]) * p.in[1] + place[1]) * p.in[2] + place[2]]
                   : T(0);
    }
}

// The taps [first, last) by which real outputs might read input `place`, the input `pad` further.
template <class I>
struct Readers {
    I first, last;
    FUSEDNN_DEVICE Readers(I place, I out, I kernel, I stride, I dilation) {
        const I behind = place - (out - 1) * stride;
        first = behind > 0 ? (behind + dilation - 1) / dilation : I(0);
        const I taps = place / dilation + 1;
        last = taps < kernel ? taps : kernel;
    }
};

template <class T, class I>
__global__ void __launch_bounds__(kThreads, 2)
    fold_kernel(Windows<I> p, i64 size, const T* __restrict__ columns, T* __restrict__ x) {
    const i64 step = i64(gridDim.x) * blockDim.x;
    for (i64 at = i64(blockIdx.x) * blockDim.x + threadIdx.x; at < size; at += step) {
        i64 left = at;
        I place[3];
#pragma unroll
        for (int a = 2; a >= 0; --a) {
            place[a] = I(left % p.in[a]) + p.pad[a];
            left /= p.in[a];
        }
        const Readers<I> d(place[0], p.out[0], p.kernel[0], p.stride[0], p.dilation[0]);
        const Readers<I> h(place[1], p.out[1], p.kernel[1], p.stride[1], p.dilation[1]);
        const Readers<I> w(place[2], p.out[2], p.kernel[2], p.stride[2], p.dilation[2]);
        T sum = T(0);
        for (I td = d.first; td < d.last; ++td) {
            const I out_d = place[0] - td * p.dilation[0];
            if (out_d % p.stride[0]) continue;
            for (I th = h.first; th < h.last; ++th) {
                const I out_h = place[1] - th * p.dilation[1];
                if (out_h % p.stride[1]) continue;
                for (I tw = w.first; tw < w.last; ++tw) {
                    const I out_w = place[2] - tw * p.dilation[2];
                    if (out_w % p.stride[2]) continue;
                    const i64 tap = ((left * p.kernel[0] + td) * p.kernel[1] + th) * p.kernel[2];
                    const i64 row = (tap + tw) * p.out[0] + out_d / p.stride[0];
                    sum += columns[(row * p.out[1] + out_h / p.stride[1]) * p.out[2] +
                                   out_w / p.stride[2]];
                }
            }
        }
        x[at] = sum;
    }
}

template <class T, class I>
void run_unfold(const ConvParams& p, const T* x, T* columns) {
    const i64 size = p.batch * p.in_channels * volume(p.kernel) * volume(p.out_size);
    launch("unfold", {blocks_for(size, kThreads), kThreads}, unfold_kernel<T, I>, windows_of<I>(p),
           size, x, columns);
}

template <class T, class I>
void run_fold(const ConvParams& p, const T* columns, T* x) {
    const i64 size = p.batch * p.in_channels * volume(p.in_size);
    launch("fold", {blocks_for(size, kThreads), kThreads}, fold_kernel<T, I>, windows_of<I>(p),
           size, columns, x);
}

}  // namespace

template <class T>
void unfold(const ConvParams& p, const T* x, T* columns) {
    small(p) ? run_unfold<T, int>(p, x, columns) : run_unfold<T, i64>(p, x, columns);
}

template <class T>
void fold(const ConvParams& p, const T* columns, T* x) {
    small(p) ? run_fold<T, int>(p, columns, x) : run_fold<T, i64>(p, columns, x);
}

#define FUSEDNN_UNFOLD(T)                                     \
    template void unfold<T>(const ConvParams&, const T*, T*); \
    template void fold<T>(const ConvParams&, const T*, T*);
FUSEDNN_INSTANTIATE(FUSEDNN_UNFOLD)

}  // namespace fusednn::cuda
