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

// Every target must be a class or ignore_index; the error names the first that is not, and where.
// is_unsigned: they come from unsigned integers, and a negative one is really beyond 2^63.
void check_targets(const char* op, const i64* target, const Shape& positions, i64 classes,
                   i64 ignore_index, bool is_unsigned);
// That error, of the target at position `at`.
[[noreturn]] void refuse_target(const char* op, i64 target, const Shape& positions, i64 at,
                                i64 classes, i64 ignore_index, bool is_unsigned);

// In [0, 1], and 0 for nll_loss, which has no probabilities to smooth.
void check_label_smoothing(const char* op, double label_smoothing, bool input_is_log_prob);

}  // namespace fusednn::ops
