// Average pooling and its gradient. x, dx (planes, D, H, W); y, dy (planes, OD, OH, OW).
//
//   forward   per output row: 1. line = sum of the window's input rows   2. y = sum of the window's
//             columns of the line, over how many they count as
//   backward  per input row, mirrored: 1. line = sum of dy / count over the output rows whose
//             windows hold the row   2. dx = sum of the line over the outputs whose windows hold
//             the column
//
// Lines have zeros where windows reach over the row's ends, so that strides 1 and 2 run in vectors.
#include "cpu/channels.h"
#include "cpu/kernels.h"
#include "cpu/pool/window.h"

namespace fusednn {
namespace FUSEDNN_ISA {

namespace {

// Zeros and the like behind a line, for vectors that read past its end.
template <class T>
constexpr i64 kSlack = 2 * kLanes<T>;

FUSEDNN_INLINE bool vector_width(const AvgPoolParams& p) {
    return p.kernel > 0 && p.stride <= 2 && p.out_size[2] > 1;
}

// What windows of row (d, h) are divided by, but for the count along the width.
FUSEDNN_INLINE double row_divisor(const AvgPoolParams& p, i64 d, i64 h) {
    return p.count[0] ? double(p.count[0][d] * p.count[1][h]) : p.divisor;
}

// The counts along the width, as numbers of the dtype; 1 where a divisor is given.
template <class T>
void fill_counts(const AvgPoolParams& p, T* counts) {
    for (i64 o = 0; o < p.out_size[2]; ++o) counts[o] = p.count[0] ? T(p.count[2][o]) : T(1);
}

// ---- forward ----

template <class T>
FUSEDNN_INLINE void add_row(i64 n, const T* row, bool first, T* line) {
    for_row_vectors<T>(n, [=](i64 k, auto load_at, auto store_at) {
        store_at(line + k, first ? load_at(row + k) : load_at(line + k) + load_at(row + k));
    });
}

// y[o] = sum of line[o * S + t], t < kernel, over counts[o] * divisor.
template <class T, int S>
FUSEDNN_INLINE void sum_columns(i64 kernel, i64 n, const T* line, const T* counts, T divisor,
                                T* y) {
    constexpr i64 L = kLanes<T>;
    for_row_vectors<T>(n, [=](i64 o, auto load_at, auto store_at) {
        const T* from = line + o * S;
        Vec<T> sum{};
        if constexpr (S == 1) {
            for (i64 t = 0; t < kernel; ++t) sum += load(from + t);
        } else {
            for (i64 t = 0; t < kernel; t += 2) {
                const Vec<T> a = load(from + t), b = load(from + t + L);
                sum += even_lanes<T>(a, b);
                if (t + 1 < kernel) sum += odd_lanes<T>(a, b);
            }
        }
        store_at(y + o, sum / (load_at(counts + o) * divisor));
    });
}

template <class T>
FUSEDNN_INLINE void sum_any_columns(const AvgPoolParams& p, const T* row, const T* counts,
                                    T divisor, T* y) {
    for (i64 o = 0; o < p.out_size[2]; ++o) {
        const i64 begin = p.begin[2][o], size = p.end[2][o] - begin;
        T total = 0;
        if (size >= 4 * kLanes<T>) {
            const T* from = row + begin;
            total = row_sum<T>(size, [=](i64 k, auto load_at, auto) { return load_at(from + k); });
        } else {
            for (i64 i = 0; i < size; ++i) total += row[begin + i];
        }
        y[o] = total / (counts[o] * divisor);
    }
}

template <class T>
void pool_row(const AvgPoolParams& p, const T* x, i64 row, T* line, const T* counts, T* y) {
    const i64 h = row % p.out_size[1], slice = row / p.out_size[1];
    const i64 d = slice % p.out_size[0], plane = slice / p.out_size[0];
    const bool vectors = vector_width(p);
    const i64 width = p.in_size[2], front = vectors ? p.pad : 0;
    T* const real = line + front;
    const T divisor = T(row_divisor(p, d, h));
    T* to = y + row * p.out_size[2];
    if (!vectors && p.in_size[0] * p.in_size[1] == 1) {  // a whole plane's mean, or one axis
        return sum_any_columns(p, x + plane * width, counts, divisor, to);
    }
    bool first = true;
    for (i64 in_d = p.begin[0][d]; in_d < p.end[0][d]; ++in_d) {
        for (i64 in_h = p.begin[1][h]; in_h < p.end[1][h]; ++in_h) {
            const i64 at = (plane * p.in_size[0] + in_d) * p.in_size[1] + in_h;
            add_row(width, x + at * width, first, real);
            first = false;
        }
    }
    if (!vectors) return sum_any_columns(p, real, counts, divisor, to);
    if (p.stride == 1) return sum_columns<T, 1>(p.kernel, p.out_size[2], line, counts, divisor, to);
    sum_columns<T, 2>(p.kernel, p.out_size[2], line, counts, divisor, to);
}

// ---- backward ----

// Which outputs of an axis have windows that hold input i: [first[i], last[i]).
void fill_covers(const AvgPoolParams& p, int axis, i64* first, i64* last) {
    i64 from = 0, to = 0;
    for (i64 i = 0; i < p.in_size[axis]; ++i) {
        while (from < p.out_size[axis] && p.end[axis][from] <= i) ++from;
        while (to < p.out_size[axis] && p.begin[axis][to] <= i) ++to;
        first[i] = from;
        last[i] = to;
    }
}

struct Covers {
    const i64 *first_d, *last_d, *first_h, *last_h;
};

// line[o] = sum of dy / count over the output rows that hold an input row; false if there is none.
template <class T>
FUSEDNN_INLINE bool gather_rows(const AvgPoolParams& p, const Covers& covers, const T* dy,
                                i64 plane, i64 d, i64 h, const T* counts, T* line) {
    bool first = true;
    for (i64 od = covers.first_d[d]; od < covers.last_d[d]; ++od) {
        for (i64 oh = covers.first_h[h]; oh < covers.last_h[h]; ++oh) {
            const i64 at = (plane * p.out_size[0] + od) * p.out_size[1] + oh;
            const T* grad = dy + at * p.out_size[2];
            const T divisor = T(row_divisor(p, od, oh));
            for_row_vectors<T>(p.out_size[2], [=](i64 o, auto load_at, auto store_at) {
                const Vec<T> g = load_at(grad + o) / (load_at(counts + o) * divisor);
                store_at(line + o, first ? g : load_at(line + o) + g);
            });
            first = false;
        }
    }
    return !first;
}

// dx[w] = sum over t < kernel of line[w + pad - t]; the line has kernel - 1 zeros on both sides.
template <class T>
FUSEDNN_INLINE void spread_columns(i64 kernel, i64 pad, i64 n, const T* line, T* dx) {
    for_row_vectors<T>(n, [=](i64 w, auto, auto store_at) {
        Vec<T> sum{};
        for (i64 t = 0; t < kernel; ++t) sum += load(line + (w + pad - t));
        store_at(dx + w, sum);
    });
}

// The same with stride 2, by way of `both`: its entries 2 j and 2 j + 1 (columns w + pad) are the
// sums of line[j - m] over the even taps 2 m and over the odd ones 2 m + 1.
template <class T>
FUSEDNN_INLINE void spread_pairs(i64 kernel, i64 pad, i64 n, const T* line, T* both, T* dx) {
    constexpr i64 L = kLanes<T>;
    for (i64 j = 0; 2 * j < n + pad; j += L) {
        Vec<T> even{}, odd{};
        for (i64 t = 0; t < kernel; t += 2) {
            const Vec<T> g = load(line + (j - t / 2));
            even += g;
            if (t + 1 < kernel) odd += g;
        }
        store(both + 2 * j, interleave_low<T>(even, odd));
        store(both + 2 * j + L, interleave_high<T>(even, odd));
    }
    __builtin_memcpy(dx, both + pad, std::size_t(n) * sizeof(T));
}

template <class T>
FUSEDNN_INLINE void spread_any_columns(const AvgPoolParams& p, const T* line, T* dx) {
    __builtin_memset(dx, 0, std::size_t(p.in_size[2]) * sizeof(T));
    for (i64 o = 0; o < p.out_size[2]; ++o) {
        const T g = line[o];
        for (i64 w = p.begin[2][o]; w < p.end[2][o]; ++w) dx[w] += g;
    }
}

// Means of whole planes: each sends the same to all of its elements.
template <class T>
void spread_planes(const AvgPoolParams& p, const T* dy, T* dx) {
    const i64 size = p.in_size[2];
    const T count = T(p.count[0] ? double(p.count[2][0]) : p.divisor);
    for_row_blocks(p.planes, size / 4 + 1, [&](i64 begin, i64 end) {
        for (i64 plane = begin; plane < end; ++plane) {
            const Vec<T> g = broadcast(dy[plane] / count);
            T* to = dx + plane * size;
            for_row_vectors<T>(size, [=](i64 k, auto, auto store_at) { store_at(to + k, g); });
        }
    });
}

FUSEDNN_INLINE bool whole_planes(const AvgPoolParams& p) {
    return p.in_size[0] * p.in_size[1] == 1 && p.out_size[2] == 1 && p.begin[2][0] == 0 &&
           p.end[2][0] == p.in_size[2];
}

}  // namespace

template <class T>
void avg_pool_forward(const AvgPoolParams& p, const T* x, T* y) {
    const i64 rows = p.planes * p.out_size[0] * p.out_size[1];
    if (rows == 0) return;
    const i64 elements = p.planes * (volume(p.in_size) + volume(p.out_size));
    const i64 each = rows_per_task(rows, elements), tasks = ceil_div(rows, each);
    const int slots = parallel_slots(tasks, elements * 4);
    const bool vectors = vector_width(p);
    const i64 reach = vectors ? (p.out_size[2] - 1) * p.stride + p.kernel : 0;
    const i64 length = max_of(reach, p.in_size[2] + (vectors ? p.pad : 0)) + 2 * kSlack<T>;
    Workspace<T> lines(length, slots), counts(p.out_size[2]);
    fill_counts(p, counts.get());
    for (int slot = 0; slot < slots; ++slot) {
        __builtin_memset(lines.slot(slot), 0, std::size_t(length) * sizeof(T));
    }
    parallel(tasks, slots, [&](i64 task, int slot) {
        for (i64 row = task * each; row < min_of((task + 1) * each, rows); ++row) {
            pool_row(p, x, row, lines.slot(slot), counts.get(), y);
        }
    });
}

template <class T>
void avg_pool_backward(const AvgPoolParams& p, const T* dy, T* dx) {
    const i64 depth = p.in_size[0], height = p.in_size[1], width = p.in_size[2];
    const i64 rows = p.planes * depth * height;
    if (rows == 0 || width == 0) return;
    if (whole_planes(p)) return spread_planes(p, dy, dx);
    const i64 elements = p.planes * (volume(p.in_size) + volume(p.out_size));
    const i64 each = rows_per_task(rows, elements), tasks = ceil_div(rows, each);
    const int slots = parallel_slots(tasks, elements * 4);
    const bool vectors = vector_width(p);
    const i64 margin = vectors ? p.kernel : 0;
    const i64 line = margin + max_of(p.out_size[2], width + p.pad) + margin + 2 * kSlack<T>;
    const i64 both = vectors ? width + p.pad + 2 * kSlack<T> : 0;
    Workspace<T> memory(line + both, slots), counts(p.out_size[2]);
    Workspace<i64> index(2 * (depth + height));
    i64* const at = index.get();
    fill_counts(p, counts.get());
    fill_covers(p, 0, at, at + depth);
    fill_covers(p, 1, at + 2 * depth, at + 2 * depth + height);
    const Covers covers{at, at + depth, at + 2 * depth, at + 2 * depth + height};
    for (int slot = 0; slot < slots; ++slot) {
        __builtin_memset(memory.slot(slot), 0, std::size_t(line) * sizeof(T));
    }
    parallel(tasks, slots, [&](i64 task, int slot) {
        T *const real = memory.slot(slot) + margin, *const pairs = memory.slot(slot) + line;
        for (i64 row = task * each; row < min_of((task + 1) * each, rows); ++row) {
            const i64 plane = row / height / depth;
            T* to = dx + row * width;
            if (!gather_rows(p, covers, dy, plane, row / height % depth, row % height, counts.get(),
                             real)) {
                __builtin_memset(to, 0, std::size_t(width) * sizeof(T));
            } else if (!vectors) {
                spread_any_columns(p, real, to);
            } else if (p.stride == 1) {
                spread_columns(p.kernel, p.pad, width, real, to);
            } else {
                spread_pairs(p.kernel, p.pad, width, real, pairs, to);
            }
        }
    });
}

#define FUSEDNN_AVERAGE(T)                                                 \
    template void avg_pool_forward<T>(const AvgPoolParams&, const T*, T*); \
    template void avg_pool_backward<T>(const AvgPoolParams&, const T*, T*);
FUSEDNN_INSTANTIATE(FUSEDNN_AVERAGE)

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
