// Layer, group and batch normalisation, forward and backward, against their formulas in double.
#include <cmath>

#include "kernel/support.h"

namespace fusednn::test {

namespace {

constexpr double kEps = 1e-5;

// Elements that are normalised together: their positions in x, and those of weight and bias.
struct Group {
    std::vector<i64> at, scale;
};

struct Normalized {
    Expected y, dx;
    std::vector<Sum> dw, db;
};

// What any of the normalisations gives, group by group.
template <class T>
Normalized expect(const std::vector<Group>& groups, const std::vector<T>& x,
                  const std::vector<T>& dy, const std::vector<T>& w, const std::vector<T>& b,
                  bool rms) {
    Normalized result;
    result.y.value.resize(x.size()), result.y.slack.resize(x.size());
    result.dx.value.resize(x.size()), result.dx.slack.resize(x.size());
    result.dw.resize(w.size()), result.db.resize(w.size());
    for (const Group& group : groups) {
        const double n = double(group.at.size());
        double mean = 0, square = 0, mean_g = 0, mean_gx = 0, most = 0;
        for (i64 i : group.at) mean += rms ? 0 : double(x[i]) / n;
        for (i64 i : group.at) square += (double(x[i]) - mean) * (double(x[i]) - mean) / n;
        const double rstd = 1 / std::sqrt(square + kEps);
        for (std::size_t k = 0; k < group.at.size(); ++k) {
            const double g = double(dy[group.at[k]]) * double(w[group.scale[k]]);
            mean_g += rms ? 0 : g / n;
            mean_gx += g * (double(x[group.at[k]]) - mean) * rstd / n;
            most = std::fmax(most, std::fabs(g));
        }
        for (std::size_t k = 0; k < group.at.size(); ++k) {
            const i64 i = group.at[k], c = group.scale[k];
            const double xhat = (double(x[i]) - mean) * rstd, g = double(dy[i]) * double(w[c]);
            const double scale = std::fabs(xhat) + 1;
            result.y.value[i] = xhat * double(w[c]) + double(b[c]);
            result.y.slack[i] = 16 * eps<T>() * (scale * std::fabs(double(w[c])) + 1);
            result.dx.value[i] = (g - mean_g - xhat * mean_gx) * rstd;
            result.dx.slack[i] = 32 * eps<T>() * most * scale * rstd;
            result.dw[c].add(double(dy[i]) * xhat);
            result.db[c].add(double(dy[i]));
        }
    }
    return result;
}

template <class T>
Expected sums(const std::vector<Sum>& list) {
    Expected e;
    for (const Sum& sum : list) e.push(sum.value, 8 * sum.slack<T>());
    return e;
}

template <class T>
void layer_case(i64 rows, i64 size, bool rms) {
    Random random(std::uint64_t(rows * 1009 + size));
    const auto x = random.array<T>(rows * size), dy = random.array<T>(rows * size);
    const auto w = random.array<T>(size), b = random.array<T>(size);
    std::vector<Group> groups;
    for (i64 row = 0; row < rows; ++row) {
        Group group;
        for (i64 k = 0; k < size; ++k) {
            group.at.push_back(row * size + k);
            group.scale.push_back(k);
        }
        groups.push_back(group);
    }
    const Normalized e = expect(groups, x, dy, w, b, rms);
    const LayerNormParams p{rows, size, kEps, rms};
    const std::string name = std::to_string(rows) + "x" + std::to_string(size);
    const std::vector<Expected> all = {e.y, e.dx, sums<T>(e.dw), sums<T>(e.db)};
    check<T>((rms ? "rms_norm " : "layer_norm ") + name, all,
             [&](const KernelTable<T>& table, T* const* out) {
                 std::vector<T> stats(std::size_t(3 * rows) + 1);
                 table.layer_norm_forward(p, x.data(), nullptr, w.data(), b.data(), nullptr, out[0],
                                          stats.data());
                 table.layer_norm_backward(p, dy.data(), x.data(), w.data(), stats.data(), out[1],
                                           out[2], out[3]);
             });
}

template <class T>
void group_case(i64 batch, i64 count, i64 channels, i64 inner) {
    Random random(std::uint64_t(batch * 7 + count * 11 + channels * 13 + inner));
    const i64 size = batch * channels * inner, each = channels / count;
    const auto x = random.array<T>(size), dy = random.array<T>(size);
    const auto w = random.array<T>(channels), b = random.array<T>(channels);
    std::vector<Group> groups(std::size_t(batch * count));
    for (i64 i = 0; i < size; ++i) {
        const i64 channel = i / inner % channels, image = i / inner / channels;
        Group& group = groups[std::size_t(image * count + channel / each)];
        group.at.push_back(i);
        group.scale.push_back(channel);
    }
    const Normalized e = expect(groups, x, dy, w, b, false);
    const GroupNormParams p{batch, count, channels, inner, kEps};
    const std::string name = std::to_string(batch) + "x" + std::to_string(channels) + "x" +
                             std::to_string(inner) + " in " + std::to_string(count);
    check<T>("group_norm " + name, {e.y, e.dx, sums<T>(e.dw), sums<T>(e.db)},
             [&](const KernelTable<T>& table, T* const* out) {
                 std::vector<T> stats(std::size_t(3 * batch * count) + 1);
                 table.group_norm_forward(p, x.data(), w.data(), b.data(), out[0], stats.data());
                 table.group_norm_backward(p, dy.data(), x.data(), w.data(), stats.data(), out[1],
                                           out[2], out[3]);
             });
}

template <class T>
void batch_case(i64 outer, i64 channels, i64 inner) {
    Random random(std::uint64_t(outer * 7 + channels * 13 + inner));
    const i64 size = outer * channels * inner;
    const auto x = random.array<T>(size), dy = random.array<T>(size);
    const auto w = random.array<T>(channels), b = random.array<T>(channels);
    std::vector<Group> groups(static_cast<std::size_t>(channels));
    for (i64 i = 0; i < size; ++i) {
        const i64 channel = i / inner % channels;
        groups[std::size_t(channel)].at.push_back(i);
        groups[std::size_t(channel)].scale.push_back(channel);
    }
    const Normalized e = expect(groups, x, dy, w, b, false);
    const BatchNormParams p{outer, channels, inner, true, false};
    const std::string name =
        std::to_string(outer) + "x" + std::to_string(channels) + "x" + std::to_string(inner);
    check<T>("batch_norm " + name, {e.y, e.dx, sums<T>(e.dw), sums<T>(e.db)},
             [&](const KernelTable<T>& table, T* const* out) {
                 std::vector<T> stats(std::size_t(3 * channels) + 1);
                 T *mean = stats.data(), *low = mean + channels, *rstd = low + channels;
                 table.batch_norm_stats(p, x.data(), mean, low, rstd);
                 for (i64 c = 0; c < channels; ++c) {
                     rstd[c] = T(1 / std::sqrt(double(rstd[c]) + kEps));
                 }
                 table.batch_norm_apply(p, x.data(), stats.data(), w.data(), b.data(), out[0]);
                 table.batch_norm_backward(p, dy.data(), x.data(), nullptr, stats.data(), w.data(),
                                           out[1], out[2], out[3]);
             });
}

template <class T>
void all_cases() {
    for (i64 size : {2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 64, 65, 257, 5003}) {
        layer_case<T>(3, size, false);
        layer_case<T>(3, size, true);
        group_case<T>(2, 2, 4, size);
        batch_case<T>(3, 4, size);
        batch_case<T>(5, size, 1);
    }
    layer_case<T>(0, 5, false);
    layer_case<T>(701, 300, false);
    group_case<T>(3, 1, 33, 70);
    group_case<T>(2, 8, 8, 1300);
    batch_case<T>(2100, 33, 1);
    batch_case<T>(70, 3, 401);
    batch_case<T>(2, 2, 40000);
}

}  // namespace

void test_norm() {
    all_cases<float>();
    all_cases<double>();
}

}  // namespace fusednn::test
