// A tile of the implicit product with destination channels in the lanes: kTileCols channels of some
// positions in a row of the grid. The source is read in place, and taps in the padding left out.
#pragma once
#include "cpu/conv/problem.h"
#include "cpu/gemm/tile.h"

namespace fusednn {
namespace FUSEDNN_ISA {

// One tap as a tile reads it: for channel c, position r of the source at source[a + c * plane + r *
// step], and a row of the weights at packed[b + c * taps * kTileCols].
struct TapOffsets {
    i64 a, b;
};

// Weights that are packed next: their memory is asked for while a tile is computed. For channel c,
// `rows` elements at first[r * row_stride + c * channel_stride].
template <class T>
struct Ahead {
    const T* first = nullptr;
    i64 rows = 0, row_stride = 0, channel_stride = 0;
};

// What the taps of a tile are offset from.
template <class T>
struct TapBase {
    const T* source;
    const T* packed;
    i64 channels, plane, weight_step;  // weight_step: all taps * kTileCols
    Ahead<T> ahead = {};
};

// sums[r][kTileCols] (+)= over channels and taps, for R positions. Taps run fastest: what they read
// of a channel overlaps, and the weights are read in the order of memory.
template <class T, int R, int kStep>
void tap_tile(const TapBase<T>& base, const TapOffsets* taps, i64 count, bool accumulate, T* sums) {
    constexpr int lanes = kLanes<T>;
    Vec<T> sum[R][kTileVecs];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
        for (int v = 0; v < kTileVecs; ++v) {
            sum[r][v] = accumulate ? load(sums + r * kTileCols<T> + v * lanes) : Vec<T>{};
        }
    }
    const T* source = base.source;
    const T* packed = base.packed;
    const Ahead<T> ahead = base.ahead;
    const T* next = ahead.first;
    for (i64 c = 0; c < base.channels; ++c) {
        for (i64 r = 0; r < ahead.rows; ++r) {
            __builtin_prefetch(next + r * ahead.row_stride, 0, 2);
        }
        next += ahead.channel_stride;
        for (i64 t = 0; t < count; ++t) {
            const T* a = source + taps[t].a;
            const T* b = packed + taps[t].b;
            Vec<T> row[kTileVecs];
#pragma GCC unroll 2
            for (int v = 0; v < kTileVecs; ++v) row[v] = load(b + v * lanes);
#pragma GCC unroll 16
            for (int r = 0; r < R; ++r) {
                const Vec<T> x = broadcast(a[r * kStep]);
#pragma GCC unroll 2
                for (int v = 0; v < kTileVecs; ++v) {
                    sum[r][v] = multiply_add(x, row[v], sum[r][v]);
                }
            }
        }
        source += base.plane;
        packed += base.weight_step;
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
        for (int v = 0; v < kTileVecs; ++v) store(sums + r * kTileCols<T> + v * lanes, sum[r][v]);
    }
}

template <class T>
using TapTileFn = void (*)(const TapBase<T>&, const TapOffsets*, i64, bool, T*);

template <class T>
struct TapTileTable {
    TapTileFn<T> entry[2][kTileRows];
};

template <class T, int R>
constexpr void fill(TapTileTable<T>& table) {
    table.entry[0][R - 1] = tap_tile<T, R, 1>;
    table.entry[1][R - 1] = tap_tile<T, R, 2>;
    if constexpr (R > 1) fill<T, R - 1>(table);
}

template <class T>
constexpr TapTileTable<T> make_tap_tiles() {
    TapTileTable<T> table{};
    fill<T, kTileRows>(table);
    return table;
}

template <class T>
constexpr TapTileTable<T> tap_tiles = make_tap_tiles<T>();

// Weight rows are as many streams as there are lanes, more than hardware prefetchers follow.
template <class T>
constexpr i64 kPrefetch = 128 / i64(sizeof(T));

// packed[channel - begin][tap][kTileCols] for the kTileCols rows from row0 on, source channels
// [begin, end). A row's elements are read in the order of memory and transposed: lanes become rows.
template <class T>
void pack_panel(const ConvProblem<T>& p, const ConvWeights<T>& w, i64 row0, i64 begin, i64 end,
                T* packed) {
    constexpr int lanes = kLanes<T>;
    // Channels that lie behind one another are read as one run.
    const bool one_run = w.channel_stride == w.volume;
    const i64 runs = one_run ? 1 : end - begin;
    const i64 length = one_run ? (end - begin) * w.volume : w.volume;
    const i64 taps = p.tap_count();
    bool in_order = one_run && taps == w.volume;
    for (i64 i = 0; i < w.volume; ++i) in_order = in_order && w.tap[i] == i;
    const i64 prefetch = one_run ? kPrefetch<T> : 2 * w.channel_stride;
    // Rows that do not exist repeat the last one; their sums are dropped.
    const T* rows[kTileVecs][lanes];
    for (int i = 0; i < kTileCols<T>; ++i) {
        rows[i / lanes][i % lanes] =
            w.w + min_of(row0 + i, p.rows - 1) * w.row_stride + begin * w.channel_stride;
    }
    const auto pack_run = [&](i64 run, int v) {
        T* out = packed + run * taps * kTileCols<T> + v * lanes;
        i64 position = 0;
        const i64 ahead_of_line = one_run ? elements_to_line(rows[v][0], w.row_stride) : 0;
        int count = 0;
        for (i64 k = 0; k < length; k += count) {
            count =
                int(min_of(k == 0 && ahead_of_line > 0 ? ahead_of_line : i64(lanes), length - k));
            const i64 from = run * w.channel_stride + k;
            Vec<T> block[lanes];
#pragma GCC unroll 16
            for (int i = 0; i < lanes; ++i) {
                const T* row = rows[v][i] + from;
                __builtin_prefetch(row + prefetch);
                block[i] = count == lanes ? load(row) : load_partial(row, count);
            }
            transpose<T>(block);
            if (in_order && count == lanes) {
#pragma GCC unroll 16
                for (int i = 0; i < lanes; ++i) store(out + (k + i) * kTileCols<T>, block[i]);
                continue;
            }
            for (int i = 0; i < count; ++i) {
                const i64 tap = in_order ? k + i : w.tap[position];
                if (tap >= 0) store(out + tap * kTileCols<T>, block[i]);
                if (!in_order && ++position == w.volume) {
                    position = 0;
                    out += taps * kTileCols<T>;
                }
            }
        }
    };
    // In one run a vector's worth of rows to the end, then the next: often rows lie a multiple of
    // the L1 cache's sets apart, and no more of them fit. In short runs, rows that are neighbours.
    if (one_run) {
        for (int v = 0; v < kTileVecs; ++v) pack_run(0, v);
    } else {
        for (i64 run = 0; run < runs; ++run) {
            for (int v = 0; v < kTileVecs; ++v) pack_run(run, v);
        }
    }
}

// The positions [begin, end) of a grid row for which a tap reads inside the source row.
struct Span {
    i64 begin, end;
};

template <class T>
FUSEDNN_INLINE Span inside(const ConvProblem<T>& p, i64 offset) {
    const i64 step = p.step[2], size = p.src_size[2];
    const i64 begin = offset < 0 ? ceil_div(-offset, step) : 0;
    const i64 end = offset < size ? ceil_div(size - offset, step) : 0;
    return {min_of(begin, p.grid[2]), min_of(end, p.grid[2])};
}

// Tile (count positions x kTileCols rows of sums) -> dst, transposed, plus bias.
template <class T>
FUSEDNN_INLINE void store_tile(const ConvProblem<T>& p, const T* sums, i64 count, i64 row0, T* dst,
                               const T* bias) {
    constexpr int lanes = kLanes<T>;
    for (i64 v = 0; v < kTileVecs; ++v) {
        const i64 first = row0 + v * lanes, rows = min_of(p.rows - first, i64(lanes));
        if (rows <= 0) return;
        const Vec<T> shift = bias ? load_partial(bias + first, rows) : Vec<T>{};
        for (i64 r0 = 0; r0 < count; r0 += lanes) {
            const i64 positions = min_of(count - r0, i64(lanes));
            Vec<T> block[lanes];
#pragma GCC unroll 16
            for (int r = 0; r < lanes; ++r) {
                const i64 from = r0 + min_of(i64(r), positions - 1);
                block[r] = load(sums + from * kTileCols<T> + v * lanes) + shift;
            }
            transpose<T>(block);
            if (p.dst_step[2] == 1) {
#pragma GCC unroll 16
                for (int i = 0; i < lanes; ++i) {
                    if (i < rows) {
                        store_partial(dst + (v * lanes + i) * p.dst_plane + r0, block[i],
                                      positions);
                    }
                }
            } else {
                for (int i = 0; i < rows; ++i) {
                    T* row = dst + (v * lanes + i) * p.dst_plane + r0 * p.dst_step[2];
                    store_every<T>(row, p.dst_step[2], block[i], positions);
                }
            }
        }
    }
}

// Appends the taps of column `l` that read inside the source for grid row (q0, q1), as seen from
// position x0; returns the new length of the list.
template <class T>
FUSEDNN_INLINE i64 add_taps(const ConvProblem<T>& p, i64 q0, i64 q1, i64 l, i64 x0,
                            TapOffsets* list, i64 length) {
    for (i64 i = 0; i < p.taps[0]; ++i) {
        const i64 z = q0 * p.step[0] + p.offset[0][i];
        if (z < 0 || z >= p.src_size[0]) continue;
        for (i64 j = 0; j < p.taps[1]; ++j) {
            const i64 y = q1 * p.step[1] + p.offset[1][j];
            if (y < 0 || y >= p.src_size[1]) continue;
            list[length++] = {
                (z * p.src_size[1] + y) * p.src_size[2] + p.offset[2][l] + x0 * p.step[2],
                ((i * p.taps[1] + j) * p.taps[2] + l) * kTileCols<T>};
        }
    }
    return length;
}

// A row of the grid.
struct GridRow {
    i64 image, q0, q1;
};

template <class T>
FUSEDNN_INLINE GridRow grid_row(const ConvProblem<T>& p, i64 index) {
    return {index / (p.grid[0] * p.grid[1]), index / p.grid[1] % p.grid[0], index % p.grid[1]};
}

// sums[position][kTileCols] (+)= what the positions [x0, x0 + count) of a grid row get from the
// channels of `base`. First come the taps that all of them have, in registers from start to end;
// then, column of taps by column, those that only some have, added to their part of the tile.
template <class T>
FUSEDNN_INLINE void sum_tile(const ConvProblem<T>& p, const TapBase<T>& base, const GridRow& row,
                             i64 x0, i64 count, bool accumulate, T* sums, TapOffsets* tap_list) {
    const auto& tiles = tap_tiles<T>.entry[p.step[2] - 1];
    i64 taps = 0;
    for (i64 l = 0; l < p.taps[2]; ++l) {
        const Span span = inside(p, p.offset[2][l]);
        if (span.begin <= x0 && span.end >= x0 + count) {
            taps = add_taps(p, row.q0, row.q1, l, x0, tap_list, taps);
        }
    }
    tiles[count - 1](base, tap_list, taps, accumulate, sums);
    TapBase<T> part = base;
    part.ahead = {};
    for (i64 l = 0; l < p.taps[2]; ++l) {
        const Span span = inside(p, p.offset[2][l]);
        const i64 begin = max_of(span.begin, x0), end = min_of(span.end, x0 + count);
        if (begin >= end || end - begin == count) continue;
        taps = add_taps(p, row.q0, row.q1, l, begin, tap_list, 0);
        tiles[end - begin - 1](part, tap_list, taps, true, sums + (begin - x0) * kTileCols<T>);
    }
}

// Where channel row0 of a grid row begins in the destination.
template <class T>
FUSEDNN_INLINE T* place_of(const ConvProblem<T>& p, const GridRow& row, i64 row0) {
    const i64 line = (row.q0 * p.dst_step[0] + p.dst_start[0]) * p.dst_size[1] +
                     row.q1 * p.dst_step[1] + p.dst_start[1];
    return p.dst + row.image * p.dst_image + row0 * p.dst_plane + line * p.dst_size[2] +
           p.dst_start[2];
}

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
