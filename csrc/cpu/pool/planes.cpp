// Maxima over listed windows, and moving values to or from listed positions of a plane.
#include "cpu/kernels.h"
#include "cpu/softmax.h"

namespace fusednn {
namespace FUSEDNN_ISA {

// x (planes, D, H, W) -> y, indices (planes, OD, OH, OW): the first maximum in row-major order, or
// the last NaN, and its position in the plane.
template <class T>
void adaptive_max_pool(const AvgPoolParams& p, const T* x, T* y, i64* indices) {
    const i64 in = p.in_size[0] * p.in_size[1] * p.in_size[2];
    const i64 out = p.out_size[0] * p.out_size[1] * p.out_size[2];
    for_row_blocks(p.planes, (in + out) / 4 + 1, [&](i64 begin, i64 end) {
        for (i64 plane = begin; plane < end; ++plane) {
            const T* from = x + plane * in;
            for (i64 o = 0; o < out; ++o) {
                const i64 w = o % p.out_size[2], h = o / p.out_size[2] % p.out_size[1];
                const i64 d = o / p.out_size[2] / p.out_size[1];
                T best = -T(__builtin_inf());
                i64 at = -1;
                for (i64 i = p.begin[0][d]; i < p.end[0][d]; ++i) {
                    for (i64 j = p.begin[1][h]; j < p.end[1][h]; ++j) {
                        const i64 row = (i * p.in_size[1] + j) * p.in_size[2];
                        for (i64 k = p.begin[2][w]; k < p.end[2][w]; ++k) {
                            const T v = from[row + k];
                            if (v > best || v != v || at < 0) best = v, at = row + k;
                        }
                    }
                }
                y[plane * out + o] = best;
                indices[plane * out + o] = at;
            }
        }
    });
}

// x, indices (planes, count); y (planes, size).
template <class T>
void scatter_planes(i64 planes, i64 count, i64 size, bool add, const T* x, const i64* indices,
                    T* y) {
    for_row_blocks(planes, (count + size) / 4 + 1, [&](i64 begin, i64 end) {
        for (i64 plane = begin; plane < end; ++plane) {
            T* to = y + plane * size;
            __builtin_memset(to, 0, std::size_t(size) * sizeof(T));
            for (i64 i = plane * count; i < (plane + 1) * count; ++i) {
                to[indices[i]] = add ? to[indices[i]] + x[i] : x[i];
            }
        }
    });
}

// x (planes, size); y, indices (planes, count).
template <class T>
void gather_planes(i64 planes, i64 count, i64 size, const T* x, const i64* indices, T* y) {
    for_row_blocks(planes, (count + size) / 4 + 1, [&](i64 begin, i64 end) {
        for (i64 plane = begin; plane < end; ++plane) {
            const T* from = x + plane * size;
            for (i64 i = plane * count; i < (plane + 1) * count; ++i) y[i] = from[indices[i]];
        }
    });
}

#define FUSEDNN_PLANES(T)                                                           \
    template void adaptive_max_pool<T>(const AvgPoolParams&, const T*, T*, i64*);   \
    template void scatter_planes<T>(i64, i64, i64, bool, const T*, const i64*, T*); \
    template void gather_planes<T>(i64, i64, i64, const T*, const i64*, T*);
FUSEDNN_INSTANTIATE(FUSEDNN_PLANES)

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
