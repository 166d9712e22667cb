#include "ops/conv.h"

#include "bindings/array.h"
#include "bindings/init.h"
#include "bindings/ints.h"

namespace fusednn::bindings {

namespace {

const char* const kNames[] = {"", "conv1d", "conv2d", "conv3d"};

ops::WindowArgs window_args(const char* op, py::handle stride, py::handle padding,
                            py::handle dilation) {
    ops::WindowArgs args;
    args.stride = to_ints(stride, op, "stride");
    args.padding = to_ints(padding, op, "padding");
    args.dilation = to_ints(dilation, op, "dilation");
    return args;
}

py::object conv_forward(int spatial, py::handle input_object, py::handle weight_object,
                        py::handle bias_object, py::handle stride, py::handle padding,
                        py::handle dilation, py::handle groups) {
    const char* op = kNames[spatial];
    const Array input = Array::floating(input_object, op, "input");
    const Array weight = Array::floating_like(weight_object, input, op, "weight");
    std::optional<Array> bias;
    ops::Shape bias_shape;
    if (!bias_object.is_none()) {
        bias = Array::floating_like(bias_object, input, op, "bias");
        bias_shape = ops::shape_of(bias->view());
    }
    const ops::ConvShapes shapes =
        ops::conv_shapes(op, spatial, ops::shape_of(input.view()), ops::shape_of(weight.view()),
                         bias ? &bias_shape : nullptr, window_args(op, stride, padding, dilation),
                         to_int(groups, op, "groups"));
    void* output;
    py::object result =
        new_array(input.dtype(), int(shapes.output.size()), shapes.output.data(), &output);
    {
        GilRelease release(ops::conv_cost(shapes.params));
        ops::conv_forward(shapes.params, input.dtype(), input.view().data, weight.view().data,
                          bias ? bias->view().data : nullptr, output);
    }
    return result;
}

py::object conv_backward_input(int spatial, py::handle grad_object, py::handle weight_object,
                               py::handle input_shape, py::handle stride, py::handle padding,
                               py::handle dilation, py::handle groups) {
    const char* op = kNames[spatial];
    const Array grad = Array::floating(grad_object, op, "grad");
    const Array weight = Array::floating_like(weight_object, grad, op, "weight");
    const ops::Shape input = to_shape(input_shape, op, "input_shape");
    const ops::ConvShapes shapes =
        ops::conv_shapes(op, spatial, input, ops::shape_of(weight.view()), nullptr,
                         window_args(op, stride, padding, dilation), to_int(groups, op, "groups"));
    ops::require_shape(op, "grad", ops::shape_of(grad.view()), shapes.output);
    void* output;
    py::object result = new_array(grad.dtype(), int(input.size()), input.data(), &output);
    {
        GilRelease release(ops::conv_cost(shapes.params));
        ops::conv_backward_input(shapes.params, grad.dtype(), grad.view().data, weight.view().data,
                                 output);
    }
    return result;
}

py::object conv_backward_weight(int spatial, py::handle grad_object, py::handle input_object,
                                py::handle weight_shape, py::handle stride, py::handle padding,
                                py::handle dilation, py::handle groups) {
    const char* op = kNames[spatial];
    const Array grad = Array::floating(grad_object, op, "grad");
    const Array input = Array::floating_like(input_object, grad, op, "input");
    const ops::Shape weight = to_shape(weight_shape, op, "weight_shape");
    const ops::ConvShapes shapes =
        ops::conv_shapes(op, spatial, ops::shape_of(input.view()), weight, nullptr,
                         window_args(op, stride, padding, dilation), to_int(groups, op, "groups"));
    ops::require_shape(op, "grad", ops::shape_of(grad.view()), shapes.output);
    void* output;
    py::object result = new_array(grad.dtype(), int(weight.size()), weight.data(), &output);
    {
        GilRelease release(ops::conv_cost(shapes.params));
        ops::conv_backward_weight(shapes.params, grad.dtype(), grad.view().data, input.view().data,
                                  output);
    }
    return result;
}

py::object conv_backward_bias(int spatial, py::handle grad_object) {
    const char* op = kNames[spatial];
    const Array grad = Array::floating(grad_object, op, "grad");
    const bool batched = grad.ndim() == spatial + 2;
    if (!batched && grad.ndim() != spatial + 1) {
        throw py::value_error(std::string(op) + ": grad has shape " +
                              ops::text(ops::shape_of(grad.view())));
    }
    const i64 channels = grad.shape()[batched];
    i64 inner = 1;
    for (int axis = batched + 1; axis < grad.ndim(); ++axis) inner *= grad.shape()[axis];
    void* output;
    py::object result = new_array(grad.dtype(), 1, &channels, &output);
    GilRelease release(grad.size());
    ops::bias_grad(grad.dtype(), batched ? grad.shape()[0] : 1, channels, inner, grad.view().data,
                   output);
    return result;
}

}  // namespace

void init_conv(py::module_& m) {
    m.def("conv_forward", &conv_forward);
    m.def("conv_backward_input", &conv_backward_input);
    m.def("conv_backward_weight", &conv_backward_weight);
    m.def("conv_backward_bias", &conv_backward_bias);
}

}  // namespace fusednn::bindings
