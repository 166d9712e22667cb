// y = mask ? x * mask : 0 for x, y (outer, repeat, inner), mask (outer, inner); what is masked out
// is not looked at: NaN and inf become 0 too. y may be x.
#include "cuda/elementwise.h"
#include "cuda/gpu.h"
#include "cuda/kernels.h"

namespace fusednn::cuda {

namespace {

constexpr int kThreads = 256;

template <class T>
__global__ void __launch_bounds__(kThreads, 4)
    mask_kernel(i64 size, i64 repeat, i64 inner, In<T> x, In<T> mask, Out<T> y) {
    using Sum = Accumulate<T>;
    const i64 at = i64(blockIdx.x) * kThreads + threadIdx.x;
    if (at >= size) return;
    const i64 row = quotient(at, inner), o = quotient(row, repeat);
    const Sum factor = mask[o * inner + (at - row * inner)];
    y[at] = factor != Sum(0) ? x[at] * factor : Sum(0);
}

}  // namespace

template <class T>
void apply_mask(i64 outer, i64 repeat, i64 inner, const T* x, const T* mask, T* y) {
    const i64 size = outer * repeat * inner;
    launch("apply_mask", {blocks_for(size, kThreads), kThreads}, mask_kernel<Storage<T>>, size,
           repeat, inner, reading(x), reading(mask), writing(y));
}

#define FUSEDNN_MASK(T) template void apply_mask<T>(i64, i64, i64, const T*, const T*, T*);
FUSEDNN_INSTANTIATE(FUSEDNN_MASK)
FUSEDNN_INSTANTIATE_HALF(FUSEDNN_MASK)

}  // namespace fusednn::cuda
