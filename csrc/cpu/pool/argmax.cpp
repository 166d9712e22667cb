// Max pooling with the winning taps, any window.
// x (planes, D, H, W); y, argmax (planes, OD, OH, OW): taps count through the window in row-major
// order. The first maximum wins; a NaN beats everything, and the last NaN wins.
//
//   1. Every input row is copied once, taken apart by stride: phase r of its line holds the columns
//      r, r + S, r + 2 S ... (padding is -inf), so that a tap reads neighbours for neighbouring
//      outputs. Lines are kept until their slot is needed by another row.
//   2. Each output row walks over its taps in row-major order, a vector of outputs at a time.
#include "cpu/kernels.h"
#include "cpu/parallel.h"
#include "cpu/pool/lanes.h"
#include "cpu/pool/pool.h"
#include "cpu/pool/window.h"

namespace fusednn {
namespace FUSEDNN_ISA {

namespace {

// Three lines of 4 KB, one of indices and the results in flight fit into a 32 KB L1.
template <class T>
constexpr i64 kLineBudget = 4096 / sizeof(T);

// What one slot holds; `spoiled` if a NaN (or an infinity) may be in it.
struct Slot {
    i64 row;
    bool spoiled;
};

// An input row as a window sees it: its line, and the number of the line's first useful tap.
template <class T>
struct WindowRow {
    const T* line;
    i64 tap;
    bool spoiled;
};

// How rows become lines, and which slot is whose. Rows within reach of a window never share a slot.
struct Lines {
    Columns columns;
    i64 stride, pitch;      // phases, and how far apart they are
    i64 slots_d, slots_h;   // slot of input row (d, h) is (d % slots_d) * slots_h + h % slots_h
    i64 taps;               // useful ones
    const i64* tap_offset;  // where in a line each useful tap begins

    FUSEDNN_INLINE i64 line_size() const { return stride * pitch; }
    FUSEDNN_INLINE i64 slots() const { return slots_d * slots_h; }
    // Entries of each phase that `outputs` windows read.
    FUSEDNN_INLINE i64 phase_size(i64 outputs) const {
        return outputs + (taps - 1) * columns.axis.dilation / stride;
    }
};

// ---- pass 1
// --------------------------------------------------------------------------------------

// line = the part of a row, taken apart. Each phase is filled up to `needed` entries. Says whether
// a product with 0 shows a NaN or an infinity.
template <class T>
bool split_row(const T* row, const Segment& part, i64 stride, i64 pitch, i64 needed, const T* x_end,
               T* line) {
    constexpr int L = kLanes<T>;
    const Vec<T> padding = broadcast(kLowest<T>);
    const T* from = row + part.begin;
    Vec<T> spoiled{};
    if (stride == 1) {
        fill(line, part.left, padding);
        T* to = line + part.left;
        for (i64 i = 0; i < part.count; i += L) {
            const Vec<T> v = load_before(from + i, min_of(part.count - i, i64(L)), x_end);
            store(to + i, v);
            spoiled += v * T(0);
        }
        fill(to + part.count, needed - part.left - part.count, padding);
    } else if (stride == 2) {
        const i64 even_at = part.left / 2, odd_at = (part.left + 1) / 2;
        T* even = line + part.left % 2 * pitch;
        T* odd = line + (part.left + 1) % 2 * pitch;
        fill(even, even_at, padding);
        fill(odd, odd_at, padding);
        for (i64 i = 0; i < part.count; i += 2 * L) {
            const i64 n = part.count - i;
            const Vec<T> a = load_before(from + i, min_of(n, i64(L)), x_end);
            const Vec<T> b =
                load_before(from + i + L, min_of(max_of(n - L, i64(0)), i64(L)), x_end);
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
            T* phase = line + r * pitch;
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

// ---- pass 2
// --------------------------------------------------------------------------------------

// Where the row's results go; whole vectors may be written up to `end`.
template <class T>
struct Target {
    T* y;
    void* argmax;
    int bytes;
    i64 at, end;
};

// K taps per row, or lines.taps if K is 0. kCareful: there may be NaN.
// first_tap[o]: the first real tap of output o's columns; it wins where all is -inf.
template <class T, int K, bool kCareful>
void search(const Lines& lines, const WindowRow<T>* rows, i64 count, const Int<T>* first_tap,
            i64 first_row_tap, i64 n, const Target<T>& target) {
    constexpr int L = kLanes<T>;
    const i64 taps = K ? K : lines.taps;
    i64 fixed[K ? K : 1];
    const i64* offset = lines.tap_offset;
    if constexpr (K != 0) {
        for (int k = 0; k < K; ++k) fixed[k] = offset[k];
        offset = fixed;
    }
    for (i64 o = 0; o < n; o += L) {
        Vec<T> lead = broadcast(kLowest<T>);
        Mask<T> winner = load(first_tap + o) + Int<T>(first_row_tap);
        for (i64 r = 0; r < count; ++r) {
            const T* line = rows[r].line + o;
            Mask<T> tap = Mask<T>{} + Int<T>(rows[r].tap);
#pragma GCC unroll 4
            for (i64 k = 0; k < taps; ++k) {
                const Vec<T> v = load(line + offset[k]);
                const Mask<T> beats = kCareful ? (v > lead) | (v != v) : v > lead;
                lead = select<T>(beats, v, lead);
                winner = beats ? tap : winner;
                tap += 1;
            }
        }
        const i64 at = target.at + o;
        store_before(target.y + at, lead, n - o, target.y + target.end);
        store_taps<T>(target.argmax, at, winner, n - o, target.end, target.bytes);
    }
}

template <class T, bool kCareful>
void search(const Lines& lines, const WindowRow<T>* rows, i64 count, const Int<T>* first_tap,
            i64 first_row_tap, i64 n, const Target<T>& target) {
    auto run = search<T, 0, kCareful>;
    if (lines.taps == 2) run = search<T, 2, kCareful>;
    if (lines.taps == 3) run = search<T, 3, kCareful>;
    run(lines, rows, count, first_tap, first_row_tap, n, target);
}

// ---- all rows
// ------------------------------------------------------------------------------------

// One thread's memory.
template <class T>
struct Scratch {
    T* lines;
    Slot* slots;
    WindowRow<T>* rows;
};

// The input rows of output row (plane, out_d, out_h), split where they are not yet.
template <class T>
i64 gather_rows(const PoolParams& p, const Lines& lines, const Segment& part, i64 needed, i64 plane,
                i64 out_d, i64 out_h, const T* x, const Scratch<T>& scratch) {
    const Axis depth = axis_of(p, 0), height = axis_of(p, 1);
    const Taps td = real_taps(depth, out_d), th = real_taps(height, out_h);
    const T* x_end = x + p.planes * volume(p.in_size);
    i64 count = 0;
    for (i64 i = td.first; i < td.last; ++i) {
        const i64 d = out_d * depth.stride - depth.pad + i * depth.dilation;
        for (i64 j = th.first; j < th.last; ++j) {
            const i64 h = out_h * height.stride - height.pad + j * height.dilation;
            const i64 row = (plane * depth.in + d) * height.in + h;
            const i64 index = d % lines.slots_d * lines.slots_h + h % lines.slots_h;
            Slot& slot = scratch.slots[index];
            T* line = scratch.lines + index * lines.line_size();
            if (slot.row != row) {
                slot.spoiled = split_row(x + row * p.in_size[2], part, lines.stride, lines.pitch,
                                         needed, x_end, line);
                slot.row = row;
            }
            const i64 tap = (i * height.kernel + j) * p.kernel[2] + lines.columns.taps.first;
            scratch.rows[count++] = {line, tap, slot.spoiled};
        }
    }
    return count;
}

// Output rows [begin, end) of all (planes * OD * OH).
template <class T>
void pool_rows(const PoolParams& p, const Lines& lines, const T* x, T* y, void* argmax, int bytes,
               const Int<T>* first_tap, const Scratch<T>& scratch, i64 begin, i64 end) {
    const Axis depth = axis_of(p, 0), height = axis_of(p, 1);
    const Columns& columns = lines.columns;
    const i64 out_width = p.out_size[2];
    for (i64 first = 0; first < out_width; first += columns.tile) {
        const i64 n = min_of(columns.tile, out_width - first);
        const Segment part = segment_of(columns.first_column(first), columns.span(n), p.in_size[2]);
        for (i64 i = 0; i < lines.slots(); ++i) scratch.slots[i].row = -1;
        for (i64 row = begin; row < end; ++row) {
            const i64 out_h = row % height.out, slice = row / height.out;
            const i64 out_d = slice % depth.out, plane = slice / depth.out;
            const i64 count =
                gather_rows(p, lines, part, lines.phase_size(n), plane, out_d, out_h, x, scratch);
            bool spoiled = false;
            for (i64 r = 0; r < count; ++r) spoiled |= scratch.rows[r].spoiled;

            const i64 at = row * out_width + first;
            const Target<T> target{y, argmax, bytes, at,
                                   columns.one_tile() ? end * out_width : at + n};
            const i64 first_row_tap = scratch.rows[0].tap - columns.taps.first;
            auto run = spoiled ? search<T, true> : search<T, false>;
            run(lines, scratch.rows, count, first_tap + first, first_row_tap, n, target);
        }
    }
}

// Slots that keep the rows under one window apart along an axis.
FUSEDNN_INLINE i64 slots_along(const Axis& a) {
    const Taps taps = useful_taps(a);
    return min_of(a.in, (taps.last - taps.first - 1) * a.dilation + 1);
}

}  // namespace

template <class T>
void max_pool_argmax(const PoolParams& p, const T* x, T* y, void* argmax, int argmax_bytes) {
    const Axis depth = axis_of(p, 0), height = axis_of(p, 1), width = axis_of(p, 2);
    const Columns columns = cut_columns(width, kLineBudget<T>);
    const i64 taps = columns.taps.last - columns.taps.first;
    Lines lines{columns, width.stride, 0, slots_along(depth), slots_along(height), taps, nullptr};
    lines.pitch = round_up(lines.phase_size(columns.tile) + 3 * kLanes<T>, kLanes<T>);
    Workspace<i64> offsets(taps);
    for (i64 k = 0; k < taps; ++k) {
        const i64 column = k * width.dilation;
        offsets.get()[k] = column % width.stride * lines.pitch + column / width.stride;
    }
    lines.tap_offset = offsets.get();
    Workspace<Int<T>> first_tap(width.out + kLanes<T>);
    for (i64 o = 0; o < width.out; ++o) first_tap.get()[o] = Int<T>(real_taps(width, o).first);

    const i64 rows = p.planes * p.out_size[0] * p.out_size[1];
    const i64 elements = p.planes * (volume(p.in_size) + volume(p.out_size));
    const i64 each = rows_per_task(rows, elements), tasks = ceil_div(rows, each);
    const int slots = parallel_slots(tasks, elements * i64(sizeof(T)));
    Workspace<T> memory(lines.slots() * lines.line_size(), slots);
    Workspace<Slot> slot_memory(lines.slots(), slots);
    Workspace<WindowRow<T>> row_memory(lines.slots(), slots);
    parallel(tasks, slots, [&](i64 task, int slot) {
        const Scratch<T> scratch{memory.slot(slot), slot_memory.slot(slot), row_memory.slot(slot)};
        pool_rows(p, lines, x, y, argmax, argmax_bytes, first_tap.get(), scratch, task * each,
                  min_of(task * each + each, rows));
    });
}

#define FUSEDNN_POOL_ARGMAX(T) \
    template void max_pool_argmax<T>(const PoolParams&, const T*, T*, void*, int);
FUSEDNN_INSTANTIATE(FUSEDNN_POOL_ARGMAX)

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
