// Kinds of mathematics for attention's tiles, and how the host chooses.
#pragma once
#include <cstring>
#include <type_traits>

#include "core/precision.h"
#include "cuda/attention/scores.h"

namespace fusednn::cuda {

namespace detail {

// For arrays of T: tiles of up to 64 features, and wider ones.
template <class T>
struct AttentionMath;
template <>
struct AttentionMath<float> {
    using Narrow = Exact<float, 4, 32, 64, 2>;
    using Wide = Exact<float, 2, 32, 128, 2>;
    using NarrowGradient = Exact<float, 2, 32, 64, 2>;
    using WideGradient = Exact<float, 2, 32, 128, 1>;
};
template <>
struct AttentionMath<double> {
    using Narrow = Exact<double, 2, 32, 64, 1>;
    using Wide = Narrow;
    using NarrowGradient = Exact<double, 1, 32, 64, 1>;
    using WideGradient = NarrowGradient;
};
template <>
struct AttentionMath<HalfBits> {
    using Narrow = Halves<4, 32, 64, 2>;
    using Wide = Halves<2, 64, 128, 2>;
    using NarrowGradient = Halves<2, 32, 64, 2>;
    using WideGradient = Halves<2, 32, 128, 2>;
};
// float with set_float32_precision("high").
struct Tf32Math {
    using Narrow = Tf32<4, 32, 64, 2>;
    using Wide = Tf32<2, 32, 128, 2>;
    using NarrowGradient = Tf32<2, 32, 64, 2>;
    using WideGradient = Tf32<2, 32, 128, 1>;
};

template <class T, class With>
void with_kind(const With& with) {
    if constexpr (std::is_same_v<T, float>) {
        if (float32_precision() == Float32Precision::high) return with(Tf32Math());
    }
    with(AttentionMath<T>());
}

template <class Narrow, class Wide, class With>
void with_width(i64 width, const With& with) {
    if constexpr (!std::is_same_v<Narrow, Wide>) {
        if (width > Narrow::kDim) return with(Wide());
    }
    with(Narrow());
}

}  // namespace detail

// with(Math()) for arrays of T and as many features.
template <class T, class With>
void with_forward_math(i64 width, const With& with) {
    detail::with_kind<T>([&](auto kind) {
        detail::with_width<typename decltype(kind)::Narrow, typename decltype(kind)::Wide>(width,
                                                                                           with);
    });
}
template <class T, class With>
void with_gradient_math(i64 width, const With& with) {
    detail::with_kind<T>([&](auto kind) {
        detail::with_width<typename decltype(kind)::NarrowGradient,
                           typename decltype(kind)::WideGradient>(width, with);
    });
}
// For what is not worth a kernel of its own for many features: they come part by part.
template <class T, class With>
void with_narrow_math(const With& with) {
    detail::with_kind<T>([&](auto kind) { with(typename decltype(kind)::NarrowGradient()); });
}

// The same parameters for the type that kernels are compiled for.
template <template <class> class Struct, class T>
Struct<Storage<T>> stored(const Struct<T>& p) {
    Struct<Storage<T>> result;
    static_assert(sizeof result == sizeof p, "16-bit floats of either format look alike");
    std::memcpy(static_cast<void*>(&result), &p, sizeof p);
    return result;
}

// Workspaces and results whose rows no sequence may cover begin as 0.
template <class T>
void clear_heads(const HeadArray<T>& array, i64 batch, i64 heads, i64 rows, i64 width);

}  // namespace fusednn::cuda
