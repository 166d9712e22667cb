// Where a pooling window's taps fall: along one axis, and along rows cut into column tiles.
#pragma once
#include "core/kernels.h"
#include "cpu/simd.h"

namespace fusednn {
namespace FUSEDNN_ISA {

// Tap t of the window at output o reads input o * stride - pad + t * dilation.
struct Axis {
    i64 in, out, kernel, stride, dilation, pad;
};

template <class Params>
FUSEDNN_INLINE Axis axis_of(const Params& p, int axis) {
    return {p.in_size[axis], p.out_size[axis], p.kernel[axis],
            p.stride[axis],  p.dilation[axis], p.pad[axis]};
}

struct Taps {
    i64 first, last;  // [first, last)
};

// Which taps read real elements in a window whose first tap is at `start`, and in that of an
// output.
FUSEDNN_INLINE Taps taps_from(const Axis& a, i64 start) {
    i64 first = max_of(-start, i64(0)), last = max_of(a.in - start, i64(0));
    if (a.dilation != 1) {
        first = ceil_div(first, a.dilation);
        last = ceil_div(last, a.dilation);
    }
    return {first, min_of(last, a.kernel)};
}
FUSEDNN_INLINE Taps real_taps(const Axis& a, i64 out) {
    return taps_from(a, out * a.stride - a.pad);
}

// The taps that read a real element in any window at all. A kernel may be huge next to its input
// (all but a few taps always in the padding), so loops run over these, never over the kernel.
FUSEDNN_INLINE Taps useful_taps(const Axis& a) {
    return {real_taps(a, a.out - 1).first, real_taps(a, 0).last};
}

// The output whose tap `tap` reads input `in`; -1 if there is none.
FUSEDNN_INLINE i64 output_of(const Axis& a, i64 in, i64 tap) {
    const i64 from = in + a.pad - tap * a.dilation;
    if (from < 0) return -1;
    if (a.stride == 1) return from < a.out ? from : -1;
    const i64 out = a.stride == 2 ? from / 2 : from / a.stride;
    return out < a.out && out * a.stride == from ? out : -1;
}

// Counts through the rows of `planes` planes of size (D, H, W).
struct RowCounter {
    const i64 depth, height;
    i64 row, plane, d, h;

    FUSEDNN_INLINE RowCounter(const i64 (&size)[3], i64 first)
        : depth(size[0]),
          height(size[1]),
          row(first),
          plane(first / height / depth),
          d(first / height % depth),
          h(first % height) {}
    FUSEDNN_INLINE void next() {
        ++row;
        if (++h < height) return;
        h = 0;
        if (++d < depth) return;
        d = 0;
        ++plane;
    }
};

// Rows are worked off in vectors, which pays unless the windows skip nearly all of the row. It also
// keeps the length of a line (below) within a few times the row's: taps far apart are only useful
// together when the stride is as far.
FUSEDNN_INLINE bool sparse(const Axis& width) {
    const Taps taps = useful_taps(width);
    return width.stride > 16 * (taps.last - taps.first);
}

// `Columns` cuts a row of outputs into tiles. A tile's line holds the input columns under its
// windows, padding included: line[i] is input column first_column + i.
struct Columns {
    Axis axis;
    Taps taps;   // the useful ones; tap `taps.first` of the tile's first output reads line[0]
    i64 tile;    // outputs per tile
    i64 length;  // of a tile's line

    // Columns under `outputs` neighbouring windows.
    FUSEDNN_INLINE i64 span(i64 outputs) const {
        return (outputs - 1) * axis.stride + (taps.last - taps.first - 1) * axis.dilation + 1;
    }
    FUSEDNN_INLINE i64 first_column(i64 first_output) const {
        return first_output * axis.stride - axis.pad + taps.first * axis.dilation;
    }
    FUSEDNN_INLINE bool one_tile() const { return tile >= axis.out; }
};

// budget: how many elements the line may have.
FUSEDNN_INLINE Columns cut_columns(const Axis& axis, i64 budget) {
    Columns c{axis, useful_taps(axis), axis.out, 0};
    if (c.span(axis.out) > budget) {
        // 64 outputs are whole vectors on every ISA, and long enough to make the halo small.
        const i64 fit = (budget - c.span(1)) / axis.stride + 1;
        c.tile = min_of(axis.out, max_of(fit / 64, i64(1)) * 64);
    }
    c.length = c.span(c.tile);
    return c;
}

// `length` columns from `first` on, of a row of `width`: `left` of them lie before the row, then
// `count` in it, from column `begin` on, the rest behind it.
struct Segment {
    i64 left, begin, count;
};
FUSEDNN_INLINE Segment segment_of(i64 first, i64 length, i64 width) {
    const i64 begin = max_of(first, i64(0)), end = min_of(first + length, width);
    return {min_of(begin - first, length), begin, max_of(end - begin, i64(0))};
}

// Rows a task takes, from the shape alone: about 32 K elements, so that a task is worth claiming
// and there are plenty, but at most 256 tasks. `elements` is what all `rows` together read and
// write.
FUSEDNN_INLINE i64 rows_per_task(i64 rows, i64 elements) {
    const i64 per_row = max_of(elements / rows, i64(1));
    return max_of(max_of(i64(32768) / per_row, i64(1)), ceil_div(rows, 256));
}

FUSEDNN_INLINE i64 volume(const i64 (&size)[3]) {
    return size[0] * size[1] * size[2];
}

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
