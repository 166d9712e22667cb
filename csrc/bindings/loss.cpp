#include "ops/loss.h"

#include "bindings/array.h"
#include "bindings/init.h"
#include "bindings/ints.h"
#include "core/dispatch.h"
#include "core/errors.h"

namespace fusednn::bindings {

namespace {

// What a class costs: an exponential.
constexpr i64 kClassCost = 20;

template <bool kLog>
py::object softmax_forward(py::handle input_object, py::handle dim) {
    const char* op = kLog ? "log_softmax" : "softmax";
    const Array input = Array::floating(input_object, op, "input");
    const ops::AxisView view =
        ops::axis_view(op, ops::shape_of(input.view()), to_int(dim, op, "dim"));
    void* output;
    py::object result = new_array(input.dtype(), input.ndim(), input.shape(), &output);
    GilRelease release(input.size() * kClassCost);
    with_dtype(input.dtype(), [&](auto zero) {
        using T = decltype(zero);
        const auto kernel = kLog ? kernels<T>().log_softmax_forward : kernels<T>().softmax_forward;
        kernel(view.outer, view.classes, view.inner, input.data<T>(), static_cast<T*>(output));
    });
    return result;
}

template <bool kLog>
py::object softmax_backward(py::handle grad_object, py::handle output_object, py::handle dim) {
    const char* op = kLog ? "log_softmax" : "softmax";
    const Array grad = Array::floating(grad_object, op, "grad");
    const Array output = Array::floating_like(output_object, grad, op, "output");
    const ops::Shape shape = ops::shape_of(output.view());
    ops::require_shape(op, "grad", ops::shape_of(grad.view()), shape);
    const ops::AxisView view = ops::axis_view(op, shape, to_int(dim, op, "dim"));
    void* grad_input;
    py::object result = new_array(grad.dtype(), grad.ndim(), grad.shape(), &grad_input);
    GilRelease release(grad.size() * kClassCost);
    with_dtype(grad.dtype(), [&](auto zero) {
        using T = decltype(zero);
        const auto kernel =
            kLog ? kernels<T>().log_softmax_backward : kernels<T>().softmax_backward;
        kernel(view.outer, view.classes, view.inner, grad.data<T>(), output.data<T>(),
               static_cast<T*>(grad_input));
    });
    return result;
}

double to_double(py::handle object, const char* op, const char* argument) {
    const double value = PyFloat_AsDouble(object.ptr());
    if (value == -1.0 && PyErr_Occurred()) {
        PyErr_Clear();
        throw TypeMismatch(std::string(op) + ": " + argument + " must be a number, got " +
                           Py_TYPE(object.ptr())->tp_name);
    }
    return value;
}

bool is_unsigned(py::handle array) {
    const auto* descr = py::detail::array_proxy(array.ptr())->descr;
    return py::detail::array_descriptor_proxy(descr)->kind == 'u';
}

// The arguments that forward and backward share, checked.
struct CrossEntropyCall {
    bool input_is_log_prob;
    Array input, target;
    std::optional<Array> weight;
    ops::CrossEntropyShapes shapes;
    i64 ignore_index;
    double label_smoothing;

    CrossEntropyCall(const std::string& name, py::handle input_object, py::handle target_object,
                     py::handle weight_object, py::handle ignore, py::handle smoothing)
        : input_is_log_prob(is_nll(name)),
          input(Array::floating(input_object, name.c_str(), "input")),
          target(Array::integer(target_object, name.c_str(), "target")) {
        const char* op = name.c_str();
        ops::Shape weight_shape;
        if (!weight_object.is_none()) {
            weight = Array::floating_like(weight_object, input, op, "weight");
            weight_shape = ops::shape_of(weight->view());
        }
        shapes =
            ops::cross_entropy_shapes(op, ops::shape_of(input.view()), ops::shape_of(target.view()),
                                      weight ? &weight_shape : nullptr);
        ignore_index = to_int(ignore, op, "ignore_index");
        label_smoothing = to_double(smoothing, op, "label_smoothing");
        ops::check_label_smoothing(op, label_smoothing, input_is_log_prob);
        ops::check_targets(op, target.data<i64>(), shapes.positions, shapes.view.classes,
                           ignore_index, is_unsigned(target_object));
    }

    static bool is_nll(const std::string& name) {
        if (name == "cross_entropy" || name == "nll_loss") return name == "nll_loss";
        throw Error("cross_entropy: op is '" + name + "', expected 'cross_entropy' or 'nll_loss'");
    }

    template <class T>
    CrossEntropyParams<T> params() const {
        CrossEntropyParams<T> p;
        p.outer = shapes.view.outer;
        p.classes = shapes.view.classes;
        p.inner = shapes.view.inner;
        p.target = target.data<i64>();
        p.class_weight = weight ? weight->data<T>() : nullptr;
        p.ignore_index = ignore_index;
        p.label_smoothing = label_smoothing;
        p.input_is_log_prob = input_is_log_prob;
        return p;
    }
};

py::tuple cross_entropy_forward(const std::string& op, py::handle input, py::handle target,
                                py::handle weight, py::handle ignore_index,
                                py::handle label_smoothing) {
    const CrossEntropyCall call(op, input, target, weight, ignore_index, label_smoothing);
    const ops::Shape& shape = call.shapes.positions;
    const DType dtype = call.input.dtype();
    void *losses, *counts;
    py::object losses_array = new_array(dtype, int(shape.size()), shape.data(), &losses);
    py::object counts_array = new_array(dtype, int(shape.size()), shape.data(), &counts);
    {
        GilRelease release(call.input.size() * kClassCost);
        with_dtype(dtype, [&](auto zero) {
            using T = decltype(zero);
            kernels<T>().cross_entropy_forward(call.params<T>(), call.input.data<T>(),
                                               static_cast<T*>(losses), static_cast<T*>(counts));
        });
    }
    return py::make_tuple(losses_array, counts_array);
}

py::object cross_entropy_backward(const std::string& op, py::handle input, py::handle target,
                                  py::handle weight, py::handle ignore_index,
                                  py::handle label_smoothing, py::handle scale_object) {
    const CrossEntropyCall call(op, input, target, weight, ignore_index, label_smoothing);
    const Array scale = Array::floating_like(scale_object, call.input, op.c_str(), "scale");
    ops::require_shape(op.c_str(), "scale", ops::shape_of(scale.view()), call.shapes.positions);
    void* grad;
    py::object result = new_array(call.input.dtype(), call.input.ndim(), call.input.shape(), &grad);
    GilRelease release(call.input.size() * kClassCost);
    with_dtype(call.input.dtype(), [&](auto zero) {
        using T = decltype(zero);
        kernels<T>().cross_entropy_backward(call.params<T>(), call.input.data<T>(), scale.data<T>(),
                                            static_cast<T*>(grad));
    });
    return result;
}

}  // namespace

void init_loss(py::module_& m) {
    m.def("softmax_forward", &softmax_forward<false>);
    m.def("softmax_backward", &softmax_backward<false>);
    m.def("log_softmax_forward", &softmax_forward<true>);
    m.def("log_softmax_backward", &softmax_backward<true>);
    m.def("cross_entropy_forward", &cross_entropy_forward);
    m.def("cross_entropy_backward", &cross_entropy_backward);
}

}  // namespace fusednn::bindings
