// Rows of a table by number, and the gradient: table, dtable (rows, width); ids (count);
// y, dy (count, width).
//
// The gradient of a row is the sum of dy over the places that name it, in their order, so that the
// bits depend on no thread count; rows nobody names are cleared and cost nothing else. Blocks of
// kSumBlock places are summed alone: a value is then never added to a sum of very many.
#include "cpu/kernels.h"
#include "cpu/softmax.h"

namespace fusednn {
namespace FUSEDNN_ISA {

namespace {
constexpr i64 kSumBlock = 256;
}

template <class T>
void embedding_forward(i64 count, i64 width, const i64* ids, const T* table, T* y) {
    for_row_blocks(count, width / 4 + 1, [&](i64 begin, i64 end) {
        for (i64 i = begin; i < end; ++i) {
            __builtin_memcpy(y + i * width, table + ids[i] * width, std::size_t(width) * sizeof(T));
        }
    });
}

template <class T>
void embedding_backward(i64 rows, i64 width, const i64* starts, const i64* order, const T* dy,
                        const T* scale, T* dtable) {
    // A block of rows that all positions would fall into costs as much as the whole.
    const i64 cost = (rows + starts[rows]) * width;
    const i64 each = max_of(i64(16384) / max_of(width, i64(1)), i64(1));
    const i64 tasks = ceil_div(rows, each);
    parallel(tasks, parallel_slots(tasks, cost * 2), [&](i64 task, int) {
        for (i64 row = task * each; row < min_of((task + 1) * each, rows); ++row) {
            T* to = dtable + row * width;
            const i64 first = starts[row], last = starts[row + 1];
            if (first == last) {
                __builtin_memset(to, 0, std::size_t(width) * sizeof(T));
                continue;
            }
            const Vec<T> factor = broadcast(scale ? scale[row] : T(1));
            for_row_vectors<T>(width, [=](i64 k, auto load_at, auto store_at) {
                Vec<T> sum{};
                for (i64 begin = first; begin < last; begin += kSumBlock) {
                    Vec<T> part = load_at(dy + order[begin] * width + k);
                    const i64 end = min_of(begin + kSumBlock, last);
                    for (i64 i = begin + 1; i < end; ++i)
                        part += load_at(dy + order[i] * width + k);
                    sum = begin == first ? part : sum + part;
                }
                store_at(to + k, sum * factor);
            });
        }
    });
}

#define FUSEDNN_EMBEDDING(T)                                                \
    template void embedding_forward<T>(i64, i64, const i64*, const T*, T*); \
    template void embedding_backward<T>(i64, i64, const i64*, const i64*, const T*, const T*, T*);
FUSEDNN_INSTANTIATE(FUSEDNN_EMBEDDING)

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
