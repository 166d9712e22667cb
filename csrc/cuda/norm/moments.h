// Pieces of the normalisations. As on the CPU a mean is two numbers, `mean` and what its rounding
// left over, `low`, and the variance comes from a second pass over x - mean (Chan, Golub, LeVeque,
// "Algorithms for computing the sample variance", 1983). Sums are in double from vectors on.
#pragma once
#include "cuda/rows.h"

namespace fusednn::cuda {

template <class T>
struct Center {
    T mean, low, rstd;
    FUSEDNN_DEVICE T operator()(T x) const { return (x - mean - low) * rstd; }
    // Of stats (3, count).
    static FUSEDNN_DEVICE Center of(const T* stats, i64 count, i64 at) {
        return {stats[at], stats[count + at], stats[2 * count + at]};
    }
};

template <int kWide, class T>
FUSEDNN_DEVICE double wide_sum(const Wide<T, kWide>& v) {
    T sum = v.of[0];
    for (int i = 1; i < kWide; ++i) sum += v.of[i];
    return double(sum);
}

// Mean and 1 / root of the variance of a team's row; rms: of its squares, the mean left at 0.
template <class T, int kWide, class Row>
FUSEDNN_DEVICE Center<T> row_center(const RowTeam<kWide>& team, Row row, bool rms, double eps) {
    const double size = double(team.size);
    Center<T> center{T(0), T(0), T(0)};
    if (!rms) {
        double sum = 0;
        team.each([&](i64 k) { sum += wide_sum<kWide>(load_wide<kWide>(row + k)); });
        center.mean = T(team.all(sum, Add()) / size);
    }
    double rest = 0, squares = 0;
    team.each([&](i64 k) {
        auto v = load_wide<kWide>(row + k);
        for (int i = 0; i < kWide; ++i) v.of[i] -= center.mean;
        if (!rms) rest += wide_sum<kWide>(v);
        for (int i = 0; i < kWide; ++i) v.of[i] *= v.of[i];
        squares += wide_sum<kWide>(v);
    });
    double variance = team.all(squares, Add()) / size;
    if (!rms) {
        const double low = team.all(rest, Add()) / size;
        variance -= low * low;
        variance = variance < 0 ? 0 : variance;
        center.low = T(low);
    }
    center.rstd = T(1.0 / sqrt(variance + eps));
    return center;
}

// stats (3, rows).
template <class T>
FUSEDNN_DEVICE void store_center(const Center<T>& center, T* stats, i64 rows, i64 row) {
    stats[row] = center.mean;
    stats[rows + row] = center.low;
    stats[2 * rows + row] = center.rstd;
}

}  // namespace fusednn::cuda
