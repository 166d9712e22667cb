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

template <int kWide, class T>
__global__ void __launch_bounds__(kRowThreads, 4)
    forward_rows(LayerNormParams p, int threads, Shared<T> x, Shared<T> residual, In<T> weight,
                 In<T> bias, SharedOut<T> sum, SharedOut<T> y, Accumulate<T>* stats) {
    using Sum = Accumulate<T>;
#pragma unroll 1
    for (i64 first = first_row(threads); first < p.rows; first += row_step(threads)) {
        const RowTeam<kWide> team(threads, first, p.rows, p.size);
        const i64 begin = team.row * p.size;
        auto row = x + begin;
        if (residual) {  // what a thread writes here only it reads
            team.each([&](i64 k) {
                auto v = load_wide<kWide>(row + k);
                const auto r = load_wide<kWide>(residual + begin + k);
                for (int i = 0; i < kWide; ++i) v.of[i] += r.of[i];
                store_wide<kWide>(sum + begin + k, v);
            });
            row = sum + begin;
        }
        const Center<Sum> center = row_center<Sum>(team, row, p.rms, p.eps);
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

template <int kWide, class T>
__global__ void __launch_bounds__(kRowThreads, 4)
    backward_rows(LayerNormParams p, int threads, In<T> dy, In<T> x, In<T> weight,
                  const Accumulate<T>* __restrict__ stats, Out<T> dx) {
    using Sum = Accumulate<T>;
#pragma unroll 1
    for (i64 first = first_row(threads); first < p.rows; first += row_step(threads)) {
        const RowTeam<kWide> team(threads, first, p.rows, p.size);
        const i64 begin = team.row * p.size;
        const auto center = Center<Sum>::of(stats, p.rows, team.row);
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
        const Sum mean_g = p.rms ? Sum(0) : Sum(team.all(sum_g, Add()) / double(p.size));
        const Sum mean_gx = Sum(team.all(sum_gx, Add()) / double(p.size));
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
    using Sum = Accumulate<T>;
    static constexpr int kInputs = 2;
    Shared<T> dy, x;
    const Sum* stats;
    i64 rows;
    FUSEDNN_DEVICE void operator()(i64 at, i64 row, i64, Sum (&v)[2]) const {
        v[0] = dy[at];
        v[1] = dy[at] * Center<Sum>::of(stats, rows, row)(x[at]);
    }
};
template <class T>
struct StoreWeight {
    SharedOut<T> dw, db;
    FUSEDNN_DEVICE void operator()(i64 k, const double (&sum)[2]) const {
        if (db) db[k] = Accumulate<T>(sum[0]);
        if (dw) dw[k] = Accumulate<T>(sum[1]);
    }
};

}  // namespace

template <class T>
void layer_norm_forward(const LayerNormParams& p, const T* x, const T* residual, const T* weight,
                        const T* bias, T* sum, T* y, Accumulate<T>* stats) {
    const bool packs = rows_of_packs<T>(p.size, x, residual, weight, bias, sum, y);
    with_team<T>(p.size, packs, [&](int team, auto wide) {
        launch("layer_norm_forward", row_shape(team, p.rows),
               forward_rows<decltype(wide)::value, Storage<T>>, p, team, reading(x),
               reading(residual), reading(weight), reading(bias), writing(sum), writing(y), stats);
    });
}

template <class T>
void layer_norm_backward(const LayerNormParams& p, const T* dy, const T* x, const T* weight,
                         const Accumulate<T>* stats, T* dx, T* dw, T* db) {
    const bool packs = rows_of_packs<T>(p.size, dy, x, weight, dx);
    with_team<T>(p.size, packs, [&](int team, auto wide) {
        launch("layer_norm_backward", row_shape(team, p.rows),
               backward_rows<decltype(wide)::value, Storage<T>>, p, team, reading(dy), reading(x),
               reading(weight), stats, writing(dx));
    });
    if (dw || db) {
        using Value = Storage<T>;
        sum_columns_of<2, Accumulate<T>>("layer_norm_backward", {p.rows, p.size, 1},
                                         WeightTerms<Value>{reading(dy), reading(x), stats, p.rows},
                                         StoreWeight<Value>{writing(dw), writing(db)});
    }
}

#define FUSEDNN_LAYER_NORM(T)                                                                  \
    template void layer_norm_forward<T>(const LayerNormParams&, const T*, const T*, const T*,  \
                                        const T*, T*, T*, Accumulate<T>*);                     \
    template void layer_norm_backward<T>(const LayerNormParams&, const T*, const T*, const T*, \
                                         const Accumulate<T>*, T*, T*, T*);
FUSEDNN_INSTANTIATE(FUSEDNN_LAYER_NORM)
FUSEDNN_INSTANTIATE_HALF(FUSEDNN_LAYER_NORM)

}  // namespace fusednn::cuda
