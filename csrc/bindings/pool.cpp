#include <string>

#include "bindings/array.h"
#include "bindings/init.h"
#include "bindings/ints.h"
#include "core/dispatch.h"
#include "core/errors.h"
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
    return (input_size + output_size) * (dtype == DType::f32 ? 4 : 8);
}

// The taps of a forward, as the kernels read them.
class TapArray {
  public:
    TapArray(py::handle object, const char* op, const ops::PoolShapes& shapes)
        : bytes_(ops::argmax_bytes(shapes.params)) {
        if (!py::isinstance<py::array>(object)) {
            throw TypeMismatch(std::string(op) + ": argmax must be a NumPy array, got " +
                               Py_TYPE(object.ptr())->tp_name);
        }
        const auto array = py::reinterpret_borrow<py::array>(object);
        ops::require_shape(op, "argmax", ops::Shape(array.shape(), array.shape() + array.ndim()),
                           shapes.output);
        if (bytes_ == 1) {
            read<std::uint8_t>(array, op, "uint8");
        } else if (bytes_ == 2) {
            read<std::uint16_t>(array, op, "uint16");
        } else {
            read<std::int32_t>(array, op, "int32");
        }
    }
    const void* data() const { return owner_.data(); }
    int bytes() const { return bytes_; }

  private:
    template <class Tap>
    void read(const py::array& array, const char* op, const char* expected) {
        if (array.dtype().num() != py::dtype::of<Tap>().num()) {
            throw TypeMismatch(std::string(op) + ": argmax has dtype " +
                               py::str(array.dtype()).cast<std::string>() + ", expected " +
                               expected);
        }
        owner_ = py::array_t<Tap, py::array::c_style>::ensure(array);
        if (!owner_) throw py::error_already_set();
    }

    int bytes_;
    py::array owner_;
};

py::tuple forward(int spatial, py::handle input, py::handle kernel, py::handle stride,
                  py::handle padding, py::handle dilation, bool ceil_mode, bool want_argmax) {
    const char* op = op_name(spatial, false);
    const Array x = Array::floating(input, op, "input");
    const auto shapes =
        ops::max_pool_shapes(op, spatial, ops::shape_of(x.view()),
                             window_args(op, kernel, stride, padding, dilation), ceil_mode);
    const int ndim = int(shapes.output.size()), bytes = ops::argmax_bytes(shapes.params);
    void *y, *taps = nullptr;
    py::object output = new_array(x.dtype(), ndim, shapes.output.data(), &y);
    py::object argmax = py::none();
    if (want_argmax) argmax = new_tap_array(bytes, ndim, shapes.output.data(), &taps);
    {
        GilRelease release(bytes_moved(shapes, x.size(), x.dtype()));
        with_dtype(x.dtype(), [&](auto zero) {
            using T = decltype(zero);
            kernels<T>().max_pool_forward(shapes.params, x.data<T>(), static_cast<T*>(y), taps,
                                          bytes);
        });
    }
    return py::make_tuple(std::move(output), std::move(argmax));
}

py::object backward(int spatial, py::handle grad, py::handle argmax, py::handle input_shape,
                    py::handle kernel, py::handle stride, py::handle padding, py::handle dilation,
                    bool ceil_mode) {
    const char* op = op_name(spatial, true);
    const Array dy = Array::floating(grad, op, "grad");
    const ops::Shape input = to_shape(input_shape, op, "input_shape");
    const auto shapes = ops::max_pool_shapes(
        op, spatial, input, window_args(op, kernel, stride, padding, dilation), ceil_mode);
    ops::require_shape(op, "grad", ops::shape_of(dy.view()), shapes.output);
    const TapArray taps(argmax, op, shapes);
    void* dx;
    py::object result = new_array(dy.dtype(), int(input.size()), input.data(), &dx);
    const i64 cost = bytes_moved(shapes, ops::checked_size(op, input), dy.dtype());
    {
        GilRelease release(cost);
        with_dtype(dy.dtype(), [&](auto zero) {
            using T = decltype(zero);
            kernels<T>().max_pool_backward(shapes.params, dy.data<T>(), taps.data(), taps.bytes(),
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
    const TapArray taps(argmax, op, shapes);
    i64* positions;
    py::object result =
        new_int64_array(int(shapes.output.size()), shapes.output.data(), &positions);
    {
        GilRelease release(bytes_moved(shapes, 0, DType::f64));
        ops::max_pool_indices(op, shapes.params, taps.data(), positions);
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
