// Scores of a panel of rows: what forward computes, and backward and the weights compute again, to
// the same bits.
#pragma once
#include "cpu/attention/head.h"
#include "cpu/attention/product.h"
#include "cpu/attention/softmax.h"

namespace fusednn {
namespace FUSEDNN_ISA {

// Whether scores are natural, see softmax.h.
template <class T>
FUSEDNN_INLINE bool is_natural(const AttentionParams<T>& p) {
    return p.bias || p.softcap > 0;
}

// What packed keys are multiplied with.
template <class T>
FUSEDNN_INLINE T key_factor(const AttentionParams<T>& p) {
    return T(is_natural(p) ? p.scale : p.scale * kLog2E);
}

// The columns of keys in a buffer of scores begin with a whole tile.
template <class T>
FUSEDNN_INLINE i64 first_column(KeyRange keys) {
    return keys.begin / kTileCols<T> * kTileCols<T>;
}

// Products of `rows` rows with packed ones: that with row j to dst[r * stride + j - key0].
// packed: the panel of key0.
template <class T>
FUSEDNN_INLINE void multiply_packed(i64 dim, const T* a, i64 a_stride, int rows, KeyRange keys,
                                    const T* packed, i64 key0, T* dst, i64 stride) {
    ProductOutput<T> out{};
    out.ldc = stride;
    for (i64 key = first_column<T>(keys); key < keys.end; key += kTileCols<T>) {
        // Whole vectors: what is packed was filled up with 0.
        out.cols = keys.end - key > kLanes<T> ? kTileCols<T> : kLanes<T>;
        out.c = dst + (key - key0);
        product_function<T>(Layout::rows, rows, out.cols)(
            dim, a, a_stride, packed + (key - key0) * dim, kTileCols<T>, out);
    }
}

// The scores of one head of one sequence.
template <class T>
class Scores {
  public:
    FUSEDNN_INLINE Scores(const AttentionParams<T>& p, const Sequence& s, i64 head)
        : p_(p),
          s_(s),
          mask_(mask_of(p.mask, p.mask_stride, s, head)),
          bias_(mask_of(p.bias, p.bias_stride, s, head)),
          adjusted_(p.mask || is_natural(p)) {}

    FUSEDNN_INLINE void multiply(const T* queries, i64 query_stride, int rows, KeyRange keys,
                                 const T* packed, i64 key0, T* scores, i64 stride) const {
        multiply_packed(p_.dim, queries, query_stride, rows, keys, packed, key0, scores, stride);
    }

    // `rows` rows from row i on, as far as they see `keys`.
    FUSEDNN_INLINE ScoreSpan span(i64 i, i64 rows, KeyRange keys, i64 key0) const {
        const KeyRange inner{s_.range(i + rows - 1).begin, s_.range(i).end};
        return {key0, intersect(s_.range(i, i + rows), keys), intersect(inner, keys)};
    }

    // Softcap, masks and bias; -infinity where row i does not see a key.
    FUSEDNN_INLINE void mask(i64 i, const ScoreSpan& span, T* row, T* slope) const {
        if (adjusted_) adjust_scores<T>(p_, mask_, bias_, i, span, row, slope);
        clip_scores(span, s_.range(i), row);
    }

  private:
    const AttentionParams<T>& p_;
    const Sequence& s_;
    const MaskRows<std::uint8_t> mask_;
    const MaskRows<T> bias_;
    const bool adjusted_;
};

// The weights of a row in which NaN is seen: NaN, but 0 where nothing is seen.
template <class T>
inline void nan_weights(bool natural, const ScoreSpan& span, T* row, T maximum) {
    if (natural) {
        exponentials<true, true>(span, row, maximum, T(1));
    } else {
        exponentials<false, true>(span, row, maximum, T(1));
    }
    for (i64 at = span.first<T>(); at < span.last<T>(); ++at) {
        if (row[at] != T(0)) row[at] = T(__builtin_nan(""));
    }
}

// Weights of a row whose maximum and sum are known, in the place of its scores.
template <class T>
FUSEDNN_INLINE void known_weights(bool natural, const ScoreSpan& span, T* row, T maximum,
                                  T inverse) {
    if (inverse != inverse) return nan_weights(natural, span, row, maximum);
    if (natural) {
        exponentials<true, false>(span, row, maximum, inverse);
    } else {
        exponentials<false, false>(span, row, maximum, inverse);
    }
}

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
