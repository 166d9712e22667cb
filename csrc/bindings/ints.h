// Python integers and sequences of them -> plain vectors, with errors that name op and argument.
#pragma once
#include <pybind11/pybind11.h>

#include <vector>

#include "ops/shapes.h"

namespace fusednn::bindings {

i64 to_int(pybind11::handle object, const char* op, const char* argument);
// An int (one value for all axes) or a sequence of ints.
std::vector<i64> to_ints(pybind11::handle object, const char* op, const char* argument);
ops::Shape to_shape(pybind11::handle tuple, const char* op, const char* argument);

}  // namespace fusednn::bindings
