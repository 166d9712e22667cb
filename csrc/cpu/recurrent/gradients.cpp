// Pass 2 of the recurrent backward: what is made of the gates' gradients of a block of
// steps at once.
#include "cpu/recurrent/gradients.h"
#include "cpu/gemm/engine.h"

namespace fusednn {
namespace FUSEDNN_ISA {

namespace {

// A matrix (rows, width), and where a^T times it goes: (m, width).
template <class T>
struct Factor {
    const T* data;
    i64 width;
    T* product;
};

// The products of a^T, a (rows, m), with one or two matrices, as if they stood side by side: a is
// packed once for both. Each matrix begins a panel of its own. `add`: to what is there.
template <class T>
void weight_grads(i64 rows, i64 m, const T* a, i64 a_row, bool add, const Factor<T>& left,
                  const Factor<T>& right) {
    const i64 split = right.product ? round_up(left.width, kTileCols<T>) : left.width;
    const i64 n = split + (right.product ? right.width : 0);
    if (m == 0 || n == 0) return;
    const auto at = [&](i64 col0) -> const Factor<T>& { return col0 < split ? left : right; };
    blocked_product<T>(
        choose_blocking<T>(m, n, rows), m, n, rows, MatrixA<T>{a, 1, a_row},
        [&](i64 k0, i64 kc, i64 col0, i64, T* dst, int) {
            const Factor<T>& f = at(col0);
            const i64 col = col0 < split ? col0 : col0 - split;
            pack_cols(kc, min_of(f.width - col, i64(kTileCols<T>)), f.data + k0 * f.width + col,
                      f.width, 1, dst);
        },
        [&](TileFn<T>, i64 kc, const T* a_panel, i64 a_stride, const T* b_panel, i64, i64 row0,
            int height, i64 col0, i64, bool first, bool) {
            const Factor<T>& f = at(col0);
            const i64 col = col0 < split ? col0 : col0 - split;
            TileOutput<T> out{};
            out.c = f.product + row0 * f.width + col;
            out.ldc = f.width;
            out.cols = min_of(f.width - col, i64(kTileCols<T>));
            out.accumulate = add || !first;
            // What the tile is added to comes from far away, and while it is multiplied there is
            // time to fetch it.
            constexpr i64 line = 64 / i64(sizeof(T));
            for (int r = 0; r < height && out.accumulate; ++r) {
                for (i64 j = 0; j < out.cols; j += line) {
                    __builtin_prefetch(out.c + r * out.ldc + j, 1);
                }
            }
            // A^T has no rows in memory, so the engine has packed it.
            tile_function<T>(height, out.cols, true)(kc, a_panel, a_stride, b_panel, kTileCols<T>,
                                                     out);
        });
}

// dx (rows, inputs) = d_gates W_ih, or += it.
template <class T>
void input_grad(const RecurrentParams<T>& p, i64 rows, i64 gates, const T* d_gates, const T* w_ih,
                T* dx, bool accumulate) {
    GemmParams<T> g{};
    g.m = rows;
    g.n = p.inputs;
    g.k = gates * p.hidden;
    g.a = d_gates;
    g.a_row = p.gates_row;
    g.a_col = 1;
    g.b = w_ih;
    g.b_row = p.inputs;
    g.b_col = 1;
    g.c = dx;
    g.ldc = p.inputs;
    g.accumulate = accumulate;
    gemm(g);
}

// d_x from the block's rows' gradient; 0 for steps that do not exist.
template <class T>
void scatter_input_grad(const RecurrentParams<T>& p, const RecurrentGrads<T>& g,
                        const Rows<T>& rows, const BlockGrads<T>& block) {
    const std::size_t bytes = std::size_t(p.inputs) * sizeof(T);
    const i64 first = rows.first_time(block.begin, block.end);
    if (!g.d_x_add && p.rows < p.steps * p.batch) {
        for (i64 t = first; t < first + block.end - block.begin; ++t) {
            for (i64 i = rows.active(t); i < p.batch; ++i) {
                __builtin_memset(g.d_x + t * p.x_step + rows.sequence(i) * p.x_row, 0, bytes);
            }
        }
    }
    rows.for_inputs(block.begin, block.end, [&](i64 row, i64 at) {
        const T* from = block.dx + row * p.inputs;
        T* to = g.d_x + at;
        if (!g.d_x_add) {
            __builtin_memcpy(to, from, bytes);
            return;
        }
        for_units<T>(p.inputs, [&](i64 i, auto lanes) {
            lanes.store(to + i, lanes.load(to + i) + lanes.load(from + i));
        });
    });
}

// d_w_ih and d_w_hh. Of a GRU they do not read the same gates: n's rows differ.
template <class T>
void weight_pass(const RecurrentParams<T>& p, const RecurrentGrads<T>& g, i64 rows, const T* x,
                 const BlockGrads<T>& block) {
    const i64 d_row = p.gates_row;
    const T* d_gates = block.d_gates;
    const bool add = block.add;
    const Factor<T> nothing{}, by_x{x, p.inputs, g.d_w_ih},
        by_h{block.h_before, p.outputs, g.d_w_hh};
    if (p.cell == Cell::gru) {
        const i64 hidden = p.hidden;
        const Factor<T> n_by_x{x, p.inputs, g.d_w_ih + 2 * hidden * p.inputs};
        if (g.d_w_ih) weight_grads(rows, 2 * hidden, d_gates + hidden, d_row, add, by_x, nothing);
        if (g.d_w_ih) weight_grads(rows, hidden, d_gates, d_row, add, n_by_x, nothing);
        if (g.d_w_hh) weight_grads(rows, 3 * hidden, d_gates + hidden, d_row, add, by_h, nothing);
        return;
    }
    const i64 width = gates_of(p.cell) * p.hidden;
    if (g.d_w_ih && g.d_w_hh && block.d_by_x == block.d_by_h) {
        return weight_grads(rows, width, d_gates, d_row, add, by_x, by_h);
    }
    if (g.d_w_ih) weight_grads(rows, width, block.d_by_x, d_row, add, by_x, nothing);
    if (g.d_w_hh) weight_grads(rows, width, block.d_by_h, d_row, add, by_h, nothing);
}

template <class T>
void put_sums(i64 count, const T* sums, bool add, T* to) {
    if (!to) return;
    for (i64 j = 0; j < count; ++j) to[j] = add ? to[j] + sums[j] : sums[j];
}

template <class T>
void bias_pass(const RecurrentParams<T>& p, const RecurrentGrads<T>& g, i64 rows,
               const BlockGrads<T>& block) {
    if (!g.d_b_ih && !g.d_b_hh) return;
    const i64 hidden = p.hidden;
    Workspace<T> sums(p.gates_row);
    const T* s = sums.get();
    // Of the padding as well, which nobody looks at.
    bias_grad(rows, p.gates_row, 1, block.d_gates, sums.get());
    if (p.cell != Cell::gru) {
        put_sums(gates_of(p.cell) * hidden, s, block.add, g.d_b_ih);
        put_sums(gates_of(p.cell) * hidden, s, block.add, g.d_b_hh);
        return;
    }
    put_sums(2 * hidden, s + hidden, block.add, g.d_b_ih);
    put_sums(hidden, s, block.add, g.d_b_ih ? g.d_b_ih + 2 * hidden : nullptr);
    put_sums(3 * hidden, s + hidden, block.add, g.d_b_hh);
}

}  // namespace

template <class T>
void recurrent_gradients(const RecurrentParams<T>& p, const RecurrentGrads<T>& g,
                         const Rows<T>& rows, const BlockGrads<T>& block) {
    const bool in_place = rows.in_place(), is_gru = p.cell == Cell::gru;
    const i64 count = rows.count(block.begin, block.end);
    if (g.d_w_ih || g.d_w_hh) {
        const bool gather = g.d_w_ih && !in_place;
        Workspace<T> gathered(gather ? count * p.inputs : 0);
        if (gather) rows.gather(block.begin, block.end, gathered.get());
        const T* x = p.x + rows.first_row(block.begin, block.end) * p.inputs;
        weight_pass(p, g, count, gather ? gathered.get() : x, block);
    }
    bias_pass(p, g, count, block);
    if (!block.dx) return;
    if (!block.dx_done) {
        // r, z of a GRU; its n stands in front.
        const i64 first = is_gru ? 2 : gates_of(p.cell);
        input_grad(p, count, first, block.d_by_x + (is_gru ? p.hidden : 0), p.w_ih, block.dx,
                   in_place && g.d_x_add);
        if (is_gru) {
            input_grad(p, count, 1, block.d_gates, p.w_ih + first * p.hidden * p.inputs, block.dx,
                       true);
        }
    }
    if (!in_place) scatter_input_grad(p, g, rows, block);
}

template <class T>
void norm_gradients(const RecurrentParams<T>& p, const RecurrentGrads<T>& g, i64 rows,
                    const BlockGrads<T>& block, const T* by_x, const T* by_h, const T* d_cell,
                    const T* d_gain_c) {
    const i64 width = 4 * p.hidden, row = p.gates_row;
    Workspace<T> products(g.d_gain_ih || g.d_gain_hh ? rows * width : 0), sums(width);
    const auto of_products = [&](const T* normalised, T* to) {
        if (!to) return;
        for_rows(rows, p.hidden, [&](i64 begin, i64 end) {
            for (i64 r = begin; r < end; ++r) {
                for_units<T>(width, [&](i64 i, auto lanes) {
                    const Vec<T> d = lanes.load(block.d_gates + r * row + i);
                    lanes.store(products.get() + r * width + i,
                                d * lanes.load(normalised + r * row + i));
                });
            }
        });
        bias_grad(rows, width, 1, products.get(), sums.get());
        put_sums(width, sums.get(), block.add, to);
    };
    of_products(by_x, g.d_gain_ih);
    of_products(by_h, g.d_gain_hh);
    const auto of_cell = [&](const T* from, T* to) {
        if (!to) return;
        bias_grad(rows, p.hidden, 1, from, sums.get());
        put_sums(p.hidden, sums.get(), block.add, to);
    };
    of_cell(d_gain_c, g.d_gain_c);
    of_cell(d_cell, g.d_bias_c);
}

template <class T>
void projection_gradient(i64 rows, i64 outputs, i64 hidden, const T* d_h, const T* unprojected,
                         T* d_w_hr, bool add) {
    weight_grads(rows, outputs, d_h, outputs, add, Factor<T>{unprojected, hidden, d_w_hr},
                 Factor<T>{});
}

#define FUSEDNN_RECURRENT_GRADIENTS(T)                                                             \
    template void recurrent_gradients<T>(const RecurrentParams<T>&, const RecurrentGrads<T>&,      \
                                         const Rows<T>&, const BlockGrads<T>&);                    \
    template void norm_gradients<T>(const RecurrentParams<T>&, const RecurrentGrads<T>&, i64,      \
                                    const BlockGrads<T>&, const T*, const T*, const T*, const T*); \
    template void projection_gradient<T>(i64, i64, i64, const T*, const T*, T*, bool);
FUSEDNN_INSTANTIATE(FUSEDNN_RECURRENT_GRADIENTS)

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
