// Plain types shared by every layer. No inline functions with external linkage: this header is
// included by the per-ISA files, and a function emitted there could be linked into the baseline.
#pragma once
#include <cstddef>
#include <cstdint>

namespace fusednn {

using i64 = std::int64_t;

// Most dimensions an array argument may have: batch, channels, three spatial ones, and slack.
constexpr int kMaxDims = 8;

// 16-bit floats, as they lie in memory: the upper half of a float, and IEEE's binary16. Arrays of
// them are computed on GPUs only, in float; on the CPU some are read, widened where they are used.
struct BFloat16 {
    std::uint16_t bits;
};
struct Float16 {
    std::uint16_t bits;
};

// What sums, statistics and losses of arrays of T are made in: float for 16 bits, else T.
template <class T>
struct AccumulateOf {
    using Type = T;
};
template <>
struct AccumulateOf<BFloat16> {
    using Type = float;
};
template <>
struct AccumulateOf<Float16> {
    using Type = float;
};
template <class T>
using Accumulate = typename AccumulateOf<T>::Type;

enum class DType : int { f32, f64, bf16, f16 };
enum class Device : int { cpu, cuda };

// A read-only look at a C-contiguous array. Owns nothing.
struct ArrayView {
    const void* data;
    DType dtype;
    Device device;
    int ndim;
    i64 shape[kMaxDims];
};

}  // namespace fusednn
