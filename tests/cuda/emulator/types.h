// CUDA's qualifiers, vector types, 16-bit floats and device mathematics.
#pragma once
#include <math.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#define __global__
#define __device__
#define __host__
#define __constant__
#define __grid_constant__
#define __launch_bounds__(...)
#define __forceinline__ inline __attribute__((always_inline))
#define __align__(n) alignas(n)

// ---- vector types
// --------------------------------------------------------------------------------

struct uint3 {
    unsigned x, y, z;
};
struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

#define EMULATOR_VECTOR(T, name, align2, align4)        \
    struct alignas(align2) name##2 {                    \
        T x, y;                                         \
    };                                                  \
    struct alignas(align4) name##4 {                    \
        T x, y, z, w;                                   \
    };                                                  \
    inline name##2 make_##name##2(T x, T y) {           \
        return {x, y};                                  \
    }                                                   \
    inline name##4 make_##name##4(T x, T y, T z, T w) { \
        return {x, y, z, w};                            \
    }
EMULATOR_VECTOR(float, float, 8, 16)
EMULATOR_VECTOR(int, int, 8, 16)
EMULATOR_VECTOR(unsigned, uint, 8, 16)
EMULATOR_VECTOR(double, double, 16, 16)
#undef EMULATOR_VECTOR

// Set whenever a thread goes on.
extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;
constexpr int warpSize = 32;

// ---- 16-bit floats
// -------------------------------------------------------------------------------

namespace emulator {
template <class To, class From>
To bits(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    std::memcpy(&to, &from, sizeof to);
    return to;
}
}  // namespace emulator

struct alignas(2) __nv_bfloat16 {
    std::uint16_t bits;
};
struct alignas(4) __nv_bfloat162 {
    __nv_bfloat16 x, y;
};
struct alignas(2) __half {
    std::uint16_t bits;
};
struct alignas(4) __half2 {
    __half x, y;
};

inline float __bfloat162float(__nv_bfloat16 v) {
    return emulator::bits<float>(std::uint32_t(v.bits) << 16);
}
inline __nv_bfloat16 __float2bfloat16_rn(float f) {
    const auto u = emulator::bits<std::uint32_t>(f);
    if ((u & 0x7fffffffu) > 0x7f800000u) return {std::uint16_t(0x7fff)};
    return {std::uint16_t((u + 0x7fffu + ((u >> 16) & 1u)) >> 16)};
}
inline __nv_bfloat16 __float2bfloat16(float f) {
    return __float2bfloat16_rn(f);
}
inline __nv_bfloat162 __floats2bfloat162_rn(float a, float b) {
    return {__float2bfloat16_rn(a), __float2bfloat16_rn(b)};
}
inline float2 __bfloat1622float2(__nv_bfloat162 v) {
    return {__bfloat162float(v.x), __bfloat162float(v.y)};
}
inline float __half2float(__half v) {
    return float(emulator::bits<_Float16>(v.bits));
}
inline __half __float2half_rn(float f) {
    return {emulator::bits<std::uint16_t>(_Float16(f))};
}
inline __half __float2half(float f) {
    return __float2half_rn(f);
}
inline __half2 __floats2half2_rn(float a, float b) {
    return {__float2half_rn(a), __float2half_rn(b)};
}

inline __half __ushort_as_half(unsigned short bits) {
    return {bits};
}
inline unsigned short __half_as_ushort(__half v) {
    return v.bits;
}
inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short bits) {
    return {bits};
}
inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 v) {
    return v.bits;
}

// ---- mathematics; exp(float) and its like come from math.h
// ---------------------------------------

inline float __expf(float x) {
    return expf(x);
}
inline float __logf(float x) {
    return logf(x);
}
inline float __fdividef(float a, float b) {
    return a / b;
}
inline float __frcp_rn(float x) {
    return 1.0f / x;
}
inline float rsqrtf(float x) {
    return 1.0f / sqrtf(x);
}
inline double rsqrt(double x) {
    return 1.0 / sqrt(x);
}
inline float rsqrt(float x) {
    return rsqrtf(x);
}
inline float __fmaf_rn(float a, float b, float c) {
    return fmaf(a, b, c);
}
inline float __int_as_float(int i) {
    return emulator::bits<float>(i);
}
inline int __float_as_int(float f) {
    return emulator::bits<int>(f);
}
inline float __uint_as_float(unsigned i) {
    return emulator::bits<float>(i);
}
inline unsigned __float_as_uint(float f) {
    return emulator::bits<unsigned>(f);
}
inline double __longlong_as_double(long long i) {
    return emulator::bits<double>(i);
}
inline long long __double_as_longlong(double f) {
    return emulator::bits<long long>(f);
}
inline int __popc(unsigned v) {
    return __builtin_popcount(v);
}
inline int __popcll(unsigned long long v) {
    return __builtin_popcountll(v);
}
inline int __clz(int v) {
    return v ? __builtin_clz(unsigned(v)) : 32;
}
inline int __ffs(int v) {
    return __builtin_ffs(v);
}
inline unsigned __umulhi(unsigned a, unsigned b) {
    return unsigned(std::uint64_t(a) * b >> 32);
}
#define EMULATOR_ORDER(T)     \
    inline T min(T a, T b) {  \
        return b < a ? b : a; \
    }                         \
    inline T max(T a, T b) {  \
        return a < b ? b : a; \
    }
EMULATOR_ORDER(int)
EMULATOR_ORDER(unsigned)
EMULATOR_ORDER(long)
EMULATOR_ORDER(unsigned long)
EMULATOR_ORDER(long long)
EMULATOR_ORDER(unsigned long long)
#undef EMULATOR_ORDER
inline float min(float a, float b) {
    return fminf(a, b);
}
inline float max(float a, float b) {
    return fmaxf(a, b);
}
inline double min(double a, double b) {
    return fmin(a, b);
}
inline double max(double a, double b) {
    return fmax(a, b);
}
