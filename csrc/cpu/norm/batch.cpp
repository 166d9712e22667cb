// batch_norm: every channel over batch and space.
// x, y, dy, dx (outer, channels, inner); weight, bias, dw, db (channels);
// stats (3, channels): mean, low, rstd.
//
//   stats     1. mean and variance of every slice (some images of one channel), read while it is
//                in the cache   2. the slices' results joined, first to last
//   apply     y = (x - mean) * rstd * weight + bias, then ReLU if asked
//   backward  1. of every slice the sums of g and g * xhat, with g = dy, or 0 where y was cut by
//                ReLU   2. joined: db and dw
//             3. dx = weight * rstd * (g - mean(g) - xhat * mean(g * xhat)), in evaluation (the
//                statistics are constants) weight * rstd * g
//
// Ioffe, Szegedy, "Batch
// normalization", ICML 2015; joining: Chan, Golub, LeVeque 1983.
#include "cpu/kernels.h"
#include "cpu/norm/norm.h"

namespace fusednn {
namespace FUSEDNN_ISA {

namespace {

constexpr i64 kPassCost = 6;

FUSEDNN_INLINE ChannelShape shape_of(const BatchNormParams& p) {
    return {p.outer, p.channels, p.inner};
}

template <bool kValue>
struct Flag {
    static constexpr bool value = kValue;
};

}  // namespace

template <class T>
void batch_norm_stats(const BatchNormParams& p, const T* x, T* mean, T* low, T* variance) {
    const ChannelShape shape = shape_of(p);
    const ChannelCut cut = cut_channels(shape);
    const i64 entries = cut.slices * p.channels;
    Workspace<double> memory(3 * entries + 1);
    double *const means = memory.get(), *const lows = means + entries,
                  *const squares = lows + entries;
    for_slices<T>(shape_of(p), kPassCost, [&](const auto& slice, i64 number) {
        double sum[1][kLanes<T>], rest[2][kLanes<T>];
        const double size = double(slice.size());
        T center[kLanes<T>] = {};
        slice.template sums<1>(
            sum, [&](i64 at, auto load_at, Vec<T>(&v)[1]) { v[0] = load_at(x + at); });
        for (int i = 0; i < slice.count; ++i) center[i] = T(sum[0][i] / size);
        const Vec<T> middle = slice.of_slice(center);
        slice.template sums<2>(rest, [&](i64 at, auto load_at, Vec<T>(&v)[2]) {
            v[0] = load_at(x + at) - middle;
            v[1] = v[0] * v[0];
        });
        for (int i = 0; i < slice.count; ++i) {
            const i64 entry = number * p.channels + slice.channel + i;
            means[entry] = double(center[i]);
            lows[entry] = rest[0][i] / size;
            squares[entry] = rest[1][i] - rest[0][i] * lows[entry];
        }
    });
    const double total = double(p.outer * p.inner);
    for (i64 c = 0; c < p.channels; ++c) {
        const double start = means[c];
        double step = 0, square = 0;
        const auto size = [&](i64 s) { return double(slice_size(shape, cut, s)); };
        for (i64 s = 0; s < cut.slices; ++s) {
            const i64 entry = s * p.channels + c;
            step += size(s) * ((means[entry] - start) + lows[entry]);
        }
        step /= total;
        for (i64 s = 0; s < cut.slices; ++s) {
            const i64 entry = s * p.channels + c;
            const double away = (means[entry] - start) + lows[entry] - step;
            square += squares[entry] + size(s) * away * away;
        }
        const Moments<T> joined = split_mean<T>(start, step, square / total);
        mean[c] = joined.mean;
        low[c] = joined.low;
        variance[c] = T(max_of(joined.variance, 0.0));
    }
}

template <class T>
void batch_norm_apply(const BatchNormParams& p, const T* x, const T* stats, const T* weight,
                      const T* bias, T* y) {
    const T *const mean = stats, *const low = stats + p.channels;
    Workspace<T> memory(2 * p.channels + 1);
    T *const scale = memory.get(), *const shift = scale + p.channels;
    for (i64 c = 0; c < p.channels; ++c) {
        scale[c] = stats[2 * p.channels + c] * (weight ? weight[c] : T(1));
        shift[c] = bias ? bias[c] : T(0);
    }
    const auto run = [&](auto relu) {
        map_channels<T>(shape_of(p), [=](i64 at, auto load_at, auto store_at, auto of_channel) {
            Vec<T> v = load_at(x + at) - of_channel(mean) - of_channel(low);
            v = v * of_channel(scale) + of_channel(shift);
            if constexpr (decltype(relu)::value) v = larger<T>(v, Vec<T>{});
            store_at(y + at, v);
        });
    };
    if (p.relu) {
        run(Flag<true>{});
    } else {
        run(Flag<false>{});
    }
}

template <class T>
void batch_norm_backward(const BatchNormParams& p, const T* dy, const T* x, const T* y,
                         const T* stats, const T* weight, T* dx, T* dw, T* db) {
    const T *const mean = stats, *const low = stats + p.channels, *const rstd = low + p.channels;
    const i64 slices = cut_channels(shape_of(p)).slices, entries = slices * p.channels;
    Workspace<double> memory(2 * entries + 1);
    double* const partial = memory.get();
    Workspace<T> values(3 * p.channels + 1);
    T *const mean_g = values.get(), *const mean_gx = mean_g + p.channels;
    T* const scale = mean_gx + p.channels;
    const auto run = [&](auto relu) {
        const auto grad = [=](i64 at, auto load_at) {
            const Vec<T> g = load_at(dy + at);
            if constexpr (decltype(relu)::value) {
                return select<T>(load_at(y + at) <= Vec<T>{}, Vec<T>{}, g);
            } else {
                return g;
            }
        };
        for_slices<T>(shape_of(p), kPassCost, [&](const auto& slice, i64 number) {
            const Vec<T> m = slice.of_channel(mean), l = slice.of_channel(low);
            const Vec<T> r = slice.of_channel(rstd);
            double sum[2][kLanes<T>];
            slice.template sums<2>(sum, [&](i64 at, auto load_at, Vec<T>(&v)[2]) {
                v[0] = grad(at, load_at);
                v[1] = v[0] * ((load_at(x + at) - m - l) * r);
            });
            for (int n = 0; n < 2; ++n) {
                for (int i = 0; i < slice.count; ++i) {
                    partial[n * entries + number * p.channels + slice.channel + i] = sum[n][i];
                }
            }
        });
        const double total = double(p.outer * p.inner);
        for (i64 c = 0; c < p.channels; ++c) {
            double sum[2] = {0, 0};
            for (int n = 0; n < 2; ++n) {
                for (i64 s = 0; s < slices; ++s)
                    sum[n] += partial[n * entries + s * p.channels + c];
            }
            mean_g[c] = p.training && total > 0 ? T(sum[0] / total) : T(0);
            mean_gx[c] = p.training && total > 0 ? T(sum[1] / total) : T(0);
            scale[c] = rstd[c] * (weight ? weight[c] : T(1));
            if (db) db[c] = T(sum[0]);
            if (dw) dw[c] = T(sum[1]);
        }
        map_channels<T>(shape_of(p), [=](i64 at, auto load_at, auto store_at, auto of_channel) {
            Vec<T> g = grad(at, load_at);
            if (p.training) {
                const Vec<T> xhat =
                    (load_at(x + at) - of_channel(mean) - of_channel(low)) * of_channel(rstd);
                g = g - of_channel(mean_g) - xhat * of_channel(mean_gx);
            }
            store_at(dx + at, g * of_channel(scale));
        });
    };
    if (p.relu) {
        run(Flag<true>{});
    } else {
        run(Flag<false>{});
    }
}

#define FUSEDNN_BATCH_NORM(T)                                                                  \
    template void batch_norm_stats<T>(const BatchNormParams&, const T*, T*, T*, T*);           \
    template void batch_norm_apply<T>(const BatchNormParams&, const T*, const T*, const T*,    \
                                      const T*, T*);                                           \
    template void batch_norm_backward<T>(const BatchNormParams&, const T*, const T*, const T*, \
                                         const T*, const T*, T*, T*, T*);
FUSEDNN_INSTANTIATE(FUSEDNN_BATCH_NORM)

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
