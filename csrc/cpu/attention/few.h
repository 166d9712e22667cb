// Few queries against many keys, as in a step of generation: every key and value is read once, in
// place, and memory is the limit. Rows of queries (up to kFewRows of a head) share what is read.
#pragma once
#include "cpu/attention/scores.h"

namespace fusednn {
namespace FUSEDNN_ISA {

constexpr int kFewRows = 4;
// Keys of a block: their values come from memory while the keys are still in use.
constexpr i64 kFewKeys = 256;
constexpr i64 kFewStride = kFewKeys + 16;

// Lines further on that are asked for ahead of time: memory answers after the time of so many.
constexpr i64 kAhead = 16 * 64;

template <class T>
FUSEDNN_INLINE void prefetch(const T* p) {
    __builtin_prefetch(reinterpret_cast<const char*>(p) + kAhead);
}

// dst[r * dst_stride + j] = <a_r, b_j> * factor for R rows a and the rows [begin, end) of b; begin
// is a multiple of the lanes, and whole vectors are written.
template <int R, class T>
inline void dot_rows(i64 dim, const T* a, i64 a_stride, const Rows<T>& b, i64 begin, i64 end,
                     T factor, T* dst, i64 dst_stride) {
    constexpr int lanes = kLanes<T>;
    for (i64 j = begin; j < end; j += lanes) {
        Vec<T> sums[R][lanes];
        for (int lane = 0; lane < lanes; ++lane) {
            const T* row = b[min_of(j + lane, end - 1)];
            Vec<T> sum[R] = {};
            i64 at = 0;
            for (; at + lanes <= dim; at += lanes) {
                prefetch(row + at);
                const Vec<T> x = load(row + at);
#pragma GCC unroll 4
                for (int r = 0; r < R; ++r) {
                    sum[r] = multiply_add(load(a + r * a_stride + at), x, sum[r]);
                }
            }
            if (at < dim) {
                const Vec<T> x = load_partial(row + at, dim - at);
                for (int r = 0; r < R; ++r) {
                    const Vec<T> y = load_partial(a + r * a_stride + at, dim - at);
                    sum[r] = multiply_add(y, x, sum[r]);
                }
            }
            for (int r = 0; r < R; ++r) sums[r][lane] = sum[r];
        }
        for (int r = 0; r < R; ++r) {
            store(dst + r * dst_stride + j, sum_each<T>(sums[r]) * factor);
        }
    }
}

// c_r += sum of w[r * w_stride + j] b_j over the rows [begin, end) of b. careful: rows of weight
// 0 are not touched.
template <int R, class T>
inline void add_weighted(i64 dim, const T* w, i64 w_stride, const Rows<T>& b, i64 begin, i64 end,
                         bool careful, T* c, i64 c_stride) {
    constexpr int lanes = kLanes<T>, vecs = 4;
    for (i64 col = 0; col < dim; col += vecs * lanes) {
        const i64 cols = min_of(dim - col, i64(vecs * lanes));
        const auto part = [&](const T* p, int v) {
            const i64 left = cols - v * lanes;
            return left >= lanes ? load(p + v * lanes)
                   : left > 0    ? load_partial(p + v * lanes, left)
                                 : Vec<T>{};
        };
        Vec<T> sum[R][vecs];
        for (int r = 0; r < R; ++r) {
            for (int v = 0; v < vecs; ++v) sum[r][v] = part(c + r * c_stride + col, v);
        }
        const auto add = [&](i64 j, int r, const Vec<T>(&x)[vecs]) {
            const Vec<T> weight = broadcast(w[r * w_stride + j]);
#pragma GCC unroll 4
            for (int v = 0; v < vecs; ++v) sum[r][v] = multiply_add(weight, x[v], sum[r][v]);
        };
        for (i64 j = begin; j < end; ++j) {
            const T* row = b[j] + col;
            Vec<T> x[vecs];
            if (cols == vecs * lanes) {
#pragma GCC unroll 4
                for (int v = 0; v < vecs; ++v) {
                    prefetch(row + v * lanes);
                    x[v] = load(row + v * lanes);
                }
            } else {
#pragma GCC unroll 4
                for (int v = 0; v < vecs; ++v) x[v] = part(row, v);
            }
#pragma GCC unroll 4
            for (int r = 0; r < R; ++r) {
                if (!careful || w[r * w_stride + j] != T(0)) add(j, r, x);
            }
        }
        for (int r = 0; r < R; ++r) {
            T* out = c + r * c_stride + col;
            for (int v = 0; v < vecs && v * lanes < cols; ++v) {
                store_partial(out + v * lanes, sum[r][v], min_of(cols - v * lanes, i64(lanes)));
            }
        }
    }
}

// c_j (+)= sum over r of w[r * w_stride + j] a_r for the rows [0, count) of c. careful: as above.
template <int R, class T>
inline void add_outer(i64 dim, const T* w, i64 w_stride, const Rows<T>& a, i64 count,
                      bool accumulate, bool careful, T* c, i64 c_stride) {
    constexpr int lanes = kLanes<T>;
    for (i64 j = 0; j < count; ++j) {
        T* out = c + j * c_stride;
        Vec<T> weight[R];
        for (int r = 0; r < R; ++r) weight[r] = broadcast(w[r * w_stride + j]);
        const auto column = [&](i64 at, const auto& read, const auto& write) {
            Vec<T> sum = accumulate ? read(out + at) : Vec<T>{};
            for (int r = 0; r < R; ++r) {
                if (careful && weight[r][0] == T(0)) continue;
                sum = multiply_add(weight[r], read(a[r] + at), sum);
            }
            write(out + at, sum);
        };
        i64 at = 0;
        for (; at + lanes <= dim; at += lanes) {
            column(at, [](const T* p) { return load(p); }, [](T* p, Vec<T> v) { store(p, v); });
        }
        if (at < dim) {
            column(
                at, [&](const T* p) { return load_partial(p, dim - at); },
                [&](T* p, Vec<T> v) { store_partial(p, v, dim - at); });
        }
    }
}

// Calls body with the number of rows (1 to kFewRows) as a constant.
template <int R>
struct RowCount {
    static constexpr int value = R;
};
template <class Body>
FUSEDNN_INLINE void with_rows(i64 rows, const Body& body) {
    switch (rows) {
        case 1:
            return body(RowCount<1>{});
        case 2:
            return body(RowCount<2>{});
        case 3:
            return body(RowCount<3>{});
        default:
            return body(RowCount<4>{});
    }
}

template <class T>
FUSEDNN_INLINE bool few_queries(const AttentionParams<T>& p) {
    return p.queries <= kFewRows;
}

template <class T>
void few_forward(const AttentionParams<T>& p, const HeadArray<T>& output, T* stats);

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
