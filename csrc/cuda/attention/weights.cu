// Attention's weights as an array, for those who want to look at them: scores are computed once
// more, and the forward's stats make weights of them.
#include "cuda/attention/cache.h"
#include "cuda/attention/tiles.h"
#include "cuda/kernels.h"

namespace fusednn::cuda {

namespace {

template <class Math>
struct WeightsTiles {
    alignas(16) typename Math::Value query[Math::kRows][Math::kStride];
    alignas(16) typename Math::Value key[Math::kColumns][Math::kStride];
};

template <class T>
struct WeightsCall {
    AttentionParams<T> p;
    const Accumulate<T>* stats;
    T* weights;
    Format<T> format;
};

// The weights of a tile of queries and all keys that some of them see.
template <class Math, class T>
FUSEDNN_DEVICE void weights_of_rows(const WeightsCall<T>& call, WeightsTiles<Math>& tiles,
                                    const Sequence& s, int head, int row0) {
    using Sum = typename Math::Sum;
    const AttentionParams<T>& p = call.p;
    const int row1 = smaller_of(row0 + Math::kRows, s.queries), dim = int(p.dim);
    const Rows<const T> queries = rows_of(p.query, s.batch, head, s.query0);
    const Rows<const T> keys = rows_of(p.key, s.batch, head / heads_of_group(p), s.key0);
    const HeadScores<Math, T> scores(p, call.format, s, head);
    const i64 first = (s.batch * p.heads + head) * p.queries + s.query0;
    const Sum* maximum = call.stats + first;
    const Sum* inverse = maximum + p.batch * p.heads * p.queries;
    T* const to = call.weights + first * p.keys + s.key0;
    const int begin = s.range(row0).begin / Math::kColumns * Math::kColumns;
    const int end = s.range(row1 - 1).end;
#pragma unroll 1
    for (int key0 = begin; key0 < end; key0 += Math::kColumns) {
        typename Math::Scores x;
        clear(x);
#pragma unroll 1
        for (int depth = 0; depth < dim; depth += Math::kDim) {
            if (key0 == begin || dim > Math::kDim) {
                copy_rows<Math::kThreads, Math::kDim>(tiles.query, Math::kRows, queries, row0,
                                                      s.queries, depth, dim);
            }
            copy_rows<Math::kThreads, Math::kDim>(tiles.key, Math::kColumns, keys, key0, s.keys,
                                                  depth, dim);
            copy_async_commit();
            copy_async_wait<0>();
            __syncthreads();
            Math::multiply(call.format, x, tiles.query, tiles.key,
                           whole_steps(dim - depth, Math::kDim));
            __syncthreads();
        }
        const Place<Math, false> place{row0, key0};
        scores.adjust(x, place, false);
#pragma unroll
        for (int i = 0; i < Math::kRowsOfLane; ++i) {
            const int row = row0 + Math::row(i);
            if (row >= row1) continue;
            const Sum top = maximum[row], factor = inverse[row];
#pragma unroll 1
            for (int n = 0; n < Math::kColumnsOfLane; ++n) {
                const int key = place.key(i, n);
                const Sum weight = scores.weight(x[i][0], top, factor);
                turn(x[i], weight);
                if (key < s.keys) to[row * p.keys + key] = call.format.narrow(weight);
            }
        }
    }
}

template <class Math, class T>
__global__ void __launch_bounds__(Math::kThreads, Math::kBlocks)
    weights_kernel(const __grid_constant__ WeightsCall<T> call, const Items items, i64 count) {
    FUSEDNN_DYNAMIC_SHARED(WeightsTiles<Math>, tiles);
#pragma unroll 1
    for (i64 number = blockIdx.x; number < count; number += gridDim.x) {
        const Item item = items[number];
        int row0;
        const int part = sequence_of_tile(call.p.query_starts, int(call.p.sequences), Math::kRows,
                                          item.tile, &row0);
        const Sequence s = get_sequence(call.p, item.batch, part);
        if (row0 < s.queries) weights_of_rows<Math>(call, tiles, s, item.head, row0);
    }
}

template <class T>
void run(const AttentionParams<T>& p, const Format<T>& format, const Accumulate<T>* stats,
         T* weights) {
    const i64 rows = p.batch * p.heads * p.queries;
    clear_heads<T>({weights, 0, 0, 1}, 1, 1, rows * p.keys, 1);
    with_narrow_math<T>([&](auto math) {
        using Math = decltype(math);
        const Items items{tiles_of_rows(p.queries, p.query_starts, p.sequences, Math::kRows), 1,
                          p.batch, p.heads, true};
        launch("attention_weights",
               {blocks_for(items.count(), 1), Math::kThreads, sizeof(WeightsTiles<Math>)},
               weights_kernel<Math, T>, WeightsCall<T>{p, stats, weights, format}, items,
               items.count());
    });
}

}  // namespace

template <class T>
void attention_weights(const AttentionParams<T>& p, const Accumulate<T>* stats, T* weights) {
    with_wide_cache(p, [&](const AttentionParams<T>& same) {
        run(stored(same), StorageOf<T>::format(), stats, storage(weights));
    });
}

#define FUSEDNN_WEIGHTS(T) \
    template void attention_weights<T>(const AttentionParams<T>&, const Accumulate<T>*, T*);
FUSEDNN_INSTANTIATE(FUSEDNN_WEIGHTS)
FUSEDNN_INSTANTIATE_HALF(FUSEDNN_WEIGHTS)

}  // namespace fusednn::cuda
