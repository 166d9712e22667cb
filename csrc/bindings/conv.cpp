#include "ops/conv.h"

#include "bindings/call.h"
#include "bindings/init.h"
#include "bindings/ints.h"
#include "ops/conv_packed.h"
#include "ops/conv_plan.h"

namespace fusednn::bindings {

namespace {

const char* const kNames[] = {"", "conv1d", "conv2d", "conv3d"};

py::object conv_forward(int spatial, py::handle input_object, py::handle weight_object,
                        py::handle bias_object, py::handle stride, py::handle padding,
                        py::handle dilation, py::handle groups, const std::string& algorithm,
                        ops::PackedWeight* packed) {
    const char* op = kNames[spatial];
    Call call(op);
    const Array input = call.floating_or_half(input_object, "input");
    const Array weight = call.floating_like(weight_object, input, "weight");
    std::optional<Array> bias;
    ops::Shape bias_shape;
    if (!bias_object.is_none()) {
        bias = call.floating_like(bias_object, input, "bias");
        bias_shape = ops::shape_of(bias->view());
    }
    ops::ConvShapes shapes = ops::conv_shapes(
        op, spatial, ops::shape_of(input.view()), ops::shape_of(weight.view()),
        bias ? &bias_shape : nullptr, to_conv_window(stride, padding, dilation, op),
        to_int(groups, op, "groups"));
    ops::choose_algorithm(op, algorithm, ops::ConvPass::forward, shapes.params);
    void* output;
    py::object result =
        call.new_array(input.dtype(), int(shapes.output.size()), shapes.output.data(), &output);
    {
        const Run run(call, ops::conv_cost(shapes.params));
        ops::PackedWeight::Buffer held;
        if (packed && call.device() == Device::cpu) {
            held = packed->apply(input.dtype(), weight.view().data, shapes.params);
        }
        ops::conv_forward(shapes.params, call.device(), input.dtype(), input.view().data,
                          weight.view().data, bias ? bias->view().data : nullptr, output);
    }
    return result;
}

py::object conv_backward_input(int spatial, py::handle grad_object, py::handle weight_object,
                               py::handle input_shape, py::handle stride, py::handle padding,
                               py::handle dilation, py::handle groups,
                               const std::string& algorithm) {
    const char* op = kNames[spatial];
    Call call(op);
    const Array grad = call.floating_or_half(grad_object, "grad");
    const Array weight = call.floating_like(weight_object, grad, "weight");
    const ops::Shape input = to_shape(input_shape, op, "input_shape");
    ops::ConvShapes shapes = ops::conv_shapes(
        op, spatial, input, ops::shape_of(weight.view()), nullptr,
        to_conv_window(stride, padding, dilation, op), to_int(groups, op, "groups"));
    ops::require_shape(op, "grad", ops::shape_of(grad.view()), shapes.output);
    ops::choose_algorithm(op, algorithm, ops::ConvPass::backward_input, shapes.params);
    void* output;
    py::object result = call.new_array(grad.dtype(), int(input.size()), input.data(), &output);
    {
        const Run run(call, ops::conv_cost(shapes.params));
        ops::conv_backward_input(shapes.params, call.device(), grad.dtype(), grad.view().data,
                                 weight.view().data, nullptr, output);
    }
    return result;
}

py::object conv_backward_weight(int spatial, py::handle grad_object, py::handle input_object,
                                py::handle weight_shape, py::handle stride, py::handle padding,
                                py::handle dilation, py::handle groups,
                                const std::string& algorithm) {
    const char* op = kNames[spatial];
    Call call(op);
    const Array grad = call.floating_or_half(grad_object, "grad");
    const Array input = call.floating_like(input_object, grad, "input");
    const ops::Shape weight = to_shape(weight_shape, op, "weight_shape");
    ops::ConvShapes shapes = ops::conv_shapes(
        op, spatial, ops::shape_of(input.view()), weight, nullptr,
        to_conv_window(stride, padding, dilation, op), to_int(groups, op, "groups"));
    ops::require_shape(op, "grad", ops::shape_of(grad.view()), shapes.output);
    ops::choose_algorithm(op, algorithm, ops::ConvPass::backward_weight, shapes.params);
    void* output;
    py::object result = call.new_array(grad.dtype(), int(weight.size()), weight.data(), &output);
    {
        const Run run(call, ops::conv_cost(shapes.params));
        ops::conv_backward_weight(shapes.params, call.device(), grad.dtype(), grad.view().data,
                                  input.view().data, output);
    }
    return result;
}

py::object conv_backward_bias(int spatial, py::handle grad_object) {
    const char* op = kNames[spatial];
    Call call(op);
    const Array grad = call.floating_or_half(grad_object, "grad");
    const bool batched = grad.ndim() == spatial + 2;
    if (!batched && grad.ndim() != spatial + 1) {
        throw py::value_error(std::string(op) + ": grad has shape " +
                              ops::text(ops::shape_of(grad.view())));
    }
    const i64 channels = grad.shape()[batched];
    i64 inner = 1;
    for (int axis = batched + 1; axis < grad.ndim(); ++axis) inner *= grad.shape()[axis];
    void* output;
    py::object result = call.new_array(grad.dtype(), 1, &channels, &output);
    const Run run(call, grad.size());
    ops::bias_grad(call.device(), grad.dtype(), batched ? grad.shape()[0] : 1, channels, inner,
                   grad.view().data, output);
    return result;
}

py::tuple conv_plan(int spatial, py::handle input_shape, py::handle weight_shape, py::handle stride,
                    py::handle padding, py::handle dilation, py::handle groups) {
    const char* op = "conv_plan";
    ops::ConvShapes shapes = ops::conv_shapes(op, spatial, to_shape(input_shape, op, "input_shape"),
                                              to_shape(weight_shape, op, "weight_shape"), nullptr,
                                              to_conv_window(stride, padding, dilation, op),
                                              to_int(groups, op, "groups"));
    ops::choose_algorithm(op, "auto", ops::ConvPass::forward, shapes.params);
    return py::make_tuple(ops::algorithm_name(shapes.params.algorithm),
                          ops::explain_algorithm(ops::ConvPass::forward, shapes.params));
}

// The shape of a convolution's output, and for each spatial axis (stride, dilation, zeros in front,
// zeros behind): what Python code that does not run the kernels needs to know.
py::tuple conv_shape(const std::string& name, int spatial, py::handle input_shape,
                     py::handle weight_shape, py::handle stride, py::handle padding,
                     py::handle dilation, py::handle groups) {
    const char* op = name.c_str();
    const ops::ConvShapes shapes = ops::conv_shapes(
        op, spatial, to_shape(input_shape, op, "input_shape"),
        to_shape(weight_shape, op, "weight_shape"), nullptr,
        to_conv_window(stride, padding, dilation, op), to_int(groups, op, "groups"));
    const ConvParams& p = shapes.params;
    py::tuple output(shapes.output.size()), axes(spatial);
    for (std::size_t i = 0; i < shapes.output.size(); ++i) output[i] = py::int_(shapes.output[i]);
    for (int i = 0; i < spatial; ++i) {
        const int at = 3 - spatial + i;
        const i64 reach = (p.kernel[at] - 1) * p.dilation[at] + 1;
        const i64 behind = (p.out_size[at] - 1) * p.stride[at] + reach - p.in_size[at] - p.pad[at];
        axes[i] = py::make_tuple(p.stride[at], p.dilation[at], p.pad[at], behind > 0 ? behind : 0);
    }
    return py::make_tuple(output, axes);
}

}  // namespace

void init_conv(py::module_& m) {
    py::class_<ops::PackedWeight>(m, "PackedWeight")
        .def(py::init<>())
        .def_property_readonly("nbytes", &ops::PackedWeight::bytes);
    m.def("conv_forward", &conv_forward, py::arg("spatial"), py::arg("input"), py::arg("weight"),
          py::arg("bias"), py::arg("stride"), py::arg("padding"), py::arg("dilation"),
          py::arg("groups"), py::arg("algorithm"), py::arg("packed") = py::none());
    m.def("conv_backward_input", &conv_backward_input);
    m.def("conv_backward_weight", &conv_backward_weight);
    m.def("conv_backward_bias", &conv_backward_bias);
    m.def("conv_plan", &conv_plan);
    m.def("conv_shape", &conv_shape);
}

}  // namespace fusednn::bindings
