#include "ops/dense.h"

#include <cstring>

#include "bindings/call.h"
#include "bindings/init.h"
#include "core/errors.h"
#include "ops/conv.h"

namespace fusednn::bindings {

namespace {

py::object linear_forward(py::handle input_object, py::handle weight_object, py::handle bias_object,
                          bool relu) {
    const char* op = "linear";
    Call call(op);
    const Array input = call.floating_or_half(input_object, "input");
    const Array weight = call.floating_like(weight_object, input, "weight");
    std::optional<Array> bias;
    ops::Shape bias_shape;
    if (!bias_object.is_none()) {
        bias = call.floating_like(bias_object, input, "bias");
        bias_shape = ops::shape_of(bias->view());
    }
    const ops::LinearShapes shapes =
        ops::linear_shapes(op, ops::shape_of(input.view()), ops::shape_of(weight.view()),
                           bias ? &bias_shape : nullptr);
    void* output;
    py::object result =
        call.new_array(input.dtype(), int(shapes.output.size()), shapes.output.data(), &output);
    const ops::Gemm gemm{shapes.rows, shapes.out_features, shapes.in_features, false, true, relu};
    const Run run(call, 2 * gemm.m * gemm.n * gemm.k);
    ops::gemm(gemm, call.device(), input.dtype(), input.view().data, weight.view().data,
              bias ? bias->view().data : nullptr, output);
    return result;
}

// Rows of an array that is a stack of vectors along its last axis.
i64 rows_of(const Array& array) {
    i64 rows = 1;
    for (int axis = 0; axis + 1 < array.ndim(); ++axis) rows *= array.shape()[axis];
    return rows;
}

void require_features(const Array& array, const char* argument, i64 features) {
    if (array.ndim() >= 1 && array.shape()[array.ndim() - 1] == features) return;
    throw Error(std::string("linear: ") + argument + " has shape " +
                ops::text(ops::shape_of(array.view())) + ", expected (..., " +
                std::to_string(features) + ")");
}

py::object linear_backward_input(py::handle grad_object, py::handle weight_object) {
    Call call("linear");
    const Array grad = call.floating_or_half(grad_object, "grad");
    const Array weight = call.floating_like(weight_object, grad, "weight");
    if (weight.ndim() != 2) throw Error("linear: weight must have 2 dimensions");
    require_features(grad, "grad", weight.shape()[0]);
    ops::Shape shape = ops::shape_of(grad.view());
    shape.back() = weight.shape()[1];
    void* output;
    py::object result = call.new_array(grad.dtype(), int(shape.size()), shape.data(), &output);
    const ops::Gemm gemm{rows_of(grad), weight.shape()[1], weight.shape()[0], false, false, false};
    const Run run(call, 2 * gemm.m * gemm.n * gemm.k);
    ops::gemm(gemm, call.device(), grad.dtype(), grad.view().data, weight.view().data, nullptr,
              output);
    return result;
}

py::object linear_backward_weight(py::handle grad_object, py::handle input_object) {
    Call call("linear");
    const Array grad = call.floating_or_half(grad_object, "grad");
    const Array input = call.floating_like(input_object, grad, "input");
    if (grad.ndim() < 1 || input.ndim() < 1 || rows_of(grad) != rows_of(input)) {
        throw Error("linear: grad has shape " + ops::text(ops::shape_of(grad.view())) +
                    ", which does not fit input of shape " +
                    ops::text(ops::shape_of(input.view())));
    }
    const i64 shape[2] = {grad.shape()[grad.ndim() - 1], input.shape()[input.ndim() - 1]};
    void* output;
    py::object result = call.new_array(grad.dtype(), 2, shape, &output);
    const ops::Gemm gemm{shape[0], shape[1], rows_of(grad), true, false, false};
    const Run run(call, 2 * gemm.m * gemm.n * gemm.k);
    ops::gemm(gemm, call.device(), grad.dtype(), grad.view().data, input.view().data, nullptr,
              output);
    return result;
}

py::object linear_backward_bias(py::handle grad_object) {
    Call call("linear");
    const Array grad = call.floating_or_half(grad_object, "grad");
    if (grad.ndim() < 1) throw Error("linear: grad must have at least 1 dimension");
    const i64 features = grad.shape()[grad.ndim() - 1];
    void* output;
    py::object result = call.new_array(grad.dtype(), 1, &features, &output);
    const Run run(call, grad.size());
    ops::bias_grad(call.device(), grad.dtype(), rows_of(grad), features, 1, grad.view().data,
                   output);
    return result;
}

py::object matmul(py::handle a_object, py::handle b_object, bool transpose_a, bool transpose_b) {
    const char* op = "matmul";
    Call call(op);
    const Array a = call.floating_or_half(a_object, "input");
    const Array b = call.floating_like(b_object, a, "other");
    const ops::MatmulShapes shapes = ops::matmul_shapes(
        op, ops::shape_of(a.view()), ops::shape_of(b.view()), transpose_a, transpose_b);
    void* output;
    py::object result =
        call.new_array(a.dtype(), int(shapes.output.size()), shapes.output.data(), &output);
    const ops::Gemm& g = shapes.gemm;
    const Run run(call, 2 * shapes.batch * g.m * g.n * g.k);
    ops::matmul(shapes, call.device(), a.dtype(), a.view().data, b.view().data, output);
    return result;
}

}  // namespace

void init_dense(py::module_& m) {
    m.def("linear_forward", &linear_forward);
    m.def("linear_backward_input", &linear_backward_input);
    m.def("linear_backward_weight", &linear_backward_weight);
    m.def("linear_backward_bias", &linear_backward_bias);
    m.def("matmul", &matmul);
}

}  // namespace fusednn::bindings
