#include "bindings/call.h"
#include "bindings/init.h"
#include "bindings/ints.h"
#include "ops/shapes.h"

namespace fusednn::bindings {

namespace {

ops::WindowArgs window_args(const char* op, py::handle kernel, py::handle dilation,
                            py::handle padding, py::handle stride) {
    ops::WindowArgs window;
    window.kernel = to_ints(kernel, op, "kernel_size");
    window.dilation = to_ints(dilation, op, "dilation");
    window.padding = to_ints(padding, op, "padding");
    window.stride = to_ints(stride, op, "stride");
    return window;
}

// Runs one of the two kernels from `input` into a new array.
template <class Kernel>
py::object result_of(Call& call, const Array& input, const ops::ConvShapes& shapes,
                     const Kernel& kernel) {
    void* result;
    py::object output =
        call.new_array(input.dtype(), int(shapes.output.size()), shapes.output.data(), &result);
    const Run run(call, (input.size() + ops::checked_size(call.op(), shapes.output)) * 8);
    with_device_dtype(input.dtype(), [&](auto zero) {
        using T = decltype(zero);
        kernel(run.kernels<T>(), shapes.params, input.data<T>(), static_cast<T*>(result));
    });
    return output;
}

py::object unfold(py::handle input, py::handle kernel, py::handle dilation, py::handle padding,
                  py::handle stride) {
    constexpr const char* op = "unfold";
    Call call(op);
    const Array x = call.floating_or_half(input, "input");
    const auto shapes = ops::unfold_shapes(op, ops::shape_of(x.view()),
                                           window_args(op, kernel, dilation, padding, stride));
    return result_of(call, x, shapes,
                     [](const auto& table, const auto& params, auto* from, auto* to) {
                         table.unfold(params, from, to);
                     });
}

py::object fold(py::handle input, py::handle output_size, py::handle kernel, py::handle dilation,
                py::handle padding, py::handle stride) {
    constexpr const char* op = "fold";
    Call call(op);
    const Array columns = call.floating_or_half(input, "input");
    const auto shapes =
        ops::fold_shapes(op, ops::shape_of(columns.view()), to_ints(output_size, op, "output_size"),
                         window_args(op, kernel, dilation, padding, stride));
    return result_of(call, columns, shapes,
                     [](const auto& table, const auto& params, auto* from, auto* to) {
                         table.fold(params, from, to);
                     });
}

}  // namespace

void init_unfold(py::module_& m) {
    m.def("unfold", &unfold);
    m.def("fold", &fold);
}

}  // namespace fusednn::bindings
