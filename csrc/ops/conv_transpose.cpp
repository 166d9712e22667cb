// Shape rules of the transposed convolution: what a convolution's input gradient is, as an op.
#include <algorithm>

#include "core/errors.h"
#include "ops/shapes.h"

namespace fusednn::ops {

namespace {

void check_channels(const std::string& op, const Shape& input, const Shape& weight, i64 channels,
                    i64 groups) {
    const std::string shapes =
        " (input shape " + text(input) + ", weight shape " + text(weight) + ")";
    if (groups < 1) throw Error(op + ": groups must be at least 1, got " + std::to_string(groups));
    if (channels != weight[0]) {
        throw Error(op + ": weight expects " + std::to_string(weight[0]) + " input channels, got " +
                    std::to_string(channels) + shapes);
    }
    if (channels % groups != 0) {
        throw Error(op + ": input has " + std::to_string(channels) + " channels, which groups = " +
                    std::to_string(groups) + " does not divide" + shapes);
    }
}

// (in - 1) * stride - pad - pad_end + effective kernel + extra. The axis is that of the transposed
// convolution: `in` is its input.
i64 transposed_size(const char* op, const WindowAxis& axis, i64 extra) {
    const i64 effective = effective_kernel(op, axis);
    i64 size = checked_product(op, axis.in - 1, axis.stride);
    // What is below 2^60 here leaves room for the rest.
    if (size >= kLargest || axis.pad >= kLargest || axis.pad_end >= kLargest) {
        throw Error(std::string(op) + ": sizes overflow 64 bits" + text(axis));
    }
    size += effective + extra - axis.pad - axis.pad_end;
    if (size < 1) {
        throw Error(std::string(op) + ": the output would have size " + std::to_string(size) +
                    text(axis) + ", output_padding " + std::to_string(extra) +
                    " (effective kernel " + std::to_string(effective) + ")");
    }
    return size;
}

}  // namespace

ConvShapes conv_transpose_shapes(const char* op, int spatial, const Shape& input,
                                 const Shape& weight, const Shape* bias,
                                 const ConvWindowArgs& window,
                                 const std::vector<i64>& output_padding, i64 groups) {
    check_ranks(op, spatial, input, weight, "in_channels, out_channels / groups");
    const int rank = int(input.size());
    ConvShapes shapes;
    shapes.batched = rank == spatial + 2;
    ConvParams& p = shapes.params;
    p.batch = shapes.batched ? input[0] : 1;
    p.out_channels = input[std::size_t(rank - spatial - 1)];
    check_channels(op, input, weight, p.out_channels, groups);
    p.in_channels = checked_product(op, weight[1], groups);
    p.groups = groups;
    if (bias) require_shape(op, "bias", *bias, {p.in_channels});

    i64 stride[3], dilation[3], extra[3];
    expand_window(op, "stride", window.stride, spatial, 1, stride);
    expand_window(op, "dilation", window.dilation, spatial, 1, dilation);
    expand_window(op, "output_padding", output_padding, spatial, 0, extra);
    if (!window.padding.name.empty()) {
        throw Error(std::string(op) + ": padding='" + window.padding.name +
                    "', expected ints or pairs of ints");
    }
    WindowAxis axes[3];
    for (int i = 0; i < spatial; ++i) {
        const i64 in = input[std::size_t(rank - spatial + i)], kernel = weight[std::size_t(2 + i)];
        axes[i] = {axis_name(spatial, i), in, kernel, stride[i], dilation[i], 0, 0};
    }
    fill_padding(op, window.padding, spatial, axes);
    if (shapes.batched) shapes.output.push_back(p.batch);
    shapes.output.push_back(p.in_channels);
    for (int axis = 0; axis < 3 - spatial; ++axis) fill_axis(p, axis, {"", 1, 1, 1, 1, 0, 0}, 1);
    for (int i = 0; i < spatial; ++i) {
        if (extra[i] >= std::max(stride[i], dilation[i])) {
            throw Error(std::string(op) + ": output_padding " + std::to_string(extra[i]) +
                        text(axes[i]) + ", expected less than stride or dilation");
        }
        WindowAxis reverse = axes[i];
        reverse.in = transposed_size(op, axes[i], extra[i]);
        fill_axis(p, 3 - spatial + i, reverse, axes[i].in);
        shapes.output.push_back(reverse.in);
    }
    checked_size(op, input);
    checked_size(op, weight);
    checked_size(op, shapes.output);
    drop_last_axes(p);
    return shapes;
}

}  // namespace fusednn::ops
