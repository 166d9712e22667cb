// Moving values to or from listed positions of a plane. x, y (planes, count) and (planes, size);
// indices (planes, count).
//
//   scatter   1. for each position the last of the entries that name it (whole numbers: in any
//             order the same)   2. y = that entry, or 0
//   add       a thread for each plane, entry by entry: sums in that order, no atomic additions
#include "cuda/elementwise.h"
#include "cuda/gpu.h"
#include "cuda/kernels.h"

namespace fusednn::cuda {

namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    last_entries(i64 entries, i64 count, i64 size, const i64* __restrict__ indices,
                 unsigned long long* last) {
    const i64 step = i64(gridDim.x) * blockDim.x;
    for (i64 at = i64(blockIdx.x) * blockDim.x + threadIdx.x; at < entries; at += step) {
        // From 1 on: 0 is none.
        atomicMax(last + quotient(at, count) * size + indices[at], (unsigned long long)(at + 1));
    }
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    place_entries(i64 positions, const unsigned long long* __restrict__ last,
                  const T* __restrict__ x, T* __restrict__ y) {
    const i64 step = i64(gridDim.x) * blockDim.x;
    for (i64 at = i64(blockIdx.x) * blockDim.x + threadIdx.x; at < positions; at += step) {
        y[at] = last[at] ? x[last[at] - 1] : T(0);
    }
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    add_entries(i64 planes, i64 count, i64 size, const T* __restrict__ x,
                const i64* __restrict__ indices, T* y) {
    const i64 step = i64(gridDim.x) * blockDim.x;
    for (i64 plane = i64(blockIdx.x) * blockDim.x + threadIdx.x; plane < planes; plane += step) {
        for (i64 i = plane * count; i < (plane + 1) * count; ++i) {
            y[plane * size + indices[i]] += x[i];
        }
    }
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    gather_entries(i64 entries, i64 count, i64 size, const T* __restrict__ x,
                   const i64* __restrict__ indices, T* __restrict__ y) {
    const i64 step = i64(gridDim.x) * blockDim.x;
    for (i64 at = i64(blockIdx.x) * blockDim.x + threadIdx.x; at < entries; at += step) {
        y[at] = x[quotient(at, count) * size + indices[at]];
    }
}

}  // namespace

template <class T>
void scatter_planes(i64 planes, i64 count, i64 size, bool add, const T* x, const i64* indices,
                    T* y) {
    const i64 entries = planes * count, positions = planes * size;
    const char* name = "scatter_planes";
    if (positions == 0) return;
    if (add) {
        check(cudaMemsetAsync(y, 0, std::size_t(positions) * sizeof(T), current_stream()),
              "clearing a result");
        launch(name, {blocks_for(planes, 32), 32}, add_entries<T>, planes, count, size, x, indices,
               y);
        return;
    }
    const Workspace<unsigned long long> last(positions);
    check(cudaMemsetAsync(last.get(), 0, std::size_t(positions) * 8, current_stream()),
          "clearing a workspace");
    launch(name, {blocks_for(entries, kThreads), kThreads}, last_entries, entries, count, size,
           indices, last.get());
    launch(name, {blocks_for(positions, kThreads), kThreads}, place_entries<T>, positions,
           last.get(), x, y);
}

template <class T>
void gather_planes(i64 planes, i64 count, i64 size, const T* x, const i64* indices, T* y) {
    launch("gather_planes", {blocks_for(planes * count, kThreads), kThreads}, gather_entries<T>,
           planes * count, count, size, x, indices, y);
}

#define FUSEDNN_PLANES(T)                                                           \
    template void scatter_planes<T>(i64, i64, i64, bool, const T*, const i64*, T*); \
    template void gather_planes<T>(i64, i64, i64, const T*, const i64*, T*);
FUSEDNN_INSTANTIATE(FUSEDNN_PLANES)

}  // namespace fusednn::cuda
