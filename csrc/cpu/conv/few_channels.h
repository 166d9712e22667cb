#pragma once
#include "core/kernels.h"

namespace fusednn {
namespace FUSEDNN_ISA {

// Forward convolution in two dimensions (kernel[0] is 1) for groups of few input channels.
template <class T>
void few_channels_forward(const ConvParams&, const T* x, const T* w, const T* bias, T* y);

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
