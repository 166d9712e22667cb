#include "core/errors.h"
#include "ops/shapes.h"

namespace fusednn::ops {

namespace {

constexpr int kSpatial = 2;

// Window arguments of both axes, checked.
struct Window {
    i64 kernel[kSpatial], stride[kSpatial], padding[kSpatial], dilation[kSpatial];
};

Window expand(const char* op, const WindowArgs& window) {
    Window w;
    expand_window(op, "kernel_size", window.kernel, kSpatial, 1, w.kernel);
    expand_window(op, "dilation", window.dilation, kSpatial, 1, w.dilation);
    expand_window(op, "padding", window.padding, kSpatial, 0, w.padding);
    expand_window(op, "stride", window.stride, kSpatial, 1, w.stride);
    return w;
}

// Params for an image of size (H, W); batch and channels are the caller's.
ConvParams fill(const char* op, const Window& w, const i64* size) {
    ConvParams params;
    params.groups = 1;
    fill_axis(params, 0, {"", 1, 1, 1, 1, 0, 0}, 1);
    for (int i = 0; i < kSpatial; ++i) {
        const WindowAxis axis{axis_name(kSpatial, i), size[i],      w.kernel[i], w.stride[i],
                              w.dilation[i],          w.padding[i], w.padding[i]};
        fill_axis(params, i + 1, axis, window_count(op, axis, false));
    }
    return params;
}

std::string pair(const i64* values) {
    return text(Shape{values[0], values[1]});
}

}  // namespace

ConvShapes unfold_shapes(const char* op, const Shape& input, const WindowArgs& window) {
    const std::size_t ndim = input.size();
    if (ndim != 3 && ndim != 4) {
        throw Error(std::string(op) + ": input has shape " + text(input) +
                    ", expected (N, C, H, W) or (C, H, W)");
    }
    const Window w = expand(op, window);
    ConvShapes shapes;
    shapes.batched = ndim == 4;
    shapes.params = fill(op, w, input.data() + ndim - kSpatial);
    shapes.params.batch = shapes.batched ? input[0] : 1;
    shapes.params.in_channels = shapes.params.out_channels = input[ndim - 3];
    const i64 taps = checked_product(op, w.kernel[0], w.kernel[1]);
    if (shapes.batched) shapes.output.push_back(input[0]);
    shapes.output.push_back(checked_product(op, input[ndim - 3], taps));
    shapes.output.push_back(
        checked_product(op, shapes.params.out_size[1], shapes.params.out_size[2]));
    checked_size(op, shapes.output);
    return shapes;
}

ConvShapes fold_shapes(const char* op, const Shape& columns, const std::vector<i64>& output_size,
                       const WindowArgs& window) {
    const std::size_t ndim = columns.size();
    if (ndim != 2 && ndim != 3) {
        throw Error(
            std::string(op) + ": input has shape " + text(columns) +
            ", expected (N, C * kernel elements, windows) or (C * kernel elements, windows)");
    }
    i64 size[kSpatial];
    expand_window(op, "output_size", output_size, kSpatial, 1, size);
    const Window w = expand(op, window);
    const i64 taps = checked_product(op, w.kernel[0], w.kernel[1]);
    const i64 rows = columns[ndim - 2];
    if (rows % taps != 0) {
        throw Error(std::string(op) + ": input has shape " + text(columns) + ", expected size " +
                    std::to_string(rows) + " of axis " + std::to_string(ndim - 2) +
                    " to be a multiple of " + std::to_string(taps) +
                    ", the elements of kernel_size " + pair(w.kernel));
    }
    ConvShapes shapes;
    shapes.batched = ndim == 3;
    shapes.params = fill(op, w, size);
    const i64* windows = shapes.params.out_size + 1;
    const i64 count = checked_product(op, windows[0], windows[1]);
    if (columns[ndim - 1] != count) {
        throw Error(std::string(op) + ": input has shape " + text(columns) + " with " +
                    std::to_string(columns[ndim - 1]) + " windows, expected " +
                    std::to_string(windows[0]) + " * " + std::to_string(windows[1]) + " = " +
                    std::to_string(count) + " for output_size " + pair(size) + ", kernel_size " +
                    pair(w.kernel) + ", dilation " + pair(w.dilation) + ", padding " +
                    pair(w.padding) + ", stride " + pair(w.stride));
    }
    shapes.params.batch = shapes.batched ? columns[0] : 1;
    shapes.params.in_channels = shapes.params.out_channels = rows / taps;
    if (shapes.batched) shapes.output.push_back(columns[0]);
    shapes.output.insert(shapes.output.end(), {rows / taps, size[0], size[1]});
    checked_size(op, columns);
    checked_size(op, shapes.output);
    return shapes;
}

}  // namespace fusednn::ops
