#include "ops/pool.h"

#include "core/errors.h"
#include "ops/shapes.h"

namespace fusednn::ops {

namespace {

// Padding never wins, so every window must hold a real element. That takes two things: no padding
// wider than half of a window, and, where taps lie further apart than the input is long, a tap that
// does not step over it.
void check_windows(const char* op, const WindowAxis& axis, i64 out) {
    const i64 effective = effective_kernel(op, axis);
    if (axis.pad > effective / 2) {
        throw Error(std::string(op) + ": padding " + std::to_string(axis.pad) +
                    " is more than half of the effective kernel " + std::to_string(effective) +
                    " = dilation * (kernel_size - 1) + 1, expected at most " +
                    std::to_string(effective / 2) + text(axis));
    }
    if (axis.in > 0 && (axis.in >= axis.dilation || axis.kernel == 1)) return;
    for (i64 o = 0; o < out; ++o) {
        const i64 start = o * axis.stride - axis.pad;
        // The first tap at or behind position 0 reads the remainder.
        const i64 first =
            start < 0 ? (axis.dilation - -start % axis.dilation) % axis.dilation : start;
        if (first < axis.in) continue;
        throw Error(std::string(op) + ": window " + std::to_string(o) +
                    " would hold no element of the input" + text(axis));
    }
}

template <class Tap>
void fill_indices(const char* op, const PoolParams& p, const Tap* argmax, i64* indices) {
    const i64 taps = p.kernel[0] * p.kernel[1] * p.kernel[2];
    for (i64 plane = 0; plane < p.planes; ++plane) {
        for (i64 d = 0; d < p.out_size[0]; ++d) {
            for (i64 h = 0; h < p.out_size[1]; ++h) {
                for (i64 w = 0; w < p.out_size[2]; ++w, ++argmax, ++indices) {
                    const i64 tap = i64(*argmax);
                    const i64 td = tap / p.kernel[2] / p.kernel[1],
                              th = tap / p.kernel[2] % p.kernel[1];
                    const i64 in_d = d * p.stride[0] - p.pad[0] + td * p.dilation[0];
                    const i64 in_h = h * p.stride[1] - p.pad[1] + th * p.dilation[1];
                    const i64 in_w = w * p.stride[2] - p.pad[2] + tap % p.kernel[2] * p.dilation[2];
                    if (tap < 0 || tap >= taps || in_d < 0 || in_d >= p.in_size[0] || in_h < 0 ||
                        in_h >= p.in_size[1] || in_w < 0 || in_w >= p.in_size[2]) {
                        throw Error(std::string(op) + ": argmax holds tap " + std::to_string(tap) +
                                    ", which is not a real element of its window");
                    }
                    *indices = (in_d * p.in_size[1] + in_h) * p.in_size[2] + in_w;
                }
            }
        }
    }
}

}  // namespace

PoolShapes max_pool_shapes(const char* op, int spatial, const Shape& input,
                           const WindowArgs& window, bool ceil_mode) {
    const int ndim = int(input.size());
    if (ndim != spatial + 1 && ndim != spatial + 2) {
        std::string axes;
        for (int axis = 0; axis < spatial; ++axis)
            axes += std::string(", ") + axis_name(spatial, axis);
        throw Error(std::string(op) + ": input has shape " + text(input) + ", expected (N, C" +
                    axes + ") or (C" + axes + ")");
    }
    for (i64 extent : input) {
        if (extent < 0) throw Error(std::string(op) + ": negative size in shape " + text(input));
    }
    i64 kernel[3], stride[3], padding[3], dilation[3];
    expand_window(op, "kernel_size", window.kernel, spatial, 1, kernel);
    expand_window(op, "stride", window.stride.empty() ? window.kernel : window.stride, spatial, 1,
                  stride);
    expand_window(op, "padding", window.padding, spatial, 0, padding);
    expand_window(op, "dilation", window.dilation, spatial, 1, dilation);

    PoolShapes shapes;
    shapes.output.assign(input.begin(), input.end() - spatial);
    shapes.params.planes = checked_size(op, shapes.output);
    i64 taps = 1;
    for (int i = 0; i < 3; ++i) {
        const int axis = i - (3 - spatial);
        WindowAxis one{"", 1, 1, 1, 1, 0, 0};
        i64 out = 1;
        if (axis >= 0) {
            one = {axis_name(spatial, axis),
                   input[input.size() - std::size_t(spatial - axis)],
                   kernel[axis],
                   stride[axis],
                   dilation[axis],
                   padding[axis],
                   padding[axis]};
            out = window_count(op, one, ceil_mode);
            check_windows(op, one, out);
            shapes.output.push_back(out);
        }
        fill_axis(shapes.params, i, one, out);
        taps = checked_product(op, taps, one.kernel);
    }
    if (taps > INT32_MAX) {
        throw Error(std::string(op) + ": a window of " + std::to_string(taps) +
                    " elements is too large, expected at most " + std::to_string(INT32_MAX));
    }
    checked_size(op, input);
    checked_size(op, shapes.output);
    return shapes;
}

int argmax_bytes(const PoolParams& p) {
    const i64 taps = p.kernel[0] * p.kernel[1] * p.kernel[2];
    return taps <= 256 ? 1 : taps <= 65536 ? 2 : 4;
}

void max_pool_indices(const char* op, const PoolParams& p, const void* argmax, i64* indices) {
    switch (argmax_bytes(p)) {
        case 1:
            return fill_indices(op, p, static_cast<const std::uint8_t*>(argmax), indices);
        case 2:
            return fill_indices(op, p, static_cast<const std::uint16_t*>(argmax), indices);
        default:
            return fill_indices(op, p, static_cast<const std::int32_t*>(argmax), indices);
    }
}

}  // namespace fusednn::ops
