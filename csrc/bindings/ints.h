// Python integers and sequences of them -> plain vectors, with errors that name op and argument.
#pragma once
#include <pybind11/pybind11.h>

#include <vector>

#include "ops/shapes.h"

namespace fusednn::bindings {

i64 to_int(pybind11::handle object, const char* op, const char* argument);
// An int (one value for all axes) or a sequence of ints.
std::vector<i64> to_ints(pybind11::handle object, const char* op, const char* argument);
// A convolution's padding: an int, or for each axis an int or a pair (front, back), or a name.
ops::PaddingArgs to_padding(pybind11::handle object, const char* op);
ops::ConvWindowArgs to_conv_window(pybind11::handle stride, pybind11::handle padding,
                                   pybind11::handle dilation, const char* op);
ops::Shape to_shape(pybind11::handle tuple, const char* op, const char* argument);

}  // namespace fusednn::bindings
