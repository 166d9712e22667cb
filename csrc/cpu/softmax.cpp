// softmax and log_softmax over the middle axis of (outer, classes, inner), forward and backward.
//
//   forward   1. maximum   2. sum of exp(x - maximum)   3. y from both
//   backward  1. sum over the classes of dy (times y)   2. dx from it, dy and y
//
// Lambdas around stores take what they need by value: a store might change what they refer to, as
// far as the compiler knows, and would cost a reload for every vector.
#include "cpu/softmax.h"

#include "cpu/kernels.h"

namespace fusednn {
namespace FUSEDNN_ISA {

namespace {

// dx[k] = finish(dy[k], y[k], sum over k of term(dy[k], y[k])).
template <class T, class Term, class Finish>
FUSEDNN_INLINE void backward(i64 outer, i64 classes, i64 inner, const T* dy, const T* y, T* dx,
                             const Term& term, const Finish& finish) {
    if (inner == 1) {
        for_row_groups<T>(outer, classes, [&](i64 first, i64 rows) {
            T sum[kGroup<T>];
            for (i64 i = 0; i < rows; ++i) {
                const i64 at = (first + i) * classes;
                const T *grad = dy + at, *out = y + at;
                sum[i] = row_sum<T>(classes, [=](i64 k, auto load_at, auto) {
                    return term(load_at(grad + k), load_at(out + k));
                });
            }
            for (i64 i = 0; i < rows; ++i) {
                const i64 at = (first + i) * classes;
                const T *grad = dy + at, *out = y + at;
                T* to = dx + at;
                const Vec<T> total = broadcast(sum[i]);
                for_row_vectors<T>(classes, [=](i64 k, auto load_at, auto store_at) {
                    store_at(to + k, finish(load_at(grad + k), load_at(out + k), total));
                });
            }
        });
        return;
    }
    for_columns<T>(outer, classes, inner, [&](i64 o, i64 first, auto at) {
        constexpr int vectors = decltype(at)::vectors;
        const i64 base = o * classes * inner + first;
        Vec<T> sum[vectors];
        column_sum<T>(classes, sum, [&](i64 k, int v) {
            return term(at.get(dy + base + k * inner, v), at.get(y + base + k * inner, v));
        });
        for (i64 k = 0; k < classes; ++k) {
            const i64 here = base + k * inner;
            for (int v = 0; v < vectors; ++v) {
                at.put(dx + here, v, finish(at.get(dy + here, v), at.get(y + here, v), sum[v]));
            }
        }
    });
}

}  // namespace

template <class T>
void softmax_forward(i64 outer, i64 classes, i64 inner, const T* x, T* y) {
    if (inner == 1) {
        for_row_groups<T>(outer, classes, [&](i64 first, i64 rows) {
            T most[kGroup<T>], sum[kGroup<T>], scale[kGroup<T>];
            T* out = y + first * classes;
            group_sums<true>(rows, classes, x + first * classes, out, most, sum);
            store(scale, T(1) / load(sum));
            for (i64 i = 0; i < rows; ++i) {
                const Vec<T> factor = broadcast(scale[i]);
                T* row = out + i * classes;
                for_row_vectors<T>(classes, [=](i64 k, auto load_at, auto store_at) {
                    store_at(row + k, load_at(row + k) * factor);
                });
            }
        });
        return;
    }
    for_columns<T>(outer, classes, inner, [&](i64 o, i64 first, auto at) {
        using Access = decltype(at);
        const i64 base = o * classes * inner + first;
        Vec<T> most[Access::vectors], sum[Access::vectors];
        column_sums<Access::keeps>(classes, inner, x + base, y + base, at, most, sum);
        for (Vec<T>& s : sum) s = T(1) / s;
        for (i64 k = 0; k < classes; ++k) {
            const i64 here = base + k * inner;
            for (int v = 0; v < Access::vectors; ++v) {
                at.put(y + here, v, kept_exp(x + here, y + here, at, v, most[v]) * sum[v]);
            }
        }
    });
}

// y = (x - maximum) - log(sum), one subtracted after the other: their sum would lose the small
// one's last bits.
template <class T>
void log_softmax_forward(i64 outer, i64 classes, i64 inner, const T* x, T* y) {
    if (inner == 1) {
        for_row_groups<T>(outer, classes, [&](i64 first, i64 rows) {
            T most[kGroup<T>], sum[kGroup<T>];
            group_sums<false>(rows, classes, x + first * classes, y, most, sum);
            store(sum, vlog<T>(load(sum)));
            for (i64 i = 0; i < rows; ++i) {
                const T* row = x + (first + i) * classes;
                T* out = y + (first + i) * classes;
                const Vec<T> maximum = broadcast(most[i]), log_sum = broadcast(sum[i]);
                for_row_vectors<T>(classes, [=](i64 k, auto load_at, auto store_at) {
                    store_at(out + k, load_at(row + k) - maximum - log_sum);
                });
            }
        });
        return;
    }
    for_columns<T>(outer, classes, inner, [&](i64 o, i64 first, auto at) {
        constexpr int vectors = decltype(at)::vectors;
        const i64 base = o * classes * inner + first;
        Vec<T> most[vectors], sum[vectors];
        column_sums<false>(classes, inner, x + base, y + base, at, most, sum);
        for (int v = 0; v < vectors; ++v) sum[v] = vlog<T>(sum[v]);
        for (i64 k = 0; k < classes; ++k) {
            const i64 here = base + k * inner;
            for (int v = 0; v < vectors; ++v) {
                at.put(y + here, v, at.get(x + here, v) - most[v] - sum[v]);
            }
        }
    });
}

// dx = y (dy - sum(dy y))
template <class T>
void softmax_backward(i64 outer, i64 classes, i64 inner, const T* dy, const T* y, T* dx) {
    backward<T>(
        outer, classes, inner, dy, y, dx, [](Vec<T> g, Vec<T> v) { return g * v; },
        [](Vec<T> g, Vec<T> v, Vec<T> sum) { return v * (g - sum); });
}

// dx = dy - exp(y) sum(dy)
template <class T>
void log_softmax_backward(i64 outer, i64 classes, i64 inner, const T* dy, const T* y, T* dx) {
    backward<T>(
        outer, classes, inner, dy, y, dx, [](Vec<T> g, Vec<T>) { return g; },
        [](Vec<T> g, Vec<T> v, Vec<T> sum) { return g - vexp<T>(v) * sum; });
}

#define FUSEDNN_SOFTMAX(T)                                                    \
    template void softmax_forward<T>(i64, i64, i64, const T*, T*);            \
    template void log_softmax_forward<T>(i64, i64, i64, const T*, T*);        \
    template void softmax_backward<T>(i64, i64, i64, const T*, const T*, T*); \
    template void log_softmax_backward<T>(i64, i64, i64, const T*, const T*, T*);
FUSEDNN_INSTANTIATE(FUSEDNN_SOFTMAX)

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
