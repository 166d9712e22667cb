#include "cpu/attention/product.h"

#include "cpu/kernels.h"

namespace fusednn {
namespace FUSEDNN_ISA {

namespace {

template <class T, int R, int V, Layout kLayout>
void product_tile(i64 k, const T* __restrict a, i64 a_stride, const T* __restrict b, i64 b_stride,
                  const ProductOutput<T>& out) {
    constexpr int lanes = kLanes<T>;
    Vec<T> sum[R][V];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
        for (int v = 0; v < V; ++v) sum[r][v] = Vec<T>{};
    }
    for (i64 p = 0; p < k; ++p) {
        Vec<T> row[V];
#pragma GCC unroll 2
        for (int v = 0; v < V; ++v) row[v] = load(b + v * lanes);
        b += b_stride;
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
            const Vec<T> x = broadcast(kLayout == Layout::columns ? a[r] : a[r * a_stride]);
#pragma GCC unroll 2
            for (int v = 0; v < V; ++v) sum[r][v] = multiply_add(x, row[v], sum[r][v]);
        }
        a += kLayout == Layout::columns ? a_stride : 1;
    }

    const i64 tail = out.cols - (V - 1) * lanes;  // columns in the last vector
    // Scores, and sums over all keys at once: short products feel every branch below.
    if (tail == lanes && !out.add) {
        if (out.factor) {
#pragma GCC unroll 16
            for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
                for (int v = 0; v < V; ++v) sum[r][v] *= broadcast(out.factor[r]);
            }
        }
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
            for (int v = 0; v < V; ++v) store(out.c + r * out.ldc + v * lanes, sum[r][v]);
        }
        return;
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
        T* c = out.c + r * out.ldc;
        const T* add = out.add + r * out.ld_add;
        const Vec<T> decay = broadcast(out.decay ? out.decay[r] : T(1));
        const Vec<T> factor = broadcast(out.factor ? out.factor[r] : T(1));
#pragma GCC unroll 2
        for (int v = 0; v < V; ++v) {
            const bool whole = v < V - 1 || tail == lanes;
            Vec<T> x = sum[r][v];
            if (out.add) {
                const Vec<T> before =
                    whole ? load(add + v * lanes) : load_partial(add + v * lanes, tail);
                x = multiply_add(before, decay, x);
            }
            if (out.factor) x *= factor;
            if (whole) {
                store(c + v * lanes, x);
            } else {
                store_partial(c + v * lanes, x, tail);
            }
        }
    }
}

template <class T>
struct ProductTable {
    ProductFn<T> entry[kTileRows][kTileVecs][2];
};

template <class T, int R>
constexpr void fill(ProductTable<T>& table) {
    table.entry[R - 1][0][0] = product_tile<T, R, 1, Layout::rows>;
    table.entry[R - 1][0][1] = product_tile<T, R, 1, Layout::columns>;
    table.entry[R - 1][1][0] = product_tile<T, R, 2, Layout::rows>;
    table.entry[R - 1][1][1] = product_tile<T, R, 2, Layout::columns>;
    if constexpr (R > 1) fill<T, R - 1>(table);
}

template <class T>
constexpr ProductTable<T> make_table() {
    ProductTable<T> table{};
    fill<T, kTileRows>(table);
    return table;
}

template <class T>
constexpr ProductTable<T> products = make_table<T>();

}  // namespace

template <class T>
ProductFn<T> product_function(Layout layout, i64 rows, i64 cols) {
    return products<T>.entry[rows - 1][cols > kLanes<T>][int(layout)];
}

#define FUSEDNN_PRODUCT(T) template ProductFn<T> product_function<T>(Layout, i64, i64);
FUSEDNN_INSTANTIATE(FUSEDNN_PRODUCT)

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
