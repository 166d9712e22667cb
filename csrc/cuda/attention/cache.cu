#include "cuda/attention/cache.h"

#include "cuda/elementwise.h"

namespace fusednn::cuda {

namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    widen_heads_kernel(HeadArray<const BFloat16> from, i64 heads, i64 rows, i64 width, i64 size,
                       float* __restrict__ to) {
    const i64 at = i64(blockIdx.x) * kThreads + threadIdx.x;
    if (at >= size) return;
    const i64 line = quotient(at, width), all = quotient(line, rows), batch = quotient(all, heads);
    to[at] = widen(from.data[batch * from.batch + (all - batch * heads) * from.head +
                             (line - all * rows) * from.row + at - line * width]);
}

}  // namespace

void widen_heads(const HeadArray<const BFloat16>& from, i64 batch, i64 heads, i64 rows, i64 width,
                 float* to) {
    const i64 size = batch * heads * rows * width;
    launch("widen_heads", {blocks_for(size, kThreads), kThreads}, widen_heads_kernel, from, heads,
           rows, width, size, to);
}

}  // namespace fusednn::cuda
