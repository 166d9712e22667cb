// Keys and values of one head in the order in which the products read them.
#pragma once
#include "cpu/attention/problem.h"
#include "cpu/attention/product.h"
#include "cpu/gemm/pack.h"
#include "cpu/vmath.h"

namespace fusednn {
namespace FUSEDNN_ISA {

FUSEDNN_INLINE float widened(float x) {
    return x;
}
FUSEDNN_INLINE double widened(double x) {
    return x;
}
FUSEDNN_INLINE float widened(BFloat16 x) {
    return bit_cast<float>(std::uint32_t(x.bits) << 16);
}

// Elements of `rows` rows packed as transposed panels.
template <class T>
FUSEDNN_INLINE i64 packed_size(i64 rows, i64 dim) {
    return round_up(rows, kTileCols<T>) * dim + kTileCols<T>;
}

// dst: panels of kTileCols rows, transposed: panel[i * kTileCols + j] = factor * rows[j][i]; rows
// that the last panel lacks are 0.
template <class T, class E>
inline void pack_transposed(const Rows<E>& rows, i64 count, i64 dim, T factor, T* dst) {
    constexpr int lanes = kLanes<T>;
    for (i64 row0 = 0; row0 < count; row0 += kTileCols<T>) {
        T* panel = dst + row0 * dim;
        for (int v = 0; v < kTileVecs; ++v, panel += lanes) {
            const i64 first = row0 + v * lanes;
            i64 i = 0;
            for (; i + lanes <= dim; i += lanes) {
                Vec<T> block[lanes];
#pragma GCC unroll 16
                for (int j = 0; j < lanes; ++j) {
                    block[j] =
                        first + j < count ? load_as<T>(rows[first + j] + i) * factor : Vec<T>{};
                }
                transpose<T>(block);
#pragma GCC unroll 16
                for (int j = 0; j < lanes; ++j) store(panel + (i + j) * kTileCols<T>, block[j]);
            }
            for (; i < dim; ++i) {
                for (int j = 0; j < lanes; ++j) {
                    panel[i * kTileCols<T> + j] =
                        first + j < count ? widened(rows[first + j][i]) * factor : T(0);
                }
            }
        }
    }
}

// Whether products may read these rows in place, whole vectors from row to row: else they are
// copied, and so are rows far apart, whose lines would fight for the same places in the caches.
template <class T>
FUSEDNN_INLINE bool is_dense(i64 stride, i64 dim) {
    return stride == dim && dim % kLanes<T> == 0;
}

template <class T>
FUSEDNN_INLINE i64 dense_size(i64 rows, i64 dim) {
    return rows * round_up(dim, kLanes<T>);
}

// A copy of the rows at dst, widened if need be, each filled up with 0.
template <class T, class E>
inline Rows<T> copy_rows(const Rows<E>& rows, i64 count, i64 dim, T* dst) {
    constexpr int lanes = kLanes<T>;
    const i64 stride = round_up(dim, lanes);
    for (i64 row = 0; row < count; ++row) {
        const E* from = rows[row];
        T* to = dst + row * stride;
        i64 at = 0;
        for (; at + lanes <= dim; at += lanes) store(to + at, load_as<T>(from + at));
        if (at < dim) store(to + at, load_partial_as<T>(from + at, dim - at));
    }
    return {dst, stride};
}

// The rows in place if they are dense, or such a copy.
template <class T>
inline Rows<T> dense_rows(const Rows<T>& rows, i64 count, i64 dim, T* dst) {
    return is_dense<T>(rows.stride, dim) ? rows : copy_rows(rows, count, dim, dst);
}
inline Rows<float> dense_rows(const Rows<BFloat16>& rows, i64 count, i64 dim, float* dst) {
    return copy_rows(rows, count, dim, dst);
}

// Whether `count` dense rows hold only numbers.
template <class T>
inline bool all_finite(const Rows<T>& rows, i64 count) {
    constexpr int lanes = kLanes<T>;
    // x * 0 is NaN for NaN and infinity, and sums keep that.
    Vec<T> sums[4] = {};
    const i64 size = count * rows.stride;
    i64 at = 0;
    for (; at + 4 * lanes <= size; at += 4 * lanes) {
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) sums[i] += load(rows.data + at + i * lanes) * T(0);
    }
    for (; at < size; at += lanes) sums[0] += load(rows.data + at) * T(0);
    const T sum = sum_lanes<T>((sums[0] + sums[1]) + (sums[2] + sums[3]));
    return sum == sum;
}

// C += A B for weights A of which some are 0 because nothing is to be seen there: those places of B
// are not touched, so that NaN and infinities in them do not matter. Only called where B has some.
template <class T>
inline void careful_product(Layout layout, i64 m, i64 n, i64 k, const T* a, i64 a_stride,
                            const T* b, i64 b_stride, const ProductOutput<T>& out) {
    for (i64 r = 0; r < m; ++r) {
        T* c = out.c + r * out.ldc;
        for (i64 col = 0; col < n; ++col) {
            T sum = 0;
            for (i64 q = 0; q < k; ++q) {
                const T weight = layout == Layout::rows ? a[r * a_stride + q] : a[q * a_stride + r];
                if (weight != T(0)) sum += weight * b[q * b_stride + col];
            }
            if (out.add) sum += out.add[r * out.ld_add + col] * (out.decay ? out.decay[r] : T(1));
            c[col] = out.factor ? sum * out.factor[r] : sum;
        }
    }
}

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
