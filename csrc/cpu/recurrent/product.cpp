#include "cpu/recurrent/product.h"

#include "cpu/gemm/pack.h"
#include "cpu/kernels.h"
#include "cpu/recurrent/half.h"

namespace fusednn {
namespace FUSEDNN_ISA {

namespace {

// The accumulators of one row of a narrow panel: enough to hide the latency of a multiply-add,
// which the engine's two are not.
constexpr int kNarrowVecs = 4;
// A is read where it lies unless its rows stand a multiple of this apart: a tile's rows then fight
// for the same places in L1, and more than a few panels are worth a copy in the tile's order.
constexpr i64 kConflictBytes = 2048;
constexpr i64 kPanelsInPlace = 4;
// Rows of B in a block of k: 64 KB of a wide panel, half of which L1 holds.
constexpr i64 kStepDepth = 512;

// A narrow panel: row p of B as kNarrowVecs vectors. As bfloat16 two of them stand in the place of
// one, and reading them costs a shift or a mask each.
template <class T, bool kHalf>
struct NarrowPanel {
    const T* b;
    FUSEDNN_INLINE void row(i64 p, Vec<T> (&to)[kNarrowVecs]) const {
        if constexpr (kHalf && sizeof(T) == sizeof(float)) {
            const T* pairs = b + p * (kNarrowVecs / 2 * kLanes<T>);
#pragma GCC unroll 2
            for (int v = 0; v < kNarrowVecs; v += 2) {
                const Vec<T> pair = load_pair(pairs + v / 2 * kLanes<T>);
                to[v] = first_of_pair(pair);
                to[v + 1] = second_of_pair(pair);
            }
        } else {
#pragma GCC unroll 4
            for (int v = 0; v < kNarrowVecs; ++v) {
                to[v] = load(b + (p * kNarrowVecs + v) * kLanes<T>);
            }
        }
    }
};

// One tile: R rows, kNarrowVecs vectors of columns, `cols` of which exist. k runs up, or down if
// `backwards`. Even and odd k have sums of their own where registers allow: twice the multiply-adds
// in flight.
template <class T, int R, bool kHalf>
void narrow_tile(i64 k, bool backwards, const T* __restrict a, i64 a_row, NarrowPanel<T, kHalf> b,
                 T* c, i64 ldc, i64 cols, bool accumulate) {
    constexpr int lanes = kLanes<T>;
    constexpr int chains = R * kNarrowVecs <= 8 && kNarrowRows * kNarrowVecs >= 8 ? 2 : 1;
    Vec<T> sum[chains][R][kNarrowVecs] = {};
    const auto add = [&](i64 p, int s) {
        Vec<T> row[kNarrowVecs];
        b.row(p, row);
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) {
            const Vec<T> x = broadcast(a[r * a_row + p]);
#pragma GCC unroll 4
            for (int v = 0; v < kNarrowVecs; ++v) {
                sum[s][r][v] = multiply_add(x, row[v], sum[s][r][v]);
            }
        }
    };
    const i64 even = k / chains * chains;
    if (backwards) {
        for (i64 p = k - 1; p >= even; --p) add(p, 0);
        for (i64 p = even - chains; p >= 0; p -= chains) {
#pragma GCC unroll 2
            for (int s = chains - 1; s >= 0; --s) add(p + s, s);
        }
    } else {
        for (i64 p = 0; p < even; p += chains) {
#pragma GCC unroll 2
            for (int s = 0; s < chains; ++s) add(p + s, s);
        }
        for (i64 p = even; p < k; ++p) add(p, 0);
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

// narrow_tile<T, 1> for all columns, the same chains of multiply-adds, with a piece of other work
// in between: four rows of B, which come from a cache beyond L1, and one row of the piece at a
// time.
template <class T, bool kHalf>
void narrow_tile_ahead(i64 k, bool backwards, const T* __restrict a, NarrowPanel<T, kHalf> b, T* c,
                       const Piece<T>& piece) {
    constexpr int lanes = kLanes<T>;
    Vec<T> sum[2][kNarrowVecs] = {}, other[kAheadRows][2];
    load_piece(piece, other);
    const auto add = [&](i64 p, int s) {
        const Vec<T> x = broadcast(a[p]);
        Vec<T> row[kNarrowVecs];
        b.row(p, row);
#pragma GCC unroll 4
        for (int v = 0; v < kNarrowVecs; ++v) sum[s][v] = multiply_add(x, row[v], sum[s][v]);
    };
    const i64 even = k / 2 * 2, both = min_of(k / 4, piece.k);
    i64 p = backwards ? even - 2 : 0;
    const i64 next = backwards ? -2 : 2;
    if (backwards && even < k) add(even, 0);
    for (i64 i = 0; i < both; ++i) {
        add(p, 0);
        add(p + 1, 1);
        p += next;
        add(p, 0);
        add(p + 1, 1);
        p += next;
        multiply_piece<T, kHalf>(piece, i, other);
    }
    for (i64 i = 2 * both; i < even / 2; ++i, p += next) {
        add(p, 0);
        add(p + 1, 1);
    }
    for (i64 i = both; i < piece.k; ++i) multiply_piece<T, kHalf>(piece, i, other);
    if (!backwards && even < k) add(even, 0);
#pragma GCC unroll 4
    for (int v = 0; v < kNarrowVecs; ++v) store(c + v * lanes, sum[0][v] + sum[1][v]);
    store_piece(piece, other);
}

template <class T, bool kHalf>
void narrow_panel(i64 m, i64 k, bool backwards, const T* a, i64 a_row, NarrowPanel<T, kHalf> b,
                  T* c, i64 ldc, i64 cols, bool accumulate) {
    for (i64 row = 0; row < m; row += kNarrowRows) {
        const T* rows = a + row * a_row;
        T* to = c + row * ldc;
        switch (min_of(m - row, kNarrowRows)) {
            case 1:
                narrow_tile<T, 1, kHalf>(k, backwards, rows, a_row, b, to, ldc, cols, accumulate);
                break;
            case 2:
                narrow_tile<T, 2, kHalf>(k, backwards, rows, a_row, b, to, ldc, cols, accumulate);
                break;
            case 3:
                narrow_tile<T, 3, kHalf>(k, backwards, rows, a_row, b, to, ldc, cols, accumulate);
                break;
            default:
                narrow_tile<T, 4, kHalf>(k, backwards, rows, a_row, b, to, ldc, cols, accumulate);
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
StepProduct<T>::StepProduct(i64 uses, i64 m, i64 groups, i64 n, i64 k, const T* b, i64 b_row,
                            i64 b_col, const BFloat16* half, KeptMatrix* kept)
    : b_(b),
      half_(half),
      b_row_(b_row),
      b_col_(b_col),
      groups_(groups),
      n_(n),
      k_(k),
      in_place_(uses <= kUsesInPlace),
      width_(m <= kNarrowRows ? kNarrowVecs * kLanes<T> : kTileCols<T>),
      depth_(max_of(ceil_div(k, max_of(ceil_div(k, kStepDepth), i64(1))), i64(1))),
      blocks_(ceil_div(n, width_)),
      step_(half ? width_ / 2 : width_),
      own_(in_place_ || kept ? 0 : blocks_ * groups * step_ * k),
      packed_(own_.get()) {
    if (in_place_) return;
    if (kept) {
        bool ready;
        const i64 bytes = blocks_ * groups * step_ * k * i64(sizeof(T));
        packed_ = static_cast<T*>(kept_matrix(kept, bytes, 2 * width_ + (half ? 1 : 0), &ready));
        if (ready) return;
    }
    const i64 panels = blocks_ * groups;
    parallel(panels, parallel_slots(panels, groups * n * k * i64(sizeof(T))),
             [&](i64 index, int) { pack(index); });
}

template <class T>
void StepProduct<T>::pack(i64 index) const {
    const i64 first = index / groups_ * width_, cols = min_of(n_ - first, width_);
    T* dst = packed_ + index * step_ * k_;
    if (half_)
        return pack_pairs<T, kNarrowVecs>(k_, cols, half_ + (index % groups_ * n_ + first) * k_,
                                          dst);
    const T* b = b_ + (index % groups_ * n_ + first) * b_col_;
    if (width_ == kTileCols<T>) {
        pack_cols(k_, cols, b, b_row_, b_col_, dst);
    } else {
        pack_narrow(k_, cols, b, b_row_, b_col_, dst);
    }
}

template <class T>
StepProduct<T>::Operand::Operand(const StepProduct& product, i64 m, const T* a, i64 a_row)
    : rows(m),
      data(a),
      row_stride(a_row),
      packed(product.width_ == kTileCols<T> && a_row * i64(sizeof(T)) % kConflictBytes == 0 &&
             product.blocks_ * product.groups_ > kPanelsInPlace),
      copy(packed ? m * product.k_ + kPackSlack<T> : 0) {
    if (!packed) return;
    const RowPanels panels(m);
    for (i64 k0 = 0; k0 < product.k_; k0 += product.depth_) {
        const i64 kc = min_of(product.depth_, product.k_ - k0);
        for (i64 i = 0; i < panels.count; ++i) {
            const i64 row0 = panels.start(i);
            pack_rows(kc, panels.height(i), a + row0 * a_row + k0, a_row, 1,
                      copy.get() + k0 * m + row0 * kc, false);
        }
    }
    data = copy.get();
}

template <class T>
void StepProduct<T>::panel(const Operand& a, i64 index, T* c, i64 ldc, i64 cols, bool accumulate,
                           bool backwards) const {
    const T* b = packed_ + index * step_ * k_;
    if (half_) {
        return narrow_panel(a.rows, k_, backwards, a.data, a.row_stride, NarrowPanel<T, true>{b}, c,
                            ldc, cols, accumulate);
    }
    if (width_ != kTileCols<T>) {
        return narrow_panel(a.rows, k_, backwards, a.data, a.row_stride, NarrowPanel<T, false>{b},
                            c, ldc, cols, accumulate);
    }
    const RowPanels rows(a.rows);
    for (i64 k0 = 0; k0 < max_of(k_, i64(1)); k0 += depth_) {
        const i64 kc = min_of(depth_, k_ - k0);
        for (i64 i = 0; i < rows.count; ++i) {
            const i64 row0 = rows.start(i);
            TileOutput<T> to{};
            to.c = c + row0 * ldc;
            to.ldc = ldc;
            to.cols = cols;
            to.accumulate = accumulate || k0 > 0;
            const T* panel =
                a.packed ? a.data + k0 * a.rows + row0 * kc : a.data + row0 * a.row_stride + k0;
            tile_function<T>(rows.height(i), cols, a.packed)(kc, panel, a.row_stride,
                                                             b + k0 * width_, width_, to);
        }
    }
}

template <class T>
void StepProduct<T>::panel_ahead(const T* a, i64 index, T* c, bool backwards,
                                 InputAhead<T>& ahead) const {
    const T* b = packed_ + index * step_ * k_;
    const Piece<T> piece = ahead.piece();
    const auto run = [&](auto panel) {
        if (piece.k == 0) {
            return narrow_panel(1, k_, backwards, a, k_, panel, c, width_, width_, false);
        }
        narrow_tile_ahead(k_, backwards, a, panel, c, piece);
        ahead.advance(piece);
    };
    if (half_) return run(NarrowPanel<T, true>{b});
    run(NarrowPanel<T, false>{b});
}

template <class T>
void StepProduct<T>::multiply(i64 m, const T* a, i64 a_row, T* c, i64 ldc, bool accumulate) const {
    if (m == 0) return;
    if (in_place_ && half_) {
        return dot_bf16<T>(m, groups_ * n_, k_, a, a_row, half_, nullptr, c, ldc, accumulate);
    }
    if (in_place_) {
        GemmParams<T> p{};
        p.m = m;
        p.n = groups_ * n_;
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
    const Operand operand(*this, m, a, a_row);
    const i64 panels = blocks_ * groups_;
    parallel(panels, parallel_slots(panels, 2 * m * groups_ * n_ * k_), [&](i64 index, int) {
        FlushDenormals flush;
        const i64 first = index / groups_ * width_, cols = min_of(n_ - first, width_);
        panel(operand, index, c + index % groups_ * n_ + first, ldc, cols, accumulate, false);
    });
}

#define FUSEDNN_STEP_PRODUCT(T) template class StepProduct<T>;
FUSEDNN_INSTANTIATE(FUSEDNN_STEP_PRODUCT)

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
