#include "bindings/array.h"
#include "bindings/init.h"
#include "bindings/ints.h"
#include "core/dispatch.h"
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
template <class Run>
py::object result_of(const Array& input, const char* op, const ops::ConvShapes& shapes,
                     const Run& run) {
    void* result;
    py::object output =
        new_array(input.dtype(), int(shapes.output.size()), shapes.output.data(), &result);
    GilRelease release((input.size() + ops::checked_size(op, shapes.output)) * 8);
    with_dtype(input.dtype(), [&](auto zero) {
        using T = decltype(zero);
        run(kernels<T>(), shapes.params, input.data<T>(), static_cast<T*>(result));
    });
    return output;
}

py::object unfold(py::handle input, py::handle kernel, py::handle dilation, py::handle padding,
                  py::handle stride) {
    constexpr const char* op = "unfold";
    const Array x = Array::floating(input, op, "input");
    const auto shapes = ops::unfold_shapes(op, ops::shape_of(x.view()),
                                           window_args(op, kernel, dilation, padding, stride));
    return result_of(x, op, shapes,
                     [](const auto& table, const auto& params, auto* from, auto* to) {
                         table.unfold(params, from, to);
                     });
}

py::object fold(py::handle input, py::handle output_size, py::handle kernel, py::handle dilation,
                py::handle padding, py::handle stride) {
    constexpr const char* op = "fold";
    const Array columns = Array::floating(input, op, "input");
    const auto shapes =
        ops::fold_shapes(op, ops::shape_of(columns.view()), to_ints(output_size, op, "output_size"),
                         window_args(op, kernel, dilation, padding, stride));
    return result_of(columns, op, shapes,
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
