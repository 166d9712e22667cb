// 16-bit floats in kernels: loaded as the types of core/types.h, widened to float, computed in
// float, and rounded to nearest even once. The functions take float and double as well, which they
// leave as they are, so that one kernel serves all four.
#pragma once
#include "core/types.h"

namespace fusednn::cuda {

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
    if constexpr (std::is_same_v<T, BFloat16>) {
        return {__bfloat16_as_ushort(__float2bfloat16_rn(x))};
    } else if constexpr (std::is_same_v<T, Float16>) {
        return {__half_as_ushort(__float2half_rn(x))};
    } else {
        return x;
    }
}

}  // namespace fusednn::cuda
