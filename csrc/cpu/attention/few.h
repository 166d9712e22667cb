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

namespace detail {

// Dot products of R rows a with 4 rows of b (fewer: the last one again), lane by lane.
template <int R, class T>
FUSEDNN_INLINE void dot_four(i64 dim, const T* a, i64 a_stride, const T* const (&b)[4],
                             Vec<T> (&sum)[R][4]) {
    constexpr int lanes = kLanes<T>;
    i64 at = 0;
    for (; at + lanes <= dim; at += lanes) {
        Vec<T> x[4];
#pragma GCC unroll 4
        for (int j = 0; j < 4; ++j) {
            prefetch(b[j] + at);
            x[j] = load(b[j] + at);
        }
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) {
            const Vec<T> y = load(a + r * a_stride + at);
#pragma GCC unroll 4
            for (int j = 0; j < 4; ++j) sum[r][j] = multiply_add(y, x[j], sum[r][j]);
        }
    }
    if (at == dim) return;
    for (int r = 0; r < R; ++r) {
        const Vec<T> y = load_partial(a + r * a_stride + at, dim - at);
        for (int j = 0; j < 4; ++j) {
            sum[r][j] = multiply_add(y, load_partial(b[j] + at, dim - at), sum[r][j]);
        }
    }
}

}  // namespace detail

// dst[r * dst_stride + j] = <a_r, b_j> * factor for R rows a and the rows [begin, end) of b; begin
// is a multiple of the lanes, and whole vectors are written.
template <int R, class T>
inline void dot_rows(i64 dim, const T* a, i64 a_stride, const Rows<T>& b, i64 begin, i64 end,
                     T factor, T* dst, i64 dst_stride) {
    constexpr int lanes = kLanes<T>, step = lanes < 4 ? lanes : 4;
    for (i64 j = begin; j < end; j += lanes) {
        Vec<T> sums[R][lanes];
        for (int lane = 0; lane < lanes; lane += step) {
            const T* rows[4];
            for (int i = 0; i < 4; ++i) rows[i] = b[min_of(j + lane + i, end - 1)];
            Vec<T> sum[R][4] = {};
            detail::dot_four<R>(dim, a, a_stride, rows, sum);
#pragma GCC unroll 4
            for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
                for (int i = 0; i < step; ++i) sums[r][lane + i] = sum[r][i];
            }
        }
        for (int r = 0; r < R; ++r) {
            store(dst + r * dst_stride + j, sum_each<T>(sums[r]) * factor);
        }
    }
}

namespace detail {

// Columns [0, cols) of add_weighted, up to 4 vectors of them, in registers.
template <int R, bool kCareful, class T>
FUSEDNN_INLINE void add_columns(i64 cols, const T* w, i64 w_stride, const Rows<T>& b, i64 begin,
                                i64 end, T* c, i64 c_stride) {
    constexpr int lanes = kLanes<T>, vecs = 4;
    const bool whole = cols == vecs * lanes;
    const auto part = [&](const T* p, int v) {
        const i64 left = cols - v * lanes;
        return left >= lanes ? load(p + v * lanes)
               : left > 0    ? load_partial(p + v * lanes, left)
                             : Vec<T>{};
    };
    Vec<T> sum[R][vecs];
    for (int r = 0; r < R; ++r) {
        for (int v = 0; v < vecs; ++v) sum[r][v] = part(c + r * c_stride, v);
    }
    const auto add = [&](i64 j, const Vec<T>(&x)[vecs]) {
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) {
            const T weight = w[r * w_stride + j];
            if (kCareful && weight == T(0)) continue;
            const Vec<T> factor = broadcast(weight);
#pragma GCC unroll 4
            for (int v = 0; v < vecs; ++v) sum[r][v] = multiply_add(factor, x[v], sum[r][v]);
        }
    };
    if (whole) {
        for (i64 j = begin; j < end; ++j) {
            Vec<T> x[vecs];
#pragma GCC unroll 4
            for (int v = 0; v < vecs; ++v) {
                prefetch(b[j] + v * lanes);
                x[v] = load(b[j] + v * lanes);
            }
            add(j, x);
        }
    } else {
        for (i64 j = begin; j < end; ++j) {
            Vec<T> x[vecs];
#pragma GCC unroll 4
            for (int v = 0; v < vecs; ++v) x[v] = part(b[j], v);
            add(j, x);
        }
    }
    for (int r = 0; r < R; ++r) {
        for (int v = 0; v < vecs && v * lanes < cols; ++v) {
            store_partial(c + r * c_stride + v * lanes, sum[r][v],
                          min_of(cols - v * lanes, i64(lanes)));
        }
    }
}

}  // namespace detail

// c_r += sum of w[r * w_stride + j] b_j over the rows [begin, end) of b. careful: rows of weight 0
// are not touched.
template <int R, class T>
inline void add_weighted(i64 dim, const T* w, i64 w_stride, const Rows<T>& b, i64 begin, i64 end,
                         bool careful, T* c, i64 c_stride) {
    constexpr i64 step = 4 * kLanes<T>;
    for (i64 col = 0; col < dim; col += step) {
        const i64 cols = min_of(dim - col, step);
        const Rows<T> part{b.data + col, b.stride};
        if (careful) {
            detail::add_columns<R, true>(cols, w, w_stride, part, begin, end, c + col, c_stride);
        } else {
            detail::add_columns<R, false>(cols, w, w_stride, part, begin, end, c + col, c_stride);
        }
    }
}

namespace detail {

template <int R, bool kAccumulate, bool kCareful, class T>
FUSEDNN_INLINE void add_outer(i64 dim, const T* w, i64 w_stride, const Rows<T>& a, i64 count, T* c,
                              i64 c_stride) {
    constexpr int lanes = kLanes<T>;
    for (i64 j = 0; j < count; ++j) {
        T* out = c + j * c_stride;
        Vec<T> weight[R];
        for (int r = 0; r < R; ++r) weight[r] = broadcast(w[r * w_stride + j]);
        const auto column = [&](i64 at, const auto& read, const auto& write) {
            Vec<T> sum = kAccumulate ? read(out + at) : Vec<T>{};
#pragma GCC unroll 4
            for (int r = 0; r < R; ++r) {
                if (kCareful && weight[r][0] == T(0)) continue;
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

}  // namespace detail

// c_j (+)= sum over r of w[r * w_stride + j] a_r for the rows [0, count) of c. careful: as above.
template <int R, class T>
inline void add_outer(i64 dim, const T* w, i64 w_stride, const Rows<T>& a, i64 count,
                      bool accumulate, bool careful, T* c, i64 c_stride) {
    if (careful) {
        if (accumulate) {
            detail::add_outer<R, true, true>(dim, w, w_stride, a, count, c, c_stride);
        } else {
            detail::add_outer<R, false, true>(dim, w, w_stride, a, count, c, c_stride);
        }
    } else if (accumulate) {
        detail::add_outer<R, true, false>(dim, w, w_stride, a, count, c, c_stride);
    } else {
        detail::add_outer<R, false, false>(dim, w, w_stride, a, count, c, c_stride);
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
