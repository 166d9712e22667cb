#include "ops/average.h"

#include "bindings/call.h"
#include "bindings/init.h"
#include "bindings/ints.h"
#include "core/errors.h"

namespace fusednn::bindings {

namespace {

ops::WindowLists average_lists(const char* op, int spatial, const ops::Shape& input,
                               py::handle kernel, py::handle stride, py::handle padding,
                               bool ceil_mode, bool include_pad, py::handle divisor) {
    ops::WindowArgs window;
    window.kernel = to_ints(kernel, op, "kernel_size");
    if (!stride.is_none()) window.stride = to_ints(stride, op, "stride");
    window.padding = to_ints(padding, op, "padding");
    i64 override = 0;
    if (!divisor.is_none()) {
        override = to_int(divisor, op, "divisor_override");
        if (override == 0) throw Error(std::string(op) + ": divisor_override is 0");
    }
    return ops::avg_pool_windows(op, spatial, input, window, ceil_mode, include_pad, override);
}

py::object run_forward(Call& call, const Array& x, const ops::WindowLists& lists) {
    void* y;
    py::object result =
        call.new_array(x.dtype(), int(lists.output.size()), lists.output.data(), &y);
    const Run run(call, x.size() * 4);
    with_device_dtype(x.dtype(), [&](auto zero) {
        using T = decltype(zero);
        run.kernels<T>().avg_pool_forward(lists.params, x.data<T>(), static_cast<T*>(y));
    });
    return result;
}

py::object run_backward(Call& call, const Array& dy, const ops::Shape& input,
                        const ops::WindowLists& lists) {
    ops::require_shape(call.op(), "grad", ops::shape_of(dy.view()), lists.output);
    void* dx;
    py::object result = call.new_array(dy.dtype(), int(input.size()), input.data(), &dx);
    const Run run(call, ops::checked_size(call.op(), input) * 4);
    with_device_dtype(dy.dtype(), [&](auto zero) {
        using T = decltype(zero);
        run.kernels<T>().avg_pool_backward(lists.params, dy.data<T>(), static_cast<T*>(dx));
    });
    return result;
}

py::object avg_pool_forward(const char* op, int spatial, py::handle input, py::handle kernel,
                            py::handle stride, py::handle padding, bool ceil_mode, bool include_pad,
                            py::handle divisor) {
    Call call(op);
    const Array x = call.floating_or_half(input, "input");
    return run_forward(call, x,
                       average_lists(op, spatial, ops::shape_of(x.view()), kernel, stride, padding,
                                     ceil_mode, include_pad, divisor));
}

py::object avg_pool_backward(const char* op, int spatial, py::handle grad, py::handle input_shape,
                             py::handle kernel, py::handle stride, py::handle padding,
                             bool ceil_mode, bool include_pad, py::handle divisor) {
    Call call(op);
    const Array dy = call.floating_or_half(grad, "grad");
    const ops::Shape input = to_shape(input_shape, op, "input_shape");
    return run_backward(call, dy, input,
                        average_lists(op, spatial, input, kernel, stride, padding, ceil_mode,
                                      include_pad, divisor));
}

py::object adaptive_avg_forward(const char* op, int spatial, py::handle input, py::handle size) {
    Call call(op);
    const Array x = call.floating_or_half(input, "input");
    return run_forward(call, x,
                       ops::adaptive_windows(op, spatial, ops::shape_of(x.view()),
                                             to_ints(size, op, "output_size")));
}

py::object adaptive_avg_backward(const char* op, int spatial, py::handle grad,
                                 py::handle input_shape, py::handle size) {
    Call call(op);
    const Array dy = call.floating_or_half(grad, "grad");
    const ops::Shape input = to_shape(input_shape, op, "input_shape");
    return run_backward(
        call, dy, input,
        ops::adaptive_windows(op, spatial, input, to_ints(size, op, "output_size")));
}

py::object global_pool_forward(py::handle input, bool sum) {
    const char* op = "global_pool";
    Call call(op);
    const Array x = call.floating_or_half(input, "input");
    return run_forward(call, x, ops::global_windows(op, ops::shape_of(x.view()), sum));
}

py::object global_pool_backward(py::handle grad, py::handle input_shape, bool sum) {
    const char* op = "global_pool";
    Call call(op);
    const Array dy = call.floating_or_half(grad, "grad");
    const ops::Shape input = to_shape(input_shape, op, "input_shape");
    const ops::WindowLists lists = ops::global_windows(op, input, sum);
    ops::Shape output(input.begin(), input.begin() + 2);
    ops::require_shape(op, "grad", ops::shape_of(dy.view()), output);
    void* dx;
    py::object result = call.new_array(dy.dtype(), int(input.size()), input.data(), &dx);
    const Run run(call, ops::checked_size(call.op(), input) * 4);
    with_device_dtype(dy.dtype(), [&](auto zero) {
        using T = decltype(zero);
        run.kernels<T>().avg_pool_backward(lists.params, dy.data<T>(), static_cast<T*>(dx));
    });
    return result;
}

py::tuple adaptive_max_forward(const char* op, int spatial, py::handle input, py::handle size) {
    Call call(op);
    const Array x = call.floating_or_half(input, "input");
    const ops::WindowLists lists = ops::adaptive_windows(op, spatial, ops::shape_of(x.view()),
                                                         to_ints(size, op, "output_size"));
    void* y;
    i64* indices;
    const int ndim = int(lists.output.size());
    py::object output = call.new_array(x.dtype(), ndim, lists.output.data(), &y);
    py::object positions = call.new_int64_array(ndim, lists.output.data(), &indices);
    {
        const Run run(call, x.size() * 8);
        with_device_dtype(x.dtype(), [&](auto zero) {
            using T = decltype(zero);
            run.kernels<T>().adaptive_max_pool(lists.params, x.data<T>(), static_cast<T*>(y),
                                               indices);
        });
    }
    return py::make_tuple(output, positions);
}

// Planes: the last `spatial` axes joined.
struct PlaneView {
    i64 planes = 1, size = 1;
    PlaneView(const ops::Shape& shape, int spatial) {
        for (std::size_t i = 0; i < shape.size(); ++i) {
            (i + std::size_t(spatial) < shape.size() ? planes : size) *= shape[i];
        }
    }
};

void check_positions(const Call& call, const Array& at, const ops::Shape& shape, i64 size) {
    if (call.device() == Device::cpu) {
        return ops::check_positions(call.op(), at.data<i64>(), shape, size);
    }
    i64 value;
    const i64 wrong = call.first_outside(at, size, nullptr, &value);
    if (wrong >= 0) ops::refuse_position(call.op(), value, shape, wrong, size);
}

py::object scatter_planes(const char* op, int spatial, py::handle input, py::handle indices,
                          py::handle output_shape, bool add) {
    Call call(op);
    const Array x = call.floating_or_half(input, "input");
    const Array at = call.integer(indices, "indices");
    const ops::Shape found = ops::shape_of(x.view());
    const ops::Shape output = to_shape(output_shape, op, "output_size");
    ops::check_planes(op, spatial, found, output);
    ops::require_shape(op, "indices", ops::shape_of(at.view()), found);
    const PlaneView from(found, spatial), to(output, spatial);
    check_positions(call, at, found, to.size);
    void* y;
    py::object result = call.new_array(x.dtype(), int(output.size()), output.data(), &y);
    const Run run(call, (from.size + to.size) * from.planes * 4);
    with_device_dtype(x.dtype(), [&](auto zero) {
        using T = decltype(zero);
        run.kernels<T>().scatter_planes(from.planes, from.size, to.size, add, x.data<T>(),
                                        at.data<i64>(), static_cast<T*>(y));
    });
    return result;
}

py::object gather_planes(const char* op, int spatial, py::handle input, py::handle indices) {
    Call call(op);
    const Array x = call.floating_or_half(input, "grad");
    const Array at = call.integer(indices, "indices");
    const ops::Shape found = ops::shape_of(x.view()), output = ops::shape_of(at.view());
    ops::check_planes(op, spatial, found, output);
    const PlaneView from(found, spatial), to(output, spatial);
    check_positions(call, at, output, from.size);
    void* y;
    py::object result = call.new_array(x.dtype(), int(output.size()), output.data(), &y);
    const Run run(call, (from.size + to.size) * from.planes * 4);
    with_device_dtype(x.dtype(), [&](auto zero) {
        using T = decltype(zero);
        run.kernels<T>().gather_planes(from.planes, to.size, from.size, x.data<T>(), at.data<i64>(),
                                       static_cast<T*>(y));
    });
    return result;
}

}  // namespace

void init_average(py::module_& m) {
    m.def("avg_pool_forward", &avg_pool_forward);
    m.def("avg_pool_backward", &avg_pool_backward);
    m.def("adaptive_avg_forward", &adaptive_avg_forward);
    m.def("adaptive_avg_backward", &adaptive_avg_backward);
    m.def("global_pool_forward", &global_pool_forward);
    m.def("global_pool_backward", &global_pool_backward);
    m.def("adaptive_max_forward", &adaptive_max_forward);
    m.def("scatter_planes", &scatter_planes);
    m.def("gather_planes", &gather_planes);
}

}  // namespace fusednn::bindings
