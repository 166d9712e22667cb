// Softmax and cross-entropy: shape rules and target checks.
#pragma once
#include "ops/shapes.h"

namespace fusednn::ops {

// An array seen as (outer, classes, inner) around one axis.
struct AxisView {
    i64 outer, classes, inner;
};
AxisView axis_view(const char* op, const Shape& shape, i64 axis);

struct CrossEntropyShapes {
    AxisView view;
    Shape positions;  // the shape of targets and losses
};
// Logits (C) with a scalar target, or (N, C, d1, ...) with targets (N, d1, ...).
CrossEntropyShapes cross_entropy_shapes(const char* op, const Shape& input, const Shape& target,
                                        const Shape* weight);

// Every target must be a class or ignore_index; the error names the first that is not.
void check_targets(const char* op, const i64* target, i64 count, i64 classes, i64 ignore_index);

}  // namespace fusednn::ops
