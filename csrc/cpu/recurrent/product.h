// C (m x n) = A (m x k) B (k x n) for a B that many steps multiply with: packed once, read by every
// step. A stands in rows.
//
// A step of a batch of one or a few reads all of B for as many multiply-adds as there are rows: the
// cache that holds B decides, so B is laid out to be read once, front to back. Wider batches use
// the GEMM engine's tile.
//
// The columns of B may be several groups of n: the gates. They are then cut into blocks that hold
// the same columns of each group, so that all gates of some units are made together.
#pragma once
#include "cpu/recurrent/ahead.h"
#include "cpu/recurrent/rows.h"

namespace fusednn {
namespace FUSEDNN_ISA {

// Up to this many rows of A, its panels are narrow_tile's: as many rows as fit into registers.
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr i64 kNarrowRows = 4;
#else
constexpr i64 kNarrowRows = 2;
#endif
// Packing reads and writes B once; so many products are made from where it lies.
constexpr i64 kUsesInPlace = 2;

template <class T>
class StepProduct {
  public:
    // B as it lies in memory: b[p * b_row + j * b_col] for p < k, j < groups * n; it must stay
    // there. `m` is the most rows A will have, `uses` how many products will come: few are made
    // without packing.
    // Instead of b, `half` may hold B's transpose (groups * n, k) as bfloat16, if T is float and m
    // at most kNarrowRows; b is null then, b_row 1 and b_col k.
    // kept: what a former product packed of the same B, or null.
    StepProduct(i64 uses, i64 m, i64 groups, i64 n, i64 k, const T* b, i64 b_row, i64 b_col,
                const BFloat16* half = nullptr, KeptMatrix* kept = nullptr);

    // c (m, groups * n) = A B, or c += A B.
    void multiply(i64 m, const T* a, i64 a_row, T* c, i64 ldc, bool accumulate) const;

    // A product to come: `product` with this A.
    struct Factor {
        const StepProduct* product;
        const T* a;
        i64 a_row;
    };
    // The sum of one or two products with the same columns and the same most rows, block by block:
    // body(first, units, c, row, group) gets the columns [first, first + units) of each group, in
    // c[i * row + g * group + j] for j < units; before that, prefetch(first, units) is called.
    // `extra` is what the body costs. Blocks run in parallel. `ahead`, if not null, has pieces of
    // work to run beside a product of one row.
    template <class Prefetch, class Body>
    static FUSEDNN_INLINE void by_blocks(i64 m, const Factor* factors, int count, i64 extra,
                                         bool backwards, InputAhead<T>* ahead,
                                         const Prefetch& prefetch, const Body& body) {
        const StepProduct& lead = *factors[0].product;
        const StepProduct& last = *factors[count - 1].product;
        const i64 depth = lead.k_ + (count > 1 ? last.k_ : 0);
        const Operand lead_a(lead, m, factors[0].a, factors[0].a_row);
        const Operand last_a(last, count > 1 ? m : 0, factors[count - 1].a,
                             factors[count - 1].a_row);
        const int slots =
            parallel_slots(lead.blocks_, 2 * m * lead.groups_ * lead.n_ * depth + extra);
        const i64 width = lead.width_, groups = lead.groups_, row = groups * width;
        const Workspace<T> product(m * row, slots);
        parallel(lead.blocks_, slots, [&](i64 block, int slot) {
            FlushDenormals flush;
            T* c = product.slot(slot);
            if (backwards) block = lead.blocks_ - 1 - block;
            const i64 first = block * width, units = min_of(lead.n_ - first, width);
            prefetch(first, units);
            for (i64 i = 0; i < groups; ++i) {
                const i64 g = backwards ? groups - 1 - i : i;
                const i64 index = block * groups + g;
                if (ahead && slots == 1) {
                    lead.panel_ahead(lead_a.data, index, c + g * width, backwards, *ahead);
                } else {
                    lead.panel(lead_a, index, c + g * width, row, width, false, backwards);
                }
                if (count > 1)
                    last.panel(last_a, index, c + g * width, row, width, true, backwards);
            }
            body(first, units, static_cast<const T*>(c), row, width);
        });
    }
    bool in_place() const { return in_place_; }
    // Panels of B.
    i64 panels() const { return blocks_ * groups_; }
    // Whether by_blocks with one row and this product alone runs on one thread.
    bool single(i64 extra) const {
        return parallel_slots(blocks_, 2 * groups_ * n_ * k_ + extra) == 1;
    }

  private:
    // A as the panels read it: copied into the tile's order where many panels read it.
    struct Operand {
        Operand(const StepProduct& product, i64 m, const T* a, i64 a_row);
        i64 rows;
        const T* data;
        i64 row_stride;
        bool packed;
        Workspace<T> copy;
    };

    void pack(i64 index) const;
    // One panel of C; `cols` of its columns are written.
    void panel(const Operand& a, i64 index, T* c, i64 ldc, i64 cols, bool accumulate,
               bool backwards) const;
    // The same for one row, all columns, and a piece of other work beside it.
    void panel_ahead(const T* a, i64 index, T* c, bool backwards, InputAhead<T>& ahead) const;

    const T* b_;
    const BFloat16* half_;
    i64 b_row_, b_col_;
    i64 groups_, n_, k_;
    bool in_place_;
    i64 width_;   // columns of a panel
    i64 depth_;   // rows of B in a block of k
    i64 blocks_;  // of columns; each has a panel for every group
    // From one panel to the next, in k_ steps: width_, or half of it where values are bfloat16 and
    // stand in pairs.
    i64 step_;
    Workspace<T> own_;
    T* packed_;  // own_, or what is kept
};

// Whether x's part of the gates is made step by step, beside h's, instead of for all steps at once:
// it then never leaves L1. Every step reads W_ih again for that, which a batch makes up for if it
// does enough with what it reads: 115 GFLOP/s with n rows take 230 / n GB/s. (A GRU needs the two
// parts of n apart, and normalisation those of all gates.)
template <class T>
bool fuses_input(const RecurrentParams<T>& p) {
    const i64 bytes = gates_of(p.cell) * p.hidden * (p.inputs + p.outputs) * i64(sizeof(T));
    constexpr i64 in_l2 = 768 * 1024, in_l3 = 12 * 1024 * 1024;
    const i64 rows = bytes <= in_l2 ? kNarrowRows + 1 : bytes <= in_l3 ? 12 : 48;
    return p.cell != Cell::gru && p.cell != Cell::norm_lstm && p.batch >= rows &&
           p.steps > kUsesInPlace;
}

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
