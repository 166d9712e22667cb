// The normal distribution's tail and density, for gelu.
//
// With a = |x|: tail = P(Z > a) = exp(-a^2 / 2) m(a), where m (Mills' ratio over sqrt(2 pi)) is
// smooth: (a + k) m(a) is a polynomial in t = (a - k) / (a + k). bench/lab/vmath_coefficients.py
// derives the coefficients. Relative errors stay at a few ulp far out in the tail, since what a^2
// loses by rounding is put back: it counts a^2 times as much there.
#pragma once
#include "cpu/opaque.h"
#include "cpu/vmath.h"

namespace fusednn {
namespace FUSEDNN_ISA {

namespace detail {

template <class T>
struct NormalFormat;
template <>
struct NormalFormat<float> {
    static constexpr std::uint32_t high_bits = 0xfffff000u;  // 12 of 24: exact squares
    static constexpr float top = 14.5f, shift = 3.0f;        // beyond `top` the tail is 0
    static constexpr float mills[] = {0x1.754a74p-1f,  -0x1.04c734p-1f,  0x1.d71468p-3f,
                                      -0x1.831d96p-5f, -0x1.576930p-7f,  0x1.c584eap-8f,
                                      0x1.19bc66p-10f, -0x1.d6c9c0p-11f, -0x1.13e100p-12f};
};
template <>
struct NormalFormat<double> {
    static constexpr std::uint64_t high_bits = 0xfffffffff8000000u;  // 26 of 53
    static constexpr double top = 39.0, shift = 4.0;
    static constexpr double mills[] = {
        0x1.82b4bb8c94dcep-1,   -0x1.373e3a893c28ap-1,  0x1.8c6dbf2cfc307p-2,
        -0x1.7dff2bff6848dp-3,  0x1.eec4cc3e444afp-5,   -0x1.ee2761043992dp-8,
        -0x1.c81719c9707bep-9,  0x1.ab825fb0bef7ap-10,  0x1.17a4a60769c64p-13,
        -0x1.e4a421ba1484ep-13, -0x1.00111aabf818cp-19, 0x1.26d0637a5dbdap-15,
        0x1.7fdaa47639c7fp-21,  -0x1.8d48ff55d9a23p-18, -0x1.4fad333b74babp-21,
        0x1.124d28f0b565bp-20,  0x1.1ba89fa63ebf3p-22,  -0x1.50429badcf194p-23,
        -0x1.4bb0458a5b76dp-24, 0x1.13eea824f8c28p-26,  0x1.f67da4d86fc1dp-27,
        -0x1.71a85d7288c73p-32, -0x1.48f04da483479p-30};
};

}  // namespace detail

template <class T>
struct Normal {
    Vec<T> a;        // |x|, at most what has a tail at all
    Vec<T> tail;     // P(Z > a)
    Vec<T> density;  // exp(-a^2 / 2) / sqrt(2 pi)
};

// a^2 - square, where square is a^2 rounded.
template <class T>
FUSEDNN_INLINE Vec<T> lost_of_square(Vec<T> a, Vec<T> square) {
#if defined(__FMA__) || defined(__aarch64__)
    // Hidden, or the compiler would take the product it has.
    return multiply_add<Vec<T>>(opaque<Vec<T>>(a), a, -square);
#else
    using Bits = detail::Bits<T>;
    const Vec<T> high = bit_cast<Vec<T>>(bit_cast<Bits>(a) & detail::NormalFormat<T>::high_bits);
    const Vec<T> low = a - high;
    return ((high * high - square) + T(2) * high * low) + low * low;
#endif
}

template <class T>
FUSEDNN_INLINE Normal<T> normal(Vec<T> x) {
    using Format = detail::NormalFormat<T>;
    Mask<T> sign;
    const Vec<T> a = smaller<T>(detail::magnitude<T>(x, sign), broadcast(Format::top));
    const Vec<T> square = opaque<Vec<T>>(a * a);
    // e^(-a^2 / 2) from the rounded square, and a factor for what it lost.
    Vec<T> e = vexp<T>(square * T(-0.5));
    e = e - e * (lost_of_square<T>(a, square) * T(0.5));
    const Vec<T> scale = T(1) / (a + Format::shift);
    const Vec<T> mills = detail::polynomial(Format::mills, (a - Format::shift) * scale) * scale;
    return {a, e * mills, e * T(0.398942280401432677939946)};
}

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
