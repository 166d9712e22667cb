// The kernel table of the CUDA half, entry by entry as in core/kernels.h.
#include <string>

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
    static R call(A...) { throw NoKernel(std::string(current_op()) + ": no CUDA kernel"); }
};

#define FUSEDNN_MISSING(name) Missing<&KernelTable<T>::name>::call

template <class T>
struct Table {
    // clang-format off
    static constexpr KernelTable<T> kernels = {
            gemm<T>,
            conv_forward<T>,
            conv_packing<T>,
            FUSEDNN_MISSING(conv_pack),
            conv_backward_input<T>,
            conv_backward_weight<T>,
            bias_grad<T>,
            unfold<T>,
            fold<T>,
            FUSEDNN_MISSING(transpose_matrices),
            max_pool_forward<T>,
            max_pool_backward<T>,
            FUSEDNN_MISSING(recurrent_forward),
            FUSEDNN_MISSING(recurrent_backward),
            FUSEDNN_MISSING(apply_mask),
            relu_forward<T>,
            relu_backward<T>,
            unary_forward<T>,
            unary_backward<T>,
            FUSEDNN_MISSING(prelu_forward),
            FUSEDNN_MISSING(prelu_backward),
            FUSEDNN_MISSING(avg_pool_forward),
            FUSEDNN_MISSING(avg_pool_backward),
            FUSEDNN_MISSING(adaptive_max_pool),
            FUSEDNN_MISSING(scatter_planes),
            FUSEDNN_MISSING(gather_planes),
            FUSEDNN_MISSING(layer_norm_forward),
            FUSEDNN_MISSING(layer_norm_backward),
            FUSEDNN_MISSING(group_norm_forward),
            FUSEDNN_MISSING(group_norm_backward),
            FUSEDNN_MISSING(batch_norm_stats),
            FUSEDNN_MISSING(batch_norm_apply),
            FUSEDNN_MISSING(batch_norm_backward),
            FUSEDNN_MISSING(embedding_forward),
            FUSEDNN_MISSING(embedding_backward),
            FUSEDNN_MISSING(rotary),
            FUSEDNN_MISSING(log_softmax_forward),
            FUSEDNN_MISSING(log_softmax_backward),
            FUSEDNN_MISSING(softmax_forward),
            FUSEDNN_MISSING(softmax_backward),
            FUSEDNN_MISSING(cross_entropy_forward),
            FUSEDNN_MISSING(cross_entropy_backward),
            FUSEDNN_MISSING(attention_forward),
            FUSEDNN_MISSING(attention_backward),
            FUSEDNN_MISSING(attention_weights),
            FUSEDNN_MISSING(sgd_step),
            FUSEDNN_MISSING(adam_step),
            FUSEDNN_MISSING(rmsprop_step),
            FUSEDNN_MISSING(adagrad_step),
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

}  // namespace fusednn::cuda
