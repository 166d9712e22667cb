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

template <bool kAlong, class T>
Strided<T, kAlong> matrix(const T* data, i64 row, i64 depth) {
    const bool neighbours = (kAlong ? depth : row) == 1;
    return {data, 0, row, depth, neighbours && aligned_lines(data, kAlong ? row : depth)};
}

template <class T, bool kAlongA, bool kAlongB>
void run(const GemmParams<T>& p, i64 whole_m) {
    using Value = Storage<T>;
    using Out = Output<Value, PlainColumns>;
    const Out out{storage(p.c),
                  0,
                  p.ldc,
                  {},
                  aligned_lines(p.c, p.ldc),
                  storage(p.row_bias),
                  0,
                  storage(p.col_bias),
                  p.accumulate,
                  p.activation == Activation::relu,
                  StorageOf<T>::format()};
    using Product = Work<Strided<Value, kAlongA>, Strided<Value, kAlongB>, Out>;
    const SameShapes<Product> problem{{p.m, p.n, p.k,
                                       matrix<kAlongA>(storage(p.a), p.a_row, p.a_col),
                                       matrix<kAlongB>(storage(p.b), p.b_col, p.b_row), out}};
    product<false>("gemm", problem, 1, whole_m);
}

}  // namespace

template <class T>
void gemm_part(const GemmParams<T>& p, i64 whole_m) {
    const bool along_a = p.a_col == 1, along_b = p.b_row == 1;
    if (along_a) {
        along_b ? run<T, true, true>(p, whole_m) : run<T, true, false>(p, whole_m);
    } else {
        along_b ? run<T, false, true>(p, whole_m) : run<T, false, false>(p, whole_m);
    }
}

template <class T>
void gemm(const GemmParams<T>& p) {
    gemm_part(p, p.m);
}

#define FUSEDNN_GEMM(T)                          \
    template void gemm<T>(const GemmParams<T>&); \
    template void gemm_part<T>(const GemmParams<T>&, i64);
FUSEDNN_INSTANTIATE(FUSEDNN_GEMM)
FUSEDNN_INSTANTIATE_HALF(FUSEDNN_GEMM)

}  // namespace fusednn::cuda
