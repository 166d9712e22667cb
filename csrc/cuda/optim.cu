// Optimiser updates, in place, and the norm of gradients: one pass over the flat arrays of many
// parameters in one launch (tensors.h). Formulas and factors are those of cpu/optim.cpp.
//
//   update          1. param, state = step(grad, param, state)
//   sum_of_squares  1. each block's sum of its chunk   2. one block adds them, in a fixed tree
#include <cmath>
#include <vector>

#include "cuda/gpu.h"
#include "cuda/kernels.h"
#include "cuda/tensors.h"

namespace fusednn::cuda {

namespace {

// Array 0 is the gradient, the others are changed.
template <class T, class Update>
__global__ void __launch_bounds__(kElementThreads)
    update_arrays(Tensors<T, Update::kArrays + 1> tensors, Update update) {
    constexpr int n = Update::kArrays;
    const Chunk<T, n + 1> chunk(tensors);
    chunk.each([&](i64 at, auto count) {
        constexpr int wide = decltype(count)::value;
        Wide<T, wide> values[n];
        const auto grad = load_wide<wide>(chunk.array[0] + at);
        for (int a = 0; a < n; ++a) {
            if (update.reads(a)) values[a] = load_wide<wide>(chunk.array[a + 1] + at);
        }
        for (int i = 0; i < wide; ++i) {
            T one[n];
            for (int a = 0; a < n; ++a) one[a] = update.reads(a) ? values[a].of[i] : T(0);
            const T d = update.maximize ? -grad.of[i] : grad.of[i];
            update.step(update.decay != T(0) ? d + update.decay * one[0] : d, one);
            for (int a = 0; a < n; ++a) values[a].of[i] = one[a];
        }
        for (int a = 0; a < n; ++a) store_wide<wide>(chunk.array[a + 1] + at, values[a]);
    });
}

// An update: how many arrays it changes (the parameter first), and step(d, values) for one element
// of each, d being the gradient's, reversed to maximise and with L2 decay added.
template <class T, int kCount>
struct Update {
    static constexpr int kArrays = kCount;
    T decay;
    bool maximize;

    FUSEDNN_DEVICE bool reads(int) const { return true; }
};

// ---- the host's side ----------------------------------------

// Do no two arrays share memory, unless both are only read (array 0)?
template <class T, int kArrays>
bool apart(const Tensors<T, kArrays>& tensors) {
    struct Span {
        const T *begin, *end;
        bool written;
    };
    std::vector<Span> spans;
    spans.reserve(std::size_t(tensors.count) * kArrays);
    for (int t = 0; t < tensors.count; ++t) {
        for (int a = 0; a < kArrays; ++a) {
            const T* begin = tensors.array[a][t];
            spans.push_back({begin, begin + tensors.size[t], a > 0});
        }
    }
    std::sort(spans.begin(), spans.end(),
              [](const Span& a, const Span& b) { return a.begin < b.begin; });
    const T *end = nullptr, *written_end = nullptr;
    for (const Span& span : spans) {
        if (span.begin < (span.written ? end : written_end)) return false;
        if (span.end > end) end = span.end;
        if (span.written && span.end > written_end) written_end = span.end;
    }
    return true;
}

// What is shared between tensors is updated in the order of the list: a launch to each.
template <class T, class Update>
void launch_updates(const char* name, const Tensors<T, Update::kArrays + 1>& tensors,
                    const Update& update) {
    constexpr int arrays = Update::kArrays + 1;
    static_assert(sizeof(tensors) + sizeof(update) <= 4096, "arguments of a kernel");
    const auto kernel = update_arrays<T, Update>;
    if (apart(tensors)) {
        launch(name, {unsigned(tensors.blocks()), kElementThreads}, kernel, tensors, update);
        return;
    }
    for (int t = 0; t < tensors.count; ++t) {
        Tensors<T, arrays> one;
        T* array[arrays];
        for (int a = 0; a < arrays; ++a) array[a] = tensors.array[a][t];
        one.clear();
        one.add(tensors.size[t], array);
        launch(name, {unsigned(one.blocks()), kElementThreads}, kernel, one, update);
    }
}

// Tensors that follow each other share launches as long as alike(first, next). For each launch
// update_of(first) is the Update; add(list, tensor) adds the arrays.
template <class Update, class T, class Tensor, class Alike, class UpdateOf, class Add>
void run(const char* name, i64 count, const Tensor* tensors, const Alike& alike,
         const UpdateOf& update_of, const Add& add) {
    for (i64 i = 0; i < count;) {
        const Tensor& first = tensors[i];
        Tensors<T, Update::kArrays + 1> list;
        list.clear();
        for (; i < count && !list.full() && alike(first, tensors[i]); ++i) add(list, tensors[i]);
        launch_updates(name, list, update_of(first));
    }
}

// For Tensors: a gradient among arrays that are changed.
template <class T>
T* read(const T* grad) {
    return const_cast<T*>(grad);
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
    AdamFactors(const AdamOptions& o, i64 step) {
        const double correction1 = 1 - std::pow(o.beta1, double(step));
        const double correction2 = 1 - std::pow(o.beta2, double(step));
        step_size = T(o.lr / correction1);
        root_scale = T(1 / std::sqrt(correction2));
        eps = T(o.eps);
        keep = o.decoupled_decay ? T(1 - o.lr * o.weight_decay) : T(1);
        fresh1 = T(1 - o.beta1);
        beta1 = T(o.beta1);
        beta2 = T(o.beta2);
        fresh2 = T(1 - o.beta2);
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
    Adam(const AdamOptions& o, i64 step) : factors(o, step) {
        this->decay = o.decoupled_decay ? T(0) : T(o.weight_decay);
        this->maximize = o.maximize;
    }
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
void adam(const AdamOptions& o, i64 count, const AdamTensor<T>* tensors) {
    using Tensor = AdamTensor<T>;
    run<Adam<T, kAmsgrad>, T>(
        "adam_step", count, tensors,
        [](const Tensor& a, const Tensor& b) { return a.step == b.step; },
        [&](const Tensor& first) { return Adam<T, kAmsgrad>(o, first.step); },
        [](auto& list, const Tensor& p) {
            if constexpr (kAmsgrad) {
                list.add(p.size,
                         {read(p.grad), p.param, p.exp_avg, p.exp_avg_sq, p.max_exp_avg_sq});
            } else {
                list.add(p.size, {read(p.grad), p.param, p.exp_avg, p.exp_avg_sq});
            }
        });
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
void rmsprop(const RmspropOptions& o, i64 count, const RmspropTensor<T>* tensors) {
    using Tensor = RmspropTensor<T>;
    using Rule = Rmsprop<T, kCentered, kMomentum>;
    run<Rule, T>(
        "rmsprop_step", count, tensors, [](const Tensor&, const Tensor&) { return true; },
        [&](const Tensor&) {
            Rule update;
            update.decay = T(o.weight_decay);
            update.maximize = o.maximize;
            update.lr = T(o.lr);
            update.eps = T(o.eps);
            update.alpha = T(o.alpha);
            update.fresh = T(1 - o.alpha);
            update.momentum = T(o.momentum);
            return update;
        },
        [](auto& list, const Tensor& p) {
            T* arrays[Rule::kArrays + 1] = {read(p.grad), p.param, p.square_avg};
            if constexpr (kCentered) arrays[3] = p.grad_avg;
            if constexpr (kMomentum) arrays[3 + kCentered] = p.momentum_buffer;
            list.add(p.size, arrays);
        });
}

template <class T>
struct Adagrad : Update<T, 2> {
    T lr, eps;
    FUSEDNN_DEVICE void step(T d, T (&v)[2]) const {
        v[1] = v[1] + d * d;
        v[0] = v[0] - lr * d / (sqrt(v[1]) + eps);
    }
};

// ---- sums and factors ----------------------------------------

// Each thread adds up its own elements, then the block.
template <class T>
__global__ void __launch_bounds__(kElementThreads)
    squares_of_chunks(Tensors<T, 1> tensors, double scale, double* sums) {
    const Chunk<T, 1> chunk(tensors);
    double sum = 0;
    chunk.each([&](i64 at, auto count) {
        const auto values = load_wide<decltype(count)::value>(chunk.array[0] + at);
        for (const T value : values.of) {
            const double scaled = double(value) * scale;
            sum += scaled * scaled;
        }
    });
    sum = block_reduce<kElementThreads>(sum, Add{});
    if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(kElementThreads)
    add_sums(i64 count, const double* __restrict__ sums, double* total) {
    double sum = 0;
    for (i64 i = threadIdx.x; i < count; i += kElementThreads) sum += sums[i];
    sum = block_reduce<kElementThreads>(sum, Add{});
    if (threadIdx.x == 0) *total = sum;
}

template <class T>
__global__ void __launch_bounds__(kElementThreads) scale_chunks(Tensors<T, 1> tensors, T factor) {
    const Chunk<T, 1> chunk(tensors);
    chunk.each([&](i64 at, auto count) {
        auto values = load_wide<decltype(count)::value>(chunk.array[0] + at);
        for (T& value : values.of) value *= factor;
        store_wide(chunk.array[0] + at, values);
    });
}

// body(list) for lists of all arrays.
template <class T, class Array, class Body>
void in_lists(i64 count, const Array* arrays, const Body& body) {
    for (i64 i = 0; i < count;) {
        Tensors<T, 1> list;
        list.clear();
        for (; i < count && !list.full(); ++i) list.add(arrays[i].size, {read<T>(arrays[i].data)});
        body(list);
    }
}

}  // namespace

template <class T>
void sgd_step(const SgdOptions& o, i64 count, const SgdTensor<T>* tensors) {
    using Tensor = SgdTensor<T>;
    const auto any = [](const Tensor&, const Tensor&) { return true; };
    const auto alike = [](const Tensor& a, const Tensor& b) {
        return a.first_step == b.first_step;
    };
    if (count > 0 && !tensors[0].momentum_buffer) {
        Sgd<T> update;
        update.decay = T(o.weight_decay);
        update.maximize = o.maximize;
        update.lr = T(o.lr);
        return run<Sgd<T>, T>(
            "sgd_step", count, tensors, any, [&](const Tensor&) { return update; },
            [](auto& list, const Tensor& p) { list.add(p.size, {read(p.grad), p.param}); });
    }
    run<MomentumSgd<T>, T>(
        "sgd_step", count, tensors, alike,
        [&](const Tensor& first) {
            MomentumSgd<T> update;
            update.decay = T(o.weight_decay);
            update.maximize = o.maximize;
            update.lr = T(o.lr);
            update.momentum = T(o.momentum);
            update.fresh = T(1 - o.dampening);
            update.first_step = first.first_step;
            update.nesterov = o.nesterov;
            return update;
        },
        [](auto& list, const Tensor& p) {
            list.add(p.size, {read(p.grad), p.param, p.momentum_buffer});
        });
}

template <class T>
void adam_step(const AdamOptions& o, i64 count, const AdamTensor<T>* tensors) {
    const bool amsgrad = count > 0 && tensors[0].max_exp_avg_sq;
    amsgrad ? adam<true>(o, count, tensors) : adam<false>(o, count, tensors);
}

template <class T>
void rmsprop_step(const RmspropOptions& o, i64 count, const RmspropTensor<T>* tensors) {
    const bool centered = count > 0 && tensors[0].grad_avg;
    const bool momentum = count > 0 && tensors[0].momentum_buffer;
    if (centered) {
        momentum ? rmsprop<true, true>(o, count, tensors) : rmsprop<true, false>(o, count, tensors);
    } else {
        momentum ? rmsprop<false, true>(o, count, tensors)
                 : rmsprop<false, false>(o, count, tensors);
    }
}

template <class T>
void adagrad_step(const AdagradOptions& o, i64 count, const AdagradTensor<T>* tensors) {
    using Tensor = AdagradTensor<T>;
    run<Adagrad<T>, T>(
        "adagrad_step", count, tensors,
        [](const Tensor& a, const Tensor& b) { return a.lr == b.lr; },
        [&](const Tensor& first) {
            Adagrad<T> update;
            update.decay = T(o.weight_decay);
            update.maximize = o.maximize;
            update.lr = T(first.lr);
            update.eps = T(o.eps);
            return update;
        },
        [](auto& list, const Tensor& p) { list.add(p.size, {read(p.grad), p.param, p.sum}); });
}

template <class T>
void sum_of_squares(i64 count, const FlatArray<const T>* arrays, double scale, double* total) {
    i64 blocks = 0, first = 0;
    in_lists<T>(count, arrays, [&](const Tensors<T, 1>& list) { blocks += list.blocks(); });
    const Workspace<double> sums(blocks);
    in_lists<T>(count, arrays, [&](const Tensors<T, 1>& list) {
        launch("sum_of_squares", {unsigned(list.blocks()), kElementThreads}, squares_of_chunks<T>,
               list, scale, sums.get() + first);
        first += list.blocks();
    });
    launch("sum_of_squares", {1, kElementThreads}, add_sums, blocks, sums.get(), total);
}

template <class T>
void scale_arrays(i64 count, const FlatArray<T>* arrays, double factor) {
    in_lists<T>(count, arrays, [&](const Tensors<T, 1>& list) {
        launch("scale_arrays", {unsigned(list.blocks()), kElementThreads}, scale_chunks<T>, list,
               T(factor));
    });
}

#define FUSEDNN_OPTIM(T)                                                                \
    template void sgd_step<T>(const SgdOptions&, i64, const SgdTensor<T>*);             \
    template void adam_step<T>(const AdamOptions&, i64, const AdamTensor<T>*);          \
    template void rmsprop_step<T>(const RmspropOptions&, i64, const RmspropTensor<T>*); \
    template void adagrad_step<T>(const AdagradOptions&, i64, const AdagradTensor<T>*); \
    template void sum_of_squares<T>(i64, const FlatArray<const T>*, double, double*);   \
    template void scale_arrays<T>(i64, const FlatArray<T>*, double);
FUSEDNN_INSTANTIATE(FUSEDNN_OPTIM)

}  // namespace fusednn::cuda
