// One warp runs one instruction on given registers, and writes down what every lane got. On a GPU
// and on both emulators the bits are those that tests/cuda/test_probes.py derives from the PTX ISA.
#include <cstring>
#include <stdexcept>

#include "cuda/elementwise.h"
#include "kernels/entries.h"

namespace fusednn::cuda {

namespace {

using Word = std::uint32_t;
constexpr int kLanes = 32;

// ---- tensor cores ----------------------------------------

struct Bf16 {
    static FUSEDNN_DEVICE void multiply(float (&d)[4], const Word (&a)[4], const Word (&b)[2]) {
        mma_bf16(d, a, b);
    }
};
struct F16 {
    static FUSEDNN_DEVICE void multiply(float (&d)[4], const Word (&a)[4], const Word (&b)[2]) {
        mma_f16(d, a, b);
    }
};
struct Tf32 {
    static FUSEDNN_DEVICE void multiply(float (&d)[4], const Word (&a)[4], const Word (&b)[2]) {
        mma_tf32(d, a, b);
    }
};

// A lane's words: a[4], b[2], d[4]
template <class Type>
__global__ void mma_kernel(const Word* in, Word* out) {
    const int lane = int(threadIdx.x);
    in += lane * 10;
    Word a[4], b[2];
    float d[4];
    for (int i = 0; i < 4; ++i) a[i] = in[i];
    for (int i = 0; i < 2; ++i) b[i] = in[4 + i];
    for (int i = 0; i < 4; ++i) d[i] = __uint_as_float(in[6 + i]);
    Type::multiply(d, a, b);
    for (int i = 0; i < 4; ++i) out[lane * 4 + i] = __float_as_uint(d[i]);
}

// A lane's doubles: a, b, d[2]
__global__ void mma_f64_kernel(const Word* words, Word* result) {
    const int lane = int(threadIdx.x);
    const double* in = reinterpret_cast<const double*>(words) + lane * 4;
    double d[2] = {in[2], in[3]};
    mma_f64(d, in[0], in[1]);
    double* out = reinterpret_cast<double*>(result) + lane * 2;
    out[0] = d[0];
    out[1] = d[1];
}

// Shared memory holds the 16-bit numbers 0 to 511 as 64 rows of 8; lane l names row in[l].
template <bool kTransposed>
__global__ void load_matrix_kernel(const Word* in, Word* out) {
    FUSEDNN_SHARED(uint4[64], rows);
    const int lane = int(threadIdx.x);
    for (int r = lane; r < 64; r += kLanes) {
        const Word v = Word(r) * 8;
        rows[r] = make_uint4(v | (v + 1) << 16, (v + 2) | (v + 3) << 16, (v + 4) | (v + 5) << 16,
                             (v + 6) | (v + 7) << 16);
    }
    __syncthreads();
    Word r[4];
    if (kTransposed) {
        load_matrix_x4_transposed(r, &rows[in[lane]]);
    } else {
        load_matrix_x4(r, &rows[in[lane]]);
    }
    for (int i = 0; i < 4; ++i) out[lane * 4 + i] = r[i];
}

// ---- asynchronous copies ----------------------------------------

// Lane l copies the first in[l] of N bytes; what lies behind becomes zero. Read by its neighbour.
template <int N>
__global__ void copy_async_kernel(const Word* in, Word* out) {
    constexpr int words = N / 4;
    FUSEDNN_SHARED(uint4[kLanes], buffer);
    const int lane = int(threadIdx.x), other = (lane + 1) % kLanes;
    buffer[lane] = make_uint4(~0u, ~0u, ~0u, ~0u);
    copy_async<N>(&buffer[lane], in + kLanes + lane * words, int(in[lane]));
    copy_async_commit();
    copy_async_wait<0>();
    __syncwarp();
    const uint4 v = buffer[other];
    const Word all[4] = {v.x, v.y, v.z, v.w};
    for (int i = 0; i < 4; ++i) out[lane * 4 + i] = all[i];
}

// Groups end in the order in which they were made: with one still under way, the first is there.
__global__ void copy_groups_kernel(const Word* in, Word* out) {
    FUSEDNN_SHARED(Word[3][kLanes], buffer);
    const int lane = int(threadIdx.x);
    for (int g = 0; g < 3; ++g) {
        copy_async<4>(&buffer[g][lane], in + g * kLanes + lane);
        copy_async_commit();
    }
    copy_async_wait<2>();
    out[lane] = buffer[0][lane];
    copy_async_wait<1>();
    out[kLanes + lane] = buffer[1][lane];
    copy_async_wait<0>();
    out[2 * kLanes + lane] = buffer[2][lane];
}

// ---- warp operations ----------------------------------------

__global__ void shuffle_kernel(const Word* in, Word* out) {
    const int lane = int(threadIdx.x);
    const Word x = in[lane];
    out += lane * 8;
    out[0] = __shfl_up_sync(kAllLanes, x, 3, 8);
    out[1] = __shfl_down_sync(kAllLanes, x, 5, 16);
    out[2] = __shfl_xor_sync(kAllLanes, x, 9);
    out[3] = __shfl_xor_sync(kAllLanes, x, 6, 4);
    out[4] = __shfl_sync(kAllLanes, x, lane * 7 + 3, 16);
    out[5] = __shfl_up_sync(kAllLanes, x, 1);
    // 8 bytes at once
    const double pair = __longlong_as_double((long long)(std::uint64_t(x) << 32 | Word(lane)));
    const auto moved = std::uint64_t(__double_as_longlong(__shfl_xor_sync(kAllLanes, pair, 5)));
    out[6] = Word(moved);
    out[7] = Word(moved >> 32);
}

__global__ void vote_kernel(const Word* in, Word* out) {
    const int lane = int(threadIdx.x);
    const Word x = in[lane];
    out += lane * 12;
    out[0] = __ballot_sync(kAllLanes, (x & 1) != 0);
    out[1] = Word(__all_sync(kAllLanes, x != 0));
    out[2] = Word(__any_sync(kAllLanes, x > 0x7fffffffu));
    out[3] = __match_any_sync(kAllLanes, x % 5);
    out[4] = __reduce_add_sync(kAllLanes, x);
    out[5] = __reduce_min_sync(kAllLanes, x);
    out[6] = __reduce_max_sync(kAllLanes, x);
    out[7] = Word(__reduce_min_sync(kAllLanes, int(x)));
    out[8] = Word(__reduce_max_sync(kAllLanes, int(x)));
    out[9] = __reduce_and_sync(kAllLanes, x | 0xf0f00000u);
    out[10] = __reduce_or_sync(kAllLanes, x & 0x0f0f0f0fu);
    out[11] = __reduce_xor_sync(kAllLanes, x);
}

// The lower half alone.
__global__ void half_warp_kernel(const Word* in, Word* out) {
    const int lane = int(threadIdx.x);
    Word found = in[lane];
    if (lane < 16) found = __reduce_add_sync(0x0000ffffu, found);
    out[lane] = found;
}

// ---- numbers ----------------------------------------

__global__ void round_kernel(const Word* in, Word* out) {
    const int lane = int(threadIdx.x);
    const float x = __uint_as_float(in[lane]);
    out += lane * 6;
    const bf16 b = __float2bfloat16_rn(x);
    const __half h = __float2half_rn(x);
    std::uint16_t bits[2];
    memcpy(&bits[0], &b, 2);
    memcpy(&bits[1], &h, 2);
    out[0] = to_tf32(x);
    out[1] = bits[0];
    out[2] = bits[1];
    out[3] = __float_as_uint(__bfloat162float(b));
    out[4] = __float_as_uint(__half2float(h));
    // Two to a register, the first in the lower half: what fragments are packed with.
    const bf162 pair = __floats2bfloat162_rn(x, float(lane));
    Word packed;
    memcpy(&packed, &pair, 4);
    out[5] = packed;
}

__global__ void integer_kernel(const Word* in, Word* out) {
    const int lane = int(threadIdx.x);
    const Word x = in[lane];
    out += lane * 4;
    out[0] = Word(__popc(x));
    out[1] = Word(__clz(int(x)));
    out[2] = Word(__ffs(int(x)));
    out[3] = __umulhi(x, 0x9e3779b9u);
}

// Positions beyond 32 bits, which no test has the memory for: a and b of two words each.
__global__ void quotient_kernel(const Word* in, Word* out) {
    const int lane = int(threadIdx.x);
    const auto number = [&](int i) {
        return i64(in[lane * 4 + i * 2]) | i64(in[lane * 4 + i * 2 + 1]) << 32;
    };
    const i64 result = quotient(number(0), number(1));
    out[lane * 2] = Word(result);
    out[lane * 2 + 1] = Word(result >> 32);
}

// ---- atomics ----------------------------------------

// out: the results of five kinds of atomics by 32 lanes; the sums of what each gave back.
__global__ void atomic_kernel(const Word* in, Word* out) {
    FUSEDNN_SHARED(Word[5], s);
    const int lane = int(threadIdx.x);
    if (lane < 5) s[lane] = lane == 2 ? ~0u : 0;
    __syncwarp();
    const Word x = in[lane];
    atomicAdd(&s[0], x);
    atomicMax(&s[1], x);
    atomicMin(&s[2], x);
    atomicOr(&s[3], 1u << (x % 32));
    const Word turn = atomicInc(&s[4], 1000u);
    const Word turns = __reduce_add_sync(kAllLanes, turn);
    __syncwarp();
    out[lane] = lane < 5 ? s[lane] : turns;
}

struct Probe {
    const char* name;
    void (*kernel)(const Word*, Word*);
};
const Probe kProbes[] = {
    {"mma_bf16", mma_kernel<Bf16>},
    {"mma_f16", mma_kernel<F16>},
    {"mma_tf32", mma_kernel<Tf32>},
    {"mma_f64", mma_f64_kernel},
    {"load_matrix_x4", load_matrix_kernel<false>},
    {"load_matrix_x4_transposed", load_matrix_kernel<true>},
    {"copy_async_4", copy_async_kernel<4>},
    {"copy_async_8", copy_async_kernel<8>},
    {"copy_async_16", copy_async_kernel<16>},
    {"copy_groups", copy_groups_kernel},
    {"shuffle", shuffle_kernel},
    {"vote", vote_kernel},
    {"half_warp", half_warp_kernel},
    {"round", round_kernel},
    {"integer", integer_kernel},
    {"quotient", quotient_kernel},
    {"atomic", atomic_kernel},
};

}  // namespace

FUSEDNN_TEST_ENTRY test_probe(const char* name, const void* in, void* out) {
    return run_entry([&] {
        for (const Probe& probe : kProbes) {
            if (std::strcmp(probe.name, name) != 0) continue;
            launch(name, {1, kLanes}, probe.kernel, static_cast<const Word*>(in),
                   static_cast<Word*>(out));
            return;
        }
        throw std::runtime_error(std::string("no probe ") + name);
    });
}

}  // namespace fusednn::cuda
