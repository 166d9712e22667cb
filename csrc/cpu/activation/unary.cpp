// Elementwise nonlinearities and their gradients: x, y, dy, dx flat arrays.
//
// Where a limit exists it is given: silu(-inf) is -0, gelu'(inf) is 1. NaN stays NaN.
#include "cpu/activation/normal.h"
#include "cpu/elementwise.h"
#include "cpu/kernels.h"

namespace fusednn {
namespace FUSEDNN_ISA {

namespace {

// Vectors at once: of functions that are all loads and stores, and of those that compute.
constexpr int kLight = kBurst, kHeavy = 2;

// 1 / (1 + e^-x), and 1 minus it without cancellation.
template <class T>
struct Logistic {
    Vec<T> value, rest;
    FUSEDNN_INLINE explicit Logistic(Vec<T> x) {
        Mask<T> sign;
        const Vec<T> e = vexp<T>(-detail::magnitude<T>(x, sign)), r = T(1) / (T(1) + e);
        const Mask<T> negative = x < Vec<T>{};
        value = select<T>(negative, e * r, r);
        rest = select<T>(negative, r, e * r);
    }
};

// log(1 + e) for e in [0, 1]: what rounding 1 + e loses is put back (Kahan).
template <class T>
FUSEDNN_INLINE Vec<T> log_of_one_plus(Vec<T> e) {
    const Vec<T> sum = T(1) + e, step = sum - T(1);
    return select<T>(step == Vec<T>{}, e, vlog<T>(sum) * (e / step));
}
// log(1 + e^-|x|)
template <class T>
FUSEDNN_INLINE Vec<T> log_of_decay(Vec<T> x) {
    Mask<T> sign;
    return log_of_one_plus<T>(vexp<T>(-detail::magnitude<T>(x, sign)));
}

// The argument of gelu_tanh's logistic function, 2 sqrt(2 / pi) (x + 0.044715 x^3), and its slope.
constexpr double kTwoRoots = 1.59576912160573071176, kCubic = 0.044715;

template <class T>
struct Mish {
    Vec<T> value, slope;  // t = tanh(softplus(x)) = w / (w + 2), w = e^x (e^x + 2), and dt/dx
    FUSEDNN_INLINE explicit Mish(Vec<T> x) {
        const Vec<T> e = vexp<T>(smaller<T>(x, broadcast(T(20)))), w = e * (e + T(2));
        const Vec<T> below = T(1) / (w + T(2));
        value = w * below;
        // (1 - t^2) sigmoid(x), with sigmoid(x) = e / (1 + e) and w + 1 = (1 + e)^2
        slope = T(4) * e * (T(1) + e) * (below * below);
    }
};

template <class T>
FUSEDNN_INLINE Vec<T> at_least(Vec<T> x, T low) {
    return larger<T>(x, broadcast(low));
}
template <class T>
FUSEDNN_INLINE Vec<T> at_most(Vec<T> x, T high) {
    return smaller<T>(x, broadcast(high));
}

// Below this e^x is 0, and so is whatever it is multiplied with.
template <class T>
constexpr T kNothing = detail::FloatFormat<T>::exp_low;

template <int kAtOnce, class T, class Fn>
void map(const UnaryParams& p, const T* x, T* y, const Fn& fn) {
    map_elements<kAtOnce>(p.size, 2, {y},
                          [=](i64 i, auto load_at) { return Results<T, 1>{{fn(load_at(x + i))}}; });
}

// dx = dy * fn(saved)
template <int kAtOnce, class T, class Fn>
void map_slope(const UnaryParams& p, const T* dy, const T* saved, T* dx, const Fn& fn) {
    map_elements<kAtOnce>(p.size, 3, {dx}, [=](i64 i, auto load_at) {
        return Results<T, 1>{{load_at(dy + i) * fn(load_at(saved + i))}};
    });
}

// dx = dy where keep(saved), else dy * scale(saved); no product changes what is kept.
template <class T, class Keep, class Scale>
void map_choice(const UnaryParams& p, const T* dy, const T* saved, T* dx, const Keep& keep,
                const Scale& scale) {
    map_elements<kLight>(p.size, 3, {dx}, [=](i64 i, auto load_at) {
        const Vec<T> g = load_at(dy + i), v = load_at(saved + i);
        return Results<T, 1>{{select<T>(keep(v), g, g * scale(v))}};
    });
}

}  // namespace

template <class T>
void unary_forward(const UnaryParams& p, const T* x, T* y) {
    const T a = T(p.a), b = T(p.b);
    switch (p.function) {
        case Unary::sigmoid:
            return map<kHeavy>(p, x, y, [](Vec<T> v) { return vsigmoid<T>(v); });
        case Unary::tanh:
            return map<kHeavy>(p, x, y, [](Vec<T> v) { return vtanh<T>(v); });
        case Unary::gelu:
            return map<kHeavy>(p, x, y, [](Vec<T> v) {
                const Normal<T> n = normal<T>(v);
                return select<T>(v < Vec<T>{}, -n.a * n.tail, v * (T(1) - n.tail));
            });
        case Unary::gelu_tanh:
            return map<kHeavy>(p, x, y, [](Vec<T> v) {
                const Vec<T> in = at_least<T>(v, T(-40));
                return in * vsigmoid<T>(T(kTwoRoots) * (in + T(kCubic) * in * in * in));
            });
        case Unary::silu:
            return map<kHeavy>(
                p, x, y, [](Vec<T> v) { return at_least<T>(v, kNothing<T>) * vsigmoid<T>(v); });
        case Unary::mish:
            return map<kHeavy>(
                p, x, y, [](Vec<T> v) { return at_least<T>(v, kNothing<T>) * Mish<T>(v).value; });
        case Unary::leaky_relu:
            return map<kLight>(p, x, y,
                               [=](Vec<T> v) { return select<T>(v > Vec<T>{}, v, v * a); });
        case Unary::elu:
            return map<kHeavy>(p, x, y, [=](Vec<T> v) {
                const Vec<T> low = detail::expm1_of_negative<T>(at_most<T>(v, T(0)));
                return select<T>(v > Vec<T>{}, v * b, low * a);
            });
        case Unary::softplus:
            return map<kHeavy>(p, x, y, [=](Vec<T> v) {
                const Vec<T> in = v * a;
                return select<T>(in > b, v, (at_least<T>(in, T(0)) + log_of_decay<T>(in)) / a);
            });
        case Unary::logsigmoid:
            return map<kHeavy>(p, x, y,
                               [](Vec<T> v) { return at_most<T>(v, T(0)) - log_of_decay<T>(v); });
        case Unary::hardsigmoid:
            return map<kLight>(p, x, y, [](Vec<T> v) {
                return at_most<T>(at_least<T>(v / T(6) + T(0.5), T(0)), T(1));
            });
        case Unary::hardswish:
            return map<kLight>(p, x, y, [](Vec<T> v) {
                const Vec<T> in = at_least<T>(v, T(-3));
                return in * at_most<T>(at_least<T>(in / T(6) + T(0.5), T(0)), T(1));
            });
        case Unary::hardtanh:
            return map<kLight>(p, x, y, [=](Vec<T> v) { return at_most<T>(at_least<T>(v, a), b); });
    }
}

template <class T>
void unary_backward(const UnaryParams& p, const T* dy, const T* saved, T* dx) {
    const T a = T(p.a), b = T(p.b);
    switch (p.function) {
        case Unary::sigmoid:
            return map_slope<kLight>(p, dy, saved, dx, [](Vec<T> y) { return y * (T(1) - y); });
        case Unary::tanh:
            return map_slope<kLight>(p, dy, saved, dx,
                                     [](Vec<T> y) { return (T(1) - y) * (T(1) + y); });
        case Unary::gelu:
            return map_slope<kHeavy>(p, dy, saved, dx, [](Vec<T> v) {
                const Normal<T> n = normal<T>(v);
                const Vec<T> part = n.a * n.density;
                return select<T>(v < Vec<T>{}, n.tail - part, (T(1) - n.tail) + part);
            });
        case Unary::gelu_tanh:
            return map_slope<kHeavy>(p, dy, saved, dx, [](Vec<T> v) {
                const Vec<T> in = at_most<T>(at_least<T>(v, T(-40)), T(40)), square = in * in;
                const Logistic<T> s(T(kTwoRoots) * (in + T(kCubic) * in * square));
                const Vec<T> slope = T(kTwoRoots) * (T(1) + T(3 * kCubic) * square);
                return s.value + in * s.value * s.rest * slope;
            });
        case Unary::silu:
            return map_slope<kHeavy>(p, dy, saved, dx, [](Vec<T> v) {
                const Vec<T> in = at_most<T>(at_least<T>(v, kNothing<T>), -kNothing<T>);
                const Logistic<T> s(in);
                return s.value + in * s.value * s.rest;
            });
        case Unary::mish:
            return map_slope<kHeavy>(p, dy, saved, dx, [](Vec<T> v) {
                const Vec<T> in = at_least<T>(v, kNothing<T>);
                const Mish<T> m(in);
                // Far out t is 1 to the last bit, and its slope would multiply infinity.
                return select<T>(in > T(20), broadcast(T(1)), m.value + in * m.slope);
            });
        case Unary::leaky_relu:
            return map_choice<T>(
                p, dy, saved, dx, [](Vec<T> v) { return v > Vec<T>{}; },
                [=](Vec<T>) { return broadcast(a); });
        case Unary::elu:
            return map_slope<kHeavy>(p, dy, saved, dx, [=](Vec<T> v) {
                return select<T>(v > Vec<T>{}, broadcast(b), vexp<T>(at_most<T>(v, T(0))) * a);
            });
        case Unary::softplus:
            return map_slope<kHeavy>(p, dy, saved, dx, [=](Vec<T> v) {
                const Vec<T> in = v * a;
                return select<T>(in > b, broadcast(T(1)), vsigmoid<T>(in));
            });
        case Unary::logsigmoid:
            return map_slope<kHeavy>(p, dy, saved, dx, [](Vec<T> v) { return vsigmoid<T>(-v); });
        case Unary::hardsigmoid:
            return map_slope<kLight>(p, dy, saved, dx, [](Vec<T> v) {
                return select<T>((v > T(-3)) & (v < T(3)), broadcast(T(1) / T(6)), Vec<T>{});
            });
        case Unary::hardswish:
            return map_slope<kLight>(p, dy, saved, dx, [](Vec<T> v) {
                const Vec<T> inner = select<T>(v > T(-3), v / T(3) + T(0.5), Vec<T>{});
                return select<T>(v >= T(3), broadcast(T(1)), inner);
            });
        case Unary::hardtanh:
            return map_slope<kLight>(p, dy, saved, dx, [=](Vec<T> v) {
                return select<T>((v > a) & (v < b), broadcast(T(1)), Vec<T>{});
            });
    }
}

#define FUSEDNN_UNARY(T)                                              \
    template void unary_forward<T>(const UnaryParams&, const T*, T*); \
    template void unary_backward<T>(const UnaryParams&, const T*, const T*, T*);
FUSEDNN_INSTANTIATE(FUSEDNN_UNARY)

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
