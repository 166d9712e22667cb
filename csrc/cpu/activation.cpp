// Elementwise activations: x, y, dy, dx are flat arrays of `size` elements.
#include "cpu/elementwise.h"
#include "cpu/kernels.h"

namespace fusednn {
namespace FUSEDNN_ISA {

// y = max(x, 0); NaN stays NaN, denormals stay what they are.
template <class T>
void relu_forward(i64 size, const T* x, T* y) {
    map_elements<T>(size, 2, [&](i64 i, auto load_at, auto store_at) {
        const Vec<T> v = load_at(x + i);
        store_at(y + i, select<T>(v < Vec<T>{}, Vec<T>{}, v));
    });
}

// dx = dy where y > 0 or NaN, else 0.
template <class T>
void relu_backward(i64 size, const T* dy, const T* y, T* dx) {
    map_elements<T>(size, 3, [&](i64 i, auto load_at, auto store_at) {
        store_at(dx + i, select<T>(load_at(y + i) <= Vec<T>{}, Vec<T>{}, load_at(dy + i)));
    });
}

#define FUSEDNN_ACTIVATION(T)                         \
    template void relu_forward<T>(i64, const T*, T*); \
    template void relu_backward<T>(i64, const T*, const T*, T*);
FUSEDNN_INSTANTIATE(FUSEDNN_ACTIVATION)

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
