#include <string>

#include "bindings/call.h"
#include "bindings/init.h"
#include "bindings/ints.h"
#include "core/errors.h"
#include "cuda/pool/indices.h"
#include "ops/pool.h"
#include "ops/shapes.h"

namespace fusednn::bindings {

namespace {

const char* op_name(int spatial, bool backward) {
    static const char* const names[2][3] = {
        {"max_pool1d", "max_pool2d", "max_pool3d"},
        {"max_pool1d backward", "max_pool2d backward", "max_pool3d backward"}};
    if (spatial < 1 || spatial > 3) {
        throw Error("max_pool: spatial must be 1, 2 or 3, got " + std::to_string(spatial));
    }
    return names[backward][spatial - 1];
}

// A stride of None stays empty: the kernel size.
ops::WindowArgs window_args(const char* op, py::handle kernel, py::handle stride,
                            py::handle padding, py::handle dilation) {
    ops::WindowArgs window;
    window.kernel = to_ints(kernel, op, "kernel_size");
    if (!stride.is_none()) window.stride = to_ints(stride, op, "stride");
    window.padding = to_ints(padding, op, "padding");
    window.dilation = to_ints(dilation, op, "dilation");
    return window;
}

i64 bytes_moved(const ops::PoolShapes& shapes, i64 input_size, DType dtype) {
    i64 output_size = 1;
    for (i64 extent : shapes.output) output_size *= extent;
    return (input_size + output_size) * (dtype == DType::f64 ? 8 : 4);
}

// The taps of a forward, as the kernels read them.
Array tap_array(Call& call, py::handle object, const ops::PoolShapes& shapes) {
    Array taps = call.taps(object, "argmax", ops::argmax_bytes(shapes.params));
    ops::require_shape(call.op(), "argmax", ops::shape_of(taps.view()), shapes.output);
    return taps;
}

py::tuple forward(int spatial, py::handle input, py::handle kernel, py::handle stride,
                  py::handle padding, py::handle dilation, bool ceil_mode, bool want_argmax) {
    const char* op = op_name(spatial, false);
    Call call(op);
    const Array x = call.floating_or_half(input, "input");
    const auto shapes =
        ops::max_pool_shapes(op, spatial, ops::shape_of(x.view()),
                             window_args(op, kernel, stride, padding, dilation), ceil_mode);
    const int ndim = int(shapes.output.size()), bytes = ops::argmax_bytes(shapes.params);
    void *y, *taps = nullptr;
    py::object output = call.new_array(x.dtype(), ndim, shapes.output.data(), &y);
    py::object argmax = py::none();
    if (want_argmax) argmax = call.new_tap_array(bytes, ndim, shapes.output.data(), &taps);
    {
        const Run run(call, bytes_moved(shapes, x.size(), x.dtype()));
        with_device_dtype(x.dtype(), [&](auto zero) {
            using T = decltype(zero);
            run.kernels<T>().max_pool_forward(shapes.params, x.data<T>(), static_cast<T*>(y), taps,
                                              bytes);
        });
    }
    return py::make_tuple(std::move(output), std::move(argmax));
}

py::object backward(int spatial, py::handle grad, py::handle argmax, py::handle input_shape,
                    py::handle kernel, py::handle stride, py::handle padding, py::handle dilation,
                    bool ceil_mode) {
    const char* op = op_name(spatial, true);
    Call call(op);
    const Array dy = call.floating_or_half(grad, "grad");
    const ops::Shape input = to_shape(input_shape, op, "input_shape");
    const auto shapes = ops::max_pool_shapes(
        op, spatial, input, window_args(op, kernel, stride, padding, dilation), ceil_mode);
    ops::require_shape(op, "grad", ops::shape_of(dy.view()), shapes.output);
    const Array taps = tap_array(call, argmax, shapes);
    void* dx;
    py::object result = call.new_array(dy.dtype(), int(input.size()), input.data(), &dx);
    const i64 cost = bytes_moved(shapes, ops::checked_size(op, input), dy.dtype());
    {
        const Run run(call, cost);
        with_device_dtype(dy.dtype(), [&](auto zero) {
            using T = decltype(zero);
            run.kernels<T>().max_pool_backward(shapes.params, dy.data<T>(), taps.data<void>(),
                                               ops::argmax_bytes(shapes.params),
                                               static_cast<T*>(dx));
        });
    }
    return result;
}

py::object indices(int spatial, py::handle argmax, py::handle input_shape, py::handle kernel,
                   py::handle stride, py::handle padding, py::handle dilation, bool ceil_mode) {
    const char* op = op_name(spatial, false);
    const auto shapes =
        ops::max_pool_shapes(op, spatial, to_shape(input_shape, op, "input_shape"),
                             window_args(op, kernel, stride, padding, dilation), ceil_mode);
    Call call(op);
    const Array taps = tap_array(call, argmax, shapes);
    i64* positions;
    py::object result =
        call.new_int64_array(int(shapes.output.size()), shapes.output.data(), &positions);
    {
        const Run run(call, bytes_moved(shapes, 0, DType::f64));
        if (call.device() == Device::cuda) {
            cuda::max_pool_indices(shapes.params, taps.data<void>(),
                                   ops::argmax_bytes(shapes.params), positions);
        } else {
            ops::max_pool_indices(op, shapes.params, taps.data<void>(), positions);
        }
    }
    return result;
}

}  // namespace

void init_pool(py::module_& m) {
    m.def("max_pool_forward", &forward);
    m.def("max_pool_backward", &backward);
    m.def("max_pool_indices", &indices);
}

}  // namespace fusednn::bindings
