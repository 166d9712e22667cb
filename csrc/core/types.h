// Plain types shared by every layer. No inline functions with external linkage: this header is
// included by the per-ISA files, and a function emitted there could be linked into the baseline.
#pragma once
#include <cstddef>
#include <cstdint>

namespace fusednn {

using i64 = std::int64_t;

// Most dimensions an array argument may have: batch, channels, three spatial ones, and slack.
constexpr int kMaxDims = 8;

// The upper half of a float. Only read, widened to float where it is used.
struct BFloat16 {
    std::uint16_t bits;
};

enum class DType : int { f32, f64, bf16 };
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
