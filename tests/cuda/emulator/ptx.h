// The functions of csrc/cuda/ptx.h, for the emulator.
#pragma once
#include "cuda/gpu.h"

namespace emulator {

void mma_bf16_body(WarpWords&, std::uint32_t mask);
void mma_f16_body(WarpWords&, std::uint32_t mask);
void mma_tf32_body(WarpWords&, std::uint32_t mask);
void mma_f64_body(WarpWords&, std::uint32_t mask);

struct MmaWords {
    std::uint32_t a[4], b[2];
    float c[4];
};
inline void mma(const char* name, WarpBody body, float (&d)[4], const std::uint32_t (&a)[4],
                const std::uint32_t (&b)[2], Site site) {
    const MmaWords in{{a[0], a[1], a[2], a[3]}, {b[0], b[1]}, {d[0], d[1], d[2], d[3]}};
    float out[4];
    warp_operation(name, body, 0xffffffffu, true, site, &in, sizeof in, out, sizeof out);
    for (int i = 0; i < 4; ++i) d[i] = out[i];
}

}  // namespace emulator

namespace fusednn::cuda {

template <int N>
void copy_async(void* to, const void* from, int source_bytes = N, EMULATOR_SITE) {
    static_assert(N == 4 || N == 8 || N == 16, "cp.async moves 4, 8 or 16 bytes");
    emulator::copy_async(to, from, N, source_bytes, EMULATOR_HERE);
}
inline void copy_async_commit() {
    emulator::copy_async_commit();
}
template <int kKeep>
void copy_async_wait(EMULATOR_SITE) {
    emulator::copy_async_wait(kKeep, EMULATOR_HERE);
}

inline void load_matrix_x4(std::uint32_t (&r)[4], const void* row, EMULATOR_SITE) {
    emulator::load_matrix(r, 4, false, row, EMULATOR_HERE);
}
inline void load_matrix_x4_transposed(std::uint32_t (&r)[4], const void* row, EMULATOR_SITE) {
    emulator::load_matrix(r, 4, true, row, EMULATOR_HERE);
}

#define EMULATOR_MMA(name)                                                                    \
    inline void name(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2], \
                     EMULATOR_SITE) {                                                         \
        emulator::mma(#name, emulator::name##_body, d, a, b, EMULATOR_HERE);                  \
    }
EMULATOR_MMA(mma_bf16)
EMULATOR_MMA(mma_f16)
EMULATOR_MMA(mma_tf32)
#undef EMULATOR_MMA
inline void mma_f64(double (&d)[2], double a, double b, EMULATOR_SITE) {
    const double in[4] = {a, b, d[0], d[1]};
    emulator::warp_operation("mma_f64", emulator::mma_f64_body, 0xffffffffu, true, EMULATOR_HERE,
                             in, sizeof in, d, sizeof d);
}
inline std::uint32_t to_tf32(float x) {
    auto u = emulator::bits<std::uint32_t>(x);
    if ((u & 0x7f800000u) != 0x7f800000u) u = (u + 0x1000u) & 0xffffe000u;
    return u;
}

inline void named_barrier_sync(int id, int threads, EMULATOR_SITE) {
    emulator::named_barrier(EMULATOR_HERE, id, threads, true);
}
inline void named_barrier_arrive(int id, int threads, EMULATOR_SITE) {
    emulator::named_barrier(EMULATOR_HERE, id, threads, false);
}
inline void grid_sync(unsigned*, unsigned& phase, EMULATOR_SITE) {
    ++phase;
    emulator::grid_barrier(EMULATOR_HERE);
}

}  // namespace fusednn::cuda
