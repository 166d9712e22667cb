// Pass 2 of the recurrent backward: one product for each weight and block of steps, sums over rows
// for what stands beside the products.
#include "cuda/recurrent/gradients.h"

#include "cuda/channels.h"

namespace fusednn::cuda {

namespace {

// ---- sums over rows
// ------------------------------------------------------------------------------

// Where a column's sums go: columns [begin, end) of what is summed, to to[column - begin].
template <class T>
struct SumTarget {
    Write<T> to;  // or null
    i64 begin, end;
    FUSEDNN_DEVICE void put(i64 column, Accumulate<T> sum, bool add) const {
        if (!to || column < begin || column >= end) return;
        if (add) sum = Read<T>(to)[column - begin] + sum;
        to[column - begin] = sum;
    }
};

template <class T>
struct Values {
    static constexpr int kInputs = 1;
    Read<T> x;
    FUSEDNN_DEVICE void operator()(i64 at, i64, i64, Accumulate<T> (&value)[1]) const {
        value[0] = x[at];
    }
};
template <class T>
struct PutSums {
    SumTarget<T> target[3];
    bool add;
    FUSEDNN_DEVICE void operator()(i64 column, const double (&sum)[1]) const {
#pragma unroll
        for (const SumTarget<T>& one : target) one.put(column, Accumulate<T>(sum[0]), add);
    }
};
// Of T or of its Accumulate.
template <class T, class Row>
void sum_rows(i64 rows, i64 columns, const Row* x, const PutSums<Storage<T>>& put) {
    sum_columns_of<1, Accumulate<T>>("recurrent_sums", {rows, columns, 1},
                                     Values<Storage<Row>>{reading(x)}, put);
}

// d times the normalised products, for the gains.
template <class T>
struct GainValues {
    static constexpr int kInputs = 3;
    Read<T> d, by_x, by_h;
    i64 row;
    FUSEDNN_DEVICE void operator()(i64 at, i64 r, i64 column, Accumulate<T> (&value)[2]) const {
        value[0] = d[at] * by_x[r * row + column];
        value[1] = d[at] * by_h[r * row + column];
    }
};
template <class T>
struct PutGains {
    SumTarget<T> x, h;
    bool add;
    FUSEDNN_DEVICE void operator()(i64 column, const double (&sum)[2]) const {
        x.put(column, Accumulate<T>(sum[0]), add);
        h.put(column, Accumulate<T>(sum[1]), add);
    }
};

// ---- weights, biases, input
// ----------------------------------------------------------------------

// product (m, width) (+)= a^T times a matrix (rows, width); a (rows, m) with rows a_row apart.
template <class T>
void weight_grad(i64 rows, i64 m, const T* a, i64 a_row, const T* b, i64 width, T* product,
                 bool add) {
    multiply<T>(m, width, rows, {a, 1, a_row}, {b, width, 1}, product, width, add);
}

// d_w_ih and d_w_hh. Of a GRU they do not read the same gates: n's rows differ.
template <class T>
void weight_pass(const RecurrentParams<T>& p, const RecurrentGrads<T>& g, i64 rows, const T* x,
                 const BlockGrads<T>& block) {
    const i64 hidden = p.hidden, width = gates_of(p.cell) * hidden, row = block.d_row;
    const bool gru = p.cell == Cell::gru;
    if (g.d_w_ih) {
        const i64 first = gru ? 2 * hidden : width;
        weight_grad(rows, first, block.d_by_x + (gru ? hidden : 0), row, x, p.inputs, g.d_w_ih,
                    block.add);
        if (gru) {
            weight_grad(rows, hidden, block.d_by_x, row, x, p.inputs, g.d_w_ih + first * p.inputs,
                        block.add);
        }
    }
    if (g.d_w_hh) {
        weight_grad(rows, width, block.d_by_h + (gru ? hidden : 0), row, block.h_before, p.outputs,
                    g.d_w_hh, block.add);
    }
}

template <class T>
void bias_pass(const RecurrentParams<T>& p, const RecurrentGrads<T>& g, i64 rows,
               const BlockGrads<T>& block) {
    if (!g.d_b_ih && !g.d_b_hh) return;
    const i64 hidden = p.hidden, width = block.d_row;
    const auto ih = writing(g.d_b_ih), hh = writing(g.d_b_hh);
    PutSums<Storage<T>> put{{{ih, 0, width}, {hh, 0, width}, {}}, block.add};
    if (p.cell == Cell::gru) {
        const auto n = writing(g.d_b_ih ? g.d_b_ih + 2 * hidden : nullptr);
        put = {{{ih, hidden, 3 * hidden}, {n, 0, hidden}, {hh, hidden, 4 * hidden}}, block.add};
    }
    sum_rows<T>(rows, width, block.d_gates, put);
}

// d_x, by way of rows of its own where the input's are not those of the block.
template <class T>
void input_pass(const RecurrentParams<T>& p, const RecurrentGrads<T>& g, const Rows<T>& rows,
                const BlockGrads<T>& block) {
    if (!g.d_x) return;
    const RowsView view = rows.view(block.begin, block.end);
    const i64 count = rows.count(block.begin, block.end);
    const bool in_place = rows.in_place(), gru = p.cell == Cell::gru;
    const Workspace<T> own(in_place ? 0 : count * p.inputs);
    T* dx = in_place ? g.d_x + view.row0 * p.inputs : own.get();
    const i64 first = (gru ? 2 : gates_of(p.cell)) * p.hidden;
    multiply<T>(count, p.inputs, first, {block.d_by_x + (gru ? p.hidden : 0), block.d_row, 1},
                {p.w_ih, p.inputs, 1}, dx, p.inputs, in_place && g.d_x_add);
    if (gru) {
        multiply<T>(count, p.inputs, p.hidden, {block.d_by_x, block.d_row, 1},
                    {p.w_ih + first * p.inputs, p.inputs, 1}, dx, p.inputs, true);
    }
    if (in_place) return;
    move_rows(g.d_x_add ? Move::add : Move::put, view, p.inputs, dx, g.d_x, p.x_step, p.x_row);
}

}  // namespace

template <class T>
void recurrent_gradients(const RecurrentParams<T>& p, const RecurrentGrads<T>& g,
                         const Rows<T>& rows, const BlockGrads<T>& block) {
    const i64 count = rows.count(block.begin, block.end);
    const RowsView view = rows.view(block.begin, block.end);
    if (g.d_w_ih || g.d_w_hh) {
        const bool gather = g.d_w_ih && !rows.in_place();
        const Workspace<T> gathered(gather ? count * p.inputs : 0);
        if (gather) {
            move_rows(Move::gather, view, p.inputs, gathered.get(), const_cast<T*>(p.x), p.x_step,
                      p.x_row);
        }
        weight_pass(p, g, count, gather ? gathered.get() : p.x + view.row0 * p.inputs, block);
    }
    bias_pass(p, g, count, block);
    input_pass(p, g, rows, block);
}

template <class T>
void norm_gradients(const RecurrentParams<T>& p, const RecurrentGrads<T>& g, i64 rows,
                    const BlockGrads<T>& block, const T* by_x, const T* by_h,
                    const Accumulate<T>* d_cell, const Accumulate<T>* d_gain_c) {
    const i64 width = 4 * p.hidden;
    if (g.d_gain_ih || g.d_gain_hh) {
        const GainValues<Storage<T>> values{reading(block.d_gates), reading(by_x), reading(by_h),
                                            p.gates_row};
        const PutGains<Storage<T>> put{
            {writing(g.d_gain_ih), 0, width}, {writing(g.d_gain_hh), 0, width}, block.add};
        sum_columns_of<2, Accumulate<T>>("recurrent_sums", {rows, width, 1}, values, put);
    }
    const auto of_cell = [&](const Accumulate<T>* from, T* to) {
        if (to) sum_rows<T>(rows, p.hidden, from, {{{writing(to), 0, p.hidden}}, block.add});
    };
    of_cell(d_gain_c, g.d_gain_c);
    of_cell(d_cell, g.d_bias_c);
}

#define FUSEDNN_RECURRENT_GRADIENTS(T)                                                        \
    template void recurrent_gradients<T>(const RecurrentParams<T>&, const RecurrentGrads<T>&, \
                                         const Rows<T>&, const BlockGrads<T>&);               \
    template void norm_gradients<T>(const RecurrentParams<T>&, const RecurrentGrads<T>&, i64, \
                                    const BlockGrads<T>&, const T*, const T*,                 \
                                    const Accumulate<T>*, const Accumulate<T>*);
FUSEDNN_INSTANTIATE(FUSEDNN_RECURRENT_GRADIENTS)
FUSEDNN_INSTANTIATE_HALF(FUSEDNN_RECURRENT_GRADIENTS)

}  // namespace fusednn::cuda
