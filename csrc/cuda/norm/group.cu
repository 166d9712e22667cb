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

// each: channels of a group.
template <int kWide, class T>
__global__ void __launch_bounds__(kRowThreads, 4)
    forward_rows(GroupNormParams p, i64 each, int threads, In<T> x, In<T> weight, In<T> bias,
                 Out<T> y, Accumulate<T>* stats) {
    using Sum = Accumulate<T>;
    const i64 rows = p.batch * p.groups, size = each * p.inner;
#pragma unroll 1
    for (i64 first = first_row(threads); first < rows; first += row_step(threads)) {
        const RowTeam<kWide> team(threads, first, rows, size);
        const auto row = x + team.row * size;
        const auto to = y + team.row * size;
        const Center<Sum> center = row_center<Sum>(team, row, false, p.eps);
        if (team.live && team.lane == 0) store_center(center, stats, rows, team.row);
        const i64 channel = (team.row - quotient(team.row, p.groups) * p.groups) * each;
        team.each([&](i64 k) {
            auto v = load_wide<kWide>(row + k);
            i64 c = quotient(k, p.inner), left = (c + 1) * p.inner - k;  // of channel c
            c += channel;
            // As many elements at once as the channel has here.
#pragma unroll 1
            for (int done = 0; done < kWide; left = p.inner, ++c) {
                const Sum w = weight ? Sum(weight[c]) : Sum(1), b = bias ? Sum(bias[c]) : Sum(0);
                const int end = left < kWide - done ? done + int(left) : kWide;
                for (int i = 0; i < kWide; ++i) {
                    if (i >= done && i < end) v.of[i] = center(v.of[i]) * w + b;
                }
                done = end;
            }
            store_wide<kWide>(to + k, v);
        });
    }
}

// sums (2, batch * channels).
template <int kWide, class T>
__global__ void __launch_bounds__(kRowThreads)
    channel_sums(GroupNormParams p, i64 each, int threads, In<T> dy, In<T> x,
                 const Accumulate<T>* __restrict__ stats, double* __restrict__ sums) {
    using Sum = Accumulate<T>;
    const i64 rows = p.batch * p.channels;
#pragma unroll 1
    for (i64 first = first_row(threads); first < rows; first += row_step(threads)) {
        const RowTeam<kWide> team(threads, first, rows, p.inner);
        const i64 begin = team.row * p.inner;
        const auto center = Center<Sum>::of(stats, p.batch * p.groups, quotient(team.row, each));
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
    group_means(GroupNormParams p, i64 each, const double* __restrict__ sums, In<T> weight,
                Accumulate<T>* __restrict__ means) {
    using Sum = Accumulate<T>;
    const i64 groups = p.batch * p.groups;
    const i64 all = p.batch * p.channels, step = i64(gridDim.x) * blockDim.x;
#pragma unroll 1
    for (i64 at = i64(blockIdx.x) * blockDim.x + threadIdx.x; at < groups; at += step) {
        double sum_g = 0, sum_gx = 0;
        const i64 channel = (at - quotient(at, p.groups) * p.groups) * each;
#pragma unroll 4
        for (i64 c = 0; c < each; ++c) {
            const double w = weight ? double(weight[channel + c]) : 1.0;
            sum_g += w * sums[at * each + c];
            sum_gx += w * sums[all + at * each + c];
        }
        means[at] = Sum(sum_g / double(each * p.inner));
        means[groups + at] = Sum(sum_gx / double(each * p.inner));
    }
}

// A view of one "channel" for each channel of each image.
template <class T>
struct Backward {
    i64 channels, each, groups;  // groups: of the whole batch
    using Sum = Accumulate<T>;
    Shared<T> dy, x, weight;
    const Sum *stats, *means;
    SharedOut<T> dx;
    template <int kWide>
    FUSEDNN_DEVICE void run(i64 at, i64 row) const {
        auto g = load_wide<kWide>(dy + at);
        const auto v = load_wide<kWide>(x + at);
        const i64 group = quotient(row, each), channel = row - quotient(row, channels) * channels;
        const auto center = Center<Sum>::of(stats, groups, group);
        const Sum w = weight ? Sum(weight[channel]) : Sum(1);
        const Sum mean = means[group], slope = means[groups + group];
        for (int i = 0; i < kWide; ++i) {
            g.of[i] = (g.of[i] * w - mean - center(v.of[i]) * slope) * center.rstd;
        }
        store_wide<kWide>(dx + at, g);
    }
};

template <class T>
__global__ void __launch_bounds__(kThreads)
    add_images(i64 batch, i64 channels, const double* __restrict__ sums, SharedOut<T> dw,
               SharedOut<T> db) {
    const i64 step = i64(gridDim.x) * blockDim.x;
#pragma unroll 1
    for (i64 c = i64(blockIdx.x) * blockDim.x + threadIdx.x; c < channels; c += step) {
        double sum_g = 0, sum_gx = 0;
#pragma unroll 4
        for (i64 n = 0; n < batch; ++n) {
            sum_g += sums[n * channels + c];
            sum_gx += sums[(batch + n) * channels + c];
        }
        if (db) db[c] = Accumulate<T>(sum_g);
        if (dw) dw[c] = Accumulate<T>(sum_gx);
    }
}

}  // namespace

template <class T>
void group_norm_forward(const GroupNormParams& p, const T* x, const T* weight, const T* bias, T* y,
                        Accumulate<T>* stats) {
    const i64 rows = p.batch * p.groups, each = p.channels / p.groups, size = each * p.inner;
    with_team<T>(size, rows_of_packs<T>(size, x, y), [&](int team, auto wide) {
        launch("group_norm_forward", row_shape(team, rows),
               forward_rows<decltype(wide)::value, Storage<T>>, p, each, team, reading(x),
               reading(weight), reading(bias), writing(y), stats);
    });
}

template <class T>
void group_norm_backward(const GroupNormParams& p, const T* dy, const T* x, const T* weight,
                         const Accumulate<T>* stats, T* dx, T* dw, T* db) {
    using Held = Storage<T>;
    const char* name = "group_norm_backward";
    const i64 rows = p.batch * p.channels, groups = p.batch * p.groups;
    const i64 each = p.channels / p.groups;
    const Workspace<double> sums(2 * rows);
    const Workspace<Accumulate<T>> means(2 * groups);
    with_team<T>(p.inner, rows_of_packs<T>(p.inner, dy, x), [&](int team, auto wide) {
        launch(name, row_shape(team, rows), channel_sums<decltype(wide)::value, Held>, p, each,
               team, reading(dy), reading(x), stats, sums.get());
    });
    launch(name, {blocks_for(groups, kThreads), kThreads}, group_means<Held>, p, each, sums.get(),
           reading(weight), means.get());
    const bool packs = detail::whole_packs(dy) && detail::whole_packs(x) && detail::whole_packs(dx);
    map_channels<Held>(name, {1, rows, p.inner}, packs,
                       Backward<Held>{p.channels, each, groups, reading(dy), reading(x),
                                      reading(weight), stats, means.get(), writing(dx)});
    if (dw || db) {
        launch(name, {blocks_for(p.channels, kThreads), kThreads}, add_images<Held>, p.batch,
               p.channels, sums.get(), writing(dw), writing(db));
    }
}

#define FUSEDNN_GROUP_NORM(T)                                                                     \
    template void group_norm_forward<T>(const GroupNormParams&, const T*, const T*, const T*, T*, \
                                        Accumulate<T>*);                                          \
    template void group_norm_backward<T>(const GroupNormParams&, const T*, const T*, const T*,    \
                                         const Accumulate<T>*, T*, T*, T*);
FUSEDNN_INSTANTIATE(FUSEDNN_GROUP_NORM)
FUSEDNN_INSTANTIATE_HALF(FUSEDNN_GROUP_NORM)

}  // namespace fusednn::cuda
