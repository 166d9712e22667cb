// group_norm: every group of channels of every image for itself; one channel a group is
// instance_norm.
// x, y, dy, dx (batch, channels, inner); weight, bias, dw, db (channels);
// stats (3, batch * groups): mean, low, rstd.
//
//   forward   1. mean and variance of the group   2. y
//   backward  1. of each channel of each image the sums of dy and dy * xhat
//             2. from them mean(g) and mean(g * xhat) of each group, with g = dy * weight
//             3. dx   4. dw and db: the sums added over the batch, first to last
#include "cuda/channels.h"
#include "cuda/gpu.h"
#include "cuda/kernels.h"
#include "cuda/norm/moments.h"

namespace fusednn::cuda {

namespace {

constexpr int kThreads = 256;

template <int kTeam, int kWide, class T>
__global__ void __launch_bounds__(kRowThreads, 4)
    forward_rows(GroupNormParams p, const T* __restrict__ x, const T* __restrict__ weight,
                 const T* __restrict__ bias, T* __restrict__ y, T* stats) {
    const i64 rows = p.batch * p.groups, each = p.channels / p.groups, size = each * p.inner;
    for (i64 first = first_row<kTeam>(); first < rows; first += row_step<kTeam>()) {
        const RowTeam<kTeam, kWide> team(first, rows, size);
        const T* row = x + team.row * size;
        T* to = y + team.row * size;
        const Center<T> center = row_center<T>(team, row, false, p.eps);
        if (team.live && team.lane == 0) store_center(center, stats, rows, team.row);
        const i64 channel = team.row % p.groups * each;
        team.each([&](i64 k) {
            auto v = load_wide<kWide>(row + k);
            for (int i = 0; i < kWide; ++i) {
                const i64 c = channel + quotient(k + i, p.inner);
                v.of[i] = center(v.of[i]) * (weight ? weight[c] : T(1)) + (bias ? bias[c] : T(0));
            }
            store_wide<kWide>(to + k, v);
        });
    }
}

// sums (2, batch * channels).
template <int kTeam, int kWide, class T>
__global__ void __launch_bounds__(kRowThreads)
    channel_sums(GroupNormParams p, const T* __restrict__ dy, const T* __restrict__ x,
                 const T* __restrict__ stats, double* __restrict__ sums) {
    const i64 rows = p.batch * p.channels, each = p.channels / p.groups;
    for (i64 first = first_row<kTeam>(); first < rows; first += row_step<kTeam>()) {
        const RowTeam<kTeam, kWide> team(first, rows, p.inner);
        const i64 begin = team.row * p.inner;
        const auto center = Center<T>::of(stats, p.batch * p.groups, team.row / each);
        double sum_g = 0, sum_gx = 0;
        team.each([&](i64 k) {
            auto g = load_wide<kWide>(dy + begin + k);
            const auto v = load_wide<kWide>(x + begin + k);
            sum_g += wide_sum<kWide>(g);
            for (int i = 0; i < kWide; ++i) g.of[i] *= center(v.of[i]);
            sum_gx += wide_sum<kWide>(g);
        });
        sum_g = team.all(sum_g, Add());
        sum_gx = team.all(sum_gx, Add());
        if (team.live && team.lane == 0) {
            sums[team.row] = sum_g;
            sums[rows + team.row] = sum_gx;
        }
    }
}

// means (2, batch * groups) of g and g * xhat.
template <class T>
__global__ void __launch_bounds__(kThreads)
    group_means(GroupNormParams p, const double* __restrict__ sums, const T* __restrict__ weight,
                T* __restrict__ means) {
    const i64 groups = p.batch * p.groups, each = p.channels / p.groups;
    const i64 all = p.batch * p.channels, step = i64(gridDim.x) * blockDim.x;
    for (i64 at = i64(blockIdx.x) * blockDim.x + threadIdx.x; at < groups; at += step) {
        double sum_g = 0, sum_gx = 0;
        for (i64 c = 0; c < each; ++c) {
            const double w = weight ? double(weight[at % p.groups * each + c]) : 1.0;
            sum_g += w * sums[at * each + c];
            sum_gx += w * sums[all + at * each + c];
        }
        means[at] = T(sum_g / double(each * p.inner));
        means[groups + at] = T(sum_gx / double(each * p.inner));
    }
}

// A view of one "channel" for each channel of each image.
template <class T>
struct Backward {
    i64 channels, each, groups;  // groups: of the whole batch
    const T *dy, *x, *weight, *stats, *means;
    T* dx;
    template <int kWide>
    FUSEDNN_DEVICE void run(i64 at, i64 row, i64 step) const {
        auto g = load_wide<kWide>(dy + at);
        const auto v = load_wide<kWide>(x + at);
        for (int i = 0; i < kWide; ++i) {
            const i64 here = row + i * step, group = quotient(here, each);
            const i64 channel = here - quotient(here, channels) * channels;
            const auto center = Center<T>::of(stats, groups, group);
            const T grad = g.of[i] * (weight ? weight[channel] : T(1));
            g.of[i] = (grad - means[group] - center(v.of[i]) * means[groups + group]) * center.rstd;
        }
        store_wide<kWide>(dx + at, g);
    }
};

template <class T>
__global__ void __launch_bounds__(kThreads)
    add_images(i64 batch, i64 channels, const double* __restrict__ sums, T* dw, T* db) {
    const i64 step = i64(gridDim.x) * blockDim.x;
    for (i64 c = i64(blockIdx.x) * blockDim.x + threadIdx.x; c < channels; c += step) {
        double sum_g = 0, sum_gx = 0;
        for (i64 n = 0; n < batch; ++n) {
            sum_g += sums[n * channels + c];
            sum_gx += sums[(batch + n) * channels + c];
        }
        if (db) db[c] = T(sum_g);
        if (dw) dw[c] = T(sum_gx);
    }
}

}  // namespace

template <class T>
void group_norm_forward(const GroupNormParams& p, const T* x, const T* weight, const T* bias, T* y,
                        T* stats) {
    const i64 rows = p.batch * p.groups, size = p.channels / p.groups * p.inner;
    with_team<T>(size, rows_of_packs<T>(size, x, y), [&](auto team, auto wide) {
        constexpr int threads = decltype(team)::value;
        launch("group_norm_forward", row_shape<threads>(rows),
               forward_rows<threads, decltype(wide)::value, T>, p, x, weight, bias, y, stats);
    });
}

template <class T>
void group_norm_backward(const GroupNormParams& p, const T* dy, const T* x, const T* weight,
                         const T* stats, T* dx, T* dw, T* db) {
    const char* name = "group_norm_backward";
    const i64 rows = p.batch * p.channels, groups = p.batch * p.groups;
    const i64 each = p.channels / p.groups;
    const Workspace<double> sums(2 * rows);
    const Workspace<T> means(2 * groups);
    with_team<T>(p.inner, rows_of_packs<T>(p.inner, dy, x), [&](auto team, auto wide) {
        constexpr int threads = decltype(team)::value;
        launch(name, row_shape<threads>(rows), channel_sums<threads, decltype(wide)::value, T>, p,
               dy, x, stats, sums.get());
    });
    launch(name, {blocks_for(groups, kThreads), kThreads}, group_means<T>, p, sums.get(), weight,
           means.get());
    const bool packs = detail::whole_packs(dy) && detail::whole_packs(x) && detail::whole_packs(dx);
    map_channels<T>(name, {1, rows, p.inner}, packs,
                    Backward<T>{p.channels, each, groups, dy, x, weight, stats, means.get(), dx});
    if (dw || db) {
        launch(name, {blocks_for(p.channels, kThreads), kThreads}, add_images<T>, p.batch,
               p.channels, sums.get(), dw, db);
    }
}

#define FUSEDNN_GROUP_NORM(T)                                                                     \
    template void group_norm_forward<T>(const GroupNormParams&, const T*, const T*, const T*, T*, \
                                        T*);                                                      \
    template void group_norm_backward<T>(const GroupNormParams&, const T*, const T*, const T*,    \
                                         const T*, T*, T*, T*);
FUSEDNN_INSTANTIATE(FUSEDNN_GROUP_NORM)

}  // namespace fusednn::cuda
