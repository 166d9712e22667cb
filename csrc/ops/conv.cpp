#include "ops/conv.h"

#include <limits>

#include "core/dispatch.h"
#include "core/errors.h"
#include "ops/dtype.h"

namespace fusednn::ops {

namespace {

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

void check_ranks(const char* op, int spatial, const Shape& input, const Shape& weight,
                 const char* channels) {
    static const char* const sizes[] = {"", "L", "H, W", "D, H, W"};
    static const char* const kernels[] = {"", "kL", "kH, kW", "kD, kH, kW"};
    const int rank = int(input.size());
    if (rank != spatial + 2 && rank != spatial + 1) {
        const std::string image = std::string("C, ") + sizes[spatial] + ")";
        throw Error(std::string(op) + ": input has shape " + text(input) + ", expected (N, " +
                    image + " or (" + image);
    }
    if (int(weight.size()) != spatial + 2) {
        throw Error(std::string(op) + ": weight has shape " + text(weight) + ", expected (" +
                    channels + ", " + kernels[spatial] + ")");
    }
    for (int axis = 2; axis < spatial + 2; ++axis) {
        if (weight[std::size_t(axis)] >= 1) continue;
        throw Error(std::string(op) + ": weight has shape " + text(weight) +
                    ", every kernel size must be at least 1");
    }
}

void fill_padding(const char* op, const PaddingArgs& given, int spatial, WindowAxis* axes) {
    if (given.name == "valid") return;  // as the axes come: without padding
    if (given.name == "same") {
        // ceil(in / stride) windows; of the zeros they need, the smaller half goes in front.
        for (WindowAxis* axis = axes; axis < axes + spatial; ++axis) {
            const i64 effective = effective_kernel(op, *axis);
            const i64 last =
                axis->in ? (axis->in - 1) / axis->stride * axis->stride : -axis->stride;
            const i64 need = last + effective - axis->in, total = need > 0 ? need : 0;
            axis->pad = total / 2;
            axis->pad_end = total - total / 2;
        }
        return;
    }
    if (given.name == "causal" && spatial == 1) {
        axes->pad = effective_kernel(op, *axes) - 1;
        return;
    }
    if (!given.name.empty()) {
        throw Error(std::string(op) + ": padding='" + given.name +
                    "', expected ints, pairs of ints, 'valid'" +
                    (spatial == 1 ? ", 'same' or 'causal'" : " or 'same'"));
    }
    i64 front[3], back[3];
    const bool pairs = !given.back.empty();
    expand_window(op, pairs ? "padding in front" : "padding", given.front, spatial, 0, front);
    expand_window(op, "padding behind", pairs ? given.back : given.front, spatial, 0, back);
    for (int i = 0; i < spatial; ++i) {
        axes[i].pad = front[i];
        axes[i].pad_end = back[i];
    }
}

void drop_last_axes(ConvParams& p) {
    for (int moved = 0; moved < 2; ++moved) {
        if (p.in_size[2] != 1 || p.out_size[2] != 1 || p.kernel[2] != 1 || p.pad[2] != 0) return;
        for (auto* sizes : {p.in_size, p.out_size, p.kernel, p.stride, p.dilation, p.pad}) {
            sizes[2] = sizes[1];
            sizes[1] = sizes[0];
        }
        p.in_size[0] = p.out_size[0] = p.kernel[0] = p.stride[0] = p.dilation[0] = 1;
        p.pad[0] = 0;
    }
}

ConvShapes conv_shapes(const char* op, int spatial, const Shape& input, const Shape& weight,
                       const Shape* bias, const ConvWindowArgs& window, i64 groups) {
    check_ranks(op, spatial, input, weight, "out_channels, in_channels / groups");
    const int rank = int(input.size());
    ConvShapes shapes;
    shapes.batched = rank == spatial + 2;
    ConvParams& p = shapes.params;
    p.batch = shapes.batched ? input[0] : 1;
    p.in_channels = input[rank - spatial - 1];
    p.out_channels = weight[0];
    p.groups = groups;
    check_channels(op, input, weight, p.in_channels, groups);
    if (bias) require_shape(op, "bias", *bias, {p.out_channels});

    i64 stride[3], dilation[3];
    expand_window(op, "stride", window.stride, spatial, 1, stride);
    expand_window(op, "dilation", window.dilation, spatial, 1, dilation);
    WindowAxis axes[3];
    for (int i = 0; i < spatial; ++i) {
        const i64 in = input[std::size_t(rank - spatial + i)], kernel = weight[std::size_t(2 + i)];
        axes[i] = {axis_name(spatial, i), in, kernel, stride[i], dilation[i], 0, 0};
    }
    fill_padding(op, window.padding, spatial, axes);
    if (shapes.batched) shapes.output.push_back(p.batch);
    shapes.output.push_back(p.out_channels);
    for (int axis = 0; axis < 3 - spatial; ++axis) fill_axis(p, axis, {"", 1, 1, 1, 1, 0, 0}, 1);
    for (int i = 0; i < spatial; ++i) {
        const i64 out = window_count(op, axes[i], false);
        fill_axis(p, 3 - spatial + i, axes[i], out);
        shapes.output.push_back(out);
    }
    checked_size(op, input);
    checked_size(op, weight);
    checked_size(op, shapes.output);
    drop_last_axes(p);
    return shapes;
}

i64 conv_cost(const ConvParams& p) {
    double cost = 2.0 * double(p.batch) * double(p.out_channels) * double(p.in_channels / p.groups);
    for (int axis = 0; axis < 3; ++axis) cost *= double(p.out_size[axis]) * double(p.kernel[axis]);
    return cost < 9e18 ? i64(cost) : std::numeric_limits<i64>::max();
}

void conv_forward(const ConvParams& params, Device device, DType dtype, const void* input,
                  const void* weight, const void* bias, void* output) {
    with_device_dtype(dtype, [&](auto zero) {
        using T = decltype(zero);
        kernels<T>(device).conv_forward(params, static_cast<const T*>(input),
                                        static_cast<const T*>(weight), static_cast<const T*>(bias),
                                        static_cast<T*>(output));
    });
}

void conv_backward_input(const ConvParams& params, Device device, DType dtype, const void* grad,
                         const void* weight, const void* bias, void* grad_input) {
    with_device_dtype(dtype, [&](auto zero) {
        using T = decltype(zero);
        kernels<T>(device).conv_backward_input(
            params, static_cast<const T*>(grad), static_cast<const T*>(weight),
            static_cast<const T*>(bias), static_cast<T*>(grad_input));
    });
}

void conv_backward_weight(const ConvParams& params, Device device, DType dtype, const void* grad,
                          const void* input, void* grad_weight) {
    with_device_dtype(dtype, [&](auto zero) {
        using T = decltype(zero);
        kernels<T>(device).conv_backward_weight(params, static_cast<const T*>(input),
                                                static_cast<const T*>(grad),
                                                static_cast<T*>(grad_weight));
    });
}

void bias_grad(Device device, DType dtype, i64 outer, i64 channels, i64 inner, const void* grad,
               void* grad_bias) {
    with_device_dtype(dtype, [&](auto zero) {
        using T = decltype(zero);
        kernels<T>(device).bias_grad(outer, channels, inner, static_cast<const T*>(grad),
                                     static_cast<T*>(grad_bias));
    });
}

}  // namespace fusednn::ops
