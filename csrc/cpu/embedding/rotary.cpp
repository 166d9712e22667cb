// Rotary position embedding: pairs (u, v) of a head turned by their position's angle,
//   u' = u cos - v sin,  v' = u sin + v cos.
// x, y (batch, heads, length, width) by strides, width contiguous; cos, sin (positions, rotated/2).
// Su et al., "RoFormer", Neurocomputing 568 (2024).
#include "cpu/kernels.h"
#include "cpu/softmax.h"

namespace fusednn {
namespace FUSEDNN_ISA {

namespace {

// Pairs (i, i + half).
template <class T>
FUSEDNN_INLINE void turn_halves(i64 half, T sign, const T* x, const T* cos, const T* sin, T* y) {
    const Vec<T> direction = broadcast(sign);
    for_row_vectors<T>(half, [=](i64 k, auto load_at, auto store_at) {
        const Vec<T> u = load_at(x + k), v = load_at(x + half + k);
        const Vec<T> c = load_at(cos + k), s = load_at(sin + k) * direction;
        store_at(y + k, u * c - v * s);
        store_at(y + half + k, u * s + v * c);
    });
}

// Pairs of neighbours.
template <class T>
FUSEDNN_INLINE void turn_pairs(i64 half, T sign, const T* x, const T* cos, const T* sin, T* y) {
    constexpr i64 lanes = kLanes<T>;
    i64 k = 0;
    for (; k + lanes <= half; k += lanes) {
        const Vec<T> a = load(x + 2 * k), b = load(x + 2 * k + lanes);
        const Vec<T> u = even_lanes<T>(a, b), v = odd_lanes<T>(a, b);
        const Vec<T> c = load(cos + k), s = load(sin + k) * sign;
        const Vec<T> first = u * c - v * s, second = u * s + v * c;
        store(y + 2 * k, interleave_low<T>(first, second));
        store(y + 2 * k + lanes, interleave_high<T>(first, second));
    }
    for (; k < half; ++k) {
        const T u = x[2 * k], v = x[2 * k + 1], s = sin[k] * sign;
        y[2 * k] = u * cos[k] - v * s;
        y[2 * k + 1] = u * s + v * cos[k];
    }
}

}  // namespace

template <class T>
void rotary(const RotaryParams& p, const T* x, const T* cos, const T* sin, const i64* rows, T* y) {
    const i64 half = p.rotated / 2, all = p.batch * p.heads * p.length;
    const T sign = p.inverse ? T(-1) : T(1);
    for_row_blocks(all, p.width / 4 + 1, [&](i64 begin, i64 end) {
        for (i64 i = begin; i < end; ++i) {
            const i64 t = i % p.length, head = i / p.length % p.heads, b = i / p.length / p.heads;
            const i64 at = b * p.batch_stride + head * p.head_stride + t * p.position_stride;
            const i64 angle = (rows ? rows[b * p.length + t] : b * p.length + t) * half;
            if (p.interleaved) {
                turn_pairs(half, sign, x + at, cos + angle, sin + angle, y + at);
            } else {
                turn_halves(half, sign, x + at, cos + angle, sin + angle, y + at);
            }
            __builtin_memcpy(y + at + p.rotated, x + at + p.rotated,
                             std::size_t(p.width - p.rotated) * sizeof(T));
        }
    });
}

#define FUSEDNN_ROTARY(T) \
    template void rotary<T>(const RotaryParams&, const T*, const T*, const T*, const i64*, T*);
FUSEDNN_INSTANTIATE(FUSEDNN_ROTARY)

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
