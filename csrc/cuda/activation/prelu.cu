// prelu: a learnt slope below 0. x, y, dy, dx (outer, channels, inner); slope, dslope (channels).
//
//   backward  1. dx   2. dslope: the sum of dy * x over what is not positive
#include "cuda/channels.h"
#include "cuda/gpu.h"
#include "cuda/kernels.h"

namespace fusednn::cuda {

namespace {

// to = of where x is positive, else slope * of; of is x or dy.
template <class T>
struct Bend {
    Shared<T> x, of, slope;
    SharedOut<T> to;
    template <int kWide>
    FUSEDNN_DEVICE void run(i64 at, i64 channel) const {
        using Value = Accumulate<T>;
        const auto in = load_wide<kWide>(x + at);
        auto v = load_wide<kWide>(of + at);
        const Value factor = slope[channel];
        for (int i = 0; i < kWide; ++i) {
            v.of[i] = in.of[i] > Value(0) ? v.of[i] : v.of[i] * factor;
        }
        store_wide<kWide>(to + at, v);
    }
};

template <class T>
struct SlopeTerm {
    using Value = Accumulate<T>;
    static constexpr int kInputs = 2;
    Shared<T> dy, x;
    FUSEDNN_DEVICE void operator()(i64 at, i64, i64, Value (&v)[1]) const {
        const Value in = x[at], product = dy[at] * in;
        v[0] = in > Value(0) ? Value(0) : product;
    }
};
template <class T>
struct StoreSlope {
    SharedOut<T> dslope;
    FUSEDNN_DEVICE void operator()(i64 channel, const double (&sum)[1]) const {
        dslope[channel] = Accumulate<T>(sum[0]);
    }
};

}  // namespace

template <class T>
void prelu_forward(i64 outer, i64 channels, i64 inner, const T* x, const T* slope, T* y) {
    const bool packs = detail::whole_packs(x) && detail::whole_packs(y);
    map_channels<Storage<T>>("prelu_forward", {outer, channels, inner}, packs,
                             Bend<Storage<T>>{reading(x), reading(x), reading(slope), writing(y)});
}

template <class T>
void prelu_backward(i64 outer, i64 channels, i64 inner, const T* dy, const T* x, const T* slope,
                    T* dx, T* dslope) {
    const ChannelView view{outer, channels, inner};
    const bool packs = detail::whole_packs(x) && detail::whole_packs(dy) && detail::whole_packs(dx);
    using Held = Storage<T>;
    map_channels<Held>("prelu_backward", view, packs,
                       Bend<Held>{reading(x), reading(dy), reading(slope), writing(dx)});
    sum_channels<1, Accumulate<T>>("prelu_backward", view, SlopeTerm<Held>{reading(dy), reading(x)},
                                   StoreSlope<Held>{writing(dslope)});
}

#define FUSEDNN_PRELU(T)                                                   \
    template void prelu_forward<T>(i64, i64, i64, const T*, const T*, T*); \
    template void prelu_backward<T>(i64, i64, i64, const T*, const T*, const T*, T*, T*);
FUSEDNN_INSTANTIATE(FUSEDNN_PRELU)
FUSEDNN_INSTANTIATE_HALF(FUSEDNN_PRELU)

}  // namespace fusednn::cuda
