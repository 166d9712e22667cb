// Dropout with a given mask.
#include "cpu/kernels.h"
#include "cpu/recurrent/rows.h"

namespace fusednn {
namespace FUSEDNN_ISA {

// x, y (outer, repeat, inner); mask (outer, inner). Tasks are some rows of some columns.
template <class T>
void apply_mask(i64 outer, i64 repeat, i64 inner, const T* x, const T* mask, T* y) {
    constexpr i64 chunk = 16384;
    const i64 rows = outer * repeat, group = max_of(chunk / max_of(inner, i64(1)), i64(1));
    const i64 cuts = ceil_div(inner, chunk), tasks = ceil_div(rows, group) * cuts;
    parallel(tasks, parallel_slots(tasks, rows * inner * 3 * i64(sizeof(T))), [&](i64 task, int) {
        const i64 first = task / cuts * group, last = min_of(first + group, rows);
        const i64 begin = task % cuts * chunk, count = min_of(chunk, inner - begin);
        for (i64 row = first; row < last; ++row) {
            const i64 at = row * inner + begin;
            masked(count, x + at, mask + row / repeat * inner + begin, y + at);
        }
    });
}

#define FUSEDNN_APPLY_MASK(T) template void apply_mask<T>(i64, i64, i64, const T*, const T*, T*);
FUSEDNN_INSTANTIATE(FUSEDNN_APPLY_MASK)

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
