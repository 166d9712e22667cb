// Vector exp and log, to about one unit in the last place, right for infinities, NaN, zero and
// denormal numbers. Series rather than fitted polynomials: after the reductions below their next
// term is already under half a unit, and they need no source.
#pragma once
#include "cpu/simd.h"

namespace fusednn {
namespace FUSEDNN_ISA {

namespace detail {

template <class T>
struct FloatFormat;
template <>
struct FloatFormat<float> {
    static constexpr int fraction_bits = 23, bias = 127, exp_terms = 8, log_terms = 6;
    static constexpr float round = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
    // ln 2 in two parts; the first has so few bits that its product with an exponent is exact.
    static constexpr float ln2_high = 0.693145751953125f, ln2_low = 1.42860682030941723e-6f;
    static constexpr float exp_low = -105.0f, exp_high = 90.0f;  // beyond: 0 and infinity
    static constexpr float tiny_scale = 8388608.0f;              // 2^23 makes denormals normal
};
template <>
struct FloatFormat<double> {
    static constexpr int fraction_bits = 52, bias = 1023, exp_terms = 14, log_terms = 12;
    static constexpr double round = 6755399441055744.0;  // 1.5 * 2^52
    static constexpr double ln2_high = 0.693147180369123816490,
                            ln2_low = 1.90821492927058770002e-10;
    static constexpr double exp_low = -750.0, exp_high = 710.0;
    static constexpr double tiny_scale = 4503599627370496.0;  // 2^52
};

}  // namespace detail

// Reinterprets bits.
template <class To, class From>
FUSEDNN_INLINE To bit_cast(From from) {
    static_assert(sizeof(To) == sizeof(From), "same size");
    To to;
    __builtin_memcpy(&to, &from, sizeof to);
    return to;
}

// e^x: x = n ln 2 + r with |r| <= ln 2 / 2, the series of e^r, times 2^n in two exact factors (so
// that results may be denormal).
template <class T>
FUSEDNN_INLINE Vec<T> vexp(Vec<T> x) {
    using Format = detail::FloatFormat<T>;
    x = select<T>(x < Format::exp_low, broadcast(Format::exp_low), x);
    x = select<T>(x > Format::exp_high, broadcast(Format::exp_high), x);
    const Vec<T> shifted = x * T(1.44269504088896340736) + Format::round;
    const Vec<T> n = shifted - Format::round;
    Vec<T> r = x - n * Format::ln2_high;
    r = r - n * Format::ln2_low;
    T factor[Format::exp_terms] = {T(1)};  // 1 / i!
    for (int i = 1; i < Format::exp_terms; ++i) factor[i] = factor[i - 1] / T(i);
    Vec<T> p = broadcast(factor[Format::exp_terms - 1]);
#pragma GCC unroll 16
    for (int i = Format::exp_terms - 2; i >= 0; --i) p = multiply_add(p, r, broadcast(factor[i]));
    const Mask<T> exponent = bit_cast<Mask<T>>(shifted) - bit_cast<Int<T>>(Format::round);
    const Mask<T> half = exponent >> 1, rest = exponent - half;
    p *= bit_cast<Vec<T>>((half + Format::bias) << Format::fraction_bits);
    p *= bit_cast<Vec<T>>((rest + Format::bias) << Format::fraction_bits);
    return p;
}

// Natural logarithm: x = m 2^e with m in [sqrt 1/2, sqrt 2), log m = 2 atanh((m - 1) / (m + 1)).
template <class T>
FUSEDNN_INLINE Vec<T> vlog(Vec<T> x) {
    using Format = detail::FloatFormat<T>;
    constexpr Int<T> one = Int<T>(Format::bias) << Format::fraction_bits;
    const T smallest = bit_cast<T>(Int<T>(1) << Format::fraction_bits);
    const Mask<T> tiny = x < smallest;
    const Vec<T> scaled = select<T>(tiny, x * Format::tiny_scale, x);
    // Subtracting the bits of sqrt 1/2 puts the exponent of the wanted range into the high bits.
    const Int<T> root_half = bit_cast<Int<T>>(T(0.70710678118654752440));
    const Mask<T> bits = bit_cast<Mask<T>>(scaled) - root_half;
    const Mask<T> e = bits >> Format::fraction_bits;
    const Vec<T> m = bit_cast<Vec<T>>(bit_cast<Mask<T>>(scaled) - (e << Format::fraction_bits));
    Vec<T> exponent = __builtin_convertvector(e, Vec<T>);
    exponent = select<T>(tiny, exponent - T(Format::fraction_bits), exponent);
    const Vec<T> s = (m - T(1)) / (m + T(1)), s2 = s * s;
    Vec<T> p = broadcast(T(1) / T(2 * Format::log_terms - 1));
#pragma GCC unroll 16
    for (int i = Format::log_terms - 2; i >= 1; --i) {
        p = multiply_add(p, s2, broadcast(T(1) / T(2 * i + 1)));
    }
    // log m = 2 s + 2 s (p s2): the first term exact, so small logarithms keep their last bits.
    const Vec<T> log_m = 2 * s + 2 * s * (p * s2);
    Vec<T> y = exponent * Format::ln2_high + (log_m + exponent * Format::ln2_low);
    const Vec<T> infinity =
        broadcast(bit_cast<T>(one + (Int<T>(Format::bias + 1) << Format::fraction_bits)));
    const Vec<T> nan = broadcast(T(__builtin_nan("")));
    y = select<T>(x == infinity, x, y);
    y = select<T>(x == Vec<T>{}, -infinity, y);
    return select<T>((x < Vec<T>{}) | (x != x), nan, y);
}

template <class T>
FUSEDNN_INLINE Vec<T> square_root(Vec<T> x) {
#if defined(__AVX512F__)
    // The masked forms: GCC 12 warns about an undefined operand of the plain ones.
    if constexpr (sizeof(T) == 4) return (Vec<T>)_mm512_maskz_sqrt_ps(0xffff, (__m512)x);
    if constexpr (sizeof(T) == 8) return (Vec<T>)_mm512_maskz_sqrt_pd(0xff, (__m512d)x);
#elif defined(__AVX2__)
    if constexpr (sizeof(T) == 4) return (Vec<T>)_mm256_sqrt_ps((__m256)x);
    if constexpr (sizeof(T) == 8) return (Vec<T>)_mm256_sqrt_pd((__m256d)x);
#elif defined(__SSE2__)
    if constexpr (sizeof(T) == 4) return (Vec<T>)_mm_sqrt_ps((__m128)x);
    if constexpr (sizeof(T) == 8) return (Vec<T>)_mm_sqrt_pd((__m128d)x);
#else
    for (int i = 0; i < kLanes<T>; ++i) x[i] = T(__builtin_sqrt(x[i]));
    return x;
#endif
}

// One number through a vector function.
template <class T>
FUSEDNN_INLINE T log_of(T x) {
    return vlog<T>(broadcast(x))[0];
}

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
