// Casts between float and the 16-bit floats: x, y flat arrays of `size` elements.
#include "cuda/cast.h"

#include "cuda/elementwise.h"

namespace fusednn::cuda {

namespace {

constexpr int kHalves = Pack<HalfBits>::kSize, kFloats = Pack<float>::kSize;

// Eight elements a thread: 16 bytes of halves, twice 16 of floats.
__global__ void __launch_bounds__(kElementThreads, kElementBlocks)
    narrow_kernel(i64 size, bool packs, const float* __restrict__ x, HalfOut y) {
    const i64 whole = packs ? size / kHalves : 0, step = i64(gridDim.x) * blockDim.x;
    const i64 thread = i64(blockIdx.x) * blockDim.x + threadIdx.x;
    for (i64 i = thread; i < whole; i += step) {
        Wide<float, kHalves> value;
        for (int part = 0; part < kHalves; part += kFloats) {
            const auto v = load_wide<kFloats>(x + i * kHalves + part);
            for (int k = 0; k < kFloats; ++k) value.of[part + k] = v.of[k];
        }
        store_wide<kHalves>(y + i * kHalves, value);
    }
    for (i64 i = whole * kHalves + thread; i < size; i += step) y[i] = x[i];
}

__global__ void __launch_bounds__(kElementThreads, kElementBlocks)
    widen_kernel(i64 size, bool packs, HalfIn x, float* __restrict__ y) {
    const i64 whole = packs ? size / kHalves : 0, step = i64(gridDim.x) * blockDim.x;
    const i64 thread = i64(blockIdx.x) * blockDim.x + threadIdx.x;
    for (i64 i = thread; i < whole; i += step) {
        const auto value = load_wide<kHalves>(x + i * kHalves);
        for (int part = 0; part < kHalves; part += kFloats) {
            Wide<float, kFloats> v;
            for (int k = 0; k < kFloats; ++k) v.of[k] = value.of[part + k];
            store_wide<kFloats>(y + i * kHalves + part, v);
        }
    }
    for (i64 i = whole * kHalves + thread; i < size; i += step) y[i] = x[i];
}

}  // namespace

void cast(i64 size, DType from, const void* x, DType to, void* y) {
    const bool packs = detail::whole_packs(x) && detail::whole_packs(y);
    const LaunchShape shape{blocks_for(size, packs ? kElementThreads * kHalves : kElementThreads),
                            kElementThreads};
    if (from == DType::f32) {
        launch("cast", shape, narrow_kernel, size, packs, static_cast<const float*>(x),
               HalfOut{static_cast<HalfBits*>(y), {to == DType::bf16}});
    } else {
        launch("cast", shape, widen_kernel, size, packs,
               HalfIn{static_cast<const HalfBits*>(x), {from == DType::bf16}},
               static_cast<float*>(y));
    }
}

}  // namespace fusednn::cuda
