// Cross-entropy of class indices, from logits or (nll_loss) from log-probabilities.
//
//   x, dx (outer, classes, inner)     target, losses, weights, scale (outer, inner)
//
// The formulas are those of cpu/loss.cpp:
//   loss = (1 - e) w_t (-log p_t) + e/K sum over k of w_k (-log p_k)        (Szegedy et al. 2016)
//   dx_k = (1 - e) w_t (p_k - [k = t]) + e/K (p_k sum(w) - w_k)
// Both directions go 1. maximum  2. sum of exp(x - maximum)  3. what the targets pick; a row (inner
// 1) has a team of threads, of several columns side by side each has a thread. Ignored positions
// give loss 0, weight 0 and gradient 0 whatever their logits hold.
#include "cuda/gpu.h"
#include "cuda/kernels.h"
#include "cuda/rows.h"

namespace fusednn::cuda {

namespace {

constexpr int kThreads = 256;
// Of the backward on a multiprocessor: doubles' exponentials take more than 64 registers.
template <class T>
constexpr int kBlocks = sizeof(T) == 8 ? 3 : 4;

template <class T>
struct Weights {
    const i64* target;
    const T* class_weight;
    const T* sum;  // of all class weights, or null: `classes`
    i64 classes, ignore_index;
    T hard, soft;  // 1 - e, e / K

    FUSEDNN_DEVICE T of(i64 k) const { return class_weight ? class_weight[k] : T(1); }
    FUSEDNN_DEVICE bool ignored(i64 position) const { return target[position] == ignore_index; }
    FUSEDNN_DEVICE T total() const { return sum ? *sum : T(classes); }

    // The loss of one position from -log p of its target and, with smoothing, sum of w_k (-log
    // p_k).
    FUSEDNN_DEVICE void finish(i64 position, T minus_log_p, T smooth_sum, T* losses,
                               T* weights) const {
        if (ignored(position)) {
            losses[position] = weights[position] = T(0);
            return;
        }
        const T weight = of(target[position]);
        T loss = weight * minus_log_p;
        if (soft != T(0)) loss = hard * loss + soft * smooth_sum;
        losses[position] = loss;
        weights[position] = weight;
    }
};

template <class T>
__global__ void __launch_bounds__(kThreads)
    sum_weights(i64 classes, const T* __restrict__ weight, T* sum) {
    double total = 0;
    for (i64 k = threadIdx.x; k < classes; k += kThreads) total += double(weight[k]);
    total = block_reduce<kThreads>(total, Add());
    if (threadIdx.x == 0) *sum = T(total);
}

// What the gradient of a position is made of.
template <class T>
struct Slopes {
    i64 target;
    bool ignored;
    T slope, soft, hit;
    FUSEDNN_DEVICE Slopes(const Weights<T>& w, i64 position, bool live, const T* scale, T sum)
        : ignored(!live || w.ignored(position)) {
        target = ignored ? 0 : w.target[position];
        const T factor = ignored ? T(0) : scale[position];
        const T weight = ignored ? T(0) : w.of(target) * w.hard;
        slope = factor * (weight + w.soft * w.total()) / sum;
        soft = factor * w.soft;
        hit = factor * weight;
    }
    // Of class k, given exp(x_k - maximum).
    FUSEDNN_DEVICE T of(const Weights<T>& w, i64 k, T power) const {
        T grad = power * slope;
        if (w.soft != T(0)) grad -= soft * w.of(k);
        if (k == target) grad -= hit;
        return ignored ? T(0) : grad;
    }
};

// ---- rows ----------------------------------------

// Maximum and sum of exponentials of the team's row.
template <class T>
struct RowSums {
    T most, sum;
    template <int kWide, class Row>
    FUSEDNN_DEVICE RowSums(const RowTeam<kWide>& team, Row row) : most(-T(INFINITY)), sum(0) {
        team.each([&](i64 k) {
            const auto v = load_wide<kWide>(row + k);
            for (int i = 0; i < kWide; ++i) most = Larger()(most, v.of[i]);
        });
        most = team.all(most, Larger());
        team.each([&](i64 k) {
            const auto v = load_wide<kWide>(row + k);
            for (int i = 0; i < kWide; ++i) sum += exp(v.of[i] - most);
        });
        sum = team.all(sum, Add());
    }
};

template <int kWide, class T>
__global__ void __launch_bounds__(kRowThreads, 4)
    forward_rows(Weights<Accumulate<T>> w, int threads, i64 rows, In<T> x, Accumulate<T>* losses,
                 Accumulate<T>* weights) {
    using Sum = Accumulate<T>;
#pragma unroll 1
    for (i64 first = first_row(threads); first < rows; first += row_step(threads)) {
        const RowTeam<kWide> team(threads, first, rows, w.classes);
        const auto row = x + team.row * w.classes;
        const RowSums<Sum> sums(team, row);
        const Sum log_sum = log(sums.sum);
        Sum smooth = Sum(0);
        if (w.soft != Sum(0)) {
            team.each([&](i64 k) {
                const auto v = load_wide<kWide>(row + k);
                for (int i = 0; i < kWide; ++i) {
                    smooth += w.of(k + i) * (log_sum - (v.of[i] - sums.most));
                }
            });
            smooth = team.all(smooth, Add());
        }
        if (team.live && team.lane == 0) {
            Sum loss = Sum(0);
            if (!w.ignored(team.row)) loss = log_sum - (row[w.target[team.row]] - sums.most);
            w.finish(team.row, loss, smooth, losses, weights);
        }
    }
}

template <int kWide, class T>
__global__ void __launch_bounds__(kRowThreads, kBlocks<T>)
    backward_rows(Weights<Accumulate<T>> w, int threads, i64 rows, In<T> x,
                  const Accumulate<T>* __restrict__ scale, Out<T> dx) {
    using Sum = Accumulate<T>;
#pragma unroll 1
    for (i64 first = first_row(threads); first < rows; first += row_step(threads)) {
        const RowTeam<kWide> team(threads, first, rows, w.classes);
        const auto row = x + team.row * w.classes;
        const auto to = dx + team.row * w.classes;
        const RowSums<Sum> sums(team, row);
        const Slopes<Sum> slopes(w, team.row, team.live, scale, sums.sum);
        team.each([&](i64 k) {
            auto v = load_wide<kWide>(row + k);
            for (int i = 0; i < kWide; ++i) {
                v.of[i] = slopes.of(w, k + i, exp(v.of[i] - sums.most));
            }
            store_wide<kWide>(to + k, v);
        });
    }
}

// ---- columns ----------------------------------------

template <class T>
struct ColumnSums {
    T most, sum;
    template <class Column>
    FUSEDNN_DEVICE ColumnSums(i64 classes, i64 inner, Column column) : most(-T(INFINITY)), sum(0) {
        for_each_class<T>(classes, 0, inner, [&](i64 k) { most = Larger()(most, column[k]); });
        for_each_class<T>(classes, 0, inner, [&](i64 k) { sum += exp(column[k] - most); });
    }
};

template <class T>
__global__ void __launch_bounds__(kThreads)
    forward_columns(Weights<Accumulate<T>> w, i64 columns, i64 inner, In<T> x,
                    Accumulate<T>* losses, Accumulate<T>* weights) {
    using Sum = Accumulate<T>;
    const i64 step = i64(gridDim.x) * blockDim.x;
#pragma unroll 1
    for (i64 at = i64(blockIdx.x) * blockDim.x + threadIdx.x; at < columns; at += step) {
        const i64 o = quotient(at, inner);
        const auto column = x + o * w.classes * inner + (at - o * inner);
        const ColumnSums<Sum> sums(w.classes, inner, column);
        const Sum log_sum = log(sums.sum);
        Sum smooth = Sum(0), loss = Sum(0);
        if (w.soft != Sum(0)) {
#pragma unroll 1
            for (i64 k = 0; k < w.classes; ++k) {
                smooth += w.of(k) * (log_sum - (column[k * inner] - sums.most));
            }
        }
        if (!w.ignored(at)) loss = log_sum - (column[w.target[at] * inner] - sums.most);
        w.finish(at, loss, smooth, losses, weights);
    }
}

template <class T>
__global__ void __launch_bounds__(kThreads, kBlocks<T>)
    backward_columns(Weights<Accumulate<T>> w, i64 columns, i64 inner, In<T> x,
                     const Accumulate<T>* __restrict__ scale, Out<T> dx) {
    using Sum = Accumulate<T>;
    const i64 step = i64(gridDim.x) * blockDim.x;
#pragma unroll 1
    for (i64 at = i64(blockIdx.x) * blockDim.x + threadIdx.x; at < columns; at += step) {
        const i64 o = quotient(at, inner);
        const i64 base = o * w.classes * inner + (at - o * inner);
        const ColumnSums<Sum> sums(w.classes, inner, x + base);
        const Slopes<Sum> slopes(w, at, true, scale, sums.sum);
        constexpr int together = sizeof(Sum) == 8 ? 1 : 2;
#pragma unroll together
        for (i64 k = 0; k < w.classes; ++k) {
            dx[base + k * inner] = slopes.of(w, k, exp(x[base + k * inner] - sums.most));
        }
    }
}

// ---- log-probabilities ----------------------------------------

template <class T>
__global__ void __launch_bounds__(kThreads)
    nll_forward(Weights<Accumulate<T>> w, i64 columns, i64 inner, In<T> x, Accumulate<T>* losses,
                Accumulate<T>* weights) {
    using Sum = Accumulate<T>;
    const i64 step = i64(gridDim.x) * blockDim.x;
#pragma unroll 1
    for (i64 at = i64(blockIdx.x) * blockDim.x + threadIdx.x; at < columns; at += step) {
        Sum loss = Sum(0);
        if (!w.ignored(at)) {
            const i64 o = quotient(at, inner);
            loss = -x[(o * w.classes + w.target[at]) * inner + (at - o * inner)];
        }
        w.finish(at, loss, Sum(0), losses, weights);
    }
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    nll_backward(Weights<Accumulate<T>> w, i64 size, i64 inner,
                 const Accumulate<T>* __restrict__ scale, Out<T> dx) {
    using Sum = Accumulate<T>;
    const i64 step = i64(gridDim.x) * blockDim.x;
#pragma unroll 1
    for (i64 at = i64(blockIdx.x) * blockDim.x + threadIdx.x; at < size; at += step) {
        const i64 line = quotient(at, inner), o = quotient(line, w.classes);
        const i64 k = line - o * w.classes, position = o * inner + (at - line * inner);
        const bool hit = !w.ignored(position) && w.target[position] == k;
        dx[at] = hit ? -scale[position] * w.of(k) : Sum(0);
    }
}

// Room for the sum of the class weights, which only smoothing needs.
template <class T>
struct Call {
    using Sum = Accumulate<T>;
    Workspace<Sum> sum;
    Weights<Sum> weights;

    explicit Call(const CrossEntropyParams<T>& p) : sum(1) {
        weights.target = p.target;
        weights.class_weight = p.class_weight;
        weights.sum = nullptr;
        weights.classes = p.classes;
        weights.ignore_index = p.ignore_index;
        weights.hard = Sum(1 - p.label_smoothing);
        weights.soft = p.classes ? Sum(p.label_smoothing / double(p.classes)) : Sum(0);
        if (p.class_weight && weights.soft != Sum(0)) {
            launch("cross_entropy weights", {1, kThreads}, sum_weights<Sum>, p.classes,
                   p.class_weight, sum.get());
            weights.sum = sum.get();
        }
    }
};

}  // namespace

template <class T>
void cross_entropy_forward(const CrossEntropyParams<T>& p, const T* x, Accumulate<T>* losses,
                           Accumulate<T>* weights) {
    const Call<T> call(p);
    const char* name = "cross_entropy_forward";
    const i64 columns = p.outer * p.inner;
    const LaunchShape shape{blocks_for(columns, kThreads), kThreads};
    if (p.input_is_log_prob) {
        launch(name, shape, nll_forward<Storage<T>>, call.weights, columns, p.inner, reading(x),
               losses, weights);
    } else if (p.inner != 1) {
        launch(name, shape, forward_columns<Storage<T>>, call.weights, columns, p.inner, reading(x),
               losses, weights);
    } else {
        with_team<T>(p.classes, rows_of_packs<T>(p.classes, x), [&](int team, auto wide) {
            launch(name, row_shape(team, columns), forward_rows<decltype(wide)::value, Storage<T>>,
                   call.weights, team, columns, reading(x), losses, weights);
        });
    }
}

template <class T>
void cross_entropy_backward(const CrossEntropyParams<T>& p, const T* x, const Accumulate<T>* scale,
                            T* dx) {
    const Call<T> call(p);
    const char* name = "cross_entropy_backward";
    const i64 columns = p.outer * p.inner, size = columns * p.classes;
    if (p.input_is_log_prob) {
        launch(name, {blocks_for(size, kThreads), kThreads}, nll_backward<Storage<T>>, call.weights,
               size, p.inner, scale, writing(dx));
    } else if (p.inner != 1) {
        launch(name, {blocks_for(columns, kThreads), kThreads}, backward_columns<Storage<T>>,
               call.weights, columns, p.inner, reading(x), scale, writing(dx));
    } else if (size > 0) {
        with_team<T>(p.classes, rows_of_packs<T>(p.classes, x, dx), [&](int team, auto wide) {
            launch(name, row_shape(team, columns), backward_rows<decltype(wide)::value, Storage<T>>,
                   call.weights, team, columns, reading(x), scale, writing(dx));
        });
    }
}

#define FUSEDNN_LOSS(T)                                                                            \
    template void cross_entropy_forward<T>(const CrossEntropyParams<T>&, const T*, Accumulate<T>*, \
                                           Accumulate<T>*);                                        \
    template void cross_entropy_backward<T>(const CrossEntropyParams<T>&, const T*,                \
                                            const Accumulate<T>*, T*);
FUSEDNN_INSTANTIATE(FUSEDNN_LOSS)
FUSEDNN_INSTANTIATE_HALF(FUSEDNN_LOSS)

}  // namespace fusednn::cuda
