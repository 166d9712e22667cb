#include "cpu/kernels.h"

namespace fusednn {
namespace FUSEDNN_ISA {

#define FUSEDNN_STRING_(x) #x
#define FUSEDNN_STRING(x) FUSEDNN_STRING_(x)

#define FUSEDNN_TABLE(T)        \
    {gemm<T>,                   \
     conv_forward<T>,           \
     conv_backward_input<T>,    \
     conv_backward_weight<T>,   \
     bias_grad<T>,              \
     unfold<T>,                 \
     fold<T>,                   \
     max_pool_forward<T>,       \
     max_pool_backward<T>,      \
     recurrent_forward<T>,      \
     recurrent_backward<T>,     \
     apply_mask<T>,             \
     relu_forward<T>,           \
     relu_backward<T>,          \
     log_softmax_forward<T>,    \
     log_softmax_backward<T>,   \
     softmax_forward<T>,        \
     softmax_backward<T>,       \
     cross_entropy_forward<T>,  \
     cross_entropy_backward<T>, \
     sgd_step<T>,               \
     adam_step<T>,              \
     rmsprop_step<T>,           \
     adagrad_step<T>,           \
     FUSEDNN_STRING(FUSEDNN_ISA)}

extern const KernelTable<float> table_f32;
extern const KernelTable<double> table_f64;
const KernelTable<float> table_f32 = FUSEDNN_TABLE(float);
const KernelTable<double> table_f64 = FUSEDNN_TABLE(double);

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
