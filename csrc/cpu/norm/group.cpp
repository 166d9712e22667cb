// group_norm: every group of channels of every image for itself; one channel a group is
// instance_norm.
// x, y, dy, dx (batch, channels, inner); weight, bias, dw, db (channels);
// stats (3, batch * groups): mean, low, rstd.
//
//   forward   1. mean and variance of the group   2. y, channel by channel
//   backward  1. of each channel of each image the sums of dy and dy * xhat
//             2. from them mean(g) and mean(g * xhat) of the group with g = dy * weight, and dx
//             3. dw and db: the sums added over the batch
//
// Wu, He, "Group normalization", ECCV 2018.
#include "cpu/kernels.h"
#include "cpu/norm/norm.h"

namespace fusednn {
namespace FUSEDNN_ISA {

namespace {

constexpr i64 kPassCost = 8;

template <class T>
struct Center {
    Vec<T> mean, low, rstd;
    FUSEDNN_INLINE Center(const T* stats, i64 count, i64 at)
        : mean(broadcast(stats[at])),
          low(broadcast(stats[count + at])),
          rstd(broadcast(stats[2 * count + at])) {}
    FUSEDNN_INLINE Vec<T> operator()(Vec<T> x) const { return (x - mean - low) * rstd; }
};

// Passes 1 and 2 of backward for one group; sums (2, batch, channels).
template <class T>
void backward_group(const GroupNormParams& p, i64 image, i64 group, const T* dy, const T* x,
                    const T* weight, const T* stats, T* dx, T* sums) {
    const i64 each = p.channels / p.groups, first = image * p.channels + group * each;
    const i64 all = p.batch * p.channels;
    const Center<T> xhat(stats, p.batch * p.groups, image * p.groups + group);
    double mean_g = 0, mean_gx = 0;
    for (i64 c = 0; c < each; ++c) {
        const T *grad = dy + (first + c) * p.inner, *in = x + (first + c) * p.inner;
        double sum[2];
        row_sums<2, T>(p.inner, sum, [=](i64 k, auto load_at, Vec<T>(&v)[2]) {
            v[0] = load_at(grad + k);
            v[1] = v[0] * xhat(load_at(in + k));
        });
        sums[first + c] = T(sum[0]);
        sums[all + first + c] = T(sum[1]);
        const double w = weight ? double(weight[group * each + c]) : 1.0;
        mean_g += w * sum[0];
        mean_gx += w * sum[1];
    }
    const double count = double(each * p.inner);
    const Vec<T> g = broadcast(T(mean_g / count)), gx = broadcast(T(mean_gx / count));
    for (i64 c = 0; c < each; ++c) {
        const T *grad = dy + (first + c) * p.inner, *in = x + (first + c) * p.inner;
        T* to = dx + (first + c) * p.inner;
        const Vec<T> w = broadcast(weight ? weight[group * each + c] : T(1));
        for_row_vectors<T>(p.inner, [=](i64 k, auto load_at, auto store_at) {
            store_at(to + k, (load_at(grad + k) * w - g - xhat(load_at(in + k)) * gx) * xhat.rstd);
        });
    }
}

}  // namespace

template <class T>
void group_norm_forward(const GroupNormParams& p, const T* x, const T* weight, const T* bias, T* y,
                        T* stats) {
    const i64 rows = p.batch * p.groups, each = p.channels / p.groups, size = each * p.inner;
    for_row_blocks(rows, size * kPassCost / kExpCost + 1, [&](i64 begin, i64 end) {
        for (i64 row = begin; row < end; ++row) {
            const Moments<T> found = row_moments(size, x + row * size);
            stats[row] = found.mean;
            stats[rows + row] = found.low;
            stats[2 * rows + row] = reciprocal_root<T>(found.variance, p.eps);
            const Center<T> xhat(stats, rows, row);
            for (i64 c = 0; c < each; ++c) {
                const i64 channel = row % p.groups * each + c;
                const T* in = x + row * size + c * p.inner;
                T* to = y + row * size + c * p.inner;
                const Vec<T> w = broadcast(weight ? weight[channel] : T(1));
                const Vec<T> b = broadcast(bias ? bias[channel] : T(0));
                for_row_vectors<T>(p.inner, [=](i64 k, auto load_at, auto store_at) {
                    store_at(to + k, xhat(load_at(in + k)) * w + b);
                });
            }
        }
    });
}

template <class T>
void group_norm_backward(const GroupNormParams& p, const T* dy, const T* x, const T* weight,
                         const T* stats, T* dx, T* dw, T* db) {
    const i64 rows = p.batch * p.groups, size = p.channels / p.groups * p.inner;
    Workspace<T> memory(2 * p.batch * p.channels + 1);
    T* const sums = memory.get();
    for_row_blocks(rows, size * kPassCost / kExpCost + 1, [&](i64 begin, i64 end) {
        for (i64 row = begin; row < end; ++row) {
            backward_group(p, row / p.groups, row % p.groups, dy, x, weight, stats, dx, sums);
        }
    });
    if (db) add_rows(p.batch, p.channels, sums, db);
    if (dw) add_rows(p.batch, p.channels, sums + p.batch * p.channels, dw);
}

#define FUSEDNN_GROUP_NORM(T)                                                                     \
    template void group_norm_forward<T>(const GroupNormParams&, const T*, const T*, const T*, T*, \
                                        T*);                                                      \
    template void group_norm_backward<T>(const GroupNormParams&, const T*, const T*, const T*,    \
                                         const T*, T*, T*, T*);
FUSEDNN_INSTANTIATE(FUSEDNN_GROUP_NORM)

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
