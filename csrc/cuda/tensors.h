// Lists of flat arrays that one launch goes through, as many as fit into a kernel's arguments:
// blocks are dealt in chunks, so that small arrays do not wait for launches of their own and large
// ones are spread over the whole GPU.
#pragma once
#include <algorithm>

#include "cuda/elementwise.h"
#include "cuda/rows.h"

namespace fusednn::cuda {

// Elements that a block goes through: each thread moves 16 bytes of every array four times.
template <class T>
constexpr i64 kChunk = kElementThreads * 4 * Pack<T>::kSize;

// kArrays arrays of one size for each of `count` tensors. 4 KB is what a kernel's arguments may be,
// with some room for what else it is given.
template <class T, int kArrays_>
struct Tensors {
    static constexpr int kArrays = kArrays_;
    static constexpr int kMost = 3840 / (8 * (kArrays + 1) + 4);

    T* array[kArrays][kMost];
    i64 size[kMost];
    int first_block[kMost + 1];  // of each, then the number of blocks
    int count;

    bool full() const { return count == kMost; }
    int blocks() const { return first_block[count]; }
    void clear() { count = first_block[0] = 0; }
    void add(i64 elements, T* const (&arrays)[kArrays]) {
        if (elements == 0) return;
        for (int a = 0; a < kArrays; ++a) array[a][count] = arrays[a];
        size[count] = elements;
        first_block[count + 1] = first_block[count] + int((elements + kChunk<T> - 1) / kChunk<T>);
        ++count;
    }
};

// A block's part of a list: elements [begin, end) of a tensor; `packs`: its arrays begin where 16
// bytes do.
template <class T, int kArrays>
struct Chunk {
    T* array[kArrays];
    i64 begin, end;
    bool packs;

    FUSEDNN_DEVICE explicit Chunk(const Tensors<T, kArrays>& tensors) {
        const int block = int(blockIdx.x);
        int low = 0, above = tensors.count;  // the last tensor that begins at or before this block
        while (above - low > 1) {
            const int middle = (low + above) / 2;
            (tensors.first_block[middle] <= block ? low : above) = middle;
        }
        begin = (block - tensors.first_block[low]) * kChunk<T>;
        end = begin + kChunk<T> < tensors.size[low] ? begin + kChunk<T> : tensors.size[low];
        std::uintptr_t addresses = 0;
#pragma unroll
        for (int a = 0; a < kArrays; ++a) {
            array[a] = tensors.array[a][low];
            addresses |= reinterpret_cast<std::uintptr_t>(array[a]);
        }
        packs = addresses % 16 == 0;
    }
    // body(i, constant) for the elements that are this thread's: `constant` of them from i on.
    template <class Body>
    FUSEDNN_DEVICE void each(const Body& body) const {
        using Vector = std::integral_constant<int, Pack<T>::kSize>;
        using Single = std::integral_constant<int, 1>;
        i64 rest = begin;
        if (packs) {
            constexpr int wide = Pack<T>::kSize;
            rest += (end - begin) / wide * wide;
            // Of every array a vector is in flight, in as many threads as fit: enough for memory.
#pragma unroll 1
            for (i64 i = begin + i64(threadIdx.x) * wide; i < rest; i += kElementThreads * wide) {
                body(i, Vector{});
            }
        }
#pragma unroll 1
        for (i64 i = rest + threadIdx.x; i < end; i += kElementThreads) body(i, Single{});
    }
};

}  // namespace fusednn::cuda
