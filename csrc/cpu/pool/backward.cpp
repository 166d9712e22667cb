// The gradient of max pooling: each input collects the gradients of the windows it won.
// dx (planes, D, H, W); dy, argmax (planes, OD, OH, OW).
//
// The forward's two passes mirrored, for width strides 1 and 2 and small windows:
//   1. Every output row is copied once into a line of gradients and one of tap numbers, with "no
//      tap" on both sides. Lines are kept until their slot is needed by another row.
//   2. Each row of dx is written once. Its columns c = j * S + r of one phase r are reached by the
//      taps t with t * dilation - pad = r (mod S), from output j + shift(t): for neighbouring j
//      these are neighbours. A tap's gradient counts where the tap number is its own.
#include "cpu/kernels.h"
#include "cpu/parallel.h"
#include "cpu/pool/lanes.h"
#include "cpu/pool/pool.h"
#include "cpu/pool/window.h"

namespace fusednn {
namespace FUSEDNN_ISA {

namespace {

// Two pairs of lines of 4 KB fit into a 32 KB L1 beside what streams through.
template <class T>
constexpr i64 kLineBudget = 4096 / sizeof(T);

// The output row (of all planes) in a slot; -1 is none.
using Slot = i64;

// An output row as an input row sees it, and the number of its first useful tap.
template <class T>
struct WindowRow {
    const T* dy;
    const Int<T>* taps;
    i64 tap;
};

// A useful tap t: the phase it reaches, and the place in a line from which it does.
struct Reach {
    i64 phase, at;
};

struct Lines {
    Axis width;
    Taps taps;           // useful ones
    const Reach* reach;  // of each
    i64 first_shift;     // line[i] is output (first j of the tile) + first_shift + i
    i64 halo;            // entries of a line beyond the tile's
    i64 tile;            // columns of each phase per tile
    i64 pitch;           // entries between lines
    i64 slots_d, slots_h;

    FUSEDNN_INLINE i64 slots() const { return slots_d * slots_h; }
    FUSEDNN_INLINE i64 phase_columns() const { return ceil_div(width.in, width.stride); }
};

// Tap t reaches column j * stride + phase from output j + shift.
struct Shift {
    i64 phase, shift;
};
constexpr FUSEDNN_INLINE Shift shift_of(i64 t, i64 stride, i64 dilation, i64 pad) {
    const i64 column = t * dilation - pad;
    const i64 phase = (column % stride + stride) % stride;
    return {phase, (phase - column) / stride};
}

// ---- pass 1
// --------------------------------------------------------------------------------------

// Outputs [first, first + n) of one row of width.out; `end` is the end of all of dy.
template <class T>
void copy_row(const T* dy, const void* argmax, int bytes, i64 row, i64 out, i64 first, i64 n,
              i64 end, T* to, Int<T>* taps) {
    constexpr int L = kLanes<T>;
    const Segment part = segment_of(first, n, out);
    const Mask<T> none = Mask<T>{} - 1;
    fill(taps, part.left, none);
    for (i64 i = 0; i < part.count; i += L) {
        const i64 at = row * out + part.begin + i, lanes = min_of(part.count - i, i64(L));
        store(to + part.left + i, load_before(dy + at, lanes, dy + end));
        const Mask<T> v = load_taps<T>(argmax, at, lanes, end, bytes);
        store(taps + part.left + i, lane_numbers<T>() < Mask<T>{} + Int<T>(lanes) ? v : none);
    }
    fill(taps + part.left + part.count, n - part.left - part.count, none);
}

// ---- pass 2
// --------------------------------------------------------------------------------------

// Vector j of every phase of one row: sum[r]. Outputs count in row-major order, so taps run
// backwards.
template <class T, int S>
FUSEDNN_INLINE void collect(const Lines& lines, const WindowRow<T>* rows, i64 count, i64 j,
                            Vec<T> (&sum)[S]) {
    for (i64 r = 0; r < count; ++r) {
        for (i64 t = lines.taps.last - lines.taps.first - 1; t >= 0; --t) {
            const Reach reach = lines.reach[t];
            const Mask<T> taps = load(rows[r].taps + j + reach.at);
            const Vec<T> v = select<T>(taps == Int<T>(rows[r].tap + t),
                                       load(rows[r].dy + j + reach.at), Vec<T>{});
            if (S == 1 || reach.phase == 0) {
                sum[0] += v;
            } else {
                sum[S - 1] += v;
            }
        }
    }
}

// The same with K taps, dilation 1 and padding P known, all of the taps useful.
template <class T, int K, int S, int P>
FUSEDNN_INLINE void collect_known(const WindowRow<T>* rows, i64 count, i64 j, Vec<T> (&sum)[S]) {
    constexpr i64 first = shift_of(K - 1, S, 1, P).shift;
    for (i64 r = 0; r < count; ++r) {
        Mask<T> tap = Mask<T>{} + Int<T>(rows[r].tap + K - 1);
#pragma GCC unroll 4
        for (int t = K - 1; t >= 0; --t) {
            const Shift s = shift_of(t, S, 1, P);
            const Mask<T> taps = load(rows[r].taps + j + s.shift - first);
            sum[s.phase] +=
                select<T>(taps == tap, load(rows[r].dy + j + s.shift - first), Vec<T>{});
            tap -= 1;
        }
    }
}

// Columns [0, n) of a row of dx, those of a tile.
template <class T, int K, int S, int P>
void write_row(const Lines& lines, const WindowRow<T>* rows, i64 count, T* dx, i64 n,
               const T* end) {
    constexpr int L = kLanes<T>;
    for (i64 j = 0; j * S < n; j += L) {
        Vec<T> sum[S] = {};
        if constexpr (K == 0) {
            collect<T, S>(lines, rows, count, j, sum);
        } else {
            collect_known<T, K, S, P>(rows, count, j, sum);
        }
        T* to = dx + j * S;
        const i64 left = n - j * S;
        if constexpr (S == 1) {
            store_before(to, sum[0], left, end);
        } else {
            store_before(to, interleave_low<T>(sum[0], sum[1]), left, end);
            if (left > L) {
                store_before(to + L, interleave_high<T>(sum[0], sum[1]), left - L, end);
            }
        }
    }
}

template <class T>
using WriteRow = void (*)(const Lines&, const WindowRow<T>*, i64, T*, i64, const T*);

template <class T>
WriteRow<T> choose_write(const Lines& lines) {
    const Axis& w = lines.width;
    const bool known =
        w.kernel == 3 && w.dilation == 1 && lines.taps.first == 0 && lines.taps.last == 3;
    if (known && w.stride == 2 && w.pad == 1) return write_row<T, 3, 2, 1>;
    if (known && w.stride == 2 && w.pad == 0) return write_row<T, 3, 2, 0>;
    if (known && w.stride == 1 && w.pad == 1) return write_row<T, 3, 1, 1>;
    return w.stride == 1 ? write_row<T, 0, 1, 0> : write_row<T, 0, 2, 0>;
}

// ---- all rows
// ------------------------------------------------------------------------------------

// One thread's memory.
template <class T>
struct Scratch {
    T* dy;
    Int<T>* taps;
    Slot* slots;
    WindowRow<T>* rows;
};

template <class T>
struct Source {
    const T* dy;
    const void* argmax;
    int bytes;
};

// The output rows that reach input row (plane, d, h), in order; copied where they are not yet.
// first_j: the tile's first column of each phase, n how many it has.
template <class T>
i64 gather_rows(const PoolParams& p, const Lines& lines, i64 plane, i64 d, i64 h, i64 first_j,
                i64 n, const Source<T>& source, const Scratch<T>& scratch) {
    const Axis depth = axis_of(p, 0), height = axis_of(p, 1);
    const Taps td = useful_taps(depth), th = useful_taps(height);
    const i64 end = p.planes * volume(p.out_size);
    i64 count = 0;
    for (i64 i = td.last - 1; i >= td.first; --i) {
        const i64 out_d = output_of(depth, d, i);
        if (out_d < 0) continue;
        for (i64 j = th.last - 1; j >= th.first; --j) {
            const i64 out_h = output_of(height, h, j);
            if (out_h < 0) continue;
            const i64 row = (plane * depth.out + out_d) * height.out + out_h;
            const i64 index = out_d % lines.slots_d * lines.slots_h + out_h % lines.slots_h;
            T* dy = scratch.dy + index * lines.pitch;
            Int<T>* taps = scratch.taps + index * lines.pitch;
            if (scratch.slots[index] != row) {
                copy_row(source.dy, source.argmax, source.bytes, row, lines.width.out,
                         first_j + lines.first_shift, n + lines.halo, end, dy, taps);
                scratch.slots[index] = row;
            }
            const i64 tap = (i * height.kernel + j) * p.kernel[2] + lines.taps.first;
            scratch.rows[count++] = {dy, taps, tap};
        }
    }
    return count;
}

// Input rows [begin, end) of all (planes * D * H).
template <class T>
void collect_rows(const PoolParams& p, const Lines& lines, const Source<T>& source, T* dx,
                  const Scratch<T>& scratch, i64 begin, i64 end) {
    const i64 width = p.in_size[2], stride = p.stride[2], all = lines.phase_columns();
    const auto write = choose_write<T>(lines);
    for (i64 first_j = 0; first_j < all; first_j += lines.tile) {
        const i64 columns = min_of(lines.tile * stride, width - first_j * stride);
        for (i64 i = 0; i < lines.slots(); ++i) scratch.slots[i] = -1;
        for (i64 row = begin; row < end; ++row) {
            const i64 h = row % p.in_size[1], slice = row / p.in_size[1];
            const i64 d = slice % p.in_size[0], plane = slice / p.in_size[0];
            const i64 count = gather_rows(p, lines, plane, d, h, first_j,
                                          min_of(lines.tile, all - first_j), source, scratch);
            T* to = dx + row * width + first_j * stride;
            write(lines, scratch.rows, count, to, columns,
                  lines.tile >= all ? dx + end * width : to + columns);
        }
    }
}

// Slots that keep the output rows apart that reach one input row.
FUSEDNN_INLINE i64 slots_along(const Axis& a) {
    const Taps taps = useful_taps(a);
    return min_of(a.out, (taps.last - taps.first - 1) * a.dilation / a.stride + 1);
}

template <class T>
void max_pool_collect(const PoolParams& p, const Source<T>& source, T* dx) {
    const Axis width = axis_of(p, 2);
    const Taps taps = useful_taps(width);
    const i64 useful = taps.last - taps.first;
    Workspace<Reach> reach(useful);
    Lines lines{width,
                taps,
                reach.get(),
                0,
                0,
                0,
                0,
                slots_along(axis_of(p, 0)),
                slots_along(axis_of(p, 1))};
    lines.first_shift = shift_of(taps.last - 1, width.stride, width.dilation, width.pad).shift;
    lines.halo =
        shift_of(taps.first, width.stride, width.dilation, width.pad).shift - lines.first_shift;
    for (i64 t = 0; t < useful; ++t) {
        const Shift s = shift_of(taps.first + t, width.stride, width.dilation, width.pad);
        reach.get()[t] = {s.phase, s.shift - lines.first_shift};
    }
    const i64 all = lines.phase_columns();
    const bool fits = all + lines.halo <= kLineBudget<T>;
    lines.tile = fits ? all : min_of(all, max_of((kLineBudget<T> - lines.halo) / 64, i64(1)) * 64);
    lines.pitch = round_up(lines.tile + lines.halo + 2 * kLanes<T>, kLanes<T>);

    const i64 rows = p.planes * p.in_size[0] * p.in_size[1];
    const i64 elements = p.planes * (volume(p.in_size) + volume(p.out_size));
    const i64 each = rows_per_task(rows, elements), tasks = ceil_div(rows, each);
    const int slots = parallel_slots(tasks, elements * i64(sizeof(T)));
    Workspace<T> dy_memory(lines.slots() * lines.pitch, slots);
    Workspace<Int<T>> tap_memory(lines.slots() * lines.pitch, slots);
    Workspace<Slot> slot_memory(lines.slots(), slots);
    Workspace<WindowRow<T>> row_memory(lines.slots(), slots);
    parallel(tasks, slots, [&](i64 task, int slot) {
        const Scratch<T> scratch{dy_memory.slot(slot), tap_memory.slot(slot),
                                 slot_memory.slot(slot), row_memory.slot(slot)};
        collect_rows(p, lines, source, dx, scratch, task * each, min_of(task * each + each, rows));
    });
}

// Collecting costs about 3 / kLanes instructions per tap and output, scattering about 6 per output.
template <class T>
bool collecting_pays(const PoolParams& p) {
    i64 taps = 1;
    for (int i = 0; i < 3; ++i) {
        const Taps t = useful_taps(axis_of(p, i));
        taps *= min_of(t.last - t.first, i64(1000));
    }
    return p.stride[2] <= 2 && taps <= 2 * kLanes<T>;
}

}  // namespace

template <class T>
void max_pool_backward(const PoolParams& p, const T* dy, const void* argmax, int argmax_bytes,
                       T* dx) {
    if (p.planes == 0) return;
    if (is_pairs(p)) return max_pool_pairs_backward(p, dy, argmax, argmax_bytes, dx);
    if (argmax_bytes == 1 && is_triples(p)) {
        return max_pool_triples_backward(p, dy, static_cast<const std::uint8_t*>(argmax), dx);
    }
    if (!collecting_pays<T>(p)) return max_pool_scatter(p, dy, argmax, argmax_bytes, dx);
    max_pool_collect(p, Source<T>{dy, argmax, argmax_bytes}, dx);
}

#define FUSEDNN_POOL_BACKWARD(T) \
    template void max_pool_backward<T>(const PoolParams&, const T*, const void*, int, T*);
FUSEDNN_INSTANTIATE(FUSEDNN_POOL_BACKWARD)

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
