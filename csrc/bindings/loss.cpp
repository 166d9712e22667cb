#include "ops/loss.h"

#include "bindings/call.h"
#include "bindings/init.h"
#include "bindings/ints.h"
#include "core/errors.h"

namespace fusednn::bindings {

namespace {

// What a class costs: an exponential.
constexpr i64 kClassCost = 20;

template <bool kLog>
py::object softmax_forward(py::handle input_object, py::handle dim) {
    const char* op = kLog ? "log_softmax" : "softmax";
    Call call(op);
    const Array input = call.floating_or_half(input_object, "input");
    const ops::AxisView view =
        ops::axis_view(op, ops::shape_of(input.view()), to_int(dim, op, "dim"));
    void* output;
    py::object result = call.new_array(input.dtype(), input.ndim(), input.shape(), &output);
    const Run run(call, input.size() * kClassCost);
    with_device_dtype(input.dtype(), [&](auto zero) {
        using T = decltype(zero);
        const auto kernel =
            kLog ? run.kernels<T>().log_softmax_forward : run.kernels<T>().softmax_forward;
        kernel(view.outer, view.classes, view.inner, input.data<T>(), static_cast<T*>(output));
    });
    return result;
}

template <bool kLog>
py::object softmax_backward(py::handle grad_object, py::handle output_object, py::handle dim) {
    const char* op = kLog ? "log_softmax" : "softmax";
    Call call(op);
    const Array grad = call.floating_or_half(grad_object, "grad");
    const Array output = call.floating_like(output_object, grad, "output");
    const ops::Shape shape = ops::shape_of(output.view());
    ops::require_shape(op, "grad", ops::shape_of(grad.view()), shape);
    const ops::AxisView view = ops::axis_view(op, shape, to_int(dim, op, "dim"));
    void* grad_input;
    py::object result = call.new_array(grad.dtype(), grad.ndim(), grad.shape(), &grad_input);
    const Run run(call, grad.size() * kClassCost);
    with_device_dtype(grad.dtype(), [&](auto zero) {
        using T = decltype(zero);
        const auto kernel =
            kLog ? run.kernels<T>().log_softmax_backward : run.kernels<T>().softmax_backward;
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

// The arguments that forward and backward share, checked.
struct CrossEntropyCall {
    Call call;
    bool input_is_log_prob;
    Array input, target;
    std::optional<Array> weight;
    ops::CrossEntropyShapes shapes;
    i64 ignore_index;
    double label_smoothing;

    CrossEntropyCall(const std::string& name, py::handle input_object, py::handle target_object,
                     py::handle weight_object, py::handle ignore, py::handle smoothing)
        : call(name.c_str()),
          input_is_log_prob(is_nll(name)),
          input(call.floating_or_half(input_object, "input")),
          target(call.integer(target_object, "target")) {
        const char* op = name.c_str();
        ops::Shape weight_shape;
        if (!weight_object.is_none()) {
            weight = call.accumulated_like(weight_object, input, "weight");
            weight_shape = ops::shape_of(weight->view());
        }
        shapes =
            ops::cross_entropy_shapes(op, ops::shape_of(input.view()), ops::shape_of(target.view()),
                                      weight ? &weight_shape : nullptr);
        ignore_index = to_int(ignore, op, "ignore_index");
        label_smoothing = to_double(smoothing, op, "label_smoothing");
        ops::check_label_smoothing(op, label_smoothing, input_is_log_prob);
        check_targets(call.is_unsigned(target_object));
    }

    void check_targets(bool is_unsigned) const {
        const i64 classes = shapes.view.classes;
        if (call.device() == Device::cpu) {
            return ops::check_targets(call.op(), target.data<i64>(), shapes.positions, classes,
                                      ignore_index, is_unsigned);
        }
        i64 value;
        const bool may_ignore = !(is_unsigned && ignore_index < 0);
        const i64 wrong =
            call.first_outside(target, classes, may_ignore ? &ignore_index : nullptr, &value);
        if (wrong < 0) return;
        ops::refuse_target(call.op(), value, shapes.positions, wrong, classes, ignore_index,
                           is_unsigned);
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
        p.class_weight = weight ? weight->data<Accumulate<T>>() : nullptr;
        p.ignore_index = ignore_index;
        p.label_smoothing = label_smoothing;
        p.input_is_log_prob = input_is_log_prob;
        return p;
    }
};

py::tuple cross_entropy_forward(const std::string& op, py::handle input, py::handle target,
                                py::handle weight, py::handle ignore_index,
                                py::handle label_smoothing) {
    CrossEntropyCall it(op, input, target, weight, ignore_index, label_smoothing);
    const ops::Shape& shape = it.shapes.positions;
    const DType dtype = accumulate_dtype(it.input.dtype());
    void *losses, *counts;
    py::object losses_array = it.call.new_array(dtype, int(shape.size()), shape.data(), &losses);
    py::object counts_array = it.call.new_array(dtype, int(shape.size()), shape.data(), &counts);
    {
        const Run run(it.call, it.input.size() * kClassCost);
        with_device_dtype(it.input.dtype(), [&](auto zero) {
            using T = decltype(zero);
            run.kernels<T>().cross_entropy_forward(it.params<T>(), it.input.data<T>(),
                                                   static_cast<Accumulate<T>*>(losses),
                                                   static_cast<Accumulate<T>*>(counts));
        });
    }
    return py::make_tuple(losses_array, counts_array);
}

py::object cross_entropy_backward(const std::string& op, py::handle input, py::handle target,
                                  py::handle weight, py::handle ignore_index,
                                  py::handle label_smoothing, py::handle scale_object) {
    CrossEntropyCall it(op, input, target, weight, ignore_index, label_smoothing);
    const Array scale = it.call.accumulated_like(scale_object, it.input, "scale");
    ops::require_shape(op.c_str(), "scale", ops::shape_of(scale.view()), it.shapes.positions);
    void* grad;
    py::object result =
        it.call.new_array(it.input.dtype(), it.input.ndim(), it.input.shape(), &grad);
    const Run run(it.call, it.input.size() * kClassCost);
    with_device_dtype(it.input.dtype(), [&](auto zero) {
        using T = decltype(zero);
        run.kernels<T>().cross_entropy_backward(it.params<T>(), it.input.data<T>(),
                                                scale.data<Accumulate<T>>(), static_cast<T*>(grad));
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
