// Windows as lists: average pooling, adaptive pooling and pooling of whole planes.
#pragma once
#include "ops/shapes.h"

namespace fusednn::ops {

// The params point into the lists: move it, but do not copy it.
struct WindowLists {
    AvgPoolParams params;
    Shape output;
    std::vector<i64> begin[3], end[3], count[3];

    WindowLists() = default;
    WindowLists(const WindowLists&) = delete;
    WindowLists& operator=(const WindowLists&) = delete;
    WindowLists(WindowLists&&) = default;
};

// divisor_override: 0 for none.
WindowLists avg_pool_windows(const char* op, int spatial, const Shape& input,
                             const WindowArgs& window, bool ceil_mode, bool count_include_pad,
                             i64 divisor_override);

// Output i of `out` covers [floor(i in / out), ceil((i + 1) in / out)).
WindowLists adaptive_windows(const char* op, int spatial, const Shape& input,
                             const std::vector<i64>& output_size);

// One window, the whole plane; input (N, C, ...) -> (N, C). sum: nothing is divided by.
WindowLists global_windows(const char* op, const Shape& input, bool sum);

// Two arrays with the same axes in front of their `spatial` last ones.
void check_planes(const char* op, int spatial, const Shape& input, const Shape& output);

// Positions must lie in a plane of `size`.
void check_positions(const char* op, const i64* indices, const Shape& shape, i64 size);
// The error for the one at `at` that does not.
[[noreturn]] void refuse_position(const char* op, i64 index, const Shape& shape, i64 at, i64 size);

}  // namespace fusednn::ops
