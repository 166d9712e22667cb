// Vector exp, log, tanh and sigmoid: exp and log to 1.2 units in the last place on every ISA, tanh
// and sigmoid to 3, all right for infinities, NaN, zeros and denormal numbers.
//
// The polynomials are minimax fits of our own; bench/lab/vmath_coefficients.py derives them (Remez)
// and bench/lab/vmath_accuracy.cpp measures these functions, floats bit pattern by bit pattern.
// A further function takes three lines here if it reduces to exp_minus_1_reduced or vlog, and one
// more FloatFormat array if it brings a polynomial.
#pragma once
#include "cpu/simd.h"

namespace fusednn {
namespace FUSEDNN_ISA {

namespace detail {

template <class T>
struct FloatFormat;
template <>
struct FloatFormat<float> {
    using Unsigned = std::uint32_t;
    static constexpr int fraction_bits = 23, bias = 127;
    static constexpr float round = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
    // ln 2 in two parts; the first has so few bits that its product with an exponent is exact.
    static constexpr float ln2_high = 0.693145751953125f, ln2_low = 1.42860682030941723e-6f;
    static constexpr float exp_low = -105.0f, exp_high = 90.0f;  // beyond: 0 and infinity
    static constexpr float expm1_low = -25.0f;                   // beyond: -1
    static constexpr float tiny_scale = 8388608.0f;              // 2^23 makes denormals normal
    // e^r = 1 + r + r^2 (these), and log m = 2 s + s^3 (these) in powers of s^2.
    static constexpr int exp_terms = 5, log_terms = 3;
    static constexpr float exp_tail[] = {0x1.fffffcp-2f, 0x1.555492p-3f, 0x1.5558f0p-5f,
                                         0x1.123988p-7f, 0x1.6a24cap-10f};
    static constexpr float log_tail[] = {0x1.55557ap-1f, 0x1.995ec2p-2f, 0x1.31e210p-2f};
};
template <>
struct FloatFormat<double> {
    using Unsigned = std::uint64_t;
    static constexpr int fraction_bits = 52, bias = 1023;
    static constexpr double round = 6755399441055744.0;  // 1.5 * 2^52
    static constexpr double ln2_high = 0.693147180369123816490,
                            ln2_low = 1.90821492927058770002e-10;
    static constexpr double exp_low = -750.0, exp_high = 710.0;
    static constexpr double expm1_low = -50.0;
    static constexpr double tiny_scale = 4503599627370496.0;  // 2^52
    static constexpr int exp_terms = 10, log_terms = 7;
    static constexpr double exp_tail[] = {
        0x1.000000000000ap-1,  0x1.55555555554fap-3,  0x1.55555555508d9p-5,  0x1.1111111127a2ap-7,
        0x1.6c16c18414313p-10, 0x1.a01a012ac3e8fp-13, 0x1.a0199a4b559b2p-16, 0x1.71df24c1c676dp-19,
        0x1.28ad35bf1bac1p-22, 0x1.ad7fb65000892p-26};
    static constexpr double log_tail[] = {
        0x1.5555555555592p-1, 0x1.999999997fe59p-2, 0x1.24924941e7875p-2, 0x1.c71c5211b6313p-3,
        0x1.74663d1739a25p-3, 0x1.39a1ec307a2eap-3, 0x1.2f0357f4f7988p-3};
};

// Bits to shift as unsigned numbers: AVX2 has no arithmetic shift of 64-bit lanes.
template <class T>
using Bits = typename VecOf<typename FloatFormat<T>::Unsigned>::type;

// c[0] + c[1] x + ... by Horner's rule.
template <int kTerms, class T>
FUSEDNN_INLINE Vec<T> polynomial(const T (&c)[kTerms], Vec<T> x) {
    Vec<T> p = broadcast(c[kTerms - 1]);
#pragma GCC unroll 16
    for (int i = kTerms - 2; i >= 0; --i) p = multiply_add(p, x, broadcast(c[i]));
    return p;
}

}  // namespace detail

// Reinterprets bits.
template <class To, class From>
FUSEDNN_INLINE To bit_cast(From from) {
    static_assert(sizeof(To) == sizeof(From), "same size");
    To to;
    __builtin_memcpy(&to, &from, sizeof to);
    return to;
}

// a < b ? b : a and b < a ? b : a, one instruction each: a where either is NaN.
template <class T>
FUSEDNN_INLINE Vec<T> larger(Vec<T> a, Vec<T> b) {
#if defined(__AVX512F__)
    // The masked forms: GCC 12 warns about an undefined operand of the plain ones.
    if constexpr (sizeof(T) == 4) return (Vec<T>)_mm512_maskz_max_ps(0xffff, (__m512)b, (__m512)a);
    if constexpr (sizeof(T) == 8) return (Vec<T>)_mm512_maskz_max_pd(0xff, (__m512d)b, (__m512d)a);
#elif defined(__AVX2__)
    if constexpr (sizeof(T) == 4) return (Vec<T>)_mm256_max_ps((__m256)b, (__m256)a);
    if constexpr (sizeof(T) == 8) return (Vec<T>)_mm256_max_pd((__m256d)b, (__m256d)a);
#elif defined(__SSE2__)
    if constexpr (sizeof(T) == 4) return (Vec<T>)_mm_max_ps((__m128)b, (__m128)a);
    if constexpr (sizeof(T) == 8) return (Vec<T>)_mm_max_pd((__m128d)b, (__m128d)a);
#else
    return select<T>(a < b, b, a);
#endif
}
template <class T>
FUSEDNN_INLINE Vec<T> smaller(Vec<T> a, Vec<T> b) {
#if defined(__AVX512F__)
    if constexpr (sizeof(T) == 4) return (Vec<T>)_mm512_maskz_min_ps(0xffff, (__m512)b, (__m512)a);
    if constexpr (sizeof(T) == 8) return (Vec<T>)_mm512_maskz_min_pd(0xff, (__m512d)b, (__m512d)a);
#elif defined(__AVX2__)
    if constexpr (sizeof(T) == 4) return (Vec<T>)_mm256_min_ps((__m256)b, (__m256)a);
    if constexpr (sizeof(T) == 8) return (Vec<T>)_mm256_min_pd((__m256d)b, (__m256d)a);
#elif defined(__SSE2__)
    if constexpr (sizeof(T) == 4) return (Vec<T>)_mm_min_ps((__m128)b, (__m128)a);
    if constexpr (sizeof(T) == 8) return (Vec<T>)_mm_min_pd((__m128d)b, (__m128d)a);
#else
    return select<T>(b < a, b, a);
#endif
}

namespace detail {

// x = n ln 2 + r with |r| <= ln 2 / 2. Returns e^r - 1, and n + round, whose low bits are n's.
template <class T>
FUSEDNN_INLINE Vec<T> exp_minus_1_reduced(Vec<T> x, Vec<T>& shifted) {
    using Format = FloatFormat<T>;
    shifted = x * T(1.44269504088896340736) + Format::round;
    const Vec<T> n = shifted - Format::round;
    Vec<T> r = x - n * Format::ln2_high;
    r = r - n * Format::ln2_low;
    return r + (r * r) * polynomial(Format::exp_tail, r);
}

// v 2^n, rounded once where it is denormal.
template <class T>
FUSEDNN_INLINE Vec<T> scale_by_power(Vec<T> v, Vec<T> shifted) {
    using Format = FloatFormat<T>;
#if defined(__AVX512F__)
    const Vec<T> n = shifted - Format::round;
    if constexpr (sizeof(T) == 4) {
        return (Vec<T>)_mm512_maskz_scalef_ps(0xffff, (__m512)v, (__m512)n);
    } else {
        return (Vec<T>)_mm512_maskz_scalef_pd(0xff, (__m512d)v, (__m512d)n);
    }
#else
    // Two factors, of half the exponent each: one would not reach below 2^-126.
    constexpr typename Format::Unsigned twice_bias = 2 * Format::bias;
    const Bits<T> n = bit_cast<Bits<T>>(shifted) -
                      (bit_cast<typename Format::Unsigned>(Format::round) - twice_bias);
    const Bits<T> half = n >> 1, rest = n - half;
    v *= bit_cast<Vec<T>>(half << Format::fraction_bits);
    return v * bit_cast<Vec<T>>(rest << Format::fraction_bits);
#endif
}

// e^x - 1 for x <= 0, with all its bits near 0.
template <class T>
FUSEDNN_INLINE Vec<T> expm1_of_negative(Vec<T> x) {
    using Format = FloatFormat<T>;
    Vec<T> shifted;
    const Vec<T> e = exp_minus_1_reduced<T>(larger<T>(x, broadcast(Format::expm1_low)), shifted);
    const auto bits = bit_cast<Bits<T>>(shifted) -
                      (bit_cast<typename Format::Unsigned>(Format::round) - Format::bias);
    const Vec<T> power = bit_cast<Vec<T>>(bits << Format::fraction_bits);
    return power * e + (power - T(1));
}

template <class T>
FUSEDNN_INLINE Vec<T> magnitude(Vec<T> x, Mask<T>& sign) {
    sign = bit_cast<Mask<T>>(x) & bit_cast<Mask<T>>(broadcast(T(-0.0)));
    return bit_cast<Vec<T>>(bit_cast<Mask<T>>(x) ^ sign);
}

}  // namespace detail

template <class T>
FUSEDNN_INLINE Vec<T> vexp(Vec<T> x) {
    using Format = detail::FloatFormat<T>;
    x = larger<T>(x, broadcast(Format::exp_low));
    x = smaller<T>(x, broadcast(Format::exp_high));
    Vec<T> shifted;
    const Vec<T> e = detail::exp_minus_1_reduced<T>(x, shifted);
    return detail::scale_by_power<T>(T(1) + e, shifted);
}

// Natural logarithm: x = m 2^k with m = 1 + f in [sqrt 1/2, sqrt 2), and with s = f / (2 + f)
// log m = 2 atanh(s) = f - (f^2/2 - s (f^2/2 + s^2 p(s^2))). That form is exact where it matters: f
// has no rounding error, and what is taken from it is small.
template <class T>
FUSEDNN_INLINE Vec<T> vlog(Vec<T> x) {
    using Format = detail::FloatFormat<T>;
    using Unsigned = typename Format::Unsigned;
    const T smallest = bit_cast<T>(Unsigned(1) << Format::fraction_bits);
    const Mask<T> tiny = x < smallest;
    const Vec<T> scaled = select<T>(tiny, x * Format::tiny_scale, x);
    // The distance from sqrt 1/2, in bits, has k + bias in its exponent field.
    const Unsigned offset = (Unsigned(Format::bias) << Format::fraction_bits) -
                            bit_cast<Unsigned>(T(0.70710678118654752440));
    const auto bits = bit_cast<detail::Bits<T>>(scaled);
    const detail::Bits<T> biased = (bits + offset) >> Format::fraction_bits;
    const Vec<T> m =
        bit_cast<Vec<T>>(bits - ((biased - Unsigned(Format::bias)) << Format::fraction_bits));
    // An integer added to the bits of `round` is added to its value.
    const Unsigned magic = bit_cast<Unsigned>(Format::round) - Unsigned(Format::bias);
    Vec<T> k = bit_cast<Vec<T>>(biased + magic) - Format::round;
    k = select<T>(tiny, k - T(Format::fraction_bits), k);
    const Vec<T> f = m - T(1), half_square = T(0.5) * f * f;
    const Vec<T> s = f / (f + T(2)), z = s * s;
    const Vec<T> tail = z * detail::polynomial(Format::log_tail, z);
    Vec<T> y = s * (half_square + tail) + k * Format::ln2_low;
    y = k * Format::ln2_high - ((half_square - y) - f);
    const Vec<T> infinity = broadcast(T(__builtin_inf()));
    y = select<T>(x == infinity, x, y);
    y = select<T>(x == Vec<T>{}, -infinity, y);
    return select<T>((x < Vec<T>{}) | (x != x), broadcast(T(__builtin_nan(""))), y);
}

// above / below, with below in [1, 2]: what several share one division for.
template <class T>
struct Quotient {
    Vec<T> above, below;
};

// tanh |x| = -u / (2 + u) with u = e^(-2|x|) - 1, which is 0 or negative; the sign is x's, of 0
// too.
template <class T>
FUSEDNN_INLINE Quotient<T> tanh_quotient(Vec<T> x) {
    Mask<T> sign, unused;
    const Vec<T> u = detail::expm1_of_negative<T>(T(-2) * detail::magnitude<T>(x, sign));
    const Vec<T> y = detail::magnitude<T>(u, unused);
    return {bit_cast<Vec<T>>(bit_cast<Mask<T>>(y) | sign), T(2) + u};
}
template <class T>
FUSEDNN_INLINE Vec<T> vtanh(Vec<T> x) {
    const Quotient<T> q = tanh_quotient<T>(x);
    return q.above / q.below;
}

// 1 / (1 + e^-x) for x >= 0, e^x / (1 + e^x) below: neither overflows, and small results keep their
// bits.
template <class T>
FUSEDNN_INLINE Quotient<T> sigmoid_quotient(Vec<T> x) {
    Mask<T> sign;
    const Vec<T> e = vexp<T>(-detail::magnitude<T>(x, sign));
    return {select<T>(x < Vec<T>{}, e, broadcast(T(1))), T(1) + e};
}
template <class T>
FUSEDNN_INLINE Vec<T> vsigmoid(Vec<T> x) {
    const Quotient<T> q = sigmoid_quotient<T>(x);
    return q.above / q.below;
}

template <class T>
FUSEDNN_INLINE Vec<T> square_root(Vec<T> x) {
#if defined(__AVX512F__)
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

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
