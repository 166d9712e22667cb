// Instructions that CUDA C++ has no function for, as inline PTX. tests/cuda/emulator/ptx.h has the
// same functions for the emulator; a new one goes into both.
#pragma once
#include "cuda/gpu.h"

namespace fusednn::cuda {

// ---- asynchronous copies (PTX ISA: cp.async)
// -----------------------------------------------------

FUSEDNN_DEVICE std::uint32_t shared_address(const void* pointer) {
    return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

// Copies N bytes from global to shared memory; behind the first `source_bytes` come zeros.
template <int N>
FUSEDNN_DEVICE void copy_async(void* to, const void* from, int source_bytes = N) {
    static_assert(N == 4 || N == 8 || N == 16, "cp.async moves 4, 8 or 16 bytes");
    if constexpr (N == 16) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(shared_address(to)),
                     "l"(from), "r"(source_bytes)
                     : "memory");
    } else {
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;\n" ::"r"(shared_address(to)),
                     "l"(from), "n"(N), "r"(source_bytes)
                     : "memory");
    }
}
// Ends a group of copies.
FUSEDNN_DEVICE void copy_async_commit() {
    asm volatile("cp.async.commit_group;\n" ::: "memory");
}
// Waits until at most kKeep groups of this thread are under way. Other threads see the data after a
// barrier behind it.
template <int kKeep>
FUSEDNN_DEVICE void copy_async_wait() {
    asm volatile("cp.async.wait_group %0;\n" ::"n"(kKeep) : "memory");
}

// ---- tensor cores (PTX ISA: mma.sync)
// ------------------------------------------------------------

// Four 8 x 8 matrices of 16-bit elements; lane l gives the address of row l % 8 of matrix l / 8.
FUSEDNN_DEVICE void load_matrix_x4(std::uint32_t (&r)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}
// The same, each matrix transposed.
FUSEDNN_DEVICE void load_matrix_x4_transposed(std::uint32_t (&r)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}

#define FUSEDNN_MMA(name, shape_and_types)                                                \
    FUSEDNN_DEVICE void name(float (&d)[4], const std::uint32_t (&a)[4],                  \
                             const std::uint32_t (&b)[2]) {                               \
        asm volatile("mma.sync.aligned." shape_and_types                                  \
                     " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"           \
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                     \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1])); \
    }
// d (16 x 8, float) += a (16 x 16) b (16 x 8)
FUSEDNN_MMA(mma_bf16, "m16n8k16.row.col.f32.bf16.bf16.f32")
FUSEDNN_MMA(mma_f16, "m16n8k16.row.col.f32.f16.f16.f32")
// d (16 x 8, float) += a (16 x 8) b (8 x 8), of values rounded by to_tf32
FUSEDNN_MMA(mma_tf32, "m16n8k8.row.col.f32.tf32.tf32.f32")
#undef FUSEDNN_MMA

// d (8 x 8, double) += a (8 x 4) b (4 x 8)
FUSEDNN_DEVICE void mma_f64(double (&d)[2], double a, double b) {
    asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0,%1}, {%2}, {%3}, {%0,%1};\n"
                 : "+d"(d[0]), "+d"(d[1])
                 : "d"(a), "d"(b));
}

// x with 10 bits of mantissa, rounded to nearest, halves away from zero.
FUSEDNN_DEVICE std::uint32_t to_tf32(float x) {
    std::uint32_t r;
    asm("cvt.rna.tf32.f32 %0, %1;\n" : "=r"(r) : "f"(x));
    return r;
}

// ---- barriers
// ------------------------------------------------------------------------------------

// Barriers 1 to 15 of a block, for `threads` of its threads (whole warps); `arrive` does not wait.
FUSEDNN_DEVICE void named_barrier_sync(int id, int threads) {
    asm volatile("bar.sync %0, %1;\n" ::"r"(id), "r"(threads) : "memory");
}
FUSEDNN_DEVICE void named_barrier_arrive(int id, int threads) {
    asm volatile("bar.arrive %0, %1;\n" ::"r"(id), "r"(threads) : "memory");
}

// All blocks of a cooperative launch meet. `counter` is zero before the launch; `phase` counts the
// meetings, from 0, in each thread.
FUSEDNN_DEVICE void grid_sync(unsigned* counter, unsigned& phase) {
    __syncthreads();
    ++phase;
    if (threadIdx.x + threadIdx.y + threadIdx.z == 0) {
        const unsigned blocks = gridDim.x * gridDim.y * gridDim.z;
        asm volatile("red.release.gpu.global.add.u32 [%0], 1;\n" ::"l"(counter) : "memory");
        unsigned arrived;
        do {
            asm volatile("ld.acquire.gpu.global.u32 %0, [%1];\n"
                         : "=r"(arrived)
                         : "l"(counter)
                         : "memory");
        } while (arrived < phase * blocks);
    }
    __syncthreads();
}

}  // namespace fusednn::cuda
