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
// " at index 3", " at index (0, 3)", or nothing where there is but one.
std::string index_text(const Shape& shape, i64 flat);

// Sizes and positions beyond this are refused, so that kernels can add and multiply them without a
// thought.
constexpr i64 kLargest = i64(1) << 60;

// a * b for sizes; Error "op: sizes overflow 64 bits" instead of a wrapped product.
i64 checked_product(const char* op, i64 a, i64 b);
i64 checked_size(const char* op, const Shape& shape);

// ---- windows: conv, pool, unfold, fold ----------------------------------------

// Window arguments as the caller gave them: one value for all spatial axes, or one for each.
struct WindowArgs {
    std::vector<i64> kernel;  // pooling and unfold only; a convolution takes its weight's
    std::vector<i64> stride, padding, dilation;
};

// The values of one such argument for `spatial` axes, each at least `least`. Errors such as
// "max_pool2d: kernel_size has 3 values (2, 2, 2), expected 1 or 2" and
// "max_pool2d: stride must be at least 1, got 0".
void expand_window(const char* op, const char* argument, const std::vector<i64>& given, int spatial,
                   i64 least, i64* values);

// "L", or "H" and "W", or "D", "H" and "W".
const char* axis_name(int spatial, int axis);

// A window along one axis; pad_end is the padding behind the axis.
struct WindowAxis {
    const char* name;
    i64 in, kernel, stride, dilation, pad, pad_end;
};

// dilation * (kernel - 1) + 1; Error from kLargest on.
i64 effective_kernel(const char* op, const WindowAxis& axis);

// How many windows fit. Ceil mode adds the one that hangs over the end, if it starts inside the
// input or the padding in front. Error naming the sizes if there would be none.
i64 window_count(const char* op, const WindowAxis& axis, bool ceil_mode);

// " along H: H = 5, kernel 2, stride 2, dilation 1, padding 0" for error texts.
std::string text(const WindowAxis& axis);

// Puts the axis into entry `index` of a params struct; strides and dilations that are never taken
// (one window, one tap) become harmless.
template <class Params>
void fill_axis(Params& params, int index, const WindowAxis& axis, i64 out) {
    params.in_size[index] = axis.in;
    params.out_size[index] = out;
    params.kernel[index] = axis.kernel;
    const i64 padded = axis.in + axis.pad + axis.pad_end;
    params.stride[index] =
        out == 1 && axis.stride > padded ? (padded > 1 ? padded : 1) : axis.stride;
    params.dilation[index] = axis.kernel == 1 ? 1 : axis.dilation;
    params.pad[index] = axis.pad;
}

// Moves the last axes that a window does not see, of size 1 without padding, to the front: memory
// stays the same, and kernels have their lanes along the last axis.
void drop_last_axes(ConvParams& params);

// ---- conv, unfold, fold ----------------------------------------

// A convolution's padding as the caller gave it.
struct PaddingArgs {
    std::string name;              // "valid", "same", "causal", or empty: the widths below
    std::vector<i64> front, back;  // zeros on either side; one value for all axes, or one for each
};

struct ConvWindowArgs {
    std::vector<i64> stride, dilation;
    PaddingArgs padding;
};

struct ConvShapes {
    ConvParams params;
    Shape output;
    bool batched;  // false: the input came without a batch axis, and so goes the output
};

// op is "conv1d", "conv2d" or "conv3d"; spatial is 1, 2 or 3.
ConvShapes conv_shapes(const char* op, int spatial, const Shape& input, const Shape& weight,
                       const Shape* bias, const ConvWindowArgs& window, i64 groups);

// The transpose of a convolution. `params` describe that convolution, which goes from the result
// back to the input: in_size is the result's, out_size the input's.
ConvShapes conv_transpose_shapes(const char* op, int spatial, const Shape& input,
                                 const Shape& weight, const Shape* bias,
                                 const ConvWindowArgs& window,
                                 const std::vector<i64>& output_padding, i64 groups);

// What the two share: the number of axes of input and weight (`channels` names the first two of the
// weight's), and the padding.
void check_ranks(const char* op, int spatial, const Shape& input, const Shape& weight,
                 const char* channels);
// Fills pad and pad_end of `spatial` axes, whose other members are known.
void fill_padding(const char* op, const PaddingArgs& given, int spatial, WindowAxis* axes);

// Input (N, C, spatial...) -> columns (N, C * taps, output pixels).
ConvShapes unfold_shapes(const char* op, const Shape& input, const WindowArgs& window);
// Columns (N, C * taps, pixels) -> (N, C, output_size...).
ConvShapes fold_shapes(const char* op, const Shape& columns, const std::vector<i64>& output_size,
                       const WindowArgs& window);

// ---- pool ----------------------------------------

struct PoolShapes {
    PoolParams params;
    Shape output;
};
PoolShapes max_pool_shapes(const char* op, int spatial, const Shape& input,
                           const WindowArgs& window, bool ceil_mode);

// ---- dense ----------------------------------------

struct LinearShapes {
    i64 rows, in_features, out_features;
    Shape output;
};
LinearShapes linear_shapes(const char* op, const Shape& input, const Shape& weight,
                           const Shape* bias);

// ---- anything that must match ----------------------------------------

// "op: argument has shape (..), expected (..)".
void require_shape(const char* op, const char* argument, const Shape& found, const Shape& expected);

// An axis, negative counted from the end, made >= 0.
int normalized_axis(const char* op, i64 axis, int ndim);

}  // namespace fusednn::ops
