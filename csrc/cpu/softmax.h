// Pieces of the softmax family: maxima and sums over the classes of (outer, classes, inner).
//
// With inner = 1 a row of classes is contiguous and lanes are classes. Rows are worked on in
// groups, pass by pass: the end of one row's reduction then overlaps with the next row, where one
// row alone would wait for every step, and the logarithms of a group are one vector. Otherwise
// lanes are neighbouring inner positions ("columns"), and a class is a stride away.
#pragma once
#include "cpu/parallel.h"
#include "cpu/vmath.h"

namespace fusednn {
namespace FUSEDNN_ISA {

// ---- sums and maxima ----------------------------------------

// Long sums are taken in two levels: plainly over a stretch of vectors, then over stretches with
// what each addition rounds off carried along (Kahan 1965). So errors do not grow with the length.
constexpr i64 kStretch = 8;

template <class T>
struct CarefulSum {
    Vec<T> total{}, lost{};

    FUSEDNN_INLINE void add(Vec<T> part) {
        const Vec<T> corrected = part - lost;
        const Vec<T> next = total + corrected;
        const Vec<T> error = (next - total) - corrected;
        // An infinite sum stays infinite: its "error" is inf - inf.
        lost = select<T>(error == error, error, Vec<T>{});
        total = next;
    }
};

namespace detail {
template <int kStep, class T, int... I>
FUSEDNN_INLINE Vec<T> partners(Vec<T> v, Seq<I...>) {
    return __builtin_shufflevector(v, v, (I ^ kStep)...);
}
// Combines all lanes in a fixed tree; every lane holds the result.
template <int kStep, class T, class Combine>
FUSEDNN_INLINE Vec<T> across_lanes(Vec<T> v, const Combine& combine) {
    if constexpr (kStep > 0) {
        v = combine(v, partners<kStep, T>(v, typename MakeSeq<kLanes<T>>::type{}));
        return across_lanes<kStep / 2, T>(v, combine);
    } else {
        return v;
    }
}
}  // namespace detail

template <class T>
FUSEDNN_INLINE T max_lanes(Vec<T> v) {
    return detail::across_lanes<kLanes<T> / 2, T>(
        v, [](Vec<T> a, Vec<T> b) { return larger<T>(a, b); })[0];
}
template <class T>
FUSEDNN_INLINE T add_lanes(Vec<T> v) {
    return detail::across_lanes<kLanes<T> / 2, T>(v, [](Vec<T> a, Vec<T> b) { return a + b; })[0];
}

template <class T>
FUSEDNN_INLINE Vec<T> minus_infinity() {
    return broadcast(-T(__builtin_inf()));
}

// The first `n` lanes of v, `rest` in the others.
template <class T>
FUSEDNN_INLINE Vec<T> first_lanes(Vec<T> v, i64 n, Vec<T> rest) {
    Mask<T> lane;
    for (int i = 0; i < kLanes<T>; ++i) lane[i] = i;
    return select<T>(lane < Int<T>(n), v, rest);
}

// ---- rows ----------------------------------------

// body(first row, end row) for stretches of rows.
constexpr i64 kExpCost = 20;  // what an exponential costs, in operations
template <class Body>
FUSEDNN_INLINE void for_row_blocks(i64 rows, i64 classes, const Body& body) {
    const i64 step = max_of(i64(16384) / max_of(classes, i64(1)), i64(1));
    const i64 tasks = ceil_div(rows, step);
    parallel(tasks, parallel_slots(tasks, rows * classes * kExpCost),
             [&](i64 task, int) { body(task * step, min_of((task + 1) * step, rows)); });
}

// Most rows in a group: as many as a vector has lanes.
template <class T>
constexpr i64 kGroup = kLanes<T>;

// body(first row, rows) for groups of rows that, three arrays of them, stay in a 32 KB L1 from pass
// to pass.
template <class T, class Body>
FUSEDNN_INLINE void for_row_groups(i64 rows, i64 classes, const Body& body) {
    const i64 fits = i64(8192 / sizeof(T)) / max_of(classes, i64(1));
    const i64 group = min_of(max_of(fits, i64(1)), kGroup<T>);
    for_row_blocks(rows, classes, [&](i64 begin, i64 end) {
        for (i64 r = begin; r < end; r += group) body(r, min_of(group, end - r));
    });
}

// fn(k, load_at, store_at) for every vector of a row; those of the last move only what is left.
template <class T, class Fn>
FUSEDNN_INLINE void for_row_vectors(i64 classes, const Fn& fn) {
    constexpr i64 lanes = kLanes<T>;
    i64 k = 0;
    for (; k + lanes <= classes; k += lanes) {
        fn(k, [](const T* p) { return load(p); }, [](T* p, Vec<T> v) { store(p, v); });
    }
    if (k < classes) {
        const i64 left = classes - k;
        fn(
            k, [left](const T* p) { return load_partial(p, left); },
            [left](T* p, Vec<T> v) { store_partial(p, v, left); });
    }
}

// The largest of a row (NaN are passed over: they come back through the sum).
template <class T>
FUSEDNN_INLINE T row_max(i64 classes, const T* x) {
    constexpr i64 lanes = kLanes<T>;
    Vec<T> most = minus_infinity<T>(), other = most;
    i64 k = 0;
    for (; k + 2 * lanes <= classes; k += 2 * lanes) {
        most = larger<T>(most, load(x + k));
        other = larger<T>(other, load(x + k + lanes));
    }
    most = larger<T>(most, other);
    for (; k < classes; k += lanes) {
        const i64 left = min_of(classes - k, lanes);
        most =
            larger<T>(most, first_lanes<T>(load_partial(x + k, left), left, minus_infinity<T>()));
    }
    return max_lanes<T>(most);
}

// sum of term(k, load_at, store_at) over a row; lanes past its end must not matter to the term, and
// are left out of the sum.
template <class T, class Term>
FUSEDNN_INLINE T row_sum(i64 classes, const Term& term) {
    constexpr i64 lanes = kLanes<T>;
    const auto load_at = [](const T* p) { return load(p); };
    const auto store_at = [](T* p, Vec<T> v) { store(p, v); };
    CarefulSum<T> sum;
    i64 k = 0;
    for (; k + kStretch * lanes <= classes; k += kStretch * lanes) {
        Vec<T> part{};
#pragma GCC unroll 4
        for (i64 i = 0; i < kStretch; ++i) part += term(k + i * lanes, load_at, store_at);
        sum.add(part);
    }
    Vec<T> part{};
    for (; k + lanes <= classes; k += lanes) part += term(k, load_at, store_at);
    if (k < classes) {
        const i64 left = classes - k;
        const Vec<T> last = term(
            k, [left](const T* p) { return load_partial(p, left); },
            [left](T* p, Vec<T> v) { store_partial(p, v, left); });
        part += first_lanes<T>(last, left, Vec<T>{});
    }
    sum.add(part);
    return add_lanes<T>(sum.total);
}

// sum of exp(x - most) over a row; kKeep: the exponentials go to y.
template <bool kKeep, class T>
FUSEDNN_INLINE T row_sum_exp(i64 classes, const T* x, T most, T* y) {
    const Vec<T> shift = broadcast(most);
    return row_sum<T>(classes, [=](i64 k, auto load_at, auto store_at) {
        const Vec<T> e = vexp<T>(load_at(x + k) - shift);
        if constexpr (kKeep) store_at(y + k, e);
        return e;
    });
}

// most[i] and sum[i], the maximum and the sum of exp(x - maximum), of a group of rows; kKeep: the
// exponentials go to y. Lanes of rows that are not there hold the sum 1.
template <bool kKeep, class T>
FUSEDNN_INLINE void group_sums(i64 rows, i64 classes, const T* x, T* y, T (&most)[kGroup<T>],
                               T (&sum)[kGroup<T>]) {
    for (i64 i = 0; i < kGroup<T>; ++i) sum[i] = T(1);
    for (i64 i = 0; i < rows; ++i) most[i] = row_max(classes, x + i * classes);
    for (i64 i = 0; i < rows; ++i) {
        sum[i] = row_sum_exp<kKeep>(classes, x + i * classes, most[i], y + i * classes);
    }
}

// ---- columns ----------------------------------------

// kVectors whole vectors side by side, or (Edge) the `left` lanes at the end of a line. `keeps`: it
// pays to store exponentials and load them again; for an edge it does not, since a load has to wait
// until masked stores have reached the cache (measured: 1.7 times slower than computing them
// twice).
template <class T, int kVectors>
struct LaneColumns {
    static constexpr int vectors = kVectors;
    static constexpr bool keeps = true;
    FUSEDNN_INLINE i64 count() const { return vectors * kLanes<T>; }
    FUSEDNN_INLINE Vec<T> get(const T* p, int v) const { return load(p + v * kLanes<T>); }
    FUSEDNN_INLINE void put(T* p, int v, Vec<T> value) const { store(p + v * kLanes<T>, value); }
};
template <class T>
struct Edge {
    static constexpr int vectors = 1;
    static constexpr bool keeps = false;
    i64 left;
    FUSEDNN_INLINE i64 count() const { return left; }
    FUSEDNN_INLINE Vec<T> get(const T* p, int) const { return load_partial(p, left); }
    FUSEDNN_INLINE void put(T* p, int, Vec<T> value) const { store_partial(p, value, left); }
};

// Vectors side by side: a stride's cache line fetch then serves whole neighbouring lines, as far as
// the registers reach.
constexpr int kWide = kVectorBytes == 64 ? 4 : 2;

// body(outer, first inner position, LaneColumns or Edge) for all columns. A task is a run of
// positions of one outer index, or several whole outer indices where those are small.
template <class T, class Body>
FUSEDNN_INLINE void for_columns(i64 outer, i64 classes, i64 inner, const Body& body) {
    constexpr i64 lanes = kLanes<T>, wide = kWide * lanes;
    const i64 run = round_up(max_of(i64(16384) / max_of(classes, i64(1)), i64(1)), wide);
    const i64 runs = ceil_div(inner, run);
    const i64 several = runs == 1 ? max_of(run / max_of(inner, i64(1)), i64(1)) : 1;
    const i64 tasks = ceil_div(outer, several) * runs;
    parallel(tasks, parallel_slots(tasks, outer * classes * inner * kExpCost), [&](i64 task, int) {
        const i64 begin = task % runs * run, end = min_of(begin + run, inner);
        const i64 from = task / runs * several, to = min_of(from + several, outer);
        for (i64 o = from; o < to; ++o) {
            i64 i = begin;
            for (; i + wide <= end; i += wide) body(o, i, LaneColumns<T, kWide>{});
            for (; i + lanes <= end; i += lanes) body(o, i, LaneColumns<T, 1>{});
            if (i < end) body(o, i, Edge<T>{end - i});
        }
    });
}

// sum[v] of term(k, v) over the classes.
template <class T, int kVectors, class Term>
FUSEDNN_INLINE void column_sum(i64 classes, Vec<T> (&sum)[kVectors], const Term& term) {
    CarefulSum<T> careful[kVectors];
    for (i64 start = 0; start < classes; start += kStretch) {
        Vec<T> part[kVectors] = {};
        for (i64 k = start; k < min_of(start + kStretch, classes); ++k) {
            for (int v = 0; v < kVectors; ++v) part[v] += term(k, v);
        }
        for (int v = 0; v < kVectors; ++v) careful[v].add(part[v]);
    }
    for (int v = 0; v < kVectors; ++v) sum[v] = careful[v].total;
}

// Maximum and sum of exponentials of every column; kKeep: the exponentials go to y.
template <bool kKeep, class T, class Access>
FUSEDNN_INLINE void column_sums(i64 classes, i64 inner, const T* x, T* y, Access at,
                                Vec<T> (&most)[Access::vectors], Vec<T> (&sum)[Access::vectors]) {
    constexpr int vectors = Access::vectors;
    for (int v = 0; v < vectors; ++v) most[v] = minus_infinity<T>();
    for (i64 k = 0; k < classes; ++k) {
        for (int v = 0; v < vectors; ++v) most[v] = larger<T>(most[v], at.get(x + k * inner, v));
    }
    column_sum<T>(classes, sum, [&](i64 k, int v) {
        const Vec<T> e = vexp<T>(at.get(x + k * inner, v) - most[v]);
        if constexpr (kKeep) at.put(y + k * inner, v, e);
        return e;
    });
}

// exp(x - most) of one class after column_sums<Access::keeps>.
template <class T, class Access>
FUSEDNN_INLINE Vec<T> kept_exp(const T* x, const T* y, Access at, int v, Vec<T> most) {
    if constexpr (Access::keeps) {
        return at.get(y, v);
    } else {
        return vexp<T>(at.get(x, v) - most);
    }
}

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
