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

// Logarithms or not is asked when the kernel runs: a branch that all threads take alike.
//
// last: log(sum) or 1 / sum. One subtracted after the other: their sum would lose the small one's
// last bits.
template <class T>
FUSEDNN_DEVICE T forward_value(bool log, T x, T most, T last) {
    return log ? (x - most) - last : exp(x - most) * last;
}
template <class T>
FUSEDNN_DEVICE T backward_term(bool log, T dy, T y) {
    return log ? dy : dy * y;
}
template <class T>
FUSEDNN_DEVICE T backward_value(bool log, T dy, T y, T sum) {
    return log ? dy - exp(y) * sum : y * (dy - sum);
}

// ---- rows ----------------------------------------

template <int kWide, class T>
__global__ void __launch_bounds__(kRowThreads, 4)
    forward_rows(bool log_of_it, int threads, i64 rows, i64 classes, In<T> x, Out<T> y) {
    using Sum = Accumulate<T>;
#pragma unroll 1
    for (i64 first = first_row(threads); first < rows; first += row_step(threads)) {
        const RowTeam<kWide> team(threads, first, rows, classes);
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
        const Sum last = log_of_it ? log(sum) : Sum(1) / sum;
        team.each([&](i64 k) {
            auto v = load_wide<kWide>(from + k);
            for (int i = 0; i < kWide; ++i) {
                v.of[i] = forward_value(log_of_it, v.of[i], most, last);
            }
            store_wide<kWide>(to + k, v);
        });
    }
}

template <int kWide, class T>
__global__ void __launch_bounds__(kRowThreads, 4)
    backward_rows(bool log, int threads, i64 rows, i64 classes, In<T> dy, In<T> y, Out<T> dx) {
    using Sum = Accumulate<T>;
#pragma unroll 1
    for (i64 first = first_row(threads); first < rows; first += row_step(threads)) {
        const RowTeam<kWide> team(threads, first, rows, classes);
        const i64 row = team.row * classes;
        Sum sum = Sum(0);
        team.each([&](i64 k) {
            const auto g = load_wide<kWide>(dy + row + k), v = load_wide<kWide>(y + row + k);
            for (int i = 0; i < kWide; ++i) sum += backward_term(log, g.of[i], v.of[i]);
        });
        sum = team.all(sum, Add());
        team.each([&](i64 k) {
            auto g = load_wide<kWide>(dy + row + k);
            const auto v = load_wide<kWide>(y + row + k);
            for (int i = 0; i < kWide; ++i) {
                g.of[i] = backward_value(log, g.of[i], v.of[i], sum);
            }
            store_wide<kWide>(dx + row + k, g);
        });
    }
}

// ---- columns ----------------------------------------

template <class T>
__global__ void __launch_bounds__(kThreads, 4)
    forward_columns(bool log_of_it, i64 columns, i64 classes, i64 inner, In<T> x, Out<T> y) {
    using Sum = Accumulate<T>;
    const i64 step = i64(gridDim.x) * blockDim.x;
#pragma unroll 1
    for (i64 at = i64(blockIdx.x) * blockDim.x + threadIdx.x; at < columns; at += step) {
        const i64 o = quotient(at, inner), base = o * classes * inner + (at - o * inner);
        Sum most = -Sum(INFINITY), sum = Sum(0);
        for_each_class<T>(classes, base, inner, [&](i64 k) { most = Larger()(most, x[k]); });
        for_each_class<T>(classes, base, inner, [&](i64 k) { sum += exp(x[k] - most); });
        const Sum last = log_of_it ? log(sum) : Sum(1) / sum;
        for_each_class<T>(classes, base, inner,
                          [&](i64 k) { y[k] = forward_value(log_of_it, Sum(x[k]), most, last); });
    }
}

template <class T>
__global__ void __launch_bounds__(kThreads, 4)
    backward_columns(bool log, i64 columns, i64 classes, i64 inner, In<T> dy, In<T> y, Out<T> dx) {
    using Sum = Accumulate<T>;
    const i64 step = i64(gridDim.x) * blockDim.x;
#pragma unroll 1
    for (i64 at = i64(blockIdx.x) * blockDim.x + threadIdx.x; at < columns; at += step) {
        const i64 o = quotient(at, inner), base = o * classes * inner + (at - o * inner);
        Sum sum = Sum(0);
        for_each_class<T>(classes, base, inner,
                          [&](i64 k) { sum += backward_term(log, Sum(dy[k]), Sum(y[k])); });
        for_each_class<T>(classes, base, inner,
                          [&](i64 k) { dx[k] = backward_value(log, Sum(dy[k]), Sum(y[k]), sum); });
    }
}

template <class T>
void forward(const char* name, bool log, i64 outer, i64 classes, i64 inner, const T* x, T* y) {
    if (classes == 0) return;
    if (inner != 1) {
        launch(name, {blocks_for(outer * inner, kThreads), kThreads}, forward_columns<Storage<T>>,
               log, outer * inner, classes, inner, reading(x), writing(y));
        return;
    }
    with_team<T>(classes, rows_of_packs<T>(classes, x, y), [&](int team, auto wide) {
        launch(name, row_shape(team, outer), forward_rows<decltype(wide)::value, Storage<T>>, log,
               team, outer, classes, reading(x), writing(y));
    });
}

template <class T>
void backward(const char* name, bool log, i64 outer, i64 classes, i64 inner, const T* dy,
              const T* y, T* dx) {
    if (classes == 0) return;
    if (inner != 1) {
        launch(name, {blocks_for(outer * inner, kThreads), kThreads}, backward_columns<Storage<T>>,
               log, outer * inner, classes, inner, reading(dy), reading(y), writing(dx));
        return;
    }
    with_team<T>(classes, rows_of_packs<T>(classes, dy, y, dx), [&](int team, auto wide) {
        launch(name, row_shape(team, outer), backward_rows<decltype(wide)::value, Storage<T>>, log,
               team, outer, classes, reading(dy), reading(y), writing(dx));
    });
}

}  // namespace

template <class T>
void softmax_forward(i64 outer, i64 classes, i64 inner, const T* x, T* y) {
    forward("softmax_forward", false, outer, classes, inner, x, y);
}
template <class T>
void softmax_backward(i64 outer, i64 classes, i64 inner, const T* dy, const T* y, T* dx) {
    backward("softmax_backward", false, outer, classes, inner, dy, y, dx);
}
template <class T>
void log_softmax_forward(i64 outer, i64 classes, i64 inner, const T* x, T* y) {
    forward("log_softmax_forward", true, outer, classes, inner, x, y);
}
template <class T>
void log_softmax_backward(i64 outer, i64 classes, i64 inner, const T* dy, const T* y, T* dx) {
    backward("log_softmax_backward", true, outer, classes, inner, dy, y, dx);
}

#define FUSEDNN_SOFTMAX(T)                                                    \
    template void softmax_forward<T>(i64, i64, i64, const T*, T*);            \
    template void softmax_backward<T>(i64, i64, i64, const T*, const T*, T*); \
    template void log_softmax_forward<T>(i64, i64, i64, const T*, T*);        \
    template void log_softmax_backward<T>(i64, i64, i64, const T*, const T*, T*);
FUSEDNN_INSTANTIATE(FUSEDNN_SOFTMAX)
FUSEDNN_INSTANTIATE_HALF(FUSEDNN_SOFTMAX)

}  // namespace fusednn::cuda
