// Matrices transposed into new memory: how a channels-last array becomes one that kernels read.
//   x (batch, rows, columns) -> y (batch, columns, rows)
#include "cpu/kernels.h"
#include "cpu/parallel.h"

namespace fusednn {
namespace FUSEDNN_ISA {

namespace {

// Rows of x that a task reads: 256 KB with 256 columns of float32. Every row of y is written in
// stretches of a kilobyte.
constexpr i64 kPanelRows = 256;

// Up to kLanes x kLanes elements. Rows and columns that do not exist are not touched.
template <class T>
FUSEDNN_INLINE void transpose_block(const T* x, i64 x_stride, i64 rows, i64 columns, T* y,
                                    i64 y_stride) {
    constexpr int lanes = kLanes<T>;
    Vec<T> block[lanes];
    if (rows == lanes && columns == lanes) {
#pragma GCC unroll 16
        for (int i = 0; i < lanes; ++i) block[i] = load(x + i * x_stride);
        transpose<T>(block);
#pragma GCC unroll 16
        for (int i = 0; i < lanes; ++i) store(y + i * y_stride, block[i]);
        return;
    }
    for (int i = 0; i < lanes; ++i) {
        block[i] = i < rows ? load_partial(x + i * x_stride, columns) : Vec<T>{};
    }
    transpose<T>(block);
    for (int i = 0; i < columns; ++i) store_partial(y + i * y_stride, block[i], rows);
}

// Pixels of few colours: blocks would be mostly empty.
template <class T, int kColumns>
void split_colours(const T* x, i64 rows, T* y, i64 y_stride) {
    for (i64 r = 0; r < rows; ++r) {
#pragma GCC unroll 4
        for (int c = 0; c < kColumns; ++c) y[c * y_stride + r] = x[r * kColumns + c];
    }
}

template <class T>
void transpose_panel(const T* x, i64 rows, i64 columns, T* y, i64 y_stride) {
    constexpr i64 lanes = kLanes<T>;
    if (columns == 2) return split_colours<T, 2>(x, rows, y, y_stride);
    if (columns == 3) return split_colours<T, 3>(x, rows, y, y_stride);
    if (columns == 4) return split_colours<T, 4>(x, rows, y, y_stride);
    for (i64 c = 0; c < columns; c += lanes) {
        for (i64 r = 0; r < rows; r += lanes) {
            transpose_block(x + r * columns + c, columns, min_of(lanes, rows - r),
                            min_of(lanes, columns - c), y + c * y_stride + r, y_stride);
        }
    }
}

}  // namespace

template <class T>
void transpose_matrices(i64 batch, i64 rows, i64 columns, const T* x, T* y) {
    const i64 panels = ceil_div(rows, kPanelRows), tasks = batch * panels;
    const int slots = parallel_slots(tasks, 2 * batch * rows * columns * i64(sizeof(T)));
    parallel(tasks, slots, [&](i64 task, int) {
        const i64 image = task / panels * rows * columns, row = task % panels * kPanelRows;
        transpose_panel(x + image + row * columns, min_of(kPanelRows, rows - row), columns,
                        y + image + row, rows);
    });
}

#define FUSEDNN_TRANSPOSE(T) template void transpose_matrices<T>(i64, i64, i64, const T*, T*);
FUSEDNN_INSTANTIATE(FUSEDNN_TRANSPOSE)

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
