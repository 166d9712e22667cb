#include "ops/shapes.h"

#include "core/errors.h"

namespace fusednn::ops {

namespace {

[[noreturn]] void refuse_overflow(const char* op, const std::string& where = "") {
    throw Error(std::string(op) + ": sizes overflow 64 bits" + where);
}

}  // namespace

Shape shape_of(const ArrayView& view) {
    return Shape(view.shape, view.shape + view.ndim);
}

std::string text(const Shape& shape) {
    std::string result = "(";
    for (std::size_t i = 0; i < shape.size(); ++i) {
        result += (i ? ", " : "") + std::to_string(shape[i]);
    }
    return result + (shape.size() == 1 ? ",)" : ")");
}

std::string index_text(const Shape& shape, i64 flat) {
    if (shape.empty()) return "";
    Shape index(shape.size());
    for (std::size_t axis = shape.size(); axis-- > 0; flat /= shape[axis]) {
        index[axis] = flat % shape[axis];
    }
    return " at index " + (index.size() == 1 ? std::to_string(index[0]) : text(index));
}

i64 checked_product(const char* op, i64 a, i64 b) {
    i64 product;
    if (__builtin_mul_overflow(a, b, &product)) refuse_overflow(op);
    return product;
}

i64 checked_size(const char* op, const Shape& shape) {
    i64 size = 1;
    bool empty = false;
    for (i64 extent : shape) empty |= extent == 0;
    if (empty) return 0;
    for (i64 extent : shape) size = checked_product(op, size, extent);
    return size;
}

void require_shape(const char* op, const char* argument, const Shape& found,
                   const Shape& expected) {
    if (found == expected) return;
    throw Error(std::string(op) + ": " + argument + " has shape " + text(found) + ", expected " +
                text(expected));
}

int normalized_axis(const char* op, i64 axis, int ndim) {
    const i64 rank = ndim ? ndim : 1;  // a number has an axis 0 of one element, as in torch
    if (axis < -rank || axis >= rank) {
        throw Error(std::string(op) + ": dim " + std::to_string(axis) + " is out of range for " +
                    std::to_string(ndim) + " dimensions, expected " + std::to_string(-rank) +
                    " to " + std::to_string(rank - 1));
    }
    return int(axis < 0 ? axis + rank : axis);
}

void expand_window(const char* op, const char* argument, const std::vector<i64>& given, int spatial,
                   i64 least, i64* values) {
    const bool one = given.size() == 1;
    if (!one && given.size() != std::size_t(spatial)) {
        throw Error(std::string(op) + ": " + argument + " has " + std::to_string(given.size()) +
                    " values " + text(given) + ", expected 1" +
                    (spatial > 1 ? " or " + std::to_string(spatial) : std::string()));
    }
    for (int axis = 0; axis < spatial; ++axis) {
        values[axis] = given[one ? 0 : std::size_t(axis)];
        if (values[axis] < least) {
            throw Error(std::string(op) + ": " + argument + " must be at least " +
                        std::to_string(least) + ", got " +
                        (one ? std::to_string(given[0]) : text(given)));
        }
    }
}

const char* axis_name(int spatial, int axis) {
    static const char* const names[] = {"D", "H", "W"};
    return spatial == 1 ? "L" : names[3 - spatial + axis];
}

std::string text(const WindowAxis& axis) {
    const std::string name = axis.name;
    std::string result = " along " + name + ": " + name + " = " + std::to_string(axis.in) +
                         ", kernel " + std::to_string(axis.kernel) + ", stride " +
                         std::to_string(axis.stride) + ", dilation " +
                         std::to_string(axis.dilation) + ", padding " + std::to_string(axis.pad);
    if (axis.pad_end != axis.pad)
        result += " in front and " + std::to_string(axis.pad_end) + " behind";
    return result;
}

i64 effective_kernel(const char* op, const WindowAxis& axis) {
    i64 reach;
    if (__builtin_mul_overflow(axis.dilation, axis.kernel - 1, &reach) || reach >= kLargest) {
        refuse_overflow(op, text(axis));
    }
    return reach + 1;
}

i64 window_count(const char* op, const WindowAxis& axis, bool ceil_mode) {
    const i64 effective = effective_kernel(op, axis);
    if (axis.in >= kLargest || axis.pad >= kLargest || axis.pad_end >= kLargest) {
        refuse_overflow(op, text(axis));
    }
    const i64 padded = axis.in + axis.pad + axis.pad_end;
    const i64 room = padded - effective;  // last place where a whole window may start
    i64 rest = room % axis.stride, count = room / axis.stride + 1;
    if (rest < 0) {  // round down, not towards 0
        rest += axis.stride;
        --count;
    }
    if (ceil_mode && rest > 0) {
        ++count;
        // The last window must not start in the padding behind.
        if (count - 1 > (axis.in + axis.pad - 1) / axis.stride) --count;
    }
    if (count < 1) {
        throw Error(std::string(op) + ": the output would have size " + std::to_string(count) +
                    text(axis) + " (effective kernel " + std::to_string(effective) + ")");
    }
    return count;
}

}  // namespace fusednn::ops
