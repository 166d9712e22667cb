// batch_norm: every channel over batch and space.
// x, y, dy, dx (outer, channels, inner); weight, bias, dw, db (channels);
// stats (3, channels): mean, low, rstd.
//
//   stats     1. the mean   2. what its rounding left over, and the variance, from x - mean
//   apply     y = (x - mean) * rstd * weight + bias, then ReLU if asked
//   backward  1. the sums of g and g * xhat, with g = dy, or 0 where y was cut by ReLU: db and dw
//             2. dx = weight * rstd * (g - mean(g) - xhat * mean(g * xhat)), in evaluation (the
//                statistics are constants) weight * rstd * g
#include "cuda/channels.h"
#include "cuda/gpu.h"
#include "cuda/kernels.h"
#include "cuda/norm/moments.h"
#include "cuda/norm/running.h"

namespace fusednn::cuda {

namespace {

constexpr int kThreads = 256;

ChannelView view_of(const BatchNormParams& p) {
    return {p.outer, p.channels, p.inner};
}

// ---- stats ----------------------------------------

template <class T>
struct Values {
    using Sum = Accumulate<T>;
    static constexpr int kInputs = 1;
    Shared<T> x;
    FUSEDNN_DEVICE void operator()(i64 at, i64, i64, Sum (&v)[1]) const { v[0] = x[at]; }
};
template <class Sum>
struct StoreMean {
    double places;
    Sum* mean;
    FUSEDNN_DEVICE void operator()(i64 c, const double (&sum)[1]) const {
        mean[c] = Sum(sum[0] / places);
    }
};
template <class T>
struct Deviations {
    using Sum = Accumulate<T>;
    static constexpr int kInputs = 1;
    Shared<T> x;
    const Sum* mean;
    FUSEDNN_DEVICE void operator()(i64 at, i64, i64 c, Sum (&v)[2]) const {
        v[0] = x[at] - mean[c];
        v[1] = v[0] * v[0];
    }
};
template <class Sum>
struct StoreVariance {
    double places;
    Sum *low, *variance;
    FUSEDNN_DEVICE void operator()(i64 c, const double (&sum)[2]) const {
        const double rest = sum[0] / places, found = sum[1] / places - rest * rest;
        low[c] = Sum(rest);
        variance[c] = Sum(found < 0 ? 0.0 : found);
    }
};

// ---- apply ----------------------------------------

template <class T>
struct Apply {
    using Sum = Accumulate<T>;
    i64 channels;
    bool relu;
    Shared<T> x;
    const Sum* stats;
    Shared<T> weight, bias;
    SharedOut<T> y;
    template <int kWide>
    FUSEDNN_DEVICE void run(i64 at, i64 c) const {
        auto v = load_wide<kWide>(x + at);
        const auto center = Center<Sum>::of(stats, channels, c);
        const Sum scale = center.rstd * (weight ? Sum(weight[c]) : Sum(1));
        const Sum shift = bias ? Sum(bias[c]) : Sum(0);
        for (int i = 0; i < kWide; ++i) {
            const Sum value = (v.of[i] - center.mean - center.low) * scale + shift;
            v.of[i] = relu && value <= Sum(0) ? Sum(0) : value;
        }
        store_wide<kWide>(y + at, v);
    }
};

// ---- backward ----------------------------------------

template <class T>
struct GradTerms {
    using Sum = Accumulate<T>;
    static constexpr int kInputs = 3;
    i64 channels;
    Shared<T> dy, x, y;  // y: null without ReLU
    const Sum* stats;
    FUSEDNN_DEVICE void operator()(i64 at, i64, i64 c, Sum (&v)[2]) const {
        v[0] = y && y[at] <= Sum(0) ? Sum(0) : Sum(dy[at]);
        v[1] = v[0] * Center<Sum>::of(stats, channels, c)(x[at]);
    }
};
// means (2, channels) of g and g * xhat.
template <class T>
struct StoreSums {
    using Sum = Accumulate<T>;
    double places;  // 0: the statistics are constants
    i64 channels;
    Sum* means;
    SharedOut<T> dw, db;
    FUSEDNN_DEVICE void operator()(i64 c, const double (&sum)[2]) const {
        means[c] = places > 0 ? Sum(sum[0] / places) : Sum(0);
        means[channels + c] = places > 0 ? Sum(sum[1] / places) : Sum(0);
        if (db) db[c] = Sum(sum[0]);
        if (dw) dw[c] = Sum(sum[1]);
    }
};
template <class T>
struct Backward {
    using Sum = Accumulate<T>;
    i64 channels;
    Shared<T> dy, x, y;  // y: null without ReLU
    const Sum* stats;
    Shared<T> weight;
    const Sum* means;  // null: the statistics are constants
    SharedOut<T> dx;
    template <int kWide>
    FUSEDNN_DEVICE void run(i64 at, i64 c) const {
        auto g = load_wide<kWide>(dy + at);
        if (y) {
            const auto out = load_wide<kWide>(y + at);
            for (int i = 0; i < kWide; ++i) g.of[i] = out.of[i] <= Sum(0) ? Sum(0) : g.of[i];
        }
        const auto center = Center<Sum>::of(stats, channels, c);
        if (means) {
            const auto in = load_wide<kWide>(x + at);
            const Sum mean = means[c], slope = means[channels + c];
            for (int i = 0; i < kWide; ++i) g.of[i] = g.of[i] - mean - center(in.of[i]) * slope;
        }
        const Sum scale = center.rstd * (weight ? Sum(weight[c]) : Sum(1));
        for (int i = 0; i < kWide; ++i) g.of[i] *= scale;
        store_wide<kWide>(dx + at, g);
    }
};

// ---- running statistics ----------------------------------------

// `unbiased`: what makes the running variance so. From mean, low and variance in stats, or from the
// running ones, to mean, low and rstd.
template <class T>
__global__ void __launch_bounds__(kThreads)
    finish_stats(BatchNormParams p, double momentum, double unbiased, double eps, T* running_mean,
                 T* running_var, T* stats) {
    const i64 step = i64(gridDim.x) * blockDim.x;
#pragma unroll 1
    for (i64 c = i64(blockIdx.x) * blockDim.x + threadIdx.x; c < p.channels; c += step) {
        T variance = T(0);
        if (!p.training) {
            stats[c] = running_mean[c];
            stats[p.channels + c] = T(0);
            variance = running_var[c];
        } else if (p.outer * p.inner == 0) {  // an empty batch says nothing
            stats[c] = stats[p.channels + c] = T(0);
        } else {
            variance = stats[2 * p.channels + c];
            const double found = double(stats[c]) + double(stats[p.channels + c]);
            if (running_mean) {
                running_mean[c] = T((1 - momentum) * double(running_mean[c]) + momentum * found);
            }
            if (running_var) {
                const double found = double(variance) * unbiased;
                running_var[c] = T((1 - momentum) * double(running_var[c]) + momentum * found);
            }
        }
        stats[2 * p.channels + c] = T(1.0 / sqrt(double(variance) + eps));
    }
}

}  // namespace

template <class T>
void batch_norm_stats(const BatchNormParams& p, const T* x, Accumulate<T>* mean, Accumulate<T>* low,
                      Accumulate<T>* variance) {
    using Sum = Accumulate<T>;
    using Held = Storage<T>;
    const double places = double(p.outer * p.inner);
    sum_channels<1, Sum>("batch_norm_stats", view_of(p), Values<Held>{reading(x)},
                         StoreMean<Sum>{places, mean});
    sum_channels<2, Sum>("batch_norm_stats", view_of(p), Deviations<Held>{reading(x), mean},
                         StoreVariance<Sum>{places, low, variance});
}

template <class T>
void batch_norm_apply(const BatchNormParams& p, const T* x, const Accumulate<T>* stats,
                      const T* weight, const T* bias, T* y) {
    const bool packs = detail::whole_packs(x) && detail::whole_packs(y);
    map_channels<Storage<T>>("batch_norm_apply", view_of(p), packs,
                             Apply<Storage<T>>{p.channels, p.relu, reading(x), stats,
                                               reading(weight), reading(bias), writing(y)});
}

template <class T>
void batch_norm_backward(const BatchNormParams& p, const T* dy, const T* x, const T* y,
                         const Accumulate<T>* stats, const T* weight, T* dx, T* dw, T* db) {
    using Sum = Accumulate<T>;
    using Held = Storage<T>;
    const char* name = "batch_norm_backward";
    const ChannelView view = view_of(p);
    const bool packs = detail::whole_packs(dy) && detail::whole_packs(x) &&
                       detail::whole_packs(y) && detail::whole_packs(dx);
    if (!p.relu) y = nullptr;
    const Workspace<Sum> means(2 * p.channels);
    if (p.training || dw || db) {
        const double places = p.training ? double(p.outer * p.inner) : 0;
        sum_channels<2, Sum>(
            name, view, GradTerms<Held>{p.channels, reading(dy), reading(x), reading(y), stats},
            StoreSums<Held>{places, p.channels, means.get(), writing(dw), writing(db)});
    }
    map_channels<Held>(
        name, view, packs,
        Backward<Held>{p.channels, reading(dy), reading(x), reading(y), stats, reading(weight),
                       p.training ? means.get() : nullptr, writing(dx)});
}

template <class T>
void batch_norm_running(const BatchNormParams& p, const T* x, Accumulate<T>* running_mean,
                        Accumulate<T>* running_var, double momentum, double eps,
                        Accumulate<T>* stats) {
    if (p.training && p.outer * p.inner > 0) {
        batch_norm_stats(p, x, stats, stats + p.channels, stats + 2 * p.channels);
    }
    const double count = double(p.outer * p.inner);
    launch("batch_norm_stats", {blocks_for(p.channels, kThreads), kThreads},
           finish_stats<Accumulate<T>>, p, momentum, count / (count - 1), eps, running_mean,
           running_var, stats);
}

#define FUSEDNN_BATCH_NORM(T)                                                                  \
    template void batch_norm_stats<T>(const BatchNormParams&, const T*, Accumulate<T>*,        \
                                      Accumulate<T>*, Accumulate<T>*);                         \
    template void batch_norm_apply<T>(const BatchNormParams&, const T*, const Accumulate<T>*,  \
                                      const T*, const T*, T*);                                 \
    template void batch_norm_backward<T>(const BatchNormParams&, const T*, const T*, const T*, \
                                         const Accumulate<T>*, const T*, T*, T*, T*);          \
    template void batch_norm_running<T>(const BatchNormParams&, const T*, Accumulate<T>*,      \
                                        Accumulate<T>*, double, double, Accumulate<T>*);
FUSEDNN_INSTANTIATE(FUSEDNN_BATCH_NORM)
FUSEDNN_INSTANTIATE_HALF(FUSEDNN_BATCH_NORM)

}  // namespace fusednn::cuda
