// bfloat16 weights (rows, k), as modules hold them: packed in pairs, read where they lie, widened.
#pragma once
#include "cpu/bf16.h"
#include "cpu/kernels.h"

namespace fusednn {
namespace FUSEDNN_ISA {

// c (m, n) = a b^T + bias for few rows of a (m, k), b (n, k) bfloat16 and read once for four of
// them; bias may be null. T is float.
template <class T>
void dot_bf16(i64 m, i64 n, i64 k, const T* a, i64 a_row, const BFloat16* b, const T* bias, T* c,
              i64 ldc, bool accumulate);

// to = the floats that `from` are. T is float.
template <class T>
void widen_bf16(i64 count, const BFloat16* from, T* to);

// A panel of `cols` rows of b for tiles of kVecs vectors: for each k, kVecs / 2 vectors of pairs,
// each of neighbouring vectors' lanes. What lies beyond `cols` becomes 0. T is float.
template <class T, int kVecs>
void pack_pairs(i64 k, i64 cols, const BFloat16* b, T* dst) {
    if constexpr (sizeof(T) == sizeof(float)) {
        constexpr int lanes = kLanes<T>;
        const auto row = [&](i64 col, i64 p, i64 count) {
            if (col >= cols) return WordVec{};
            if (count == lanes) return load_halves(b + col * k + p);
            BFloat16 rest[lanes] = {};
            __builtin_memcpy(rest, b + col * k + p, std::size_t(count) * sizeof(BFloat16));
            return load_halves(rest);
        };
        for (i64 p = 0; p < k; p += lanes) {
            const i64 count = min_of(k - p, i64(lanes));
            for (int v = 0; v < kVecs; v += 2) {
                Vec<T> block[lanes];
#pragma GCC unroll 16
                for (int j = 0; j < lanes; ++j) {
                    const i64 col = v * lanes + j;
                    block[j] = pair_of(row(col, p, count), row(col + lanes, p, count));
                }
                transpose<T>(block);
                for (i64 j = 0; j < count; ++j) {
                    store(dst + ((p + j) * kVecs + v) / 2 * lanes, block[j]);
                }
            }
        }
    }
}

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
