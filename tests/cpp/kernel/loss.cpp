// ReLU, softmax, log-softmax and cross-entropy, forward and backward, against their formulas.
#include <algorithm>
#include <cmath>

#include "kernel/support.h"

namespace fusednn::test {

namespace {

struct Rows {
    i64 outer, classes, inner;
    i64 size() const { return outer * classes * inner; }
    i64 positions() const { return outer * inner; }
    // Element of class k at a position.
    i64 at(i64 position, i64 k) const {
        return (position / inner * classes + k) * inner + position % inner;
    }
};

std::string text(const Rows& r) {
    return std::to_string(r.outer) + "x" + std::to_string(r.classes) + "x" +
           std::to_string(r.inner);
}

// log(sum of exp) of a position's classes is top + rest; apart, since their sum loses digits.
struct LogSum {
    double top = -INFINITY, rest = 0;
};

template <class T>
LogSum log_sum(const Rows& r, const std::vector<T>& x, i64 position) {
    LogSum norm;
    double sum = 0;
    for (i64 k = 0; k < r.classes; ++k) norm.top = std::max(norm.top, double(x[r.at(position, k)]));
    for (i64 k = 0; k < r.classes; ++k) sum += std::exp(double(x[r.at(position, k)]) - norm.top);
    norm.rest = std::log(sum);
    return norm;
}

Expected blank(i64 size) {
    Expected e;
    e.value.assign(std::size_t(size), 0.0);
    e.slack.assign(std::size_t(size), 0.0);
    return e;
}

void set(Expected& e, i64 index, double value, double slack) {
    e.value[std::size_t(index)] = value;
    e.slack[std::size_t(index)] = slack;
}

template <class T>
void relu_case(i64 size) {
    Random random(std::uint64_t(size) + 1);
    auto x = random.array<T>(size);
    const auto dy = random.array<T>(size);
    const T specials[] = {std::numeric_limits<T>::quiet_NaN(),
                          std::numeric_limits<T>::infinity(),
                          -std::numeric_limits<T>::infinity(),
                          T(0),
                          T(-0.0),
                          std::numeric_limits<T>::denorm_min(),
                          -std::numeric_limits<T>::denorm_min(),
                          std::numeric_limits<T>::max()};
    for (i64 i = 0; i < size; i += 3) x[i] = specials[i / 3 % 8];
    Expected y, dx;
    for (i64 i = 0; i < size; ++i) {
        const double v = double(x[i]);
        y.push(std::isnan(v) ? v : v > 0 ? v : 0.0);
        dx.push(std::isnan(v) || v > 0 ? double(dy[i]) : 0.0);
    }
    const std::string name = std::to_string(size);
    check<T>("relu_forward " + name, {y}, [&](const KernelTable<T>& table, T* const* out) {
        table.relu_forward(size, x.data(), out[0]);
    });
    check<T>("relu_backward " + name, {dx}, [&](const KernelTable<T>& table, T* const* out) {
        table.relu_backward(size, dy.data(), x.data(), out[0]);
    });
}

template <class T>
void softmax_case(const Rows& r, double scale) {
    Random random(std::uint64_t(r.size()) + 1);
    auto x = random.array<T>(r.size());
    for (T& v : x) v = T(double(v) * scale);
    const auto dy = random.array<T>(r.size());
    Expected y = blank(r.size()), log_y = blank(r.size());
    // The backward kernels take a forward's output: what float can hold of it.
    std::vector<T> given(x.size()), log_given(x.size());
    for (i64 position = 0; position < r.positions(); ++position) {
        const LogSum norm = log_sum(r, x, position);
        for (i64 k = 0; k < r.classes; ++k) {
            const i64 i = r.at(position, k);
            const double log_p = double(x[i]) - norm.top - norm.rest, p = std::exp(log_p);
            // exp turns an absolute error of its argument into a relative one.
            const double slack = eps<T>() * (double(r.classes) + 16 + 4 * std::fabs(log_p));
            set(y, i, p, slack * p + double(std::numeric_limits<T>::min()));
            set(log_y, i, log_p,
                eps<T>() *
                    (double(r.classes) + 16 + 4 * std::fabs(double(x[i])) + 4 * std::fabs(log_p)));
            given[i] = T(p);
            log_given[i] = T(log_p);
        }
    }
    Expected dx = blank(r.size()), log_dx = blank(r.size());
    for (i64 position = 0; position < r.positions(); ++position) {
        Sum dot, total;
        for (i64 k = 0; k < r.classes; ++k) {
            const i64 i = r.at(position, k);
            dot.add(double(dy[i]) * double(given[i]));
            total.add(double(dy[i]));
        }
        for (i64 k = 0; k < r.classes; ++k) {
            const i64 i = r.at(position, k);
            const double p = double(given[i]), q = std::exp(double(log_given[i]));
            const double d = double(dy[i]), ulps = eps<T>() * (double(r.classes) + 16);
            set(dx, i, p * (d - dot.value),
                ulps * p * (std::fabs(d) + dot.magnitude) + double(std::numeric_limits<T>::min()));
            const double log_ulps = ulps + eps<T>() * 4 * std::fabs(double(log_given[i]));
            set(log_dx, i, d - q * total.value,
                log_ulps * (std::fabs(d) + q * total.magnitude) +
                    double(std::numeric_limits<T>::min()));
        }
    }
    const std::string name = text(r) + " scale " + std::to_string(scale);
    check<T>("softmax_forward " + name, {y}, [&](const KernelTable<T>& table, T* const* out) {
        table.softmax_forward(r.outer, r.classes, r.inner, x.data(), out[0]);
    });
    check<T>("log_softmax_forward " + name, {log_y},
             [&](const KernelTable<T>& table, T* const* out) {
                 table.log_softmax_forward(r.outer, r.classes, r.inner, x.data(), out[0]);
             });
    check<T>("softmax_backward " + name, {dx}, [&](const KernelTable<T>& table, T* const* out) {
        table.softmax_backward(r.outer, r.classes, r.inner, dy.data(), given.data(), out[0]);
    });
    check<T>("log_softmax_backward " + name, {log_dx},
             [&](const KernelTable<T>& table, T* const* out) {
                 table.log_softmax_backward(r.outer, r.classes, r.inner, dy.data(),
                                            log_given.data(), out[0]);
             });
}

struct Entropy {
    double smoothing = 0;
    bool weighted = false, log_prob = false;
};

template <class T>
void cross_entropy_case(const Rows& r, const Entropy& e) {
    Random random(std::uint64_t(r.size()) + 2);
    auto x = random.array<T>(r.size());
    for (T& v : x) v = T(e.log_prob ? 3 * double(v) - 3 : 8 * double(v));
    std::vector<T> class_weight(std::size_t(r.classes));
    for (T& v : class_weight) v = T(0.25 + 0.25 * double(random.below(8)));
    std::vector<i64> target(std::size_t(r.positions()));
    const i64 ignore = -100;
    for (i64& t : target) t = random.below(5) == 0 ? ignore : random.below(r.classes);
    const auto scale = random.array<T>(r.positions());

    Expected losses, weights, dx = blank(r.size());
    const double spread = e.smoothing / double(r.classes),
                 tiny = double(std::numeric_limits<T>::min());
    for (i64 position = 0; position < r.positions(); ++position) {
        const i64 t = target[position];
        if (t == ignore) {
            losses.push(0);
            weights.push(0);
            continue;  // and a gradient of exactly 0
        }
        const LogSum parts = e.log_prob ? LogSum{0, 0} : log_sum(r, x, position);
        const double norm = parts.top + parts.rest, s = double(scale[position]);
        const double w = e.weighted ? double(class_weight[t]) : 1;
        // The target's share of the loss, then the smoothed-in share of every class.
        Sum loss;
        loss.add((1 - e.smoothing) * w * (norm - double(x[r.at(position, t)])));
        double all = 0, reach = std::fabs(norm) + std::fabs(double(x[r.at(position, t)]));
        for (i64 k = 0; k < r.classes; ++k) {
            const double wk = e.weighted ? double(class_weight[k]) : 1,
                         xk = double(x[r.at(position, k)]);
            loss.add(spread * wk * (norm - xk));
            all += wk;
            reach += spread * wk * (std::fabs(norm) + std::fabs(xk));
        }
        losses.push(loss.value, eps<T>() * (double(r.classes) + 32) * (loss.magnitude + 2 * reach));
        weights.push(w);
        for (i64 k = 0; k < r.classes; ++k) {
            const double wk = e.weighted ? double(class_weight[k]) : 1;
            const double hit = (k == t ? (1 - e.smoothing) * w : 0) + spread * wk;
            const double p = e.log_prob ? 0 : std::exp(double(x[r.at(position, k)]) - norm);
            const double mass = (1 - e.smoothing) * w + spread * all;
            const double slack = eps<T>() * (double(r.classes) + 48);
            set(dx, r.at(position, k), s * (p * mass - hit),
                slack * std::fabs(s) * (p * mass + hit) + tiny);
        }
    }
    CrossEntropyParams<T> p{};
    p.outer = r.outer, p.classes = r.classes, p.inner = r.inner;
    p.target = target.data();
    p.class_weight = e.weighted ? class_weight.data() : nullptr;
    p.ignore_index = ignore;
    p.label_smoothing = e.smoothing;
    p.input_is_log_prob = e.log_prob;
    const std::string name = text(r) + " smoothing " + std::to_string(e.smoothing) +
                             (e.weighted ? " weighted" : "") + (e.log_prob ? " log-prob" : "");
    check<T>("cross_entropy_forward " + name, {losses, weights},
             [&](const KernelTable<T>& table, T* const* out) {
                 table.cross_entropy_forward(p, x.data(), out[0], out[1]);
             });
    check<T>("cross_entropy_backward " + name, {dx},
             [&](const KernelTable<T>& table, T* const* out) {
                 table.cross_entropy_backward(p, x.data(), scale.data(), out[0]);
             });
}

std::vector<Rows> shapes() {
    std::vector<Rows> list = {{0, 5, 1},   {3, 5, 0},     {1, 1, 1},    {4, 1, 3},
                              {3, 7, 1},   {2, 5, 7},     {1, 1009, 1}, {2, 3, 33},
                              {64, 10, 1}, {700, 257, 1}, {9, 31, 401}};
    for (i64 classes : {2, 3, 4, 5, 8, 9, 15, 16, 17, 31, 32, 33}) {
        list.push_back({3, classes, 1});
        list.push_back({2, 3, classes});
    }
    return list;
}

template <class T>
void entropies(const Rows& r) {
    for (double smoothing : {0.0, 0.1, 1.0}) {
        cross_entropy_case<T>(r, {smoothing, false, false});
        cross_entropy_case<T>(r, {smoothing, true, false});
    }
    cross_entropy_case<T>(r, {0.0, false, true});
    cross_entropy_case<T>(r, {0.0, true, true});
}

}  // namespace

void test_activation() {
    for (i64 size :
         {0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 127, 1009, 1'000'003}) {
        relu_case<float>(size);
        relu_case<double>(size);
    }
}

void test_softmax() {
    for (const Rows& r : shapes()) {
        for (double scale : {1.0, 60.0, 5000.0}) {  // the last overflows without the maximum
            softmax_case<float>(r, scale);
            softmax_case<double>(r, scale);
        }
    }
}

void test_cross_entropy() {
    for (const Rows& r : shapes()) {
        entropies<float>(r);
        entropies<double>(r);
    }
}

}  // namespace fusednn::test
