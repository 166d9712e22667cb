// Vector steps that only pooling needs: a maximum that keeps NaN, padding, and tap numbers in their
// narrow form.
#pragma once
#include "cpu/simd.h"

namespace fusednn {
namespace FUSEDNN_ISA {

template <class T>
constexpr T kLowest = -__builtin_inf();

// 0, 1, 2 ...
template <class T>
FUSEDNN_INLINE Mask<T> lane_numbers() {
    Mask<T> lane;
    for (int i = 0; i < kLanes<T>; ++i) lane[i] = i;
    return lane;
}

// a > b ? a : b, lane by lane: b where the two do not compare. One instruction on x86, where
// comparing and selecting would take two, one behind the other.
template <class T>
FUSEDNN_INLINE Vec<T> greater_of(Vec<T> a, Vec<T> b) {
#if defined(__AVX512F__)
    if constexpr (sizeof(T) == 4) return (Vec<T>)_mm512_maskz_max_ps(__mmask16(-1), a, b);
    if constexpr (sizeof(T) == 8) return (Vec<T>)_mm512_maskz_max_pd(__mmask8(-1), a, b);
#elif defined(__AVX2__)
    if constexpr (sizeof(T) == 4) return (Vec<T>)_mm256_max_ps(a, b);
    if constexpr (sizeof(T) == 8) return (Vec<T>)_mm256_max_pd(a, b);
#elif defined(__x86_64__)
    if constexpr (sizeof(T) == 4) return (Vec<T>)_mm_max_ps(a, b);
    if constexpr (sizeof(T) == 8) return (Vec<T>)_mm_max_pd(a, b);
#else
    return select<T>(a > b, a, b);
#endif
}

// NaN where either is NaN: one in b survives by itself, only one in a needs help.
template <class T>
FUSEDNN_INLINE Vec<T> max_nan(Vec<T> a, Vec<T> b) {
#if defined(__AVX512F__)
    if constexpr (sizeof(T) == 4) {
        return (Vec<T>)_mm512_mask_max_ps(a, _mm512_cmp_ps_mask(a, a, _CMP_ORD_Q), a, b);
    } else {
        return (Vec<T>)_mm512_mask_max_pd(a, _mm512_cmp_pd_mask(a, a, _CMP_ORD_Q), a, b);
    }
#else
    return select<T>(a != a, a, greater_of<T>(a, b));
#endif
}

// Is any lane set?
template <class T>
FUSEDNN_INLINE bool any_lane(Mask<T> mask) {
#if defined(__AVX512F__)
    return _mm512_test_epi32_mask((__m512i)mask, (__m512i)mask) != 0;
#elif defined(__AVX2__)
    return _mm256_movemask_epi8((__m256i)mask) != 0;
#elif defined(__x86_64__)
    return _mm_movemask_epi8((__m128i)mask) != 0;
#else
    const auto halves = (Vec<i64>)mask;
    return (halves[0] | halves[1]) != 0;
#endif
}

// Remembers whether any vector it was shown holds a NaN.
template <class T>
class NanWatch {
  public:
    FUSEDNN_INLINE void see(Vec<T> a, Vec<T> b) {
#if defined(__AVX512F__)
        if constexpr (sizeof(T) == 4) {
            seen_ |= _mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q);
        } else {
            seen_ |= _mm512_cmp_pd_mask(a, b, _CMP_UNORD_Q);
        }
#elif defined(__AVX2__)
        if constexpr (sizeof(T) == 4) {
            seen_ |= (Mask<T>)_mm256_cmp_ps(a, b, _CMP_UNORD_Q);
        } else {
            seen_ |= (Mask<T>)_mm256_cmp_pd(a, b, _CMP_UNORD_Q);
        }
#elif defined(__x86_64__)
        if constexpr (sizeof(T) == 4) {
            seen_ |= (Mask<T>)_mm_cmpunord_ps(a, b);
        } else {
            seen_ |= (Mask<T>)_mm_cmpunord_pd(a, b);
        }
#else
        seen_ |= (a != a) | (b != b);
#endif
    }
#if defined(__AVX512F__)
    FUSEDNN_INLINE bool any() const { return seen_ != 0; }

  private:
    unsigned seen_ = 0;
#else
    FUSEDNN_INLINE bool any() const { return any_lane<T>(seen_); }

  private:
    Mask<T> seen_{};
#endif
};

// sum + v where the mask is set.
template <class T>
FUSEDNN_INLINE Vec<T> add_where(Mask<T> mask, Vec<T> sum, Vec<T> v) {
#if defined(__AVX512F__)
    return select<T>(mask, sum + v, sum);
#else
    return sum + select<T>(mask, v, Vec<T>{});
#endif
}

// first, v[0], v[1] ... and v[1], v[2] ... last.
namespace detail {
template <class T, int... I>
FUSEDNN_INLINE Vec<T> shift_in(T first, Vec<T> v, Seq<I...>) {
    return __builtin_shufflevector(broadcast(first), v, (kLanes<T> - 1 + I)...);
}
template <class T, int... I>
FUSEDNN_INLINE Vec<T> shift_out(Vec<T> v, T last, Seq<I...>) {
    return __builtin_shufflevector(v, broadcast(last), (1 + I)...);
}
}  // namespace detail
template <class T>
FUSEDNN_INLINE Vec<T> shift_in(T first, Vec<T> v) {
    return detail::shift_in<T>(first, v, typename detail::MakeSeq<kLanes<T>>::type{});
}
template <class T>
FUSEDNN_INLINE Vec<T> shift_out(Vec<T> v, T last) {
    return detail::shift_out<T>(v, last, typename detail::MakeSeq<kLanes<T>>::type{});
}

// The first n lanes of v, the rest as padding: never a maximum.
template <class T>
FUSEDNN_INLINE Vec<T> pad_after(Vec<T> v, i64 n) {
    return select<T>(lane_numbers<T>() < Mask<T>{} + Int<T>(n), v, broadcast(kLowest<T>));
}

// How a vector lies to the end of its row and of the array: within the row; beyond the row, but
// whole vectors may be read; or so near the end of the array that they may not.
enum class Edge { inside, masked, last };

// Columns p[0, kLanes) of which n (any number) are in the row, the others as padding.
template <class T, Edge kEdge>
FUSEDNN_INLINE Vec<T> columns_at(const T* p, i64 n) {
    if (kEdge == Edge::inside || (kEdge == Edge::last && n >= kLanes<T>)) return load(p);
    if (kEdge == Edge::masked) return pad_after<T>(load(p), n);
    return n <= 0 ? broadcast(kLowest<T>) : pad_after<T>(load_partial(p, n), n);
}

// At least the first n lanes of p, n <= kLanes; reads whole vectors where they end before `end`.
template <class T>
FUSEDNN_INLINE Vec<T> load_before(const T* p, i64 n, const T* end) {
    return end - p >= kLanes<T> ? load(p) : load_partial(p, n);
}

// At least the first n lanes to p, n <= kLanes; writes whole vectors where they end before `end`
// (what is too much must be overwritten later).
template <class T>
FUSEDNN_INLINE void store_before(T* p, Vec<T> v, i64 n, const T* end) {
    if (n >= kLanes<T> || end - p >= kLanes<T>) {
        store(p, v);
    } else {
        store_partial(p, v, n);
    }
}

// p[0, n) = v, and up to a vector more.
template <class T>
FUSEDNN_INLINE void fill(T* p, i64 n, Vec<T> v) {
    for (i64 i = 0; i < n; i += kLanes<T>) store(p + i, v);
}

// ---- tap numbers: one lane of Mask<T> each in registers, 1, 2 or 4 bytes each in memory
// ----------------------------------------

namespace detail {

#if defined(__x86_64__)
template <class T>
FUSEDNN_INLINE void store_bytes(std::uint8_t* p, Mask<T> taps) {
#if defined(__AVX512F__)
    if constexpr (sizeof(T) == 4) {
        _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                         _mm512_maskz_cvtepi32_epi8(__mmask16(-1), (__m512i)taps));
    } else {
        _mm_storel_epi64(reinterpret_cast<__m128i*>(p),
                         _mm512_maskz_cvtepi64_epi8(__mmask8(-1), (__m512i)taps));
    }
#else
    __m128i quads;  // as int32
#if defined(__AVX2__)
    const __m128i low = _mm256_castsi256_si128((__m256i)taps);
    const __m128i high = _mm256_extracti128_si256((__m256i)taps, 1);
    if constexpr (sizeof(T) == 4) {
        quads = _mm_packs_epi32(low, high);
    } else {
        quads =
            _mm_castps_si128(_mm_shuffle_ps(_mm_castsi128_ps(low), _mm_castsi128_ps(high), 0x88));
        quads = _mm_packs_epi32(quads, quads);
    }
#else
    quads = (__m128i)taps;
    if constexpr (sizeof(T) == 8) quads = _mm_shuffle_epi32(quads, 0x08);
    quads = _mm_packs_epi32(quads, quads);
#endif
    const __m128i bytes = _mm_packus_epi16(quads, quads);
    __builtin_memcpy(p, &bytes, kLanes<T>);
#endif
}

// N bytes in the low end of a register. Through integers: built up in memory, the bytes would be
// read back before they are there.
template <int N>
FUSEDNN_INLINE __m128i low_bytes(const std::uint8_t* p) {
    if constexpr (N == 16) return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    if constexpr (N == 8) return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
    std::uint32_t bits = 0;
    __builtin_memcpy(&bits, p, N < 4 ? N : 4);
    return _mm_cvtsi32_si128(int(bits));
}

template <class T>
FUSEDNN_INLINE Mask<T> load_bytes(const std::uint8_t* p) {
    const __m128i bytes = low_bytes<kLanes<T>>(p);
#if defined(__AVX512F__)
    if constexpr (sizeof(T) == 4) {
        return (Mask<T>)_mm512_maskz_cvtepu8_epi32(__mmask16(-1), bytes);
    } else {
        return (Mask<T>)_mm512_maskz_cvtepu8_epi64(__mmask8(-1), bytes);
    }
#elif defined(__AVX2__)
    if constexpr (sizeof(T) == 4) {
        return (Mask<T>)_mm256_cvtepu8_epi32(bytes);
    } else {
        return (Mask<T>)_mm256_cvtepu8_epi64(bytes);
    }
#else
    const __m128i zero{};
    __m128i wide = _mm_unpacklo_epi16(_mm_unpacklo_epi8(bytes, zero), zero);
    if constexpr (sizeof(T) == 8) wide = _mm_unpacklo_epi32(wide, zero);
    return (Mask<T>)wide;
#endif
}
#else
typedef std::uint8_t Bytes __attribute__((vector_size(16)));

template <class T, int... I>
FUSEDNN_INLINE void store_bytes(std::uint8_t* p, Mask<T> taps, Seq<I...>) {
    const Bytes all = (Bytes)taps;
    const Bytes low = __builtin_shufflevector(all, all, (I * int(sizeof(T)) % 16)...);
    __builtin_memcpy(p, &low, kLanes<T>);
}
template <class T>
FUSEDNN_INLINE void store_bytes(std::uint8_t* p, Mask<T> taps) {
    store_bytes<T>(p, taps, typename MakeSeq<16>::type{});
}

template <class T, int... I>
FUSEDNN_INLINE Mask<T> load_bytes(const std::uint8_t* p, Seq<I...>) {
    Bytes bytes{};
    __builtin_memcpy(&bytes, p, kLanes<T>);
    constexpr int size = sizeof(T);
    return (Mask<T>)__builtin_shufflevector(bytes, Bytes{}, (I % size == 0 ? I / size : 16)...);
}
template <class T>
FUSEDNN_INLINE Mask<T> load_bytes(const std::uint8_t* p) {
    return load_bytes<T>(p, typename MakeSeq<16>::type{});
}
#endif

}  // namespace detail

FUSEDNN_INLINE i64 tap_at(const void* taps, i64 i, int bytes) {
    if (bytes == 1) return static_cast<const std::uint8_t*>(taps)[i];
    if (bytes == 2) return static_cast<const std::uint16_t*>(taps)[i];
    return static_cast<const std::int32_t*>(taps)[i];
}

FUSEDNN_INLINE void set_tap(void* taps, i64 i, i64 tap, int bytes) {
    if (bytes == 1) {
        static_cast<std::uint8_t*>(taps)[i] = std::uint8_t(tap);
    } else if (bytes == 2) {
        static_cast<std::uint16_t*>(taps)[i] = std::uint16_t(tap);
    } else {
        static_cast<std::int32_t*>(taps)[i] = std::int32_t(tap);
    }
}

// Lanes [0, n) to taps[at, at + n), 1 <= n <= kLanes; all lanes where they end before `end`.
template <class T>
FUSEDNN_INLINE void store_taps(void* taps, i64 at, Mask<T> v, i64 n, i64 end, int bytes) {
    if (bytes == 1 && (n >= kLanes<T> || end - at >= kLanes<T>)) {
        detail::store_bytes<T>(static_cast<std::uint8_t*>(taps) + at, v);
    } else {
        for (i64 i = 0; i < min_of(n, i64(kLanes<T>)); ++i) set_tap(taps, at + i, v[i], bytes);
    }
}

// taps[at, at + n), 1 <= n <= kLanes, the lanes behind them undefined; nothing at or after `end` is
// read.
template <class T>
FUSEDNN_INLINE Mask<T> load_taps(const void* taps, i64 at, i64 n, i64 end, int bytes) {
    if (bytes == 1 && end - at >= kLanes<T>) {
        return detail::load_bytes<T>(static_cast<const std::uint8_t*>(taps) + at);
    }
    Mask<T> v{};
    for (i64 i = 0; i < min_of(n, i64(kLanes<T>)); ++i) v[i] = Int<T>(tap_at(taps, at + i, bytes));
    return v;
}

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
