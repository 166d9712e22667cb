// Elementwise nonlinearities: their names, and the shapes of prelu.
#pragma once
#include "ops/shapes.h"

namespace fusednn::ops {

// Error "unary: 'x' is no function" for a name that is none.
Unary unary_named(const char* name);

// The input as (outer, channels, inner): one slope for all of it, or one per channel (axis 1).
struct PreluView {
    i64 outer, channels, inner;
};
PreluView prelu_view(const Shape& input, const Shape& weight);

}  // namespace fusednn::ops
