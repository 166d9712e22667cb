// Attention's backward for few queries: see few.h. Its passes are those of backward.cpp; keys and
// values are read twice at most (scores and dP, then dQ), their gradients written once.
#include "cpu/attention/few.h"
#include "cpu/attention/gradient.h"
#include "cpu/kernels.h"

namespace fusednn {
namespace FUSEDNN_ISA {

namespace {

// A block of keys against the rows of one head.
template <class T>
class FewBackward {
  public:
    FewBackward(const GradientCall<T>& call, const Sequence& s, i64 head,
                const GradientScratch<T>& scratch)
        : call_(call),
          p_(call.p),
          s_(s),
          head_(head),
          scratch_(scratch),
          scores_(call.p, s, head),
          inputs_(call, s, head, scratch),
          query_grad_(call.query_grad(s, head, 0)) {
        const i64 kv_head = head / (p_.heads / p_.kv_heads);
        keys_ = rows_of(p_.key, s.batch, kv_head, s.key0);
        values_ = rows_of(p_.value, s.batch, kv_head, s.key0);
        key_grad_ = head_rows(call.g.key, s.batch, kv_head, s.key0);
        value_grad_ = head_rows(call.g.value, s.batch, kv_head, s.key0);
    }

    bool inputs_finite() const { return !inputs_.careful; }

    // `first`: nobody has written these keys' gradients yet.
    template <int R>
    void step(i64 key0, bool first, bool careful) {
        const KeyRange block{key0, min_of(key0 + kGradKeys, s_.keys)};
        const KeyRange seen = intersect(s_.range(0, s_.queries), block);
        const i64 count = block.end - key0;
        T *const weights = scratch_.weights, *const slopes = scratch_.slopes;
        for (i64 r = 0; r < R; ++r) {
            fill_zero(weights + r * kGradStride, 0, kGradStride);
            fill_zero(slopes + r * kGradStride, 0, kGradStride);
        }
        const Rows<T> keys{keys_[key0], keys_.stride}, values{values_[key0], values_.stride};
        if (!seen.empty()) {
            const i64 begin = seen.begin - key0, end = seen.end - key0;
            const i64 aligned = begin / kLanes<T> * kLanes<T>;
            dot_rows<R>(p_.dim, inputs_.queries.data, inputs_.queries.stride, keys, aligned, end,
                        key_factor(p_), weights, kGradStride);
            if (inputs_.weight_grads.data) {
                copy_weight_grads(inputs_, 0, R, seen, key0, slopes);
            } else {
                dot_rows<R>(p_.value_dim, inputs_.grads.data, inputs_.grads.stride, values, aligned,
                            end, T(1), slopes, kGradStride);
            }
            const ScoreSpan span = scores_.span(0, s_.queries, block, key0);
            for (i64 i = 0; i < R; ++i) {
                const RowRest<T> rest =
                    row_gradients(p_, scores_, inputs_, s_.number * p_.heads + head_, i, span,
                                  weights + i * kGradStride, slopes + i * kGradStride, T(p_.scale),
                                  true, scratch_);
                const i64 row = call_.first_row(s_, head_) + i;
                if (rest.peak.key >= 0) call_.peaks[row] = rest.peak;
                call_.rest[row] += double(rest.sum);
            }
            add_weighted<R>(p_.dim, slopes, kGradStride, keys, begin, end, careful,
                            query_grad_.data, query_grad_.row);
        }
        add_outer<R>(p_.dim, slopes, kGradStride, inputs_.queries, count, !first, careful,
                     key_grad_[key0], key_grad_.row);
        add_outer<R>(p_.value_dim, weights, kGradStride, inputs_.grads, count, !first, careful,
                     value_grad_[key0], value_grad_.row);
    }

    void start() {
        for (i64 i = 0; i < s_.queries; ++i) {
            fill_zero(query_grad_[i], 0, p_.dim);
            call_.rest[call_.first_row(s_, head_) + i] = 0;
        }
    }

    bool query_grads_finite() const {
        T zero = 0;
        for (i64 i = 0; i < s_.queries; ++i) {
            for (i64 at = 0; at < p_.dim; ++at) zero += query_grad_[i][at] * T(0);
        }
        return zero == zero;
    }

  private:
    const GradientCall<T>& call_;
    const AttentionParams<T>& p_;
    const Sequence& s_;
    const i64 head_;
    const GradientScratch<T>& scratch_;
    const Scores<T> scores_;
    const HeadInputs<T> inputs_;
    const HeadRows<T> query_grad_;
    Rows<T> keys_{}, values_{};
    HeadRows<T> key_grad_{}, value_grad_{};
};

}  // namespace

template <class T>
void few_backward(const GradientCall<T>& call, const Sequence& s, i64 kv_head,
                  const GradientScratch<T>& scratch) {
    const i64 group = call.p.heads / call.p.kv_heads;
    const auto pass = [&](bool careful) {
        bool finite = true;
        for (i64 head = kv_head * group; head < (kv_head + 1) * group; ++head) {
            FewBackward<T> backward(call, s, head, scratch);
            backward.start();
            with_rows(s.queries, [&](auto rows) {
                for (i64 key0 = 0; key0 < s.keys; key0 += kGradKeys) {
                    backward.template step<decltype(rows)::value>(key0, head == kv_head * group,
                                                                  careful);
                }
            });
            finite = finite && backward.inputs_finite() && backward.query_grads_finite();
        }
        return finite;
    };
    if (s.queries == 0) {
        const HeadRows<T> keys = head_rows(call.g.key, s.batch, kv_head, s.key0);
        const HeadRows<T> values = head_rows(call.g.value, s.batch, kv_head, s.key0);
        for (i64 key = 0; key < s.keys; ++key) {
            fill_zero(keys[key], 0, call.p.dim);
            fill_zero(values[key], 0, call.p.value_dim);
        }
        return;
    }
    // Only what is no number takes care, and is worth it where keys are hidden.
    if (!pass(false) && is_masked(call.p)) pass(true);
}

#define FUSEDNN_FEW(T)                                                          \
    template void few_backward<T>(const GradientCall<T>&, const Sequence&, i64, \
                                  const GradientScratch<T>&);
FUSEDNN_INSTANTIATE(FUSEDNN_FEW)

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
