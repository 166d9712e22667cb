// Elementwise activations: x, y, dy, dx are flat arrays of `size` elements.
#include "cuda/elementwise.h"
#include "cuda/kernels.h"

namespace fusednn::cuda {

namespace {

template <class T>
struct Relu {
    FUSEDNN_DEVICE T operator()(T x) const { return x < T(0) ? T(0) : x; }
};

template <class T>
struct ReluSlope {
    FUSEDNN_DEVICE T operator()(T dy, T y) const { return y <= T(0) ? T(0) : dy; }
};

}  // namespace

// y = max(x, 0); NaN stays NaN, and -0 stays -0.
template <class T>
void relu_forward(i64 size, const T* x, T* y) {
    map_elements("relu_forward", size, x, y, Relu<Accumulate<T>>{});
}

// dx = dy where y > 0 or NaN, else 0.
template <class T>
void relu_backward(i64 size, const T* dy, const T* y, T* dx) {
    map_elements("relu_backward", size, dy, y, dx, ReluSlope<Accumulate<T>>{});
}

#define FUSEDNN_ACTIVATION(T)                         \
    template void relu_forward<T>(i64, const T*, T*); \
    template void relu_backward<T>(i64, const T*, const T*, T*);
FUSEDNN_INSTANTIATE(FUSEDNN_ACTIVATION)
FUSEDNN_INSTANTIATE_HALF(FUSEDNN_ACTIVATION)

}  // namespace fusednn::cuda
