// prelu: a learnt slope below 0. x, y, dy, dx (outer, channels, inner); slope, dslope (channels).
// He, Zhang, Ren, Sun, "Delving deep into rectifiers", ICCV 2015.
#include "cpu/channels.h"
#include "cpu/kernels.h"

namespace fusednn {
namespace FUSEDNN_ISA {

template <class T>
void prelu_forward(i64 outer, i64 channels, i64 inner, const T* x, const T* slope, T* y) {
    map_channels<T>({outer, channels, inner},
                    [=](i64 at, auto load_at, auto store_at, auto of_channel) {
                        const Vec<T> v = load_at(x + at);
                        store_at(y + at, select<T>(v > Vec<T>{}, v, v * of_channel(slope)));
                    });
}

// dslope: the sum of dy * x over what is not positive, slice by slice.
template <class T>
void prelu_backward(i64 outer, i64 channels, i64 inner, const T* dy, const T* x, const T* slope,
                    T* dx, T* dslope) {
    const ChannelShape shape{outer, channels, inner};
    map_channels<T>(shape, [=](i64 at, auto load_at, auto store_at, auto of_channel) {
        const Vec<T> g = load_at(dy + at);
        store_at(dx + at, select<T>(load_at(x + at) > Vec<T>{}, g, g * of_channel(slope)));
    });
    const i64 slices = cut_channels(shape).slices;
    Workspace<double> memory(slices * channels + 1);
    double* const partial = memory.get();
    for_slices<T>(shape, 4, [&](const auto& slice, i64 number) {
        double sum[1][kLanes<T>];
        slice.template sums<1>(sum, [&](i64 at, auto load_at, Vec<T>(&v)[1]) {
            const Vec<T> in = load_at(x + at);
            v[0] = select<T>(in > Vec<T>{}, Vec<T>{}, load_at(dy + at) * in);
        });
        for (int i = 0; i < slice.count; ++i) {
            partial[number * channels + slice.channel + i] = sum[0][i];
        }
    });
    for (i64 c = 0; c < channels; ++c) {
        double sum = 0;
        for (i64 s = 0; s < slices; ++s) sum += partial[s * channels + c];
        dslope[c] = T(sum);
    }
}

#define FUSEDNN_PRELU(T)                                                   \
    template void prelu_forward<T>(i64, i64, i64, const T*, const T*, T*); \
    template void prelu_backward<T>(i64, i64, i64, const T*, const T*, const T*, T*, T*);
FUSEDNN_INSTANTIATE(FUSEDNN_PRELU)

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
