#include "ops/conv.h"

#include <limits>

#include "core/dispatch.h"
#include "core/errors.h"
#include "ops/dtype.h"

namespace fusednn::ops {

namespace {

const char* const kLayout[] = {"", "(N, C, L) or (C, L)", "(N, C, H, W) or (C, H, W)",
                               "(N, C, D, H, W) or (C, D, H, W)"};
const char* const kWeightLayout[] = {"", "(out_channels, in_channels / groups, kL)",
                                     "(out_channels, in_channels / groups, kH, kW)",
                                     "(out_channels, in_channels / groups, kD, kH, kW)"};

void check_channels(const std::string& op, const Shape& input, const Shape& weight, i64 channels,
                    i64 groups) {
    const std::string shapes =
        " (input shape " + text(input) + ", weight shape " + text(weight) + ")";
    if (groups < 1) throw Error(op + ": groups must be at least 1, got " + std::to_string(groups));
    if (channels % groups != 0) {
        throw Error(op + ": input has " + std::to_string(channels) + " channels, which groups = " +
                    std::to_string(groups) + " does not divide" + shapes);
    }
    if (weight[0] % groups != 0) {
        throw Error(op + ": weight has " + std::to_string(weight[0]) +
                    " output channels, which groups = " + std::to_string(groups) +
                    " does not divide" + shapes);
    }
    if (channels / groups != weight[1]) {
        throw Error(op + ": with groups = " + std::to_string(groups) + ", weight expects " +
                    std::to_string(checked_product(op.c_str(), weight[1], groups)) +
                    " input channels, got " + std::to_string(channels) + shapes);
    }
}

}  // namespace

ConvShapes conv_shapes(const char* op, int spatial, const Shape& input, const Shape& weight,
                       const Shape* bias, const WindowArgs& window, i64 groups) {
    const int rank = int(input.size());
    if (rank != spatial + 2 && rank != spatial + 1) {
        throw Error(std::string(op) + ": input has shape " + text(input) + ", expected " +
                    kLayout[spatial]);
    }
    if (int(weight.size()) != spatial + 2) {
        throw Error(std::string(op) + ": weight has shape " + text(weight) + ", expected " +
                    kWeightLayout[spatial]);
    }
    ConvShapes shapes;
    shapes.batched = rank == spatial + 2;
    ConvParams& p = shapes.params;
    p.batch = shapes.batched ? input[0] : 1;
    p.in_channels = input[rank - spatial - 1];
    p.out_channels = weight[0];
    p.groups = groups;
    check_channels(op, input, weight, p.in_channels, groups);
    if (bias) require_shape(op, "bias", *bias, {p.out_channels});

    i64 stride[3], padding[3], dilation[3];
    expand_window(op, "stride", window.stride, spatial, 1, stride);
    expand_window(op, "padding", window.padding, spatial, 0, padding);
    expand_window(op, "dilation", window.dilation, spatial, 1, dilation);
    if (shapes.batched) shapes.output.push_back(p.batch);
    shapes.output.push_back(p.out_channels);
    for (int axis = 0; axis < 3; ++axis) {
        const int at = axis - (3 - spatial);  // among the spatial axes of the call
        if (at < 0) {
            fill_axis(p, axis, {"", 1, 1, 1, 1, 0, 0}, 1);
            continue;
        }
        const WindowAxis view{axis_name(spatial, at),
                              input[std::size_t(rank - spatial + at)],
                              weight[std::size_t(2 + at)],
                              stride[at],
                              dilation[at],
                              padding[at],
                              padding[at]};
        if (view.kernel < 1) {
            throw Error(std::string(op) + ": weight has shape " + text(weight) +
                        ", every kernel size must be at least 1");
        }
        const i64 out = window_count(op, view, false);
        fill_axis(p, axis, view, out);
        shapes.output.push_back(out);
    }
    checked_size(op, input);
    checked_size(op, weight);
    checked_size(op, shapes.output);
    return shapes;
}

i64 conv_cost(const ConvParams& p) {
    double cost = 2.0 * double(p.batch) * double(p.out_channels) * double(p.in_channels / p.groups);
    for (int axis = 0; axis < 3; ++axis) cost *= double(p.out_size[axis]) * double(p.kernel[axis]);
    return cost < 9e18 ? i64(cost) : std::numeric_limits<i64>::max();
}

void conv_forward(const ConvParams& params, DType dtype, const void* input, const void* weight,
                  const void* bias, void* output) {
    with_dtype(dtype, [&](auto zero) {
        using T = decltype(zero);
        kernels<T>().conv_forward(params, static_cast<const T*>(input),
                                  static_cast<const T*>(weight), static_cast<const T*>(bias),
                                  static_cast<T*>(output));
    });
}

void conv_backward_input(const ConvParams& params, DType dtype, const void* grad,
                         const void* weight, void* grad_input) {
    with_dtype(dtype, [&](auto zero) {
        using T = decltype(zero);
        kernels<T>().conv_backward_input(params, static_cast<const T*>(grad),
                                         static_cast<const T*>(weight),
                                         static_cast<T*>(grad_input));
    });
}

void conv_backward_weight(const ConvParams& params, DType dtype, const void* grad,
                          const void* input, void* grad_weight) {
    with_dtype(dtype, [&](auto zero) {
        using T = decltype(zero);
        kernels<T>().conv_backward_weight(params, static_cast<const T*>(input),
                                          static_cast<const T*>(grad),
                                          static_cast<T*>(grad_weight));
    });
}

void bias_grad(DType dtype, i64 outer, i64 channels, i64 inner, const void* grad, void* grad_bias) {
    with_dtype(dtype, [&](auto zero) {
        using T = decltype(zero);
        kernels<T>().bias_grad(outer, channels, inner, static_cast<const T*>(grad),
                               static_cast<T*>(grad_bias));
    });
}

}  // namespace fusednn::ops
