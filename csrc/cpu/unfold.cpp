// Sliding windows as columns, and their sum back into an array.
// x (N, C, D, H, W) <-> columns (N, C * KD * KH * KW, OD * OH * OW), zeros for padding.
#include "cpu/kernels.h"
#include "cpu/parallel.h"
#include "cpu/pool/lanes.h"
#include "cpu/pool/window.h"

namespace fusednn {
namespace FUSEDNN_ISA {

namespace {

// Outputs [first, last) at which tap t reads a real element.
struct Outputs {
    i64 first, last;
};
FUSEDNN_INLINE Outputs real_outputs(const Axis& a, i64 t) {
    const i64 before = a.pad - t * a.dilation, behind = before + a.in;
    const i64 first = before > 0 ? ceil_div(before, a.stride) : 0;
    const i64 last = behind > 0 ? min_of(ceil_div(behind, a.stride), a.out) : 0;
    return {min_of(first, last), last};
}

// ---- unfold ----------------------------------------

// to[i] = from[i * stride], i in [0, n). Whole vectors are read up to x_end and written up to end.
template <class T>
FUSEDNN_INLINE void copy_strided(const T* from, i64 stride, i64 n, const T* x_end, T* to,
                                 const T* end) {
    constexpr int L = kLanes<T>;
    if (stride == 1) {
        for (i64 i = 0; i < n; i += L) {
            store_before(to + i, load_before(from + i, min_of(n - i, i64(L)), x_end), n - i, end);
        }
    } else if (stride == 2) {
        for (i64 i = 0; i < n; i += L) {
            const i64 count = 2 * (n - i) - 1;  // elements from the first needed to the last
            const T* at = from + 2 * i;
            const Vec<T> a = load_before(at, min_of(count, i64(L)), x_end);
            const Vec<T> b = load_before(at + L, min_of(max_of(count - L, i64(0)), i64(L)), x_end);
            store_before(to + i, even_lanes<T>(a, b), n - i, end);
        }
    } else {
        for (i64 i = 0; i < n; ++i) to[i] = from[i * stride];
    }
}

template <class T>
FUSEDNN_INLINE void clear(T* p, i64 n) {
    __builtin_memset(p, 0, std::size_t(n) * sizeof(T));
}

// One tap of one plane: x (D, H, W) -> to (OD, OH, OW).
template <class T>
void unfold_tap(const Axis& depth, const Axis& height, const Axis& width, i64 td, i64 th, i64 tw,
                const T* x, const T* x_end, T* to, const T* end) {
    const Outputs od = real_outputs(depth, td), oh = real_outputs(height, th);
    const Outputs ow = real_outputs(width, tw);
    for (i64 d = 0; d < depth.out; ++d) {
        for (i64 h = 0; h < height.out; ++h, to += width.out) {
            if (d < od.first || d >= od.last || h < oh.first || h >= oh.last) {
                clear(to, width.out);
                continue;
            }
            const i64 in_d = d * depth.stride - depth.pad + td * depth.dilation;
            const i64 in_h = h * height.stride - height.pad + th * height.dilation;
            const i64 in_w = ow.first * width.stride - width.pad + tw * width.dilation;
            clear(to, ow.first);
            copy_strided(x + (in_d * height.in + in_h) * width.in + in_w, width.stride,
                         ow.last - ow.first, x_end, to + ow.first, end);
            clear(to + ow.last, width.out - ow.last);
        }
    }
}

// ---- fold ----------------------------------------
//
// A row of x is summed up tap by tap. With strides 1 and 2 that happens in its phases (phase r
// holds the columns r, r + S ...), where what comes from neighbouring outputs goes to neighbours;
// with longer ones in the row itself.

// Per tap of the width: which outputs count, and where the first of them goes.
struct Landing {
    i64 first, count, at;
};

// sum[0, n) += from[0, n); sum may be written one vector further.
template <class T>
FUSEDNN_INLINE void add(const T* from, i64 n, const T* end, T* sum) {
    constexpr int L = kLanes<T>;
    i64 i = 0;
    for (; i + L <= n; i += L) store(sum + i, load(sum + i) + load(from + i));
    if (i < n) {
        const Vec<T> v = load_before(from + i, n - i, end);
        const Mask<T> mine = lane_numbers<T>() < Mask<T>{} + Int<T>(n - i);
        store(sum + i, load(sum + i) + select<T>(mine, v, Vec<T>{}));
    }
}

// row[j * stride + r] = phases[r][j] for strides 1 and 2, the phases `pitch` apart.
template <class T>
FUSEDNN_INLINE void join_phases(const T* phases, i64 pitch, i64 stride, i64 n, T* row,
                                const T* row_end) {
    constexpr int L = kLanes<T>;
    if (stride == 1) {
        for (i64 i = 0; i < n; i += L) store_before(row + i, load(phases + i), n - i, row_end);
        return;
    }
    for (i64 i = 0; i < n; i += 2 * L) {
        const Vec<T> a = load(phases + i / 2), b = load(phases + pitch + i / 2);
        store_before(row + i, interleave_low<T>(a, b), n - i, row_end);
        if (n - i > L) store_before(row + i + L, interleave_high<T>(a, b), n - i - L, row_end);
    }
}

// Adds row (d, h) of one plane to `sum`: its phases, or for long strides the row itself.
// columns (KD, KH, KW, OD, OH, OW).
template <class T>
void fold_row(const ConvParams& p, const Landing* landings, const T* columns, const T* end, i64 d,
              i64 h, T* sum) {
    const Axis depth = axis_of(p, 0), height = axis_of(p, 1), width = axis_of(p, 2);
    const Taps td = useful_taps(depth), th = useful_taps(height), tw = useful_taps(width);
    for (i64 i = td.first; i < td.last; ++i) {
        const i64 out_d = output_of(depth, d, i);
        if (out_d < 0) continue;
        for (i64 j = th.first; j < th.last; ++j) {
            const i64 out_h = output_of(height, h, j);
            if (out_h < 0) continue;
            for (i64 k = tw.first; k < tw.last; ++k) {
                const Landing& to = landings[k - tw.first];
                const i64 tap = (i * height.kernel + j) * width.kernel + k;
                const i64 row = (tap * depth.out + out_d) * height.out + out_h;
                const T* from = columns + row * width.out + to.first;
                if (width.stride <= 2) {
                    add(from, to.count, end, sum + to.at);
                } else {
                    T* at = sum + to.at;
                    for (i64 o = 0; o < to.count; ++o, at += width.stride) *at += from[o];
                }
            }
        }
    }
}

}  // namespace

template <class T>
void unfold(const ConvParams& p, const T* x, T* columns) {
    const Axis depth = axis_of(p, 0), height = axis_of(p, 1), width = axis_of(p, 2);
    const i64 taps = volume(p.kernel), pixels = volume(p.out_size), plane = volume(p.in_size);
    const i64 rows = p.batch * p.in_channels * taps;
    if (rows == 0) return;
    const T* x_end = x + p.batch * p.in_channels * plane;
    const i64 each = rows_per_task(rows, rows * pixels), tasks = ceil_div(rows, each);
    const int slots = parallel_slots(tasks, 2 * rows * pixels * i64(sizeof(T)));
    parallel(tasks, slots, [&](i64 task, int) {
        const i64 last = min_of(task * each + each, rows);
        for (i64 row = task * each; row < last; ++row) {
            const i64 tap = row % taps, hw = height.kernel * width.kernel;
            unfold_tap(depth, height, width, tap / hw, tap % hw / width.kernel, tap % width.kernel,
                       x + row / taps * plane, x_end, columns + row * pixels,
                       columns + last * pixels);
        }
    });
}

template <class T>
void fold(const ConvParams& p, const T* columns, T* x) {
    const Axis width = axis_of(p, 2);
    const i64 planes = p.batch * p.in_channels, taps = volume(p.kernel);
    const i64 column_plane = taps * volume(p.out_size);
    const i64 rows = planes * p.in_size[0] * p.in_size[1];
    if (rows == 0 || width.in == 0) return;
    const i64 stride = width.stride, phases = stride <= 2 ? stride : 0;
    const i64 pitch = round_up(ceil_div(width.in, stride) + kLanes<T>, kLanes<T>);

    const Taps useful = useful_taps(width);
    Workspace<Landing> landings(max_of(useful.last - useful.first, i64(0)));
    for (i64 t = useful.first; t < useful.last; ++t) {
        const Outputs out = real_outputs(width, t);
        const i64 column = out.first * stride - width.pad + t * width.dilation;
        const i64 at = phases > 0 ? column % stride * pitch + column / stride : column;
        landings.get()[t - useful.first] = {out.first, out.last - out.first,
                                            out.first < out.last ? at : 0};
    }

    const i64 elements = planes * column_plane + rows * width.in;
    const i64 each = rows_per_task(rows, elements), tasks = ceil_div(rows, each);
    const int slots = parallel_slots(tasks, elements * i64(sizeof(T)));
    Workspace<T> memory(phases * pitch, slots);
    parallel(tasks, slots, [&](i64 task, int slot) {
        const i64 last = min_of(task * each + each, rows);
        const T* end = columns + planes * column_plane;
        for (RowCounter at(p.in_size, task * each); at.row < last; at.next()) {
            const T* from = columns + at.plane * column_plane;
            T* row = x + at.row * width.in;
            T* sum = phases > 0 ? memory.slot(slot) : row;
            clear(sum, phases > 0 ? phases * pitch : width.in);
            fold_row(p, landings.get(), from, end, at.d, at.h, sum);
            if (phases > 0) join_phases(sum, pitch, stride, width.in, row, x + last * width.in);
        }
    });
}

#define FUSEDNN_UNFOLD(T)                                     \
    template void unfold<T>(const ConvParams&, const T*, T*); \
    template void fold<T>(const ConvParams&, const T*, T*);
FUSEDNN_INSTANTIATE(FUSEDNN_UNFOLD)

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
