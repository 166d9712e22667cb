// The gradients of a convolution's weights and of a bias.
//
// dw (O/g x C/g taps) = dy (O/g x positions) times the transposed windows of x. The depth, all
// positions of all images, is long and the result small: it is cut into parts that are added in
// order (cuda/gemm/product.h), so that the bits are the same in every run.
#include "cuda/conv/depthwise.h"
#include "cuda/conv/window.h"
#include "cuda/kernels.h"

namespace fusednn::cuda {

namespace {

template <class T, class I>
void backward(const ConvParams& p, const T* x, const T* dy, T* dw) {
    const i64 plane = volume(p.in_size), pixels = volume(p.out_size);
    const i64 channels = p.in_channels / p.groups, outs = p.out_channels / p.groups;
    const i64 columns = channels * volume(p.kernel);
    using Value = Storage<T>;
    using Out = Output<Value, PlainColumns>;
    using Product = Work<Gather<Value, I, true>, Gather<Value, I, true>, Out>;
    const SameShapes<Product> problem{
        {outs,
         columns,
         p.batch * pixels,
         gather<true>(storage(dy), outs * pixels, p.out_size, list<I>(pixels),
                      elements<I>(p.out_size, p.out_channels * pixels)),
         gather<true>(storage(x), channels * plane, p.in_size, taps<I>(p, plane),
                      windows<I>(p, p.in_channels * plane)),
         {storage(dw),
          outs * columns,
          columns,
          {},
          wide_lines(dw, columns),
          nullptr,
          0,
          nullptr,
          false,
          false,
          StorageOf<T>::format()}}};
    product<sizeof(I) == 8>("conv_backward_weight", problem, p.groups);
}

// ---- bias
// ----------------------------------------------------------------------------------------

constexpr int kThreads = 256;
// Values that a block adds at least, and the most parts that a channel is cut into.
constexpr i64 kPartValues = 4096, kMostBiasParts = 256;

// parts[part, channel] = a part of the sum over outer and inner. kAcross channels a block: 32 where
// channels are neighbours in memory, else 1.
template <class T, int kAcross>
__global__ void __launch_bounds__(kThreads)
    bias_kernel(i64 outer, i64 channels, i64 inner, i64 part_values, i64 items,
                const T* __restrict__ dy, Accumulate<T>* __restrict__ parts, Format<T> format) {
    using Sum = Accumulate<T>;
    constexpr int kDown = kThreads / kAcross;
    FUSEDNN_SHARED(Sum[kThreads], sums);
    const int lane = int(threadIdx.x) % kAcross, row = int(threadIdx.x) / kAcross;
    const i64 tiles = (channels + kAcross - 1) / kAcross, values = outer * inner;
    for (i64 item = blockIdx.x; item < items; item += gridDim.x) {
        const i64 part = item / tiles, channel = item % tiles * kAcross + lane;
        const i64 first = part * part_values + row;
        const i64 last = part * part_values + part_values;
        Sum sum = Sum(0);
        if (channel < channels) {
            i64 o = first / inner, i = first % inner;
            for (i64 v = first; v < last && v < values; v += kDown) {
                sum += format.widen(dy[(o * channels + channel) * inner + i]);
                i += kDown;
                if (i >= inner) {  // once at most, unless lines are shorter than the step
                    o += i / inner;
                    i %= inner;
                }
            }
        }
        sums[threadIdx.x] = sum;
        __syncthreads();
        for (int half = kDown / 2; half > 0; half /= 2) {
            if (row < half) sums[threadIdx.x] += sums[threadIdx.x + half * kAcross];
            __syncthreads();
        }
        if (row == 0 && channel < channels) parts[part * channels + channel] = sums[threadIdx.x];
        __syncthreads();
    }
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    bias_parts(i64 channels, i64 count, const Accumulate<T>* __restrict__ parts, T* __restrict__ db,
               Format<T> format) {
    const i64 step = i64(gridDim.x) * blockDim.x;
    for (i64 c = i64(blockIdx.x) * blockDim.x + threadIdx.x; c < channels; c += step) {
        Accumulate<T> sum = Accumulate<T>(0);
        for (i64 part = 0; part < count; ++part) sum += parts[part * channels + c];
        db[c] = format.narrow(sum);
    }
}

template <class T, int kAcross>
void sum_channels(i64 outer, i64 channels, i64 inner, const T* dy, T* db) {
    const i64 tiles = tiles_of(channels, kAcross), values = outer * inner;
    i64 count = tiles_of(values * kAcross, kPartValues);
    const i64 wanted = tiles_of(4 * kFullGrid, tiles);
    count = count < wanted ? count : wanted;
    count = count < 1 ? 1 : count < kMostBiasParts ? count : kMostBiasParts;
    const i64 part_values = tiles_of(values, count);
    using Sum = Accumulate<T>;
    constexpr auto format = StorageOf<T>::format();
    // Sums of 16-bit floats are made and joined in float, even if there is but one part.
    const bool in_place = count == 1 && std::is_same_v<T, Sum>;
    Workspace<Sum> parts(in_place ? 0 : count * channels);
    Sum* sums = in_place ? reinterpret_cast<Sum*>(db) : parts.get();
    launch("bias_grad", {blocks_for(tiles * count, 1), kThreads}, bias_kernel<Storage<T>, kAcross>,
           outer, channels, inner, part_values, tiles * count, storage(dy), sums, format);
    if (!in_place) {
        launch("bias_parts", {blocks_for(channels, kThreads), kThreads}, bias_parts<Storage<T>>,
               channels, count, static_cast<const Sum*>(sums), storage(db), format);
    }
}

}  // namespace

template <class T>
void conv_backward_weight(const ConvParams& p, const T* x, const T* dy, T* dw) {
    if (is_depthwise(p)) return depthwise_backward_weight(p, x, dy, dw);
    FUSEDNN_BY_SIZE(T, p, backward, x, dy, dw);
}

template <class T>
void bias_grad(i64 outer, i64 channels, i64 inner, const T* dy, T* db) {
    if (channels == 0) return;
    const i64 line = inner > 0 ? inner : 1;  // without values: sums of nothing
    const i64 lines = inner > 0 ? outer : 0;
    line < 32 ? sum_channels<T, 32>(lines, channels, line, dy, db)
              : sum_channels<T, 1>(lines, channels, line, dy, db);
}

#define FUSEDNN_CONV_WEIGHT(T)                                                        \
    template void conv_backward_weight<T>(const ConvParams&, const T*, const T*, T*); \
    template void bias_grad<T>(i64, i64, i64, const T*, T*);
FUSEDNN_INSTANTIATE(FUSEDNN_CONV_WEIGHT)
FUSEDNN_INSTANTIATE_HALF(FUSEDNN_CONV_WEIGHT)

}  // namespace fusednn::cuda
