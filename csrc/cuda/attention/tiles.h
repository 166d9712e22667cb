// Kinds of mathematics for attention's tiles, and how the host chooses.
#pragma once
#include <type_traits>

#include "cuda/attention/scores.h"

namespace fusednn::cuda {

namespace detail {
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
}  // namespace detail

// with(Math()) for the widest of these features.
template <class T, class With>
void with_forward_math(i64 width, const With& with) {
    using Narrow = typename detail::AttentionMath<T>::Narrow;
    using Wide = typename detail::AttentionMath<T>::Wide;
    if constexpr (!std::is_same_v<Narrow, Wide>) {
        if (width > Narrow::kDim) return with(Wide());
    }
    with(Narrow());
}

template <class T, class With>
void with_gradient_math(i64 width, const With& with) {
    using Narrow = typename detail::AttentionMath<T>::NarrowGradient;
    using Wide = typename detail::AttentionMath<T>::WideGradient;
    if constexpr (!std::is_same_v<Narrow, Wide>) {
        if (width > Narrow::kDim) return with(Wide());
    }
    with(Narrow());
}

// Workspaces and results whose rows no sequence may cover begin as 0.
template <class T>
void clear_heads(const HeadArray<T>& array, i64 batch, i64 heads, i64 rows, i64 width);

}  // namespace fusednn::cuda
