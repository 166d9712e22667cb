#include "ops/activation.h"

#include "bindings/call.h"
#include "bindings/init.h"
#include "core/errors.h"
#include "cuda/cast.h"
#include "ops/shapes.h"

namespace fusednn::bindings {

namespace {

py::object relu_forward(py::handle input_object) {
    Call call("relu");
    const Array input = call.floating_or_half(input_object, "input");
    void* output;
    py::object result = call.new_array(input.dtype(), input.ndim(), input.shape(), &output);
    const i64 size = input.size();
    const Run run(call, size * 2);
    with_device_dtype(input.dtype(), [&](auto zero) {
        using T = decltype(zero);
        run.kernels<T>().relu_forward(size, input.data<T>(), static_cast<T*>(output));
    });
    return result;
}

py::object relu_backward(py::handle grad_object, py::handle output_object) {
    Call call("relu");
    const Array grad = call.floating_or_half(grad_object, "grad");
    const Array output = call.floating_like(output_object, grad, "output");
    ops::require_shape("relu", "grad", ops::shape_of(grad.view()), ops::shape_of(output.view()));
    void* grad_input;
    py::object result = call.new_array(grad.dtype(), grad.ndim(), grad.shape(), &grad_input);
    const i64 size = grad.size();
    const Run run(call, size * 3);
    with_device_dtype(grad.dtype(), [&](auto zero) {
        using T = decltype(zero);
        run.kernels<T>().relu_backward(size, grad.data<T>(), output.data<T>(),
                                       static_cast<T*>(grad_input));
    });
    return result;
}

// What an element costs: about an exponential.
constexpr i64 kElementCost = 20;

// op: the name for errors; function: the kernel's.
py::object unary_forward(const char* op, const char* function, py::handle input, double a,
                         double b) {
    Call call(op);
    const Array x = call.floating_or_half(input, "input");
    const UnaryParams params{ops::unary_named(function), x.size(), a, b};
    void* output;
    py::object result = call.new_array(x.dtype(), x.ndim(), x.shape(), &output);
    const Run run(call, x.size() * kElementCost);
    with_device_dtype(x.dtype(), [&](auto zero) {
        using T = decltype(zero);
        run.kernels<T>().unary_forward(params, x.data<T>(), static_cast<T*>(output));
    });
    return result;
}

py::object unary_backward(const char* op, const char* function, py::handle grad, py::handle saved,
                          double a, double b) {
    Call call(op);
    const Array dy = call.floating_or_half(grad, "grad");
    const Array kept = call.floating_like(saved, dy, "saved");
    ops::require_shape(op, "grad", ops::shape_of(dy.view()), ops::shape_of(kept.view()));
    const UnaryParams params{ops::unary_named(function), dy.size(), a, b};
    void* output;
    py::object result = call.new_array(dy.dtype(), dy.ndim(), dy.shape(), &output);
    const Run run(call, dy.size() * kElementCost);
    with_device_dtype(dy.dtype(), [&](auto zero) {
        using T = decltype(zero);
        run.kernels<T>().unary_backward(params, dy.data<T>(), kept.data<T>(),
                                        static_cast<T*>(output));
    });
    return result;
}

py::object cast(py::handle input, const std::string& dtype) {
    Call call("cast");
    const Array x = call.floating_or_half(input, "input");
    const DType to = dtype == "bfloat16"  ? DType::bf16
                     : dtype == "float16" ? DType::f16
                                          : DType::f32;
    if (is_half(x.dtype()) == is_half(to)) {
        throw NoKernel(std::string("cast: no CUDA kernel from ") + dtype_name(x.dtype()) + " to " +
                       dtype);
    }
    void* output;
    py::object result = call.new_array(to, x.ndim(), x.shape(), &output);
    const Run run(call, x.size() * 2);
    cuda::cast(x.size(), x.dtype(), x.view().data, to, output);
    return result;
}

py::object prelu_forward(py::handle input, py::handle weight) {
    const char* op = "prelu";
    Call call(op);
    const Array x = call.floating_or_half(input, "input");
    const Array w = call.floating_like(weight, x, "weight");
    const ops::PreluView view = ops::prelu_view(ops::shape_of(x.view()), ops::shape_of(w.view()));
    void* output;
    py::object result = call.new_array(x.dtype(), x.ndim(), x.shape(), &output);
    const Run run(call, x.size() * 2);
    with_device_dtype(x.dtype(), [&](auto zero) {
        using T = decltype(zero);
        run.kernels<T>().prelu_forward(view.outer, view.channels, view.inner, x.data<T>(),
                                       w.data<T>(), static_cast<T*>(output));
    });
    return result;
}

py::tuple prelu_backward(py::handle grad, py::handle input, py::handle weight) {
    const char* op = "prelu";
    Call call(op);
    const Array dy = call.floating_or_half(grad, "grad");
    const Array x = call.floating_like(input, dy, "input");
    const Array w = call.floating_like(weight, dy, "weight");
    const ops::PreluView view = ops::prelu_view(ops::shape_of(x.view()), ops::shape_of(w.view()));
    ops::require_shape(op, "grad", ops::shape_of(dy.view()), ops::shape_of(x.view()));
    void *dx, *dw;
    py::object grad_input = call.new_array(dy.dtype(), x.ndim(), x.shape(), &dx);
    py::object grad_weight = call.new_array(dy.dtype(), w.ndim(), w.shape(), &dw);
    {
        const Run run(call, x.size() * 8);
        with_device_dtype(dy.dtype(), [&](auto zero) {
            using T = decltype(zero);
            run.kernels<T>().prelu_backward(view.outer, view.channels, view.inner, dy.data<T>(),
                                            x.data<T>(), w.data<T>(), static_cast<T*>(dx),
                                            static_cast<T*>(dw));
        });
    }
    return py::make_tuple(grad_input, grad_weight);
}

}  // namespace

void init_activation(py::module_& m) {
    m.def("cast", &cast);
    m.def("relu_forward", &relu_forward);
    m.def("relu_backward", &relu_backward);
    m.def("unary_forward", &unary_forward);
    m.def("unary_backward", &unary_backward);
    m.def("prelu_forward", &prelu_forward);
    m.def("prelu_backward", &prelu_backward);
}

}  // namespace fusednn::bindings
