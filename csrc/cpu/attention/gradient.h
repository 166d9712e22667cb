// What the parts of attention's backward share: blocks, scratch, and the gradient of one row.
#pragma once
#include "cpu/attention/dropout.h"
#include "cpu/attention/scores.h"

namespace fusednn {
namespace FUSEDNN_ISA {

// Weights and dS of a block, 2 x 72 KB of floats, lie in L2 beside the keys, values and gradients
// that they are multiplied with (32 KB each at 64 floats a row).
constexpr i64 kGradKeys = 128;
constexpr i64 kGradRows = 128;
// Rows of a block do not share places in L1.
constexpr i64 kGradStride = kGradKeys + 16;
// Tasks that a backward is cut into, if it has so few heads: for a handful of threads.
constexpr i64 kGradTasks = 16;

// The key that has most of a row's weight, or -1; the derivative of the softcap there.
template <class T>
struct Peak {
    i64 key;
    T slope;
};

template <class T>
struct HeadRows {
    T* data;
    i64 row;
    FUSEDNN_INLINE T* operator[](i64 index) const { return data + index * row; }
};

template <class T>
FUSEDNN_INLINE HeadRows<T> head_rows(const HeadArray<T>& array, i64 batch, i64 head, i64 row0) {
    return {array.data + batch * array.batch + head * array.head + row0 * array.row, array.row};
}

// One call of backward. Keys are dealt to `parts` tasks a head, block by block.
template <class T>
struct GradientCall {
    const AttentionParams<T>& p;
    const AttentionGradients<T>& g;
    i64 parts;
    T* partial_queries;  // (batch, heads, parts, queries, dim); unused for one part
    Peak<T>* peaks;      // (batch, heads, queries)
    double* rest;        // (parts, batch, heads, queries): sums of dS without the peak's

    FUSEDNN_INLINE i64 rows() const { return p.batch * p.heads * p.queries; }
    FUSEDNN_INLINE i64 first_row(const Sequence& s, i64 head) const {
        return (s.batch * p.heads + head) * p.queries + s.query0;
    }
    // What the peak of a row gets: all dS of a row add up to 0.
    FUSEDNN_INLINE T peak_gradient(i64 row) const {
        double sum = 0;
        for (i64 part = 0; part < parts; ++part) sum += rest[part * rows() + row];
        return T(-sum);
    }
    FUSEDNN_INLINE HeadRows<T> query_grad(const Sequence& s, i64 head, i64 part) const {
        if (parts == 1) return head_rows(g.query, s.batch, head, s.query0);
        const i64 index = (s.batch * p.heads + head) * parts + part;
        return {partial_queries + (index * p.queries + s.query0) * p.dim, p.dim};
    }
};

// The gradient of the additive mask, once peaks and rests are known: bias_gradient.cpp.
template <class T>
void bias_gradient(const GradientCall<T>& call);

template <class T>
struct GradientScratch;

// All gradients of few queries (few.h) and of a head's keys, peaks apart.
template <class T>
void few_backward(const GradientCall<T>& call, const Sequence& s, i64 kv_head,
                  const GradientScratch<T>& scratch);

// Scratch of one thread.
template <class T>
struct GradientScratch {
    T *weights, *slopes, *softcap_slopes, *keep;  // (kGradRows, kGradStride) twice; one row twice
    T *packed_keys, *packed_values, *keys;        // of one block
    T *queries, *grads, *dots;                    // of one head

    GradientScratch(const AttentionParams<T>& p, T* base) {
        T** const parts[] = {&weights,       &slopes, &softcap_slopes, &keep,  &packed_keys,
                             &packed_values, &keys,   &queries,        &grads, &dots};
        i64 at = 0;
        for (int i = 0; i < kParts; ++i) {
            *parts[i] = base + at;
            at += part_size(p, i);
        }
    }
    static i64 size(const AttentionParams<T>& p) {
        i64 sum = 0;
        for (int i = 0; i < kParts; ++i) sum += part_size(p, i);
        return sum;
    }

  private:
    static constexpr int kParts = 10;
    static i64 part_size(const AttentionParams<T>& p, int part) {
        const i64 sizes[kParts] = {kGradRows * kGradStride,
                                   kGradRows * kGradStride,
                                   kGradStride,
                                   kGradStride,
                                   packed_size<T>(kGradKeys, p.dim),
                                   packed_size<T>(kGradKeys, p.value_dim),
                                   dense_size<T>(kGradKeys, p.dim),
                                   dense_size<T>(p.queries, p.dim),
                                   dense_size<T>(p.queries, p.value_dim),
                                   p.queries};
        return round_up(sizes[part], 64);
    }
};

// Queries and gradients of one head of one sequence, and D = <dO, O> of each row: sum of P dP over
// the keys, which is what is computed where the weights P are the result.
template <class T>
struct HeadInputs {
    Rows<T> queries, grads;
    Rows<T> weight_grads;  // dP, if that is what is given, else without data
    const T *dots, *maximum, *inverse;
    bool careful;

    HeadInputs(const GradientCall<T>& call, const Sequence& s, i64 head,
               const GradientScratch<T>& scratch) {
        const AttentionParams<T>& p = call.p;
        queries = dense_rows(rows_of(p.query, s.batch, head, s.query0), s.queries, p.dim,
                             scratch.queries);
        grads = dense_rows(rows_of(call.g.grad, s.batch, head, s.query0), s.queries, p.value_dim,
                           scratch.grads);
        careful = is_masked(p) && !(all_finite(queries, s.queries) && all_finite(grads, s.queries));
        const Rows<T> outputs = rows_of(call.g.output, s.batch, head, s.query0);
        weight_grads = {nullptr, 0};
        if (call.g.of_weights) {
            weight_grads = rows_of(call.g.grad, s.batch, head, s.query0);
            weight_grads.data += s.key0;
            dot_products<true>(s.queries, s.keys, weight_grads,
                               {outputs.data + s.key0, outputs.stride}, scratch.dots);
        } else {
            dot_products<false>(s.queries, p.value_dim, grads, outputs, scratch.dots);
        }
        dots = scratch.dots;
        maximum = call.g.stats + call.first_row(s, head);
        inverse = maximum + call.rows();
    }

  private:
    // kWeights: b are weights; where one is 0, as of a hidden key, a does not matter.
    template <bool kWeights>
    static void dot_products(i64 count, i64 width, const Rows<T>& a, const Rows<T>& b, T* dots) {
        constexpr i64 lanes = kLanes<T>;
        for (i64 i = 0; i < count; ++i) {
            Vec<T> sum{};
            for (i64 at = 0; at < width; at += lanes) {
                const i64 left = min_of(width - at, lanes);
                Vec<T> x = load_partial(a[i] + at, left);
                const Vec<T> y = load_partial(b[i] + at, left);
                if (kWeights) x = select<T>(y == Vec<T>{}, Vec<T>{}, x);
                sum = multiply_add(x, y, sum);
            }
            dots[i] = sum_lanes<T>(sum);
        }
    }
};

// dP of `rows` rows, where it is given.
template <class T>
FUSEDNN_INLINE void copy_weight_grads(const HeadInputs<T>& inputs, i64 row, i64 rows, KeyRange keys,
                                      i64 key0, T* slopes) {
    for (i64 r = 0; r < rows; ++r) {
        __builtin_memcpy(slopes + r * kGradStride + keys.begin - key0,
                         inputs.weight_grads[row + r] + keys.begin,
                         std::size_t(keys.end - keys.begin) * sizeof(T));
    }
}

// Keys and values of one block of a sequence.
template <class T>
struct KeyBlock {
    KeyRange range;  // begins at a multiple of kGradKeys
    const T *packed_keys, *packed_values;
    Rows<T> rows;  // of keys, dense; the first is that of range.begin
    bool careful;

    KeyBlock(const AttentionParams<T>& p, const Sequence& s, i64 kv_head, i64 block,
             const GradientScratch<T>& scratch) {
        range = {block * kGradKeys, min_of((block + 1) * kGradKeys, s.keys)};
        const i64 count = range.end - range.begin, first = s.key0 + range.begin;
        const Rows<T> keys = rows_of(p.key, s.batch, kv_head, first);
        pack_transposed(keys, count, p.dim, key_factor(p), scratch.packed_keys);
        pack_transposed(rows_of(p.value, s.batch, kv_head, first), count, p.value_dim, T(1),
                        scratch.packed_values);
        packed_keys = scratch.packed_keys;
        packed_values = scratch.packed_values;
        rows = dense_rows(keys, count, p.dim, scratch.keys);
        careful = is_masked(p) && !all_finite(rows, count);
    }
};

// What a row's gradients tell beside themselves: the peak, if it is among these keys, and the sum
// of the others' dS (of rows that have a peak at all).
template <class T>
struct RowRest {
    Peak<T> peak;
    T sum;
};

namespace detail {

// peak: the place of the weight above 1/2, if it is here; its dS becomes 0.
template <bool kPeaked, class T>
FUSEDNN_INLINE Vec<T> score_gradients(const ScoreSpan& span, T* row, T* ds, const T* keep,
                                      const T* slopes, T dot, T scale, i64& peak) {
    Vec<T> sum{};
    Mask<T> places = Mask<T>{} - 1;
    for (i64 at = span.first<T>(), last = span.last<T>(); at < last; at += kLanes<T>) {
        const Vec<T> w = load(row + at);
        Vec<T> dp = load(ds + at);
        if (keep) {
            const Vec<T> factor = load(keep + at);
            dp *= factor;
            store(row + at, w * factor);
        }
        // A key without weight may hold NaN.
        Vec<T> x = select<T>(w == Vec<T>{}, Vec<T>{}, w * (dp - dot));
        if (kPeaked) {
            const Mask<T> large = w > T(0.5);
            x = select<T>(large, Vec<T>{}, x);
            places = large ? lane_index<T>() + Int<T>(at) : places;
            sum += x;
        }
        x *= scale;
        if (slopes) x = select<T>(w == Vec<T>{}, x, x * load(slopes + at));
        store(ds + at, x);
    }
    for (int lane = 0; kPeaked && lane < kLanes<T>; ++lane) {
        if (places[lane] >= 0) peak = places[lane];
    }
    return sum;
}

}  // namespace detail

// Row i: its scores become weights, as the values meet them (with dropout); ds, dP on entry,
// becomes scale * dS, by the softcap's slope too if `softcap`.
template <class T>
inline RowRest<T> row_gradients(const AttentionParams<T>& p, const Scores<T>& scores,
                                const HeadInputs<T>& inputs, i64 dropout_head, i64 i,
                                const ScoreSpan& span, T* row, T* ds, T scale, bool softcap,
                                const GradientScratch<T>& scratch) {
    T* const slopes = p.softcap > 0 ? scratch.softcap_slopes : nullptr;
    scores.mask(i, span, row, slopes);
    const T inverse = inputs.inverse[i];
    known_weights(is_natural(p), span, row, inputs.maximum[i], inverse);
    T* const keep = p.dropout > 0 ? scratch.keep : nullptr;
    if (keep) dropout_factors(p, dropout_head, i, span.key0, span.keys, keep);
    const T *used = softcap ? slopes : nullptr, dot = inputs.dots[i];
    RowRest<T> rest{{-1, T(1)}, T(0)};
    i64 place = -1;
    if (inverse > T(0.5)) {
        rest.sum = sum_lanes<T>(
            detail::score_gradients<true>(span, row, ds, keep, used, dot, scale, place));
        if (place >= 0) rest.peak = {span.key0 + place, slopes ? slopes[place] : T(1)};
    } else {
        detail::score_gradients<false>(span, row, ds, keep, used, dot, scale, place);
    }
    return rest;
}

// dP = dO V^T of a panel, as Scores::multiply, unless it is given.
template <class T>
FUSEDNN_INLINE void multiply_values(const AttentionParams<T>& p, const HeadInputs<T>& inputs,
                                    i64 row, int rows, KeyRange keys, const KeyBlock<T>& block,
                                    T* slopes) {
    if (inputs.weight_grads.data) {
        return copy_weight_grads(inputs, row, rows, keys, block.range.begin, slopes);
    }
    multiply_packed(p.value_dim, inputs.grads[row], inputs.grads.stride, rows, keys,
                    block.packed_values, block.range.begin, slopes, kGradStride);
}

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
