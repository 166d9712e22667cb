// C (m x n, row stride ldc) = act(A B + bias), A and B with any strides. product.h has the kernels.
#include "cuda/gemm/product.h"
#include "cuda/kernels.h"

namespace fusednn::cuda {

namespace {

// Can 16 bytes be read (written) at once where neighbours lie together?
template <class T>
bool aligned_lines(const T* data, i64 line) {
    return detail::whole_packs(data) && line % Pack<T>::kSize == 0;
}

template <class T, bool kAlong>
Strided<T, kAlong> matrix(const T* data, i64 row, i64 depth) {
    const bool neighbours = (kAlong ? depth : row) == 1;
    return {data, 0, row, depth, neighbours && aligned_lines(data, kAlong ? row : depth)};
}

template <class T, bool kAlongA, bool kAlongB>
void run(const GemmParams<T>& p) {
    using Out = Output<T, PlainColumns>;
    const Out out{p.c,        0, p.ldc,      {},           aligned_lines(p.c, p.ldc),
                  p.row_bias, 0, p.col_bias, p.accumulate, p.activation == Activation::relu};
    using Product = Work<Strided<T, kAlongA>, Strided<T, kAlongB>, Out>;
    const SameShapes<Product> problem{{p.m, p.n, p.k, matrix<T, kAlongA>(p.a, p.a_row, p.a_col),
                                       matrix<T, kAlongB>(p.b, p.b_col, p.b_row), out}};
    product<false>("gemm", problem, 1, p.planned_m ? p.planned_m : p.m);
}

}  // namespace

template <class T>
void gemm(const GemmParams<T>& p) {
    const bool along_a = p.a_col == 1, along_b = p.b_row == 1;
    if (along_a) {
        along_b ? run<T, true, true>(p) : run<T, true, false>(p);
    } else {
        along_b ? run<T, false, true>(p) : run<T, false, false>(p);
    }
}

#define FUSEDNN_GEMM(T) template void gemm<T>(const GemmParams<T>&);
FUSEDNN_INSTANTIATE(FUSEDNN_GEMM)

}  // namespace fusednn::cuda
