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
    const T *x, *of, *slope;
    T* to;
    template <int kWide>
    FUSEDNN_DEVICE void run(i64 at, i64 channel, i64 step) const {
        const auto in = load_wide<kWide>(x + at);
        auto v = load_wide<kWide>(of + at);
        for (int i = 0; i < kWide; ++i) {
            v.of[i] = in.of[i] > T(0) ? v.of[i] : v.of[i] * slope[channel + i * step];
        }
        store_wide<kWide>(to + at, v);
    }
};

template <class T>
struct SlopeTerm {
    const T *dy, *x;
    FUSEDNN_DEVICE void operator()(i64 at, i64, i64, T (&v)[1]) const {
        v[0] = x[at] > T(0) ? T(0) : dy[at] * x[at];
    }
};
template <class T>
struct StoreSlope {
    T* dslope;
    FUSEDNN_DEVICE void operator()(i64 channel, const double (&sum)[1]) const {
        dslope[channel] = T(sum[0]);
    }
};

}  // namespace

template <class T>
void prelu_forward(i64 outer, i64 channels, i64 inner, const T* x, const T* slope, T* y) {
    const bool packs = detail::whole_packs(x) && detail::whole_packs(y);
    map_channels<T>("prelu_forward", {outer, channels, inner}, packs, Bend<T>{x, x, slope, y});
}

template <class T>
void prelu_backward(i64 outer, i64 channels, i64 inner, const T* dy, const T* x, const T* slope,
                    T* dx, T* dslope) {
    const ChannelView view{outer, channels, inner};
    const bool packs = detail::whole_packs(x) && detail::whole_packs(dy) && detail::whole_packs(dx);
    map_channels<T>("prelu_backward", view, packs, Bend<T>{x, dy, slope, dx});
    sum_channels<1, T>("prelu_backward", view, SlopeTerm<T>{dy, x}, StoreSlope<T>{dslope});
}

#define FUSEDNN_PRELU(T)                                                   \
    template void prelu_forward<T>(i64, i64, i64, const T*, const T*, T*); \
    template void prelu_backward<T>(i64, i64, i64, const T*, const T*, const T*, T*, T*);
FUSEDNN_INSTANTIATE(FUSEDNN_PRELU)

}  // namespace fusednn::cuda
