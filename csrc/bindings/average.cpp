#include "ops/average.h"

#include "bindings/array.h"
#include "bindings/init.h"
#include "bindings/ints.h"
#include "core/dispatch.h"
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

py::object run_forward(const Array& x, const ops::WindowLists& lists) {
    void* y;
    py::object result = new_array(x.dtype(), int(lists.output.size()), lists.output.data(), &y);
    GilRelease release(x.size() * 4);
    with_dtype(x.dtype(), [&](auto zero) {
        using T = decltype(zero);
        kernels<T>().avg_pool_forward(lists.params, x.data<T>(), static_cast<T*>(y));
    });
    return result;
}

py::object run_backward(const char* op, const Array& dy, const ops::Shape& input,
                        const ops::WindowLists& lists) {
    ops::require_shape(op, "grad", ops::shape_of(dy.view()), lists.output);
    void* dx;
    py::object result = new_array(dy.dtype(), int(input.size()), input.data(), &dx);
    GilRelease release(ops::checked_size(op, input) * 4);
    with_dtype(dy.dtype(), [&](auto zero) {
        using T = decltype(zero);
        kernels<T>().avg_pool_backward(lists.params, dy.data<T>(), static_cast<T*>(dx));
    });
    return result;
}

py::object avg_pool_forward(const char* op, int spatial, py::handle input, py::handle kernel,
                            py::handle stride, py::handle padding, bool ceil_mode, bool include_pad,
                            py::handle divisor) {
    const Array x = Array::floating(input, op, "input");
    return run_forward(x, average_lists(op, spatial, ops::shape_of(x.view()), kernel, stride,
                                        padding, ceil_mode, include_pad, divisor));
}

py::object avg_pool_backward(const char* op, int spatial, py::handle grad, py::handle input_shape,
                             py::handle kernel, py::handle stride, py::handle padding,
                             bool ceil_mode, bool include_pad, py::handle divisor) {
    const Array dy = Array::floating(grad, op, "grad");
    const ops::Shape input = to_shape(input_shape, op, "input_shape");
    return run_backward(op, dy, input,
                        average_lists(op, spatial, input, kernel, stride, padding, ceil_mode,
                                      include_pad, divisor));
}

py::object adaptive_avg_forward(const char* op, int spatial, py::handle input, py::handle size) {
    const Array x = Array::floating(input, op, "input");
    return run_forward(x, ops::adaptive_windows(op, spatial, ops::shape_of(x.view()),
                                                to_ints(size, op, "output_size")));
}

py::object adaptive_avg_backward(const char* op, int spatial, py::handle grad,
                                 py::handle input_shape, py::handle size) {
    const Array dy = Array::floating(grad, op, "grad");
    const ops::Shape input = to_shape(input_shape, op, "input_shape");
    return run_backward(
        op, dy, input, ops::adaptive_windows(op, spatial, input, to_ints(size, op, "output_size")));
}

py::object global_pool_forward(py::handle input, bool sum) {
    const char* op = "global_pool";
    const Array x = Array::floating(input, op, "input");
    return run_forward(x, ops::global_windows(op, ops::shape_of(x.view()), sum));
}

py::object global_pool_backward(py::handle grad, py::handle input_shape, bool sum) {
    const char* op = "global_pool";
    const Array dy = Array::floating(grad, op, "grad");
    const ops::Shape input = to_shape(input_shape, op, "input_shape");
    const ops::WindowLists lists = ops::global_windows(op, input, sum);
    ops::Shape output(input.begin(), input.begin() + 2);
    ops::require_shape(op, "grad", ops::shape_of(dy.view()), output);
    void* dx;
    py::object result = new_array(dy.dtype(), int(input.size()), input.data(), &dx);
    GilRelease release(ops::checked_size(op, input) * 4);
    with_dtype(dy.dtype(), [&](auto zero) {
        using T = decltype(zero);
        kernels<T>().avg_pool_backward(lists.params, dy.data<T>(), static_cast<T*>(dx));
    });
    return result;
}

py::tuple adaptive_max_forward(const char* op, int spatial, py::handle input, py::handle size) {
    const Array x = Array::floating(input, op, "input");
    const ops::WindowLists lists = ops::adaptive_windows(op, spatial, ops::shape_of(x.view()),
                                                         to_ints(size, op, "output_size"));
    void* y;
    i64* indices;
    const int ndim = int(lists.output.size());
    py::object output = new_array(x.dtype(), ndim, lists.output.data(), &y);
    py::object positions = new_int64_array(ndim, lists.output.data(), &indices);
    {
        GilRelease release(x.size() * 8);
        with_dtype(x.dtype(), [&](auto zero) {
            using T = decltype(zero);
            kernels<T>().adaptive_max_pool(lists.params, x.data<T>(), static_cast<T*>(y), indices);
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

py::object scatter_planes(const char* op, int spatial, py::handle input, py::handle indices,
                          py::handle output_shape, bool add) {
    const Array x = Array::floating(input, op, "input");
    const Array at = Array::integer(indices, op, "indices");
    const ops::Shape found = ops::shape_of(x.view());
    const ops::Shape output = to_shape(output_shape, op, "output_size");
    ops::check_planes(op, spatial, found, output);
    ops::require_shape(op, "indices", ops::shape_of(at.view()), found);
    const PlaneView from(found, spatial), to(output, spatial);
    ops::check_positions(op, at.data<i64>(), found, to.size);
    void* y;
    py::object result = new_array(x.dtype(), int(output.size()), output.data(), &y);
    GilRelease release((from.size + to.size) * from.planes * 4);
    with_dtype(x.dtype(), [&](auto zero) {
        using T = decltype(zero);
        kernels<T>().scatter_planes(from.planes, from.size, to.size, add, x.data<T>(),
                                    at.data<i64>(), static_cast<T*>(y));
    });
    return result;
}

py::object gather_planes(const char* op, int spatial, py::handle input, py::handle indices) {
    const Array x = Array::floating(input, op, "grad");
    const Array at = Array::integer(indices, op, "indices");
    const ops::Shape found = ops::shape_of(x.view()), output = ops::shape_of(at.view());
    ops::check_planes(op, spatial, found, output);
    const PlaneView from(found, spatial), to(output, spatial);
    ops::check_positions(op, at.data<i64>(), output, from.size);
    void* y;
    py::object result = new_array(x.dtype(), int(output.size()), output.data(), &y);
    GilRelease release((from.size + to.size) * from.planes * 4);
    with_dtype(x.dtype(), [&](auto zero) {
        using T = decltype(zero);
        kernels<T>().gather_planes(from.planes, to.size, from.size, x.data<T>(), at.data<i64>(),
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
