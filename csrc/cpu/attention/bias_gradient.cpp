// The gradient of an additive mask: dS, added up over what the mask was broadcast along.
//
// It is computed apart from the other gradients, from scores computed once more: a task owns rows
// of the mask and goes through all heads that read them, in order, so that no two tasks add to one
// place and nothing of the size of all scores is kept.
#include "cpu/attention/gradient.h"
#include "cpu/kernels.h"

namespace fusednn {
namespace FUSEDNN_ISA {

namespace {

// One head's share in the rows [row0, row1) of the mask; bias is its place of row 0 and key 0.
template <class T>
class BiasRows {
  public:
    BiasRows(const GradientCall<T>& call, const Sequence& s, i64 head,
             const GradientScratch<T>& scratch)
        : call_(call),
          s_(s),
          head_(head),
          scratch_(scratch),
          scores_(call.p, s, head),
          inputs_(call, s, head, scratch) {
        const i64* stride = call.g.bias_stride;
        bias_ = call.g.bias + s.batch * stride[0] + head * stride[1] + s.query0 * stride[2] +
                s.key0 * stride[3];
    }

    void run(i64 row0, i64 row1) {
        const AttentionParams<T>& p = call_.p;
        const i64 kv_head = head_ / (p.heads / p.kv_heads);
        const KeyRange all = s_.range(row0, row1);
        const RowPanels panels(row1 - row0);
        for (i64 block = all.begin / kGradKeys; block * kGradKeys < all.end; ++block) {
            const KeyBlock<T> keys(p, s_, kv_head, block, scratch_);
            for (i64 panel = 0; panel < panels.count; ++panel) {
                const i64 row = row0 + panels.start(panel);
                add_panel(keys, row, panels.height(panel));
            }
        }
    }

  private:
    void add_panel(const KeyBlock<T>& keys, i64 row, int rows) {
        const KeyRange seen = intersect(s_.range(row, row + rows), keys.range);
        if (seen.empty()) return;
        const i64 key0 = keys.range.begin;
        scores_.multiply(inputs_.queries[row], inputs_.queries.stride, rows, seen, keys.packed_keys,
                         key0, scratch_.weights, kGradStride);
        multiply_values(call_.p, inputs_, row, rows, seen, keys, scratch_.slopes);
        const ScoreSpan span = scores_.span(row, rows, seen, key0);
        for (i64 i = row; i < row + rows; ++i) {
            T* ds = scratch_.slopes + (i - row) * kGradStride;
            const RowRest<T> rest = row_gradients(
                call_.p, scores_, inputs_, s_.number * call_.p.heads + head_, i, span,
                scratch_.weights + (i - row) * kGradStride, ds, T(1), false, scratch_);
            if (rest.peak.key >= 0) {
                ds[rest.peak.key - key0] = call_.peak_gradient(call_.first_row(s_, head_) + i);
            }
            add_row(i, seen, ds - key0);
        }
    }

    void add_row(i64 i, KeyRange range, const T* ds) {
        T* out = bias_ + i * call_.g.bias_stride[2];
        if (call_.g.bias_stride[3]) {
            for (i64 j = range.begin; j < range.end; ++j) out[j] += ds[j];
        } else {
            for (i64 j = range.begin; j < range.end; ++j) *out += ds[j];
        }
    }

    const GradientCall<T>& call_;
    const Sequence& s_;
    const i64 head_;
    const GradientScratch<T>& scratch_;
    const Scores<T> scores_;
    const HeadInputs<T> inputs_;
    T* bias_;
};

}  // namespace

template <class T>
void bias_gradient(const GradientCall<T>& call) {
    const AttentionParams<T>& p = call.p;
    const i64* stride = call.g.bias_stride;
    // The mask's own sizes: 1 along what it is broadcast.
    const i64 batches = stride[0] ? p.batch : 1, heads = stride[1] ? p.heads : 1;
    const i64 blocks = stride[2] ? ceil_div(p.queries, kGradRows) : 1;
    fill_zero(call.g.bias, 0,
              batches * heads * (stride[2] ? p.queries : 1) * (stride[3] ? p.keys : 1));
    const i64 tasks = batches * heads * blocks;
    const int slots = parallel_slots(tasks, call.rows() * p.keys * 2 * (p.dim + p.value_dim + 16));
    Workspace<T> scratch(GradientScratch<T>::size(p), slots);
    parallel(tasks, slots, [&](i64 task, int slot) {
        FlushDenormals flush;
        const GradientScratch<T> mine(p, scratch.slot(slot));
        const i64 owner = task / blocks, own_batch = owner / heads, own_head = owner % heads;
        for (i64 number = 0; number < p.batch * p.sequences; ++number) {
            const Sequence s = get_sequence(p, number);
            if (stride[0] && s.batch != own_batch) continue;
            // Rows of the mask are cut where the axis is, whatever sequences it holds.
            const i64 first = stride[2] ? task % blocks * kGradRows - s.query0 : 0;
            const i64 row0 = max_of(first, i64(0));
            const i64 row1 = stride[2] ? min_of(first + kGradRows, s.queries) : s.queries;
            if (row0 >= row1) continue;
            for (i64 head = stride[1] ? own_head : 0; head < (stride[1] ? own_head + 1 : p.heads);
                 ++head) {
                BiasRows<T> rows(call, s, head, mine);
                for (i64 row = row0; row < row1; row += kGradRows) {
                    rows.run(row, min_of(row + kGradRows, row1));
                }
            }
        }
    });
}

#define FUSEDNN_BIAS(T) template void bias_gradient<T>(const GradientCall<T>&);
FUSEDNN_INSTANTIATE(FUSEDNN_BIAS)

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
