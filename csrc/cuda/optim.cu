// Optimiser updates, in place, one pass over the flat arrays of a parameter (`size` elements each).
// Formulas and factors are those of cpu/optim.cpp. The arrays are read and written 16 bytes at a
// time where all begin so; a parameter is one launch.
#include <cmath>

#include "cuda/gpu.h"
#include "cuda/kernels.h"
#include "cuda/rows.h"

namespace fusednn::cuda {

namespace {

template <class T, int kWide, class Update>
FUSEDNN_DEVICE void update_at(const Update& update, i64 at) {
    constexpr int n = Update::kArrays;
    Wide<T, kWide> values[n];
    const auto grad = load_wide<kWide>(update.grad + at);
    for (int a = 0; a < n; ++a) {
        if (update.reads(a)) values[a] = load_wide<kWide>(update.array[a] + at);
    }
    for (int i = 0; i < kWide; ++i) {
        T one[n];
        for (int a = 0; a < n; ++a) one[a] = update.reads(a) ? values[a].of[i] : T(0);
        const T d = update.maximize ? -grad.of[i] : grad.of[i];
        update.step(update.decay != T(0) ? d + update.decay * one[0] : d, one);
        for (int a = 0; a < n; ++a) values[a].of[i] = one[a];
    }
    for (int a = 0; a < n; ++a) store_wide<kWide>(update.array[a] + at, values[a]);
}

template <class T, bool kPacks, class Update>
__global__ void __launch_bounds__(kElementThreads) update_arrays(i64 size, Update update) {
    constexpr int wide = kPacks ? Pack<T>::kSize : 1;
    const i64 packs = size / wide, step = i64(gridDim.x) * blockDim.x;
    const i64 thread = i64(blockIdx.x) * blockDim.x + threadIdx.x;
    for (i64 i = thread; i < packs; i += step) update_at<T, wide>(update, i * wide);
    for (i64 i = packs * wide + thread; i < size; i += step) update_at<T, 1>(update, i);
}

// An update: the arrays it changes (the parameter first), and step(d, values) for one element of
// each, d being the gradient's, reversed to maximise and with L2 decay added.
template <class T, int kCount>
struct Update {
    static constexpr int kArrays = kCount;
    const T* grad;
    T* array[kCount];
    T decay;
    bool maximize;

    FUSEDNN_DEVICE bool reads(int) const { return true; }
};

template <class T, class Update>
void run(const char* name, i64 size, const Update& update) {
    bool packs = detail::whole_packs(update.grad);
    for (const T* array : update.array) packs = packs && detail::whole_packs(array);
    const i64 each = kElementThreads * (packs ? Pack<T>::kSize : 1);
    const LaunchShape shape{blocks_for(size, each), kElementThreads};
    packs ? launch(name, shape, update_arrays<T, true, Update>, size, update)
          : launch(name, shape, update_arrays<T, false, Update>, size, update);
}

// ---- sgd ----------------------------------------

template <class T>
struct Sgd : Update<T, 1> {
    T lr;
    FUSEDNN_DEVICE void step(T d, T (&v)[1]) const { v[0] = v[0] - lr * d; }
};

template <class T>
struct MomentumSgd : Update<T, 2> {
    T lr, momentum, fresh;
    bool first_step, nesterov;
    // A first step's buffer is uninitialised: it is not even read.
    FUSEDNN_DEVICE bool reads(int a) const { return a == 0 || !first_step; }
    FUSEDNN_DEVICE void step(T d, T (&v)[2]) const {
        v[1] = first_step ? d : momentum * v[1] + fresh * d;
        v[0] = v[0] - lr * (nesterov ? d + momentum * v[1] : v[1]);
    }
};

// ---- adam ----------------------------------------

template <class T>
struct AdamFactors {
    T step_size, root_scale, eps, keep, fresh1, beta1, beta2, fresh2;

    // Bias corrections in double: 1 - beta^step loses all of a float's digits at first.
    explicit AdamFactors(const AdamParams<T>& p) {
        const double correction1 = 1 - std::pow(p.beta1, double(p.step));
        const double correction2 = 1 - std::pow(p.beta2, double(p.step));
        step_size = T(p.lr / correction1);
        root_scale = T(1 / std::sqrt(correction2));
        eps = T(p.eps);
        keep = p.decoupled_decay ? T(1 - p.lr * p.weight_decay) : T(1);
        fresh1 = T(1 - p.beta1);
        beta1 = T(p.beta1);
        beta2 = T(p.beta2);
        fresh2 = T(1 - p.beta2);
    }
    // Interpolated from the nearer end, which keeps it inside and exact at beta1 = 0.
    FUSEDNN_DEVICE T mean(T d, T old) const {
        return fresh1 < T(0.5) ? old + fresh1 * (d - old) : d - beta1 * (d - old);
    }
    FUSEDNN_DEVICE T square(T d, T old) const { return beta2 * old + fresh2 * d * d; }
    FUSEDNN_DEVICE T param(T old, T mean, T square) const {
        return keep * old - step_size * mean / (sqrt(square) * root_scale + eps);
    }
};

template <class T, bool kAmsgrad>
struct Adam : Update<T, kAmsgrad ? 4 : 3> {
    static constexpr int kCount = kAmsgrad ? 4 : 3;
    AdamFactors<T> factors;
    explicit Adam(const AdamParams<T>& p) : factors(p) {}
    FUSEDNN_DEVICE void step(T d, T (&v)[kCount]) const {
        v[1] = factors.mean(d, v[1]);
        v[2] = factors.square(d, v[2]);
        T under_root = v[2];
        if constexpr (kAmsgrad) {  // NaN wins over a number on either side
            under_root = v[3] = v[2] > v[3] || v[2] != v[2] ? v[2] : v[3];
        }
        v[0] = factors.param(v[0], v[1], under_root);
    }
};

template <bool kAmsgrad, class T>
void adam(const AdamParams<T>& p) {
    Adam<T, kAmsgrad> update(p);
    update.grad = p.grad;
    update.array[0] = p.param;
    update.array[1] = p.exp_avg;
    update.array[2] = p.exp_avg_sq;
    if constexpr (kAmsgrad) update.array[3] = p.max_exp_avg_sq;
    update.decay = p.decoupled_decay ? T(0) : T(p.weight_decay);
    update.maximize = p.maximize;
    run<T>("adam_step", p.size, update);
}

// ---- rmsprop ----------------------------------------

template <class T, bool kCentered, bool kMomentum>
struct Rmsprop : Update<T, 2 + kCentered + kMomentum> {
    static constexpr int kCount = 2 + kCentered + kMomentum;
    T lr, eps, alpha, fresh, momentum;
    FUSEDNN_DEVICE void step(T d, T (&v)[kCount]) const {
        v[1] = alpha * v[1] + fresh * d * d;
        T spread = v[1];
        if constexpr (kCentered) {
            v[2] = v[2] + fresh * (d - v[2]);
            // A variance; rounding may leave it below 0 where the gradient hardly changes.
            spread -= v[2] * v[2];
            spread = spread < T(0) ? T(0) : spread;
        }
        T change = d / (sqrt(spread) + eps);
        if constexpr (kMomentum) v[kCount - 1] = change = change + momentum * v[kCount - 1];
        v[0] = v[0] - lr * change;
    }
};

template <bool kCentered, bool kMomentum, class T>
void rmsprop(const RmspropParams<T>& p) {
    Rmsprop<T, kCentered, kMomentum> update;
    update.grad = p.grad;
    update.array[0] = p.param;
    update.array[1] = p.square_avg;
    if constexpr (kCentered) update.array[2] = p.grad_avg;
    if constexpr (kMomentum) update.array[2 + kCentered] = p.momentum_buffer;
    update.decay = T(p.weight_decay);
    update.maximize = p.maximize;
    update.lr = T(p.lr);
    update.eps = T(p.eps);
    update.alpha = T(p.alpha);
    update.fresh = T(1 - p.alpha);
    update.momentum = T(p.momentum);
    run<T>("rmsprop_step", p.size, update);
}

template <class T>
struct Adagrad : Update<T, 2> {
    T lr, eps;
    FUSEDNN_DEVICE void step(T d, T (&v)[2]) const {
        v[1] = v[1] + d * d;
        v[0] = v[0] - lr * d / (sqrt(v[1]) + eps);
    }
};

}  // namespace

template <class T>
void sgd_step(const SgdParams<T>& p) {
    if (!p.momentum_buffer) {
        Sgd<T> update;
        update.grad = p.grad;
        update.array[0] = p.param;
        update.decay = T(p.weight_decay);
        update.maximize = p.maximize;
        update.lr = T(p.lr);
        return run<T>("sgd_step", p.size, update);
    }
    MomentumSgd<T> update;
    update.grad = p.grad;
    update.array[0] = p.param;
    update.array[1] = p.momentum_buffer;
    update.decay = T(p.weight_decay);
    update.maximize = p.maximize;
    update.lr = T(p.lr);
    update.momentum = T(p.momentum);
    update.fresh = T(1 - p.dampening);
    update.first_step = p.first_step;
    update.nesterov = p.nesterov;
    run<T>("sgd_step", p.size, update);
}

template <class T>
void adam_step(const AdamParams<T>& p) {
    p.max_exp_avg_sq ? adam<true>(p) : adam<false>(p);
}

template <class T>
void rmsprop_step(const RmspropParams<T>& p) {
    if (p.grad_avg) {
        return p.momentum_buffer ? rmsprop<true, true>(p) : rmsprop<true, false>(p);
    }
    return p.momentum_buffer ? rmsprop<false, true>(p) : rmsprop<false, false>(p);
}

template <class T>
void adagrad_step(const AdagradParams<T>& p) {
    Adagrad<T> update;
    update.grad = p.grad;
    update.array[0] = p.param;
    update.array[1] = p.sum;
    update.decay = T(p.weight_decay);
    update.maximize = p.maximize;
    update.lr = T(p.lr);
    update.eps = T(p.eps);
    run<T>("adagrad_step", p.size, update);
}

#define FUSEDNN_OPTIM(T)                                    \
    template void sgd_step<T>(const SgdParams<T>&);         \
    template void adam_step<T>(const AdamParams<T>&);       \
    template void rmsprop_step<T>(const RmspropParams<T>&); \
    template void adagrad_step<T>(const AdagradParams<T>&);
FUSEDNN_INSTANTIATE(FUSEDNN_OPTIM)

}  // namespace fusednn::cuda
