#include "ops/loss.h"

#include <sstream>

#include "core/errors.h"

namespace fusednn::ops {

AxisView axis_view(const char* op, const Shape& shape, i64 axis) {
    const int at = normalized_axis(op, axis, int(shape.size()));
    AxisView view{1, shape.empty() ? 1 : shape[std::size_t(at)], 1};
    for (int i = 0; i < int(shape.size()); ++i) {
        if (i < at) view.outer *= shape[std::size_t(i)];
        if (i > at) view.inner *= shape[std::size_t(i)];
    }
    return view;
}

CrossEntropyShapes cross_entropy_shapes(const char* op, const Shape& input, const Shape& target,
                                        const Shape* weight) {
    if (input.empty()) {
        throw Error(std::string(op) + ": input has shape (), expected (C,) or (N, C, d1, ...)");
    }
    const std::size_t axis = input.size() == 1 ? 0 : 1;
    CrossEntropyShapes shapes;
    shapes.view = axis_view(op, input, i64(axis));
    for (std::size_t i = 0; i < input.size(); ++i) {
        if (i != axis) shapes.positions.push_back(input[i]);
    }
    if (target != shapes.positions) {
        throw Error(std::string(op) + ": target has shape " + text(target) + ", expected " +
                    text(shapes.positions) + " for input of shape " + text(input));
    }
    if (weight) require_shape(op, "weight", *weight, {shapes.view.classes});
    return shapes;
}

void check_targets(const char* op, const i64* target, const Shape& positions, i64 classes,
                   i64 ignore_index, bool is_unsigned) {
    const i64 count = checked_size(op, positions);
    for (i64 i = 0; i < count; ++i) {
        const bool beyond = is_unsigned && target[i] < 0;
        const bool valid = target[i] == ignore_index || (target[i] >= 0 && target[i] < classes);
        if (!valid || beyond) {
            refuse_target(op, target[i], positions, i, classes, ignore_index, is_unsigned);
        }
    }
}

void refuse_target(const char* op, i64 target, const Shape& positions, i64 at, i64 classes,
                   i64 ignore_index, bool is_unsigned) {
    const std::string value =
        is_unsigned ? std::to_string(std::uint64_t(target)) : std::to_string(target);
    throw Error(std::string(op) + ": target value " + value + index_text(positions, at) +
                " is out of bounds for " + std::to_string(classes) + " classes (ignore_index " +
                std::to_string(ignore_index) + ")");
}

void check_label_smoothing(const char* op, double label_smoothing, bool input_is_log_prob) {
    const bool valid = label_smoothing >= 0 && label_smoothing <= 1;  // false for NaN
    if (valid && !(input_is_log_prob && label_smoothing != 0)) return;
    std::ostringstream value;
    value << label_smoothing;
    throw Error(std::string(op) + ": label_smoothing is " + value.str() + ", expected " +
                (input_is_log_prob ? "0: only cross_entropy smooths" : "a number in [0, 1]"));
}

}  // namespace fusednn::ops
