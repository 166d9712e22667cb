#include "ops/average.h"

#include <algorithm>

#include "core/errors.h"

namespace fusednn::ops {

namespace {

void check_input(const char* op, int spatial, const Shape& input) {
    const int ndim = int(input.size());
    if (ndim != spatial + 1 && ndim != spatial + 2) {
        std::string axes;
        for (int axis = 0; axis < spatial; ++axis) {
            axes += std::string(", ") + axis_name(spatial, axis);
        }
        throw Error(std::string(op) + ": input has shape " + text(input) + ", expected (N, C" +
                    axes + ") or (C" + axes + ")");
    }
    for (i64 extent : input) {
        if (extent < 0) throw Error(std::string(op) + ": negative size in shape " + text(input));
    }
    checked_size(op, input);
}

void push_window(WindowLists& lists, int axis, i64 begin, i64 end, i64 count) {
    lists.begin[axis].push_back(begin);
    lists.end[axis].push_back(end);
    lists.count[axis].push_back(count);
}

// Axes in front of an axis of one window over all of it join it: one long row instead of many.
void join_whole_axes(WindowLists& lists) {
    AvgPoolParams& p = lists.params;
    const auto whole = [&](int axis) {
        return p.out_size[axis] == 1 && lists.begin[axis][0] == 0 &&
               lists.end[axis][0] == p.in_size[axis];
    };
    for (int front = 1; front >= 0 && whole(2) && whole(front); --front) {
        p.in_size[2] *= p.in_size[front];
        lists.end[2][0] = p.in_size[2];
        lists.count[2][0] *= lists.count[front][0];
        p.in_size[front] = 1;
        lists.end[front][0] = lists.count[front][0] = 1;
    }
}

// Fills in what is the same for all: sizes that overflow, pointers into the lists.
WindowLists finished(const char* op, WindowLists lists, bool counted, double divisor) {
    checked_size(op, lists.output);
    join_whole_axes(lists);
    AvgPoolParams& p = lists.params;
    for (int axis = 0; axis < 3; ++axis) {
        p.begin[axis] = lists.begin[axis].data();
        p.end[axis] = lists.end[axis].data();
        p.count[axis] = counted ? lists.count[axis].data() : nullptr;
    }
    p.divisor = divisor;
    return lists;
}

WindowLists started(const Shape& input, int spatial) {
    WindowLists lists;
    lists.output.assign(input.begin(), input.end() - spatial);
    lists.params.planes = 1;
    for (i64 extent : lists.output) lists.params.planes *= extent;
    lists.params.kernel = lists.params.stride = lists.params.pad = 0;
    for (int i = 0; i < 3 - spatial; ++i) {
        lists.params.in_size[i] = lists.params.out_size[i] = 1;
        push_window(lists, i, 0, 1, 1);
    }
    return lists;
}

void check_padding(const char* op, const WindowAxis& axis) {
    if (axis.pad <= axis.kernel / 2) return;
    throw Error(std::string(op) + ": padding " + std::to_string(axis.pad) +
                " is more than half of the kernel " + std::to_string(axis.kernel) +
                ", expected at most " + std::to_string(axis.kernel / 2) + text(axis));
}

}  // namespace

WindowLists avg_pool_windows(const char* op, int spatial, const Shape& input,
                             const WindowArgs& window, bool ceil_mode, bool count_include_pad,
                             i64 divisor_override) {
    check_input(op, spatial, input);
    i64 kernel[3], stride[3], padding[3];
    expand_window(op, "kernel_size", window.kernel, spatial, 1, kernel);
    expand_window(op, "stride", window.stride.empty() ? window.kernel : window.stride, spatial, 1,
                  stride);
    expand_window(op, "padding", window.padding, spatial, 0, padding);
    if (divisor_override < 0) {
        throw Error(std::string(op) + ": divisor_override is " + std::to_string(divisor_override) +
                    ", expected at least 1");
    }
    WindowLists lists = started(input, spatial);
    for (int axis = 0; axis < spatial; ++axis) {
        const i64 in = input[input.size() - std::size_t(spatial - axis)], pad = padding[axis];
        const WindowAxis one{axis_name(spatial, axis), in, kernel[axis], stride[axis], 1, pad, pad};
        const i64 out = window_count(op, one, ceil_mode);
        check_padding(op, one);
        if (in == 0) throw Error(std::string(op) + ": there is nothing to average" + text(one));
        const int i = axis + 3 - spatial;
        lists.params.in_size[i] = in;
        lists.params.out_size[i] = out;
        lists.output.push_back(out);
        checked_size(op, lists.output);
        for (i64 o = 0; o < out; ++o) {
            const i64 start = o * one.stride - pad, stop = std::min(start + one.kernel, in + pad);
            const i64 begin = std::max(start, i64(0)), end = std::min(stop, in);
            push_window(lists, i, begin, end, count_include_pad ? stop - start : end - begin);
        }
    }
    // A kernel far longer than the row it slides over is better cut to the row.
    const i64 last = spatial - 1, in = lists.params.in_size[2];
    if (kernel[last] <= in + 64) {
        lists.params.kernel = kernel[last];
        lists.params.stride = stride[last];
        lists.params.pad = padding[last];
    }
    const bool counted = divisor_override == 0;
    return finished(op, std::move(lists), counted, double(divisor_override));
}

WindowLists adaptive_windows(const char* op, int spatial, const Shape& input,
                             const std::vector<i64>& output_size) {
    check_input(op, spatial, input);
    i64 size[3];
    expand_window(op, "output_size", output_size, spatial, 0, size);
    WindowLists lists = started(input, spatial);
    for (int axis = 0; axis < spatial; ++axis) {
        const i64 in = input[input.size() - std::size_t(spatial - axis)], out = size[axis];
        if (in == 0 && out > 0) {
            throw Error(std::string(op) + ": input has shape " + text(input) +
                        ", expected spatial sizes of at least 1");
        }
        const int i = axis + 3 - spatial;
        lists.params.in_size[i] = in;
        lists.params.out_size[i] = out;
        lists.output.push_back(out);
        checked_product(op, in, out + 1);
        for (i64 o = 0; o < out; ++o) {
            const i64 begin = o * in / out, end = ((o + 1) * in + out - 1) / out;
            push_window(lists, i, begin, end, end - begin);
        }
    }
    return finished(op, std::move(lists), true, 1);
}

WindowLists global_windows(const char* op, const Shape& input, bool sum) {
    if (input.size() < 3) {
        throw Error(std::string(op) + ": input has shape " + text(input) +
                    ", expected (N, C, ...) with at least one spatial axis");
    }
    const i64 size = checked_size(op, Shape(input.begin() + 2, input.end()));
    checked_size(op, input);
    if (size == 0 && !sum) {
        throw Error(std::string(op) + ": input has shape " + text(input) +
                    ", expected spatial sizes of at least 1");
    }
    WindowLists lists = started({input[0], input[1], size}, 1);
    lists.params.in_size[2] = size;
    lists.params.out_size[2] = 1;
    push_window(lists, 2, 0, size, sum ? 1 : size);
    return finished(op, std::move(lists), true, 1);
}

void check_planes(const char* op, int spatial, const Shape& input, const Shape& output) {
    check_input(op, spatial, input);
    const bool same = input.size() == output.size() &&
                      std::equal(input.begin(), input.end() - spatial, output.begin());
    for (i64 extent : output) {
        if (extent < 0) throw Error(std::string(op) + ": negative size in shape " + text(output));
    }
    checked_size(op, output);
    if (same) return;
    throw Error(std::string(op) + ": output_size gives the shape " + text(output) +
                ", which does not fit input of shape " + text(input));
}

void check_positions(const char* op, const i64* indices, const Shape& shape, i64 size) {
    const i64 count = checked_size(op, shape);
    for (i64 i = 0; i < count; ++i) {
        if (indices[i] >= 0 && indices[i] < size) continue;
        refuse_position(op, indices[i], shape, i, size);
    }
}

void refuse_position(const char* op, i64 index, const Shape& shape, i64 at, i64 size) {
    throw Error(std::string(op) + ": indices value " + std::to_string(index) +
                index_text(shape, at) + " is out of bounds for planes of " + std::to_string(size) +
                " elements");
}

}  // namespace fusednn::ops
