// Optimiser updates, in place, parameter by parameter, in one pass over its flat arrays (`size`
// elements each).
// The formulas and their order of rounding are PyTorch's, so that runs can be compared step by
// step.
#include "cpu/elementwise.h"
#include "cpu/kernels.h"
#include "cpu/vmath.h"

namespace fusednn {
namespace FUSEDNN_ISA {

namespace {

// The gradient that an update follows: reversed to maximise, with L2 decay added.
template <class T>
FUSEDNN_INLINE Vec<T> direction(Vec<T> grad, Vec<T> param, bool maximize, T decay) {
    if (maximize) grad = -grad;
    return decay != T(0) ? grad + decay * param : grad;
}

// d = grad + decay param;  buffer = momentum buffer + (1 - dampening) d, at first d itself;
// param -= lr buffer, or with Nesterov lr (d + momentum buffer)   (Sutskever et al. 2013)
template <class T>
void sgd(const SgdOptions& o, const SgdTensor<T>& p) {
    const T decay = T(o.weight_decay), lr = T(o.lr);
    if (!p.momentum_buffer) {
        map_elements<kBurst>(p.size, 3, {p.param}, [=](i64 i, auto load_at) {
            const Vec<T> param = load_at(p.param + i);
            const Vec<T> d = direction<T>(load_at(p.grad + i), param, o.maximize, decay);
            return Results<T, 1>{{param - lr * d}};
        });
        return;
    }
    const T momentum = T(o.momentum), fresh = T(1 - o.dampening);
    map_elements<2>(p.size, 5, {p.param, p.momentum_buffer}, [=](i64 i, auto load_at) {
        const Vec<T> param = load_at(p.param + i);
        const Vec<T> d = direction<T>(load_at(p.grad + i), param, o.maximize, decay);
        // A first step's buffer is uninitialised: not even a factor of 0 may touch it.
        const Vec<T> buffer =
            p.first_step ? d : momentum * load_at(p.momentum_buffer + i) + fresh * d;
        const Vec<T> step = o.nesterov ? d + momentum * buffer : buffer;
        return Results<T, 2>{{param - lr * step, buffer}};
    });
}

}  // namespace

template <class T>
void sgd_step(const SgdOptions& o, i64 count, const SgdTensor<T>* tensors) {
    for (i64 i = 0; i < count; ++i) sgd(o, tensors[i]);
}

namespace {

template <class T>
struct AdamFactors {
    T step_size, root_scale, eps, decay, keep, fresh1, beta1, beta2, fresh2;

    // Bias corrections in double: 1 - beta^step loses all of a float's digits at first.
    FUSEDNN_INLINE explicit AdamFactors(const AdamOptions& o, i64 step) {
        const double correction1 = 1 - __builtin_pow(o.beta1, double(step));
        const double correction2 = 1 - __builtin_pow(o.beta2, double(step));
        step_size = T(o.lr / correction1);
        root_scale = T(1 / __builtin_sqrt(correction2));
        eps = T(o.eps);
        decay = o.decoupled_decay ? T(0) : T(o.weight_decay);
        keep = o.decoupled_decay ? T(1 - o.lr * o.weight_decay) : T(1);
        fresh1 = T(1 - o.beta1);
        beta1 = T(o.beta1);
        beta2 = T(o.beta2);
        fresh2 = T(1 - o.beta2);
    }

    struct Step {
        Vec<T> param, mean, square;
    };
    FUSEDNN_INLINE Step moments(Vec<T> param, Vec<T> grad, Vec<T> mean, Vec<T> square,
                                bool maximize) const {
        const Vec<T> d = direction<T>(grad, param, maximize, decay);
        // Interpolated from the nearer end, which keeps it inside and exact at beta1 = 0.
        mean = fresh1 < T(0.5) ? mean + fresh1 * (d - mean) : d - beta1 * (d - mean);
        return {keep * param, mean, beta2 * square + fresh2 * d * d};
    }
    // A factor for the root, where the formula divides: root and quotient bound this kernel while
    // its arrays are in L2, and a second quotient made it 1.5 times slower (59 against 91 GB/s).
    FUSEDNN_INLINE Vec<T> update(const Step& s, Vec<T> square) const {
        return s.param - step_size * s.mean / (square_root<T>(square) * root_scale + eps);
    }
};

// Kingma & Ba 2015 (arXiv:1412.6980, algorithm 1); decoupled decay: Loshchilov & Hutter 2019
// (arXiv:1711.05101, algorithm 2); max_exp_avg_sq: Reddi et al. 2018 (AMSGrad).
template <class T>
void adam(const AdamOptions& o, const AdamTensor<T>& p) {
    const AdamFactors<T> factors(o, p.step);
    const bool maximize = o.maximize;
    const auto moments = [=](i64 i, auto load_at) {
        return factors.moments(load_at(p.param + i), load_at(p.grad + i), load_at(p.exp_avg + i),
                               load_at(p.exp_avg_sq + i), maximize);
    };
    if (!p.max_exp_avg_sq) {
        map_elements<2>(p.size, 7, {p.param, p.exp_avg, p.exp_avg_sq}, [=](i64 i, auto load_at) {
            const auto s = moments(i, load_at);
            return Results<T, 3>{{factors.update(s, s.square), s.mean, s.square}};
        });
        return;
    }
    map_elements<2>(
        p.size, 9, {p.param, p.exp_avg, p.exp_avg_sq, p.max_exp_avg_sq}, [=](i64 i, auto load_at) {
            const auto s = moments(i, load_at);
            const Vec<T> before = load_at(p.max_exp_avg_sq + i);
            // NaN wins over a number on either side.
            const Vec<T> most =
                select<T>((s.square > before) | (s.square != s.square), s.square, before);
            return Results<T, 4>{{factors.update(s, most), s.mean, s.square, most}};
        });
}

}  // namespace

template <class T>
void adam_step(const AdamOptions& o, i64 count, const AdamTensor<T>* tensors) {
    for (i64 i = 0; i < count; ++i) adam(o, tensors[i]);
}

namespace {

template <bool kCentered, bool kMomentum, class T>
void rmsprop_arrays(const RmspropOptions& o, const RmspropTensor<T>& p) {
    constexpr int outputs = 2 + kCentered + kMomentum;
    const T decay = T(o.weight_decay), lr = T(o.lr), eps = T(o.eps), momentum = T(o.momentum);
    const T alpha = T(o.alpha), fresh = T(1 - o.alpha);
    T* out[outputs] = {p.param, p.square_avg};
    if constexpr (kCentered) out[2] = p.grad_avg;
    if constexpr (kMomentum) out[outputs - 1] = p.momentum_buffer;
    map_elements<2>(p.size, 1 + 2 * outputs, out, [=](i64 i, auto load_at) {
        Results<T, outputs> results;
        const Vec<T> param = load_at(p.param + i);
        const Vec<T> d = direction<T>(load_at(p.grad + i), param, o.maximize, decay);
        const Vec<T> square = alpha * load_at(p.square_avg + i) + fresh * d * d;
        Vec<T> spread = square;
        if constexpr (kCentered) {
            const Vec<T> old = load_at(p.grad_avg + i), mean = old + fresh * (d - old);
            // A variance; rounding may leave it below 0 where the gradient hardly changes.
            spread -= mean * mean;
            spread = select<T>(spread < Vec<T>{}, Vec<T>{}, spread);
            results.of[2] = mean;
        }
        Vec<T> step = d / (square_root<T>(spread) + eps);
        if constexpr (kMomentum) {
            step += momentum * load_at(p.momentum_buffer + i);
            results.of[outputs - 1] = step;
        }
        results.of[0] = param - lr * step;
        results.of[1] = square;
        return results;
    });
}

// Tieleman & Hinton 2012; centered: Graves 2013 (arXiv:1308.0850), with eps outside the root.
template <class T>
void rmsprop(const RmspropOptions& o, const RmspropTensor<T>& p) {
    if (p.grad_avg) {
        return p.momentum_buffer ? rmsprop_arrays<true, true>(o, p)
                                 : rmsprop_arrays<true, false>(o, p);
    }
    return p.momentum_buffer ? rmsprop_arrays<false, true>(o, p)
                             : rmsprop_arrays<false, false>(o, p);
}

// Duchi, Hazan & Singer, JMLR 12 (2011).
template <class T>
void adagrad(const AdagradOptions& o, const AdagradTensor<T>& p) {
    const T decay = T(o.weight_decay), lr = T(p.lr), eps = T(o.eps);
    map_elements<2>(p.size, 5, {p.param, p.sum}, [=](i64 i, auto load_at) {
        const Vec<T> param = load_at(p.param + i);
        const Vec<T> d = direction<T>(load_at(p.grad + i), param, o.maximize, decay);
        const Vec<T> sum = load_at(p.sum + i) + d * d;
        return Results<T, 2>{{param - lr * d / (square_root<T>(sum) + eps), sum}};
    });
}

}  // namespace

template <class T>
void rmsprop_step(const RmspropOptions& o, i64 count, const RmspropTensor<T>* tensors) {
    for (i64 i = 0; i < count; ++i) rmsprop(o, tensors[i]);
}

template <class T>
void adagrad_step(const AdagradOptions& o, i64 count, const AdagradTensor<T>* tensors) {
    for (i64 i = 0; i < count; ++i) adagrad(o, tensors[i]);
}

namespace {

// Chunks of 64 KB of floats, whose sums are added up in order: the same bits at any number of
// threads.
template <class T>
double squares(i64 size, const T* x, double scale) {
    constexpr i64 chunk = 1 << 14, lanes = kLanes<double>;
    const i64 tasks = ceil_div(size, chunk);
    Workspace<double> sums(tasks);
    parallel(tasks, parallel_slots(tasks, size * i64(sizeof(T))), [&](i64 task, int) {
        const i64 end = min_of(size, (task + 1) * chunk);
        Vec<double> sum[4] = {};
        i64 at = task * chunk;
        for (; at + 4 * lanes <= end; at += 4 * lanes) {
#pragma GCC unroll 4
            for (int i = 0; i < 4; ++i) {
                const Vec<double> y = load_wide(x + at + i * lanes) * scale;
                sum[i] = multiply_add(y, y, sum[i]);
            }
        }
        double rest = 0;
        for (; at < end; ++at) rest += double(x[at]) * scale * (double(x[at]) * scale);
        sums.get()[task] = sum_lanes<double>((sum[0] + sum[1]) + (sum[2] + sum[3])) + rest;
    });
    double total = 0;
    for (i64 task = 0; task < tasks; ++task) total += sums.get()[task];
    return total;
}

}  // namespace

template <class T>
void sum_of_squares(i64 count, const FlatArray<const T>* arrays, double scale, double* total) {
    *total = 0;
    for (i64 i = 0; i < count; ++i) *total += squares(arrays[i].size, arrays[i].data, scale);
}

template <class T>
void scale_arrays(i64 count, const FlatArray<T>* arrays, double factor) {
    const T by = T(factor);
    for (i64 i = 0; i < count; ++i) {
        T* x = arrays[i].data;
        map_elements<kBurst>(arrays[i].size, 2, {x}, [=](i64 at, auto load_at) {
            return Results<T, 1>{{load_at(x + at) * by}};
        });
    }
}

#define FUSEDNN_OPTIM(T)                                                                \
    template void sgd_step<T>(const SgdOptions&, i64, const SgdTensor<T>*);             \
    template void adam_step<T>(const AdamOptions&, i64, const AdamTensor<T>*);          \
    template void rmsprop_step<T>(const RmspropOptions&, i64, const RmspropTensor<T>*); \
    template void adagrad_step<T>(const AdagradOptions&, i64, const AdagradTensor<T>*); \
    template void sum_of_squares<T>(i64, const FlatArray<const T>*, double, double*);   \
    template void scale_arrays<T>(i64, const FlatArray<T>*, double);
FUSEDNN_INSTANTIATE(FUSEDNN_OPTIM)

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
