#pragma once
#include "core/kernels.h"

namespace fusednn {
namespace FUSEDNN_ISA {

// The weight gradient with source channels in the lanes.
//
// im2col, which the product of weight_grad.cpp is made of, writes an element of x once for each tap
// that reads it. Here it is written once: the part of x that some positions read is transposed,
// channels behind one another, and padded; every tap is an offset into it. dw then comes tap by tap
// and is brought into order at the end, which pays where there are more positions than channels.
template <class T>
bool prefer_channel_weight_grad(const ConvParams&);

template <class T>
void channel_weight_grad(const ConvParams&, const T* x, const T* dy, T* dw);

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
