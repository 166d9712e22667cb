// The gradient of max pooling: each output's goes to the input that won. Windows two or three wide
// have their own paths; this one takes the rest, one output at a time (about 6 cycles; gathering
// what reaches an input in vectors costs as much from about 16 taps on, and no more is won by it).
// dx (planes, D, H, W); dy, argmax (planes, OD, OH, OW).
//
//   1. a task's rows of dx are cleared
//   2. every output whose winner lies in them adds its gradient there, outputs in row-major order
#include "cpu/kernels.h"
#include "cpu/parallel.h"
#include "cpu/pool/lanes.h"
#include "cpu/pool/pool.h"
#include "cpu/pool/window.h"

namespace fusednn {
namespace FUSEDNN_ISA {

namespace {

// Where an element lies in dx. Unsigned, because taps that are never real may lie beyond 64 bits;
// those that win come out right.
using Offset = std::uint64_t;

// Windows up to this many taps (uint16 tap numbers) look their offsets up instead of dividing.
constexpr i64 kTable = 65536;

struct Offsets {
    i64 kernel_h, kernel_w, taps;
    Offset d, h, w;       // from tap to tap
    const Offset* table;  // null where there are too many taps

    FUSEDNN_INLINE Offset compute(i64 tap) const {
        const i64 row = tap / kernel_w;
        return Offset(row / kernel_h) * d + Offset(row % kernel_h) * h + Offset(tap % kernel_w) * w;
    }
};

// Outputs whose windows reach over any of the inputs [first, last].
FUSEDNN_INLINE Taps outputs_over(const Axis& a, i64 first, i64 last) {
    const i64 before = first + a.pad - (a.kernel - 1) * a.dilation;
    return {before > 0 ? ceil_div(before, a.stride) : 0,
            min_of((last + a.pad) / a.stride + 1, a.out)};
}

// Adds what one output row sends to dx[begin, end); its first window starts at element `start`.
template <class T>
void scatter_row(const Offsets& offsets, const T* dy, const void* argmax, int bytes, i64 n,
                 Offset start, Offset stride, T* dx, Offset begin, Offset end) {
    for (i64 o = 0; o < n; ++o, start += stride) {
        const i64 tap = tap_at(argmax, o, bytes);
        if (Offset(tap) >= Offset(offsets.taps)) continue;  // not a tap: never write elsewhere
        const Offset to = start + (offsets.table ? offsets.table[tap] : offsets.compute(tap));
        if (to - begin < end - begin) dx[to] += dy[o];
    }
}

// Input rows [begin, end) of all (planes * D * H).
template <class T>
void scatter_rows(const PoolParams& p, const Offsets& offsets, const T* dy, const void* argmax,
                  int bytes, T* dx, i64 begin, i64 end) {
    const Axis depth = axis_of(p, 0), height = axis_of(p, 1), width = axis_of(p, 2);
    __builtin_memset(dx + begin * width.in, 0, std::size_t((end - begin) * width.in) * sizeof(T));
    const i64 rows = depth.in * height.in;
    for (i64 plane = begin / rows; plane <= (end - 1) / rows; ++plane) {
        const i64 first = max_of(begin - plane * rows, i64(0));
        const i64 last = min_of(end - plane * rows, rows) - 1;
        const i64 first_d = first / height.in, last_d = last / height.in;
        const Taps over_d = outputs_over(depth, first_d, last_d);
        const Taps over_h = first_d == last_d
                                ? outputs_over(height, first % height.in, last % height.in)
                                : Taps{0, height.out};
        for (i64 d = over_d.first; d < over_d.last; ++d) {
            for (i64 h = over_h.first; h < over_h.last; ++h) {
                const i64 at = ((plane * depth.out + d) * height.out + h) * width.out;
                const i64 start_d = plane * depth.in + d * depth.stride - depth.pad;
                const i64 start_h = h * height.stride - height.pad;
                const Offset start =
                    (Offset(start_d) * Offset(height.in) + Offset(start_h)) * Offset(width.in) -
                    Offset(width.pad);
                const void* taps = static_cast<const std::uint8_t*>(argmax) + at * bytes;
                scatter_row(offsets, dy + at, taps, bytes, width.out, start, Offset(width.stride),
                            dx, Offset(begin * width.in), Offset(end * width.in));
            }
        }
    }
}

template <class T>
void scatter(const PoolParams& p, const T* dy, const void* argmax, int argmax_bytes, T* dx) {
    const Offset row = Offset(p.in_size[2]), slice = Offset(p.in_size[1]) * row;
    Offsets offsets{p.kernel[1],
                    p.kernel[2],
                    volume(p.kernel),
                    Offset(p.dilation[0]) * slice,
                    Offset(p.dilation[1]) * row,
                    Offset(p.dilation[2]),
                    nullptr};
    const bool small = offsets.taps <= kTable;
    Workspace<Offset> table(small ? offsets.taps : 0);
    if (small) {
        for (i64 t = 0; t < offsets.taps; ++t) table.get()[t] = offsets.compute(t);
        offsets.table = table.get();
    }
    const i64 rows = p.planes * p.in_size[0] * p.in_size[1];
    const i64 elements = p.planes * (volume(p.in_size) + volume(p.out_size));
    const i64 each = rows_per_task(rows, elements), tasks = ceil_div(rows, each);
    const int slots = parallel_slots(tasks, elements * i64(sizeof(T)));
    parallel(tasks, slots, [&](i64 task, int) {
        scatter_rows(p, offsets, dy, argmax, argmax_bytes, dx, task * each,
                     min_of(task * each + each, rows));
    });
}

}  // namespace

template <class T>
void max_pool_backward(const PoolParams& p, const T* dy, const void* argmax, int argmax_bytes,
                       T* dx) {
    if (p.planes == 0) return;
    if (is_pairs(p)) return max_pool_pairs_backward(p, dy, argmax, argmax_bytes, dx);
    if (argmax_bytes == 1 && is_narrow(p)) {
        return max_pool_narrow_backward(p, dy, static_cast<const std::uint8_t*>(argmax), dx);
    }
    scatter(p, dy, argmax, argmax_bytes, dx);
}

#define FUSEDNN_POOL_BACKWARD(T) \
    template void max_pool_backward<T>(const PoolParams&, const T*, const void*, int, T*);
FUSEDNN_INSTANTIATE(FUSEDNN_POOL_BACKWARD)

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
