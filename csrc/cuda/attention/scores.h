// The scores of a tile on their way to weights: softcap, masks, bias, exponentials.
//
// Scores are in base 2 (their factor holds log2 e); with a bias or a softcap they are natural, as
// on the CPU, because a bias of -3.4e38 times log2 e would overflow.
#pragma once
#include "cuda/attention/dropout.h"
#include "cuda/attention/math.h"

namespace fusednn::cuda {

FUSEDNN_DEVICE float power_of_2(float x) {
    return exp2f(x);
}
FUSEDNN_DEVICE double power_of_2(double x) {
    return exp2(x);
}

// Where every score is -infinity, 0 takes the maximum's place: -inf - 0 is no NaN.
template <class T>
FUSEDNN_DEVICE T finite_maximum(T maximum) {
    return maximum == -T(INFINITY) ? T(0) : maximum;
}

// A tile's place in its sequence. kTransposed: rows are keys and columns are queries.
template <class Math, bool kTransposed_>
struct Place {
    static constexpr bool kTransposed = kTransposed_;
    int row0, column0;

    FUSEDNN_DEVICE int query(int i, int n) const {
        return kTransposed ? column0 + Math::column(n) : row0 + Math::row(i);
    }
    FUSEDNN_DEVICE int key(int i, int n) const {
        return kTransposed ? row0 + Math::row(i) : column0 + Math::column(n);
    }
};

// The scores of one head of one sequence.
template <class Math, class T>
struct HeadScores {
    using Sum = typename Math::Sum;
    const AttentionParams<T>& p;
    const Format<T>& format;
    const Sequence& s;
    const std::uint8_t* mask;  // of query 0 and key 0
    const T* bias;
    Sum factor, to_base_2;

    FUSEDNN_DEVICE HeadScores(const AttentionParams<T>& params, const Format<T>& of_bias,
                              const Sequence& sequence, int head)
        : p(params),
          format(of_bias),
          s(sequence),
          mask(at(p.mask, p.mask_stride, head)),
          bias(at(p.bias, p.bias_stride, head)) {
        const bool natural = p.bias || p.softcap > 0;
        factor = Sum(natural ? p.scale : p.scale * kLog2E);
        to_base_2 = natural ? Sum(kLog2E) : Sum(1);
    }

    // May the query see the key, masks apart? Both may be outside the sequence.
    FUSEDNN_DEVICE bool sees(int query, int key) const {
        const KeyRange range = s.range(query);
        const bool real = query >= 0 && query < s.queries;
        const int count = real ? larger_of(range.end - range.begin, 0) : 0;
        return unsigned(key - range.begin) < unsigned(count);
    }
    FUSEDNN_DEVICE bool plain() const { return !p.mask && !p.bias && !(p.softcap > 0); }

    // Softcap, masks and bias of what the query sees. `slope` is the derivative of the softcap.
    FUSEDNN_DEVICE Sum adjusted(Sum x, int query, int key, Sum* slope) const {
        if (p.softcap > 0) {
            const Sum t = tanh(x * Sum(1 / p.softcap));
            *slope = Sum(1) - t * t;
            x = t * Sum(p.softcap);
        }
        if (mask && !mask[query * p.mask_stride[2] + key * p.mask_stride[3]]) {
            return -Sum(INFINITY);
        }
        if (bias) {
            const Sum b = format.widen(bias[query * p.bias_stride[2] + key * p.bias_stride[3]]);
            // A masked key's score may be NaN: chosen, not added.
            x = b == -Sum(INFINITY) ? b : x + b;
        }
        return x;
    }

    // The same without softcap, masks and bias.
    FUSEDNN_DEVICE Sum plain_score(Sum product, int query, int key, bool inner) const {
        return inner || sees(query, key) ? product * factor : -Sum(INFINITY);
    }
    // A product's score; -infinity where the query does not see the key. `inner`: it does.
    FUSEDNN_DEVICE Sum score(Sum product, int query, int key, bool inner, Sum* slope) const {
        *slope = Sum(1);
        const Sum x = plain_score(product, query, key, inner);
        return plain() || x == -Sum(INFINITY) ? x : adjusted(x, query, key, slope);
    }

    // Products become scores. `inner`: every query of the tile sees every key, masks apart.
    template <class P>
    FUSEDNN_DEVICE void adjust(typename Math::Scores& x, const P& place, bool inner) const {
#pragma unroll
        for (int i = 0; i < Math::kRowsOfLane; ++i)
#pragma unroll
            for (int n = 0; n < Math::kColumnsOfLane; ++n) {
                x[i][n] *= factor;
            }
        if (!inner) {
#pragma unroll
            for (int i = 0; i < Math::kRowsOfLane; ++i)
#pragma unroll
                for (int n = 0; n < Math::kColumnsOfLane; ++n) {
                    if (!sees(place.query(i, n), place.key(i, n))) x[i][n] = -Sum(INFINITY);
                }
        }
        if (plain()) return;
#pragma unroll 1
        for (int n = 0; n < Math::kColumnsOfLane; ++n)
#pragma unroll
            for (int i = 0; i < Math::kRowsOfLane; ++i) {
                const int query = place.query(i, n), key = place.key(i, n);
                Sum slope, score = x[i][0];
                if (sees(query, key)) score = adjusted(score, query, key, &slope);
                turn(x[i], score);
            }
    }

    // exp(score - maximum), without the sum.
    FUSEDNN_DEVICE Sum exponential(Sum score, Sum maximum) const {
        return power_of_2((score - maximum) * to_base_2);
    }
    // A weight whose row's maximum and 1 / sum are known. Where NaN was seen all are, but for keys
    // that are hidden.
    FUSEDNN_DEVICE Sum weight(Sum score, Sum maximum, Sum inverse) const {
        Sum e = exponential(score, maximum);
        e = score == -Sum(INFINITY) ? Sum(0) : e;
        const Sum known = e * inverse;
        return inverse == inverse || e == Sum(0) ? (e == Sum(0) ? e : known) : inverse;
    }

  private:
    template <class M>
    FUSEDNN_DEVICE const M* at(const M* data, const i64 (&stride)[4], int head) const {
        if (!data) return nullptr;
        return data + s.batch * stride[0] + head * stride[1] + s.query0 * stride[2] +
               s.key0 * stride[3];
    }
};

// Bit n of kept[i]: dropout keeps the weight. Keys of a lane that are 16 apart share a call.
template <class Math, class P>
FUSEDNN_DEVICE void draw(const Dropout& dropout, std::uint64_t head, const P& place,
                         unsigned (&kept)[Math::kRowsOfLane]) {
#pragma unroll 1
    for (int i = 0; i < Math::kRowsOfLane; ++i) {
        unsigned bits = 0;
        if constexpr (P::kTransposed) {
#pragma unroll 2
            for (int n = 0; n < Math::kColumnsOfLane; ++n) {
                const bool keep = dropout.keeps(head, place.query(i, n), place.key(i, n));
                bits |= unsigned(keep) << n;
            }
        } else {
            const int query = place.row0 + Math::row(i);
#pragma unroll 2
            for (int n = 0; n < 4; ++n) {
                const int key = place.key(i, n);
                const DropoutWords words =
                    dropout_words(dropout.key, head, std::uint32_t(query), std::uint32_t(key / 64),
                                  std::uint32_t(key % 16));
                const int first = key % 64 / 16;
#pragma unroll
                for (int word = 0; word < 4; ++word) {
                    const int more = n + 4 * (word - first);
                    if (more < n || more >= Math::kColumnsOfLane) continue;
                    bits |= unsigned(words.of[word] >= dropout.bound) << more;
                }
            }
        }
        turn(kept, bits);
    }
}

}  // namespace fusednn::cuda
