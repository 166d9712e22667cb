// SIMD for every kernel, over the compiler's vector extensions.
//
// This file and all of csrc/cpu is compiled once per ISA with FUSEDNN_ISA naming the build, and
// everything stands in namespace fusednn::FUSEDNN_ISA: an inline function shared between builds
// could put AVX-512 code into the baseline (the linker keeps one copy of equal names). For the same
// reason nothing here instantiates templates of the standard library. tests/check_isa_symbols.py
// guards this.
#pragma once
#if defined(__x86_64__)
#include <immintrin.h>
#endif
#include "core/types.h"

#ifndef FUSEDNN_ISA
#error "FUSEDNN_ISA must name the ISA build"
#endif

#define FUSEDNN_INLINE inline __attribute__((always_inline))

namespace fusednn {
namespace FUSEDNN_ISA {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
#elif defined(__AVX2__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif

template <class T>
constexpr int kLanes = kVectorBytes / int(sizeof(T));

namespace detail {
template <class T>
struct VecOf {
    typedef T type __attribute__((vector_size(kVectorBytes)));
    typedef T loose __attribute__((vector_size(kVectorBytes), aligned(sizeof(T)), may_alias));
};
template <class T>
struct IntOf;
template <>
struct IntOf<float> {
    using type = std::int32_t;
};
template <>
struct IntOf<double> {
    using type = std::int64_t;
};
}  // namespace detail

template <class T>
using Vec = typename detail::VecOf<T>::type;
// The integer type as wide as T, and vectors of it: what comparisons give (0 or -1 per lane).
template <class T>
using Int = typename detail::IntOf<T>::type;
template <class T>
using Mask = Vec<Int<T>>;

// ---- scalars ----------------------------------------

template <class A>
FUSEDNN_INLINE A min_of(A a, A b) {
    return b < a ? b : a;
}
template <class A>
FUSEDNN_INLINE A max_of(A a, A b) {
    return a < b ? b : a;
}
FUSEDNN_INLINE i64 ceil_div(i64 a, i64 b) {
    return (a + b - 1) / b;
}
FUSEDNN_INLINE i64 round_up(i64 a, i64 b) {
    return ceil_div(a, b) * b;
}

// ---- loads and stores ----------------------------------------

template <class T>
FUSEDNN_INLINE Vec<T> load(const T* p) {
    return *reinterpret_cast<const typename detail::VecOf<T>::loose*>(p);
}

// kLanes<double> elements as doubles.
FUSEDNN_INLINE Vec<double> load_wide(const double* p) {
    return load(p);
}
FUSEDNN_INLINE Vec<double> load_wide(const float* p) {
    typedef float half __attribute__((vector_size(kVectorBytes / 2), aligned(4), may_alias));
    return __builtin_convertvector(*reinterpret_cast<const half*>(p), Vec<double>);
}

// kLanes<T> elements as T: floats and doubles as they are, the halves of floats widened.
template <class T>
FUSEDNN_INLINE Vec<T> load_as(const T* p) {
    return load(p);
}
// kLanes<float> values of 16 bits as words. (Left to itself, GCC widens in two halves and joins
// them.)
typedef std::uint32_t WordVec __attribute__((vector_size(kVectorBytes)));
FUSEDNN_INLINE WordVec load_halves(const BFloat16* p) {
    typedef std::uint16_t half
        __attribute__((vector_size(kVectorBytes / 2), aligned(2), may_alias));
    const half bits = *reinterpret_cast<const half*>(p);
#if defined(__AVX512F__)
    return (WordVec)_mm512_maskz_cvtepu16_epi32(0xffff, (__m256i)bits);
#elif defined(__AVX2__)
    return (WordVec)_mm256_cvtepu16_epi32((__m128i)bits);
#else
    return __builtin_convertvector(bits, WordVec);
#endif
}
template <class T>
FUSEDNN_INLINE Vec<T> load_as(const BFloat16* p) {
    static_assert(sizeof(T) == 4, "widened to float");
    return (Vec<T>)(load_halves(p) << 16);
}

template <class T>
FUSEDNN_INLINE void store(T* p, Vec<T> v) {
    *reinterpret_cast<typename detail::VecOf<T>::loose*>(p) = v;
}

template <class T>
FUSEDNN_INLINE Vec<T> broadcast(T x) {
    return x -
           Vec<T>{};  // the compilers' idiom for a splat; x - 0 is x for every x, -0 and NaN too
}

// A set of neighbouring lanes [begin, end), in the form that the ISA's masked load takes.
#if defined(__AVX512F__)
struct LaneSet {
    unsigned bits;
};
FUSEDNN_INLINE LaneSet lanes_between(i64 begin, i64 end) {
    return {begin < end ? ((1u << end) - 1) & ~((1u << begin) - 1) : 0u};
}
FUSEDNN_INLINE LaneSet intersect(LaneSet a, LaneSet b) {
    return {a.bits & b.bits};
}
#else
struct LaneSet {
    int begin, end;
};
FUSEDNN_INLINE LaneSet lanes_between(i64 begin, i64 end) {
    return {int(begin), int(end)};
}
FUSEDNN_INLINE LaneSet intersect(LaneSet a, LaneSet b) {
    return {max_of(a.begin, b.begin), min_of(a.end, b.end)};
}
#endif

// The lanes of the set from the vector at p, the rest 0; never touches the memory of the others.
template <class T>
FUSEDNN_INLINE Vec<T> load_lanes(const T* p, LaneSet lanes) {
#if defined(__AVX512F__)
    if constexpr (sizeof(T) == 4) {
        return (Vec<T>)_mm512_maskz_loadu_epi32(__mmask16(lanes.bits), p);
    } else {
        return (Vec<T>)_mm512_maskz_loadu_epi64(__mmask8(lanes.bits), p);
    }
#elif defined(__AVX2__)
    if constexpr (sizeof(T) == 4) {
        const Mask<T> id = {0, 1, 2, 3, 4, 5, 6, 7};
        const Mask<T> mask = (id >= lanes.begin) & (id < lanes.end);
        return (Vec<T>)_mm256_maskload_epi32(reinterpret_cast<const int*>(p), (__m256i)mask);
    } else {
        const Mask<T> id = {0, 1, 2, 3};
        const Mask<T> mask = (id >= Int<T>(lanes.begin)) & (id < Int<T>(lanes.end));
        return (Vec<T>)_mm256_maskload_epi64(reinterpret_cast<const long long*>(p), (__m256i)mask);
    }
#else
    if (lanes.begin <= 0 && lanes.end >= kLanes<T>) return load(p);
    Vec<T> v{};
    for (int i = max_of(lanes.begin, 0); i < min_of(lanes.end, kLanes<T>); ++i) v[i] = p[i];
    return v;
#endif
}

// The first n lanes (0 <= n <= kLanes), the rest 0; never touches memory past p + n.
template <class T>
FUSEDNN_INLINE Vec<T> load_partial(const T* p, i64 n) {
    return load_lanes(p, lanes_between(0, n));
}

template <class T>
FUSEDNN_INLINE Vec<T> load_partial_as(const T* p, i64 n) {
    return load_partial(p, n);
}
template <class T>
FUSEDNN_INLINE Vec<T> load_partial_as(const BFloat16* p, i64 n) {
    BFloat16 part[kLanes<T>] = {};
    __builtin_memcpy(part, p, std::size_t(n) * sizeof(BFloat16));
    return load_as<T>(part);
}

template <class T>
FUSEDNN_INLINE void store_partial(T* p, Vec<T> v, i64 n) {
#if defined(__AVX512F__)
    if constexpr (sizeof(T) == 4) {
        _mm512_mask_storeu_epi32(p, __mmask16((1u << n) - 1), (__m512i)v);
    } else {
        _mm512_mask_storeu_epi64(p, __mmask8((1u << n) - 1), (__m512i)v);
    }
#else
    for (i64 i = 0; i < n; ++i) p[i] = v[i];
#endif
}

// How many elements from p on until vectors lie within cache lines, where that is the same for rows
// `row` elements apart; else 0. Rows a power of two apart share a few sets of the L1 cache: a line
// that two vectors need would have left it in between.
template <class T>
FUSEDNN_INLINE i64 elements_to_line(const T* p, i64 row) {
    if (row % kLanes<T> != 0) return 0;
    return i64(-reinterpret_cast<std::uintptr_t>(p) / sizeof(T) % std::uintptr_t(kLanes<T>));
}

// ---- arithmetic ----------------------------------------

// mask ? a : b, lane by lane.
template <class T>
FUSEDNN_INLINE Vec<T> select(Mask<T> mask, Vec<T> a, Vec<T> b) {
    return mask ? a : b;
}

// a * b + c, fused where the ISA has FMA (-ffp-contract=fast is set for these files).
template <class V>
FUSEDNN_INLINE V multiply_add(V a, V b, V c) {
    return a * b + c;
}

// ---- shuffles ----------------------------------------

namespace detail {
template <int... I>
struct Seq {};
template <int N, int... I>
struct MakeSeq : MakeSeq<N - 1, N - 1, I...> {};
template <int... I>
struct MakeSeq<0, I...> {
    using type = Seq<I...>;
};

template <class V, int N, int... I>
FUSEDNN_INLINE V interleave_low(V a, V b, Seq<I...>) {
    return __builtin_shufflevector(a, b, (I % 2 * N + I / 2)...);
}
template <class V, int N, int... I>
FUSEDNN_INLINE V interleave_high(V a, V b, Seq<I...>) {
    return __builtin_shufflevector(a, b, (I % 2 * N + N / 2 + I / 2)...);
}
// Lane i + by at lane i; what comes from beyond the end does not matter.
template <class V, int N, int kBy, int... I>
FUSEDNN_INLINE V shifted_lanes(V v, Seq<I...>) {
    return __builtin_shufflevector(v, v, ((I + kBy) % N)...);
}
template <class V, int... I>
FUSEDNN_INLINE V even_lanes(V a, V b, Seq<I...>) {
    return __builtin_shufflevector(a, b, (2 * I)...);
}
template <class V, int... I>
FUSEDNN_INLINE V odd_lanes(V a, V b, Seq<I...>) {
    return __builtin_shufflevector(a, b, (2 * I + 1)...);
}
}  // namespace detail

// Lanes added in a fixed tree (halves, then quarters ...): the same bits every time.
template <class T>
FUSEDNN_INLINE T sum_lanes(Vec<T> v) {
    constexpr int n = kLanes<T>;
    using All = typename detail::MakeSeq<n>::type;
    if constexpr (n >= 16) v += detail::shifted_lanes<Vec<T>, n, 8>(v, All{});
    if constexpr (n >= 8) v += detail::shifted_lanes<Vec<T>, n, 4>(v, All{});
    if constexpr (n >= 4) v += detail::shifted_lanes<Vec<T>, n, 2>(v, All{});
    v += detail::shifted_lanes<Vec<T>, n, 1>(v, All{});
    return v[0];
}

// a0 b0 a1 b1 ... (the low halves), and the same of the high halves.
template <class T>
FUSEDNN_INLINE Vec<T> interleave_low(Vec<T> a, Vec<T> b) {
    return detail::interleave_low<Vec<T>, kLanes<T>>(a, b,
                                                     typename detail::MakeSeq<kLanes<T>>::type{});
}
template <class T>
FUSEDNN_INLINE Vec<T> interleave_high(Vec<T> a, Vec<T> b) {
    return detail::interleave_high<Vec<T>, kLanes<T>>(a, b,
                                                      typename detail::MakeSeq<kLanes<T>>::type{});
}
// Lanes 0, 2, 4 ... (or 1, 3, 5 ...) of the 2 * kLanes values a|b.
// AVX2 in two steps, within 128-bit halves and across them: left to itself, GCC takes three, two of
// them with an index vector to load.
template <class T>
FUSEDNN_INLINE Vec<T> even_lanes(Vec<T> a, Vec<T> b) {
#if defined(__AVX2__) && !defined(__AVX512F__)
    if constexpr (sizeof(T) == 4) {
        const __m256 halves = _mm256_shuffle_ps((__m256)a, (__m256)b, 0x88);
        return (Vec<T>)_mm256_permute4x64_pd(_mm256_castps_pd(halves), 0xd8);
    }
#endif
    return detail::even_lanes(a, b, typename detail::MakeSeq<kLanes<T>>::type{});
}
template <class T>
FUSEDNN_INLINE Vec<T> odd_lanes(Vec<T> a, Vec<T> b) {
#if defined(__AVX2__) && !defined(__AVX512F__)
    if constexpr (sizeof(T) == 4) {
        const __m256 halves = _mm256_shuffle_ps((__m256)a, (__m256)b, 0xdd);
        return (Vec<T>)_mm256_permute4x64_pd(_mm256_castps_pd(halves), 0xd8);
    }
#endif
    return detail::odd_lanes(a, b, typename detail::MakeSeq<kLanes<T>>::type{});
}

// The first n lanes to p[0], p[step], p[2 * step] ...; what lies between stays as it is.
template <class T>
FUSEDNN_INLINE void store_every(T* p, i64 step, Vec<T> v, i64 n) {
#if defined(__AVX512F__)
    if (step == 2) {
        constexpr unsigned even = sizeof(T) == 4 ? 0x5555u : 0x55u;
        const auto put = [](T* dst, Vec<T> pairs, unsigned mask) {
            if constexpr (sizeof(T) == 4) {
                _mm512_mask_storeu_epi32(dst, __mmask16(mask), (__m512i)pairs);
            } else {
                _mm512_mask_storeu_epi64(dst, __mmask8(mask), (__m512i)pairs);
            }
        };
        constexpr i64 half = kLanes<T> / 2;
        put(p, interleave_low<T>(v, v), n < half ? even & ((1u << 2 * n) - 1) : even);
        if (n > half) {
            put(p + 2 * half, interleave_high<T>(v, v),
                n < 2 * half ? even & ((1u << 2 * (n - half)) - 1) : even);
        }
        return;
    }
#endif
    for (i64 i = 0; i < n; ++i) p[i * step] = v[i];
}

namespace detail {
// Which lane of a|b goes to lane i. Interleave, kLane: of each 128-bit part, the low (or, kHigh,
// the high) halves of a and b in turns of `kSize` lanes. Parts: the even (or odd) parts of a|b.
template <class T, int kSize, bool kHigh>
struct Interleave {
    static constexpr int kPart = 16 / int(sizeof(T));
    static constexpr int from(int i) {
        const int in_part = i % kPart, turn = in_part / kSize;
        return i / kPart * kPart + turn / 2 * kSize + in_part % kSize + (kHigh ? kPart / 2 : 0) +
               turn % 2 * kLanes<T>;
    }
};
template <class T, bool kOdd>
struct Parts {
    static constexpr int kPart = 16 / int(sizeof(T));
    static constexpr int from(int i) { return (i / kPart * 2 + kOdd) * kPart + i % kPart; }
};
template <class T, class From, int... I>
FUSEDNN_INLINE Vec<T> shuffled(Vec<T> a, Vec<T> b, Seq<I...>) {
    return __builtin_shufflevector(a, b, From::from(I)...);
}
template <class T, class From>
FUSEDNN_INLINE Vec<T> shuffled(Vec<T> a, Vec<T> b) {
    return shuffled<T, From>(a, b, typename MakeSeq<kLanes<T>>::type{});
}
// v[first], v[first + by] ...: a block of so many 128-bit parts each way, transposed.
template <class T, int kParts>
FUSEDNN_INLINE void transpose_parts(Vec<T> (&v)[kLanes<T>], int first, int by) {
    if constexpr (kParts == 2) {
        const Vec<T> a = v[first], b = v[first + by];
        v[first] = shuffled<T, Parts<T, false>>(a, b);
        v[first + by] = shuffled<T, Parts<T, true>>(a, b);
    }
    if constexpr (kParts == 4) {
        const Vec<T> a = shuffled<T, Parts<T, false>>(v[first], v[first + by]);
        const Vec<T> b = shuffled<T, Parts<T, true>>(v[first], v[first + by]);
        const Vec<T> c = shuffled<T, Parts<T, false>>(v[first + 2 * by], v[first + 3 * by]);
        const Vec<T> d = shuffled<T, Parts<T, true>>(v[first + 2 * by], v[first + 3 * by]);
        v[first] = shuffled<T, Parts<T, false>>(a, c);
        v[first + by] = shuffled<T, Parts<T, false>>(b, d);
        v[first + 2 * by] = shuffled<T, Parts<T, true>>(a, c);
        v[first + 3 * by] = shuffled<T, Parts<T, true>>(b, d);
    }
}
}  // namespace detail

// Transposes the kLanes x kLanes block in v in place: first within 128-bit parts, then the parts.
// (Perfect shuffles of whole vectors are as many, but each takes an index and, on Zen 4, twice the
// time.)
template <class T>
FUSEDNN_INLINE void transpose(Vec<T> (&v)[kLanes<T>]) {
    constexpr int n = kLanes<T>, part = 16 / int(sizeof(T));
#pragma GCC unroll 16
    for (int i = 0; i < n; i += 2) {
        const Vec<T> a = v[i], b = v[i + 1];
        v[i] = detail::shuffled<T, detail::Interleave<T, 1, false>>(a, b);
        v[i + 1] = detail::shuffled<T, detail::Interleave<T, 1, true>>(a, b);
    }
    if constexpr (part == 4) {
#pragma GCC unroll 4
        for (int i = 0; i < n; i += 4) {
            const Vec<T> a = v[i], b = v[i + 1], c = v[i + 2], d = v[i + 3];
            v[i] = detail::shuffled<T, detail::Interleave<T, 2, false>>(a, c);
            v[i + 1] = detail::shuffled<T, detail::Interleave<T, 2, true>>(a, c);
            v[i + 2] = detail::shuffled<T, detail::Interleave<T, 2, false>>(b, d);
            v[i + 3] = detail::shuffled<T, detail::Interleave<T, 2, true>>(b, d);
        }
    }
#pragma GCC unroll 4
    for (int i = 0; i < part; ++i) detail::transpose_parts<T, n / part>(v, i, part);
}

// ---- denormals ----------------------------------------

// While alive, results and inputs below the smallest normal number count as 0. For sums of products
// only (matrix products, recurrent steps, attention): there a denormal changes nothing but time.
class FlushDenormals {
  public:
#if defined(__x86_64__)
    FUSEDNN_INLINE FlushDenormals() : saved_(_mm_getcsr()) { _mm_setcsr(saved_ | 0x8040); }
    FUSEDNN_INLINE ~FlushDenormals() { _mm_setcsr(saved_); }

  private:
    unsigned saved_;
#elif defined(__aarch64__)
    FUSEDNN_INLINE FlushDenormals() {
        __asm__ volatile("mrs %0, fpcr" : "=r"(saved_));
        __asm__ volatile("msr fpcr, %0" : : "r"(saved_ | (std::uint64_t(1) << 24)));
    }
    FUSEDNN_INLINE ~FlushDenormals() { __asm__ volatile("msr fpcr, %0" : : "r"(saved_)); }

  private:
    std::uint64_t saved_;
#endif
    FlushDenormals(const FlushDenormals&) = delete;
    FlushDenormals& operator=(const FlushDenormals&) = delete;
};

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
