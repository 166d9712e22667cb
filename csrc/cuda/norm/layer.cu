// layer_norm and rms_norm: every row of (rows, size) for itself, with a team of threads.
// x, y, dy, dx (rows, size); weight, bias, dw, db (size); stats (3, rows): mean, low, rstd.
//
//   forward   0. sum = x + residual, if there is one   1. mean and variance   2. y
//   backward  1. sums of g and g * xhat with g = dy * weight   2. dx
//             3. dw, db: sums over the rows, column by column
//
// with xhat = (x - mean) * rstd, dx = rstd * (g - mean(g) - xhat * mean(g * xhat)); rms_norm has no
// mean(g).
#include "cuda/channels.h"
#include "cuda/gpu.h"
#include "cuda/kernels.h"
#include "cuda/norm/moments.h"

namespace fusednn::cuda {

namespace {

template <int kTeam, int kWide, class T>
__global__ void __launch_bounds__(kRowThreads)
    forward_rows(LayerNormParams p, const T* x, const T* residual, const T* __restrict__ weight,
                 const T* __restrict__ bias, T* sum, T* y, T* stats) {
    for (i64 first = first_row<kTeam>(); first < p.rows; first += row_step<kTeam>()) {
        const RowTeam<kTeam, kWide> team(first, p.rows, p.size);
        const i64 begin = team.row * p.size;
        const T* row = x + begin;
        if (residual) {  // what a thread writes here only it reads
            team.each([&](i64 k) {
                auto v = load_wide<kWide>(row + k);
                const auto r = load_wide<kWide>(residual + begin + k);
                for (int i = 0; i < kWide; ++i) v.of[i] += r.of[i];
                store_wide<kWide>(sum + begin + k, v);
            });
            row = sum + begin;
        }
        const Center<T> center = row_center<T>(team, row, p.rms, p.eps);
        if (team.live && team.lane == 0) store_center(center, stats, p.rows, team.row);
        team.each([&](i64 k) {
            auto v = load_wide<kWide>(row + k);
            for (int i = 0; i < kWide; ++i) v.of[i] = center(v.of[i]);
            if (weight) {
                const auto w = load_wide<kWide>(weight + k);
                for (int i = 0; i < kWide; ++i) v.of[i] *= w.of[i];
            }
            if (bias) {
                const auto b = load_wide<kWide>(bias + k);
                for (int i = 0; i < kWide; ++i) v.of[i] += b.of[i];
            }
            store_wide<kWide>(y + begin + k, v);
        });
    }
}

template <int kTeam, int kWide, class T>
__global__ void __launch_bounds__(kRowThreads)
    backward_rows(LayerNormParams p, const T* __restrict__ dy, const T* __restrict__ x,
                  const T* __restrict__ weight, const T* __restrict__ stats, T* __restrict__ dx) {
    for (i64 first = first_row<kTeam>(); first < p.rows; first += row_step<kTeam>()) {
        const RowTeam<kTeam, kWide> team(first, p.rows, p.size);
        const i64 begin = team.row * p.size;
        const auto center = Center<T>::of(stats, p.rows, team.row);
        const auto weighted = [&](i64 k) {
            auto g = load_wide<kWide>(dy + begin + k);
            if (weight) {
                const auto w = load_wide<kWide>(weight + k);
                for (int i = 0; i < kWide; ++i) g.of[i] *= w.of[i];
            }
            return g;
        };
        double sum_g = 0, sum_gx = 0;
        team.each([&](i64 k) {
            auto g = weighted(k);
            const auto v = load_wide<kWide>(x + begin + k);
            sum_g += wide_sum<kWide>(g);
            for (int i = 0; i < kWide; ++i) g.of[i] *= center(v.of[i]);
            sum_gx += wide_sum<kWide>(g);
        });
        const T mean_g = p.rms ? T(0) : T(team.all(sum_g, Add()) / double(p.size));
        const T mean_gx = T(team.all(sum_gx, Add()) / double(p.size));
        team.each([&](i64 k) {
            auto g = weighted(k);
            const auto v = load_wide<kWide>(x + begin + k);
            for (int i = 0; i < kWide; ++i) {
                g.of[i] = (g.of[i] - mean_g - center(v.of[i]) * mean_gx) * center.rstd;
            }
            store_wide<kWide>(dx + begin + k, g);
        });
    }
}

template <class T>
struct WeightTerms {
    const T *dy, *x, *stats;
    i64 rows;
    FUSEDNN_DEVICE void operator()(i64 at, i64 row, i64, T (&v)[2]) const {
        v[0] = dy[at];
        v[1] = dy[at] * Center<T>::of(stats, rows, row)(x[at]);
    }
};
template <class T>
struct StoreWeight {
    T *dw, *db;
    FUSEDNN_DEVICE void operator()(i64 k, const double (&sum)[2]) const {
        if (db) db[k] = T(sum[0]);
        if (dw) dw[k] = T(sum[1]);
    }
};

}  // namespace

template <class T>
void layer_norm_forward(const LayerNormParams& p, const T* x, const T* residual, const T* weight,
                        const T* bias, T* sum, T* y, T* stats) {
    const bool packs = rows_of_packs<T>(p.size, x, residual, weight, bias, sum, y);
    with_team<T>(p.size, packs, [&](auto team, auto wide) {
        constexpr int threads = decltype(team)::value;
        launch("layer_norm_forward", row_shape<threads>(p.rows),
               forward_rows<threads, decltype(wide)::value, T>, p, x, residual, weight, bias, sum,
               y, stats);
    });
}

template <class T>
void layer_norm_backward(const LayerNormParams& p, const T* dy, const T* x, const T* weight,
                         const T* stats, T* dx, T* dw, T* db) {
    const bool packs = rows_of_packs<T>(p.size, dy, x, weight, dx);
    with_team<T>(p.size, packs, [&](auto team, auto wide) {
        constexpr int threads = decltype(team)::value;
        launch("layer_norm_backward", row_shape<threads>(p.rows),
               backward_rows<threads, decltype(wide)::value, T>, p, dy, x, weight, stats, dx);
    });
    if (dw || db) {
        sum_channels<2, T>("layer_norm_backward", {p.rows, p.size, 1},
                           WeightTerms<T>{dy, x, stats, p.rows}, StoreWeight<T>{dw, db});
    }
}

#define FUSEDNN_LAYER_NORM(T)                                                                  \
    template void layer_norm_forward<T>(const LayerNormParams&, const T*, const T*, const T*,  \
                                        const T*, T*, T*, T*);                                 \
    template void layer_norm_backward<T>(const LayerNormParams&, const T*, const T*, const T*, \
                                         const T*, T*, T*, T*);
FUSEDNN_INSTANTIATE(FUSEDNN_LAYER_NORM)

}  // namespace fusednn::cuda
