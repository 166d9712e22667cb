#include "cpu/kernels.h"

namespace fusednn {
namespace FUSEDNN_ISA {

#define FUSEDNN_STRING_(x) #x
#define FUSEDNN_STRING(x) FUSEDNN_STRING_(x)

#define FUSEDNN_TABLE(T)        \
    {gemm<T>,                   \
     gemm_batches<T>,           \
     conv_forward<T>,           \
     conv_packing<T>,           \
     conv_pack<T>,              \
     conv_backward_input<T>,    \
     conv_backward_weight<T>,   \
     bias_grad<T>,              \
     unfold<T>,                 \
     fold<T>,                   \
     transpose_matrices<T>,     \
     max_pool_forward<T>,       \
     max_pool_backward<T>,      \
     recurrent_forward<T>,      \
     recurrent_backward<T>,     \
     apply_mask<T>,             \
     relu_forward<T>,           \
     relu_backward<T>,          \
     unary_forward<T>,          \
     unary_backward<T>,         \
     prelu_forward<T>,          \
     prelu_backward<T>,         \
     avg_pool_forward<T>,       \
     avg_pool_backward<T>,      \
     adaptive_max_pool<T>,      \
     scatter_planes<T>,         \
     gather_planes<T>,          \
     layer_norm_forward<T>,     \
     layer_norm_backward<T>,    \
     group_norm_forward<T>,     \
     group_norm_backward<T>,    \
     batch_norm_stats<T>,       \
     batch_norm_apply<T>,       \
     batch_norm_backward<T>,    \
     embedding_forward<T>,      \
     embedding_backward<T>,     \
     rotary<T>,                 \
     log_softmax_forward<T>,    \
     log_softmax_backward<T>,   \
     softmax_forward<T>,        \
     softmax_backward<T>,       \
     cross_entropy_forward<T>,  \
     cross_entropy_backward<T>, \
     attention_forward<T>,      \
     attention_backward<T>,     \
     attention_weights<T>,      \
     sgd_step<T>,               \
     adam_step<T>,              \
     rmsprop_step<T>,           \
     adagrad_step<T>,           \
     sum_of_squares<T>,         \
     scale_arrays<T>,           \
     FUSEDNN_STRING(FUSEDNN_ISA)}

extern const KernelTable<float> table_f32;
extern const KernelTable<double> table_f64;
const KernelTable<float> table_f32 = FUSEDNN_TABLE(float);
const KernelTable<double> table_f64 = FUSEDNN_TABLE(double);

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
