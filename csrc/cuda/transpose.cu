// Matrices transposed into new memory, by tiles in shared memory: both sides are read and written
// along their rows.
//   x (batch, rows, columns) -> y (batch, columns, rows)
#include "cuda/elementwise.h"
#include "cuda/gpu.h"
#include "cuda/kernels.h"

namespace fusednn::cuda {

namespace {

constexpr int kTile = 32, kDown = 8;  // a warp to a line of a tile, eight lines at once

// The padding spreads a column of the tile over all banks.
template <class T>
__global__ void __launch_bounds__(kTile* kDown)
    transpose_tiles(i64 tiles, i64 rows, i64 columns, const T* __restrict__ x, T* __restrict__ y) {
    FUSEDNN_SHARED(T[kTile][kTile + 1], tile);
    const int lane = int(threadIdx.x) % kTile, line = int(threadIdx.x) / kTile;
    const i64 across = (columns + kTile - 1) / kTile, down = (rows + kTile - 1) / kTile;
    for (i64 at = blockIdx.x; at < tiles; at += gridDim.x) {
        const i64 rest = quotient(at, across), matrix = quotient(rest, down);
        const i64 column0 = (at - rest * across) * kTile, row0 = (rest - matrix * down) * kTile;
        const T* from = x + matrix * rows * columns;
        T* to = y + matrix * rows * columns;
        for (int i = line; i < kTile; i += kDown) {
            if (row0 + i < rows && column0 + lane < columns) {
                tile[i][lane] = from[(row0 + i) * columns + column0 + lane];
            }
        }
        __syncthreads();
        for (int i = line; i < kTile; i += kDown) {
            if (column0 + i < columns && row0 + lane < rows) {
                to[(column0 + i) * rows + row0 + lane] = tile[lane][i];
            }
        }
        __syncthreads();  // the tile is read before the next one comes
    }
}

}  // namespace

template <class T>
void transpose_matrices(i64 batch, i64 rows, i64 columns, const T* x, T* y) {
    const i64 tiles = batch * ((rows + kTile - 1) / kTile) * ((columns + kTile - 1) / kTile);
    launch("transpose_matrices", {blocks_for(tiles, 1), kTile * kDown}, transpose_tiles<T>, tiles,
           rows, columns, x, y);
}

#define FUSEDNN_TRANSPOSE(T) template void transpose_matrices<T>(i64, i64, i64, const T*, T*);
FUSEDNN_INSTANTIATE(FUSEDNN_TRANSPOSE)

}  // namespace fusednn::cuda
