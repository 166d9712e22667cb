// Max pooling with the winning taps for windows two or three columns wide, stride 1 or 2, padding 0
// or 1 (any depth and height): those of most networks, so rows go from memory to registers and back
// with no line between. x, dx (planes, D, H, W); y, dy, argmax (planes, OD, OH, OW).
//
// Forward, for every vector of outputs:
//   1. the columns of each of the window's rows, one vector per tap
//   2. the taps in row-major order: the first maximum leads, and the last NaN
// Backward, for every vector of input columns: column j * S + r is reached by the taps t with
// t - P = r (mod S), from output j + shift(t). For neighbouring j these are neighbours, and a
// gradient counts where the winner is the tap by which it came.
#include "cpu/kernels.h"
#include "cpu/parallel.h"
#include "cpu/pool/lanes.h"
#include "cpu/pool/pool.h"
#include "cpu/pool/window.h"

namespace fusednn {
namespace FUSEDNN_ISA {

namespace {

// In all of the file: K columns of a window, S the stride and P the padding of the width.

// Tap numbers are bytes, so a window two columns wide has at most this many rows.
constexpr int kMostRows = 128;

// ---- forward ----------------------------------------

// A row of a window, and the number of its first tap.
template <class T>
struct InputRow {
    const T* x;
    i64 tap;
};

// What each tap of outputs o, o + 1 ... of a row of `width` reads. `watch` sees all columns, except
// that what lies behind a vector is left to the next one.
template <class T, int K, int S, int P, Edge kEdge>
FUSEDNN_INLINE void taps_of(const T* row, i64 o, i64 width, Vec<T> (&tap)[K], NanWatch<T>& watch) {
    constexpr int L = kLanes<T>;
    constexpr bool inside = kEdge == Edge::inside;
    const i64 c = o * S;
    if constexpr (S == 2) {
        const Vec<T> a = columns_at<T, kEdge>(row + c, width - c);
        const Vec<T> b = columns_at<T, kEdge>(row + c + L, width - c - L);
        watch.see(a, b);
        const Vec<T> even = even_lanes<T>(a, b), odd = odd_lanes<T>(a, b);
        if constexpr (P == 1) {
            tap[0] = shift_in(inside || c > 0 ? row[c - 1] : kLowest<T>, odd);
            tap[1] = even;
            if constexpr (K == 3) tap[2] = odd;
        } else {
            tap[0] = even;
            tap[1] = odd;
            if constexpr (K == 3) {
                const bool more = inside || c + 2 * L < width;
                tap[2] = shift_out(even, more ? row[c + 2 * L] : kLowest<T>);
                if (!inside) watch.see(tap[2], tap[2]);
            }
        }
    } else {
        for (int t = 0; t < K; ++t) {
            const i64 at = c + t - P;
            tap[t] = inside || at >= 0 ? columns_at<T, kEdge>(row + at, width - at)
                                       : shift_in(kLowest<T>, columns_at<T, kEdge>(row, width));
        }
        watch.see(tap[0], tap[K - 1]);
    }
}

// Where one output row's results go; whole vectors may be written before the ends.
template <class T>
struct Target {
    T *y, *y_end;
    std::uint8_t *argmax, *argmax_end;
    i64 n;
};

// Outputs o, o + 1 ... of one output row with N rows in its windows (N = 0: `count`).
template <class T, int K, int S, int P, int N, bool kCareful, Edge kEdge>
FUSEDNN_INLINE void forward_vector(const InputRow<T>* rows, i64 count, i64 width, i64 o,
                                   const Target<T>& to, NanWatch<T>& watch) {
    Vec<T> lead = broadcast(kLowest<T>);
    // Where nothing is larger than -inf, the first real tap wins.
    Mask<T> winner = Mask<T>{} + Int<T>(rows[0].tap);
    if (P == 1 && kEdge != Edge::inside && o == 0) winner[0] += 1;
#pragma GCC unroll 3
    for (i64 r = 0; r < (N ? N : count); ++r) {
        Vec<T> tap[K];
        taps_of<T, K, S, P, kEdge>(rows[r].x, o, width, tap, watch);
        for (int t = 0; t < K; ++t) {
            Mask<T> beats = tap[t] > lead;
            if (kCareful) beats |= tap[t] != tap[t];
            lead = kCareful ? select<T>(beats, tap[t], lead) : greater_of<T>(tap[t], lead);
            winner = beats ? Mask<T>{} + Int<T>(rows[r].tap + t) : winner;
        }
    }
    store_before(to.y + o, lead, to.n - o, to.y_end);
    store_taps<T>(to.argmax, o, winner, to.n - o, to.argmax_end - to.argmax, 1);
}

// One output row, with whole vectors within the row and kEdge ones at its ends.
// Returns whether it met a NaN, in which case only the careful one is right.
template <class T, int K, int S, int P, int N, bool kCareful, Edge kEdge>
bool forward_row(const InputRow<T>* window, i64 count, i64 width, const Target<T>& target) {
    constexpr int L = kLanes<T>;
    // Copies: as far as the compiler knows, the stores below might change the originals.
    const Target<T> to = target;
    InputRow<T> copies[N ? N : 1];
    for (int r = 0; r < N; ++r) copies[r] = window[r];
    const InputRow<T>* rows = N ? copies : window;
    NanWatch<T> watch;
    i64 o = 0;
    if (P == 1) {
        forward_vector<T, K, S, P, N, kCareful, kEdge>(rows, count, width, 0, to, watch);
        o = L;
    }
    // Whole vectors of outputs whose last column, and the one behind it, are in the row.
    for (; o + L <= to.n && (o + L) * S + K <= width; o += L) {
        forward_vector<T, K, S, P, N, kCareful, Edge::inside>(rows, count, width, o, to, watch);
    }
    for (; o < to.n; o += L) {
        forward_vector<T, K, S, P, N, kCareful, kEdge>(rows, count, width, o, to, watch);
    }
    return watch.any();
}

// The same with as many rows as there are; x_end is the end of x.
template <class T, int K, int S, int P>
FUSEDNN_INLINE void forward_row(const InputRow<T>* rows, i64 count, i64 width, const T* x_end,
                                const Target<T>& to) {
    // Less than S vectors and K columns are read behind the row.
    const bool last = x_end - rows[count - 1].x < width + (S + 1) * kLanes<T>;
    auto run = forward_row<T, K, S, P, 0, false, Edge::masked>;
    if (count == 1) run = forward_row<T, K, S, P, 1, false, Edge::masked>;
    if (count == K) run = forward_row<T, K, S, P, K, false, Edge::masked>;
    if (last) run = forward_row<T, K, S, P, 0, false, Edge::last>;
    if (run(rows, count, width, to)) {
        forward_row<T, K, S, P, 0, true, Edge::last>(rows, count, width, to);
    }
}

// The rows under output row (out_d, out_h) of the plane at x, in the window's order.
template <class T, int K>
FUSEDNN_INLINE i64 input_rows(const PoolParams& p, i64 out_d, i64 out_h, const T* x,
                              InputRow<T>* rows) {
    const Axis depth = axis_of(p, 0), height = axis_of(p, 1);
    const Taps td = real_taps(depth, out_d), th = real_taps(height, out_h);
    i64 count = 0;
    for (i64 i = td.first; i < td.last; ++i) {
        const i64 d = out_d * depth.stride - depth.pad + i * depth.dilation;
        for (i64 j = th.first; j < th.last; ++j) {
            const i64 h = out_h * height.stride - height.pad + j * height.dilation;
            rows[count++] = {x + (d * height.in + h) * p.in_size[2], (i * height.kernel + j) * K};
        }
    }
    return count;
}

template <class T, int K, int S, int P>
void forward_rows(const PoolParams& p, const T* x, T* y, std::uint8_t* argmax, i64 begin, i64 end) {
    const T* x_end = x + p.planes * volume(p.in_size);
    const i64 width = p.in_size[2], n = p.out_size[2];
    InputRow<T> rows[kMostRows];
    for (RowCounter at(p.out_size, begin); at.row < end; at.next()) {
        const i64 count = input_rows<T, K>(p, at.d, at.h, x + at.plane * volume(p.in_size), rows);
        const Target<T> to{y + at.row * n, y + end * n, argmax + at.row * n, argmax + end * n, n};
        forward_row<T, K, S, P>(rows, count, width, x_end, to);
    }
}

// ---- backward ----------------------------------------

// An output row that reaches an input row, by taps tap ... tap + K - 1.
template <class T>
struct OutputRow {
    const T* dy;
    const std::uint8_t* argmax;
    i64 tap;
};

template <class T>
struct Gradients {
    Vec<T> dy;
    Mask<T> tap;
};

// Outputs o, o + 1 ... of a row of n; o >= -2. Those outside the row have gradient 0.
template <class T, Edge kEdge>
FUSEDNN_INLINE Gradients<T> gradients_at(const OutputRow<T>& row, i64 o, i64 n) {
    constexpr int L = kLanes<T>;
    if constexpr (kEdge == Edge::inside) {
        return {load(row.dy + o), detail::load_bytes<T>(row.argmax + o)};
    }
    const i64 from = max_of(o, i64(0)), count = min_of(n - from, i64(L));
    Gradients<T> g{Vec<T>{}, Mask<T>{}};
    if constexpr (kEdge == Edge::masked) {
        const Mask<T> mine = lane_numbers<T>() < Mask<T>{} + Int<T>(count);
        g.dy = select<T>(mine, load(row.dy + from), g.dy);
        g.tap = detail::load_bytes<T>(row.argmax + from);
    } else if (count > 0) {
        g.dy = load_partial(row.dy + from, count);
        for (i64 i = 0; i < count; ++i) g.tap[i] = row.argmax[from + i];
    }
    for (i64 i = o; i < 0; ++i) {
        g.dy = shift_in(T(0), g.dy);
        g.tap = shift_in(Int<T>(0), g.tap);
    }
    return g;
}

// Tap t reaches column j * S + phase from output j + shift.
struct Reach {
    int phase, shift;
};
constexpr Reach reach_of(int t, int stride, int pad) {
    const int column = t - pad, phase = (column % stride + stride) % stride;
    return {phase, (phase - column) / stride};
}

// Vector j of each phase of one input row, reached by N output rows (N = 0: `count`).
template <class T, int K, int S, int P, int N, Edge kEdge>
FUSEDNN_INLINE void backward_vector(const OutputRow<T>* rows, i64 count, i64 n, i64 j, i64 width,
                                    T* dx, const T* dx_end) {
    constexpr int L = kLanes<T>;
    constexpr int first = reach_of(K - 1, S, P).shift, last = reach_of(0, S, P).shift;
    Vec<T> sum[S] = {};
#pragma GCC unroll 2
    for (i64 r = 0; r < (N ? N : count); ++r) {
        Gradients<T> g[last - first + 1];
        for (int i = 0; i <= last - first; ++i) {
            g[i] = gradients_at<T, kEdge>(rows[r], j + first + i, n);
        }
        // Outputs count in row-major order, so taps run backwards.
#pragma GCC unroll 3
        for (int t = K - 1; t >= 0; --t) {
            const Reach reach = reach_of(t, S, P);
            const Gradients<T>& from = g[reach.shift - first];
            sum[reach.phase] =
                add_where<T>(from.tap == Int<T>(rows[r].tap + t), sum[reach.phase], from.dy);
        }
    }
    T* to = dx + j * S;
    const i64 left = width - j * S;
    if constexpr (S == 1) {
        store_before(to, sum[0], left, dx_end);
    } else {
        store_before(to, interleave_low<T>(sum[0], sum[1]), left, dx_end);
        if (left > L) store_before(to + L, interleave_high<T>(sum[0], sum[1]), left - L, dx_end);
    }
}

// One input row: dx[0, width). `left` is how much of dy there is from its last output row on.
template <class T, int K, int S, int P, int N>
void backward_row(const OutputRow<T>* all_rows, i64 count, i64 n, i64 left, i64 width, T* dx,
                  const T* dx_end) {
    constexpr int L = kLanes<T>;
    constexpr int first = reach_of(K - 1, S, P).shift, last = reach_of(0, S, P).shift;
    // Copies: as far as the compiler knows, the stores below might change the originals.
    OutputRow<T> copies[N ? N : 1];
    for (int r = 0; r < N; ++r) copies[r] = all_rows[r];
    const OutputRow<T>* rows = N ? copies : all_rows;
    i64 j = 0;
    if (left < width + 2 * L) {
        for (; j * S < width; j += L) {
            backward_vector<T, K, S, P, N, Edge::last>(rows, count, n, j, width, dx, dx_end);
        }
        return;
    }
    if (first < 0) {
        backward_vector<T, K, S, P, N, Edge::masked>(rows, count, n, 0, width, dx, dx_end);
        j = L;
    }
    for (; j + last + L <= n && (j + L) * S <= width; j += L) {
        backward_vector<T, K, S, P, N, Edge::inside>(rows, count, n, j, width, dx, dx_end);
    }
    for (; j * S < width; j += L) {
        backward_vector<T, K, S, P, N, Edge::masked>(rows, count, n, j, width, dx, dx_end);
    }
}

// The output rows that reach input row (d, h) of a plane, in order; dy and argmax are the plane's.
template <class T, int K>
FUSEDNN_INLINE i64 output_rows(const PoolParams& p, i64 d, i64 h, const T* dy,
                               const std::uint8_t* argmax, OutputRow<T>* rows) {
    const Axis depth = axis_of(p, 0), height = axis_of(p, 1);
    i64 count = 0;
    for (i64 i = depth.kernel - 1; i >= 0; --i) {
        const i64 out_d = output_of(depth, d, i);
        if (out_d < 0) continue;
        for (i64 j = height.kernel - 1; j >= 0; --j) {
            const i64 out_h = output_of(height, h, j);
            if (out_h < 0) continue;
            const i64 at = (out_d * height.out + out_h) * p.out_size[2];
            rows[count++] = {dy + at, argmax + at, (i * height.kernel + j) * K};
        }
    }
    return count;
}

template <class T, int K, int S, int P>
void backward_rows(const PoolParams& p, const T* dy, const std::uint8_t* argmax, T* dx, i64 begin,
                   i64 end) {
    const i64 width = p.in_size[2], n = p.out_size[2], out_plane = volume(p.out_size);
    const T *dy_end = dy + p.planes * out_plane, *dx_end = dx + end * width;
    OutputRow<T> rows[kMostRows];
    for (RowCounter at(p.in_size, begin); at.row < end; at.next()) {
        const i64 count = output_rows<T, K>(p, at.d, at.h, dy + at.plane * out_plane,
                                            argmax + at.plane * out_plane, rows);
        auto run = backward_row<T, K, S, P, 0>;
        if (count == 1) run = backward_row<T, K, S, P, 1>;
        if (count == 2) run = backward_row<T, K, S, P, 2>;
        const i64 left = count ? dy_end - rows[count - 1].dy : width + 2 * kLanes<T>;
        run(rows, count, n, left, width, dx + at.row * width, dx_end);
    }
}

template <class T, int K>
auto choose_forward(const PoolParams& p) {
    if (p.stride[2] == 1) {
        return p.pad[2] == 0 ? forward_rows<T, K, 1, 0> : forward_rows<T, K, 1, 1>;
    }
    return p.pad[2] == 0 ? forward_rows<T, K, 2, 0> : forward_rows<T, K, 2, 1>;
}
template <class T, int K>
auto choose_backward(const PoolParams& p) {
    if (p.stride[2] == 1) {
        return p.pad[2] == 0 ? backward_rows<T, K, 1, 0> : backward_rows<T, K, 1, 1>;
    }
    return p.pad[2] == 0 ? backward_rows<T, K, 2, 0> : backward_rows<T, K, 2, 1>;
}

// Rows of `size` cut into tasks: body(first row, last row + 1).
template <class T, class Body>
void for_rows(const PoolParams& p, const i64 (&size)[3], const Body& body) {
    const i64 rows = p.planes * size[0] * size[1];
    const i64 elements = p.planes * (volume(p.in_size) + volume(p.out_size));
    const i64 each = rows_per_task(rows, elements), tasks = ceil_div(rows, each);
    parallel(tasks, parallel_slots(tasks, elements * i64(sizeof(T))),
             [&](i64 task, int) { body(task * each, min_of(task * each + each, rows)); });
}

}  // namespace

bool is_narrow(const PoolParams& p) {
    return (p.kernel[2] == 2 || p.kernel[2] == 3) && p.dilation[2] == 1 && p.stride[2] <= 2 &&
           p.pad[2] <= 1 && p.kernel[0] <= kMostRows && p.kernel[1] <= kMostRows &&
           volume(p.kernel) <= 256;
}

template <class T>
void max_pool_narrow(const PoolParams& p, const T* x, T* y, std::uint8_t* argmax) {
    const auto run = p.kernel[2] == 2 ? choose_forward<T, 2>(p) : choose_forward<T, 3>(p);
    for_rows<T>(p, p.out_size, [&](i64 begin, i64 end) { run(p, x, y, argmax, begin, end); });
}

template <class T>
void max_pool_narrow_backward(const PoolParams& p, const T* dy, const std::uint8_t* argmax, T* dx) {
    const auto run = p.kernel[2] == 2 ? choose_backward<T, 2>(p) : choose_backward<T, 3>(p);
    for_rows<T>(p, p.in_size, [&](i64 begin, i64 end) { run(p, dy, argmax, dx, begin, end); });
}

#define FUSEDNN_POOL_NARROW(T)                                                        \
    template void max_pool_narrow<T>(const PoolParams&, const T*, T*, std::uint8_t*); \
    template void max_pool_narrow_backward<T>(const PoolParams&, const T*, const std::uint8_t*, T*);
FUSEDNN_INSTANTIATE(FUSEDNN_POOL_NARROW)

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
