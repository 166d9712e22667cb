// Max pooling with windows far apart: most of the input is never looked at, so there is nothing for
// vectors to share, and each window reads its own taps.
// x (planes, D, H, W); y, argmax (planes, OD, OH, OW).
#include "cpu/kernels.h"
#include "cpu/parallel.h"
#include "cpu/pool/lanes.h"
#include "cpu/pool/pool.h"
#include "cpu/pool/window.h"

namespace fusednn {
namespace FUSEDNN_ISA {

namespace {

template <class T>
struct Best {
    T value;
    i64 tap;
};

// The window at output (out_d, out_h, out_w) of the plane at x.
template <class T>
Best<T> best_of(const Axis& depth, const Axis& height, const Axis& width, const T* x, i64 out_d,
                i64 out_h, i64 out_w) {
    const Taps td = real_taps(depth, out_d), th = real_taps(height, out_h);
    const Taps tw = real_taps(width, out_w);
    const i64 d0 = out_d * depth.stride - depth.pad, h0 = out_h * height.stride - height.pad;
    const i64 w0 = out_w * width.stride - width.pad;
    Best<T> best{kLowest<T>, (td.first * height.kernel + th.first) * width.kernel + tw.first};
    for (i64 i = td.first; i < td.last; ++i) {
        for (i64 j = th.first; j < th.last; ++j) {
            const T* row =
                x + ((d0 + i * depth.dilation) * height.in + h0 + j * height.dilation) * width.in;
            for (i64 k = tw.first; k < tw.last; ++k) {
                const T v = row[w0 + k * width.dilation];
                if (v > best.value || v != v) {
                    best = {v, (i * height.kernel + j) * width.kernel + k};
                }
            }
        }
    }
    return best;
}

}  // namespace

template <class T>
void max_pool_sparse(const PoolParams& p, const T* x, T* y, void* argmax, int argmax_bytes) {
    const Axis depth = axis_of(p, 0), height = axis_of(p, 1), width = axis_of(p, 2);
    const i64 rows = p.planes * depth.out * height.out;
    const i64 taps = width.out * (useful_taps(width).last - useful_taps(width).first);
    const i64 each = rows_per_task(rows, rows * taps), tasks = ceil_div(rows, each);
    const int slots = parallel_slots(tasks, rows * taps * i64(sizeof(T)));
    parallel(tasks, slots, [&](i64 task, int) {
        for (i64 row = task * each; row < min_of(task * each + each, rows); ++row) {
            const i64 out_h = row % height.out, slice = row / height.out;
            const T* plane = x + slice / depth.out * volume(p.in_size);
            for (i64 o = 0; o < width.out; ++o) {
                const auto best = best_of(depth, height, width, plane, slice % depth.out, out_h, o);
                y[row * width.out + o] = best.value;
                if (argmax) set_tap(argmax, row * width.out + o, best.tap, argmax_bytes);
            }
        }
    });
}

#define FUSEDNN_POOL_SPARSE(T) \
    template void max_pool_sparse<T>(const PoolParams&, const T*, T*, void*, int);
FUSEDNN_INSTANTIATE(FUSEDNN_POOL_SPARSE)

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
