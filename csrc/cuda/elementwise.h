// Loops over flat arrays, shared by activations and optimisers.
#pragma once
#include "cuda/arrays.h"
#include "cuda/gpu.h"

namespace fusednn::cuda {

// Threads of a block, and what each moves at once: 16 bytes, the widest load there is.
constexpr int kElementThreads = 256;
// Blocks that a multiprocessor must have room for: 64 registers a thread. Left to itself the
// compiler aims at eight, and spills where 32 registers do not do.
constexpr int kElementBlocks = 4;

template <class T>
struct alignas(16) Pack {
    static constexpr int kSize = 16 / int(sizeof(T));
    T of[kSize];
};

// a / b for positions, a >= 0 and b > 0. Division of 32 bits is several times as fast. Others go 20
// bits at a time by way of float, in a tenth of the machine code of a division of 64 bits: what a
// digit leaves over, or takes too much, is the next one's.
FUSEDNN_DEVICE i64 quotient(i64 a, i64 b) {
    if (((a | b) >> 32) == 0) return std::uint32_t(a) / std::uint32_t(b);
    const float inverse = __fdividef(1.0f, float(b));
    i64 result = 0, rest = a;
#pragma unroll 1
    while (rest < 0 || rest >= b) {
        i64 digit = i64(float(rest) * inverse);
        if (digit == 0) digit = rest < 0 ? -1 : 1;
        result += digit;
        rest -= digit * b;
    }
    return result;
}

// Loops that step on by the grid are not unrolled: hardly a thread steps on at all, since there are
// blocks for every vector.

// The vectors of the arrays, then the elements that are left; all of them, where the arrays begin
// between the vectors.
template <class T, int kInputs, class Fn>
__global__ void __launch_bounds__(kElementThreads, kElementBlocks)
    map_packs(i64 size, bool packs, const T* a, const T* b, T* out, Fn fn) {
    constexpr int n = Pack<T>::kSize;
    const i64 whole = packs ? size / n : 0, step = i64(gridDim.x) * blockDim.x;
    const i64 thread = i64(blockIdx.x) * blockDim.x + threadIdx.x;
#pragma unroll 1
    for (i64 i = thread; i < whole; i += step) {
        const Pack<T> va = reinterpret_cast<const Pack<T>*>(a)[i];
        Pack<T> result;
        if constexpr (kInputs == 2) {
            const Pack<T> vb = reinterpret_cast<const Pack<T>*>(b)[i];
            for (int k = 0; k < n; ++k) result.of[k] = fn(va.of[k], vb.of[k]);
        } else {
            for (int k = 0; k < n; ++k) result.of[k] = fn(va.of[k]);
        }
        reinterpret_cast<Pack<T>*>(out)[i] = result;
    }
#pragma unroll 1
    for (i64 i = whole * n + thread; i < size; i += step) {
        if constexpr (kInputs == 2) {
            out[i] = fn(a[i], b[i]);
        } else {
            out[i] = fn(a[i]);
        }
    }
}

// 16-bit floats, computed in float: eight at once, or, where the arrays begin between the vectors,
// one by one.
template <int kInputs, class Fn>
__global__ void __launch_bounds__(kElementThreads, kElementBlocks)
    map_halves(i64 size, bool packs, HalfIn a, HalfIn b, HalfOut out, Fn fn) {
    constexpr int n = Pack<HalfBits>::kSize;
    const i64 whole = packs ? size / n : 0, step = i64(gridDim.x) * blockDim.x;
    const i64 thread = i64(blockIdx.x) * blockDim.x + threadIdx.x;
#pragma unroll 1
    for (i64 i = thread; i < whole; i += step) {
        auto value = load_wide<n>(a + i * n);
        if constexpr (kInputs == 2) {
            const auto other = load_wide<n>(b + i * n);
            for (int k = 0; k < n; ++k) value.of[k] = fn(value.of[k], other.of[k]);
        } else {
            for (int k = 0; k < n; ++k) value.of[k] = fn(value.of[k]);
        }
        store_wide<n>(out + i * n, value);
    }
#pragma unroll 1
    for (i64 i = whole * n + thread; i < size; i += step) {
        if constexpr (kInputs == 2) {
            out[i] = fn(a[i], b[i]);
        } else {
            out[i] = fn(a[i]);
        }
    }
}

namespace detail {
inline bool whole_packs(const void* pointer) {
    return reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0;
}

template <int kInputs, class T, class Fn>
void map(const char* name, i64 size, const T* a, const T* b, T* out, Fn fn) {
    const bool packs = whole_packs(a) && whole_packs(b) && whole_packs(out);
    const i64 each = packs ? kElementThreads * Pack<T>::kSize : kElementThreads;
    const LaunchShape shape{blocks_for(size, each), kElementThreads};
    if constexpr (sizeof(T) == 2) {
        launch(name, shape, map_halves<kInputs, Fn>, size, packs, reading(a), reading(b),
               writing(out), fn);
    } else {
        launch(name, shape, map_packs<T, kInputs, Fn>, size, packs, a, b, out, fn);
    }
}
}  // namespace detail

// out[i] = fn(a[i]), or fn(a[i], b[i]); out may be an input as well. fn: a struct with a
// FUSEDNN_DEVICE operator() const (a lambda would need a compiler flag), of Accumulate<T>.
template <class T, class Fn>
void map_elements(const char* name, i64 size, const T* a, T* out, Fn fn) {
    detail::map<1>(name, size, a, static_cast<const T*>(nullptr), out, fn);
}
template <class T, class Fn>
void map_elements(const char* name, i64 size, const T* a, const T* b, T* out, Fn fn) {
    detail::map<2>(name, size, a, b, out, fn);
}

}  // namespace fusednn::cuda
