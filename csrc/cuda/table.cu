// The kernel table of the CUDA half, entry by entry as in core/kernels.h.
#include <string>
#include <type_traits>

#include "core/errors.h"
#include "cuda/device.h"
#include "cuda/gpu.h"
#include "cuda/kernels.h"

namespace fusednn::cuda {

namespace {

// What stands in the table where there is no kernel: it says so.
template <auto kEntry>
struct Missing;
template <class T, class R, class... A, R (*KernelTable<T>::*kEntry)(A...)>
struct Missing<kEntry> {
    static R call(A...) {
        const char* of = std::is_same_v<T, BFloat16>  ? " for bfloat16"
                         : std::is_same_v<T, Float16> ? " for float16"
                                                      : "";
        throw NoKernel(std::string(current_op()) + ": no CUDA kernel" + of);
    }
};

// A kernel for float and double only.
template <class T, auto kEntry, class Named>
constexpr auto wide_only(Named named) {
    if constexpr (sizeof(T) == 2) {
        return &Missing<kEntry>::call;
    } else {
        return named(T{});
    }
}

#define FUSEDNN_MISSING(name) Missing<&KernelTable<T>::name>::call
#define FUSEDNN_WIDE(name) \
    wide_only<T, &KernelTable<T>::name>([](auto zero) { return &name<decltype(zero)>; })

template <class T>
struct Table {
    // clang-format off
    static constexpr KernelTable<T> kernels = {
            gemm<T>,
            gemm_batches<T>,
            conv_forward<T>,
            conv_packing<T>,
            FUSEDNN_MISSING(conv_pack),
            conv_backward_input<T>,
            conv_backward_weight<T>,
            bias_grad<T>,
            unfold<T>,
            fold<T>,
            FUSEDNN_WIDE(transpose_matrices),
            max_pool_forward<T>,
            max_pool_backward<T>,
            recurrent_forward<T>,
            recurrent_backward<T>,
            apply_mask<T>,
            relu_forward<T>,
            relu_backward<T>,
            unary_forward<T>,
            unary_backward<T>,
            prelu_forward<T>,
            prelu_backward<T>,
            avg_pool_forward<T>,
            avg_pool_backward<T>,
            adaptive_max_pool<T>,
            scatter_planes<T>,
            gather_planes<T>,
            layer_norm_forward<T>,
            layer_norm_backward<T>,
            group_norm_forward<T>,
            group_norm_backward<T>,
            batch_norm_stats<T>,
            batch_norm_apply<T>,
            batch_norm_backward<T>,
            embedding_forward<T>,
            embedding_backward<T>,
            rotary<T>,
            log_softmax_forward<T>,
            log_softmax_backward<T>,
            softmax_forward<T>,
            softmax_backward<T>,
            cross_entropy_forward<T>,
            cross_entropy_backward<T>,
            attention_forward<T>,
            attention_backward<T>,
            attention_weights<T>,
            FUSEDNN_WIDE(sgd_step),
            FUSEDNN_WIDE(adam_step),
            FUSEDNN_WIDE(rmsprop_step),
            FUSEDNN_WIDE(adagrad_step),
            FUSEDNN_WIDE(sum_of_squares),
            FUSEDNN_WIDE(scale_arrays),
            "cuda",
    };
    // clang-format on
};

}  // namespace

template <>
const KernelTable<float>& table<float>() {
    return Table<float>::kernels;
}

template <>
const KernelTable<double>& table<double>() {
    return Table<double>::kernels;
}

template <>
const KernelTable<BFloat16>& table<BFloat16>() {
    return Table<BFloat16>::kernels;
}

template <>
const KernelTable<Float16>& table<Float16>() {
    return Table<Float16>::kernels;
}

}  // namespace fusednn::cuda
