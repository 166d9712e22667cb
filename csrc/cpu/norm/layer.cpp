// layer_norm and rms_norm: every row of (rows, size) for itself.
// x, y, dy, dx (rows, size); weight, bias, dw, db (size); stats (3, rows): mean, low, rstd.
//
//   forward   1. mean and variance (rms: the mean of the squares)   2. y
//   backward  1. sums of g and g * xhat with g = dy * weight
//             2. dx, and the block's share of dw and db   3. the shares added, block by block
//
// with xhat = (x - mean) * rstd, dx = rstd * (g - mean(g) - xhat * mean(g * xhat)); rms_norm has no
// mean(g). Ba, Kiros, Hinton, "Layer normalization", 2016; Zhang, Sennrich, "Root mean square layer
// normalization", NeurIPS 2019.
#include "cpu/kernels.h"
#include "cpu/norm/norm.h"

namespace fusednn {
namespace FUSEDNN_ISA {

namespace {

constexpr i64 kPassCost = 8;  // operations an element costs, all passes together

template <class T>
FUSEDNN_INLINE Moments<T> moments_of(bool rms, i64 size, const T* x) {
    if (!rms) return row_moments(size, x);
    double square[1];
    row_sums<1, T>(size, square, [=](i64 k, auto load_at, Vec<T>(&v)[1]) {
        const Vec<T> one = load_at(x + k);
        v[0] = one * one;
    });
    return {T(0), T(0), square[0] / double(size)};
}

template <class T>
FUSEDNN_INLINE void normalize_row(i64 size, const T* x, T mean, T low, T rstd, const T* weight,
                                  const T* bias, T* y) {
    const Vec<T> m = broadcast(mean), l = broadcast(low), r = broadcast(rstd);
    for_row_vectors<T>(size, [=](i64 k, auto load_at, auto store_at) {
        Vec<T> v = (load_at(x + k) - m - l) * r;
        if (weight) v = v * load_at(weight + k);
        if (bias) v = v + load_at(bias + k);
        store_at(y + k, v);
    });
}

// Rows a block of backward takes: its share of dw and db must not cost more than its rows do, and
// there are at most 64 shares.
FUSEDNN_INLINE i64 block_rows(i64 rows, i64 size) {
    return max_of(ceil_div(rows, 64), max_of(i64(16384) / max_of(size, i64(1)), i64(4)));
}

// One row of backward, passes 1 and 2; dw and db are this block's.
template <class T>
FUSEDNN_INLINE void backward_row(bool rms, i64 size, const T* dy, const T* x, const T* weight,
                                 T mean, T low, T rstd, T* dx, T* dw, T* db) {
    const Vec<T> m = broadcast(mean), l = broadcast(low), r = broadcast(rstd);
    double sum[2];
    row_sums<2, T>(size, sum, [=](i64 k, auto load_at, Vec<T>(&v)[2]) {
        v[0] = load_at(dy + k);
        if (weight) v[0] = v[0] * load_at(weight + k);
        v[1] = v[0] * ((load_at(x + k) - m - l) * r);
    });
    const Vec<T> mean_g = broadcast(rms ? T(0) : T(sum[0] / double(size)));
    const Vec<T> mean_gx = broadcast(T(sum[1] / double(size)));
    for_row_vectors<T>(size, [=](i64 k, auto load_at, auto store_at) {
        const Vec<T> grad = load_at(dy + k), xhat = (load_at(x + k) - m - l) * r;
        const Vec<T> g = weight ? grad * load_at(weight + k) : grad;
        store_at(dx + k, (g - mean_g - xhat * mean_gx) * r);
        if (dw) store_at(dw + k, load_at(dw + k) + grad * xhat);
        if (db) store_at(db + k, load_at(db + k) + grad);
    });
}

}  // namespace

template <class T>
void layer_norm_forward(const LayerNormParams& p, const T* x, const T* residual, const T* weight,
                        const T* bias, T* sum, T* y, T* stats) {
    for_row_blocks(p.rows, p.size * kPassCost / kExpCost + 1, [&](i64 begin, i64 end) {
        for (i64 row = begin; row < end; ++row) {
            const T* in = x + row * p.size;
            if (residual) {
                const T *a = in, *b = residual + row * p.size;
                T* to = sum + row * p.size;
                for_row_vectors<T>(p.size, [=](i64 k, auto load_at, auto store_at) {
                    store_at(to + k, load_at(a + k) + load_at(b + k));
                });
                in = to;
            }
            const Moments<T> found = moments_of(p.rms, p.size, in);
            const T rstd = reciprocal_root<T>(found.variance, p.eps);
            stats[row] = found.mean;
            stats[p.rows + row] = found.low;
            stats[2 * p.rows + row] = rstd;
            normalize_row(p.size, in, found.mean, found.low, rstd, weight, bias, y + row * p.size);
        }
    });
}

template <class T>
void layer_norm_backward(const LayerNormParams& p, const T* dy, const T* x, const T* weight,
                         const T* stats, T* dx, T* dw, T* db) {
    const i64 each = block_rows(p.rows, p.size), tasks = ceil_div(p.rows, each);
    const i64 shares = dw || db ? tasks * p.size : 0;
    Workspace<T> memory(2 * shares + 1);
    T* const share_w = dw ? memory.get() : nullptr;
    T* const share_b = db ? memory.get() + shares : nullptr;
    parallel(tasks, parallel_slots(tasks, p.rows * p.size * kPassCost), [&](i64 task, int) {
        T* block_w = share_w ? share_w + task * p.size : nullptr;
        T* block_b = share_b ? share_b + task * p.size : nullptr;
        if (block_w) __builtin_memset(block_w, 0, std::size_t(p.size) * sizeof(T));
        if (block_b) __builtin_memset(block_b, 0, std::size_t(p.size) * sizeof(T));
        for (i64 row = task * each; row < min_of((task + 1) * each, p.rows); ++row) {
            backward_row(p.rms, p.size, dy + row * p.size, x + row * p.size, weight, stats[row],
                         stats[p.rows + row], stats[2 * p.rows + row], dx + row * p.size, block_w,
                         block_b);
        }
    });
    if (dw) add_rows(tasks, p.size, share_w, dw);
    if (db) add_rows(tasks, p.size, share_b, db);
}

#define FUSEDNN_LAYER_NORM(T)                                                                  \
    template void layer_norm_forward<T>(const LayerNormParams&, const T*, const T*, const T*,  \
                                        const T*, T*, T*, T*);                                 \
    template void layer_norm_backward<T>(const LayerNormParams&, const T*, const T*, const T*, \
                                         const T*, T*, T*, T*);
FUSEDNN_INSTANTIATE(FUSEDNN_LAYER_NORM)

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
