// Optimiser steps: SGD with everything it can have, Adam, AdamW, AMSGrad, RMSprop and Adagrad, in
// double by formula.
#include <cmath>

#include "kernel/support.h"

namespace fusednn::test {

namespace {

template <class T>
void fill(T* out, const std::vector<T>& values) {
    for (std::size_t i = 0; i < values.size(); ++i) out[i] = values[i];
}

// Every update is a handful of roundings of numbers no larger than these.
template <class T>
double slack(double a, double b = 0, double c = 0) {
    return 16 * eps<T>() * (std::fabs(a) + std::fabs(b) + std::fabs(c));
}

template <class T>
void sgd_case(i64 size, int variant) {
    Random random(std::uint64_t(size) + 3);
    const auto param = random.array<T>(size), grad = random.array<T>(size);
    const auto buffer = random.array<T>(size);
    SgdOptions p{};
    p.lr = 0.1;
    const bool momentum = variant & 1;
    p.momentum = momentum ? 0.9 : 0;
    const bool first_step = variant & 2;
    p.dampening = variant & 4 ? 0.25 : 0;
    p.weight_decay = variant & 8 ? 0.01 : 0;
    p.nesterov = momentum && (variant & 16);
    p.maximize = variant & 32;

    Expected after, kept;
    for (i64 i = 0; i < size; ++i) {
        double g = p.maximize ? -double(grad[i]) : double(grad[i]);
        g += p.weight_decay * double(param[i]);
        double step = g;
        if (momentum) {
            const double b =
                first_step ? g : p.momentum * double(buffer[i]) + (1 - p.dampening) * g;
            kept.push(b, slack<T>(buffer[i], g));
            step = p.nesterov ? g + p.momentum * b : b;
        }
        after.push(double(param[i]) - p.lr * step, slack<T>(param[i], grad[i], buffer[i]));
    }
    std::vector<Expected> expected = {after};
    if (momentum) expected.push_back(kept);
    check<T>("sgd_step " + std::to_string(size) + " variant " + std::to_string(variant), expected,
             [&](const KernelTable<T>& table, T* const* out) {
                 fill(out[0], param);
                 // On the first step the buffer holds nothing yet: it stays NaN here.
                 if (momentum && !first_step) fill(out[1], buffer);
                 SgdTensor<T> q{};
                 q.size = size;
                 q.param = out[0];
                 q.grad = grad.data();
                 q.momentum_buffer = momentum ? out[1] : nullptr;
                 q.first_step = first_step;
                 table.sgd_step(p, 1, &q);
             });
}

template <class T>
void adam_case(i64 size, int variant, i64 step) {
    Random random(std::uint64_t(size) + 4);
    const auto param = random.array<T>(size), grad = random.array<T>(size),
               m = random.array<T>(size);
    auto v = random.array<T>(size), top = random.array<T>(size);
    for (T& x : v) x = T(std::fabs(double(x)) + 0.25);
    for (T& x : top) x = T(std::fabs(double(x)) + 0.25);
    AdamOptions p{};
    p.lr = 0.01, p.beta1 = 0.9, p.beta2 = 0.999, p.eps = 1e-8;
    p.decoupled_decay = variant & 1;
    p.weight_decay = variant & 2 ? 0.1 : 0;
    const bool amsgrad = variant & 4;
    p.maximize = variant & 8;

    const double correction1 = 1 - std::pow(p.beta1, double(step));
    const double correction2 = 1 - std::pow(p.beta2, double(step));
    Expected after, first, second, largest;
    for (i64 i = 0; i < size; ++i) {
        double x = double(param[i]), g = p.maximize ? -double(grad[i]) : double(grad[i]);
        if (p.decoupled_decay) {
            x -= p.lr * p.weight_decay * x;
        } else {
            g += p.weight_decay * x;
        }
        const double m1 = p.beta1 * double(m[i]) + (1 - p.beta1) * g;
        const double v1 = p.beta2 * double(v[i]) + (1 - p.beta2) * g * g;
        const double top1 = amsgrad ? std::fmax(double(top[i]), v1) : v1;
        first.push(m1, slack<T>(m[i], g));
        second.push(v1, slack<T>(v[i], g * g));
        largest.push(top1, slack<T>(top1, v1));
        const double update = p.lr / correction1 / (std::sqrt(top1 / correction2) + p.eps);
        after.push(x - update * m1, slack<T>(param[i], update * double(m[i]), update * g));
    }
    std::vector<Expected> expected = {after, first, second};
    if (amsgrad) expected.push_back(largest);
    check<T>("adam_step " + std::to_string(size) + " variant " + std::to_string(variant) +
                 " step " + std::to_string(step),
             expected, [&](const KernelTable<T>& table, T* const* out) {
                 fill(out[0], param);
                 fill(out[1], m);
                 fill(out[2], v);
                 if (amsgrad) fill(out[3], top);
                 AdamTensor<T> q{};
                 q.size = size;
                 q.param = out[0], q.grad = grad.data();
                 q.exp_avg = out[1], q.exp_avg_sq = out[2];
                 q.max_exp_avg_sq = amsgrad ? out[3] : nullptr;
                 q.step = step;
                 table.adam_step(p, 1, &q);
             });
}

template <class T>
void rmsprop_case(i64 size, int variant) {
    Random random(std::uint64_t(size) + 5);
    const auto param = random.array<T>(size), grad = random.array<T>(size),
               mean = random.array<T>(size), buffer = random.array<T>(size);
    // Far from the square of the mean: no cancellation that a bound would have to follow.
    auto square = random.array<T>(size);
    for (i64 i = 0; i < size; ++i) square[i] = T(double(mean[i]) * double(mean[i]) + 1.5);
    RmspropOptions p{};
    p.lr = 0.01, p.alpha = 0.9, p.eps = 1e-4;
    const bool centered = variant & 1, momentum = variant & 2;
    p.momentum = momentum ? 0.9 : 0;
    p.weight_decay = variant & 4 ? 0.1 : 0;
    p.maximize = variant & 8;

    Expected after, squares, means, kept;
    for (i64 i = 0; i < size; ++i) {
        const double x = double(param[i]);
        const double g = (p.maximize ? -1 : 1) * double(grad[i]) + p.weight_decay * x;
        const double square1 = p.alpha * double(square[i]) + (1 - p.alpha) * g * g;
        const double mean1 = p.alpha * double(mean[i]) + (1 - p.alpha) * g;
        const double spread = centered ? square1 - mean1 * mean1 : square1;
        double step = g / (std::sqrt(spread) + p.eps);
        if (momentum) step += p.momentum * double(buffer[i]);
        const double scale = 4 * (std::fabs(g) + std::fabs(x)) / std::sqrt(spread);
        squares.push(square1, slack<T>(square1, g * g));
        means.push(mean1, slack<T>(mean[i], g));
        kept.push(step, slack<T>(buffer[i], scale));
        after.push(x - p.lr * step, slack<T>(x, p.lr * scale, p.lr * double(buffer[i])));
    }
    std::vector<Expected> expected = {after, squares};
    if (centered) expected.push_back(means);
    if (momentum) expected.push_back(kept);
    check<T>("rmsprop_step " + std::to_string(size) + " variant " + std::to_string(variant),
             expected, [&](const KernelTable<T>& table, T* const* out) {
                 fill(out[0], param);
                 fill(out[1], square);
                 if (centered) fill(out[2], mean);
                 if (momentum) fill(out[2 + centered], buffer);
                 RmspropTensor<T> q{};
                 q.size = size;
                 q.param = out[0], q.grad = grad.data(), q.square_avg = out[1];
                 q.grad_avg = centered ? out[2] : nullptr;
                 q.momentum_buffer = momentum ? out[2 + centered] : nullptr;
                 table.rmsprop_step(p, 1, &q);
             });
}

template <class T>
void adagrad_case(i64 size, int variant) {
    Random random(std::uint64_t(size) + 6);
    const auto param = random.array<T>(size), grad = random.array<T>(size);
    auto sum = random.array<T>(size);
    for (T& x : sum) x = T(std::fabs(double(x)) + 0.25);
    AdagradOptions p{};
    const double lr = 0.1;
    p.eps = 1e-10;
    p.weight_decay = variant & 1 ? 0.1 : 0;
    p.maximize = variant & 2;

    Expected after, sums;
    for (i64 i = 0; i < size; ++i) {
        const double x = double(param[i]);
        const double g = (p.maximize ? -1 : 1) * double(grad[i]) + p.weight_decay * x;
        const double sum1 = double(sum[i]) + g * g;
        const double step = lr / (std::sqrt(sum1) + p.eps);
        sums.push(sum1, slack<T>(sum1, g * g));
        after.push(x - step * g, slack<T>(x, step * g, step * x));
    }
    check<T>("adagrad_step " + std::to_string(size) + " variant " + std::to_string(variant),
             {after, sums}, [&](const KernelTable<T>& table, T* const* out) {
                 fill(out[0], param);
                 fill(out[1], sum);
                 AdagradTensor<T> q{};
                 q.size = size;
                 q.param = out[0], q.grad = grad.data(), q.sum = out[1], q.lr = lr;
                 table.adagrad_step(p, 1, &q);
             });
}

template <class T>
void sum_case(i64 size) {
    const auto x = Random(std::uint64_t(size) + 7).array<T>(size);
    Sum sum;
    for (T value : x) sum.add(double(value) * 0.5 * (double(value) * 0.5));
    Expected expected;
    // Rounded to T for the comparison.
    expected.push(sum.value, sum.slack<double>() + slack<T>(sum.value));
    check<T>("sum_of_squares " + std::to_string(size), {expected},
             [&](const KernelTable<T>& table, T* const* out) {
                 // In two arrays.
                 const FlatArray<const T> parts[] = {{size / 2, x.data()},
                                                     {size - size / 2, x.data() + size / 2}};
                 double total = -1;
                 table.sum_of_squares(2, parts, 0.5, &total);
                 out[0][0] = T(total);
             });
}

template <class T>
void scale_case(i64 size) {
    const auto x = Random(std::uint64_t(size) + 8).array<T>(size);
    Expected expected;
    for (T value : x) expected.push(double(value) * 0.75, slack<T>(value));
    check<T>("scale_arrays " + std::to_string(size), {expected},
             [&](const KernelTable<T>& table, T* const* out) {
                 fill(out[0], x);
                 const FlatArray<T> parts[] = {{size / 2, out[0]},
                                               {size - size / 2, out[0] + size / 2}};
                 table.scale_arrays(2, parts, 0.75);
             });
}

template <class T>
void all() {
    for (i64 size : {0, 1, 3, 7, 8, 9, 15, 16, 17, 33, 1009, 16384, 40'001}) {
        sum_case<T>(size);
        scale_case<T>(size);
    }
    for (i64 size : {0, 1, 3, 7, 8, 9, 15, 16, 17, 33, 1009}) {
        for (int variant = 0; variant < 64; variant += size < 40 ? 5 : 1)
            sgd_case<T>(size, variant);
        for (int variant = 0; variant < 16; ++variant) {
            for (i64 step : {1, 2, 1000}) adam_case<T>(size, variant, step);
            rmsprop_case<T>(size, variant);
            adagrad_case<T>(size, variant);
        }
    }
    sgd_case<T>(1'000'003, 1 | 8 | 16);
    adam_case<T>(1'000'003, 1 | 2, 7);
    rmsprop_case<T>(1'000'003, 1 | 2 | 4);
    adagrad_case<T>(1'000'003, 1);
}

}  // namespace

void test_optim() {
    all<float>();
    all<double>();
}

}  // namespace fusednn::test
