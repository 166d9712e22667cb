#include "cuda/recurrent/rows.h"

#include "cuda/elementwise.h"

namespace fusednn::cuda {

namespace {

constexpr int kThreads = 256;

// An element of a row, and whether the row exists.
struct RowPlace {
    i64 t, i, unit, row;
    bool active;
    FUSEDNN_DEVICE RowPlace(const RowsView& view, i64 width, i64 at) {
        const i64 place = quotient(at, width), step = quotient(place, view.batch);
        t = view.time + step;
        i = place - step * view.batch;
        unit = at - place * width;
        row = view.start(t) - view.row0 + i;
        active = i < view.active(t);
    }
};

template <class T, class Row>
__global__ void __launch_bounds__(kThreads)
    move_kernel(Move move, RowsView view, i64 size, i64 width, Write<Row> rows, Write<T> padded,
                i64 step, i64 row) {
    const i64 at = i64(blockIdx.x) * kThreads + threadIdx.x;
    if (at >= size) return;
    const RowPlace p(view, width, at);
    const i64 mine = p.row * width + p.unit;
    const i64 place = p.t * step + view.sequence_of(p.i) * row + p.unit;
    if (!p.active) {
        if (move == Move::put || move == Move::clear) padded[place] = Accumulate<T>(0);
    } else if (move == Move::gather) {
        rows[mine] = Read<T>(padded)[place];
    } else if (move != Move::clear) {
        Accumulate<T> value = Read<Row>(rows)[mine];
        if (move == Move::add) value += Read<T>(padded)[place];
        padded[place] = value;
    }
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    mask_rows_kernel(RowsView view, i64 size, i64 width, Read<T> from, Read<T> mask, Write<T> to) {
    using Sum = Accumulate<T>;
    const i64 at = i64(blockIdx.x) * kThreads + threadIdx.x;
    if (at >= size) return;
    const RowPlace p(view, width, at);
    if (!p.active) return;
    const Sum factor = mask[view.sequence_of(p.i) * width + p.unit];
    const i64 mine = p.row * width + p.unit;
    to[mine] = factor != Sum(0) ? from[mine] * factor : Sum(0);
}

// Starts of the steps, then the sequences: nothing where all are of one length.
template <class T>
std::vector<i64> lists_of(const RecurrentParams<T>& p) {
    std::vector<i64> lists;
    if (!p.active) return lists;
    i64 row = 0;
    for (i64 t = 0; t < p.steps; row += p.active[t++]) lists.push_back(row);
    lists.push_back(row);
    lists.insert(lists.end(), p.order, p.order + p.batch);
    return lists;
}

}  // namespace

template <class T, class Row>
void move_rows(Move move, const RowsView& view, i64 width, Row* rows, T* padded, i64 step,
               i64 row) {
    const i64 size = view.steps * view.batch * width;
    launch("move_rows", {blocks_for(size, kThreads), kThreads},
           move_kernel<Storage<T>, Storage<Row>>, move, view, size, width, writing(rows),
           writing(padded), step, row);
}

template <class T>
void mask_rows(const RowsView& view, i64 width, const T* from, const T* mask, T* to) {
    const i64 size = view.steps * view.batch * width;
    launch("mask_rows", {blocks_for(size, kThreads), kThreads}, mask_rows_kernel<Storage<T>>, view,
           size, width, reading(from), reading(mask), writing(to));
}

template <class T>
Rows<T>::Rows(const RecurrentParams<T>& p)
    : p_(p),
      lists_(lists_of(p)),
      memory_(i64(lists_.size())),
      starts_(memory_.get()),
      sequences_(p.active ? memory_.get() + p.steps + 1 : nullptr) {
    if (lists_.empty()) return;
    check(cudaMemcpyAsync(memory_.get(), lists_.data(), lists_.size() * sizeof(i64),
                          cudaMemcpyHostToDevice, current_stream()),
          "copying the lengths");
}

template <class T>
RowsView Rows<T>::view(i64 begin, i64 end) const {
    return {first_time(begin, end), end - begin, p_.batch,
            first_row(begin, end),  starts_,     sequences_};
}

template <class T>
void Rows<T>::mask_state(const T* state, i64 width, const T* mask, T* seen) const {
    mask_rows(state_view(), width, state, mask, seen);
}

#define FUSEDNN_MOVE(T, Row) \
    template void move_rows<T, Row>(Move, const RowsView&, i64, Row*, T*, i64, i64);
#define FUSEDNN_ROWS(T)     \
    template class Rows<T>; \
    FUSEDNN_MOVE(T, T)      \
    template void mask_rows<T>(const RowsView&, i64, const T*, const T*, T*);
FUSEDNN_INSTANTIATE(FUSEDNN_ROWS)
FUSEDNN_INSTANTIATE_HALF(FUSEDNN_ROWS)
FUSEDNN_MOVE(BFloat16, float)
FUSEDNN_MOVE(Float16, float)

}  // namespace fusednn::cuda
