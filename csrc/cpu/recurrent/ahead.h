// One sequence: the input's part of the gates, made for the next few steps while a step reads W_hh.
//
// A step of one sequence waits for its weights: the cache delivers them at half the rate at which
// they could be multiplied. The product with the inputs is the opposite, all arithmetic. Cut into
// small pieces that run inside the loops of the step, it costs next to nothing.
#pragma once
#include "cpu/gemm/tile.h"
#include "cpu/recurrent/half.h"
#include "cpu/recurrent/rows.h"

namespace fusednn {
namespace FUSEDNN_ISA {

// Steps that are made together: as many rows of a tile as leave registers to the step's own.
constexpr i64 kAheadRows = 8;
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr bool kRunsAhead = true;
#else
constexpr bool kRunsAhead = false;  // 16 registers do not hold both
#endif

// A piece of a tile: c (kAheadRows, kTileCols) += a^T b for a (k, kAheadRows), b (k, kTileCols); or
// b of bfloat16 in pairs, half as wide.
template <class T>
struct Piece {
    i64 k;
    const T *a, *b;
    T* c;
};

template <class T>
class InputAhead {
  public:
    static bool suits(const RecurrentParams<T>& p);

    // Does nothing unless it suits(). w_ih may be bfloat16 alone. Every step has `shares` places
    // that run a piece.
    InputAhead(const RecurrentParams<T>& p, i64 shares);
    // gates = x W_ih^T + bias for the steps [begin, end), of which `gates` holds the rows: the
    // first few at once, the others by pieces. Steps that begin a stretch are a multiple of
    // kAheadRows away from the end of the sequence, and at least first_rows() from its beginning.
    void start(i64 begin, i64 end, const T* bias, T* gates);

    // To be called before the n-th step: its gates are complete then. Unless `overlap`, the next
    // rows are made here and now.
    void begin_step(i64 n, bool overlap);
    // The piece to run now (k is 0 if there is none), and that it has been run.
    Piece<T> piece() const;
    void advance(const Piece<T>& done);

  private:
    void first_group(i64 top);
    void pack_inputs();
    void begin_tile();
    void finish();
    i64 row(i64 n) const { return p_.reverse ? p_.steps - 1 - n : n; }
    // What is left over by groups of kAheadRows, and the first group.
    i64 first_rows() const { return p_.steps % kAheadRows + kAheadRows; }
    void end_tile(i64 panel, const T* tile) const;
    void fill_bias(i64 panel, T* tile) const;

    const RecurrentParams<T>& p_;
    const T* bias_;
    T* gates_;
    i64 row0_, end_;  // gates_' first row, and the n behind its last
    i64 width_, panels_;
    i64 share_;  // rows of B in a piece
    i64 begin_;  // the n of the first row that is being made
    i64 panel_;  // of the tile that is being made; panels_: none
    i64 k_;      // how far it is
    // From one row of a packed panel to the next: kTileCols, or half of it for bfloat16 in pairs.
    i64 step_;
    Workspace<T> weights_, inputs_, tile_;
};

template <class T, bool kHalf>
FUSEDNN_INLINE void multiply_piece(const Piece<T>& piece, i64 k, Vec<T> (&sum)[kAheadRows][2]) {
    Vec<T> left, right;
    if constexpr (kHalf && sizeof(T) == sizeof(float)) {
        const Vec<T> pair = load_pair(piece.b + k * kLanes<T>);
        left = first_of_pair(pair);
        right = second_of_pair(pair);
    } else {
        left = load(piece.b + k * kTileCols<T>);
        right = load(piece.b + k * kTileCols<T> + kLanes<T>);
    }
#pragma GCC unroll 8
    for (int r = 0; r < kAheadRows; ++r) {
        const Vec<T> x = broadcast(piece.a[k * kAheadRows + r]);
        sum[r][0] = multiply_add(x, left, sum[r][0]);
        sum[r][1] = multiply_add(x, right, sum[r][1]);
    }
}
template <class T>
FUSEDNN_INLINE void load_piece(const Piece<T>& piece, Vec<T> (&sum)[kAheadRows][2]) {
#pragma GCC unroll 8
    for (int r = 0; r < kAheadRows; ++r) {
        sum[r][0] = load(piece.c + r * kTileCols<T>);
        sum[r][1] = load(piece.c + r * kTileCols<T> + kLanes<T>);
    }
}
template <class T>
FUSEDNN_INLINE void store_piece(const Piece<T>& piece, Vec<T> (&sum)[kAheadRows][2]) {
#pragma GCC unroll 8
    for (int r = 0; r < kAheadRows; ++r) {
        store(piece.c + r * kTileCols<T>, sum[r][0]);
        store(piece.c + r * kTileCols<T> + kLanes<T>, sum[r][1]);
    }
}

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
