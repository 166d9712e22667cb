// The rows of scores on their way to weights: masks, softcap, running maxima, exponentials.
//
// Scores are in base 2 (their scale holds log2 e), which saves exp a product; with a bias or a
// softcap they are natural, because a bias of -3.4e38 times log2 e would overflow.
#pragma once
#include "cpu/attention/problem.h"
#include "cpu/vmath.h"

namespace fusednn {
namespace FUSEDNN_ISA {

constexpr double kLog2E = 1.44269504088896340736;

namespace detail {

// 2^r = sum of c[k] r^k for |r| <= 1/2: the polynomial of exp, its variable scaled by ln 2.
template <class T>
struct Exp2Terms {
    static constexpr int count = FloatFormat<T>::exp_terms + 2;
    T c[count];
    constexpr Exp2Terms() : c{} {
        double power = 0.69314718055994530942;
        c[0] = T(1);
        c[1] = T(power);
        for (int k = 2; k < count; ++k) {
            power *= 0.69314718055994530942;
            c[k] = T(double(FloatFormat<T>::exp_tail[k - 2]) * power);
        }
    }
};
template <class T>
constexpr Exp2Terms<T> exp2_terms{};

}  // namespace detail

// 2^x for x <= 0 (and a little above); 0 where that is below the smallest normal number.
template <class T>
FUSEDNN_INLINE Vec<T> exp2_of_negative(Vec<T> x) {
    using Format = detail::FloatFormat<T>;
    // Adding this rounds to an integer n and leaves n + bias, an exponent field, in the low bits.
    constexpr T magic = Format::round + T(Format::bias);
    x = larger<T>(x, broadcast(-T(Format::bias)));
    const Vec<T> shifted = x + magic;
    const Vec<T> r = x - (shifted - magic);
    const Vec<T> power =
        bit_cast<Vec<T>>(bit_cast<detail::Bits<T>>(shifted) << Format::fraction_bits);
    return detail::polynomial(detail::exp2_terms<T>.c, r) * power;
}

template <class T>
FUSEDNN_INLINE Vec<T> negative_infinity() {
    return broadcast(T(-__builtin_inf()));
}

// Folds v[0 .. n) to one vector: perfect shuffles as in transpose(), so that from n = kLanes on
// lane i comes of v[i]. (A recursion: GCC does not unroll a loop within a loop.)
template <class T, int n, class Combine>
FUSEDNN_INLINE Vec<T> fold_each(const Vec<T> (&v)[n], const Combine& combine) {
    if constexpr (n == 1) {
        return v[0];
    } else {
        Vec<T> half[n / 2];
#pragma GCC unroll 8
        for (int i = 0; i < n / 2; ++i) {
            half[i] = combine(interleave_low<T>(v[i], v[i + n / 2]),
                              interleave_high<T>(v[i], v[i + n / 2]));
        }
        return fold_each<T, n / 2>(half, combine);
    }
}

// Lane i < count of the result is v[i]'s lanes combined.
template <class T, class Combine>
FUSEDNN_INLINE Vec<T> fold_rows(const Vec<T> (&v)[kLanes<T>], int count, const Combine& combine) {
    constexpr int lanes = kLanes<T>;
    if (lanes < 4 || count > lanes / 2) return fold_each<T, lanes>(v, combine);
    // Half as many leave two lanes for each, half a vector apart.
    Vec<T> half[lanes / 2];
#pragma GCC unroll 8
    for (int i = 0; i < lanes / 2; ++i) half[i] = v[i];
    const Vec<T> folded = fold_each<T, lanes / 2>(half, combine);
    using All = typename detail::MakeSeq<lanes>::type;
    return combine(folded, detail::shifted_lanes<Vec<T>, lanes, lanes / 2>(folded, All{}));
}

// Lane i < count of the result is the sum (the largest) of v[i]'s lanes.
template <class T>
FUSEDNN_INLINE Vec<T> sum_each(const Vec<T> (&v)[kLanes<T>], int count = kLanes<T>) {
    return fold_rows<T>(v, count, [](Vec<T> a, Vec<T> b) { return a + b; });
}
template <class T>
FUSEDNN_INLINE Vec<T> max_each(const Vec<T> (&v)[kLanes<T>], int count) {
    return fold_rows<T>(v, count, [](Vec<T> a, Vec<T> b) { return larger<T>(a, b); });
}

namespace detail {
template <class T>
struct LaneNumbers {
    Int<T> at[kLanes<T>];
    constexpr LaneNumbers() : at{} {
        for (int i = 0; i < kLanes<T>; ++i) at[i] = i;
    }
};
template <class T>
constexpr LaneNumbers<T> lane_numbers{};
}  // namespace detail

// 0, 1, 2 ...
template <class T>
FUSEDNN_INLINE Mask<T> lane_index() {
    Mask<T> index;
    __builtin_memcpy(&index, detail::lane_numbers<T>.at, sizeof index);
    return index;
}

namespace detail {
template <class T>
struct BytesOf {
    typedef std::uint8_t type __attribute__((vector_size(kVectorBytes / sizeof(T))));
};

// kLanes bytes as lanes: one instruction, which GCC's conversion of vectors does not find.
template <class T>
FUSEDNN_INLINE Mask<T> widen_bytes(typename BytesOf<T>::type bytes) {
#if defined(__AVX512F__)
    if constexpr (sizeof(T) == 4) {
        return (Mask<T>)_mm512_maskz_cvtepu8_epi32(__mmask16(0xffff), (__m128i)bytes);
    }
#elif defined(__AVX2__)
    if constexpr (sizeof(T) == 4) {
        return (Mask<T>)_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(bit_cast<long long>(bytes)));
    }
#endif
    return __builtin_convertvector(bytes, Mask<T>);
}
}  // namespace detail

template <class T>
FUSEDNN_INLINE Mask<T> load_bytes(const std::uint8_t* p) {
    typename detail::BytesOf<T>::type bytes;
    __builtin_memcpy(&bytes, p, sizeof bytes);
    return detail::widen_bytes<T>(bytes);
}
// n < kLanes bytes, the rest 0.
template <class T>
FUSEDNN_INLINE Mask<T> load_bytes(const std::uint8_t* p, i64 n) {
    typename detail::BytesOf<T>::type bytes{};
    __builtin_memcpy(&bytes, p, std::size_t(n));
    return detail::widen_bytes<T>(bytes);
}

// Where the scores of some neighbouring rows lie: that of key j at row[j - key0]. All rows are
// worked on as far as `keys` reach, which some row sees: that costs little where rows see keys of
// their own (under a causal mask), and loops of one length for all are predicted.
struct ScoreSpan {
    i64 key0;
    KeyRange keys;
    KeyRange inner;  // what all rows see

    // The vectors that hold the keys: from row + first() to row + last().
    template <class T>
    FUSEDNN_INLINE i64 first() const {
        return (keys.begin - key0) / kLanes<T> * kLanes<T>;
    }
    template <class T>
    FUSEDNN_INLINE i64 last() const {
        return round_up(keys.end - key0, kLanes<T>);
    }
};

// Softcap, mask and bias of row i. `slope` (or null) takes the derivative of the softcap.
template <class T>
inline void adjust_scores(const AttentionParams<T>& p, const MaskRows<std::uint8_t>& mask,
                          const MaskRows<T>& bias, i64 i, const ScoreSpan& span, T* row, T* slope) {
    constexpr int lanes = kLanes<T>;
    const i64 first = span.first<T>(), last = span.last<T>(), end = span.keys.end - span.key0;
    if (p.softcap > 0) {
        const T cap = T(p.softcap), inverse = T(1 / p.softcap);
        for (i64 at = first; at < last; at += lanes) {
            const Vec<T> t = vtanh<T>(load(row + at) * inverse);
            store(row + at, t * cap);
            if (slope) store(slope + at, T(1) - t * t);
        }
    }
    // Whole vectors, then the one that ends with the keys.
    const i64 whole = first + (end - first) / lanes * lanes;
    if (mask.data) {
        const std::uint8_t* m = mask.data + i * mask.row + span.key0 * mask.col;
        const auto hide = [&](i64 at, Mask<T> allowed) {
            store(row + at,
                  select<T>(allowed != Mask<T>{}, load(row + at), negative_infinity<T>()));
        };
        if (mask.col) {
            for (i64 at = first; at < whole; at += lanes) hide(at, load_bytes<T>(m + at));
            if (whole < last) hide(whole, load_bytes<T>(m + whole, end - whole));
        } else if (!*m) {
            for (i64 at = first; at < last; at += lanes) store(row + at, negative_infinity<T>());
        }
    }
    if (bias.data) {
        const T* b = bias.data + i * bias.row + span.key0 * bias.col;
        const auto add = [&](i64 at, Vec<T> x) {
            // A masked key's score may be NaN: chosen, not added.
            const Vec<T> sum = load(row + at) + x;
            store(row + at, select<T>(x == negative_infinity<T>(), x, sum));
        };
        if (bias.col) {
            for (i64 at = first; at < whole; at += lanes) add(at, load(b + at));
            if (whole < last) add(whole, load_partial(b + whole, end - whole));
        } else {
            for (i64 at = first; at < last; at += lanes) add(at, broadcast(*b));
        }
    }
}

// Scores of keys that the row does not see become -infinity.
template <class T>
FUSEDNN_INLINE void clip_scores(const ScoreSpan& span, KeyRange range, T* row) {
    constexpr int lanes = kLanes<T>;
    const Mask<T> index = lane_index<T>();
    const i64 first = span.first<T>(), last = span.last<T>();
    for (i64 at = first; at < span.inner.begin - span.key0; at += lanes) {
        const Mask<T> behind = index >= Int<T>(range.begin - span.key0 - at);
        store(row + at, select<T>(behind, load(row + at), negative_infinity<T>()));
    }
    const i64 whole = max_of(span.inner.end - span.key0, i64(0)) / lanes * lanes;
    for (i64 at = max_of(first, whole); at < last; at += lanes) {
        const Mask<T> before = index < Int<T>(range.end - span.key0 - at);
        store(row + at, select<T>(before, load(row + at), negative_infinity<T>()));
    }
}

// The largest scores, lane by lane; NaN does not count.
template <class T>
FUSEDNN_INLINE Vec<T> row_maxima(const ScoreSpan& span, const T* row) {
    constexpr int lanes = kLanes<T>;
    Vec<T> top[4];
    for (int i = 0; i < 4; ++i) top[i] = negative_infinity<T>();
    const i64 last = span.last<T>();
    i64 at = span.first<T>();
    for (; at + 4 * lanes <= last; at += 4 * lanes) {
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) top[i] = larger<T>(top[i], load(row + at + i * lanes));
    }
    for (; at < last; at += lanes) top[0] = larger<T>(top[0], load(row + at));
    return larger<T>(larger<T>(top[0], top[1]), larger<T>(top[2], top[3]));
}

// Where every score is -infinity, 0 takes the maximum's place: -inf - 0 is no NaN.
template <class T>
FUSEDNN_INLINE T finite_maximum(T maximum) {
    return maximum == T(-__builtin_inf()) ? T(0) : maximum;
}

template <class T>
FUSEDNN_INLINE Vec<T> finite_maximum(Vec<T> maximum) {
    return select<T>(maximum == negative_infinity<T>(), Vec<T>{}, maximum);
}

// Running maxima of `count` <= kLanes rows: takes the rows' largest scores (lane by lane in tops),
// updates the maxima, and gives the factors for what was summed up before.
template <class T>
FUSEDNN_INLINE Vec<T> update_maxima(bool natural, const Vec<T> (&tops)[kLanes<T>], int count,
                                    Vec<T>& maxima) {
    const Vec<T> before = maxima;
    maxima = larger<T>(before, max_each<T>(tops, count));
    const Vec<T> x = before - finite_maximum<T>(maxima);
    return exp2_of_negative<T>(natural ? x * T(kLog2E) : x);
}

// 1 / sum, or 0 where no key was seen: else one weight at least is 1.
template <class T>
FUSEDNN_INLINE Vec<T> inverse_sums(Vec<T> sums) {
    return select<T>(sums == Vec<T>{}, Vec<T>{}, T(1) / sums);
}

template <class T>
FUSEDNN_INLINE void fill_zero(T* p, i64 begin, i64 end) {
    i64 at = begin;
    for (; at + kLanes<T> <= end; at += kLanes<T>) store(p + at, Vec<T>{});
    for (; at < end; ++at) p[at] = T(0);
}

// Scores become exp(score - maximum) * factor (or without, if kPlain); returns their sums by lane.
template <bool kNatural, bool kPlain, class T>
FUSEDNN_INLINE Vec<T> exponentials(const ScoreSpan& span, T* row, T maximum, T factor) {
    constexpr int lanes = kLanes<T>;
    const Vec<T> top = broadcast(finite_maximum(maximum));
    const Vec<T> scale = broadcast(factor);
    Vec<T> sum{};
    const i64 last = span.last<T>();
    for (i64 at = span.first<T>(); at < last; at += lanes) {
        Vec<T> x = load(row + at) - top;
        if (kNatural) x *= T(kLog2E);
        Vec<T> e = exp2_of_negative<T>(x);
        if (!kPlain) e *= scale;
        sum += e;
        store(row + at, e);
    }
    return sum;
}

// The same without a factor for R rows `stride` apart; sum[r]: that of row r, by lane.
template <bool kNatural, int R, class T>
FUSEDNN_INLINE void exponentials_of_rows(const ScoreSpan& span, T* rows, i64 stride,
                                         const T* maximum, Vec<T> (&sum)[R]) {
    Vec<T> top[R];
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
        top[r] = broadcast(finite_maximum(maximum[r]));
        sum[r] = Vec<T>{};
    }
    const i64 last = span.last<T>();
    for (i64 at = span.first<T>(); at < last; at += kLanes<T>) {
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) {
            T* const place = rows + r * stride + at;
            Vec<T> x = load(place) - top[r];
            if (kNatural) x *= T(kLog2E);
            const Vec<T> e = exp2_of_negative<T>(x);
            sum[r] += e;
            store(place, e);
        }
    }
}

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
