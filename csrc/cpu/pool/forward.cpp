// Max pooling, values only. A maximum over a window is the maximum over its columns of the maximum
// over its rows, so each output row takes two passes over a line that stays in the L1 cache:
//
//   1. line[c] = maximum over the window's rows of x[.., c]; padding is -inf
//   2. y[o] = maximum over the window's columns of line[o * stride + t * dilation]
#include "cpu/kernels.h"
#include "cpu/parallel.h"
#include "cpu/pool/lanes.h"
#include "cpu/pool/pool.h"
#include "cpu/pool/window.h"

namespace fusednn {
namespace FUSEDNN_ISA {

namespace {

// All lines together take half of a 32 KB L1, so that the rows streaming through leave them there.
constexpr i64 kLineBytes = 16384;
template <class T>
constexpr i64 kLineBudget = kLineBytes / 4 / sizeof(T);

// line[0, n) = maximum of N rows `pitch` apart (and of line itself unless kFirst). The last vector
// is padded with -inf. `end` is the end of x.
template <class T, int N, bool kFirst>
FUSEDNN_INLINE void merge_rows(const T* rows, i64 pitch, i64 n, const T* end, T* line) {
    constexpr int L = kLanes<T>;
    i64 i = 0;
    for (; i + L <= n; i += L) {
        Vec<T> v = load(rows + i);
        for (int r = 1; r < N; ++r) v = max_nan<T>(v, load(rows + r * pitch + i));
        if (!kFirst) v = max_nan<T>(v, load(line + i));
        store(line + i, v);
    }
    if (i < n) {
        Vec<T> v = load_before(rows + i, n - i, end);
        for (int r = 1; r < N; ++r) {
            v = max_nan<T>(v, load_before(rows + r * pitch + i, n - i, end));
        }
        if (!kFirst) v = max_nan<T>(v, load(line + i));
        store(line + i, pad_after<T>(v, n - i));
    }
}

// The same for any number of rows, `count` >= 1.
template <class T>
FUSEDNN_INLINE void merge_rows(const T* rows, i64 pitch, i64 count, bool first, i64 n, const T* end,
                               T* line) {
    if (first) {
        if (count == 1) return merge_rows<T, 1, true>(rows, pitch, n, end, line);
        if (count == 2) return merge_rows<T, 2, true>(rows, pitch, n, end, line);
        merge_rows<T, 3, true>(rows, pitch, n, end, line);
        rows += 3 * pitch;
        count -= 3;
    }
    for (; count >= 2; count -= 2, rows += 2 * pitch) {
        merge_rows<T, 2, false>(rows, pitch, n, end, line);
    }
    if (count == 1) merge_rows<T, 1, false>(rows, pitch, n, end, line);
}

// y[o] = maximum of K entries of line, `dilation` apart, from o * S on; [0, n).
template <class T, int K, int S, bool kDense>
FUSEDNN_INLINE void merge_columns(const T* line, i64 dilation, i64 n, T* y, const T* y_end) {
    constexpr int L = kLanes<T>;
    const i64 step = kDense ? 1 : dilation;
    for (i64 o = 0; o < n; o += L) {
        const T* from = line + o * S;
        Vec<T> v;
        if constexpr (S == 1) {
            v = load(from);
            for (int k = 1; k < K; ++k) v = max_nan<T>(v, load(from + k * step));
        } else {
            const Vec<T> a = load(from), b = load(from + L);
            v = even_lanes<T>(a, b);
            if constexpr (K > 1 && kDense) v = max_nan<T>(v, odd_lanes<T>(a, b));
            for (int k = kDense ? 2 : 1; k < K; ++k) {
                const T* tap = from + k * step;
                v = max_nan<T>(v, even_lanes<T>(load(tap), load(tap + L)));
            }
        }
        store_before(y + o, v, n - o, y_end);
    }
}

template <class T, int S>
FUSEDNN_INLINE void merge_columns(const T* line, i64 taps, i64 dilation, i64 n, T* y,
                                  const T* y_end) {
    if (taps == 1) return merge_columns<T, 1, S, true>(line, 1, n, y, y_end);
    if (dilation == 1) {
        if (taps == 2) return merge_columns<T, 2, S, true>(line, 1, n, y, y_end);
        return merge_columns<T, 3, S, true>(line, 1, n, y, y_end);
    }
    if (taps == 2) return merge_columns<T, 2, S, false>(line, dilation, n, y, y_end);
    merge_columns<T, 3, S, false>(line, dilation, n, y, y_end);
}

// Halves the number of taps until at most `most` are left: the maximum of k neighbours is that of
// ceil(k / 2) neighbours in the line of pairs floor(k / 2) apart. Returns how many are left.
template <class T>
FUSEDNN_INLINE i64 halve_taps(T* line, i64 taps, i64 most, const Columns& columns, i64 outputs) {
    while (taps > most) {
        const i64 half = taps / 2;
        taps -= half;
        const i64 needed =
            (outputs - 1) * columns.axis.stride + (taps - 1) * columns.axis.dilation + 1;
        const T* other = line + half * columns.axis.dilation;
        for (i64 i = 0; i < needed; i += kLanes<T>) {
            store(line + i, max_nan<T>(load(line + i), load(other + i)));
        }
    }
    return taps;
}

template <class T>
FUSEDNN_INLINE void merge_columns(T* line, const Columns& columns, i64 n, T* y, const T* y_end) {
    const i64 stride = columns.axis.stride, dilation = columns.axis.dilation;
    const i64 taps =
        halve_taps(line, columns.taps.last - columns.taps.first, stride <= 2 ? 3 : 1, columns, n);
    if (stride == 1) {
        merge_columns<T, 1>(line, taps, dilation, n, y, y_end);
    } else if (stride == 2) {
        merge_columns<T, 2>(line, taps, dilation, n, y, y_end);
    } else {
        for (i64 o = 0; o < n; ++o) y[o] = line[o * stride];
    }
}

// Lines in use at a time. One that is read while its stores are on their way to the cache waits for
// them, so a few other rows come first: 8 rows took 102 us where 1 took 143 and 2 took 116 (64
// planes of 112 x 112, kernel 3, stride 2).
constexpr i64 kMostLines = 8;

// line = pass 1 of output row `row` of all (planes * OD * OH), for the columns of `part`.
template <class T>
FUSEDNN_INLINE void fill_line(const PoolParams& p, const T* x, i64 row, const Segment& part,
                              i64 length, T* line) {
    const Axis depth = axis_of(p, 0), height = axis_of(p, 1);
    const i64 out_h = row % height.out, slice = row / height.out;
    const i64 out_d = slice % depth.out, plane = slice / depth.out;
    const Taps td = real_taps(depth, out_d), th = real_taps(height, out_h);
    const i64 h = out_h * height.stride - height.pad + th.first * height.dilation;
    const T* x_end = x + p.planes * volume(p.in_size);
    const Vec<T> padding = broadcast(kLowest<T>);

    fill(line, part.left, padding);
    T* real = line + part.left;
    for (i64 t = td.first; t < td.last; ++t) {
        const i64 d = out_d * depth.stride - depth.pad + t * depth.dilation;
        const T* rows = x + ((plane * depth.in + d) * height.in + h) * p.in_size[2] + part.begin;
        merge_rows(rows, height.dilation * p.in_size[2], th.last - th.first, t == td.first,
                   part.count, x_end, real);
    }
    fill(real + part.count, length - part.left - part.count, padding);
}

// Lines that lie `pitch` apart.
template <class T>
struct Lines {
    T* first;
    i64 pitch, count;
};

// Output rows [begin, end).
template <class T>
void pool_rows(const PoolParams& p, const Columns& columns, const T* x, T* y, const Lines<T>& lines,
               i64 begin, i64 end) {
    const i64 out_width = p.out_size[2];
    for (i64 first = 0; first < out_width; first += columns.tile) {
        const i64 n = min_of(columns.tile, out_width - first), length = columns.span(n);
        const Segment part = segment_of(columns.first_column(first), length, p.in_size[2]);
        for (i64 row = begin; row < end; row += lines.count) {
            const i64 count = min_of(end - row, lines.count);
            for (i64 i = 0; i < count; ++i) {
                fill_line(p, x, row + i, part, length, lines.first + i * lines.pitch);
            }
            for (i64 i = 0; i < count; ++i) {
                T* to = y + (row + i) * out_width + first;
                merge_columns(lines.first + i * lines.pitch, columns, n, to,
                              columns.one_tile() ? y + end * out_width : to + n);
            }
        }
    }
}

template <class T>
void max_pool_values(const PoolParams& p, const T* x, T* y) {
    const Columns columns = cut_columns(axis_of(p, 2), kLineBudget<T>);
    const i64 rows = p.planes * p.out_size[0] * p.out_size[1];
    const i64 elements = p.planes * (volume(p.in_size) + volume(p.out_size));
    const i64 each = rows_per_task(rows, elements), tasks = ceil_div(rows, each);
    const int slots = parallel_slots(tasks, elements * i64(sizeof(T)));
    // Vectors are read from the last needed entry of the line on, two for stride 2.
    const i64 pitch = round_up(columns.length + 3 * kLanes<T>, kLanes<T>);
    const i64 count = max_of(min_of(kMostLines, kLineBytes / i64(sizeof(T)) / pitch), i64(1));
    Workspace<T> memory(count * pitch, slots);
    parallel(tasks, slots, [&](i64 task, int slot) {
        const Lines<T> lines{memory.slot(slot), pitch, count};
        pool_rows(p, columns, x, y, lines, task * each, min_of(task * each + each, rows));
    });
}

}  // namespace

template <class T>
void max_pool_forward(const PoolParams& p, const T* x, T* y, void* argmax, int argmax_bytes) {
    if (p.planes == 0) return;
    if (is_pairs(p)) return max_pool_pairs(p, x, y, argmax, argmax_bytes);
    if (sparse(axis_of(p, 2))) return max_pool_sparse(p, x, y, argmax, argmax_bytes);
    if (argmax && argmax_bytes == 1 && is_narrow(p)) {
        return max_pool_narrow(p, x, y, static_cast<std::uint8_t*>(argmax));
    }
    if (argmax) return max_pool_argmax(p, x, y, argmax, argmax_bytes);
    if (is_narrow(p)) return max_pool_narrow_values(p, x, y);
    max_pool_values(p, x, y);
}

#define FUSEDNN_POOL_FORWARD(T) \
    template void max_pool_forward<T>(const PoolParams&, const T*, T*, void*, int);
FUSEDNN_INSTANTIATE(FUSEDNN_POOL_FORWARD)

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
