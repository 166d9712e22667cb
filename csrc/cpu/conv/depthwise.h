#pragma once
#include "core/kernels.h"
#include "cpu/simd.h"

namespace fusednn {
namespace FUSEDNN_ISA {

// Every group has one input channel. (With one group in all, the outputs share their input and the
// matrix product is the better form.)
FUSEDNN_INLINE bool is_depthwise(const ConvParams& c) {
    return c.groups > 1 && c.groups == c.in_channels;
}

template <class T>
void depthwise_forward(const ConvParams&, const T* x, const T* w, const T* bias, T* y);
template <class T>
void depthwise_backward_input(const ConvParams&, const T* dy, const T* w, T* dx);
template <class T>
void depthwise_backward_weight(const ConvParams&, const T* x, const T* dy, T* dw);

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
