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
    const T* x;
    FUSEDNN_DEVICE void operator()(i64 at, i64, i64, T (&v)[1]) const { v[0] = x[at]; }
};
template <class T>
struct StoreMean {
    double places;
    T* mean;
    FUSEDNN_DEVICE void operator()(i64 c, const double (&sum)[1]) const {
        mean[c] = T(sum[0] / places);
    }
};
template <class T>
struct Deviations {
    const T *x, *mean;
    FUSEDNN_DEVICE void operator()(i64 at, i64, i64 c, T (&v)[2]) const {
        v[0] = x[at] - mean[c];
        v[1] = v[0] * v[0];
    }
};
template <class T>
struct StoreVariance {
    double places;
    T *low, *variance;
    FUSEDNN_DEVICE void operator()(i64 c, const double (&sum)[2]) const {
        const double rest = sum[0] / places, found = sum[1] / places - rest * rest;
        low[c] = T(rest);
        variance[c] = T(found < 0 ? 0.0 : found);
    }
};

// ---- apply ----------------------------------------

template <class T, bool kRelu>
struct Apply {
    i64 channels;
    const T *x, *stats, *weight, *bias;
    T* y;
    template <int kWide>
    FUSEDNN_DEVICE void run(i64 at, i64 channel, i64 step) const {
        auto v = load_wide<kWide>(x + at);
        for (int i = 0; i < kWide; ++i) {
            const i64 c = channel + i * step;
            const auto center = Center<T>::of(stats, channels, c);
            const T scale = center.rstd * (weight ? weight[c] : T(1));
            v.of[i] = (v.of[i] - center.mean - center.low) * scale + (bias ? bias[c] : T(0));
            if constexpr (kRelu) v.of[i] = v.of[i] <= T(0) ? T(0) : v.of[i];
        }
        store_wide<kWide>(y + at, v);
    }
};

// ---- backward ----------------------------------------

template <class T, bool kRelu>
struct GradTerms {
    i64 channels;
    const T *dy, *x, *y, *stats;
    FUSEDNN_DEVICE void operator()(i64 at, i64, i64 c, T (&v)[2]) const {
        v[0] = kRelu && y[at] <= T(0) ? T(0) : dy[at];
        v[1] = v[0] * Center<T>::of(stats, channels, c)(x[at]);
    }
};
// means (2, channels) of g and g * xhat.
template <class T>
struct StoreSums {
    double places;  // 0: the statistics are constants
    i64 channels;
    T *means, *dw, *db;
    FUSEDNN_DEVICE void operator()(i64 c, const double (&sum)[2]) const {
        means[c] = places > 0 ? T(sum[0] / places) : T(0);
        means[channels + c] = places > 0 ? T(sum[1] / places) : T(0);
        if (db) db[c] = T(sum[0]);
        if (dw) dw[c] = T(sum[1]);
    }
};
template <class T, bool kRelu, bool kTraining>
struct Backward {
    i64 channels;
    const T *dy, *x, *y, *stats, *weight, *means;
    T* dx;
    template <int kWide>
    FUSEDNN_DEVICE void run(i64 at, i64 channel, i64 step) const {
        auto g = load_wide<kWide>(dy + at);
        Wide<T, kWide> in{}, out{};
        if constexpr (kTraining) in = load_wide<kWide>(x + at);
        if constexpr (kRelu) out = load_wide<kWide>(y + at);
        for (int i = 0; i < kWide; ++i) {
            const i64 c = channel + i * step;
            const auto center = Center<T>::of(stats, channels, c);
            T grad = kRelu && out.of[i] <= T(0) ? T(0) : g.of[i];
            if constexpr (kTraining) {
                grad = grad - means[c] - center(in.of[i]) * means[channels + c];
            }
            g.of[i] = grad * (center.rstd * (weight ? weight[c] : T(1)));
        }
        store_wide<kWide>(dx + at, g);
    }
};

template <class T, bool kRelu>
void backward(const BatchNormParams& p, const T* dy, const T* x, const T* y, const T* stats,
              const T* weight, T* dx, T* dw, T* db) {
    const char* name = "batch_norm_backward";
    const ChannelView view = view_of(p);
    const bool packs = detail::whole_packs(dy) && detail::whole_packs(x) &&
                       detail::whole_packs(y) && detail::whole_packs(dx);
    const Workspace<T> means(2 * p.channels);
    if (p.training || dw || db) {
        const double places = p.training ? double(p.outer * p.inner) : 0;
        sum_channels<2, T>(name, view, GradTerms<T, kRelu>{p.channels, dy, x, y, stats},
                           StoreSums<T>{places, p.channels, means.get(), dw, db});
    }
    if (p.training) {
        map_channels<T>(
            name, view, packs,
            Backward<T, kRelu, true>{p.channels, dy, x, y, stats, weight, means.get(), dx});
    } else {
        map_channels<T>(
            name, view, packs,
            Backward<T, kRelu, false>{p.channels, dy, x, y, stats, weight, nullptr, dx});
    }
}

// ---- running statistics ----------------------------------------

// From mean, low and variance in stats, or from the running ones, to mean, low and rstd.
template <class T>
__global__ void __launch_bounds__(kThreads)
    finish_stats(BatchNormParams p, double momentum, double eps, T* running_mean, T* running_var,
                 T* stats) {
    const double count = double(p.outer * p.inner);
    const i64 step = i64(gridDim.x) * blockDim.x;
    for (i64 c = i64(blockIdx.x) * blockDim.x + threadIdx.x; c < p.channels; c += step) {
        T variance = T(0);
        if (!p.training) {
            stats[c] = running_mean[c];
            stats[p.channels + c] = T(0);
            variance = running_var[c];
        } else if (count == 0) {  // an empty batch says nothing
            stats[c] = stats[p.channels + c] = T(0);
        } else {
            variance = stats[2 * p.channels + c];
            const double found = double(stats[c]) + double(stats[p.channels + c]);
            if (running_mean) {
                running_mean[c] = T((1 - momentum) * double(running_mean[c]) + momentum * found);
            }
            if (running_var) {
                const double unbiased = double(variance) * (count / (count - 1));
                running_var[c] = T((1 - momentum) * double(running_var[c]) + momentum * unbiased);
            }
        }
        stats[2 * p.channels + c] = T(1.0 / sqrt(double(variance) + eps));
    }
}

}  // namespace

template <class T>
void batch_norm_stats(const BatchNormParams& p, const T* x, T* mean, T* low, T* variance) {
    const double places = double(p.outer * p.inner);
    sum_channels<1, T>("batch_norm_stats", view_of(p), Values<T>{x}, StoreMean<T>{places, mean});
    sum_channels<2, T>("batch_norm_stats", view_of(p), Deviations<T>{x, mean},
                       StoreVariance<T>{places, low, variance});
}

template <class T>
void batch_norm_apply(const BatchNormParams& p, const T* x, const T* stats, const T* weight,
                      const T* bias, T* y) {
    const bool packs = detail::whole_packs(x) && detail::whole_packs(y);
    const char* name = "batch_norm_apply";
    p.relu ? map_channels<T>(name, view_of(p), packs,
                             Apply<T, true>{p.channels, x, stats, weight, bias, y})
           : map_channels<T>(name, view_of(p), packs,
                             Apply<T, false>{p.channels, x, stats, weight, bias, y});
}

template <class T>
void batch_norm_backward(const BatchNormParams& p, const T* dy, const T* x, const T* y,
                         const T* stats, const T* weight, T* dx, T* dw, T* db) {
    p.relu ? backward<T, true>(p, dy, x, y, stats, weight, dx, dw, db)
           : backward<T, false>(p, dy, x, y, stats, weight, dx, dw, db);
}

template <class T>
void batch_norm_running(const BatchNormParams& p, const T* x, T* running_mean, T* running_var,
                        double momentum, double eps, T* stats) {
    if (p.training && p.outer * p.inner > 0) {
        batch_norm_stats(p, x, stats, stats + p.channels, stats + 2 * p.channels);
    }
    launch("batch_norm_stats", {blocks_for(p.channels, kThreads), kThreads}, finish_stats<T>, p,
           momentum, eps, running_mean, running_var, stats);
}

#define FUSEDNN_BATCH_NORM(T)                                                                     \
    template void batch_norm_stats<T>(const BatchNormParams&, const T*, T*, T*, T*);              \
    template void batch_norm_apply<T>(const BatchNormParams&, const T*, const T*, const T*,       \
                                      const T*, T*);                                              \
    template void batch_norm_backward<T>(const BatchNormParams&, const T*, const T*, const T*,    \
                                         const T*, const T*, T*, T*, T*);                         \
    template void batch_norm_running<T>(const BatchNormParams&, const T*, T*, T*, double, double, \
                                        T*);
FUSEDNN_INSTANTIATE(FUSEDNN_BATCH_NORM)

}  // namespace fusednn::cuda
