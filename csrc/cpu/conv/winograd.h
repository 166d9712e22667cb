#pragma once
#include "core/kernels.h"
#include "cpu/simd.h"

namespace fusednn {
namespace FUSEDNN_ISA {

// Minimal filtering applies to K x K kernels of stride and dilation 1 in one or two dimensions:
// K = 3 (output tiles of 4 x 4) and K = 5 (2 x 2).
FUSEDNN_INLINE bool winograd_applies(const ConvParams& c) {
    bool unit = c.kernel[0] == 1 && c.in_size[0] == 1 && c.pad[0] == 0;
    for (int axis = 1; axis < 3; ++axis) {
        unit = unit && c.stride[axis] == 1 && c.dilation[axis] == 1;
    }
    return unit && c.kernel[1] == c.kernel[2] && (c.kernel[1] == 3 || c.kernel[1] == 5);
}

// One stride-1 correlation: dst[n, row, q] = bias[row] + sum over (c, tap) of weight(row, c, tap) *
// src[n, c, q + tap - pad]. Weights lie at w[row * w_row + c * w_channel + tap], taps in reverse if
// `reversed` (the input gradient).
template <class T>
struct WinogradProblem {
    i64 batch, channels, rows;
    i64 kernel;
    i64 src_size[2], dst_size[2], pad[2];
    const T* src;
    i64 src_image;  // elements from image to image
    T* dst;
    i64 dst_image;
    const T* w;
    i64 w_row, w_channel;
    bool reversed;
    const T* bias;
};

// Estimated time over that of the implicit product (which is 1).
template <class T>
double winograd_cost(i64 batch, i64 channels, i64 rows, i64 kernel, const i64 (&dst_size)[2]);

// False if a result is not finite: a transform spreads infinities, NaN and overflow over a tile, so
// the caller must compute the convolution another way.
template <class T>
bool winograd(const WinogradProblem<T>& problem);

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
