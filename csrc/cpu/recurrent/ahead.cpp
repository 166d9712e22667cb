#include "cpu/recurrent/ahead.h"

#include "cpu/gemm/pack.h"
#include "cpu/recurrent/product.h"

namespace fusednn {
namespace FUSEDNN_ISA {

template <class T>
bool InputAhead<T>::suits(const RecurrentParams<T>& p) {
    return kRunsAhead && p.batch == 1 && p.rows == p.steps && p.inputs > 0 &&
           p.steps >= 3 * kAheadRows;
}

template <class T>
InputAhead<T>::InputAhead(const RecurrentParams<T>& p, i64 shares)
    : p_(p),
      bias_(nullptr),
      gates_(nullptr),
      row0_(0),
      end_(0),
      width_(gates_of(p.cell) * p.hidden),
      panels_(suits(p) ? ceil_div(width_, kTileCols<T>) : 0),
      share_(ceil_div(panels_ * p.inputs, kAheadRows * max_of(shares, i64(1)))),
      begin_(0),
      panel_(panels_),
      k_(0),
      step_(p.w_ih_bf16 ? kTileCols<T> / 2 : kTileCols<T>),
      weights_(panels_ * step_ * p.inputs),
      inputs_(panels_ ? kAheadRows * p.inputs + kPackSlack<T> : 0),
      tile_(kAheadRows * kTileCols<T>) {
    if (panels_ == 0) return;
    parallel(
        panels_, parallel_slots(panels_, width_ * p.inputs * i64(sizeof(T))), [&](i64 panel, int) {
            const i64 col0 = panel * kTileCols<T>;
            const i64 cols = min_of(width_ - col0, i64(kTileCols<T>));
            T* to = weights_.get() + panel * step_ * p.inputs;
            if (p.w_ih_bf16) {
                return pack_pairs<T, kTileVecs>(p.inputs, cols, p.w_ih_bf16 + col0 * p.inputs, to);
            }
            pack_cols(p.inputs, cols, p.w_ih + col0 * p.inputs, 1, p.inputs, to);
        });
}

template <class T>
void InputAhead<T>::start(i64 begin, i64 end, const T* bias, T* gates) {
    if (panels_ == 0 || begin == end) return;
    bias_ = bias;
    gates_ = gates;
    row0_ = p_.reverse ? p_.steps - end : begin;
    end_ = end;
    if (begin > 0) {
        begin_ = begin;
        pack_inputs();
        finish();
        return;
    }
    begin_ = first_rows() - kAheadRows;
    first_group(p_.reverse ? p_.steps - first_rows() : 0);
}

// The first rows, from row `top` on.
template <class T>
void InputAhead<T>::first_group(i64 top) {
    T* gates = gates_ + (top - row0_) * p_.gates_row;
    if (p_.w_ih_bf16) {
        return dot_bf16<T>(first_rows(), width_, p_.inputs, p_.x + top * p_.inputs, p_.inputs,
                           p_.w_ih_bf16, bias_, gates, p_.gates_row, false);
    }
    GemmParams<T> g{};
    g.m = first_rows();
    g.n = width_;
    g.k = p_.inputs;
    g.a = p_.x + top * p_.inputs;
    g.a_row = p_.inputs;
    g.a_col = 1;
    g.b = p_.w_ih;
    g.b_row = 1;
    g.b_col = p_.inputs;
    g.c = gates;
    g.ldc = p_.gates_row;
    g.col_bias = bias_;
    gemm(g);
}

// The rows that are made next, in the tile's order.
template <class T>
void InputAhead<T>::pack_inputs() {
    pack_rows(p_.inputs, int(kAheadRows), p_.x + row(begin_) * p_.inputs,
              p_.reverse ? -p_.inputs : p_.inputs, 1, inputs_.get(), false);
    panel_ = 0;
    begin_tile();
}

template <class T>
void InputAhead<T>::begin_step(i64 n, bool overlap) {
    if (n != begin_) return;
    finish();
    begin_ += kAheadRows;
    if (begin_ >= end_) return;
    pack_inputs();
    if (!overlap) finish();
}

template <class T>
Piece<T> InputAhead<T>::piece() const {
    if (panel_ == panels_) return {};
    return {min_of(share_, p_.inputs - k_), inputs_.get() + k_ * kAheadRows,
            weights_.get() + (panel_ * p_.inputs + k_) * step_, tile_.get()};
}

template <class T>
void InputAhead<T>::advance(const Piece<T>& done) {
    if (done.k == 0) return;
    k_ += done.k;
    if (k_ < p_.inputs) return;
    end_tile(panel_, tile_.get());
    ++panel_;
    begin_tile();
}

template <class T>
void InputAhead<T>::begin_tile() {
    k_ = 0;
    if (panel_ < panels_) fill_bias(panel_, tile_.get());
}

template <class T>
void InputAhead<T>::fill_bias(i64 panel, T* tile) const {
    for (i64 r = 0; r < kAheadRows; ++r) {
        for (i64 j = 0; j < kTileCols<T>; ++j) {
            const i64 col = panel * kTileCols<T> + j;
            tile[r * kTileCols<T> + j] = bias_ && col < width_ ? bias_[col] : T(0);
        }
    }
}

template <class T>
void InputAhead<T>::end_tile(i64 panel, const T* tile) const {
    const i64 col0 = panel * kTileCols<T>, cols = min_of(width_ - col0, i64(kTileCols<T>));
    for (i64 r = 0; r < kAheadRows; ++r) {
        __builtin_memcpy(gates_ + (row(begin_ + r) - row0_) * p_.gates_row + col0,
                         tile + r * kTileCols<T>, std::size_t(cols) * sizeof(T));
    }
}

// What is left of the rows, in parallel. The same chains of multiply-adds as by pieces.
template <class T>
void InputAhead<T>::finish() {
    const i64 left = panels_ - panel_;
    if (left == 0) return;
    const i64 begun = k_;
    parallel(left, parallel_slots(left, 2 * kAheadRows * left * kTileCols<T> * p_.inputs),
             [&](i64 task, int) {
                 FlushDenormals flush;
                 T own[kAheadRows * kTileCols<T>];
                 const i64 panel = panel_ + task, k0 = task == 0 ? begun : 0;
                 T* tile = task == 0 ? tile_.get() : own;
                 if (task > 0) fill_bias(panel, tile);
                 const Piece<T> rest{p_.inputs - k0, inputs_.get() + k0 * kAheadRows,
                                     weights_.get() + (panel * p_.inputs + k0) * step_, tile};
                 Vec<T> sum[kAheadRows][2];
                 load_piece(rest, sum);
                 if (p_.w_ih_bf16) {
                     for (i64 k = 0; k < rest.k; ++k) multiply_piece<T, true>(rest, k, sum);
                 } else {
                     for (i64 k = 0; k < rest.k; ++k) multiply_piece<T, false>(rest, k, sum);
                 }
                 store_piece(rest, sum);
                 end_tile(panel, tile);
             });
    panel_ = panels_;
}

#define FUSEDNN_INPUT_AHEAD(T) template class InputAhead<T>;
FUSEDNN_INSTANTIATE(FUSEDNN_INPUT_AHEAD)

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
