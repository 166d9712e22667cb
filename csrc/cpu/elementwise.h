// Loops over flat arrays, shared by activations and optimisers.
#pragma once
#include "cpu/parallel.h"

namespace fusednn {
namespace FUSEDNN_ISA {

// Elements of a task: 64 KB of float, which several arrays of still fit into L2.
constexpr i64 kElementTask = 16384;

// body(i, load_at, store_at) for every vector of `size` elements: i is the first element,
// load_at(p) and store_at(p, v) move whole vectors, or at the end as many lanes as there are.
// `arrays` is how many arrays the body touches (for the cost).
template <class T, class Body>
FUSEDNN_INLINE void map_elements(i64 size, i64 arrays, const Body& body) {
    constexpr i64 lanes = kLanes<T>;
    const i64 tasks = ceil_div(size, kElementTask);
    parallel(tasks, parallel_slots(tasks, size * arrays * i64(sizeof(T))), [&](i64 task, int) {
        const i64 end = min_of((task + 1) * kElementTask, size);
        i64 i = task * kElementTask;
        for (; i + lanes <= end; i += lanes) {
            body(i, [](const T* p) { return load(p); }, [](T* p, Vec<T> v) { store(p, v); });
        }
        if (i < end) {
            const i64 left = end - i;
            body(
                i, [left](const T* p) { return load_partial(p, left); },
                [left](T* p, Vec<T> v) { store_partial(p, v, left); });
        }
    });
}

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
