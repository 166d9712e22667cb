// The one header that a kernel file includes (docs/cuda.md has the rules of such a file).
//
// Under nvcc it brings CUDA and the instructions of ptx.h; under a host compiler with
// FUSEDNN_EMULATE the emulator of tests/cuda/emulator, which has the same names. Kernels stand in
// namespace fusednn::cuda.
//
//   FUSEDNN_DEVICE                       in front of a device function
//   FUSEDNN_HOST_DEVICE                  in front of one that the host calls as well
//   FUSEDNN_SHARED(float[32][33], tile); declares shared memory
//   FUSEDNN_DYNAMIC_SHARED(Tiles, s);    names the launch's shared memory, a struct
//
// __shared__ itself is unknown to the emulator on purpose: it must know where every byte lies.
#pragma once
#include <cstdint>
#include <type_traits>

#if defined(FUSEDNN_EMULATE)

#include "emulator/cuda.h"
#define FUSEDNN_DEVICE inline
#define FUSEDNN_HOST_DEVICE inline
#define FUSEDNN_SHARED(type, name)                                                              \
    static const char fusednn_key_##name = 0;                                                   \
    auto& name = *static_cast<::fusednn::cuda::identity<type>*>(                                \
        ::emulator::static_shared(&fusednn_key_##name, sizeof(::fusednn::cuda::identity<type>), \
                                  alignof(::fusednn::cuda::identity<type>)))
#define FUSEDNN_DYNAMIC_SHARED(type, name) \
    type& name = *static_cast<type*>(::emulator::dynamic_shared(sizeof(type)))

#else

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#define FUSEDNN_DEVICE __device__ __forceinline__
#define FUSEDNN_HOST_DEVICE __host__ __device__ __forceinline__
#define FUSEDNN_SHARED(type, name) __shared__::fusednn::cuda::identity<type> name
#define FUSEDNN_DYNAMIC_SHARED(type, name)                            \
    extern __shared__ __align__(128) unsigned char fusednn_shared_[]; \
    type& name = *reinterpret_cast<type*>(fusednn_shared_)

#endif

#include "core/types.h"

namespace fusednn::cuda {

namespace detail {
template <class T>
struct Identity {
    using Type = T;
};
}  // namespace detail
// T. Lets a macro's argument be an array type: float[32][33] name is no declaration.
template <class T>
using identity = typename detail::Identity<T>::Type;

using bf16 = __nv_bfloat16;
using bf162 = __nv_bfloat162;

constexpr unsigned kAllLanes = 0xffffffffu;

}  // namespace fusednn::cuda

#if defined(FUSEDNN_EMULATE)
#include "emulator/ptx.h"
#else
#include "cuda/ptx.h"
#endif
#include "cuda/half.h"
#include "cuda/launch.h"
