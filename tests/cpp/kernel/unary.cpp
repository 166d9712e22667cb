// Activations and prelu, forward and backward, against the C library in double.
#include <cmath>

#include "kernel/support.h"

namespace fusednn::test {

namespace {

double sigmoid(double x) {
    return x < 0 ? std::exp(x) / (1 + std::exp(x)) : 1 / (1 + std::exp(-x));
}
double below(double x) {  // P(Z <= x)
    return std::erfc(-x / std::sqrt(2.0)) / 2;
}
double mish(double x) {
    return std::tanh(std::log1p(std::exp(x)));
}

struct Function {
    const char* name;
    Unary function;
    double a, b;
    bool by_output;
    double (*value)(double);
    double (*slope)(double);
};

const Function functions[] = {
    {"sigmoid", Unary::sigmoid, 0, 0, true, sigmoid,
     [](double x) -> double { return sigmoid(x) * sigmoid(-x); }},
    {"tanh", Unary::tanh, 0, 0, true, [](double x) -> double { return std::tanh(x); },
     [](double x) -> double { return 1 / (std::cosh(x) * std::cosh(x)); }},
    {"gelu", Unary::gelu, 0, 0, false, [](double x) -> double { return x * below(x); },
     [](double x) -> double { return below(x) + x * std::exp(-x * x / 2) * 0.3989422804014327; }},
    {"silu", Unary::silu, 0, 0, false, [](double x) -> double { return x * sigmoid(x); },
     [](double x) -> double { return sigmoid(x) * (1 + x * sigmoid(-x)); }},
    {"mish", Unary::mish, 0, 0, false, [](double x) -> double { return x * mish(x); },
     [](double x) -> double { return mish(x) + x * (1 - mish(x) * mish(x)) * sigmoid(x); }},
    {"leaky_relu", Unary::leaky_relu, 0.25, 0, false,
     [](double x) -> double { return x > 0 ? x : x / 4; },
     [](double x) -> double { return x > 0 ? 1 : 0.25; }},
    {"elu", Unary::elu, 2, 1, false,
     [](double x) -> double { return x > 0 ? x : 2 * std::expm1(x); },
     [](double x) -> double { return x > 0 ? 1 : 2 * std::exp(x); }},
    {"softplus", Unary::softplus, 1, 20, false,
     [](double x) -> double { return x > 20 ? x : std::log1p(std::exp(x)); }, sigmoid},
    {"logsigmoid", Unary::logsigmoid, 0, 0, false,
     [](double x) -> double { return -std::log1p(std::exp(-x)); },
     [](double x) -> double { return sigmoid(-x); }},
    {"hardswish", Unary::hardswish, 0, 0, false,
     [](double x) -> double { return x * std::fmin(std::fmax(x / 6 + 0.5, 0), 1); },
     [](double x) -> double { return x >= 3   ? 1
                                     : x > -3 ? x / 3 + 0.5
                                              : 0; }},
    {"hardtanh", Unary::hardtanh, -1, 2, false,
     [](double x) -> double { return std::fmin(std::fmax(x, -1), 2); },
     [](double x) -> double { return x > -1 && x < 2 ? 1 : 0; }},
};

template <class T>
void unary_case(const Function& f, i64 size) {
    Random random(std::uint64_t(size) + 17);
    auto x = random.array<T>(size);
    const auto dy = random.array<T>(size);
    for (T& v : x) v = v * T(9);
    Expected y, dx;
    std::vector<T> saved = x;
    for (i64 i = 0; i < size; ++i) {
        const double v = double(x[i]), slack = 8 * eps<T>();
        y.push(f.value(v), slack * (1 + std::fabs(f.value(v))));
        dx.push(f.slope(v) * double(dy[i]), slack * 2);
        if (f.by_output) saved[i] = T(f.value(v));
    }
    const UnaryParams p{f.function, size, f.a, f.b};
    check<T>(std::string(f.name) + " " + std::to_string(size), {y, dx},
             [&](const KernelTable<T>& table, T* const* out) {
                 table.unary_forward(p, x.data(), out[0]);
                 table.unary_backward(p, dy.data(), saved.data(), out[1]);
             });
}

template <class T>
void prelu_case(i64 outer, i64 channels, i64 inner) {
    Random random(std::uint64_t(outer + channels * 3 + inner * 5));
    const i64 size = outer * channels * inner;
    const auto x = random.array<T>(size), dy = random.array<T>(size);
    const auto slope = random.array<T>(channels);
    Expected y, dx, gradient;
    std::vector<Sum> sums(static_cast<std::size_t>(channels));
    for (i64 i = 0; i < size; ++i) {
        const i64 c = i / inner % channels;
        const double s = double(slope[c]), v = double(x[i]), g = double(dy[i]);
        y.push(v > 0 ? v : double(T(v * s)));
        dx.push(v > 0 ? g : double(T(g * s)));
        sums[c].add(v > 0 ? 0 : v * g);
    }
    for (const Sum& sum : sums) gradient.push(sum.value, sum.slack<T>());
    check<T>("prelu " + std::to_string(outer) + "x" + std::to_string(channels) + "x" +
                 std::to_string(inner),
             {y, dx, gradient}, [&](const KernelTable<T>& table, T* const* out) {
                 table.prelu_forward(outer, channels, inner, x.data(), slope.data(), out[0]);
                 table.prelu_backward(outer, channels, inner, dy.data(), x.data(), slope.data(),
                                      out[1], out[2]);
             });
}

template <class T>
void cases() {
    for (const Function& f : functions) {
        for (i64 size : {0, 1, 3, 8, 15, 16, 17, 33, 64, 65, 129, 40003}) unary_case<T>(f, size);
    }
    for (i64 n : {1, 3, 8, 15, 16, 17, 33}) {
        prelu_case<T>(3, 4, n);
        prelu_case<T>(5, n, 1);
    }
    prelu_case<T>(1, 1, 100003);
    prelu_case<T>(70, 20, 803);
}

}  // namespace

void test_unary() {
    cases<float>();
    cases<double>();
}

}  // namespace fusednn::test
