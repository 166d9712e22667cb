// Elementwise activations: x, y, dy, dx are flat arrays of `size` elements.
#include "cpu/elementwise.h"
#include "cpu/kernels.h"
#include "cpu/vmath.h"

namespace fusednn {
namespace FUSEDNN_ISA {

namespace {

// y = fn(x)
template <class T, class Fn>
FUSEDNN_INLINE void unary(i64 size, const T* x, T* y, const Fn& fn) {
    map_elements<kBurst>(size, 2, {y},
                         [=](i64 i, auto load_at) { return Results<T, 1>{{fn(load_at(x + i))}}; });
}

// y = fn(a, b)
template <class T, class Fn>
FUSEDNN_INLINE void binary(i64 size, const T* a, const T* b, T* y, const Fn& fn) {
    map_elements<kBurst>(size, 3, {y}, [=](i64 i, auto load_at) {
        return Results<T, 1>{{fn(load_at(a + i), load_at(b + i))}};
    });
}

}  // namespace

// y = max(x, 0); NaN stays NaN, denormals stay what they are, and -0 stays -0.
template <class T>
void relu_forward(i64 size, const T* x, T* y) {
    unary<T>(size, x, y, [](Vec<T> v) { return larger<T>(v, Vec<T>{}); });
}

// dx = dy where y > 0 or NaN, else 0.
template <class T>
void relu_backward(i64 size, const T* dy, const T* y, T* dx) {
    binary<T>(size, dy, y, dx,
              [](Vec<T> g, Vec<T> v) { return select<T>(v <= Vec<T>{}, Vec<T>{}, g); });
}

#define FUSEDNN_ACTIVATION(T)                         \
    template void relu_forward<T>(i64, const T*, T*); \
    template void relu_backward<T>(i64, const T*, const T*, T*);
FUSEDNN_INSTANTIATE(FUSEDNN_ACTIVATION)

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
