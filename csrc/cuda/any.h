// Arrays of any dtype, told at run time: for kernels that sizes beyond 32 bits need and hardly a
// call has, so that they are compiled once. Values are doubles, which hold those of every dtype.
#pragma once
#include "cuda/arrays.h"
#include "cuda/gpu.h"

namespace fusednn::cuda {

struct AnyFormat {
    DType dtype;

    // A value of Accumulate of the dtype, rounded: sums then have the bits of kernels of their own.
    FUSEDNN_DEVICE double rounded(double x) const {
        return dtype == DType::f64 ? x : double(float(x));
    }
};
struct AnyIn {
    const void* data;
    AnyFormat format;

    FUSEDNN_DEVICE double operator[](i64 i) const {
        if (format.dtype == DType::f64) return static_cast<const double*>(data)[i];
        if (format.dtype == DType::f32) return static_cast<const float*>(data)[i];
        const Format<HalfBits> half{format.dtype == DType::bf16};
        return half.widen(static_cast<const HalfBits*>(data)[i]);
    }
};
struct AnyOut {
    void* data;
    AnyFormat format;

    FUSEDNN_DEVICE void put(i64 i, double x) const {
        const Format<HalfBits> half{format.dtype == DType::bf16};
        if (format.dtype == DType::f64) {
            static_cast<double*>(data)[i] = x;
        } else if (format.dtype == DType::f32) {
            static_cast<float*>(data)[i] = float(x);
        } else {
            static_cast<HalfBits*>(data)[i] = half.narrow(float(x));
        }
    }
};

template <class T>
constexpr AnyFormat any_format() {
    if constexpr (std::is_same_v<T, double>) return {DType::f64};
    if constexpr (std::is_same_v<T, float>) return {DType::f32};
    return {std::is_same_v<T, BFloat16> ? DType::bf16 : DType::f16};
}

// Arrays of T, which kernels take with 32-bit positions, or, for Any, of any dtype with 64-bit
// ones.
struct Any;
template <class T>
struct Arrays {
    using Value = Accumulate<T>;
    using In = cuda::In<T>;
    using Out = cuda::Out<T>;
    using Index = int;
    using Position = std::uint32_t;
    FUSEDNN_DEVICE static Value rounded(In, Value x) { return x; }
    FUSEDNN_DEVICE static void put(Out y, Position at, Value x) { y[at] = x; }
};
template <>
struct Arrays<Any> {
    using Value = double;
    using In = AnyIn;
    using Out = AnyOut;
    using Index = i64;
    using Position = i64;
    // Of an array like this, a value as its Accumulate holds it.
    FUSEDNN_DEVICE static double rounded(const AnyIn& x, double value) {
        return x.format.rounded(value);
    }
    FUSEDNN_DEVICE static void put(const AnyOut& y, i64 at, double x) { y.put(at, x); }
};
// A host's pointer as Arrays<Any> has it.
template <class T>
AnyIn reading_any(const T* data) {
    return {data, any_format<T>()};
}
template <class T>
AnyOut writing_any(T* data) {
    return {data, any_format<T>()};
}

// Planes of at most so many elements on either side have 32-bit positions; calls with more planes
// than fit are cut, each part with as many planes as do.
constexpr i64 kMostPositions = i64(1) << 31;
// run(first plane, planes) for parts of `planes`, of `most` elements each on the larger side.
template <class Run>
void by_parts(i64 planes, i64 most, const Run& run) {
    const i64 each = (kMostPositions - 1) / (most ? most : 1);
    for (i64 first = 0; first < planes; first += each) {
        run(first, planes - first < each ? planes - first : each);
    }
}

}  // namespace fusednn::cuda
