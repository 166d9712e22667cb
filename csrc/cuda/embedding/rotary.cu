// Rotary position embedding: pairs (u, v) of a head turned by their position's angle,
//   u' = u cos - v sin,  v' = u sin + v cos.
// x, y (batch, heads, length, width) by strides, width contiguous; cos, sin (positions, rotated/2).
// A thread has one pair, or two of the elements behind the rotated ones.
#include "cuda/elementwise.h"
#include "cuda/gpu.h"
#include "cuda/kernels.h"

namespace fusednn::cuda {

namespace {

constexpr int kThreads = 256;

template <class T>
__global__ void __launch_bounds__(kThreads, 4)
    rotary_kernel(RotaryParams p, In<T> x, const Accumulate<T>* __restrict__ cos,
                  const Accumulate<T>* __restrict__ sin, const i64* __restrict__ rows, Out<T> y) {
    const i64 half = p.rotated / 2, pairs = (p.width + 1) / 2;
    const i64 all = p.batch * p.heads * p.length * pairs;
    const i64 at = i64(blockIdx.x) * kThreads + threadIdx.x;
    if (at < all) {
        const i64 line = quotient(at, pairs), k = at - line * pairs;
        const i64 of_head = quotient(line, p.length), t = line - of_head * p.length;
        const i64 b = quotient(of_head, p.heads), head = of_head - b * p.heads;
        const i64 begin = b * p.batch_stride + head * p.head_stride + t * p.position_stride;
        if (k >= half) {
            for (i64 i = 2 * k; i < 2 * k + 2 && i < p.width; ++i) y[begin + i] = x[begin + i];
            return;
        }
        const i64 place = b * p.length + t, angle = (rows ? rows[place] : place) * half + k;
        const i64 first = begin + (p.interleaved ? 2 * k : k);
        const i64 second = p.interleaved ? first + 1 : first + half;
        const auto c = cos[angle], s = p.inverse ? -sin[angle] : sin[angle];
        const auto u = x[first], v = x[second];
        y[first] = u * c - v * s;
        y[second] = u * s + v * c;
    }
}

}  // namespace

template <class T>
void rotary(const RotaryParams& p, const T* x, const Accumulate<T>* cos, const Accumulate<T>* sin,
            const i64* rows, T* y) {
    const i64 all = p.batch * p.heads * p.length * ((p.width + 1) / 2);
    launch("rotary", {blocks_for(all, kThreads), kThreads}, rotary_kernel<Storage<T>>, p,
           reading(x), cos, sin, rows, writing(y));
}

#define FUSEDNN_ROTARY(T)                                                        \
    template void rotary<T>(const RotaryParams&, const T*, const Accumulate<T>*, \
                            const Accumulate<T>*, const i64*, T*);
FUSEDNN_INSTANTIATE(FUSEDNN_ROTARY)
FUSEDNN_INSTANTIATE_HALF(FUSEDNN_ROTARY)

}  // namespace fusednn::cuda
