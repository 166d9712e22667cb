#pragma once
#include "core/types.h"

namespace fusednn {

// Calls body with a zero of the C++ type that `dtype` names; of those that are computed in.
template <class Body>
auto with_dtype(DType dtype, const Body& body) {
    return dtype == DType::f32 ? body(float{}) : body(double{});
}

}  // namespace fusednn
