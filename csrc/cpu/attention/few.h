// Few queries against many keys, as in a step of generation: every key and value is read once, in
// place, and memory is the limit. Rows of queries (up to kFewRows of a head) share what is read.
//
// T: what is computed in. E: what keys and values are stored in, T or half of a float.
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

// How columns are read from memory: kSpan of them at a time, to kSpan / lanes vectors. From halves
// of floats these are the even columns and the odd ones, which takes a shift and a mask instead of
// shuffles; queries and sums of values stand in the same order (`place`).
template <class T, class E>
struct Columns {
    static constexpr int vecs = 1, span = kLanes<T>;
    static FUSEDNN_INLINE i64 place(i64 column) { return column; }
    static FUSEDNN_INLINE void read(const E* p, Vec<T>* v) { v[0] = load(p); }
    static FUSEDNN_INLINE void read_partial(const E* p, i64 n, Vec<T>* v) {
        v[0] = load_partial(p, n);
    }
};

template <class T>
struct Columns<T, BFloat16> {
    static constexpr int vecs = 2, span = 2 * kLanes<T>;
    static FUSEDNN_INLINE i64 place(i64 column) {
        const i64 in = column % span;
        return column - in + in % 2 * kLanes<T> + in / 2;
    }
    static FUSEDNN_INLINE void read(const BFloat16* p, Vec<T>* v) {
        typedef std::uint32_t bits __attribute__((vector_size(kVectorBytes)));
        typedef std::uint32_t loose
            __attribute__((vector_size(kVectorBytes), aligned(2), may_alias));
        const bits pairs = *reinterpret_cast<const loose*>(p);
        v[0] = (Vec<T>)(pairs << 16);
        v[1] = (Vec<T>)(pairs & 0xffff0000u);
    }
    static FUSEDNN_INLINE void read_partial(const BFloat16* p, i64 n, Vec<T>* v) {
        BFloat16 part[span] = {};
        __builtin_memcpy(part, p, std::size_t(n) * sizeof(BFloat16));
        read(part, v);
    }
};

template <class E>
FUSEDNN_INLINE void prefetch(const E* p) {
    __builtin_prefetch(reinterpret_cast<const char*>(p) + kAhead);
}

namespace detail {

// Dot products of R rows a with 4 rows of b (fewer: the last one again), lane by lane. Rows of a
// are filled up with 0 to whole spans.
template <int R, class T, class E>
FUSEDNN_INLINE void dot_four(i64 dim, const T* a, i64 a_stride, const E* const (&b)[4],
                             Vec<T> (&sum)[R][4]) {
    using In = Columns<T, E>;
    constexpr int lanes = kLanes<T>, vecs = In::vecs;
    const auto add = [&](i64 at, const Vec<T>(&x)[4][vecs]) {
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
            for (int v = 0; v < vecs; ++v) {
                const Vec<T> y = load(a + r * a_stride + at + v * lanes);
#pragma GCC unroll 4
                for (int j = 0; j < 4; ++j) sum[r][j] = multiply_add(y, x[j][v], sum[r][j]);
            }
        }
    };
    Vec<T> x[4][vecs];
    i64 at = 0;
    for (; at + In::span <= dim; at += In::span) {
#pragma GCC unroll 4
        for (int j = 0; j < 4; ++j) {
            prefetch(b[j] + at);
            In::read(b[j] + at, x[j]);
        }
        add(at, x);
    }
    if (at == dim) return;
    for (int j = 0; j < 4; ++j) In::read_partial(b[j] + at, dim - at, x[j]);
    add(at, x);
}

}  // namespace detail

// dst[r * dst_stride + j] = <a_r, b_j> * factor for R rows a and the rows [begin, end) of b; begin
// is a multiple of the lanes, and whole vectors are written.
template <int R, class T, class E>
inline void dot_rows(i64 dim, const T* a, i64 a_stride, const Rows<E>& b, i64 begin, i64 end,
                     T factor, T* dst, i64 dst_stride) {
    constexpr int lanes = kLanes<T>, step = lanes < 4 ? lanes : 4;
    for (i64 j = begin; j < end; j += lanes) {
        Vec<T> sums[R][lanes];
        for (int lane = 0; lane < lanes; lane += step) {
            const E* rows[4];
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
template <int R, bool kCareful, class T, class E>
FUSEDNN_INLINE void add_columns(i64 cols, const T* w, i64 w_stride, const Rows<E>& b, i64 begin,
                                i64 end, T* c, i64 c_stride) {
    using In = Columns<T, E>;
    constexpr int lanes = kLanes<T>, vecs = 4;
    const bool whole = cols == vecs * lanes;
    // Sums in an order of their own come in whole spans.
    const i64 sums = In::vecs == 1 ? cols : round_up(cols, In::span);
    const int used = int(ceil_div(sums, lanes));
    Vec<T> sum[R][vecs];
    for (int r = 0; r < R; ++r) {
        for (int v = 0; v < vecs; ++v) {
            const i64 left = min_of(sums - v * lanes, i64(lanes));
            sum[r][v] = left > 0 ? load_partial(c + r * c_stride + v * lanes, left) : Vec<T>{};
        }
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
            for (int v = 0; v < vecs; v += In::vecs) {
                prefetch(b[j] + v * lanes);
                In::read(b[j] + v * lanes, x + v);
            }
            add(j, x);
        }
    } else {
        for (i64 j = begin; j < end; ++j) {
            Vec<T> x[vecs] = {};
            for (int v = 0; v < used; v += In::vecs) {
                const i64 left = cols - v * lanes;
                if (left >= In::span) {
                    In::read(b[j] + v * lanes, x + v);
                } else {
                    In::read_partial(b[j] + v * lanes, left, x + v);
                }
            }
            add(j, x);
        }
    }
    for (int r = 0; r < R; ++r) {
        for (int v = 0; v < used; ++v) {
            store_partial(c + r * c_stride + v * lanes, sum[r][v],
                          min_of(sums - v * lanes, i64(lanes)));
        }
    }
}

}  // namespace detail

// c_r += sum of w[r * w_stride + j] b_j over the rows [begin, end) of b. careful: rows of weight 0
// are not touched.
template <int R, class T, class E>
inline void add_weighted(i64 dim, const T* w, i64 w_stride, const Rows<E>& b, i64 begin, i64 end,
                         bool careful, T* c, i64 c_stride) {
    constexpr i64 step = 4 * kLanes<T>;
    for (i64 col = 0; col < dim; col += step) {
        const i64 cols = min_of(dim - col, step);
        const Rows<E> part{b.data + col, b.stride};
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
