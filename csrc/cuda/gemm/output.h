// Where a product's sums go, and what is done to them on the way.
#pragma once
#include "core/kernels.h"
#include "cuda/gemm/tile.h"

namespace fusednn::cuda {

// Columns that follow each other.
struct PlainColumns {
    static constexpr bool kPlain = true;
    FUSEDNN_DEVICE i64 offset(i64 column) const { return column; }
};
// Columns that are positions in images.
template <class I>
struct ImageColumns {
    static constexpr bool kPlain = false;
    Lattice<I> points;
    I image[3];
    FUSEDNN_DEVICE i64 offset(i64 column) const {
        return points.point(points.digits(column), image).offset;
    }
};

// Element (i, j) of batch z stands at data[z * batch + i * row + columns.offset(j)].
template <class T, class Columns_>
struct Output {
    using Columns = Columns_;
    using Value = T;
    T* data;
    i64 batch, row;
    Columns columns;
    bool wide;          // columns that would fill 16 bytes lie together, at a multiple of 16 bytes
    const T* row_bias;  // or null; z begins at z * bias_batch
    i64 bias_batch;
    const T* col_bias;  // or null
    bool accumulate, relu;
    Format<T> format;  // of all the product's arrays

    // What is stored for the sum of row i, column j, where `old` stands.
    template <class Sum>
    FUSEDNN_DEVICE T finish(Sum sum, T old, i64 z, i64 i, i64 j) const {
        if (accumulate) sum += format.widen(old);
        if (row_bias) sum += format.widen(row_bias[z * bias_batch + i]);
        if (col_bias) sum += format.widen(col_bias[j]);
        return format.narrow(relu && sum < Sum(0) ? Sum(0) : sum);  // NaN stays
    }
};

}  // namespace fusednn::cuda
