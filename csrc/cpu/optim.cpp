// Optimiser updates, in place, one pass over the arrays of a parameter.
#include "cpu/elementwise.h"
#include "cpu/kernels.h"
#include "cpu/vmath.h"

namespace fusednn {
namespace FUSEDNN_ISA {

template <class T>
void sgd_step(const SgdParams<T>& p) {
    const T sign = p.maximize ? T(-1) : T(1), decay = T(p.weight_decay), lr = T(p.lr);
    const T momentum = T(p.momentum), fresh = T(1 - p.dampening);
    map_elements<T>(p.size, p.momentum_buffer ? 5 : 3, [&](i64 i, auto load_at, auto store_at) {
        const Vec<T> param = load_at(p.param + i);
        Vec<T> step = sign * load_at(p.grad + i);
        if (decay != T(0)) step += decay * param;
        if (p.momentum_buffer) {
            Vec<T> buffer = step;
            if (!p.first_step) buffer = momentum * load_at(p.momentum_buffer + i) + fresh * step;
            store_at(p.momentum_buffer + i, buffer);
            step = p.nesterov ? step + momentum * buffer : buffer;
        }
        store_at(p.param + i, param - lr * step);
    });
}

// Kingma & Ba 2015 (arXiv:1412.6980); decoupled decay: Loshchilov & Hutter 2019 (arXiv:1711.05101);
// max_exp_avg_sq: Reddi et al. 2018 (AMSGrad).
template <class T>
void adam_step(const AdamParams<T>& p) {
    const double correction1 = 1 - __builtin_pow(p.beta1, double(p.step));
    const double correction2 = 1 - __builtin_pow(p.beta2, double(p.step));
    const T step_size = T(p.lr / correction1);
    const T root2 = T(1 / __builtin_sqrt(correction2));
    const T sign = p.maximize ? T(-1) : T(1), eps = T(p.eps), decay = T(p.weight_decay);
    const T keep = T(1 - p.lr * p.weight_decay);
    const T fresh1 = T(1 - p.beta1), beta2 = T(p.beta2), fresh2 = T(1 - p.beta2);
    map_elements<T>(p.size, 7, [&](i64 i, auto load_at, auto store_at) {
        Vec<T> param = load_at(p.param + i);
        Vec<T> grad = sign * load_at(p.grad + i);
        if (p.decoupled_decay) {
            param *= keep;
        } else if (decay != T(0)) {
            grad += decay * param;
        }
        Vec<T> mean = load_at(p.exp_avg + i);
        mean += fresh1 * (grad - mean);
        Vec<T> square = beta2 * load_at(p.exp_avg_sq + i) + fresh2 * grad * grad;
        store_at(p.exp_avg + i, mean);
        store_at(p.exp_avg_sq + i, square);
        if (p.max_exp_avg_sq) {
            const Vec<T> most = load_at(p.max_exp_avg_sq + i);
            square = select<T>((square > most) | (square != square), square, most);
            store_at(p.max_exp_avg_sq + i, square);
        }
        const Vec<T> denominator = square_root<T>(square) * root2 + eps;
        store_at(p.param + i, param - step_size * mean / denominator);
    });
}

// Tieleman & Hinton 2012; centered: Graves 2013 (arXiv:1308.0850), with eps outside the root.
template <class T>
void rmsprop_step(const RmspropParams<T>& p) {
    const T sign = p.maximize ? T(-1) : T(1), decay = T(p.weight_decay), lr = T(p.lr);
    const T alpha = T(p.alpha), fresh = T(1 - p.alpha), eps = T(p.eps), momentum = T(p.momentum);
    const i64 arrays = 5 + (p.grad_avg ? 2 : 0) + (p.momentum_buffer ? 2 : 0);
    map_elements<T>(p.size, arrays, [&](i64 i, auto load_at, auto store_at) {
        const Vec<T> param = load_at(p.param + i);
        Vec<T> grad = sign * load_at(p.grad + i);
        if (decay != T(0)) grad += decay * param;
        const Vec<T> square = alpha * load_at(p.square_avg + i) + fresh * grad * grad;
        store_at(p.square_avg + i, square);
        Vec<T> spread = square;
        if (p.grad_avg) {
            Vec<T> mean = load_at(p.grad_avg + i);
            mean += fresh * (grad - mean);
            store_at(p.grad_avg + i, mean);
            spread -= mean * mean;
            // A variance; rounding may leave it below 0 where the gradient hardly changes.
            spread = select<T>(spread < T(0), Vec<T>{}, spread);
        }
        Vec<T> step = grad / (square_root<T>(spread) + eps);
        if (p.momentum_buffer) {
            step += momentum * load_at(p.momentum_buffer + i);
            store_at(p.momentum_buffer + i, step);
        }
        store_at(p.param + i, param - lr * step);
    });
}

// Duchi, Hazan & Singer, JMLR 12 (2011).
template <class T>
void adagrad_step(const AdagradParams<T>& p) {
    const T sign = p.maximize ? T(-1) : T(1), decay = T(p.weight_decay), lr = T(p.lr);
    const T eps = T(p.eps);
    map_elements<T>(p.size, 5, [&](i64 i, auto load_at, auto store_at) {
        const Vec<T> param = load_at(p.param + i);
        Vec<T> grad = sign * load_at(p.grad + i);
        if (decay != T(0)) grad += decay * param;
        const Vec<T> sum = load_at(p.sum + i) + grad * grad;
        store_at(p.sum + i, sum);
        store_at(p.param + i, param - lr * grad / (square_root<T>(sum) + eps));
    });
}

#define FUSEDNN_OPTIM(T)                                    \
    template void sgd_step<T>(const SgdParams<T>&);         \
    template void adam_step<T>(const AdamParams<T>&);       \
    template void rmsprop_step<T>(const RmspropParams<T>&); \
    template void adagrad_step<T>(const AdagradParams<T>&);
FUSEDNN_INSTANTIATE(FUSEDNN_OPTIM)

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
