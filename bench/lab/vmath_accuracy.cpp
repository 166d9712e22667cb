// How far the functions of csrc/cpu/vmath.h are from the truth, in units of the last place.
//
// usage: vmath_accuracy [STEP]   every STEP-th float bit pattern (default 1: all of them, minutes)
//
// Compiled for one ISA, by hand or by tests/test_vmath.py:
//   g++ -std=c++17 -O2 <ISA flags> -ffp-contract=fast -fno-math-errno -fno-trapping-math -Wno-psabi
//       -Icsrc -DFUSEDNN_ISA=avx2 bench/lab/vmath_accuracy.cpp
// The truth is the C library's next wider type. Prints a line for each function and exits with 1 if
// one is beyond its bound.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <limits>

#include "cpu/vmath.h"

namespace {

using namespace fusednn;
using namespace fusednn::FUSEDNN_ISA;

bool all_within = true;

// The unit in the last place that a result of this size has in T.
template <class T, class Wide>
Wide ulp_of(Wide exact) {
    int exponent;
    std::frexp(T(exact), &exponent);
    const int digits = std::numeric_limits<T>::digits;
    const int least = std::numeric_limits<T>::min_exponent;
    return std::ldexp(Wide(1), (exponent < least ? least : exponent) - digits);
}

template <class T, class Wide>
double error_in_ulp(T result, Wide exact) {
    const double wrong = 1e9;
    if (std::isnan(exact)) return std::isnan(result) ? 0 : wrong;
    if (std::isinf(T(exact))) return result == T(exact) ? 0 : wrong;
    if (exact == Wide(0) && std::signbit(result) != std::signbit(exact)) return wrong;
    return double(std::fabs(Wide(result) - exact) / ulp_of<T>(exact));
}

template <class T, class Wide>
class Check {
  public:
    Check(const char* name, double bound, Vec<T> (*function)(Vec<T>), Wide (*truth)(Wide))
        : name_(name), bound_(bound), function_(function), truth_(truth) {}
    ~Check() {
        const bool within = worst_ <= bound_;
        std::printf("%-8s %-6s worst %.3f ulp at %a, bound %.1f%s\n", name_,
                    sizeof(T) == 4 ? "float" : "double", worst_, double(where_), bound_,
                    within ? "" : "  BEYOND");
        all_within = all_within && within;
    }
    void add(T x) {
        buffer_[count_++] = x;
        if (count_ == kLanes<T>) flush();
    }
    void flush() {
        for (int i = count_; i < kLanes<T>; ++i) buffer_[i] = T(1);
        count_ = 0;
        T result[kLanes<T>];
        store(result, function_(load(buffer_)));
        for (int i = 0; i < kLanes<T>; ++i) {
            const double error = error_in_ulp(result[i], truth_(Wide(buffer_[i])));
            if (error <= worst_) continue;
            worst_ = error;
            where_ = buffer_[i];
        }
    }

  private:
    const char* name_;
    double bound_;
    Vec<T> (*function_)(Vec<T>);
    Wide (*truth_)(Wide);
    T buffer_[kLanes<T>], where_ = 0;
    int count_ = 0;
    double worst_ = 0;
};

template <class T>
Vec<T> exp_of(Vec<T> x) {
    return vexp<T>(x);
}
template <class T>
Vec<T> log_of(Vec<T> x) {
    return vlog<T>(x);
}
template <class T>
Vec<T> tanh_of(Vec<T> x) {
    return vtanh<T>(x);
}
template <class T>
Vec<T> sigmoid_of(Vec<T> x) {
    return vsigmoid<T>(x);
}
template <class Wide>
Wide true_exp(Wide x) {
    return std::exp(x);
}
template <class Wide>
Wide true_log(Wide x) {
    return std::log(x);
}
template <class Wide>
Wide true_tanh(Wide x) {
    return std::tanh(x);
}
template <class Wide>
Wide true_sigmoid(Wide x) {
    return 1 / (1 + std::exp(-x));
}

void floats(std::uint64_t step, const char* name, double bound, Vec<float> (*function)(Vec<float>),
            double (*truth)(double)) {
    Check<float, double> check(name, bound, function, truth);
    for (std::uint64_t bits = 0; bits < (std::uint64_t(1) << 32); bits += step) {
        check.add(bit_cast<float>(std::uint32_t(bits)));
    }
    check.flush();
}

// Doubles: bit patterns of all kinds, and numbers in the ranges where the function does something.
void doubles(std::uint64_t step, const char* name, double bound,
             Vec<double> (*function)(Vec<double>), long double (*truth)(long double)) {
    Check<double, long double> check(name, bound, function, truth);
    const double ranges[] = {1e-3, 0.5, 2, 20, 40, 746};
    std::uint64_t state = 88172645463325252u;  // xorshift (Marsaglia 2003)
    const auto next = [&] {
        state ^= state << 13;
        state ^= state >> 7;
        return state ^= state << 17;
    };
    for (std::uint64_t i = 0; i < 40'000'000 / step + 100'000; ++i) {
        check.add(bit_cast<double>(next()));
        const double unit = double(next() >> 11) * 0x1p-52 - 1;
        check.add(unit * ranges[i % 6]);
        check.add(1 + unit * ranges[i % 3]);
    }
    for (double special : {0.0, -0.0, double(INFINITY), -double(INFINITY), double(NAN), 0x1p-1074,
                           -0x1p-1074, 0x1p-1022, 709.782712893384, 709.782712893385,
                           -745.133219101941, -745.133219101942, 0x1.fffffffffffffp1023}) {
        check.add(special);
    }
    check.flush();
}

}  // namespace

int main(int count, char** arguments) {
    const std::uint64_t step = count > 1 ? std::strtoull(arguments[1], nullptr, 10) : 1;
    if (step < 1) return 2;
    floats(step, "exp", 1.2, exp_of<float>, true_exp<double>);
    floats(step, "log", 1.2, log_of<float>, true_log<double>);
    floats(step, "tanh", 3, tanh_of<float>, true_tanh<double>);
    floats(step, "sigmoid", 3, sigmoid_of<float>, true_sigmoid<double>);
    doubles(step, "exp", 1.2, exp_of<double>, true_exp<long double>);
    doubles(step, "log", 1.2, log_of<double>, true_log<long double>);
    doubles(step, "tanh", 3, tanh_of<double>, true_tanh<long double>);
    doubles(step, "sigmoid", 3, sigmoid_of<double>, true_sigmoid<long double>);
    return all_within ? 0 : 1;
}
