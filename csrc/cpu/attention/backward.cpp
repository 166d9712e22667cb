// Attention's backward (Dao et al., "FlashAttention", NeurIPS 2022, appendix B): scores are
// computed again from queries, keys and the forward's stats; nothing of queries x keys is kept.
//
// With P the weights, for a block of keys and each block of rows that sees some of them:
//   1. P from S = Q K^T and the stats
//   2. dS = P * (dP - D) with dP = dO V^T and D = sum of P dP over the row = <dO, O>
//   3. dV += P^T dO, dK += dS^T Q, dQ += dS K
//
// Where one key has nearly all of a row's weight, its dP and D are nearly equal, and their
// difference is mostly rounding error (of O, above all). But the row's dS add up to 0: such a key
// gets what the others lack, in a pass behind the others (`finish`). The sum is exact to its own
// size, so gradients of nearly one-hot rows keep their digits.
#include "cpu/attention/few.h"
#include "cpu/attention/gradient.h"
#include "cpu/kernels.h"

namespace fusednn {
namespace FUSEDNN_ISA {

namespace {

// One head of one sequence against one block of keys at a time.
template <class T>
class HeadBackward {
  public:
    HeadBackward(const GradientCall<T>& call, const Sequence& s, i64 head, i64 part,
                 const GradientScratch<T>& scratch)
        : p_(call.p),
          s_(s),
          kv_head_(head / (call.p.heads / call.p.kv_heads)),
          dropout_head_(s.number * call.p.heads + head),
          scratch_(scratch),
          scores_(call.p, s, head),
          inputs_(call, s, head, scratch),
          query_grad_(call.query_grad(s, head, part)),
          key_grad_(head_rows(call.g.key, s.batch, kv_head_, s.key0)),
          value_grad_(head_rows(call.g.value, s.batch, kv_head_, s.key0)),
          peaks_(call.peaks + call.first_row(s, head)),
          rest_(call.rest + part * call.rows() + call.first_row(s, head)) {
        for (i64 i = 0; i < s.queries; ++i) {
            fill_zero(query_grad_[i], 0, p_.dim);
            rest_[i] = 0;
        }
    }

    void run(i64 block) {
        const KeyBlock<T> keys(p_, s_, kv_head_, block, scratch_);
        // The rows that see some of the keys lie together.
        const i64 begin = max_of(keys.range.begin - s_.offset - s_.right, i64(0));
        const i64 end = min_of(keys.range.end + s_.left - s_.offset, s_.queries);
        const i64 blocks = ceil_div(end - begin, kGradRows);
        for (i64 i = 0; i < blocks; ++i) {
            rows_block(keys, begin + (end - begin) * i / blocks,
                       begin + (end - begin) * (i + 1) / blocks);
        }
    }

  private:
    void rows_block(const KeyBlock<T>& keys, i64 row0, i64 row1) {
        const RowPanels panels = row_panels(s_, row1 - row0);
        const KeyRange all = intersect(s_.range(row0, row1), keys.range);
        if (all.empty()) return;
        for (i64 panel = 0; panel < panels.count; ++panel) {
            const i64 row = row0 + panels.start(panel);
            const int rows = panels.height(panel);
            const KeyRange seen = intersect(s_.range(row, row + rows), keys.range);
            panel_gradients(keys, row - row0, row, rows, seen, all);
            if (!seen.empty()) query_gradients(keys, row - row0, row, rows, seen);
        }
        key_gradients(keys, row0, row1, all);
    }

    // Weights and dS of a panel, 0 where a row of it does not see a key of `all`.
    void panel_gradients(const KeyBlock<T>& keys, i64 place, i64 row, int rows, KeyRange seen,
                         KeyRange all) {
        const i64 key0 = keys.range.begin;
        T* weights = scratch_.weights + place * kGradStride;
        T* slopes = scratch_.slopes + place * kGradStride;
        if (!seen.empty()) {
            scores_.multiply(inputs_.queries[row], inputs_.queries.stride, rows, seen,
                             keys.packed_keys, key0, weights, kGradStride);
            multiply_values(p_, inputs_, row, rows, seen, keys, slopes);
        }
        const ScoreSpan span = scores_.span(row, rows, seen, key0);
        const i64 begin = all.begin - key0, end = round_up(all.end - key0, kLanes<T>);
        const i64 first = seen.empty() ? end : span.first<T>();
        const i64 last = seen.empty() ? end : span.last<T>();
        for (i64 i = row; i < row + rows; ++i, weights += kGradStride, slopes += kGradStride) {
            if (!seen.empty()) {
                const RowRest<T> rest = row_gradients(p_, scores_, inputs_, dropout_head_, i, span,
                                                      weights, slopes, T(p_.scale), true, scratch_);
                if (rest.peak.key >= 0) peaks_[i] = rest.peak;
                rest_[i] += double(rest.sum);
            }
            T* const both[] = {weights, slopes};
            for (T* x : both) {
                fill_zero(x, begin, first);
                fill_zero(x, last, end);
            }
        }
    }

    void add_product(bool careful, Layout layout, i64 m, i64 n, i64 k, const T* a, const T* b,
                     i64 b_stride, const HeadRows<T>& c, i64 row) const {
        ProductOutput<T> out{};
        out.c = c[row];
        out.ldc = c.row;
        out.add = out.c;
        out.ld_add = c.row;
        if (careful) {
            careful_product(layout, m, n, k, a, kGradStride, b, b_stride, out);
        } else {
            panel_product(layout, m, n, k, a, kGradStride, b, b_stride, out);
        }
    }

    void query_gradients(const KeyBlock<T>& keys, i64 place, i64 row, int rows, KeyRange seen) {
        const i64 key = seen.begin - keys.range.begin;
        add_product(keys.careful, Layout::rows, rows, p_.dim, seen.end - seen.begin,
                    scratch_.slopes + place * kGradStride + key, keys.rows[key], keys.rows.stride,
                    query_grad_, row);
    }

    void key_gradients(const KeyBlock<T>& keys, i64 row0, i64 row1, KeyRange all) {
        const RowPanels panels(all.end - all.begin);
        for (i64 panel = 0; panel < panels.count; ++panel) {
            const i64 key = all.begin + panels.start(panel);
            const int height = panels.height(panel);
            // Only the rows that see some of these keys.
            const i64 begin = max_of(row0, key - s_.offset - s_.right);
            const i64 end = min_of(row1, key + height + s_.left - s_.offset);
            if (begin >= end) continue;
            const i64 at = (begin - row0) * kGradStride + (key - keys.range.begin);
            add_product(inputs_.careful, Layout::columns, height, p_.value_dim, end - begin,
                        scratch_.weights + at, inputs_.grads[begin], inputs_.grads.stride,
                        value_grad_, key);
            add_product(inputs_.careful, Layout::columns, height, p_.dim, end - begin,
                        scratch_.slopes + at, inputs_.queries[begin], inputs_.queries.stride,
                        key_grad_, key);
        }
    }

    const AttentionParams<T>& p_;
    const Sequence& s_;
    const i64 kv_head_, dropout_head_;
    const GradientScratch<T>& scratch_;
    const Scores<T> scores_;
    const HeadInputs<T> inputs_;
    const HeadRows<T> query_grad_, key_grad_, value_grad_;
    Peak<T>* const peaks_;
    double* const rest_;
};

// All keys of one part, for all heads that share them.
template <class T>
void backward_part(const GradientCall<T>& call, const Sequence& s, i64 kv_head, i64 part,
                   const GradientScratch<T>& scratch) {
    const AttentionParams<T>& p = call.p;
    const HeadRows<T> key_grad = head_rows(call.g.key, s.batch, kv_head, s.key0);
    const HeadRows<T> value_grad = head_rows(call.g.value, s.batch, kv_head, s.key0);
    const i64 group = p.heads / p.kv_heads, blocks = ceil_div(s.keys, kGradKeys);
    for (i64 block = part; block < blocks; block += call.parts) {
        for (i64 key = block * kGradKeys; key < min_of((block + 1) * kGradKeys, s.keys); ++key) {
            fill_zero(key_grad[key], 0, p.dim);
            fill_zero(value_grad[key], 0, p.value_dim);
        }
    }
    for (i64 head = kv_head * group; head < (kv_head + 1) * group; ++head) {
        HeadBackward<T> backward(call, s, head, part, scratch);
        for (i64 block = part; block < blocks; block += call.parts) backward.run(block);
    }
}

// y += a x
template <class T>
void add_scaled(i64 size, T a, const T* x, T* y) {
    for (i64 i = 0; i < size; ++i) y[i] += a * x[i];
}

// Adds up the parts of dQ, and gives peaks what is theirs.
template <class T>
void finish(const GradientCall<T>& call, const Sequence& s, i64 kv_head) {
    const AttentionParams<T>& p = call.p;
    const i64 group = p.heads / p.kv_heads;
    const HeadRows<T> key_grad = head_rows(call.g.key, s.batch, kv_head, s.key0);
    const Rows<T> keys = rows_of(p.key, s.batch, kv_head, s.key0);
    for (i64 head = kv_head * group; head < (kv_head + 1) * group; ++head) {
        const HeadRows<T> grad = head_rows(call.g.query, s.batch, head, s.query0);
        const Rows<T> queries = rows_of(p.query, s.batch, head, s.query0);
        const i64 first_row = call.first_row(s, head);
        for (i64 i = 0; i < s.queries; ++i) {
            if (call.parts > 1) {
                fill_zero(grad[i], 0, p.dim);
                for (i64 part = 0; part < call.parts; ++part) {
                    add_scaled(p.dim, T(1), call.query_grad(s, head, part)[i], grad[i]);
                }
            }
            const Peak<T>& peak = call.peaks[first_row + i];
            if (peak.key < 0) continue;
            const T ds = call.peak_gradient(first_row + i) * T(p.scale) * peak.slope;
            add_scaled(p.dim, ds, keys[peak.key], grad[i]);
            add_scaled(p.dim, ds, queries[i], key_grad[peak.key]);
        }
    }
}

template <class T>
void clear_rows(const HeadArray<T>& array, i64 batch, i64 heads, i64 rows, i64 width) {
    for (i64 b = 0; b < batch; ++b) {
        for (i64 h = 0; h < heads; ++h) {
            const HeadRows<T> head = head_rows(array, b, h, 0);
            for (i64 row = 0; row < rows; ++row) fill_zero(head[row], 0, width);
        }
    }
}

}  // namespace

template <class T>
void attention_backward(const AttentionParams<T>& p, const AttentionGradients<T>& g) {
    if (p.query_lengths || p.key_lengths || p.query_starts) {
        clear_rows(g.query, p.batch, p.heads, p.queries, p.dim);
        clear_rows(g.key, p.batch, p.kv_heads, p.keys, p.dim);
        clear_rows(g.value, p.batch, p.kv_heads, p.keys, p.value_dim);
    }
    const i64 sequences = p.batch * p.sequences, tasks = sequences * p.kv_heads;
    if (tasks == 0) {
        if (g.bias) bias_gradient(GradientCall<T>{p, g, 1, nullptr, nullptr, nullptr});
        return;
    }
    const i64 rows = p.batch * p.heads * p.queries;
    const i64 visible = min_of(p.left, p.keys) + min_of(p.right, p.keys);
    const i64 cost = rows * min_of(visible + 1, p.keys) * 5 * (p.dim + p.value_dim + 16);
    // Cut by shape alone: how dQ adds up must not depend on the threads. Few queries go in one
    // piece.
    const bool few = few_queries(p);
    const i64 parts =
        few || tasks >= kGradTasks || cost < kMinParallelCost
            ? 1
            : max_of(min_of(ceil_div(kGradTasks, tasks), ceil_div(p.keys, kGradKeys)), i64(1));
    Workspace<T> partial(parts > 1 ? rows * parts * p.dim : 0);
    Workspace<Peak<T>> peaks(rows);
    Workspace<double> rest(rows * parts);
    for (i64 i = 0; i < rows; ++i) peaks.get()[i] = {-1, T(1)};
    const GradientCall<T> call{p, g, parts, partial.get(), peaks.get(), rest.get()};
    const int slots = parallel_slots(tasks * parts, cost);
    Workspace<T> scratch(GradientScratch<T>::size(p), slots);
    parallel(tasks * parts, slots, [&](i64 task, int slot) {
        FlushDenormals flush;
        const GradientScratch<T> mine(p, scratch.slot(slot));
        const i64 kv = task / parts;
        const Sequence s = get_sequence(p, kv / p.kv_heads);
        if (few) return few_backward(call, s, kv % p.kv_heads, mine);
        backward_part(call, s, kv % p.kv_heads, task % parts, mine);
    });
    parallel(tasks, slots, [&](i64 task, int) {
        FlushDenormals flush;
        finish(call, get_sequence(p, task / p.kv_heads), task % p.kv_heads);
    });
    if (g.bias) bias_gradient(call);
}

#define FUSEDNN_ATTENTION(T) \
    template void attention_backward<T>(const AttentionParams<T>&, const AttentionGradients<T>&);
FUSEDNN_INSTANTIATE(FUSEDNN_ATTENTION)

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
