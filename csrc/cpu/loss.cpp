// Cross-entropy of class indices, from logits or (nll_loss) from log-probabilities.
//
//   x, dx (outer, classes, inner)     target, losses, weights, scale (outer, inner)
//
// With p = softmax(x), class weights w (1 without), smoothing e and K classes, per position:
//   loss = (1 - e) w_t (-log p_t) + e/K sum over k of w_k (-log p_k)        (Szegedy et al. 2016)
//   dx_k = (1 - e) w_t (p_k - [k = t]) + e/K (p_k sum(w) - w_k)
// No array of probabilities is formed: backward computes p again from the logits.
#include "cpu/kernels.h"
#include "cpu/softmax.h"

namespace fusednn {
namespace FUSEDNN_ISA {

namespace {

template <class T>
struct Smoothing {
    T hard;        // 1 - e
    T soft;        // e / K
    T weight_sum;  // sum of w

    FUSEDNN_INLINE explicit Smoothing(const CrossEntropyParams<T>& p) {
        hard = T(1 - p.label_smoothing);
        soft = p.classes ? T(p.label_smoothing / double(p.classes)) : T(0);
        weight_sum = T(0);
        for (i64 k = 0; k < p.classes; ++k) weight_sum += weight_of(p, k);
    }
    static FUSEDNN_INLINE T weight_of(const CrossEntropyParams<T>& p, i64 k) {
        return p.class_weight ? p.class_weight[k] : T(1);
    }
};

// The maximum of the logits at one position and the logarithm of the sum of exp(x - maximum):
// their sum is the normaliser.
template <class T>
struct Normaliser {
    T most, log_sum;
};

// Logits of a position lie `inner` apart.
template <class T>
FUSEDNN_INLINE T position_loss(const CrossEntropyParams<T>& p, const Smoothing<T>& s, const T* x,
                               i64 target, Normaliser<T> n) {
    const auto minus_log_p = [&](i64 k) {
        return p.input_is_log_prob ? -x[k * p.inner] : n.log_sum - (x[k * p.inner] - n.most);
    };
    T loss = Smoothing<T>::weight_of(p, target) * minus_log_p(target);
    if (s.soft == T(0)) return loss;
    loss *= s.hard;
    T sum = T(0);
    for (i64 k = 0; k < p.classes; ++k) sum += Smoothing<T>::weight_of(p, k) * minus_log_p(k);
    return loss + s.soft * sum;
}

template <class T>
FUSEDNN_INLINE Normaliser<T> row_normaliser(const CrossEntropyParams<T>& p, const T* x) {
    const T most = row_max(p.classes, x);
    return {most, log_of(row_sum_exp(p.classes, x, most, static_cast<T*>(nullptr)))};
}

// Gradients of a row: dx_k = p_k times `slope`, less w_k times `soft` (smoothing); the target's
// share is taken off afterwards.
template <class T>
FUSEDNN_INLINE Vec<T> logit_grad(Vec<T> shifted, Vec<T> log_sum, Vec<T> slope) {
    return vexp<T>(shifted - log_sum) * slope;
}

template <class T>
void backward_row(const CrossEntropyParams<T>& p, const Smoothing<T>& s, const T* x, i64 target,
                  T scale, T* dx) {
    constexpr i64 lanes = kLanes<T>;
    const T weight = Smoothing<T>::weight_of(p, target) * s.hard;
    const Normaliser<T> n = row_normaliser(p, x);
    const Vec<T> slope = broadcast(scale * (weight + s.soft * s.weight_sum));
    const Vec<T> most = broadcast(n.most), log_sum = broadcast(n.log_sum);
    i64 k = 0;
    for (; k + lanes <= p.classes; k += lanes) {
        store(dx + k, logit_grad<T>(load(x + k) - most, log_sum, slope));
    }
    if (k < p.classes) {
        const i64 left = p.classes - k;
        store_partial(dx + k, logit_grad<T>(load_partial(x + k, left) - most, log_sum, slope),
                      left);
    }
    if (s.soft != T(0)) {
        for (k = 0; k < p.classes; ++k) dx[k] -= scale * s.soft * Smoothing<T>::weight_of(p, k);
    }
    dx[target] -= scale * weight;
}

// The same for `left` positions side by side.
template <class T>
void backward_columns(const CrossEntropyParams<T>& p, const Smoothing<T>& s, const T* x,
                      const i64* target, const T* scale, i64 left, T* dx) {
    constexpr int lanes = kLanes<T>;
    const Vec<T> most = column_max(p.classes, p.inner, x, left);
    const Vec<T> log_sum = vlog<T>(column_sum_exp(p.classes, p.inner, x, most, left));
    T weight[lanes] = {}, slope[lanes] = {};
    for (i64 i = 0; i < left; ++i) {
        if (target[i] == p.ignore_index) continue;
        weight[i] = Smoothing<T>::weight_of(p, target[i]) * s.hard;
        slope[i] = scale[i] * (weight[i] + s.soft * s.weight_sum);
    }
    const Vec<T> slopes = load(slope);
    for (i64 k = 0; k < p.classes; ++k) {
        store_partial(dx + k * p.inner,
                      logit_grad<T>(load_partial(x + k * p.inner, left) - most, log_sum, slopes),
                      left);
    }
    for (i64 i = 0; i < left; ++i) {
        if (target[i] == p.ignore_index) {
            // Not slope 0 times p: a logit may be infinite.
            for (i64 k = 0; k < p.classes; ++k) dx[k * p.inner + i] = T(0);
            continue;
        }
        if (s.soft != T(0)) {
            for (i64 k = 0; k < p.classes; ++k) {
                dx[k * p.inner + i] -= scale[i] * s.soft * Smoothing<T>::weight_of(p, k);
            }
        }
        dx[target[i] * p.inner + i] -= scale[i] * weight[i];
    }
}

template <class T>
void nll_backward(const CrossEntropyParams<T>& p, const T* scale, T* dx) {
    const i64 size = p.outer * p.classes * p.inner;
    for (i64 i = 0; i < size; ++i) dx[i] = T(0);
    for (i64 o = 0; o < p.outer; ++o) {
        for (i64 i = 0; i < p.inner; ++i) {
            const i64 target = p.target[o * p.inner + i];
            if (target == p.ignore_index) continue;
            dx[(o * p.classes + target) * p.inner + i] =
                -scale[o * p.inner + i] * Smoothing<T>::weight_of(p, target);
        }
    }
}

}  // namespace

template <class T>
void cross_entropy_forward(const CrossEntropyParams<T>& p, const T* x, T* losses, T* weights) {
    const Smoothing<T> s(p);
    const auto finish = [&](i64 position, const T* logits, Normaliser<T> n) {
        const i64 target = p.target[position];
        const bool counts = target != p.ignore_index;
        losses[position] = counts ? position_loss(p, s, logits, target, n) : T(0);
        weights[position] = counts ? Smoothing<T>::weight_of(p, target) : T(0);
    };
    if (p.inner == 1) {
        for_row_blocks(p.outer, p.classes, [&](i64 begin, i64 end) {
            for (i64 r = begin; r < end; ++r) {
                const T* row = x + r * p.classes;
                const bool skip = p.input_is_log_prob || p.target[r] == p.ignore_index;
                finish(r, row, skip ? Normaliser<T>{} : row_normaliser(p, row));
            }
        });
        return;
    }
    for_column_blocks<T>(p.outer, p.classes, p.inner, [&](i64 o, i64 first, i64 left) {
        const T* column = x + o * p.classes * p.inner + first;
        T most[kLanes<T>] = {}, log_sum[kLanes<T>] = {};
        if (!p.input_is_log_prob) {
            const Vec<T> m = column_max(p.classes, p.inner, column, left);
            store(most, m);
            store(log_sum, vlog<T>(column_sum_exp(p.classes, p.inner, column, m, left)));
        }
        for (i64 i = 0; i < left; ++i) {
            finish(o * p.inner + first + i, column + i, {most[i], log_sum[i]});
        }
    });
}

template <class T>
void cross_entropy_backward(const CrossEntropyParams<T>& p, const T* x, const T* scale, T* dx) {
    if (p.input_is_log_prob) return nll_backward(p, scale, dx);
    const Smoothing<T> s(p);
    if (p.inner == 1) {
        for_row_blocks(p.outer, p.classes, [&](i64 begin, i64 end) {
            for (i64 r = begin; r < end; ++r) {
                T* out = dx + r * p.classes;
                if (p.target[r] == p.ignore_index) {
                    for (i64 k = 0; k < p.classes; ++k) out[k] = T(0);
                } else {
                    backward_row(p, s, x + r * p.classes, p.target[r], scale[r], out);
                }
            }
        });
        return;
    }
    for_column_blocks<T>(p.outer, p.classes, p.inner, [&](i64 o, i64 first, i64 left) {
        const i64 at = o * p.classes * p.inner + first, position = o * p.inner + first;
        backward_columns(p, s, x + at, p.target + position, scale + position, left, dx + at);
    });
}

#define FUSEDNN_LOSS(T)                                                                     \
    template void cross_entropy_forward<T>(const CrossEntropyParams<T>&, const T*, T*, T*); \
    template void cross_entropy_backward<T>(const CrossEntropyParams<T>&, const T*, const T*, T*);
FUSEDNN_INSTANTIATE(FUSEDNN_LOSS)

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
