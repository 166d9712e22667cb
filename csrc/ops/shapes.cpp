#include "ops/shapes.h"

#include "core/errors.h"

namespace fusednn::ops {

Shape shape_of(const ArrayView& view) { return Shape(view.shape, view.shape + view.ndim); }

std::string text(const Shape& shape) {
    std::string text = "(";
    for (std::size_t axis = 0; axis < shape.size(); ++axis) {
        text += (axis ? ", " : "") + std::to_string(shape[axis]);
    }
    return text + (shape.size() == 1 ? ",)" : ")");
}

i64 checked_product(const char* op, i64 a, i64 b) {
    i64 product;
    if (__builtin_mul_overflow(a, b, &product)) {
        throw Error(std::string(op) + ": sizes overflow 64 bits (" + std::to_string(a) + " * " +
                    std::to_string(b) + ")");
    }
    return product;
}

i64 checked_sum(const char* op, i64 a, i64 b) {
    i64 sum;
    if (__builtin_add_overflow(a, b, &sum)) {
        throw Error(std::string(op) + ": sizes overflow 64 bits (" + std::to_string(a) + " + " +
                    std::to_string(b) + ")");
    }
    return sum;
}

i64 checked_size(const char* op, const Shape& shape) {
    i64 bytes = 8;
    for (i64 size : shape) {
        if (size == 0) return 0;
    }
    for (i64 size : shape) bytes = checked_product(op, bytes, size);
    return bytes / 8;
}

namespace {

// One value for all axes, or one for each; every value at least `least`.
void expand(const char* op, const char* argument, const std::vector<i64>& values, int spatial,
            i64 least, i64 absent, i64 (&out)[3]) {
    if (values.size() != 1 && int(values.size()) != spatial) {
        throw Error(std::string(op) + ": " + argument + " has " + std::to_string(values.size()) +
                    " values, expected 1 or " + std::to_string(spatial) + ", got " + text(values));
    }
    for (i64 value : values) {
        if (value >= least) continue;
        throw Error(std::string(op) + ": " + argument + " must be at least " +
                    std::to_string(least) + ", got " +
                    (values.size() == 1 ? std::to_string(value) : text(values)));
    }
    for (int axis = 0; axis < 3; ++axis) {
        const int at = axis - (3 - spatial);
        out[axis] = at < 0 ? absent : values.size() == 1 ? values[0] : values[std::size_t(at)];
    }
}

}  // namespace

Window expand_window(const char* op, int spatial, const WindowArgs& args) {
    Window window;
    if (args.kernel.empty()) {
        for (i64& kernel : window.kernel) kernel = 1;
    } else {
        expand(op, "kernel_size", args.kernel, spatial, 1, 1, window.kernel);
    }
    expand(op, "stride", args.stride, spatial, 1, 1, window.stride);
    expand(op, "padding", args.padding, spatial, 0, 0, window.padding);
    expand(op, "dilation", args.dilation, spatial, 1, 1, window.dilation);
    return window;
}

std::string axis_name(int spatial, int axis) {
    static const char* const names[] = {"depth", "height", "width"};
    return spatial == 1 ? "length" : names[axis];
}

void require_shape(const char* op, const char* argument, const Shape& found,
                   const Shape& expected) {
    if (found == expected) return;
    throw Error(std::string(op) + ": " + argument + " has shape " + text(found) + ", expected " +
                text(expected));
}

int normalized_axis(const char* op, i64 axis, int ndim) {
    const i64 rank = ndim ? ndim : 1;  // a 0-d array counts as one axis here, as in torch
    if (axis < -rank || axis >= rank) {
        throw Error(std::string(op) + ": dim must be in [" + std::to_string(-rank) + ", " +
                    std::to_string(rank - 1) + "] for an array of " + std::to_string(ndim) +
                    " dimensions, got " + std::to_string(axis));
    }
    return int(axis < 0 ? axis + rank : axis);
}

}  // namespace fusednn::ops
