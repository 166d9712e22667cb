// Max pooling, values only, for windows two or three columns wide, stride 1 or 2, padding 0 or 1
// (any depth and height): like pool/narrow.cpp from memory to registers with no line between, but
// without winners to find, so rows come first and every column is looked at once. x (planes, D, H,
// W); y (planes, OD, OH, OW). For every vector of outputs:
//
//   1. the maximum of the window's rows, S vectors of columns, taken apart by stride
//   2. the maximum of the taps, which are these vectors shifted by less than a vector
#include "cpu/kernels.h"
#include "cpu/parallel.h"
#include "cpu/pool/lanes.h"
#include "cpu/pool/pool.h"
#include "cpu/pool/window.h"

namespace fusednn {
namespace FUSEDNN_ISA {

namespace {

// In all of the file: K columns of a window, S the stride and P the padding of the width.

// Windows with more rows take the path by lines.
constexpr int kMostRows = 128;

// Columns S * o + r, r < S, of S * kLanes neighbouring columns.
template <class T, int S>
struct Phases {
    Vec<T> phase[S];
};

// The rows of a window.
template <class T>
struct Window {
    const T* const* rows;
    i64 count, width;
};

// Only where there is a NaN, it is worth to take care of it at every step.
template <class T, bool kCareful>
FUSEDNN_INLINE Vec<T> larger(Vec<T> a, Vec<T> b) {
    return kCareful ? max_nan<T>(a, b) : greater_of<T>(a, b);
}

// Pass 1 for the vector of columns from c on; N rows, or w.count if N is 0.
template <class T, int N, bool kCareful, Edge kEdge>
FUSEDNN_INLINE Vec<T> merge_rows(const Window<T>& w, i64 c, NanWatch<T>& watch) {
    Vec<T> last = columns_at<T, kEdge>(w.rows[0] + c, w.width - c), v = last;
    if (!kCareful && (N == 0 || N % 2 != 0)) watch.see(last, last);
#pragma GCC unroll 3
    for (i64 r = 1; r < (N ? N : w.count); ++r) {
        const Vec<T> next = columns_at<T, kEdge>(w.rows[r] + c, w.width - c);
        // Two rows at a time, where it is known how they pair up.
        if (!kCareful && (N == 0 || r % 2 != N % 2)) watch.see(last, next);
        v = larger<T, kCareful>(v, next);
        last = next;
    }
    return v;
}

template <class T, int S, int N, bool kCareful, Edge kEdge>
FUSEDNN_INLINE Phases<T, S> phases_at(const Window<T>& w, i64 c, NanWatch<T>& watch) {
    const Vec<T> a = merge_rows<T, N, kCareful, kEdge>(w, c, watch);
    if constexpr (S == 1) {
        return {{a}};
    } else {
        const Vec<T> b = merge_rows<T, N, kCareful, kEdge>(w, c + kLanes<T>, watch);
        return {{even_lanes<T>(a, b), odd_lanes<T>(a, b)}};
    }
}

template <class V, int L, int By, int... I>
FUSEDNN_INLINE V shifted(V low, V high, detail::Seq<I...>) {
    return __builtin_shufflevector(low, high, (I + By)...);
}

// What tap t reads, from the phases of the vector before, this one and the next.
template <class T, int t, int S, int P>
FUSEDNN_INLINE Vec<T> tap_of(const Phases<T, S>& before, const Phases<T, S>& here,
                             const Phases<T, S>& next) {
    constexpr int L = kLanes<T>;
    constexpr auto order = typename detail::MakeSeq<L>::type{};
    constexpr int column = t - P, r = (column + S) % S, by = (column - r) / S;
    if constexpr (by < 0) return shifted<Vec<T>, L, L + by>(before.phase[r], here.phase[r], order);
    if constexpr (by == 0) return here.phase[r];
    if constexpr (by > 0) return shifted<Vec<T>, L, by>(here.phase[r], next.phase[r], order);
}

// Pass 2: outputs of `here`.
template <class T, int K, int S, int P, bool kCareful>
FUSEDNN_INLINE Vec<T> merge_taps(const Phases<T, S>& before, const Phases<T, S>& here,
                                 const Phases<T, S>& next) {
    const Vec<T> v = larger<T, kCareful>(tap_of<T, 0, S, P>(before, here, next),
                                         tap_of<T, 1, S, P>(before, here, next));
    if constexpr (K == 2) return v;
    return larger<T, kCareful>(v, tap_of<T, K - 1, S, P>(before, here, next));
}

// One output row, y[0, n), with whole vectors within the row and kEdge ones at its end.
// Returns whether it met a NaN, in which case only the careful one is right.
template <class T, int K, int S, int P, int N, bool kCareful, Edge kEdge>
bool pool_row(const Window<T>& window, i64 n, T* y, const T* y_end) {
    constexpr int L = kLanes<T>;
    // Copies: as far as the compiler knows, the stores below might change the originals.
    const T* rows[N ? N : 1];
    for (int r = 0; r < N; ++r) rows[r] = window.rows[r];
    const Window<T> w{N ? rows : window.rows, window.count, window.width};

    NanWatch<T> watch;
    Phases<T, S> before, here = phases_at<T, S, N, kCareful, kEdge>(w, 0, watch), next;
    for (auto& v : before.phase) v = broadcast(kLowest<T>);
    i64 o = 0;
    for (; o + L <= n && (o + 2 * L) * S <= w.width; o += L) {
        next = phases_at<T, S, N, kCareful, Edge::inside>(w, (o + L) * S, watch);
        store(y + o, merge_taps<T, K, S, P, kCareful>(before, here, next));
        before = here;
        here = next;
    }
    for (; o < n; o += L) {
        next = phases_at<T, S, N, kCareful, kEdge>(w, (o + L) * S, watch);
        store_before(y + o, merge_taps<T, K, S, P, kCareful>(before, here, next), n - o, y_end);
        before = here;
        here = next;
    }
    return watch.any();
}

// The same with as many rows as there are; x_end is the end of x.
template <class T, int K, int S, int P>
FUSEDNN_INLINE void pool_row(const Window<T>& w, const T* x_end, i64 n, T* y, const T* y_end) {
    // Two vectors of each phase may be read behind the last one that has an output.
    const bool last = x_end - w.rows[w.count - 1] < w.width + 3 * S * kLanes<T>;
    auto run = pool_row<T, K, S, P, 0, false, Edge::masked>;
    if (w.count == 1) run = pool_row<T, K, S, P, 1, false, Edge::masked>;
    if (w.count == 2) run = pool_row<T, K, S, P, 2, false, Edge::masked>;
    if (w.count == 3) run = pool_row<T, K, S, P, 3, false, Edge::masked>;
    if (last) run = pool_row<T, K, S, P, 0, false, Edge::last>;
    if (run(w, n, y, y_end)) pool_row<T, K, S, P, 0, true, Edge::last>(w, n, y, y_end);
}

// Output rows [begin, end) of all (planes * OD * OH).
template <class T, int K, int S, int P>
void pool_rows(const PoolParams& p, const T* x, T* y, i64 begin, i64 end) {
    const Axis depth = axis_of(p, 0), height = axis_of(p, 1);
    const i64 width = p.in_size[2], n = p.out_size[2], step = height.dilation * width;
    const T* const x_end = x + p.planes * volume(p.in_size);
    T* const y_end = y + end * n;
    const T* rows[kMostRows];
    for (i64 row = begin; row < end;) {
        const i64 slice = row / height.out, out_d = slice % depth.out;
        const Taps td = real_taps(depth, out_d);
        const i64 d = out_d * depth.stride - depth.pad;
        const T* plane = x + slice / depth.out * volume(p.in_size) + d * height.in * width;
        const i64 last = min_of(end, (slice + 1) * height.out);
        i64 start = (row - slice * height.out) * height.stride - height.pad;
        for (; row < last; ++row, start += height.stride) {
            const Taps th = taps_from(height, start);
            i64 count = 0;
            for (i64 i = td.first; i < td.last; ++i) {
                const T* at = plane + i * depth.dilation * height.in * width + start * width;
                for (i64 j = th.first; j < th.last; ++j) rows[count++] = at + j * step;
            }
            pool_row<T, K, S, P>(Window<T>{rows, count, width}, x_end, n, y + row * n, y_end);
        }
    }
}

template <class T, int K>
auto choose(const PoolParams& p) {
    if (p.stride[2] == 1) return p.pad[2] == 0 ? pool_rows<T, K, 1, 0> : pool_rows<T, K, 1, 1>;
    return p.pad[2] == 0 ? pool_rows<T, K, 2, 0> : pool_rows<T, K, 2, 1>;
}

}  // namespace

template <class T>
void max_pool_narrow_values(const PoolParams& p, const T* x, T* y) {
    const auto run = p.kernel[2] == 2 ? choose<T, 2>(p) : choose<T, 3>(p);
    const i64 rows = p.planes * p.out_size[0] * p.out_size[1];
    const i64 elements = p.planes * (volume(p.in_size) + volume(p.out_size));
    const i64 each = rows_per_task(rows, elements), tasks = ceil_div(rows, each);
    parallel(tasks, parallel_slots(tasks, elements * i64(sizeof(T))),
             [&](i64 task, int) { run(p, x, y, task * each, min_of(task * each + each, rows)); });
}

#define FUSEDNN_POOL_NARROW_VALUES(T) \
    template void max_pool_narrow_values<T>(const PoolParams&, const T*, T*);
FUSEDNN_INSTANTIATE(FUSEDNN_POOL_NARROW_VALUES)

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
