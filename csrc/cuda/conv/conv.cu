// Convolution forward: for each group, y (O/g x positions) = w (O/g x C/g taps) times the windows
// of x, which are read where they lie. One column for each output position of all images.
#include "cuda/conv/depthwise.h"
#include "cuda/conv/window.h"
#include "cuda/kernels.h"

namespace fusednn::cuda {

namespace {

template <class T, class I>
void forward(const ConvParams& p, const T* x, const T* w, const T* bias, T* y) {
    const i64 plane = volume(p.in_size), pixels = volume(p.out_size);
    const i64 channels = p.in_channels / p.groups, outs = p.out_channels / p.groups;
    const i64 depth = channels * volume(p.kernel);
    using Value = Storage<T>;
    using Out = Output<Value, ImageColumns<I>>;
    using Product = Work<Strided<Value, true>, Gather<Value, I, false>, Out>;
    const SameShapes<Product> problem{
        {outs,
         p.batch * pixels,
         depth,
         {storage(w), outs * depth, depth, 1, wide_lines(w, depth)},
         gather<false>(storage(x), channels * plane, p.in_size,
                       windows<I>(p, p.in_channels * plane), taps<I>(p, plane)),
         {storage(y), outs * pixels, pixels, image_columns<I>(p.out_size, p.out_channels * pixels),
          wide_lines(y, pixels), storage(bias), outs, nullptr, false, false,
          StorageOf<T>::format()}}};
    product<sizeof(I) == 8>("conv_forward", problem, p.groups);
}

}  // namespace

template <class T>
ConvPacking conv_packing(const ConvParams&) {
    return {ConvPacking::none, 0};
}

template <class T>
void conv_forward(const ConvParams& p, const T* x, const T* w, const T* bias, T* y) {
    if (is_depthwise(p)) return depthwise_forward(p, x, w, bias, y);
    FUSEDNN_BY_SIZE(T, p, forward, x, w, bias, y);
}

#define FUSEDNN_CONV(T)                                      \
    template ConvPacking conv_packing<T>(const ConvParams&); \
    template void conv_forward<T>(const ConvParams&, const T*, const T*, const T*, T*);
FUSEDNN_INSTANTIATE(FUSEDNN_CONV)
FUSEDNN_INSTANTIATE_HALF(FUSEDNN_CONV)

}  // namespace fusednn::cuda
