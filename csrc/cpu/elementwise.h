// Loops over flat arrays, shared by activations and optimisers.
#pragma once
#include "cpu/parallel.h"

namespace fusednn {
namespace FUSEDNN_ISA {

// Elements of a task: 64 KB of float, which several arrays of still fit into L2.
constexpr i64 kElementTask = 16384;

// Vectors that are read before the first of them is written. Loads that miss L1 in a row overlap, a
// store between them makes them wait: reading four at once brought ReLU from 77 to 95 GB/s in L3
// (memcpy: 100), where unrolling alone brought nothing. Optimisers touch several arrays for each
// vector anyway, and fewer results at a time stay in registers.
constexpr int kBurst = 4;

// What one vector of elements gives: a vector for each output array.
template <class T, int kOutputs>
struct Results {
    Vec<T> of[kOutputs];
};

// out[n][i ...] = fn(i, load_at).of[n] for every vector of `size` elements: load_at(p) loads a
// vector, or at the end as many lanes as there are. An output may be an input as well. `arrays` is
// how many arrays are read and written (for the cost).
template <int kAtOnce, class T, int kOutputs, class Fn>
FUSEDNN_INLINE void map_elements(i64 size, i64 arrays, T* const (&out)[kOutputs], const Fn& fn) {
    constexpr i64 lanes = kLanes<T>;
    const i64 tasks = ceil_div(size, kElementTask);
    parallel(tasks, parallel_slots(tasks, size * arrays * i64(sizeof(T))), [&](i64 task, int) {
        const i64 end = min_of((task + 1) * kElementTask, size);
        // Copies: behind references, a store might change them as far as the compiler knows.
        const Fn f = fn;
        T* to[kOutputs];
        for (int n = 0; n < kOutputs; ++n) to[n] = out[n];
        const auto whole = [](const T* p) { return load(p); };
        i64 i = task * kElementTask;
        for (; i + kAtOnce * lanes <= end; i += kAtOnce * lanes) {
            Results<T, kOutputs> results[kAtOnce];
#pragma GCC unroll 4
            for (int u = 0; u < kAtOnce; ++u) results[u] = f(i + u * lanes, whole);
#pragma GCC unroll 4
            for (int u = 0; u < kAtOnce; ++u) {
#pragma GCC unroll 4
                for (int n = 0; n < kOutputs; ++n) store(to[n] + i + u * lanes, results[u].of[n]);
            }
        }
        for (; i + lanes <= end; i += lanes) {
            const auto result = f(i, whole);
            for (int n = 0; n < kOutputs; ++n) store(to[n] + i, result.of[n]);
        }
        if (i < end) {
            const i64 left = end - i;
            const auto result = f(i, [left](const T* p) { return load_partial(p, left); });
            for (int n = 0; n < kOutputs; ++n) store_partial(to[n] + i, result.of[n], left);
        }
    });
}

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
