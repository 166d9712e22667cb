// The tile of pixel_lanes.cpp: a block of destination rows and columns of a few channels, all in
// registers. A vector that was loaded serves every row of the block that reaches it.
#pragma once
#include "cpu/conv/pixel_lanes.h"
#include "cpu/opaque.h"

namespace fusednn {
namespace FUSEDNN_ISA {

// Where there are 32 vector registers a tile is two vectors wide: 16 to 24 of them accumulate.
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int kMaxVecs = 2;
#else
constexpr int kMaxVecs = 1;
#endif

// Destination rows in a tile of so many channels.
constexpr int block_rows(int channels) {
    constexpr int rows[] = {8, 6, 4, 3};
    return rows[channels - 1];
}

// A single row of positions (one-dimensional convolution) has no other rows to share loads with:
// its tiles are so many vectors wide instead, for sums enough to hide the latency of a
// multiply-add.
constexpr int flat_vecs(int channels) {
    constexpr int vecs[] = {8, 4, 4, 2};
    return vecs[channels - 1];
}

// The sums of a tile: channels * rows is 12 at most.
template <class T>
constexpr i64 kTileElements = 12 * kMaxVecs * kLanes<T>;

// One call: a block of destination rows and columns, and the taps of up to kMaxTapRows
// neighbouring source rows.
template <class T>
struct PixelTile {
    // Source: (channel 0, row of tap row 0 and destination row 0, column x0).
    const T* src;
    i64 channels, plane, row_pitch;
    i64 row_begin, row_end;  // the rows from there on that exist
    i64 x0, width;           // of the source
    // Taps: depth taps as offsets into the source and the weights, columns as offsets.
    i64 depth_taps;
    const i64 *depth_src, *depth_weights;
    i64 col_taps;
    const i64* col_offset;
    const T* weights;  // [channel][depth tap][column tap][tap row][destination channel]
    i64 weights_channel;
    // Destination.
    const T* bias;  // or null
    bool accumulate;
    T* out;
    i64 out_channel, out_row;
    i64 rows, cols;  // that exist
};

template <class T, int C, int R, int K, int V, bool kEdge>
FUSEDNN_INLINE void add_taps(const PixelTile<T>& t, const T* src, const T* weights,
                             const LaneSet (&inside)[V], Vec<T> (&sum)[C][R][V]) {
    constexpr int lanes = kLanes<T>;
    // Registers for the weights of one destination channel; with more they come from memory.
    Vec<T> kept[K];
#pragma GCC unroll 5
    for (int k = 0; k < K; ++k) kept[k] = C == 1 ? opaque<Vec<T>>(broadcast(weights[k])) : Vec<T>{};
    const i64 row_begin = t.row_begin, row_end = t.row_end, row_pitch = t.row_pitch;
#pragma GCC unroll 12
    for (int i = 0; i < R + K - 1; ++i) {
        if (kEdge && (i < row_begin || i >= row_end)) continue;
        const T* row = src + i * row_pitch;
        Vec<T> x[V];
#pragma GCC unroll 8
        for (int v = 0; v < V; ++v) {
            x[v] = opaque<Vec<T>>(kEdge ? load_lanes(row + v * lanes, inside[v])
                                        : load(row + v * lanes));
        }
#pragma GCC unroll 5
        for (int k = 0; k < K; ++k) {
            const int r = i - k;
            if (r < 0 || r >= R) continue;
#pragma GCC unroll 4
            for (int c = 0; c < C; ++c) {
                const Vec<T> weight = C == 1 ? kept[k] : broadcast(weights[k * C + c]);
#pragma GCC unroll 8
                for (int v = 0; v < V; ++v) {
                    sum[c][r][v] = multiply_add(weight, x[v], sum[c][r][v]);
                }
            }
        }
    }
}

template <class T, int C, int R, int K, int V, bool kEdge>
void pixel_tile(const PixelTile<T>& t) {
    constexpr int lanes = kLanes<T>;
    Vec<T> sum[C][R][V];
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) {
        const Vec<T> start = broadcast(t.bias ? t.bias[c] : T(0));
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
            for (int v = 0; v < V; ++v) sum[c][r][v] = start;
        }
    }
    for (i64 channel = 0; channel < t.channels; ++channel) {
        for (i64 d = 0; d < t.depth_taps; ++d) {
            const T* src = t.src + channel * t.plane + t.depth_src[d];
            const T* weights = t.weights + channel * t.weights_channel + t.depth_weights[d];
            for (i64 l = 0; l < t.col_taps; ++l) {
                LaneSet inside[V];
#pragma GCC unroll 8
                for (int v = 0; kEdge && v < V; ++v) {
                    const i64 first = t.x0 + t.col_offset[l] + v * lanes;
                    inside[v] = lanes_between(min_of(max_of(-first, i64(0)), i64(lanes)),
                                              min_of(max_of(t.width - first, i64(0)), i64(lanes)));
                }
                add_taps<T, C, R, K, V, kEdge>(t, src + t.col_offset[l], weights + l * K * C,
                                               inside, sum);
            }
        }
    }
    if (t.rows == R && t.cols >= V * lanes && !t.accumulate) {
#pragma GCC unroll 4
        for (int c = 0; c < C; ++c) {
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) {
                T* out = t.out + c * t.out_channel + r * t.out_row;
#pragma GCC unroll 8
                for (int v = 0; v < V; ++v) store(out + v * lanes, sum[c][r][v]);
            }
        }
        return;
    }
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) {
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
            if (r >= t.rows) break;
#pragma GCC unroll 8
            for (int v = 0; v < V; ++v) {
                T* out = t.out + c * t.out_channel + r * t.out_row + v * lanes;
                const i64 left = t.cols - v * lanes;
                if (left >= lanes) {
                    store(out, t.accumulate ? sum[c][r][v] + load(out) : sum[c][r][v]);
                } else if (left > 0) {
                    const Vec<T> old = t.accumulate ? load_partial(out, left) : Vec<T>{};
                    store_partial(out, t.accumulate ? sum[c][r][v] + old : sum[c][r][v], left);
                }
            }
        }
    }
}

template <class T>
using PixelTileFn = void (*)(const PixelTile<T>&);

template <class T>
struct PixelTileTable {
    PixelTileFn<T> entry[kFewChannels][kMaxTapRows][kMaxVecs][2];  // up to max_tap_rows
    PixelTileFn<T> flat[kFewChannels][4][2];  // by the logarithm of the vectors
};

template <class T, int C, int K, int V>
constexpr void fill_vecs(PixelTileTable<T>& table) {
    constexpr int R = block_rows(C);
    table.entry[C - 1][K - 1][V - 1][0] = pixel_tile<T, C, R, K, V, false>;
    table.entry[C - 1][K - 1][V - 1][1] = pixel_tile<T, C, R, K, V, true>;
    if constexpr (V > 1) fill_vecs<T, C, K, V - 1>(table);
}

template <class T, int C, int kLog>
constexpr void fill_flat(PixelTileTable<T>& table) {
    constexpr int V = 1 << kLog;
    table.flat[C - 1][kLog][0] = pixel_tile<T, C, 1, 1, V, false>;
    table.flat[C - 1][kLog][1] = pixel_tile<T, C, 1, 1, V, true>;
    if constexpr (2 * V <= flat_vecs(C)) fill_flat<T, C, kLog + 1>(table);
}

template <class T, int C, int K>
constexpr void fill(PixelTileTable<T>& table) {
    fill_vecs<T, C, K, kMaxVecs>(table);
    if constexpr (K > 1) {
        fill<T, C, K - 1>(table);
    } else {
        fill_flat<T, C, 0>(table);
        if constexpr (C > 1) fill<T, C - 1, max_tap_rows(C - 1)>(table);
    }
}

template <class T>
constexpr PixelTileTable<T> make_table() {
    PixelTileTable<T> table{};
    fill<T, int(kFewChannels), max_tap_rows(kFewChannels)>(table);
    return table;
}

template <class T>
constexpr PixelTileTable<T> pixel_tiles = make_table<T>();

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
