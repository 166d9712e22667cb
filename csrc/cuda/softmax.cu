// softmax and log_softmax over the middle axis of (outer, classes, inner), forward and backward.
//
//   forward   1. maximum   2. sum of exp(x - maximum)   3. y from both
//   backward  1. sum over the classes of dy (times y)   2. dx from it, dy and y
//
// A row (inner 1) has a team of threads; of several columns side by side each has a thread, and
// neighbours read neighbours.
#include "cuda/gpu.h"
#include "cuda/kernels.h"
#include "cuda/rows.h"

namespace fusednn::cuda {

namespace {

constexpr int kThreads = 256;

template <bool kLog, class T>
FUSEDNN_DEVICE T forward_value(T x, T most, T last) {
    // last: log(sum) or 1 / sum. One subtracted after the other: their sum would lose the small
    // one's last bits.
    if constexpr (kLog) return (x - most) - last;
    return exp(x - most) * last;
}
template <bool kLog, class T>
FUSEDNN_DEVICE T backward_term(T dy, T y) {
    return kLog ? dy : dy * y;
}
template <bool kLog, class T>
FUSEDNN_DEVICE T backward_value(T dy, T y, T sum) {
    if constexpr (kLog) return dy - exp(y) * sum;
    return y * (dy - sum);
}

// ---- rows ----------------------------------------

template <bool kLog, int kTeam, int kWide, class T>
__global__ void __launch_bounds__(kRowThreads, 3)
    forward_rows(i64 rows, i64 classes, In<T> x, Out<T> y) {
    using Sum = Accumulate<T>;
    for (i64 first = first_row<kTeam>(); first < rows; first += row_step<kTeam>()) {
        const RowTeam<kTeam, kWide> team(first, rows, classes);
        const auto from = x + team.row * classes;
        const auto to = y + team.row * classes;
        Sum most = -Sum(INFINITY), sum = Sum(0);
        team.each([&](i64 k) {
            const auto v = load_wide<kWide>(from + k);
            for (int i = 0; i < kWide; ++i) most = Larger()(most, v.of[i]);
        });
        most = team.all(most, Larger());
        team.each([&](i64 k) {
            const auto v = load_wide<kWide>(from + k);
            for (int i = 0; i < kWide; ++i) sum += exp(v.of[i] - most);
        });
        sum = team.all(sum, Add());
        const Sum last = kLog ? log(sum) : Sum(1) / sum;
        team.each([&](i64 k) {
            auto v = load_wide<kWide>(from + k);
            for (int i = 0; i < kWide; ++i) v.of[i] = forward_value<kLog>(v.of[i], most, last);
            store_wide<kWide>(to + k, v);
        });
    }
}

template <bool kLog, int kTeam, int kWide, class T>
__global__ void __launch_bounds__(kRowThreads, 3)
    backward_rows(i64 rows, i64 classes, In<T> dy, In<T> y, Out<T> dx) {
    using Sum = Accumulate<T>;
    for (i64 first = first_row<kTeam>(); first < rows; first += row_step<kTeam>()) {
        const RowTeam<kTeam, kWide> team(first, rows, classes);
        const i64 row = team.row * classes;
        Sum sum = Sum(0);
        team.each([&](i64 k) {
            const auto g = load_wide<kWide>(dy + row + k), v = load_wide<kWide>(y + row + k);
            for (int i = 0; i < kWide; ++i) sum += backward_term<kLog>(g.of[i], v.of[i]);
        });
        sum = team.all(sum, Add());
        team.each([&](i64 k) {
            auto g = load_wide<kWide>(dy + row + k);
            const auto v = load_wide<kWide>(y + row + k);
            for (int i = 0; i < kWide; ++i) {
                g.of[i] = backward_value<kLog>(g.of[i], v.of[i], sum);
            }
            store_wide<kWide>(dx + row + k, g);
        });
    }
}

// ---- columns ----------------------------------------

template <bool kLog, class T>
__global__ void __launch_bounds__(kThreads)
    forward_columns(i64 columns, i64 classes, i64 inner, In<T> x, Out<T> y) {
    using Sum = Accumulate<T>;
    const i64 step = i64(gridDim.x) * blockDim.x;
    for (i64 at = i64(blockIdx.x) * blockDim.x + threadIdx.x; at < columns; at += step) {
        const i64 o = quotient(at, inner), base = o * classes * inner + (at - o * inner);
        Sum most = -Sum(INFINITY), sum = Sum(0);
        for (i64 k = 0; k < classes; ++k) most = Larger()(most, x[base + k * inner]);
        for (i64 k = 0; k < classes; ++k) sum += exp(x[base + k * inner] - most);
        const Sum last = kLog ? log(sum) : Sum(1) / sum;
        for (i64 k = 0; k < classes; ++k) {
            y[base + k * inner] = forward_value<kLog>(x[base + k * inner], most, last);
        }
    }
}

template <bool kLog, class T>
__global__ void __launch_bounds__(kThreads)
    backward_columns(i64 columns, i64 classes, i64 inner, In<T> dy, In<T> y, Out<T> dx) {
    using Sum = Accumulate<T>;
    const i64 step = i64(gridDim.x) * blockDim.x;
    for (i64 at = i64(blockIdx.x) * blockDim.x + threadIdx.x; at < columns; at += step) {
        const i64 o = quotient(at, inner), base = o * classes * inner + (at - o * inner);
        Sum sum = Sum(0);
        for (i64 k = 0; k < classes; ++k) {
            sum += backward_term<kLog>(dy[base + k * inner], y[base + k * inner]);
        }
        for (i64 k = 0; k < classes; ++k) {
            const i64 here = base + k * inner;
            dx[here] = backward_value<kLog>(dy[here], y[here], sum);
        }
    }
}

template <bool kLog, class T>
void forward(const char* name, i64 outer, i64 classes, i64 inner, const T* x, T* y) {
    if (classes == 0) return;
    if (inner != 1) {
        launch(name, {blocks_for(outer * inner, kThreads), kThreads},
               forward_columns<kLog, Storage<T>>, outer * inner, classes, inner, reading(x),
               writing(y));
        return;
    }
    with_team<T>(classes, rows_of_packs<T>(classes, x, y), [&](auto team, auto wide) {
        launch(name, row_shape<decltype(team)::value>(outer),
               forward_rows<kLog, decltype(team)::value, decltype(wide)::value, Storage<T>>, outer,
               classes, reading(x), writing(y));
    });
}

template <bool kLog, class T>
void backward(const char* name, i64 outer, i64 classes, i64 inner, const T* dy, const T* y, T* dx) {
    if (classes == 0) return;
    if (inner != 1) {
        launch(name, {blocks_for(outer * inner, kThreads), kThreads},
               backward_columns<kLog, Storage<T>>, outer * inner, classes, inner, reading(dy),
               reading(y), writing(dx));
        return;
    }
    with_team<T>(classes, rows_of_packs<T>(classes, dy, y, dx), [&](auto team, auto wide) {
        launch(name, row_shape<decltype(team)::value>(outer),
               backward_rows<kLog, decltype(team)::value, decltype(wide)::value, Storage<T>>, outer,
               classes, reading(dy), reading(y), writing(dx));
    });
}

}  // namespace

template <class T>
void softmax_forward(i64 outer, i64 classes, i64 inner, const T* x, T* y) {
    forward<false>("softmax_forward", outer, classes, inner, x, y);
}
template <class T>
void softmax_backward(i64 outer, i64 classes, i64 inner, const T* dy, const T* y, T* dx) {
    backward<false>("softmax_backward", outer, classes, inner, dy, y, dx);
}
template <class T>
void log_softmax_forward(i64 outer, i64 classes, i64 inner, const T* x, T* y) {
    forward<true>("log_softmax_forward", outer, classes, inner, x, y);
}
template <class T>
void log_softmax_backward(i64 outer, i64 classes, i64 inner, const T* dy, const T* y, T* dx) {
    backward<true>("log_softmax_backward", outer, classes, inner, dy, y, dx);
}

#define FUSEDNN_SOFTMAX(T)                                                    \
    template void softmax_forward<T>(i64, i64, i64, const T*, T*);            \
    template void softmax_backward<T>(i64, i64, i64, const T*, const T*, T*); \
    template void log_softmax_forward<T>(i64, i64, i64, const T*, T*);        \
    template void log_softmax_backward<T>(i64, i64, i64, const T*, const T*, T*);
FUSEDNN_INSTANTIATE(FUSEDNN_SOFTMAX)
FUSEDNN_INSTANTIATE_HALF(FUSEDNN_SOFTMAX)

}  // namespace fusednn::cuda
