// Attention's weights as an array, for those who want to look at them.
#include "cpu/attention/scores.h"
#include "cpu/kernels.h"

namespace fusednn {
namespace FUSEDNN_ISA {

namespace {

// The rows [row0, row1) of one head; weights is row 0's, that of key 0.
template <class T>
void weights_of_rows(const AttentionParams<T>& p, const Sequence& s, i64 head, const T* packed,
                     const Rows<T>& queries, i64 row0, i64 row1, const T* maximum, const T* inverse,
                     T* scratch, T* weights) {
    constexpr i64 stride = kKeyBlock;
    const Scores<T> scores(p, s, head);
    for (i64 key0 = 0; key0 < s.keys; key0 += kKeyBlock) {
        const KeyRange keys{key0, min_of(key0 + kKeyBlock, s.keys)};
        scores.multiply(queries[row0], queries.stride, int(row1 - row0), keys,
                        packed + key0 * p.dim, key0, scratch, stride);
        const ScoreSpan span = scores.span(row0, row1 - row0, keys, key0);
        if (span.keys.empty()) continue;
        for (i64 i = row0; i < row1; ++i) {
            T* row = scratch + (i - row0) * stride;
            scores.mask(i, span, row, nullptr);
            known_weights(is_natural(p), span, row, maximum[i], inverse[i]);
            __builtin_memcpy(weights + i * p.keys + span.keys.begin, row + span.keys.begin - key0,
                             std::size_t(span.keys.end - span.keys.begin) * sizeof(T));
        }
    }
}

}  // namespace

template <class T>
void attention_weights(const AttentionParams<T>& p, const T* stats, T* weights) {
    const i64 rows = p.batch * p.heads * p.queries, tasks = p.batch * p.sequences * p.heads;
    if (rows * p.keys == 0) return;
    const int slots = parallel_slots(tasks, rows * p.keys * (2 * p.dim + 16));
    const i64 packed_elements = packed_size<T>(p.keys, p.dim);
    const i64 query_elements = dense_size<T>(p.queries, p.dim);
    Workspace<T> work(packed_elements + query_elements + kTileRows * kKeyBlock, slots);
    fill_zero(weights, 0, rows * p.keys);
    parallel(tasks, slots, [&](i64 task, int slot) {
        FlushDenormals flush;
        const Sequence s = get_sequence(p, task / p.heads);
        const i64 head = task % p.heads, kv_head = head / (p.heads / p.kv_heads);
        T* packed = work.slot(slot);
        with_stored(p, [&](const auto& keys, const auto&) {
            pack_transposed(rows_of(keys, s.batch, kv_head, s.key0), s.keys, p.dim, key_factor(p),
                            packed);
        });
        const Rows<T> queries = dense_rows(rows_of(p.query, s.batch, head, s.query0), s.queries,
                                           p.dim, packed + packed_elements);
        const i64 first = (s.batch * p.heads + head) * p.queries + s.query0;
        const RowPanels panels(s.queries);
        for (i64 panel = 0; panel < panels.count; ++panel) {
            const i64 row = panels.start(panel);
            weights_of_rows(p, s, head, packed, queries, row, row + panels.height(panel),
                            stats + first, stats + rows + first,
                            packed + packed_elements + query_elements,
                            weights + first * p.keys + s.key0);
        }
    });
}

#define FUSEDNN_WEIGHTS(T) \
    template void attention_weights<T>(const AttentionParams<T>&, const T*, T*);
FUSEDNN_INSTANTIATE(FUSEDNN_WEIGHTS)

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
