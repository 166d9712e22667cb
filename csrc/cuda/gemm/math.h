// What a block does with a pair of tiles: which thread owns which sums, and how they grow.
//
// Exact: fused multiply-adds, each sum one chain in the order of the depth. Tensor: products of
// factors with 10 bits of mantissa (TF32) on the tensor cores, added in float32. HalfTensor: exact
// products of 16-bit floats on the tensor cores, added in float32.
#pragma once
#include "cuda/elementwise.h"
#include "cuda/gemm/tile.h"

namespace fusednn::cuda {

// ---- exact
// ---------------------------------------------------------------------------------------

// Each thread has kTileRows x kTileColumns sums in groups of 16 bytes, so that it reads its factors
// by wide loads: group g begins at row (g * threads along the rows + mine) * group.
template <class T, int kRows_, int kColumns_, int kTileRows, int kTileColumns, int kBlocks_>
struct Exact {
    using Value = T;
    using Sum = T;
    static constexpr bool kTensor = false;
    static constexpr int kRows = kRows_, kColumns = kColumns_, kDepth = 8, kStages = 3;
    static constexpr int kRun = Pack<T>::kSize, kPad = kRun, kBlocks = kBlocks_;
    static constexpr int kAcross = kColumns / kTileColumns, kDown = kRows / kTileRows;
    static constexpr int kThreads = kAcross * kDown;

    T sum[kTileRows][kTileColumns];

    FUSEDNN_DEVICE void clear() {
#pragma unroll
        for (int i = 0; i < kTileRows; ++i)
#pragma unroll
            for (int j = 0; j < kTileColumns; ++j) sum[i][j] = T(0);
    }

    template <class TileA, class TileB>
    FUSEDNN_DEVICE void add(const TileA& a, const TileB& b, Format<Value>) {
        const int tx = int(threadIdx.x) % kAcross, ty = int(threadIdx.x) / kAcross;
#pragma unroll
        for (int p = 0; p < kDepth; ++p) {
            Pack<T> x[kTileRows / kRun], y[kTileColumns / kRun];
#pragma unroll
            for (int g = 0; g < kTileRows / kRun; ++g) {
                x[g] = *reinterpret_cast<const Pack<T>*>(&a.at((g * kDown + ty) * kRun, p));
            }
#pragma unroll
            for (int g = 0; g < kTileColumns / kRun; ++g) {
                y[g] = *reinterpret_cast<const Pack<T>*>(&b.at((g * kAcross + tx) * kRun, p));
            }
#pragma unroll
            for (int i = 0; i < kTileRows; ++i)
#pragma unroll
                for (int j = 0; j < kTileColumns; ++j)
                    sum[i][j] += x[i / kRun].of[i % kRun] * y[j / kRun].of[j % kRun];
        }
    }

    template <int kPitch>
    FUSEDNN_DEVICE void store(T (&to)[kRows][kPitch]) const {
        const int tx = int(threadIdx.x) % kAcross, ty = int(threadIdx.x) / kAcross;
#pragma unroll
        for (int i = 0; i < kTileRows; ++i) {
#pragma unroll
            for (int g = 0; g < kTileColumns / kRun; ++g) {
                const int row = (i / kRun * kDown + ty) * kRun + i % kRun;
                Pack<T> run;
#pragma unroll
                for (int j = 0; j < kRun; ++j) run.of[j] = sum[i][g * kRun + j];
                *reinterpret_cast<Pack<T>*>(&to[row][(g * kAcross + tx) * kRun]) = run;
            }
        }
    }
};

// ---- tensor cores
// --------------------------------------------------------------------------------

// A factor for the tensor cores, which cut off all but 10 bits of its mantissa. Cutting makes
// values smaller, by 0.72 * 2^-11 of themselves on average over all mantissas (0.72 is the mean of
// 1 / m for m from 1 to 2, evenly on a logarithmic scale), so they are made larger by that much
// first: sums have no drift, the worst error is 1.28 * 2^-11, and what fits 10 bits stays as it is.
// Rounding to nearest (to_tf32) takes four instructions, and they would take longer than the
// products.
FUSEDNN_DEVICE std::uint32_t near_tf32(float x) {
    return __float_as_uint(x * (1.0f + 0.72f / 2048));
}

// Warps in a grid, each with kWarpRows x kWarpColumns sums in fragments of 16 x 8. A lane's place
// in the fragments: PTX ISA, "Matrix Fragments for mma.m16n8k8" (and m16n8k16).
template <int kRows_, int kColumns_, int kWarpRows, int kWarpColumns, int kBlocks_>
struct WarpGrid {
    using Sum = float;
    static constexpr bool kTensor = true;
    static constexpr int kRows = kRows_, kColumns = kColumns_, kStages = 3;
    static constexpr int kPad = 8, kBlocks = kBlocks_;
    static constexpr int kWarpsAcross = kColumns / kWarpColumns;
    static constexpr int kThreads = 32 * kWarpsAcross * (kRows / kWarpRows);
    static constexpr int kDown = kWarpRows / 16, kAcross = kWarpColumns / 8;

    float sum[kDown][kAcross][4];

    FUSEDNN_DEVICE void clear() {
#pragma unroll
        for (int i = 0; i < kDown; ++i)
#pragma unroll
            for (int j = 0; j < kAcross; ++j)
#pragma unroll
                for (int e = 0; e < 4; ++e) sum[i][j][e] = 0.0f;
    }

    template <int kPitch>
    FUSEDNN_DEVICE void store(float (&to)[kRows][kPitch]) const {
        const int lane = int(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
#pragma unroll
        for (int i = 0; i < kDown; ++i)
#pragma unroll
            for (int j = 0; j < kAcross; ++j)
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const Run<float, 2> pair{{sum[i][j][2 * half], sum[i][j][2 * half + 1]}};
                    const int row = first_row() + i * 16 + g + 8 * half;
                    *reinterpret_cast<Run<float, 2>*>(&to[row][first_column() + j * 8 + 2 * t]) =
                        pair;
                }
    }

  protected:
    FUSEDNN_DEVICE int first_row() const {
        return int(threadIdx.x) / 32 / kWarpsAcross * kWarpRows;
    }
    FUSEDNN_DEVICE int first_column() const {
        return int(threadIdx.x) / 32 % kWarpsAcross * kWarpColumns;
    }
};

template <int kRows, int kColumns, int kWarpRows, int kWarpColumns, int kBlocks>
struct Tensor : WarpGrid<kRows, kColumns, kWarpRows, kWarpColumns, kBlocks> {
    using Value = float;
    using Grid = WarpGrid<kRows, kColumns, kWarpRows, kWarpColumns, kBlocks>;
    static constexpr int kDepth = 16;
    using Grid::kAcross;
    using Grid::kDown;
    using Grid::sum;

    template <class TileA, class TileB>
    FUSEDNN_DEVICE void add(const TileA& a, const TileB& b, Format<Value>) {
        const int lane = int(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
        const int row0 = this->first_row() + g, column0 = this->first_column() + g;
#pragma unroll
        for (int p = 0; p < kDepth; p += 8) {
            std::uint32_t x[kDown][4], y[kAcross][2];
#pragma unroll
            for (int i = 0; i < kDown; ++i) {
                x[i][0] = near_tf32(a.at(row0 + i * 16, p + t));
                x[i][1] = near_tf32(a.at(row0 + i * 16 + 8, p + t));
                x[i][2] = near_tf32(a.at(row0 + i * 16, p + t + 4));
                x[i][3] = near_tf32(a.at(row0 + i * 16 + 8, p + t + 4));
            }
#pragma unroll
            for (int j = 0; j < kAcross; ++j) {
                y[j][0] = near_tf32(b.at(column0 + j * 8, p + t));
                y[j][1] = near_tf32(b.at(column0 + j * 8, p + t + 4));
            }
#pragma unroll
            for (int i = 0; i < kDown; ++i)
#pragma unroll
                for (int j = 0; j < kAcross; ++j) mma_tf32(sum[i][j], x[i], y[j]);
        }
    }
};

// Four 8 x 8 matrices of a tile, 16 rows from `row` on and 16 of the depth from `depth` on:
// matrices 0 and 1 are neighbours in the rows (kRowsFirst) or in the depth. As the fragments want
// them, whichever way the tile lies.
template <bool kRowsFirst, class Tile>
FUSEDNN_DEVICE void load_quad(std::uint32_t (&r)[4], const Tile& tile, int row, int depth) {
    const int lane = int(threadIdx.x) % 32, odd = lane / 8 % 2 * 8, high = lane / 16 * 8;
    row += kRowsFirst ? odd : high;
    depth += kRowsFirst ? high : odd;
    if constexpr (Tile::kByRow) {
        load_matrix_x4(r, &tile.at(row + lane % 8, depth));
    } else {
        load_matrix_x4_transposed(r, &tile.at(row, depth + lane % 8));
    }
}

template <int kRows, int kColumns, int kWarpRows, int kWarpColumns, int kBlocks>
struct HalfTensor : WarpGrid<kRows, kColumns, kWarpRows, kWarpColumns, kBlocks> {
    using Value = HalfBits;
    using Grid = WarpGrid<kRows, kColumns, kWarpRows, kWarpColumns, kBlocks>;
    static constexpr int kDepth = 32;
    using Grid::kAcross;
    using Grid::kDown;
    using Grid::sum;

    template <class TileA, class TileB>
    FUSEDNN_DEVICE void add(const TileA& a, const TileB& b, Format<Value> format) {
#pragma unroll
        for (int p = 0; p < kDepth; p += 16) {
            std::uint32_t x[kDown][4], y[kAcross][2];
#pragma unroll
            for (int i = 0; i < kDown; ++i) load_quad<true>(x[i], a, this->first_row() + i * 16, p);
#pragma unroll
            for (int j = 0; j < kAcross; j += 2) {
                std::uint32_t r[4];
                load_quad<false>(r, b, this->first_column() + j * 8, p);
                y[j][0] = r[0], y[j][1] = r[1];
                y[j + 1][0] = r[2], y[j + 1][1] = r[3];
            }
            if (format.brain) {
#pragma unroll
                for (int i = 0; i < kDown; ++i)
#pragma unroll
                    for (int j = 0; j < kAcross; ++j) mma_bf16(sum[i][j], x[i], y[j]);
            } else {
#pragma unroll
                for (int i = 0; i < kDown; ++i)
#pragma unroll
                    for (int j = 0; j < kAcross; ++j) mma_f16(sum[i][j], x[i], y[j]);
            }
        }
    }
};

}  // namespace fusednn::cuda
