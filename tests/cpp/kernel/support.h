// Running kernels of every ISA build against expectations computed in double by naive loops.
#pragma once
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "core/dispatch.h"
#include "core/kernels.h"

namespace fusednn::test {

// What one output array must hold: values, and how far each may be off (0: exactly).
struct Expected {
    std::vector<double> value, slack;

    void push(double v, double allowed = 0) {
        value.push_back(v);
        slack.push_back(allowed);
    }
};

// A sum as the definition says it, with what its rounding in T may cost: each of the n products and
// additions is off by at most eps/2 of what it handles, in any order of summation.
struct Sum {
    double value = 0, magnitude = 0;
    i64 terms = 0;

    void add(double x) {
        value += x;
        magnitude += x < 0 ? -x : x;
        ++terms;
    }
    template <class T>
    double slack() const {
        return double(std::numeric_limits<T>::epsilon()) * double(terms + 4) * magnitude;
    }
};

// The same numbers in every run and on every machine.
class Random {
  public:
    explicit Random(std::uint64_t seed = 1) : state_(seed * 0x9e3779b97f4a7c15ull) {}
    std::uint64_t next() {
        state_ += 0x9e3779b97f4a7c15ull;
        std::uint64_t z = state_;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
        return z ^ (z >> 31);
    }
    i64 below(i64 n) { return i64(next() % std::uint64_t(n)); }
    // In [-1, 1), a multiple of 2^-20, so that float and double hold the same number.
    double value() { return double(i64(next() >> 43)) / double(1 << 20) - 1.0; }
    template <class T>
    std::vector<T> array(i64 size) {
        std::vector<T> values(static_cast<std::size_t>(size));
        values.reserve(1);  // as of NumPy, an empty array's pointer is not null
        for (T& v : values) v = T(value());
        return values;
    }

  private:
    std::uint64_t state_;
};

// Runs `run(table, outputs)` on every ISA this machine can run, with 1, 2 and 3 threads. Outputs
// are filled with NaN before, have exactly the expected sizes and are watched for writes beyond.
// Checks values on one thread, and that the other counts give the same bits.
template <class T>
void check(const std::string& what, const std::vector<Expected>& expected,
           const std::function<void(const KernelTable<T>&, T* const* outputs)>& run);

// Calls and failures so far; a failure is printed as it happens (the first few of a case).
struct Totals {
    i64 passed = 0, failed = 0;
};
Totals& totals();

template <class T>
const char* type_name() {
    return sizeof(T) == 4 ? "float" : "double";
}

template <class T>
constexpr double eps() {
    return double(std::numeric_limits<T>::epsilon());
}

void test_gemm();
void test_conv();
void test_unfold();
void test_transpose();
void test_pool();
void test_activation();
void test_unary();
void test_norm();
void test_average();
void test_embedding();
void test_softmax();
void test_cross_entropy();
void test_attention();
void test_optim();
void test_recurrent();

}  // namespace fusednn::test
