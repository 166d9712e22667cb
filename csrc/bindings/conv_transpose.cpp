// The transposed convolution: every pass is a convolution's pass, with the roles of input and
// result exchanged.
#include "bindings/call.h"
#include "bindings/init.h"
#include "bindings/ints.h"
#include "ops/conv.h"
#include "ops/conv_plan.h"

namespace fusednn::bindings {

namespace {

const char* const kNames[] = {"", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"};

struct Window {
    py::handle stride, padding, output_padding, dilation, groups;
};

ops::ConvShapes shapes_of(int spatial, const ops::Shape& input, const ops::Shape& weight,
                          const ops::Shape* bias, const Window& w) {
    const char* op = kNames[spatial];
    return ops::conv_transpose_shapes(
        op, spatial, input, weight, bias, to_conv_window(w.stride, w.padding, w.dilation, op),
        to_ints(w.output_padding, op, "output_padding"), to_int(w.groups, op, "groups"));
}

py::object conv_transpose_forward(int spatial, py::handle input_object, py::handle weight_object,
                                  py::handle bias_object, py::handle stride, py::handle padding,
                                  py::handle output_padding, py::handle dilation, py::handle groups,
                                  const std::string& algorithm) {
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
    ops::ConvShapes shapes = shapes_of(spatial, ops::shape_of(input.view()),
                                       ops::shape_of(weight.view()), bias ? &bias_shape : nullptr,
                                       {stride, padding, output_padding, dilation, groups});
    ops::choose_algorithm(op, algorithm, ops::ConvPass::backward_input, shapes.params, true);
    void* output;
    py::object result =
        call.new_array(input.dtype(), int(shapes.output.size()), shapes.output.data(), &output);
    {
        const Run run(call, ops::conv_cost(shapes.params));
        ops::conv_backward_input(shapes.params, call.device(), input.dtype(), input.view().data,
                                 weight.view().data, bias ? bias->view().data : nullptr, output);
    }
    return result;
}

py::object conv_transpose_backward_input(int spatial, py::handle grad_object,
                                         py::handle weight_object, py::handle input_shape,
                                         py::handle stride, py::handle padding,
                                         py::handle output_padding, py::handle dilation,
                                         py::handle groups, const std::string& algorithm) {
    const char* op = kNames[spatial];
    Call call(op);
    const Array grad = call.floating_or_half(grad_object, "grad");
    const Array weight = call.floating_like(weight_object, grad, "weight");
    const ops::Shape input = to_shape(input_shape, op, "input_shape");
    ops::ConvShapes shapes = shapes_of(spatial, input, ops::shape_of(weight.view()), nullptr,
                                       {stride, padding, output_padding, dilation, groups});
    ops::require_shape(op, "grad", ops::shape_of(grad.view()), shapes.output);
    ops::choose_algorithm(op, algorithm, ops::ConvPass::forward, shapes.params, true);
    void* output;
    py::object result = call.new_array(grad.dtype(), int(input.size()), input.data(), &output);
    {
        const Run run(call, ops::conv_cost(shapes.params));
        ops::conv_forward(shapes.params, call.device(), grad.dtype(), grad.view().data,
                          weight.view().data, nullptr, output);
    }
    return result;
}

py::object conv_transpose_backward_weight(int spatial, py::handle grad_object,
                                          py::handle input_object, py::handle weight_shape,
                                          py::handle stride, py::handle padding,
                                          py::handle output_padding, py::handle dilation,
                                          py::handle groups, const std::string& algorithm) {
    const char* op = kNames[spatial];
    Call call(op);
    const Array grad = call.floating_or_half(grad_object, "grad");
    const Array input = call.floating_like(input_object, grad, "input");
    const ops::Shape weight = to_shape(weight_shape, op, "weight_shape");
    ops::ConvShapes shapes = shapes_of(spatial, ops::shape_of(input.view()), weight, nullptr,
                                       {stride, padding, output_padding, dilation, groups});
    ops::require_shape(op, "grad", ops::shape_of(grad.view()), shapes.output);
    ops::choose_algorithm(op, algorithm, ops::ConvPass::backward_weight, shapes.params, true);
    void* output;
    py::object result = call.new_array(grad.dtype(), int(weight.size()), weight.data(), &output);
    {
        const Run run(call, ops::conv_cost(shapes.params));
        ops::conv_backward_weight(shapes.params, call.device(), grad.dtype(), input.view().data,
                                  grad.view().data, output);
    }
    return result;
}

}  // namespace

void init_conv_transpose(py::module_& m) {
    m.def("conv_transpose_forward", &conv_transpose_forward);
    m.def("conv_transpose_backward_input", &conv_transpose_backward_input);
    m.def("conv_transpose_backward_weight", &conv_transpose_backward_weight);
}

}  // namespace fusednn::bindings
