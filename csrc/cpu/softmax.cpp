// softmax and log_softmax over the middle axis of (outer, classes, inner), forward and backward.
#include "cpu/softmax.h"

#include "cpu/kernels.h"

namespace fusednn {
namespace FUSEDNN_ISA {

namespace {

// out[k] = fn(a[k], b[k]) over a row; b may be a again.
template <class T, class Fn>
FUSEDNN_INLINE void map_row(i64 classes, const T* a, const T* b, T* out, const Fn& fn) {
    constexpr i64 lanes = kLanes<T>;
    i64 k = 0;
    for (; k + lanes <= classes; k += lanes) store(out + k, fn(load(a + k), load(b + k)));
    if (k < classes) {
        const i64 left = classes - k;
        store_partial(out + k, fn(load_partial(a + k, left), load_partial(b + k, left)), left);
    }
}

// sum of fn(a[k], b[k]) over a row; fn(0, 0) must be 0.
template <class T, class Fn>
FUSEDNN_INLINE T sum_row(i64 classes, const T* a, const T* b, const Fn& fn) {
    constexpr i64 lanes = kLanes<T>;
    const i64 k = classes / lanes * lanes;
    Vec<T> sum = sum_vectors<T>(k, [&](i64 i) { return fn(load(a + i), load(b + i)); });
    if (k < classes) {
        const i64 left = classes - k;
        sum += fn(load_partial(a + k, left), load_partial(b + k, left));
    }
    return sum_lanes<T>(sum);
}

// Forward: y[k] = finish(x[k] - max, sum of exponentials).
template <class T, class Row, class Column>
FUSEDNN_INLINE void forward(i64 outer, i64 classes, i64 inner, const T* x, T* y, const Row& row,
                            const Column& column) {
    if (inner == 1) {
        for_row_blocks(outer, classes, [&](i64 begin, i64 end) {
            for (i64 r = begin; r < end; ++r) row(x + r * classes, y + r * classes);
        });
        return;
    }
    for_column_blocks<T>(outer, classes, inner, [&](i64 o, i64 first, i64 left) {
        const i64 at = o * classes * inner + first;
        const Vec<T> most = column_max(classes, inner, x + at, left);
        const Vec<T> sum = column_sum_exp(classes, inner, x + at, most, left);
        for (i64 k = 0; k < classes; ++k) {
            store_partial(y + at + k * inner,
                          column(load_partial(x + at + k * inner, left) - most, sum), left);
        }
    });
}

// Backward: dx[k] = finish(dy[k], y[k], sum over k of term(dy[k], y[k])).
template <class T, class Term, class Finish>
FUSEDNN_INLINE void backward(i64 outer, i64 classes, i64 inner, const T* dy, const T* y, T* dx,
                             const Term& term, const Finish& finish) {
    if (inner == 1) {
        for_row_blocks(outer, classes, [&](i64 begin, i64 end) {
            for (i64 r = begin; r < end; ++r) {
                const i64 at = r * classes;
                const Vec<T> sum = broadcast(sum_row(classes, dy + at, y + at, term));
                map_row(classes, dy + at, y + at, dx + at,
                        [&](Vec<T> g, Vec<T> v) { return finish(g, v, sum); });
            }
        });
        return;
    }
    for_column_blocks<T>(outer, classes, inner, [&](i64 o, i64 first, i64 left) {
        const i64 base = o * classes * inner + first;
        const Vec<T> sum = sum_classes<T>(classes, [&](i64 k) {
            const i64 at = base + k * inner;
            return term(load_partial(dy + at, left), load_partial(y + at, left));
        });
        for (i64 k = 0; k < classes; ++k) {
            const i64 at = base + k * inner;
            store_partial(dx + at,
                          finish(load_partial(dy + at, left), load_partial(y + at, left), sum),
                          left);
        }
    });
}

}  // namespace

template <class T>
void softmax_forward(i64 outer, i64 classes, i64 inner, const T* x, T* y) {
    forward<T>(
        outer, classes, inner, x, y,
        [&](const T* row, T* out) {
            const T sum = row_sum_exp(classes, row, row_max(classes, row), out);
            const Vec<T> divisor = broadcast(sum);
            map_row(classes, out, out, out, [&](Vec<T> e, Vec<T>) { return e / divisor; });
        },
        [](Vec<T> shifted, Vec<T> sum) { return vexp<T>(shifted) / sum; });
}

template <class T>
void log_softmax_forward(i64 outer, i64 classes, i64 inner, const T* x, T* y) {
    forward<T>(
        outer, classes, inner, x, y,
        [&](const T* row, T* out) {
            const T most = row_max(classes, row);
            const T log_sum = log_of(row_sum_exp(classes, row, most, static_cast<T*>(nullptr)));
            // Subtracted one after the other: their sum would lose the small one's last bits.
            const Vec<T> first = broadcast(most), second = broadcast(log_sum);
            map_row(classes, row, row, out, [&](Vec<T> v, Vec<T>) { return v - first - second; });
        },
        [](Vec<T> shifted, Vec<T> sum) { return shifted - vlog<T>(sum); });
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
