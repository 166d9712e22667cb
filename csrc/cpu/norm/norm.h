// Pieces of the normalisations: means and variances that keep their digits.
//
// A mean is kept as two numbers, `mean` and what its rounding left over, `low`: x - mean - low then
// has the digits of x even where the mean is 1e4 times the spread. The variance comes from a second
// pass over x - mean (Chan, Golub, LeVeque, "Algorithms for computing the sample variance", 1983),
// never from sums of squares of x.
#pragma once
#include "cpu/channels.h"

namespace fusednn {
namespace FUSEDNN_ISA {

template <class T>
struct Moments {
    T mean, low;
    double variance;
};

template <class T>
FUSEDNN_INLINE T reciprocal_root(double variance, double eps) {
    return T(1.0 / __builtin_sqrt(variance + eps));
}

// Mean and (biased) variance of a row.
template <class T>
FUSEDNN_INLINE Moments<T> row_moments(i64 size, const T* x) {
    double sum[1], rest[2];
    row_sums<1, T>(size, sum, [=](i64 k, auto load_at, Vec<T>(&v)[1]) { v[0] = load_at(x + k); });
    const T mean = T(sum[0] / double(size));
    const Vec<T> center = broadcast(mean);
    row_sums<2, T>(size, rest, [=](i64 k, auto load_at, Vec<T>(&v)[2]) {
        v[0] = load_at(x + k) - center;
        v[1] = v[0] * v[0];
    });
    const double low = rest[0] / double(size);
    return {mean, T(low), max_of(rest[1] / double(size) - low * low, 0.0)};
}

// The mean as two numbers: start + step, rounded, and what that lost.
template <class T>
FUSEDNN_INLINE Moments<T> split_mean(double start, double step, double variance) {
    const T mean = T(start + step);
    return {mean, T((start - double(mean)) + step), variance};
}

// to[i] = sum over `count` rows of partial (count, size), first to last.
template <class T>
FUSEDNN_INLINE void add_rows(i64 count, i64 size, const T* partial, T* to) {
    for_row_vectors<T>(size, [=](i64 k, auto load_at, auto store_at) {
        CarefulSum<T> sum;
        for (i64 i = 0; i < count; ++i) sum.add(load_at(partial + i * size + k));
        store_at(to + k, sum.total);
    });
}

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
