// Max pooling three columns wide with the winning taps, stride 1 or 2, padding 0 or 1 (any depth
// and height): the windows of most networks, so rows go from memory to registers with no line
// between. x, dx (planes, D, H, W); y, dy, argmax (planes, OD, OH, OW). Forward, per vector of
// outputs:
//
//   1. the columns of each of the window's rows, one vector per tap
//   2. the taps in row-major order: the first maximum leads
// Backward, per vector of input columns: the gradients of the outputs that reach them, where the
// winner is the tap by which they do.
#include "cpu/kernels.h"
#include "cpu/parallel.h"
#include "cpu/pool/lanes.h"
#include "cpu/pool/pool.h"
#include "cpu/pool/window.h"

namespace fusednn {
namespace FUSEDNN_ISA {

namespace {

constexpr int K = 3;
// Tap numbers are bytes, so a window has at most this many rows.
constexpr int kMostRows = 256 / K;

// ---- forward ----------------------------------------

// A row of a window, and the number of its first tap.
template <class T>
struct InputRow {
    const T* x;
    i64 tap;
};

// Columns p[0, kLanes), of which n are real.
template <class T>
FUSEDNN_INLINE Vec<T> columns_at(const T* p, i64 n, const T* x_end) {
    if (n >= kLanes<T>) return load(p);
    if (n <= 0) return broadcast(kLowest<T>);
    return pad_after<T>(load_before(p, n, x_end), n);
}

// What each tap of a vector of outputs reads from one row.
template <class T>
struct TapColumns {
    Vec<T> tap[K];
    Vec<T> all[2];  // the same columns, as they lie in the row
};

// Outputs o, o + 1 ... of a row of `width`. kEdge: some of the columns may lie outside.
template <class T, int S, int P, bool kEdge>
FUSEDNN_INLINE TapColumns<T> columns_of(const T* row, i64 o, i64 width, const T* x_end) {
    constexpr int L = kLanes<T>;
    const i64 c = o * S;
    TapColumns<T> v;
    if constexpr (S == 2) {
        v.all[0] = kEdge ? columns_at(row + c, width - c, x_end) : load(row + c);
        v.all[1] = kEdge ? columns_at(row + c + L, width - c - L, x_end) : load(row + c + L);
        const Vec<T> even = even_lanes<T>(v.all[0], v.all[1]);
        const Vec<T> odd = odd_lanes<T>(v.all[0], v.all[1]);
        if constexpr (P == 1) {
            v.tap[0] = shift_in(!kEdge || c > 0 ? row[c - 1] : kLowest<T>, odd);
            v.tap[1] = even;
            v.tap[2] = odd;
        } else {
            v.tap[0] = even;
            v.tap[1] = odd;
            v.tap[2] = shift_out(even, !kEdge || c + 2 * L < width ? row[c + 2 * L] : kLowest<T>);
        }
    } else {
        for (int t = 0; t < K; ++t) {
            const i64 at = c + t - P;
            if (!kEdge) {
                v.tap[t] = load(row + at);
            } else if (at < 0) {
                v.tap[t] = shift_in(kLowest<T>, columns_at(row, width, x_end));
            } else {
                v.tap[t] = columns_at(row + at, width - at, x_end);
            }
        }
        v.all[0] = v.tap[0];
        v.all[1] = v.tap[2];
    }
    return v;
}

// Where one output row's results go; whole vectors may be written before the ends.
template <class T>
struct Target {
    T *y, *y_end;
    std::uint8_t *argmax, *argmax_end;
    i64 n;
};

// Outputs o, o + 1 ... of one output row with N rows in its windows (N = 0: `count`).
template <class T, int S, int P, int N, bool kCareful, bool kEdge>
FUSEDNN_INLINE void forward_vector(const InputRow<T>* rows, i64 count, i64 width, const T* x_end,
                                   i64 o, const Target<T>& to, NanWatch<T>& watch) {
    Vec<T> lead = broadcast(kLowest<T>);
    // Where nothing is larger than -inf, the first real tap wins.
    Mask<T> winner = Mask<T>{} + Int<T>(rows[0].tap);
    if (P == 1 && kEdge && o == 0) winner[0] += 1;
#pragma GCC unroll 3
    for (i64 r = 0; r < (N ? N : count); ++r) {
        const TapColumns<T> v = columns_of<T, S, P, kEdge>(rows[r].x, o, width, x_end);
        if (!kCareful) watch.see(v.all[0], v.all[1]);
        for (int t = 0; t < K; ++t) {
            Mask<T> beats = v.tap[t] > lead;
            if (kCareful) beats |= v.tap[t] != v.tap[t];
            lead = select<T>(beats, v.tap[t], lead);
            winner = beats ? Mask<T>{} + Int<T>(rows[r].tap + t) : winner;
        }
    }
    store_before(to.y + o, lead, to.n - o, to.y_end);
    store_taps<T>(to.argmax, o, winner, to.n - o, to.argmax_end - to.argmax, 1);
}

// One output row; returns whether it met a NaN, in which case only the careful one is right.
template <class T, int S, int P, int N, bool kCareful>
bool forward_row(const InputRow<T>* rows, i64 count, i64 width, const T* x_end,
                 const Target<T>& to) {
    constexpr int L = kLanes<T>;
    NanWatch<T> watch;
    i64 o = 0;
    if (P == 1) {
        forward_vector<T, S, P, N, kCareful, true>(rows, count, width, x_end, 0, to, watch);
        o = L;
    }
    // Whole vectors of outputs whose last column, and the one behind it, are in the row.
    for (; o + L <= to.n && (o + L) * S + K <= width; o += L) {
        forward_vector<T, S, P, N, kCareful, false>(rows, count, width, x_end, o, to, watch);
    }
    for (; o < to.n; o += L) {
        forward_vector<T, S, P, N, kCareful, true>(rows, count, width, x_end, o, to, watch);
    }
    return watch.any();
}

// The rows under output row (out_d, out_h) of the plane at x, in the window's order.
template <class T>
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

template <class T, int S, int P>
void forward_rows(const PoolParams& p, const T* x, T* y, std::uint8_t* argmax, i64 begin, i64 end) {
    const T* x_end = x + p.planes * volume(p.in_size);
    const i64 width = p.in_size[2], n = p.out_size[2];
    InputRow<T> rows[kMostRows];
    for (RowCounter at(p.out_size, begin); at.row < end; at.next()) {
        const i64 count = input_rows(p, at.d, at.h, x + at.plane * volume(p.in_size), rows);
        const Target<T> to{y + at.row * n, y + end * n, argmax + at.row * n, argmax + end * n, n};
        const bool nan = count == 3 ? forward_row<T, S, P, 3, false>(rows, 3, width, x_end, to)
                                    : forward_row<T, S, P, 0, false>(rows, count, width, x_end, to);
        if (nan) forward_row<T, S, P, 0, true>(rows, count, width, x_end, to);
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
    Mask<T> tap;  // -1 outside the row
};

// Outputs o, o + 1 ... of a row of n; o >= -2. kEdge: some of them may lie outside.
template <class T, bool kEdge>
FUSEDNN_INLINE Gradients<T> gradients_at(const OutputRow<T>& row, i64 o, i64 n, const T* dy_end) {
    constexpr int L = kLanes<T>;
    if (!kEdge) return {load(row.dy + o), detail::load_bytes<T>(row.argmax + o)};
    Gradients<T> g{Vec<T>{}, Mask<T>{} - 1};
    const i64 from = max_of(o, i64(0)), count = min_of(n - from, i64(L));
    if (count <= 0) return g;
    g.dy = load_before(row.dy + from, count, dy_end);
    const Mask<T> tap = load_taps<T>(row.argmax, from, count, dy_end - row.dy, 1);
    g.tap = lane_numbers<T>() < Mask<T>{} + Int<T>(count) ? tap : g.tap;
    for (i64 i = o; i < 0; ++i) {
        g.dy = shift_in(T(0), g.dy);
        g.tap = shift_in(Int<T>(-1), g.tap);
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
template <class T, int S, int P, int N, bool kEdge>
FUSEDNN_INLINE void backward_vector(const OutputRow<T>* rows, i64 count, i64 n, const T* dy_end,
                                    i64 j, i64 width, T* dx, const T* dx_end) {
    constexpr int L = kLanes<T>;
    constexpr int first = reach_of(K - 1, S, P).shift, last = reach_of(0, S, P).shift;
    Vec<T> sum[S] = {};
#pragma GCC unroll 2
    for (i64 r = 0; r < (N ? N : count); ++r) {
        Gradients<T> g[last - first + 1];
        for (int i = 0; i <= last - first; ++i) {
            g[i] = gradients_at<T, kEdge>(rows[r], j + first + i, n, dy_end);
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

// One input row: dx[0, width).
template <class T, int S, int P, int N>
void backward_row(const OutputRow<T>* rows, i64 count, i64 n, const T* dy_end, i64 width, T* dx,
                  const T* dx_end) {
    constexpr int L = kLanes<T>;
    constexpr int first = reach_of(K - 1, S, P).shift, last = reach_of(0, S, P).shift;
    i64 j = 0;
    if (first < 0) {
        backward_vector<T, S, P, N, true>(rows, count, n, dy_end, 0, width, dx, dx_end);
        j = L;
    }
    for (; j + last + L <= n && (j + L) * S <= width; j += L) {
        backward_vector<T, S, P, N, false>(rows, count, n, dy_end, j, width, dx, dx_end);
    }
    for (; j * S < width; j += L) {
        backward_vector<T, S, P, N, true>(rows, count, n, dy_end, j, width, dx, dx_end);
    }
}

// The output rows that reach input row (d, h) of a plane, in order; dy and argmax are the plane's.
template <class T>
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

template <class T, int S, int P>
void backward_rows(const PoolParams& p, const T* dy, const std::uint8_t* argmax, T* dx, i64 begin,
                   i64 end) {
    const i64 width = p.in_size[2], n = p.out_size[2], out_plane = volume(p.out_size);
    const T *dy_end = dy + p.planes * out_plane, *dx_end = dx + end * width;
    OutputRow<T> rows[kMostRows];
    for (RowCounter at(p.in_size, begin); at.row < end; at.next()) {
        const i64 count = output_rows(p, at.d, at.h, dy + at.plane * out_plane,
                                      argmax + at.plane * out_plane, rows);
        auto run = backward_row<T, S, P, 0>;
        if (count == 1) run = backward_row<T, S, P, 1>;
        if (count == 2) run = backward_row<T, S, P, 2>;
        run(rows, count, n, dy_end, width, dx + at.row * width, dx_end);
    }
}

}  // namespace

bool is_triples(const PoolParams& p) {
    return p.kernel[2] == K && p.dilation[2] == 1 && p.stride[2] <= 2 && p.pad[2] <= 1 &&
           p.kernel[0] <= kMostRows && p.kernel[1] <= kMostRows &&
           p.kernel[0] * p.kernel[1] <= kMostRows;
}

template <class T>
void max_pool_triples(const PoolParams& p, const T* x, T* y, std::uint8_t* argmax) {
    auto run = forward_rows<T, 1, 0>;
    if (p.stride[2] == 1 && p.pad[2] == 1) run = forward_rows<T, 1, 1>;
    if (p.stride[2] == 2) run = p.pad[2] == 1 ? forward_rows<T, 2, 1> : forward_rows<T, 2, 0>;
    const i64 rows = p.planes * p.out_size[0] * p.out_size[1];
    const i64 elements = p.planes * (volume(p.in_size) + volume(p.out_size));
    const i64 each = rows_per_task(rows, elements), tasks = ceil_div(rows, each);
    parallel(tasks, parallel_slots(tasks, elements * i64(sizeof(T))), [&](i64 task, int) {
        run(p, x, y, argmax, task * each, min_of(task * each + each, rows));
    });
}

template <class T>
void max_pool_triples_backward(const PoolParams& p, const T* dy, const std::uint8_t* argmax,
                               T* dx) {
    auto run = backward_rows<T, 1, 0>;
    if (p.stride[2] == 1 && p.pad[2] == 1) run = backward_rows<T, 1, 1>;
    if (p.stride[2] == 2) run = p.pad[2] == 1 ? backward_rows<T, 2, 1> : backward_rows<T, 2, 0>;
    const i64 rows = p.planes * p.in_size[0] * p.in_size[1];
    const i64 elements = p.planes * (volume(p.in_size) + volume(p.out_size));
    const i64 each = rows_per_task(rows, elements), tasks = ceil_div(rows, each);
    parallel(tasks, parallel_slots(tasks, elements * i64(sizeof(T))), [&](i64 task, int) {
        run(p, dy, argmax, dx, task * each, min_of(task * each + each, rows));
    });
}

#define FUSEDNN_POOL_TRIPLES(T)                                                                  \
    template void max_pool_triples<T>(const PoolParams&, const T*, T*, std::uint8_t*);           \
    template void max_pool_triples_backward<T>(const PoolParams&, const T*, const std::uint8_t*, \
                                               T*);
FUSEDNN_INSTANTIATE(FUSEDNN_POOL_TRIPLES)

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
