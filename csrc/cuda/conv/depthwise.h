#pragma once
#include "core/kernels.h"

namespace fusednn::cuda {

// For convolutions in which every group has one input channel.
template <class T>
void depthwise_forward(const ConvParams&, const T* x, const T* w, const T* bias, T* y);
template <class T>
void depthwise_backward_input(const ConvParams&, const T* dy, const T* w, const T* bias, T* dx);
template <class T>
void depthwise_backward_weight(const ConvParams&, const T* x, const T* dy, T* dw);

}  // namespace fusednn::cuda
