// C (m x n, row stride ldc) = act(A B + bias), A and B with any strides, for batches of products of
// one shape. product.h has the kernels.
#include "cuda/gemm/product.h"
#include "cuda/kernels.h"

namespace fusednn::cuda {

namespace {

// Can 16 bytes be read (written) at once where neighbours lie together?
template <class T>
bool aligned_lines(const T* data, i64 line) {
    return detail::whole_packs(data) && line % Pack<T>::kSize == 0;
}

// Matrices of a product's batches, which are counted in two digits: the outer one times `batch`,
// the inner one times inner_batch.
template <class T, bool kAlong>
struct Matrices : Strided<T, kAlong> {
    std::uint32_t inner;
    i64 inner_batch;

    FUSEDNN_DEVICE i64 batch_offset(i64 z) const {
        const std::uint32_t outer = std::uint32_t(z) / inner, digit = std::uint32_t(z) % inner;
        return outer * this->batch + digit * inner_batch;
    }
};

// They all begin and go on where 16 bytes do, or none is taken to.
template <bool kAlong, class T>
Matrices<T, kAlong> matrices(const T* data, i64 row, i64 depth, i64 inner, const i64 (&batch)[2]) {
    const bool neighbours = (kAlong ? depth : row) == 1;
    const bool wide = neighbours && aligned_lines(data, kAlong ? row : depth) &&
                      batch[0] % Pack<T>::kSize == 0 && batch[1] % Pack<T>::kSize == 0;
    return {{data, batch[0], row, depth, wide}, std::uint32_t(inner), batch[1]};
}

template <bool kAlongA, bool kAlongB, class T>
void run(const GemmParams<T>& p, const GemmBatches& batches) {
    using Value = Storage<T>;
    using Out = Output<Value, PlainColumns>;
    const i64 matrix = p.m * p.ldc, inner = batches.count[1];
    const Out out{storage(p.c),
                  matrix,
                  p.ldc,
                  {},
                  aligned_lines(p.c, p.ldc) && matrix % Pack<T>::kSize == 0,
                  storage(p.row_bias),
                  0,
                  storage(p.col_bias),
                  p.accumulate,
                  p.activation == Activation::relu,
                  StorageOf<T>::format()};
    using Product = Work<Matrices<Value, kAlongA>, Matrices<Value, kAlongB>, Out>;
    const SameShapes<Product> problem{
        {p.m, p.n, p.k, matrices<kAlongA>(storage(p.a), p.a_row, p.a_col, inner, batches.a),
         matrices<kAlongB>(storage(p.b), p.b_col, p.b_row, inner, batches.b), out}};
    product<false>("gemm", problem, batches.count[0] * inner);
}

}  // namespace

template <class T>
void gemm_batches(const GemmParams<T>& p, const GemmBatches& batches) {
    const i64 outer = batches.count[0], inner = batches.count[1];
    if (outer * inner > kMostBlocks) {  // batches are numbered in 32 bits
        const int half = outer > 1 ? 0 : 1;
        GemmBatches first = batches, second = batches;
        first.count[half] /= 2;
        second.count[half] -= first.count[half];
        GemmParams<T> rest = p;
        rest.a += first.count[half] * batches.a[half];
        rest.b += first.count[half] * batches.b[half];
        rest.c += first.count[0] * first.count[1] * p.m * p.ldc;
        gemm_batches(p, first);
        return gemm_batches(rest, second);
    }
    const bool along_a = p.a_col == 1, along_b = p.b_row == 1;
    if (along_a) {
        along_b ? run<true, true>(p, batches) : run<true, false>(p, batches);
    } else {
        along_b ? run<false, true>(p, batches) : run<false, false>(p, batches);
    }
}

template <class T>
void gemm(const GemmParams<T>& p) {
    gemm_batches(p, {{1, 1}, {0, 0}, {0, 0}});
}

#define FUSEDNN_GEMM(T)                          \
    template void gemm<T>(const GemmParams<T>&); \
    template void gemm_batches<T>(const GemmParams<T>&, const GemmBatches&);
FUSEDNN_INSTANTIATE(FUSEDNN_GEMM)
FUSEDNN_INSTANTIATE_HALF(FUSEDNN_GEMM)

}  // namespace fusednn::cuda
