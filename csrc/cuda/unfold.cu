// Sliding windows as columns, and their sum back into an array; one thread to each element of the
// result. x (N, C, D, H, W) <-> columns (N, C * KD * KH * KW, OD * OH * OW), zeros for padding.
// Sums of 16-bit arrays are float, and rounded once.
#include "cuda/any.h"
#include "cuda/gpu.h"
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

// A position as a place along axes, the last one first.
template <class Position>
class Places {
  public:
    FUSEDNN_DEVICE explicit Places(Position at) : left(at) {}
    template <class I>
    FUSEDNN_DEVICE I next(I size) {
        const Position quotient = left / Position(size);
        const I place = I(left - quotient * Position(size));
        left = quotient;
        return place;
    }
    Position left;
};

template <class T>
__global__ void __launch_bounds__(kThreads, 2)
    unfold_kernel(Windows<typename Arrays<T>::Index> p, typename Arrays<T>::Position size,
                  typename Arrays<T>::In x, typename Arrays<T>::Out columns) {
    using I = typename Arrays<T>::Index;
    using Position = typename Arrays<T>::Position;
    const Position at = Position(blockIdx.x) * kThreads + threadIdx.x;
    if (at >= size) return;
    Places<Position> places(at);
    I place[3];
#pragma unroll
    for (int a = 2; a >= 0; --a) place[a] = places.next(p.out[a]) * p.stride[a] - p.pad[a];
#pragma unroll
    for (int a = 2; a >= 0; --a) place[a] += places.next(p.kernel[a]) * p.dilation[a];
    const bool inside = place[0] >= 0 && place[0] < p.in[0] && place[1] >= 0 &&
                        place[1] < p.in[1] && place[2] >= 0 && place[2] < p.in[2];
    typename Arrays<T>::Value value = 0;
    if (inside) {
        value = x[((places.left * Position(p.in[0]) + place[0]) * p.in[1] + place[1]) * p.in[2] +
                  place[2]];
    }
    Arrays<T>::put(columns, at, value);
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

template <class T>
__global__ void __launch_bounds__(kThreads, 2)
    fold_kernel(Windows<typename Arrays<T>::Index> p, typename Arrays<T>::Position size,
                typename Arrays<T>::In columns, typename Arrays<T>::Out x) {
    using I = typename Arrays<T>::Index;
    using Position = typename Arrays<T>::Position;
    const Position at = Position(blockIdx.x) * kThreads + threadIdx.x;
    if (at >= size) return;
    Places<Position> places(at);
    I place[3];
#pragma unroll
    for (int a = 2; a >= 0; --a) place[a] = places.next(p.in[a]) + p.pad[a];
    const Readers<I> d(place[0], p.out[0], p.kernel[0], p.stride[0], p.dilation[0]);
    const Readers<I> h(place[1], p.out[1], p.kernel[1], p.stride[1], p.dilation[1]);
    const Readers<I> w(place[2], p.out[2], p.kernel[2], p.stride[2], p.dilation[2]);
    typename Arrays<T>::Value sum = 0;
#pragma unroll 1
    for (I td = d.first; td < d.last; ++td) {
        const I out_d = place[0] - td * p.dilation[0];
        if (out_d % p.stride[0]) continue;
#pragma unroll 1
        for (I th = h.first; th < h.last; ++th) {
            const I out_h = place[1] - th * p.dilation[1];
            if (out_h % p.stride[1]) continue;
            const Position line =
                ((places.left * Position(p.kernel[0]) + td) * p.kernel[1] + th) * p.kernel[2];
            const Position above = out_d / p.stride[0] * Position(p.out[1]) + out_h / p.stride[1];
            const Position each = Position(p.out[0]) * p.out[1] * p.out[2];
#pragma unroll 1
            for (I tw = w.first; tw < w.last; ++tw) {
                const I out_w = place[2] - tw * p.dilation[2];
                if (out_w % p.stride[2]) continue;
                sum = Arrays<T>::rounded(
                    columns,
                    sum + columns[(line + tw) * each + above * p.out[2] + out_w / p.stride[2]]);
            }
        }
    }
    Arrays<T>::put(x, at, sum);
}

i64 volume(const i64 (&size)[3]) {
    return size[0] * size[1] * size[2];
}

// Do 32 bits hold places within the padded axes, and positions within a channel's arrays?
bool small(const ConvParams& p) {
    constexpr i64 most = i64(1) << 30;
    for (int a = 0; a < 3; ++a) {
        if (p.in_size[a] >= most || p.pad[a] >= most || p.stride[a] >= most ||
            p.kernel[a] >= most || p.dilation[a] >= most || p.out_size[a] >= most ||
            p.out_size[a] * p.stride[a] >= most || p.kernel[a] * p.dilation[a] >= most ||
            p.in_size[a] + p.pad[a] >= most) {
            return false;
        }
    }
    return volume(p.in_size) < kMostPositions &&
           volume(p.kernel) * volume(p.out_size) < kMostPositions;
}

LaunchShape threads_for(i64 count) {
    return {blocks_for(count, kThreads), kThreads};
}

// A kernel over planes with so many elements each; `any` is the one for sizes beyond 32 bits.
template <class T, class Kernel, class AnyKernel>
void run_planes(const char* name, const ConvParams& p, i64 from_each, const T* from, i64 to_each,
                T* to, Kernel kernel, AnyKernel any) {
    const i64 planes = p.batch * p.in_channels;
    if (!small(p)) {
        launch(name, threads_for(planes * to_each), any, windows_of<i64>(p), planes * to_each,
               reading_any(from), writing_any(to));
        return;
    }
    by_parts(planes, from_each > to_each ? from_each : to_each, [&](i64 first, i64 count) {
        launch(name, threads_for(count * to_each), kernel, windows_of<int>(p), count * to_each,
               reading(from + first * from_each), writing(to + first * to_each));
    });
}

}  // namespace

template <class T>
void unfold(const ConvParams& p, const T* x, T* columns) {
    run_planes("unfold", p, volume(p.in_size), x, volume(p.kernel) * volume(p.out_size), columns,
               unfold_kernel<Storage<T>>, unfold_kernel<Any>);
}

template <class T>
void fold(const ConvParams& p, const T* columns, T* x) {
    run_planes("fold", p, volume(p.kernel) * volume(p.out_size), columns, volume(p.in_size), x,
               fold_kernel<Storage<T>>, fold_kernel<Any>);
}

#define FUSEDNN_UNFOLD(T)                                     \
    template void unfold<T>(const ConvParams&, const T*, T*); \
    template void fold<T>(const ConvParams&, const T*, T*);
FUSEDNN_INSTANTIATE(FUSEDNN_UNFOLD)
FUSEDNN_INSTANTIATE_HALF(FUSEDNN_UNFOLD)

}  // namespace fusednn::cuda
