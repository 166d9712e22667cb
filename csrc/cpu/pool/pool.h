// The paths of max pooling, as pool/forward.cpp and pool/backward.cpp choose among them.
// Layouts: x, dx (planes, D, H, W); y, dy, argmax (planes, OD, OH, OW).
#pragma once
#include "core/kernels.h"
#include "cpu/simd.h"

namespace fusednn {
namespace FUSEDNN_ISA {

// 2 x 2 windows with stride 2 and no padding (pool/pairs.cpp).
bool is_pairs(const PoolParams&);
template <class T>
void max_pool_pairs(const PoolParams&, const T* x, T* y, void* argmax, int argmax_bytes);
template <class T>
void max_pool_pairs_backward(const PoolParams&, const T* dy, const void* argmax, int argmax_bytes,
                             T* dx);

// Any window, with the winning taps (pool/argmax.cpp).
template <class T>
void max_pool_argmax(const PoolParams&, const T* x, T* y, void* argmax, int argmax_bytes);

// Windows that skip nearly all of the input (pool/sparse.cpp); argmax may be null.
template <class T>
void max_pool_sparse(const PoolParams&, const T* x, T* y, void* argmax, int argmax_bytes);

// Windows two or three columns wide with stride 1 or 2, padding 0 or 1 and tap numbers that are
// bytes (pool/narrow.cpp).
bool is_narrow(const PoolParams&);
template <class T>
void max_pool_narrow(const PoolParams&, const T* x, T* y, std::uint8_t* argmax);
template <class T>
void max_pool_narrow_values(const PoolParams&, const T* x, T* y);
template <class T>
void max_pool_narrow_backward(const PoolParams&, const T* dy, const std::uint8_t* argmax, T* dx);

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
