// Cross-entropy of class indices, from logits or (nll_loss) from log-probabilities.
//
//   x, dx (outer, classes, inner)     target, losses, weights, scale (outer, inner)
//
// With p = softmax(x), class weights w (1 without), smoothing e and K classes, per position:
//   loss = (1 - e) w_t (-log p_t) + e/K sum over k of w_k (-log p_k)        (Szegedy et al. 2016)
//   dx_k = (1 - e) w_t (p_k - [k = t]) + e/K (p_k sum(w) - w_k)
// No array of probabilities is formed. Both directions go
//   1. maximum   2. sum of exp(x - maximum)   3. what the targets pick
// and backward keeps pass 2's exponentials in dx. Ignored positions give loss 0, weight 0 and
// gradient 0 whatever their logits hold.
#include "cpu/kernels.h"
#include "cpu/softmax.h"

namespace fusednn {
namespace FUSEDNN_ISA {

namespace {

template <class T>
struct Weights {
    const CrossEntropyParams<T>& p;
    T hard;  // 1 - e
    T soft;  // e / K
    T sum;   // of all class weights

    FUSEDNN_INLINE explicit Weights(const CrossEntropyParams<T>& params) : p(params) {
        hard = T(1 - p.label_smoothing);
        soft = p.classes ? T(p.label_smoothing / double(p.classes)) : T(0);
        double total = double(p.classes);
        if (p.class_weight && soft != T(0)) {
            total = 0;
            for (i64 k = 0; k < p.classes; ++k) total += double(p.class_weight[k]);
        }
        sum = T(total);
    }
    FUSEDNN_INLINE T of(i64 k) const { return p.class_weight ? p.class_weight[k] : T(1); }
    FUSEDNN_INLINE bool ignored(i64 position) const { return p.target[position] == p.ignore_index; }
};

// ---- forward ----------------------------------------

// The loss of one position from -log p of its target and, with smoothing, sum of w_k (-log p_k).
template <class T>
FUSEDNN_INLINE void finish(const Weights<T>& w, i64 position, T minus_log_p, T smooth_sum,
                           T* losses, T* weights) {
    if (w.ignored(position)) {
        losses[position] = weights[position] = T(0);
        return;
    }
    const T weight = w.of(w.p.target[position]);
    T loss = weight * minus_log_p;
    if (w.soft != T(0)) loss = w.hard * loss + w.soft * smooth_sum;
    losses[position] = loss;
    weights[position] = weight;
}

// sum of w_k (log_sum - (x_k - most)) over a row.
template <class T>
FUSEDNN_INLINE T row_smooth_sum(const Weights<T>& w, const T* x, T most, T log_sum) {
    const Vec<T> first = broadcast(most), second = broadcast(log_sum);
    const T* weight = w.p.class_weight;
    return row_sum<T>(w.p.classes, [=](i64 k, auto load_at, auto) {
        const Vec<T> minus_log_p = second - (load_at(x + k) - first);
        return weight ? load_at(weight + k) * minus_log_p : minus_log_p;
    });
}

template <class T>
void forward_rows(const Weights<T>& w, const T* x, T* losses, T* weights) {
    const i64 classes = w.p.classes;
    for_row_groups<T>(w.p.outer, classes, [&](i64 first, i64 rows) {
        T most[kGroup<T>], log_sum[kGroup<T>];
        const T* group = x + first * classes;
        group_sums<false>(rows, classes, group, static_cast<T*>(nullptr), most, log_sum);
        store(log_sum, vlog<T>(load(log_sum)));
        for (i64 i = 0; i < rows; ++i) {
            const i64 target = w.p.target[first + i];
            const T* row = group + i * classes;
            T loss = T(0), smooth = T(0);
            if (!w.ignored(first + i)) {
                loss = log_sum[i] - (row[target] - most[i]);
                if (w.soft != T(0)) smooth = row_smooth_sum(w, row, most[i], log_sum[i]);
            }
            finish(w, first + i, loss, smooth, losses, weights);
        }
    });
}

template <class T>
void forward_columns(const Weights<T>& w, const T* x, T* losses, T* weights) {
    constexpr i64 lanes = kLanes<T>;
    const i64 classes = w.p.classes, inner = w.p.inner;
    for_columns<T>(w.p.outer, classes, inner, [&](i64 o, i64 first, auto at) {
        constexpr int vectors = decltype(at)::vectors;
        const T* column = x + o * classes * inner + first;
        const i64 position = o * inner + first;
        Vec<T> most[vectors], log_sum[vectors], smooth[vectors] = {};
        column_sums<false>(classes, inner, column, static_cast<T*>(nullptr), at, most, log_sum);
        for (int v = 0; v < vectors; ++v) log_sum[v] = vlog<T>(log_sum[v]);
        if (w.soft != T(0)) {
            column_sum<T>(classes, smooth, [&](i64 k, int v) {
                return w.of(k) * (log_sum[v] - (at.get(column + k * inner, v) - most[v]));
            });
        }
        T maximum[vectors * lanes], logs[vectors * lanes], smooth_sum[vectors * lanes];
        for (int v = 0; v < vectors; ++v) {
            store(maximum + v * lanes, most[v]);
            store(logs + v * lanes, log_sum[v]);
            store(smooth_sum + v * lanes, smooth[v]);
        }
        for (i64 i = 0; i < at.count(); ++i) {
            const i64 target = w.p.target[position + i];
            const T loss = w.ignored(position + i)
                               ? T(0)
                               : logs[i] - (column[target * inner + i] - maximum[i]);
            finish(w, position + i, loss, smooth_sum[i], losses, weights);
        }
    });
}

// ---- backward ----------------------------------------

// Rows: dx = p times `slope` less the smoothing's share, less the target's.
template <class T>
void backward_rows(const Weights<T>& w, const T* x, const T* scale, T* dx) {
    const i64 classes = w.p.classes;
    for_row_groups<T>(w.p.outer, classes, [&](i64 first, i64 rows) {
        T most[kGroup<T>], sum[kGroup<T>];
        T* group = dx + first * classes;
        group_sums<true>(rows, classes, x + first * classes, group, most, sum);
        store(sum, T(1) / load(sum));
        for (i64 i = 0; i < rows; ++i) {
            T* row = group + i * classes;
            if (w.ignored(first + i)) {
                for (i64 k = 0; k < classes; ++k) row[k] = T(0);
                continue;
            }
            const i64 target = w.p.target[first + i];
            const T factor = scale[first + i], weight = w.of(target) * w.hard;
            const Vec<T> slope = broadcast(factor * (weight + w.soft * w.sum) * sum[i]);
            const Vec<T> soft = broadcast(factor * w.soft);
            const T* weights = w.soft != T(0) ? w.p.class_weight : nullptr;
            for_row_vectors<T>(classes, [=](i64 k, auto load_at, auto store_at) {
                const Vec<T> share = weights ? soft * load_at(weights + k) : soft;
                store_at(row + k, load_at(row + k) * slope - share);
            });
            row[target] -= factor * weight;
        }
    });
}

// The same for columns.
template <class T>
void backward_columns(const Weights<T>& w, const T* x, const T* scale, T* dx) {
    constexpr i64 lanes = kLanes<T>;
    const i64 classes = w.p.classes, inner = w.p.inner;
    for_columns<T>(w.p.outer, classes, inner, [&](i64 o, i64 first, auto at) {
        constexpr int vectors = decltype(at)::vectors;
        constexpr bool keeps = decltype(at)::keeps;
        const i64 position = o * inner + first;
        const T* logits = x + o * classes * inner + first;
        T* column = dx + o * classes * inner + first;
        Vec<T> most[vectors], sum[vectors];
        column_sums<keeps>(classes, inner, logits, column, at, most, sum);
        T slope[vectors * lanes] = {}, soft[vectors * lanes] = {};
        for (i64 i = 0; i < at.count(); ++i) {
            if (w.ignored(position + i)) continue;
            const T weight = w.of(w.p.target[position + i]) * w.hard;
            slope[i] = scale[position + i] * (weight + w.soft * w.sum);
            soft[i] = scale[position + i] * w.soft;
        }
        Vec<T> slopes[vectors], softs[vectors];
        for (int v = 0; v < vectors; ++v) {
            slopes[v] = load(slope + v * lanes) / sum[v];
            softs[v] = load(soft + v * lanes);
        }
        for (i64 k = 0; k < classes; ++k) {
            const i64 here = k * inner;
            const Vec<T> weight = broadcast(w.of(k));
            for (int v = 0; v < vectors; ++v) {
                const Vec<T> e = kept_exp(logits + here, column + here, at, v, most[v]);
                at.put(column + here, v, e * slopes[v] - softs[v] * weight);
            }
        }
        for (i64 i = 0; i < at.count(); ++i) {
            if (w.ignored(position + i)) {
                // Not slope 0 times p: a logit may be NaN.
                for (i64 k = 0; k < classes; ++k) column[k * inner + i] = T(0);
            } else {
                const i64 target = w.p.target[position + i];
                column[target * inner + i] -= scale[position + i] * w.of(target) * w.hard;
            }
        }
    });
}

// ---- log-probabilities ----------------------------------------

template <class T>
void nll_forward(const Weights<T>& w, const T* x, T* losses, T* weights) {
    for (i64 o = 0; o < w.p.outer; ++o) {
        for (i64 i = 0; i < w.p.inner; ++i) {
            const i64 position = o * w.p.inner + i, target = w.p.target[position];
            const T loss =
                w.ignored(position) ? T(0) : -x[(o * w.p.classes + target) * w.p.inner + i];
            finish(w, position, loss, T(0), losses, weights);
        }
    }
}

template <class T>
void nll_backward(const Weights<T>& w, const T* scale, T* dx) {
    const i64 classes = w.p.classes, inner = w.p.inner;
    for_row_blocks(w.p.outer, classes * inner, [&](i64 begin, i64 end) {
        for (i64 at = begin * classes * inner; at < end * classes * inner; ++at) dx[at] = T(0);
        for (i64 position = begin * inner; position < end * inner; ++position) {
            if (w.ignored(position)) continue;
            const i64 o = position / inner, target = w.p.target[position];
            dx[(o * classes + target) * inner + position % inner] = -scale[position] * w.of(target);
        }
    });
}

}  // namespace

template <class T>
void cross_entropy_forward(const CrossEntropyParams<T>& p, const T* x, T* losses, T* weights) {
    const Weights<T> w(p);
    if (p.input_is_log_prob) return nll_forward(w, x, losses, weights);
    if (p.inner == 1) return forward_rows(w, x, losses, weights);
    forward_columns(w, x, losses, weights);
}

template <class T>
void cross_entropy_backward(const CrossEntropyParams<T>& p, const T* x, const T* scale, T* dx) {
    const Weights<T> w(p);
    if (p.input_is_log_prob) return nll_backward(w, scale, dx);
    if (p.inner == 1) return backward_rows(w, x, scale, dx);
    backward_columns(w, x, scale, dx);
}

#define FUSEDNN_LOSS(T)                                                                     \
    template void cross_entropy_forward<T>(const CrossEntropyParams<T>&, const T*, T*, T*); \
    template void cross_entropy_backward<T>(const CrossEntropyParams<T>&, const T*, const T*, T*);
FUSEDNN_INSTANTIATE(FUSEDNN_LOSS)

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
