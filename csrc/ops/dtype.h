#pragma once
#include "core/types.h"

namespace fusednn {

// Calls body with a zero of the C++ type that `dtype` names; of those that are computed in.
template <class Body>
auto with_dtype(DType dtype, const Body& body) {
    return dtype == DType::f32 ? body(float{}) : body(double{});
}

// The same where arrays on a GPU may be 16-bit floats (Call::floating_or_half): body then comes
// with a zero of BFloat16 or Float16, for which kernels<T>(device) has the GPU's table alone.
template <class Body>
auto with_device_dtype(DType dtype, const Body& body) {
    return dtype == DType::bf16  ? body(BFloat16{})
           : dtype == DType::f16 ? body(Float16{})
                                 : with_dtype(dtype, body);
}

inline bool is_half(DType dtype) {
    return dtype == DType::bf16 || dtype == DType::f16;
}
// What sums, statistics and losses of such arrays are made in (core/types.h: Accumulate).
inline DType accumulate_dtype(DType dtype) {
    return is_half(dtype) ? DType::f32 : dtype;
}
inline i64 item_size(DType dtype) {
    return dtype == DType::f64 ? 8 : dtype == DType::f32 ? 4 : 2;
}
inline const char* dtype_name(DType dtype) {
    constexpr const char* names[] = {"float32", "float64", "bfloat16", "float16"};
    return names[int(dtype)];
}

}  // namespace fusednn
