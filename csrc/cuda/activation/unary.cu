// Elementwise nonlinearities and their gradients: x, y, dy, dx flat arrays.
//
// Where a limit exists it is given: silu(-inf) is -0, gelu'(inf) is 1. NaN stays NaN. The formulas
// are those of csrc/cpu/activation/unary.cpp, with CUDA's own exponentials.
#include "cuda/elementwise.h"
#include "cuda/kernels.h"

namespace fusednn::cuda {

namespace {

// ---- parts of the functions ----------------------------------------

// Of numbers; of a NaN, the NaN, where fmin and fmax would give the other one.
template <class T>
FUSEDNN_DEVICE T at_least(T x, T low) {
    return x < low ? low : x;
}
template <class T>
FUSEDNN_DEVICE T at_most(T x, T high) {
    return x > high ? high : x;
}

// Below this e^x is 0, and so is whatever it is multiplied with.
template <class T>
constexpr T kNothing = sizeof(T) == 4 ? T(-104) : T(-746);

// 1 / (1 + e^-x), and 1 minus it without cancellation.
template <class T>
struct Logistic {
    T value, rest;
    FUSEDNN_DEVICE explicit Logistic(T x) {
        const T e = exp(-fabs(x)), r = T(1) / (T(1) + e);
        value = x < T(0) ? e * r : r;
        rest = x < T(0) ? r : e * r;
    }
};

// log(1 + e^-|x|)
template <class T>
FUSEDNN_DEVICE T log_of_decay(T x) {
    return log1p(exp(-fabs(x)));
}

// P(Z > a) and the density of the normal distribution.
template <class T>
FUSEDNN_DEVICE T normal_tail(T a) {
    return T(0.5) * erfc(a * T(0.70710678118654752440));
}
template <class T>
FUSEDNN_DEVICE T normal_density(T a) {
    return exp(T(-0.5) * a * a) * T(0.39894228040143267794);
}

// The argument of gelu_tanh's logistic function, 2 sqrt(2 / pi) (x + 0.044715 x^3), and its slope.
constexpr double kTwoRoots = 1.59576912160573071176, kCubic = 0.044715;

template <class T>
struct Mish {
    T value, slope;  // t = tanh(softplus(x)) = w / (w + 2), w = e^x (e^x + 2), and dt/dx
    FUSEDNN_DEVICE explicit Mish(T x) {
        const T e = exp(at_most(x, T(20))), w = e * (e + T(2));
        const T below = T(1) / (w + T(2));
        value = w * below;
        // (1 - t^2) sigmoid(x), with sigmoid(x) = e / (1 + e) and w + 1 = (1 + e)^2
        slope = T(4) * e * (T(1) + e) * (below * below);
    }
};

// ---- forward ----------------------------------------

template <class T, Unary kFunction>
struct Forward {
    T a, b;
    FUSEDNN_DEVICE T operator()(T x) const {
        if constexpr (kFunction == Unary::sigmoid) return Logistic<T>(x).value;
        if constexpr (kFunction == Unary::tanh) return tanh(x);
        if constexpr (kFunction == Unary::gelu) {
            const T in = at_least(x, T(-40));  // far beyond where the tail is 0
            return in * normal_tail(-in);
        }
        if constexpr (kFunction == Unary::gelu_tanh) {
            const T in = at_least(x, T(-40));
            return in * Logistic<T>(T(kTwoRoots) * (in + T(kCubic) * in * in * in)).value;
        }
        if constexpr (kFunction == Unary::silu) {
            return at_least(x, kNothing<T>) * Logistic<T>(x).value;
        }
        if constexpr (kFunction == Unary::mish) return at_least(x, kNothing<T>) * Mish<T>(x).value;
        if constexpr (kFunction == Unary::leaky_relu) return x > T(0) ? x : x * a;
        if constexpr (kFunction == Unary::elu) return x > T(0) ? x * b : expm1(x) * a;
        if constexpr (kFunction == Unary::softplus) {
            const T in = x * a;
            return in > b ? x : (at_least(in, T(0)) + log_of_decay(in)) / a;
        }
        if constexpr (kFunction == Unary::logsigmoid) return at_most(x, T(0)) - log_of_decay(x);
        if constexpr (kFunction == Unary::hardsigmoid) {
            return at_most(at_least(x / T(6) + T(0.5), T(0)), T(1));
        }
        if constexpr (kFunction == Unary::hardswish) {
            const T in = at_least(x, T(-3));
            return in * at_most(at_least(in / T(6) + T(0.5), T(0)), T(1));
        }
        if constexpr (kFunction == Unary::hardtanh) return at_most(at_least(x, a), b);
    }
};

// ---- backward: dy times the slope at what was saved ----------------------------------------

template <class T, Unary kFunction>
struct Backward {
    T a, b;
    FUSEDNN_DEVICE T operator()(T dy, T v) const {
        if constexpr (kFunction == Unary::leaky_relu) {
            return v > T(0) ? dy : dy * a;
        } else {
            return dy * slope(v);
        }
    }
    FUSEDNN_DEVICE T slope(T v) const {
        if constexpr (kFunction == Unary::sigmoid) return v * (T(1) - v);
        if constexpr (kFunction == Unary::tanh) return (T(1) - v) * (T(1) + v);
        if constexpr (kFunction == Unary::gelu) {
            const T in = at_most(at_least(v, T(-40)), T(40));
            return normal_tail(-in) + in * normal_density(in);
        }
        if constexpr (kFunction == Unary::gelu_tanh) {
            const T in = at_most(at_least(v, T(-40)), T(40)), square = in * in;
            const Logistic<T> s(T(kTwoRoots) * (in + T(kCubic) * in * square));
            const T inner = T(kTwoRoots) * (T(1) + T(3 * kCubic) * square);
            return s.value + in * s.value * s.rest * inner;
        }
        if constexpr (kFunction == Unary::silu) {
            const T in = at_most(at_least(v, kNothing<T>), -kNothing<T>);
            const Logistic<T> s(in);
            return s.value + in * s.value * s.rest;
        }
        if constexpr (kFunction == Unary::mish) {
            const T in = at_least(v, kNothing<T>);
            const Mish<T> m(in);
            // Far out t is 1 to the last bit, and its slope would multiply infinity.
            return in > T(20) ? T(1) : m.value + in * m.slope;
        }
        if constexpr (kFunction == Unary::elu) return v > T(0) ? b : exp(v) * a;
        if constexpr (kFunction == Unary::softplus) {
            const T in = v * a;
            return in > b ? T(1) : Logistic<T>(in).value;
        }
        if constexpr (kFunction == Unary::logsigmoid) return Logistic<T>(-v).value;
        if constexpr (kFunction == Unary::hardsigmoid) {
            return v > T(-3) && v < T(3) ? T(1) / T(6) : T(0);
        }
        if constexpr (kFunction == Unary::hardswish) {
            if (v >= T(3)) return T(1);
            return v > T(-3) ? v / T(3) + T(0.5) : T(0);
        }
        if constexpr (kFunction == Unary::hardtanh) return v > a && v < b ? T(1) : T(0);
    }
};

// All functions are in one kernel, and a vector's elements go through it piece by piece: machine
// code of 26 kernels with as many copies of each function as a vector has elements would be ten
// times as much. A branch that all threads take alike costs less than the elements' exponentials,
// and memory is slower than both.
#define FUSEDNN_CASES(kind, ...)                          \
    switch (function) {                                   \
        FUSEDNN_KIND_CASE(kind, sigmoid, __VA_ARGS__)     \
        FUSEDNN_KIND_CASE(kind, tanh, __VA_ARGS__)        \
        FUSEDNN_KIND_CASE(kind, gelu, __VA_ARGS__)        \
        FUSEDNN_KIND_CASE(kind, gelu_tanh, __VA_ARGS__)   \
        FUSEDNN_KIND_CASE(kind, silu, __VA_ARGS__)        \
        FUSEDNN_KIND_CASE(kind, mish, __VA_ARGS__)        \
        FUSEDNN_KIND_CASE(kind, leaky_relu, __VA_ARGS__)  \
        FUSEDNN_KIND_CASE(kind, elu, __VA_ARGS__)         \
        FUSEDNN_KIND_CASE(kind, softplus, __VA_ARGS__)    \
        FUSEDNN_KIND_CASE(kind, logsigmoid, __VA_ARGS__)  \
        FUSEDNN_KIND_CASE(kind, hardsigmoid, __VA_ARGS__) \
        FUSEDNN_KIND_CASE(kind, hardswish, __VA_ARGS__)   \
        FUSEDNN_KIND_CASE(kind, hardtanh, __VA_ARGS__)    \
    }
#define FUSEDNN_KIND_CASE(kind, name, ...)                              \
    case Unary::name:                                                   \
        for (T& one : v) one = kind<T, Unary::name>{a, b}(__VA_ARGS__); \
        break;

// fn(v, dy): v become the results, of values and, backward, of what they are multiplied with.
template <class T>
struct AnyForward {
    static constexpr int kInputs = 1;
    Unary function;
    T a, b;
    template <int kCount>
    FUSEDNN_DEVICE void operator()(T (&v)[kCount], const T (&)[kCount]) const {
        FUSEDNN_CASES(Forward, one)
    }
};
template <class T>
struct AnyBackward {
    static constexpr int kInputs = 2;
    Unary function;
    T a, b;
    template <int kCount>
    FUSEDNN_DEVICE void operator()(T (&v)[kCount], const T (&dy)[kCount]) const {
        FUSEDNN_CASES(Backward, dy[&one - v], one)
    }
};
#undef FUSEDNN_KIND_CASE
#undef FUSEDNN_CASES

// What goes through the functions at once: two floats or halves, or a double.
template <class T>
struct Piece {
    static constexpr int kCount = 8 / int(sizeof(T));
    T of[kCount];
    FUSEDNN_DEVICE void get(Format<T>, T (&v)[kCount]) const {
        for (int i = 0; i < kCount; ++i) v[i] = of[i];
    }
    FUSEDNN_DEVICE void put(Format<T>, const T (&v)[kCount]) {
        for (int i = 0; i < kCount; ++i) of[i] = v[i];
    }
};
template <>
struct Piece<HalfBits> {
    static constexpr int kCount = 2;
    std::uint32_t both;
    FUSEDNN_DEVICE void get(Format<HalfBits> format, float (&v)[2]) const {
        v[0] = format.widen({std::uint16_t(both)});
        v[1] = format.widen({std::uint16_t(both >> 16)});
    }
    FUSEDNN_DEVICE void put(Format<HalfBits> format, const float (&v)[2]) {
        both = format.narrow(v[0], v[1]);
    }
};

// out = fn(v, dy), vectors first, then the elements that are left; all of them, where the arrays
// begin between the vectors.
template <class T, class Fn>
__global__ void __launch_bounds__(kElementThreads, kElementBlocks)
    map_rings(i64 size, bool packs, const T* dy, const T* v, T* out, Format<T> format, Fn fn) {
    using Value = Accumulate<T>;
    constexpr int n = Pack<T>::kSize, count = Piece<T>::kCount, pieces = n / count;
    using Vector = Wide<Piece<T>, pieces>;
    const i64 whole = packs ? size / n : 0, items = size - whole * (n - 1);
    const i64 step = i64(gridDim.x) * blockDim.x;
#pragma unroll 1
    for (i64 item = i64(blockIdx.x) * blockDim.x + threadIdx.x; item < items; item += step) {
        const bool vector = item < whole;
        const i64 at = vector ? item * n : item + whole * (n - 1);
        Vector ring{}, factors{};
        if (vector) {
            ring = *reinterpret_cast<const Vector*>(v + at);
            if constexpr (Fn::kInputs == 2) factors = *reinterpret_cast<const Vector*>(dy + at);
        } else {
            const Value one[count] = {format.widen(v[at])};
            ring.of[0].put(format, one);
            if constexpr (Fn::kInputs == 2) {
                const Value other[count] = {format.widen(dy[at])};
                factors.of[0].put(format, other);
            }
        }
#pragma unroll 1
        for (int turns = vector ? pieces : 1; turns > 0; --turns) {
            Value values[count], others[count];
            ring.of[0].get(format, values);
            factors.of[0].get(format, others);
            fn(values, others);
            Piece<T> result;
            result.put(format, values);
            turn(ring, result);
            turn(factors, result);
        }
        if (vector) {
            *reinterpret_cast<Vector*>(out + at) = ring;
        } else {
            Value one[count];
            ring.of[pieces - 1].get(format, one);
            out[at] = format.narrow(one[0]);
        }
    }
}

// dy: null for a forward.
template <class T, class Fn>
void map(const char* name, i64 size, const T* dy, const T* v, T* out, const Fn& fn) {
    const bool packs =
        detail::whole_packs(dy) && detail::whole_packs(v) && detail::whole_packs(out);
    const i64 each = packs ? kElementThreads * Pack<T>::kSize : kElementThreads;
    launch(name, {blocks_for(size, each), kElementThreads}, map_rings<Storage<T>, Fn>, size, packs,
           storage(dy), storage(v), storage(out), StorageOf<T>::format(), fn);
}

}  // namespace

template <class T>
void unary_forward(const UnaryParams& p, const T* x, T* y) {
    using Value = Accumulate<T>;
    const AnyForward<Value> fn{p.function, Value(p.a), Value(p.b)};
    map<T>("unary_forward", p.size, nullptr, x, y, fn);
}

template <class T>
void unary_backward(const UnaryParams& p, const T* dy, const T* saved, T* dx) {
    using Value = Accumulate<T>;
    const AnyBackward<Value> fn{p.function, Value(p.a), Value(p.b)};
    map("unary_backward", p.size, dy, saved, dx, fn);
}

#define FUSEDNN_UNARY(T)                                              \
    template void unary_forward<T>(const UnaryParams&, const T*, T*); \
    template void unary_backward<T>(const UnaryParams&, const T*, const T*, T*);
FUSEDNN_INSTANTIATE(FUSEDNN_UNARY)
FUSEDNN_INSTANTIATE_HALF(FUSEDNN_UNARY)

}  // namespace fusednn::cuda
