#include "bindings/array.h"
#include "bindings/init.h"
#include "core/dispatch.h"
#include "ops/shapes.h"

namespace fusednn::bindings {

namespace {

py::object relu_forward(py::handle input_object) {
    const Array input = Array::floating(input_object, "relu", "input");
    void* output;
    py::object result = new_array(input.dtype(), input.ndim(), input.shape(), &output);
    const i64 size = input.size();
    GilRelease release(size * 2);
    with_dtype(input.dtype(), [&](auto zero) {
        using T = decltype(zero);
        kernels<T>().relu_forward(size, input.data<T>(), static_cast<T*>(output));
    });
    return result;
}

py::object relu_backward(py::handle grad_object, py::handle output_object) {
    const Array grad = Array::floating(grad_object, "relu", "grad");
    const Array output = Array::floating_like(output_object, grad, "relu", "output");
    ops::require_shape("relu", "grad", ops::shape_of(grad.view()), ops::shape_of(output.view()));
    void* grad_input;
    py::object result = new_array(grad.dtype(), grad.ndim(), grad.shape(), &grad_input);
    const i64 size = grad.size();
    GilRelease release(size * 3);
    with_dtype(grad.dtype(), [&](auto zero) {
        using T = decltype(zero);
        kernels<T>().relu_backward(size, grad.data<T>(), output.data<T>(),
                                   static_cast<T*>(grad_input));
    });
    return result;
}

}  // namespace

void init_activation(py::module_& m) {
    m.def("relu_forward", &relu_forward);
    m.def("relu_backward", &relu_backward);
}

}  // namespace fusednn::bindings
