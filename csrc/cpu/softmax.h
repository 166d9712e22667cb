// Pieces of the softmax family: maxima and sums of exponentials, along rows or across them.
//
// Arrays are (outer, classes, inner). With inner = 1 a row of classes is contiguous and lanes are
// classes; otherwise lanes are neighbouring inner positions and a row is a stride away.
#pragma once
#include "cpu/parallel.h"
#include "cpu/vmath.h"

namespace fusednn {
namespace FUSEDNN_ISA {

template <class T>
FUSEDNN_INLINE T lowest() {
    return -T(__builtin_inf());
}

template <class T>
FUSEDNN_INLINE Vec<T> larger(Vec<T> a, Vec<T> b) {
    return select<T>(a < b, b, a);
}

template <class T>
FUSEDNN_INLINE T max_lanes(Vec<T> v) {
    T lane[kLanes<T>];
    __builtin_memcpy(lane, &v, sizeof v);
    for (int half = kLanes<T> / 2; half > 0; half /= 2) {
        for (int i = 0; i < half; ++i)
            lane[i] = lane[i] < lane[i + half] ? lane[i + half] : lane[i];
    }
    return lane[0];
}

// The largest of a row (NaN are passed over: they come back through the sum).
template <class T>
FUSEDNN_INLINE T row_max(i64 classes, const T* x) {
    constexpr i64 lanes = kLanes<T>;
    Vec<T> most = broadcast(lowest<T>());
    i64 k = 0;
    for (; k + lanes <= classes; k += lanes) most = larger<T>(most, load(x + k));
    T rest = max_lanes<T>(most);
    for (; k < classes; ++k) rest = rest < x[k] ? x[k] : rest;
    return rest;
}

// Long sums are taken in two levels: plainly over the vectors of a stretch, then over stretches
// with what each addition rounds off carried along (Kahan 1965). So errors do not grow with the
// length, at no cost that can be measured.
constexpr i64 kStretch = 8;

template <class T>
struct CarefulSum {
    Vec<T> total{}, lost{};

    FUSEDNN_INLINE void add(Vec<T> part) {
        const Vec<T> corrected = part - lost;
        const Vec<T> next = total + corrected;
        lost = (next - total) - corrected;
        total = next;
    }
};

// sum of term(k) over the whole vectors of a row: k = 0, lanes, 2 * lanes, ... below `end`.
template <class T, class Term>
FUSEDNN_INLINE Vec<T> sum_vectors(i64 end, const Term& term) {
    constexpr i64 lanes = kLanes<T>;
    CarefulSum<T> sum;
    for (i64 start = 0; start < end; start += kStretch * lanes) {
        Vec<T> part{};
        for (i64 k = start; k < min_of(start + kStretch * lanes, end); k += lanes) part += term(k);
        sum.add(part);
    }
    return sum.total;
}

// sum of term(k) over the classes k of `left` positions side by side.
template <class T, class Term>
FUSEDNN_INLINE Vec<T> sum_classes(i64 classes, const Term& term) {
    CarefulSum<T> sum;
    for (i64 start = 0; start < classes; start += kStretch) {
        Vec<T> part{};
        for (i64 k = start; k < min_of(start + kStretch, classes); ++k) part += term(k);
        sum.add(part);
    }
    return sum.total;
}

// sum of exp(x - most) over a row; with `y` the exponentials are stored as well.
template <class T>
FUSEDNN_INLINE T row_sum_exp(i64 classes, const T* x, T most, T* y) {
    constexpr i64 lanes = kLanes<T>;
    const Vec<T> shift = broadcast(most);
    const i64 k = classes / lanes * lanes;
    Vec<T> sum = sum_vectors<T>(k, [&](i64 i) {
        const Vec<T> e = vexp<T>(load(x + i) - shift);
        if (y) store(y + i, e);
        return e;
    });
    if (k < classes) {
        const i64 left = classes - k;
        const Vec<T> e = vexp<T>(load_partial(x + k, left) - shift);
        if (y) store_partial(y + k, e, left);
        T part[lanes];
        store(part, e);
        sum += load_partial(part, left);
    }
    return sum_lanes<T>(sum);
}

// The same for `left` lanes of inner positions: maxima and sums over the classes.
template <class T>
FUSEDNN_INLINE Vec<T> column_max(i64 classes, i64 inner, const T* x, i64 left) {
    Vec<T> most = broadcast(lowest<T>());
    for (i64 k = 0; k < classes; ++k) most = larger<T>(most, load_partial(x + k * inner, left));
    return most;
}

template <class T>
FUSEDNN_INLINE Vec<T> column_sum_exp(i64 classes, i64 inner, const T* x, Vec<T> most, i64 left) {
    return sum_classes<T>(classes,
                          [&](i64 k) { return vexp<T>(load_partial(x + k * inner, left) - most); });
}

// Cuts (outer, inner) into tasks. inner = 1: body(first row, end row) for stretches of rows;
// otherwise columns: body(outer, first inner position, lanes) for every vector of positions.
// What an exponential costs: about 20 operations.
constexpr i64 kExpCost = 20;

template <class Body>
FUSEDNN_INLINE void for_row_blocks(i64 rows, i64 classes, const Body& body) {
    const i64 step = max_of(i64(16384) / max_of(classes, i64(1)), i64(1));
    const i64 tasks = ceil_div(rows, step);
    parallel(tasks, parallel_slots(tasks, rows * classes * kExpCost),
             [&](i64 task, int) { body(task * step, min_of((task + 1) * step, rows)); });
}

template <class T, class Body>
FUSEDNN_INLINE void for_column_blocks(i64 outer, i64 classes, i64 inner, const Body& body) {
    constexpr i64 lanes = kLanes<T>;
    const i64 blocks = ceil_div(inner, lanes);
    parallel(outer * blocks, parallel_slots(outer * blocks, outer * classes * inner * kExpCost),
             [&](i64 task, int) {
                 const i64 first = task % blocks * lanes;
                 body(task / blocks, first, min_of(inner - first, lanes));
             });
}

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
