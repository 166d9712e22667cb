#include "cpu/recurrent/product.h"

#include "cpu/gemm/pack.h"
#include "cpu/kernels.h"

namespace fusednn {
namespace FUSEDNN_ISA {

namespace {

// Up to this many rows, panels are kNarrowVecs wide: the accumulators of a row are then enough to
// hide the latency of a multiply-add, which the engine's two are not.
constexpr int kNarrowVecs = 4;
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr i64 kNarrowRows = 4;
#else
constexpr i64 kNarrowRows = 2;
#endif
// Packing reads and writes B once; so many products are made from where it lies.
constexpr i64 kUsesInPlace = 2;
// Rows of B in a block of k: 64 KB of a wide panel, half of which L1 holds.
constexpr i64 kStepDepth = 512;

// One tile: R rows, kNarrowVecs vectors of columns, `cols` of which exist. Even and odd k have sums
// of their own where registers allow: twice the multiply-adds in flight.
template <class T, int R>
void narrow_tile(i64 k, const T* __restrict a, i64 a_row, const T* __restrict b, T* c, i64 ldc,
                 i64 cols, bool accumulate) {
    constexpr int lanes = kLanes<T>;
    constexpr int chains = R * kNarrowVecs <= 8 && kNarrowRows * kNarrowVecs >= 8 ? 2 : 1;
    Vec<T> sum[chains][R][kNarrowVecs] = {};
    i64 p = 0;
    for (; p + chains <= k; p += chains) {
#pragma GCC unroll 2
        for (int s = 0; s < chains; ++s) {
#pragma GCC unroll 4
            for (int r = 0; r < R; ++r) {
                const Vec<T> x = broadcast(a[r * a_row + p + s]);
#pragma GCC unroll 4
                for (int v = 0; v < kNarrowVecs; ++v) {
                    const Vec<T> row = load(b + (s * kNarrowVecs + v) * lanes);
                    sum[s][r][v] = multiply_add(x, row, sum[s][r][v]);
                }
            }
        }
        b += chains * kNarrowVecs * lanes;
    }
    for (; p < k; ++p) {
        for (int r = 0; r < R; ++r) {
            const Vec<T> x = broadcast(a[r * a_row + p]);
#pragma GCC unroll 4
            for (int v = 0; v < kNarrowVecs; ++v) {
                sum[0][r][v] = multiply_add(x, load(b + v * lanes), sum[0][r][v]);
            }
        }
        b += kNarrowVecs * lanes;
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
        for (int v = 0; v < kNarrowVecs; ++v) {
            T* to = c + r * ldc + v * lanes;
            Vec<T> x = sum[0][r][v];
            if (chains == 2) x += sum[chains - 1][r][v];
            if (v * lanes + lanes <= cols) {
                if (accumulate) x += load(to);
                store(to, x);
            } else if (v * lanes < cols) {
                if (accumulate) x += load_partial(to, cols - v * lanes);
                store_partial(to, x, cols - v * lanes);
            }
        }
    }
}

template <class T>
void narrow_panel(i64 m, i64 k, const T* a, i64 a_row, const T* b, T* c, i64 ldc, i64 cols,
                  bool accumulate) {
    for (i64 row = 0; row < m; row += kNarrowRows) {
        const T* rows = a + row * a_row;
        T* to = c + row * ldc;
        switch (min_of(m - row, kNarrowRows)) {
            case 1:
                narrow_tile<T, 1>(k, rows, a_row, b, to, ldc, cols, accumulate);
                break;
            case 2:
                narrow_tile<T, 2>(k, rows, a_row, b, to, ldc, cols, accumulate);
                break;
            case 3:
                narrow_tile<T, 3>(k, rows, a_row, b, to, ldc, cols, accumulate);
                break;
            default:
                narrow_tile<T, 4>(k, rows, a_row, b, to, ldc, cols, accumulate);
        }
    }
}

// dst[p * width + j] = b[p * b_row + j * b_col]; columns from `cols` on become 0.
template <class T>
void pack_narrow(i64 k, i64 cols, const T* b, i64 b_row, i64 b_col, T* dst) {
    constexpr int lanes = kLanes<T>;
    constexpr i64 width = kNarrowVecs * lanes;
    i64 p = 0;
    if (b_col == 1) {
        for (; p < k; ++p) {
#pragma GCC unroll 4
            for (int v = 0; v < kNarrowVecs; ++v) {
                const i64 left = max_of(min_of(cols - v * lanes, i64(lanes)), i64(0));
                const T* from = b + p * b_row + v * lanes;
                store(dst + p * width + v * lanes,
                      left == lanes ? load(from) : load_partial(from, left));
            }
        }
    } else if (b_row == 1) {
        for (; p + lanes <= k; p += lanes) {
            for (int v = 0; v < kNarrowVecs; ++v) {
                Vec<T> block[lanes];
#pragma GCC unroll 16
                for (int j = 0; j < lanes; ++j) {
                    const i64 col = v * lanes + j;
                    block[j] = col < cols ? load(b + col * b_col + p) : Vec<T>{};
                }
                transpose<T>(block);
#pragma GCC unroll 16
                for (int j = 0; j < lanes; ++j) {
                    store(dst + (p + j) * width + v * lanes, block[j]);
                }
            }
        }
    }
    for (; p < k; ++p) {
        for (i64 j = 0; j < width; ++j) {
            dst[p * width + j] = j < cols ? b[p * b_row + j * b_col] : T(0);
        }
    }
}

}  // namespace

template <class T>
StepProduct<T>::StepProduct(i64 uses, i64 m, i64 n, i64 k, const T* b, i64 b_row, i64 b_col)
    : b_(b),
      b_row_(b_row),
      b_col_(b_col),
      n_(n),
      k_(k),
      in_place_(uses <= kUsesInPlace),
      width_(m <= kNarrowRows ? kNarrowVecs * kLanes<T> : kTileCols<T>),
      depth_(max_of(ceil_div(k, max_of(ceil_div(k, kStepDepth), i64(1))), i64(1))),
      panels_(ceil_div(n, width_)),
      packed_(in_place_ ? 0 : panels_ * width_ * k) {
    if (in_place_) return;
    parallel(panels_, parallel_slots(panels_, n * k * i64(sizeof(T))),
             [&](i64 panel, int) { pack(panel); });
}

template <class T>
void StepProduct<T>::pack(i64 panel) const {
    const i64 col0 = panel * width_, cols = min_of(n_ - col0, width_);
    T* dst = packed_.get() + col0 * k_;
    const T* b = b_ + col0 * b_col_;
    if (width_ == kTileCols<T>) {
        pack_cols(k_, cols, b, b_row_, b_col_, dst);
    } else {
        pack_narrow(k_, cols, b, b_row_, b_col_, dst);
    }
}

template <class T>
void StepProduct<T>::multiply(i64 m, const T* a, i64 a_row, T* c, i64 ldc, bool accumulate) const {
    if (m == 0) return;
    if (in_place_) {
        GemmParams<T> p{};
        p.m = m;
        p.n = n_;
        p.k = k_;
        p.a = a;
        p.a_row = a_row;
        p.a_col = 1;
        p.b = b_;
        p.b_row = b_row_;
        p.b_col = b_col_;
        p.c = c;
        p.ldc = ldc;
        p.accumulate = accumulate;
        return gemm(p);
    }
    const RowPanels rows(m);
    parallel(panels_, parallel_slots(panels_, 2 * m * n_ * k_), [&](i64 panel, int) {
        FlushDenormals flush;
        const i64 col0 = panel * width_, cols = min_of(n_ - col0, width_);
        const T* b = packed_.get() + col0 * k_;
        if (width_ != kTileCols<T>) {
            return narrow_panel(m, k_, a, a_row, b, c + col0, ldc, cols, accumulate);
        }
        for (i64 k0 = 0; k0 < max_of(k_, i64(1)); k0 += depth_) {
            const i64 kc = min_of(depth_, k_ - k0);
            for (i64 i = 0; i < rows.count; ++i) {
                const i64 row0 = rows.start(i);
                TileOutput<T> to{};
                to.c = c + row0 * ldc + col0;
                to.ldc = ldc;
                to.cols = cols;
                to.accumulate = accumulate || k0 > 0;
                tile_function<T>(rows.height(i), cols, false)(kc, a + row0 * a_row + k0, a_row,
                                                              b + k0 * width_, width_, to);
            }
        }
    });
}

#define FUSEDNN_STEP_PRODUCT(T) template class StepProduct<T>;
FUSEDNN_INSTANTIATE(FUSEDNN_STEP_PRODUCT)

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
