#pragma once
#include "core/kernels.h"
#include "cpu/simd.h"

namespace fusednn {
namespace FUSEDNN_ISA {

// One stride-1 correlation: dst[n, row, q] = bias[row] + sum over (c, tap) of weight(row, c, tap) *
// src[n, c, q + tap - pad]. Weights lie at w[row * w_row + c * w_channel + tap], taps in reverse if
// `reversed` (the input gradient).
template <class T>
struct WinogradProblem {
    i64 batch, channels, rows;
    i64 kernel;  // 3 (output tiles of 4 x 4) or 5 (2 x 2)
    i64 src_size[2], dst_size[2], pad[2];
    const T* src;
    i64 src_image;  // elements from image to image
    T* dst;
    i64 dst_image;
    const T* w;
    i64 w_row, w_channel;
    bool reversed;
    const T* packed;  // the weights as winograd_pack made them, or null
    const T* bias;
};

// The transformed weights U[36][row][channel], and how many elements that is. Points lie further
// apart than they need, by a vector: strides of multiples of 4 KB would share few sets of the
// cache.
template <class T>
FUSEDNN_INLINE i64 winograd_point_stride(const WinogradProblem<T>& p) {
    return p.rows * p.channels + kLanes<T>;
}
template <class T>
FUSEDNN_INLINE i64 winograd_packed_size(const WinogradProblem<T>& p) {
    return 36 * winograd_point_stride(p);
}
template <class T>
void winograd_pack(const WinogradProblem<T>& problem, T* packed);

// False if a result is not finite: a transform spreads infinities, NaN and overflow over a tile, so
// the caller must compute the convolution another way.
template <class T>
bool winograd(const WinogradProblem<T>& problem);

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
