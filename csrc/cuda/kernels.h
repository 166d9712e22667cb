// What the files of csrc/cuda define; table.cu puts it into the KernelTable. Names and arguments
// are those of csrc/cpu, pointers are the device's. They return when the work is in the stream, not
// when it is done. Layouts and meanings stand beside the table's entries in core/kernels.h.
#pragma once
#include "core/kernels.h"

namespace fusednn::cuda {

template <class T>
void gemm(const GemmParams<T>&);

template <class T>
void conv_forward(const ConvParams&, const T* x, const T* w, const T* bias, T* y);
template <class T>
ConvPacking conv_packing(const ConvParams&);
template <class T>
void conv_backward_input(const ConvParams&, const T* dy, const T* w, const T* bias, T* dx);
template <class T>
void conv_backward_weight(const ConvParams&, const T* x, const T* dy, T* dw);
template <class T>
void bias_grad(i64 outer, i64 channels, i64 inner, const T* dy, T* db);
template <class T>
void unfold(const ConvParams&, const T* x, T* columns);
template <class T>
void fold(const ConvParams&, const T* columns, T* x);

template <class T>
void max_pool_forward(const PoolParams&, const T* x, T* y, void* argmax, int argmax_bytes);
template <class T>
void max_pool_backward(const PoolParams&, const T* dy, const void* argmax, int argmax_bytes, T* dx);

template <class T>
void relu_forward(i64 size, const T* x, T* y);
template <class T>
void relu_backward(i64 size, const T* dy, const T* y, T* dx);
template <class T>
void unary_forward(const UnaryParams&, const T* x, T* y);
template <class T>
void unary_backward(const UnaryParams&, const T* dy, const T* saved, T* dx);

}  // namespace fusednn::cuda

// Every kernel is a template over the dtype; each file ends by instantiating its own for both.
#define FUSEDNN_INSTANTIATE(macro) macro(float) macro(double)
