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

// The largest lane.
template <class T>
FUSEDNN_INLINE T max_lanes(Vec<T> v) {
    T lane[kLanes<T>];
    __builtin_memcpy(lane, &v, sizeof v);
    for (int half = kLanes<T> / 2; half > 0; half /= 2) {
        for (int i = 0; i < half; ++i) lane[i] = max_of(lane[i], lane[i + half]);
    }
    return lane[0];
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
}  // namespace detail

// n <= kLanes bytes as lanes, the rest 0.
template <class T>
FUSEDNN_INLINE Mask<T> load_bytes(const std::uint8_t* p, i64 n) {
    typename detail::BytesOf<T>::type bytes{};
    __builtin_memcpy(&bytes, p, std::size_t(min_of(n, i64(kLanes<T>))));
    return __builtin_convertvector(bytes, Mask<T>);
}

// One row of scores, that of key j at s[j - key0]. `range`: the keys it sees.
template <class T>
struct ScoreRow {
    T* s;
    i64 key0;
    KeyRange range;

    // The vectors that hold the range: from s + first() to s + last().
    FUSEDNN_INLINE i64 first() const { return (range.begin - key0) / kLanes<T> * kLanes<T>; }
    FUSEDNN_INLINE i64 last() const { return round_up(range.end - key0, kLanes<T>); }
};

// Softcap, mask and bias of row i. `slope` (or null) takes the derivative of the softcap.
template <class T>
inline void adjust_scores(const AttentionParams<T>& p, const MaskRows<std::uint8_t>& mask,
                          const MaskRows<T>& bias, i64 i, const ScoreRow<T>& row, T* slope) {
    constexpr int lanes = kLanes<T>;
    const i64 first = row.first(), last = row.last();
    if (p.softcap > 0) {
        const T cap = T(p.softcap), inverse = T(1 / p.softcap);
        for (i64 at = first; at < last; at += lanes) {
            const Vec<T> t = vtanh<T>(load(row.s + at) * inverse);
            store(row.s + at, t * cap);
            if (slope) store(slope + at, T(1) - t * t);
        }
    }
    const i64 end = row.range.end - row.key0;
    if (mask.data) {
        const std::uint8_t* m = mask.data + i * mask.row + row.key0 * mask.col;
        for (i64 at = first; at < last; at += lanes) {
            const Mask<T> allowed =
                mask.col ? load_bytes<T>(m + at, end - at) : load_bytes<T>(m, 1)[0] - Mask<T>{};
            store(row.s + at,
                  select<T>(allowed != Mask<T>{}, load(row.s + at), negative_infinity<T>()));
        }
    }
    if (bias.data) {
        const T* b = bias.data + i * bias.row + row.key0 * bias.col;
        for (i64 at = first; at < last; at += lanes) {
            const Vec<T> add = !bias.col           ? broadcast(*b)
                               : end - at >= lanes ? load(b + at)
                                                   : load_partial(b + at, end - at);
            // A masked key's score may be NaN: chosen, not added.
            const Vec<T> sum = load(row.s + at) + add;
            store(row.s + at, select<T>(add == negative_infinity<T>(), add, sum));
        }
    }
}

// Scores beside the range, in the vectors that hold its ends, become -infinity.
template <class T>
FUSEDNN_INLINE void clip_scores(const ScoreRow<T>& row) {
    const i64 first = row.first(), last = row.last();
    const i64 begin = row.range.begin - row.key0 - first;
    const i64 end = row.range.end - row.key0 - (last - kLanes<T>);
    const Mask<T> index = lane_index<T>();
    if (begin > 0) {
        T* s = row.s + first;
        store(s, select<T>(index < Int<T>(begin), negative_infinity<T>(), load(s)));
    }
    if (end < kLanes<T>) {
        T* s = row.s + last - kLanes<T>;
        store(s, select<T>(index >= Int<T>(end), negative_infinity<T>(), load(s)));
    }
}

// The largest score, or `before`; NaN does not count.
template <class T>
FUSEDNN_INLINE T row_maximum(const ScoreRow<T>& row, T before) {
    constexpr int lanes = kLanes<T>;
    Vec<T> top[4];
    for (int i = 0; i < 4; ++i) top[i] = broadcast(before);
    const i64 last = row.last();
    i64 at = row.first();
    for (; at + 4 * lanes <= last; at += 4 * lanes) {
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) top[i] = larger<T>(top[i], load(row.s + at + i * lanes));
    }
    for (; at < last; at += lanes) top[0] = larger<T>(top[0], load(row.s + at));
    return max_lanes<T>(larger<T>(larger<T>(top[0], top[1]), larger<T>(top[2], top[3])));
}

// Where every score is -infinity, 0 takes the maximum's place: -inf - 0 is no NaN.
template <class T>
FUSEDNN_INLINE T finite_maximum(T maximum) {
    return maximum == T(-__builtin_inf()) ? T(0) : maximum;
}

template <class T>
FUSEDNN_INLINE void fill_zero(T* p, i64 begin, i64 end) {
    i64 at = begin;
    for (; at + kLanes<T> <= end; at += kLanes<T>) store(p + at, Vec<T>{});
    for (; at < end; ++at) p[at] = T(0);
}

// s becomes exp(s - maximum) * factor (or without, if kPlain); returns their sums lane by lane.
template <bool kNatural, bool kPlain, class T>
FUSEDNN_INLINE Vec<T> exponentials(const ScoreRow<T>& row, T maximum, T factor) {
    constexpr int lanes = kLanes<T>;
    const Vec<T> top = broadcast(finite_maximum(maximum));
    const Vec<T> scale = broadcast(factor);
    Vec<T> sum{};
    const i64 last = row.last();
    for (i64 at = row.first(); at < last; at += lanes) {
        Vec<T> x = load(row.s + at) - top;
        if (kNatural) x *= T(kLog2E);
        Vec<T> e = exp2_of_negative<T>(x);
        if (!kPlain) e *= scale;
        sum += e;
        store(row.s + at, e);
    }
    return sum;
}

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
