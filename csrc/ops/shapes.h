// Every shape rule, output size, overflow guard and error text, in one place.
//
// Functions here throw Error (ValueError in Python) with a text that names the op, the argument,
// what was expected and what was found, before anything is computed.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "core/kernels.h"
#include "core/types.h"

namespace fusednn::ops {

using Shape = std::vector<i64>;

Shape shape_of(const ArrayView& view);
std::string text(const Shape& shape);  // "(2, 3, 4)"

// a * b, a + b for sizes; Error "op: sizes overflow 64 bits" instead of a wrapped result.
i64 checked_product(const char* op, i64 a, i64 b);
i64 checked_sum(const char* op, i64 a, i64 b);
// Elements of an array of this shape; its bytes (at 8 an element) are guarded as well.
i64 checked_size(const char* op, const Shape& shape);

// ---- conv, unfold, fold --------------------------------------------------------------------------

// Window arguments as the caller gave them: one value for all spatial axes, or one for each.
struct WindowArgs {
    std::vector<i64> kernel;  // pooling and unfold only; a convolution takes its weight's
    std::vector<i64> stride, padding, dilation;
};

// The same, checked and spread over depth, height, width; axes the call does not have get kernel 1,
// stride 1, padding 0, dilation 1.
struct Window {
    i64 kernel[3], stride[3], padding[3], dilation[3];
};
Window expand_window(const char* op, int spatial, const WindowArgs& args);

// "depth", "height", "width", or "length" for the one axis of 1-D ops.
std::string axis_name(int spatial, int axis);

// Positions of a window along one axis; Error if there is none.
i64 window_output(const char* op, const std::string& axis, i64 size, i64 kernel, i64 stride,
                  i64 dilation, i64 pad_front, i64 pad_back);

struct ConvShapes {
    ConvParams params;
    Shape output;
    bool batched;  // false: the input came without a batch axis, and so goes the output
};

// op is "conv1d", "conv2d" or "conv3d"; spatial is 1, 2 or 3.
ConvShapes conv_shapes(const char* op, int spatial, const Shape& input, const Shape& weight,
                       const Shape* bias, const WindowArgs& window, i64 groups);

// Input (N, C, spatial...) -> columns (N, C * taps, output pixels).
ConvShapes unfold_shapes(const char* op, const Shape& input, const WindowArgs& window);
// Columns (N, C * taps, pixels) -> (N, C, output_size...).
ConvShapes fold_shapes(const char* op, const Shape& columns, const std::vector<i64>& output_size,
                       const WindowArgs& window);

// ---- pool ----------------------------------------------------------------------------------------

struct PoolShapes {
    PoolParams params;
    Shape output;
};
PoolShapes max_pool_shapes(const char* op, int spatial, const Shape& input,
                           const WindowArgs& window, bool ceil_mode);

// ---- dense ---------------------------------------------------------------------------------------

struct LinearShapes {
    i64 rows, in_features, out_features;
    Shape output;
};
LinearShapes linear_shapes(const char* op, const Shape& input, const Shape& weight,
                           const Shape* bias);

// ---- anything that must match --------------------------------------------------------------------

// "op: argument has shape (..), expected (..)".
void require_shape(const char* op, const char* argument, const Shape& found,
                   const Shape& expected);

// An axis, negative counted from the end, made >= 0.
int normalized_axis(const char* op, i64 axis, int ndim);

}  // namespace fusednn::ops
