// Attention's forward for few queries: see few.h. Its passes are those of forward.cpp, with keys
// and values in place of packed ones.
#include "cpu/attention/dropout.h"
#include "cpu/attention/few.h"
#include "cpu/kernels.h"

namespace fusednn {
namespace FUSEDNN_ISA {

namespace {

// The queries of one head, and what is known of them so far.
template <class T>
struct FewState {
    T *queries, *sums_of_values;  // kFewRows rows each
    i64 query_stride, value_stride;
    T maximum[kFewRows];
    Vec<T> sums[kFewRows];
};

template <class T>
class FewForward {
  public:
    FewForward(const AttentionParams<T>& p, const Sequence& s, i64 head, const HeadArray<T>& output,
               T* stats, FewState<T>& state, T* scores, T* keep)
        : p_(p),
          s_(s),
          head_(head),
          scores_(p, s, head),
          state_(state),
          buffer_(scores),
          keep_(keep) {
        output_ = output.data + s.batch * output.batch + head * output.head + s.query0 * output.row;
        output_stride_ = output.row;
        const i64 row = (s.batch * p.heads + head) * p.queries + s.query0;
        maximum_out_ = stats ? stats + row : nullptr;
        inverse_out_ = stats ? stats + p.batch * p.heads * p.queries + row : nullptr;
    }

    // E: what keys and values are stored in, which decides the order of columns.
    template <class E>
    void start() {
        const Rows<T> queries = rows_of(p_.query, s_.batch, head_, s_.query0);
        for (i64 i = 0; i < s_.queries; ++i) {
            T* to = state_.queries + i * state_.query_stride;
            fill_zero(to, 0, state_.query_stride);
            for (i64 at = 0; at < p_.dim; ++at) to[Columns<T, E>::place(at)] = queries[i][at];
            fill_zero(state_.sums_of_values + i * state_.value_stride, 0, state_.value_stride);
            state_.maximum[i] = T(-__builtin_inf());
            state_.sums[i] = Vec<T>{};
        }
    }

    // keys: a block, of which some row sees some. Row 0 of k and v is that of key0.
    template <class E>
    void step(i64 key0, KeyRange keys, const Rows<E>& k, const Rows<E>& v, bool careful) {
        const i64 rows = s_.queries;
        const KeyRange seen = intersect(s_.range(0, rows), keys);
        if (seen.empty()) return;
        const i64 begin = seen.begin - key0, end = seen.end - key0;
        const i64 first = begin / kLanes<T> * kLanes<T>;
        with_rows(rows, [&](auto count) {
            dot_rows<decltype(count)::value>(p_.dim, state_.queries, state_.query_stride, k, first,
                                             end, key_factor(p_), buffer_, kFewStride);
        });
        const ScoreSpan span = scores_.span(0, rows, keys, key0);
        for (i64 i = 0; i < rows; ++i) weights(i, span);
        with_rows(rows, [&](auto count) {
            add_weighted<decltype(count)::value>(p_.value_dim, buffer_, kFewStride, v, begin, end,
                                                 careful, state_.sums_of_values,
                                                 state_.value_stride);
        });
    }

    // Whether all results are numbers.
    template <class E>
    bool finish() {
        bool finite = true;
        for (i64 i = 0; i < s_.queries; ++i) {
            const T sum = sum_lanes<T>(state_.sums[i]);
            const T inverse = sum == T(0) ? T(0) : T(1) / sum;
            const T* values = state_.sums_of_values + i * state_.value_stride;
            T* out = output_ + i * output_stride_;
            T zero = 0;
            for (i64 at = 0; at < p_.value_dim; ++at) {
                out[at] = values[Columns<T, E>::place(at)] * inverse;
                zero += out[at] * T(0);
            }
            finite = finite && zero == zero;
            if (!maximum_out_) continue;
            maximum_out_[i] = finite_maximum(state_.maximum[i]);
            inverse_out_[i] = inverse;
        }
        return finite;
    }

  private:
    void weights(i64 i, const ScoreSpan& span) {
        T* row = buffer_ + i * kFewStride;
        scores_.mask(i, span, row, nullptr);
        const bool natural = is_natural(p_);
        Vec<T> tops[kLanes<T>];
        tops[0] = row_maxima(span, row);
        for (int lane = 1; lane < kLanes<T>; ++lane) tops[lane] = tops[0];
        Vec<T> maximum = broadcast(state_.maximum[i]);
        const Vec<T> decay = update_maxima<T>(natural, tops, kLanes<T>, maximum);
        state_.maximum[i] = maximum[0];
        const Vec<T> sum = natural ? exponentials<true, true>(span, row, maximum[0], T(1))
                                   : exponentials<false, true>(span, row, maximum[0], T(1));
        state_.sums[i] = multiply_add(state_.sums[i], decay, sum);
        T* values = state_.sums_of_values + i * state_.value_stride;
        for (i64 at = 0; at < state_.value_stride; at += kLanes<T>) {
            store(values + at, load(values + at) * decay);
        }
        if (p_.dropout > 0) {
            dropout_factors(p_, s_.number * p_.heads + head_, i, span.key0, span.keys, keep_);
            for (i64 at = span.first<T>(); at < span.last<T>(); at += kLanes<T>) {
                store(row + at, load(row + at) * load(keep_ + at));
            }
        }
    }

    const AttentionParams<T>& p_;
    const Sequence& s_;
    const i64 head_;
    const Scores<T> scores_;
    FewState<T>& state_;
    T *buffer_, *keep_;
    T* output_;
    i64 output_stride_;
    T *maximum_out_, *inverse_out_;
};

// The heads that share keys: each_head calls its argument with the FewForward of each.
template <class T, class E, class EachHead>
void forward_group(const AttentionParams<T>& p, const Sequence& s, i64 kv_head,
                   const HeadArray<const E>& keys, const HeadArray<const E>& values,
                   const EachHead& each_head) {
    const KeyRange all = s.range(0, s.queries);
    const auto pass = [&](bool careful) {
        each_head([](FewForward<T> head) { head.template start<E>(); });
        for (i64 key0 = all.begin / kFewKeys * kFewKeys; key0 < all.end; key0 += kFewKeys) {
            const KeyRange block = intersect(all, {key0, key0 + kFewKeys});
            const Rows<E> k = rows_of(keys, s.batch, kv_head, s.key0 + key0);
            const Rows<E> v = rows_of(values, s.batch, kv_head, s.key0 + key0);
            each_head([&](FewForward<T> head) { head.step(key0, block, k, v, careful); });
        }
        bool finite = true;
        each_head([&](FewForward<T> head) { finite = head.template finish<E>() && finite; });
        return finite;
    };
    // Only what is no number takes care, and is worth it where keys are hidden.
    if (!pass(false) && is_masked(p)) pass(true);
}

}  // namespace

template <class T>
void few_forward(const AttentionParams<T>& p, const HeadArray<T>& output, T* stats) {
    const i64 tasks = p.batch * p.sequences * p.kv_heads, group = p.heads / p.kv_heads;
    const i64 span = kLanes<T> * (p.half_key.data ? 2 : 1);
    const i64 query_stride = round_up(p.dim, span), value_stride = round_up(p.value_dim, span);
    const i64 per_head = kFewRows * (query_stride + value_stride);
    const i64 cost = 2 * p.batch * p.heads * p.queries * p.keys * (p.dim + p.value_dim + 8);
    const int slots = parallel_slots(tasks, cost);
    Workspace<T> scratch((kFewRows + 1) * kFewStride + group * per_head, slots);
    Workspace<FewState<T>> states(group, slots);
    parallel(tasks, slots, [&](i64 task, int slot) {
        FlushDenormals flush;
        const Sequence s = get_sequence(p, task / p.kv_heads);
        if (s.queries == 0) return;
        const i64 kv_head = task % p.kv_heads;
        T* const scores = scratch.slot(slot);
        T* const keep = scores + kFewRows * kFewStride;
        const auto each_head = [&](const auto& body) {
            for (i64 h = 0; h < group; ++h) {
                FewState<T>& state = states.slot(slot)[h];
                state.queries = keep + kFewStride + h * per_head;
                state.query_stride = query_stride;
                state.sums_of_values = state.queries + kFewRows * query_stride;
                state.value_stride = value_stride;
                body(FewForward<T>(p, s, kv_head * group + h, output, stats, state, scores, keep));
            }
        };
        with_stored(p, [&](const auto& keys, const auto& values) {
            forward_group(p, s, kv_head, keys, values, each_head);
        });
    });
}

#define FUSEDNN_FEW(T) \
    template void few_forward<T>(const AttentionParams<T>&, const HeadArray<T>&, T*);
FUSEDNN_INSTANTIATE(FUSEDNN_FEW)

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
