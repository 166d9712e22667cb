// 16-bit floats in kernels: loaded as the types of core/types.h, widened to float, computed in
// float, and rounded to nearest even once. The functions take float and double as well, which they
// leave as they are, so that one kernel serves all four.
#pragma once
#include <cstring>

#include "core/types.h"

namespace fusednn::cuda {

// Two floats as 16-bit floats in one word, the first below: one instruction, where a single one
// goes through the slow unit of conversions.
template <class T>
FUSEDNN_DEVICE std::uint32_t narrow_pair(float low, float high) {
    std::uint32_t bits;
    if constexpr (std::is_same_v<T, BFloat16>) {
        const auto both = __floats2bfloat162_rn(low, high);
        memcpy(&bits, &both, sizeof bits);
    } else {
        const auto both = __floats2half2_rn(low, high);
        memcpy(&bits, &both, sizeof bits);
    }
    return bits;
}

// The types of CUDA's own functions.
template <class T>
struct NativeOf {
    using Type = T;
};
template <>
struct NativeOf<BFloat16> {
    using Type = __nv_bfloat16;
};
template <>
struct NativeOf<Float16> {
    using Type = __half;
};
template <class T>
using Native = typename NativeOf<T>::Type;

FUSEDNN_DEVICE float widen(float x) {
    return x;
}
FUSEDNN_DEVICE double widen(double x) {
    return x;
}
FUSEDNN_DEVICE float widen(BFloat16 x) {
    return __uint_as_float(std::uint32_t(x.bits) << 16);
}
FUSEDNN_DEVICE float widen(Float16 x) {
    return __half2float(__ushort_as_half(x.bits));
}

// narrow<T>(x): x of Accumulate<T> as a T.
template <class T>
FUSEDNN_DEVICE T narrow(Accumulate<T> x) {
    if constexpr (sizeof(T) == 2) {
        return {std::uint16_t(narrow_pair<T>(x, 0.0f))};
    } else {
        return x;
    }
}

// A 16-bit float of either format. Kernels that only move such values, and products, in which the
// format is but one instruction, are compiled once for both and told by a Format.
struct HalfBits {
    std::uint16_t bits;
};

}  // namespace fusednn::cuda

template <>
struct fusednn::AccumulateOf<fusednn::cuda::HalfBits> {
    using Type = float;
};

namespace fusednn::cuda {

template <class T>
struct Format {
    FUSEDNN_DEVICE T widen(T x) const { return x; }
    FUSEDNN_DEVICE T narrow(T x) const { return x; }
};
template <>
struct Format<HalfBits> {
    std::uint32_t brain;  // all bits: bfloat16; none: float16

    Format() = default;
    FUSEDNN_HOST_DEVICE constexpr Format(bool bfloat16) : brain(bfloat16 ? ~0u : 0u) {}
    // Both conversions, then one of them by its bits: three instructions. For a condition the
    // compiler would write every loop twice, once for each format.
    FUSEDNN_DEVICE float widen(HalfBits x) const {
        const std::uint32_t other = __float_as_uint(cuda::widen(Float16{x.bits}));
        return __uint_as_float((std::uint32_t(x.bits) << 16 & brain) | (other & ~brain));
    }
    FUSEDNN_DEVICE HalfBits narrow(float x) const { return {std::uint16_t(narrow(x, 0.0f))}; }
    FUSEDNN_DEVICE std::uint32_t narrow(float low, float high) const {
        return (narrow_pair<BFloat16>(low, high) & brain) |
               (narrow_pair<Float16>(low, high) & ~brain);
    }
};

// What kernels of T are compiled for, and the format then.
template <class T>
struct StorageOf {
    using Type = T;
    static constexpr Format<T> format() { return {}; }
};
template <>
struct StorageOf<BFloat16> {
    using Type = HalfBits;
    static constexpr Format<HalfBits> format() { return {true}; }
};
template <>
struct StorageOf<Float16> {
    using Type = HalfBits;
    static constexpr Format<HalfBits> format() { return {false}; }
};
template <class T>
using Storage = typename StorageOf<T>::Type;
template <class T>
Storage<T>* storage(T* data) {
    return reinterpret_cast<Storage<T>*>(data);
}
template <class T>
const Storage<T>* storage(const T* data) {
    return reinterpret_cast<const Storage<T>*>(data);
}

}  // namespace fusednn::cuda
