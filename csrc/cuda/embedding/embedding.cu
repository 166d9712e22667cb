// Rows of a table by number, and the gradient: table, dtable (rows, width); ids (count);
// y, dy (count, width).
//
// The gradient of a row is the sum of dy over the places that name it, in their order: each element
// of the table gathers its own, so that there are no atomic additions.
#include "cuda/embedding/places.h"
#include "cuda/gpu.h"
#include "cuda/kernels.h"
#include "cuda/rows.h"

namespace fusednn::cuda {

namespace {

constexpr int kThreads = 256;

template <int kWide, class T>
__global__ void __launch_bounds__(kThreads)
    forward_kernel(i64 size, i64 width, const i64* __restrict__ ids, const T* __restrict__ table,
                   T* __restrict__ y) {
    const i64 at = (i64(blockIdx.x) * kThreads + threadIdx.x) * kWide;
    if (at >= size) return;
    const i64 place = quotient(at, width);
    store_wide<kWide>(y + at, load_wide<kWide>(table + ids[place] * width + at - place * width));
}

template <int kWide, class T>
__global__ void __launch_bounds__(kThreads)
    backward_kernel(i64 size, i64 width, const i64* __restrict__ starts,
                    const i64* __restrict__ order, In<T> dy,
                    const Accumulate<T>* __restrict__ scale, Out<T> dtable) {
    const i64 at = (i64(blockIdx.x) * kThreads + threadIdx.x) * kWide;
    if (at >= size) return;
    const i64 row = quotient(at, width), k = at - row * width;
    const i64 first = starts[row], last = starts[row + 1];
    Wide<Accumulate<T>, kWide> sum{};
#pragma unroll 2
    for (i64 i = first; i < last; ++i) {
        const auto v = load_wide<kWide>(dy + order[i] * width + k);
        for (int j = 0; j < kWide; ++j) sum.of[j] = i == first ? v.of[j] : sum.of[j] + v.of[j];
    }
    if (scale && first < last) {
        for (int j = 0; j < kWide; ++j) sum.of[j] *= scale[row];
    }
    store_wide<kWide>(dtable + at, sum);
}

__global__ void __launch_bounds__(kThreads)
    replace_skipped(i64 count, i64 rows, i64 skipped, const i64* __restrict__ ids,
                    i64* __restrict__ keys) {
    const i64 i = i64(blockIdx.x) * kThreads + threadIdx.x;
    if (i < count) keys[i] = ids[i] == skipped ? rows : ids[i];
}

// starts[r]: how many keys are below r; keys[order] rises.
template <class T>
__global__ void __launch_bounds__(kThreads)
    find_starts(i64 rows, i64 count, const i64* __restrict__ keys, const i64* __restrict__ order,
                i64* __restrict__ starts, T* __restrict__ scale) {
    const auto below = [&](i64 row) {
        i64 from = 0, to = count;
        while (from < to) {
            const i64 middle = (from + to) / 2;
            if (keys[order[middle]] < row) {
                from = middle + 1;
            } else {
                to = middle;
            }
        }
        return from;
    };
    const i64 r = i64(blockIdx.x) * kThreads + threadIdx.x;
    if (r > rows) return;
    const i64 start = below(r);
    starts[r] = start;
    if (scale && r < rows) {
        const i64 uses = below(r + 1) - start;
        scale[r] = T(1) / T(uses ? uses : 1);
    }
}

}  // namespace

template <class T>
void embedding_forward(i64 count, i64 width, const i64* ids, const T* table, T* y) {
    constexpr int wide = Pack<T>::kSize;
    const i64 size = count * width;
    if (rows_of_packs<T>(width, table, y)) {
        launch("embedding_forward", {blocks_for(size, kThreads * wide), kThreads},
               forward_kernel<wide, Storage<T>>, size, width, ids, storage(table), storage(y));
    } else {
        launch("embedding_forward", {blocks_for(size, kThreads), kThreads},
               forward_kernel<1, Storage<T>>, size, width, ids, storage(table), storage(y));
    }
}

template <class T>
void embedding_backward(i64 rows, i64 width, const i64* starts, const i64* order, const T* dy,
                        const Accumulate<T>* scale, T* dtable) {
    constexpr int wide = Pack<T>::kSize;
    const i64 size = rows * width;
    if (rows_of_packs<T>(width, dy, dtable)) {
        launch("embedding_backward", {blocks_for(size, kThreads * wide), kThreads},
               backward_kernel<wide, Storage<T>>, size, width, starts, order, reading(dy), scale,
               writing(dtable));
    } else {
        launch("embedding_backward", {blocks_for(size, kThreads), kThreads},
               backward_kernel<1, Storage<T>>, size, width, starts, order, reading(dy), scale,
               writing(dtable));
    }
}

void embedding_keys(i64 count, i64 rows, i64 skipped, const i64* ids, i64* keys) {
    launch("embedding_backward", {blocks_for(count, kThreads), kThreads}, replace_skipped, count,
           rows, skipped, ids, keys);
}

template <class T>
void embedding_starts(i64 rows, i64 count, const i64* keys, const i64* order, i64* starts,
                      T* scale) {
    launch("embedding_backward", {blocks_for(rows + 1, kThreads), kThreads}, find_starts<T>, rows,
           count, keys, order, starts, scale);
}

#define FUSEDNN_EMBEDDING(T)                                                        \
    template void embedding_forward<T>(i64, i64, const i64*, const T*, T*);         \
    template void embedding_backward<T>(i64, i64, const i64*, const i64*, const T*, \
                                        const Accumulate<T>*, T*);
FUSEDNN_INSTANTIATE(FUSEDNN_EMBEDDING)
FUSEDNN_INSTANTIATE_HALF(FUSEDNN_EMBEDDING)

#define FUSEDNN_STARTS(T) \
    template void embedding_starts<T>(i64, i64, const i64*, const i64*, i64*, T*);
FUSEDNN_INSTANTIATE(FUSEDNN_STARTS)

}  // namespace fusednn::cuda
