// Arrays as kernels see them: pointers, or, for 16-bit floats, objects that are used like pointers
// and give and take floats. A kernel of In<T> and Out<T> computes in Accumulate<T>, and the one for
// T = HalfBits serves both formats.
#pragma once
#include "cuda/gpu.h"

namespace fusednn::cuda {

// kWide neighbours, moved at once.
template <class T, int kWide>
struct alignas(sizeof(T) * kWide) Wide {
    T of[kWide];
};
template <int kWide, class T>
FUSEDNN_DEVICE Wide<T, kWide> load_wide(const T* from) {
    return *reinterpret_cast<const Wide<T, kWide>*>(from);
}
template <int kWide, class T>
FUSEDNN_DEVICE void store_wide(T* to, const Wide<T, kWide>& value) {
    *reinterpret_cast<Wide<T, kWide>*>(to) = value;
}

// The others move one on and `last` follows: v.of[0] again and again and then this, once around, is
// a loop over registers, which a running index would send to memory.
template <class T, int kWide>
FUSEDNN_DEVICE void turn(Wide<T, kWide>& v, const T& last) {
    for (int i = 1; i < kWide; ++i) v.of[i - 1] = v.of[i];
    v.of[kWide - 1] = last;
}

struct HalfIn {
    const HalfBits* data;
    Format<HalfBits> format;

    FUSEDNN_DEVICE float operator[](i64 i) const { return format.widen(data[i]); }
    FUSEDNN_DEVICE HalfIn operator+(i64 n) const { return {data + n, format}; }
    FUSEDNN_DEVICE explicit operator bool() const { return data != nullptr; }
};
struct HalfSlot {
    HalfBits* at;
    Format<HalfBits> format;
    FUSEDNN_DEVICE void operator=(float x) const { *at = format.narrow(x); }
};
struct HalfOut {
    HalfBits* data;
    Format<HalfBits> format;

    FUSEDNN_DEVICE HalfSlot operator[](i64 i) const { return {data + i, format}; }
    FUSEDNN_DEVICE HalfOut operator+(i64 n) const { return {data + n, format}; }
    FUSEDNN_DEVICE explicit operator bool() const { return data != nullptr; }
    FUSEDNN_DEVICE operator HalfIn() const { return {data, format}; }
};
template <int kWide>
FUSEDNN_DEVICE Wide<float, kWide> load_wide(HalfIn from) {
    const auto held = load_wide<kWide>(from.data);
    Wide<float, kWide> value;
    for (int i = 0; i < kWide; ++i) value.of[i] = from.format.widen(held.of[i]);
    return value;
}
template <int kWide>
FUSEDNN_DEVICE void store_wide(HalfOut to, const Wide<float, kWide>& value) {
    if constexpr (kWide == 1) {
        *to.data = to.format.narrow(value.of[0]);
    } else {
        Wide<std::uint32_t, kWide / 2> held;
        for (int i = 0; i < kWide / 2; ++i) {
            held.of[i] = to.format.narrow(value.of[2 * i], value.of[2 * i + 1]);
        }
        store_wide<kWide / 2>(reinterpret_cast<std::uint32_t*>(to.data), held);
    }
}

template <class T>
struct ArrayOf {
    using In = const T* __restrict__;
    using Out = T* __restrict__;
};
template <>
struct ArrayOf<HalfBits> {
    using In = HalfIn;
    using Out = HalfOut;
};
template <class T>
using In = typename ArrayOf<T>::In;
template <class T>
using Out = typename ArrayOf<T>::Out;

// Arrays that may be one and the same, so without the promise of In and Out.
template <class T>
using Shared = std::conditional_t<sizeof(T) == 2, HalfIn, const T*>;
template <class T>
using SharedOut = std::conditional_t<sizeof(T) == 2, HalfOut, T*>;

// A host's pointer as In<Storage<T>> or Out<Storage<T>>.
template <class T>
auto reading(const T* data) {
    if constexpr (sizeof(T) == 2) {
        return HalfIn{storage(data), StorageOf<T>::format()};
    } else {
        return data;
    }
}
template <class T>
auto writing(T* data) {
    if constexpr (sizeof(T) == 2) {
        return HalfOut{storage(data), StorageOf<T>::format()};
    } else {
        return data;
    }
}

}  // namespace fusednn::cuda
