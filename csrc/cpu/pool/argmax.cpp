// Max pooling with the winning taps, any window.
// x (planes, D, H, W); y, argmax (planes, OD, OH, OW): taps count through the window in row-major
// order. The first maximum wins; a NaN beats everything, and the last NaN wins.
//
//   1. Every input row is pooled along its width once: a line of values and one of winning columns,
//      kept until their slot is needed by another row. To that end it is copied, taken apart by
//      stride: phase r of the copy holds the columns r, r + S, r + 2 S ... (padding is -inf), so
//      that a tap reads neighbours for neighbouring outputs.
//   2. An output row is the first maximum of the lines of its window's rows. First along each row,
//      then among the rows: that is row-major order.
#include "cpu/kernels.h"
#include "cpu/parallel.h"
#include "cpu/pool/lanes.h"
#include "cpu/pool/pool.h"
#include "cpu/pool/window.h"

namespace fusednn {
namespace FUSEDNN_ISA {

namespace {

// All lines of a window together: half of a 32 KB L1.
constexpr i64 kLineBytes = 16384;

// ---- pass 1 ----------------------------------------

// How rows are copied, and what is known of all of them.
template <class T>
struct Copy {
    Columns columns;
    T* phases;                // one thread's copy
    i64 pitch;                // between the phases
    const i64* tap_offset;    // where in the copy each useful tap begins
    const Int<T>* first_tap;  // the first real tap of each output of a row
};

// Entries of each phase that `outputs` windows read.
FUSEDNN_INLINE i64 phase_size(const Columns& c, i64 outputs) {
    return outputs + (c.taps.last - c.taps.first - 1) * c.axis.dilation / c.axis.stride;
}

// Takes the part of a row apart. Each phase gets `needed` entries, and up to two vectors more.
// Says whether a product with 0 shows a NaN or an infinity.
template <class T>
bool split_row(const T* row, const Segment& part, i64 stride, i64 pitch, i64 needed, const T* x_end,
               T* phases) {
    constexpr int L = kLanes<T>;
    const Vec<T> padding = broadcast(kLowest<T>);
    const T* from = row + part.begin;
    Vec<T> spoiled{};
    if (stride == 1) {
        fill(phases, part.left, padding);
        T* to = phases + part.left;
        for (i64 i = 0; i < part.count; i += L) {
            const Vec<T> v = load_before(from + i, min_of(part.count - i, i64(L)), x_end);
            store(to + i, v);
            spoiled += v * T(0);
        }
        fill(to + part.count, needed - part.left - part.count, padding);
    } else if (stride == 2) {
        const i64 even_at = part.left / 2, odd_at = (part.left + 1) / 2;
        T* even = phases + part.left % 2 * pitch;
        T* odd = phases + (part.left + 1) % 2 * pitch;
        fill(even, even_at, padding);
        fill(odd, odd_at, padding);
        for (i64 i = 0; i < part.count; i += 2 * L) {
            const i64 n = part.count - i, behind = min_of(max_of(n - L, i64(0)), i64(L));
            const Vec<T> a = load_before(from + i, min_of(n, i64(L)), x_end);
            const Vec<T> b = load_before(from + i + L, behind, x_end);
            store(even + even_at + i / 2, even_lanes<T>(a, b));
            store(odd + odd_at + i / 2, odd_lanes<T>(a, b));
            spoiled += a * T(0) + b * T(0);
        }
        const i64 evens = even_at + (part.count + 1) / 2, odds = odd_at + part.count / 2;
        fill(even + evens, needed - evens, padding);
        fill(odd + odds, needed - odds, padding);
    } else {
        T product = 0;
        for (i64 r = 0; r < stride; ++r) {
            T* phase = phases + r * pitch;
            i64 q = r < part.left ? ceil_div(part.left - r, stride) : 0;
            fill(phase, q, padding);
            for (i64 c = q * stride + r - part.left; c < part.count; c += stride) {
                phase[q++] = from[c];
                product += from[c] * T(0);
            }
            fill(phase + q, needed - q, padding);
        }
        spoiled += product;
    }
    return any_lane<T>(spoiled != spoiled);
}

// Outputs [first, first + n) of a row. kCareful: there may be NaN.
template <class T, bool kCareful>
void search(const Copy<T>& copy, i64 first, i64 n, T* values, Int<T>* winners) {
    const Taps useful = copy.columns.taps;
    for (i64 i = 0; i < n; i += kLanes<T>) {
        Vec<T> lead = broadcast(kLowest<T>);
        // Where nothing is larger than -inf, the first real tap wins.
        Mask<T> winner = load(copy.first_tap + first + i);
        for (i64 t = useful.first; t < useful.last; ++t) {
            const Vec<T> v = load(copy.phases + copy.tap_offset[t - useful.first] + i);
            const Mask<T> beats = kCareful ? (v > lead) | (v != v) : v > lead;
            lead = kCareful ? select<T>(beats, v, lead) : greater_of<T>(v, lead);
            winner = beats ? Mask<T>{} + Int<T>(t) : winner;
        }
        store(values + i, lead);
        store(winners + i, winner);
    }
}

// ---- pass 2 ----------------------------------------

// An input row pooled along its width; `row` is its number among all (planes * D * H), -1 for none.
template <class T>
struct Slot {
    i64 row;
    T* values;
    Int<T>* winners;
    bool nan;  // there may be some
};

// A row of a window, and the number of its first tap.
template <class T>
struct WindowRow {
    const T* values;
    const Int<T>* winners;
    i64 tap;
    bool nan;
};

// Where the results of outputs [0, n) go, from element `at` on; whole vectors may be written before
// `end`.
template <class T>
struct Target {
    T* y;
    void* argmax;
    int bytes;
    i64 at, end, n;
};

// N rows, or `count` if N is 0. kCareful: there may be NaN.
template <class T, int N, bool kCareful>
void merge_rows(const WindowRow<T>* window, i64 count, const Target<T>& target) {
    // Copies: as far as the compiler knows, the stores below might change the originals.
    const Target<T> to = target;
    WindowRow<T> copies[N ? N : 1];
    for (int r = 0; r < N; ++r) copies[r] = window[r];
    const WindowRow<T>* rows = N ? copies : window;
    for (i64 o = 0; o < to.n; o += kLanes<T>) {
        Vec<T> lead = load(rows[0].values + o);
        Mask<T> winner = load(rows[0].winners + o) + Int<T>(rows[0].tap);
#pragma GCC unroll 3
        for (i64 r = 1; r < (N ? N : count); ++r) {
            const Vec<T> v = load(rows[r].values + o);
            const Mask<T> tap = load(rows[r].winners + o) + Int<T>(rows[r].tap);
            const Mask<T> beats = kCareful ? (v > lead) | (v != v) : v > lead;
            lead = kCareful ? select<T>(beats, v, lead) : greater_of<T>(v, lead);
            winner = beats ? tap : winner;
        }
        store_before(to.y + to.at + o, lead, to.n - o, to.y + to.end);
        store_taps<T>(to.argmax, to.at + o, winner, to.n - o, to.end, to.bytes);
    }
}

template <class T>
void merge_rows(const WindowRow<T>* rows, i64 count, const Target<T>& to) {
    bool nan = false;
    for (i64 r = 0; r < count; ++r) nan |= rows[r].nan;
    if (nan) return merge_rows<T, 0, true>(rows, count, to);
    if (count == 1) return merge_rows<T, 1, false>(rows, 1, to);
    if (count == 3) return merge_rows<T, 3, false>(rows, 3, to);
    merge_rows<T, 0, false>(rows, count, to);
}

// ---- all rows ----------------------------------------

// The input, and one thread's memory. The slot of input row (d, h) is
// d mod slots_d * slots_h + h mod slots_h: no two rows of a window share one.
template <class T>
struct Rows {
    Axis depth, height;
    i64 slots_d, slots_h;
    const T *x, *x_end;
    Copy<T> copy;
    Slot<T>* slots;
    WindowRow<T>* window;
};

// Pass 1 for those rows of output row `at` that are not in their slots yet, outputs
// [first, first + n); returns how many rows the window has.
template <class T>
i64 gather_rows(const Rows<T>& rows, const RowCounter& at, const Segment& part, i64 first, i64 n) {
    const Axis &depth = rows.depth, &height = rows.height, &width = rows.copy.columns.axis;
    const Taps td = real_taps(depth, at.d), th = real_taps(height, at.h);
    i64 count = 0;
    for (i64 i = td.first; i < td.last; ++i) {
        const i64 d = at.d * depth.stride - depth.pad + i * depth.dilation;
        Slot<T>* slots = rows.slots + (d & (rows.slots_d - 1)) * rows.slots_h;
        for (i64 j = th.first; j < th.last; ++j) {
            const i64 h = at.h * height.stride - height.pad + j * height.dilation;
            const i64 row = (at.plane * depth.in + d) * height.in + h;
            Slot<T>& slot = slots[h & (rows.slots_h - 1)];
            if (slot.row != row) {
                slot.row = row;
                slot.nan =
                    split_row(rows.x + row * width.in, part, width.stride, rows.copy.pitch,
                              phase_size(rows.copy.columns, n), rows.x_end, rows.copy.phases);
                const auto run = slot.nan ? search<T, true> : search<T, false>;
                run(rows.copy, first, n, slot.values, slot.winners);
            }
            const i64 tap = (i * height.kernel + j) * width.kernel;
            rows.window[count++] = {slot.values, slot.winners, tap, slot.nan};
        }
    }
    return count;
}

// Output rows [begin, end) of all (planes * OD * OH).
template <class T>
void pool_rows(const Rows<T>& rows, const PoolParams& p, T* y, void* argmax, int bytes, i64 begin,
               i64 end) {
    const Columns& columns = rows.copy.columns;
    const i64 out_width = columns.axis.out;
    for (i64 first = 0; first < out_width; first += columns.tile) {
        const i64 n = min_of(columns.tile, out_width - first);
        const Segment part =
            segment_of(columns.first_column(first), columns.span(n), columns.axis.in);
        for (i64 i = 0; i < rows.slots_d * rows.slots_h; ++i) rows.slots[i].row = -1;
        for (RowCounter at(p.out_size, begin); at.row < end; at.next()) {
            const i64 count = gather_rows(rows, at, part, first, n);
            const i64 to = at.row * out_width + first;
            const i64 limit = columns.one_tile() ? end * out_width : to + n;
            merge_rows(rows.window, count, Target<T>{y, argmax, bytes, to, limit, n});
        }
    }
}

// Slots that keep the rows of a window apart along an axis: a power of two, to find them without a
// division.
FUSEDNN_INLINE i64 slots_along(const Axis& a) {
    const Taps taps = useful_taps(a);
    const i64 reach = min_of(a.in, (taps.last - taps.first - 1) * a.dilation + 1);
    i64 slots = 1;
    while (slots < reach) slots *= 2;
    return slots;
}

}  // namespace

template <class T>
void max_pool_argmax(const PoolParams& p, const T* x, T* y, void* argmax, int argmax_bytes) {
    const Axis depth = axis_of(p, 0), height = axis_of(p, 1), width = axis_of(p, 2);
    const i64 slots_d = slots_along(depth), slots_h = slots_along(height);
    const i64 lines = slots_d * slots_h;
    const Columns columns =
        cut_columns(width, kLineBytes / i64(2 * sizeof(T)) / lines * width.stride);

    const i64 taps = columns.taps.last - columns.taps.first;
    const i64 pitch = round_up(phase_size(columns, columns.tile) + 3 * kLanes<T>, kLanes<T>);
    Workspace<i64> offsets(taps);
    for (i64 t = 0; t < taps; ++t) {
        const i64 column = t * width.dilation;
        offsets.get()[t] = column % width.stride * pitch + column / width.stride;
    }
    Workspace<Int<T>> first_tap(width.out + kLanes<T>);
    for (i64 o = 0; o < width.out; ++o) first_tap.get()[o] = Int<T>(real_taps(width, o).first);

    const i64 rows = p.planes * p.out_size[0] * p.out_size[1];
    const i64 elements = p.planes * (volume(p.in_size) + volume(p.out_size));
    const i64 each = rows_per_task(rows, elements), tasks = ceil_div(rows, each);
    const int threads = parallel_slots(tasks, elements * i64(sizeof(T)));
    const i64 size = round_up(columns.tile, kLanes<T>);
    Workspace<T> values(lines * size, threads), phases(width.stride * pitch, threads);
    Workspace<Int<T>> winners(lines * size, threads);
    Workspace<Slot<T>> slots(lines, threads);
    Workspace<WindowRow<T>> window(lines, threads);
    parallel(tasks, threads, [&](i64 task, int thread) {
        for (i64 i = 0; i < lines; ++i) {
            slots.slot(thread)[i] = {-1, values.slot(thread) + i * size,
                                     winners.slot(thread) + i * size, false};
        }
        const Copy<T> copy{columns, phases.slot(thread), pitch, offsets.get(), first_tap.get()};
        const Rows<T> state{depth,
                            height,
                            slots_d,
                            slots_h,
                            x,
                            x + p.planes * volume(p.in_size),
                            copy,
                            slots.slot(thread),
                            window.slot(thread)};
        pool_rows(state, p, y, argmax, argmax_bytes, task * each, min_of(task * each + each, rows));
    });
}

#define FUSEDNN_POOL_ARGMAX(T) \
    template void max_pool_argmax<T>(const PoolParams&, const T*, T*, void*, int);
FUSEDNN_INSTANTIATE(FUSEDNN_POOL_ARGMAX)

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
