// What sequence_half.cu and sequence_half_back.cu share: products of few rows of a 16-bit array in
// memory with weights in shared memory, on the tensor cores.
//
//   depth       each warp has every eighth piece of 32; their parts are added in their order
//   fragments   a lane has 8 neighbours of the depth, read at once, where mma m16n8k16 speaks of
//               others: as long as both sides take the same ones, the sum is that of two products
//
// The order of a sum depends on the depth alone.
#pragma once
#include "cuda/elementwise.h"
#include "cuda/recurrent/sequence.h"

namespace fusednn::cuda {

namespace {

using Half = HalfBits;

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kMostUnits = 8, kRows = 16, kColumns = 8, kPiece = 32;
constexpr int kMostTiles = 4;  // of 8 columns: the gates of 8 units
// Shared memory of a block: two to a multiprocessor of sm_80 and sm_90, one on those between.
constexpr i64 kMostShared = 96 << 10, kMostHidden = 1024, kMostBatch = 64;

// Four words of two values, at once.
struct alignas(16) Words {
    std::uint32_t of[4];
};

// Rows of weights in shared memory: 8 of them, 64 bytes apart from the next modulo 128, are read by
// the 8 lanes of a quarter of a warp without conflicts.
FUSEDNN_HOST_DEVICE int pitch_of(i64 depth) {
    return int((depth + 63) / 64 * 64) + 32;
}

// What a warp multiplies: rows [first, first + 16) of a, of which there are `rows`, with `depth`
// values; wide: they can be read by 16 bytes.
struct Rows16 {
    HalfIn a;
    i64 row, first, rows;
    int depth;
    bool wide;

    FUSEDNN_DEVICE Words at(int r, int k) const {
        Words words{};
        if (first + r >= rows) return words;
        const HalfBits* from = a.data + (first + r) * row + k;
        if (wide) {
            if (k < depth) words = *reinterpret_cast<const Words*>(from);
            return words;
        }
#pragma unroll
        for (int e = 0; e < 8; ++e) {
            const std::uint32_t bits = k + e < depth ? from[e].bits : 0;
            words.of[e / 2] |= bits << (e % 2 * 16);
        }
        return words;
    }
};

// This warp's part of a (16 x depth) times weights^T (columns x depth, `tiles` times 8): sum[j] has
// rows l / 4 and l / 4 + 8, columns j * 8 + l % 4 * 2 and the next one.
FUSEDNN_DEVICE void multiply_tile(float (&sum)[kMostTiles][4], const Rows16& rows, int tiles,
                                  const HalfBits* weights, int pitch) {
    const int lane = int(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
    const bool brain = rows.a.format.brain;
#pragma unroll 2
    for (int k0 = int(threadIdx.x) / 32 * kPiece; k0 < rows.depth; k0 += kWarps * kPiece) {
        const int k = k0 + t * 8;
        const Words upper = rows.at(g, k), lower = rows.at(g + 8, k);
        const std::uint32_t a[2][4] = {{upper.of[0], lower.of[0], upper.of[1], lower.of[1]},
                                       {upper.of[2], lower.of[2], upper.of[3], lower.of[3]}};
#pragma unroll
        for (int j = 0; j < kMostTiles; ++j) {
            if (j >= tiles) break;
            const Words w = *reinterpret_cast<const Words*>(weights + (j * 8 + g) * pitch + k);
            const std::uint32_t b[2][2] = {{w.of[0], w.of[1]}, {w.of[2], w.of[3]}};
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                if (brain) {
                    mma_bf16(sum[j], a[half], b[half]);
                } else {
                    mma_f16(sum[j], a[half], b[half]);
                }
            }
        }
    }
}

template <class T>
bool suits(const RecurrentParams<T>& p, i64 shared, i64 blocks, i64 depth) {
    return p.cell != Cell::norm_lstm && !p.w_hr && p.hidden > 0 && p.hidden <= kMostHidden &&
           p.batch > 0 && p.batch <= kMostBatch && shared <= kMostShared &&
           blocks * p.batch * depth * 2 <= kMostTraffic;
}
i64 blocks_of(i64 hidden, int units) {
    return (hidden + units - 1) / units;
}

}  // namespace

}  // namespace fusednn::cuda
