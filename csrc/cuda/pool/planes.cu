// Moving values to or from listed positions of a plane. x, y (planes, count) and (planes, size);
// indices (planes, count).
//
//   scatter   1. for each position the last of the entries that name it (whole numbers: in any
//             order the same)   2. y = that entry, or 0
//   add       a thread for each plane, entry by entry: sums in that order, no atomic additions
#include "cuda/cast.h"
#include "cuda/elementwise.h"
#include "cuda/gpu.h"
#include "cuda/kernels.h"

namespace fusednn::cuda {

namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    last_entries(i64 entries, i64 count, i64 size, const i64* __restrict__ indices,
                 unsigned long long* last) {
    const i64 at = i64(blockIdx.x) * kThreads + threadIdx.x;
    if (at >= entries) return;
    // From 1 on: 0 is none.
    atomicMax(last + quotient(at, count) * size + indices[at], (unsigned long long)(at + 1));
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    place_entries(i64 positions, const unsigned long long* __restrict__ last,
                  const T* __restrict__ x, T* __restrict__ y) {
    const i64 at = i64(blockIdx.x) * kThreads + threadIdx.x;
    if (at < positions) y[at] = last[at] ? x[last[at] - 1] : T{};
}

// y is of Accumulate: halves are rounded once, when all is added.
template <class T>
__global__ void __launch_bounds__(kThreads)
    add_entries(i64 planes, i64 count, i64 size, In<T> x, const i64* __restrict__ indices,
                Accumulate<T>* y) {
    const i64 plane = i64(blockIdx.x) * blockDim.x + threadIdx.x;
    if (plane >= planes) return;
#pragma unroll 1
    for (i64 i = plane * count; i < (plane + 1) * count; ++i) y[plane * size + indices[i]] += x[i];
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    gather_entries(i64 entries, i64 count, i64 size, const T* __restrict__ x,
                   const i64* __restrict__ indices, T* __restrict__ y) {
    const i64 at = i64(blockIdx.x) * kThreads + threadIdx.x;
    if (at < entries) y[at] = x[quotient(at, count) * size + indices[at]];
}

template <class T>
void add_planes(i64 planes, i64 count, i64 size, const T* x, const i64* indices, T* y) {
    using Sum = Accumulate<T>;
    constexpr bool half = sizeof(T) == 2;
    const Workspace<Sum> sums(half ? planes * size : 0);
    Sum* to;
    if constexpr (half) {
        to = sums.get();
    } else {
        to = y;
    }
    check(cudaMemsetAsync(to, 0, std::size_t(planes * size) * sizeof(Sum), current_stream()),
          "clearing a result");
    launch("scatter_planes", {blocks_for(planes, 32), 32}, add_entries<Storage<T>>, planes, count,
           size, reading(x), indices, to);
    if constexpr (half) {
        const DType dtype = std::is_same_v<T, BFloat16> ? DType::bf16 : DType::f16;
        cast(planes * size, DType::f32, to, dtype, y);
    }
}

}  // namespace

template <class T>
void scatter_planes(i64 planes, i64 count, i64 size, bool add, const T* x, const i64* indices,
                    T* y) {
    const i64 entries = planes * count, positions = planes * size;
    const char* name = "scatter_planes";
    if (positions == 0) return;
    if (add) return add_planes(planes, count, size, x, indices, y);
    const Workspace<unsigned long long> last(positions);
    check(cudaMemsetAsync(last.get(), 0, std::size_t(positions) * 8, current_stream()),
          "clearing a workspace");
    launch(name, {blocks_for(entries, kThreads), kThreads}, last_entries, entries, count, size,
           indices, last.get());
    launch(name, {blocks_for(positions, kThreads), kThreads}, place_entries<Storage<T>>, positions,
           last.get(), storage(x), storage(y));
}

template <class T>
void gather_planes(i64 planes, i64 count, i64 size, const T* x, const i64* indices, T* y) {
    launch("gather_planes", {blocks_for(planes * count, kThreads), kThreads},
           gather_entries<Storage<T>>, planes * count, count, size, storage(x), indices,
           storage(y));
}

#define FUSEDNN_PLANES(T)                                                           \
    template void scatter_planes<T>(i64, i64, i64, bool, const T*, const i64*, T*); \
    template void gather_planes<T>(i64, i64, i64, const T*, const i64*, T*);
FUSEDNN_INSTANTIATE(FUSEDNN_PLANES)
FUSEDNN_INSTANTIATE_HALF(FUSEDNN_PLANES)

}  // namespace fusednn::cuda
