#include "cpu/conv/pixel_lanes.h"

#include "cpu/kernels.h"

namespace fusednn {
namespace FUSEDNN_ISA {

namespace {

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

constexpr i64 kMaxBlockRows = block_rows(1);
constexpr i64 kTasks = 64;  // 8 for each of up to 8 threads
constexpr i64 kRowPart = 4096;

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
#pragma GCC unroll 12
    for (int i = 0; i < R + K - 1; ++i) {
        if (kEdge && (i < t.row_begin || i >= t.row_end)) continue;
        const T* row = src + i * t.row_pitch;
        Vec<T> x[V];
#pragma GCC unroll 8
        for (int v = 0; v < V; ++v) {
            x[v] = kEdge ? load_lanes(row + v * lanes, inside[v]) : load(row + v * lanes);
        }
#pragma GCC unroll 5
        for (int k = 0; k < K; ++k) {
            const int r = i - k;
            if (r < 0 || r >= R) continue;
#pragma GCC unroll 4
            for (int c = 0; c < C; ++c) {
                const Vec<T> weight = broadcast(weights[k * C + c]);
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
    PixelTileFn<T> entry[kFewChannels][kMaxTapRows][kMaxVecs][2];
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
        if constexpr (C > 1) fill<T, C - 1, kMaxTapRows>(table);
    }
}

template <class T>
constexpr PixelTileTable<T> make_table() {
    PixelTileTable<T> table{};
    fill<T, int(kFewChannels), kMaxTapRows>(table);
    return table;
}

template <class T>
constexpr PixelTileTable<T> pixel_tiles = make_table<T>();

// A group's destination channels [first, first + count).
struct Channels {
    i64 first;
    int count;
};

FUSEDNN_INLINE Channels channels_of(i64 part, i64 rows) {
    return {part * kFewChannels, int(min_of(rows - part * kFewChannels, kFewChannels))};
}

// One residue's weights in the order the tiles read them; `packed` holds rows * depth elements:
// [part of the rows][run of tap rows][channel][depth tap][column tap][tap row][row].
template <class T>
void pack_weights(const ConvProblem<T>& p, const ConvWeights<T>& w, const TapRowRuns<T>& runs,
                  const i64* position, T* packed) {
    for (i64 part = 0; part < ceil_div(p.rows, kFewChannels); ++part) {
        const Channels rows = channels_of(part, p.rows);
        for (i64 run = 0; run < runs.size(); ++run) {
            for (i64 c = 0; c < p.channels; ++c) {
                for (i64 d = 0; d < p.taps[0]; ++d) {
                    for (i64 l = 0; l < p.taps[2]; ++l) {
                        for (i64 k = 0; k < runs[run].count; ++k) {
                            const i64 tap =
                                (d * p.taps[1] + runs.tap(runs[run].first + k)) * p.taps[2] + l;
                            const T* src = w.w + rows.first * w.row_stride + c * w.channel_stride +
                                           position[tap];
                            for (int r = 0; r < rows.count; ++r) *packed++ = src[r * w.row_stride];
                        }
                    }
                }
            }
        }
    }
}

// All that the tasks share.
template <class T>
struct PixelJob {
    const ConvProblem<T>* problems;
    i64 residues;
    ConvGroups groups;
    const TapRowRuns<T>* runs;
    const T* packed;       // [group][residue][...]
    const i64* packed_at;  // of each residue within a group
    i64 packed_group;
    const T* bias;
    bool flat;  // one row of positions
};

// Columns [x0, x0 + cols) of one residue, from a buffer or straight into dx.
template <class T>
struct Place {
    T* out;
    i64 channel, row;
};

// One tile of one residue: all its runs of tap rows.
template <class T>
FUSEDNN_INLINE void run_tile(const PixelJob<T>& job, i64 residue, i64 group, i64 image, i64 q0,
                             i64 row0, i64 rows, i64 x0, i64 cols, const Channels& channels,
                             const Place<T>& place, i64* depth_lists) {
    const ConvProblem<T>& p = job.problems[residue];
    PixelTile<T> t;
    t.channels = p.channels;
    t.plane = p.src_plane;
    t.row_pitch = p.src_size[2];
    t.x0 = x0;
    t.width = p.src_size[2];
    t.col_taps = p.taps[2];
    t.col_offset = p.offset[2];
    t.depth_src = depth_lists;
    t.depth_weights = depth_lists + p.taps[0];
    t.out = place.out;
    t.out_channel = place.channel;
    t.out_row = place.row;
    t.rows = rows;
    t.cols = cols;
    int vecs = 1, log_vecs = 0;
    for (; vecs * kLanes<T> < cols; vecs *= 2) ++log_vecs;
    i64 lowest_col = 0, highest_col = 0;
    for (i64 l = 0; l < p.taps[2]; ++l) {
        lowest_col = min_of(lowest_col, p.offset[2][l]);
        highest_col = max_of(highest_col, p.offset[2][l]);
    }
    const bool col_edge =
        x0 + lowest_col < 0 || x0 + vecs * kLanes<T> + highest_col > p.src_size[2];
    const T* src = p.src + group * job.groups.src + image * p.src_image + x0;
    const T* packed =
        job.packed + group * job.packed_group + job.packed_at[residue] + channels.first * p.depth();
    for (i64 run = 0; run < job.runs->size(); ++run) {
        const TapRows& tap_rows = (*job.runs)[run];
        const i64 cell = p.taps[2] * tap_rows.count * channels.count;
        t.depth_taps = 0;
        for (i64 d = 0; d < p.taps[0]; ++d) {
            const i64 z = q0 * p.step[0] + p.offset[0][d];
            if (z < 0 || z >= p.src_size[0] || tap_rows.count == 0) continue;
            depth_lists[t.depth_taps] = z * p.src_size[1] * p.src_size[2];
            depth_lists[p.taps[0] + t.depth_taps++] = d * cell;
        }
        t.weights = packed;
        t.weights_channel = p.taps[0] * cell;
        packed += p.channels * t.weights_channel;
        const i64 src_row = row0 + tap_rows.lowest;
        const i64 block = job.flat ? 1 : block_rows(channels.count);
        const i64 reach = block + max_of(tap_rows.count, i64(1)) - 1;
        t.src = src + src_row * p.src_size[2];
        t.row_begin = max_of(-src_row, i64(0));
        t.row_end = min_of(p.src_size[1] - src_row, reach);
        t.bias = run == 0 && job.bias ? job.bias + group * p.rows + channels.first : nullptr;
        t.accumulate = run > 0;
        const bool edge = col_edge || t.row_begin > 0 || t.row_end < reach;
        const auto& tiles = pixel_tiles<T>;
        const int c = channels.count - 1;
        const i64 k = max_of(tap_rows.count, i64(1)) - 1;
        (job.flat ? tiles.flat[c][log_vecs][edge] : tiles.entry[c][k][vecs - 1][edge])(t);
    }
}

// dst[i * residues] of `count` elements = the residues' buffers, alternating.
template <class T>
FUSEDNN_INLINE void merge_residues(i64 residues, const T* buffer, i64 count, T* dst) {
    constexpr int lanes = kLanes<T>;
    if (residues == 2) {
        const T* odd = buffer + kTileElements<T>;
        for (i64 i = 0; i < count; i += 2 * lanes) {
            const Vec<T> a = load(buffer + i / 2), b = load(odd + i / 2);
            const Vec<T> low = interleave_low<T>(a, b), high = interleave_high<T>(a, b);
            const i64 left = count - i;
            if (left >= 2 * lanes) {
                store(dst + i, low);
                store(dst + i + lanes, high);
            } else {
                store_partial(dst + i, low, min_of(left, i64(lanes)));
                if (left > lanes) store_partial(dst + i + lanes, high, left - lanes);
            }
        }
        return;
    }
    for (i64 residue = 0; residue < residues; ++residue, buffer += kTileElements<T>) {
        for (i64 i = residue; i < count; i += residues) dst[i] = buffer[i / residues];
    }
}

// Rows and columns of a destination plane.
struct Patch {
    i64 row_begin, row_end, col_begin, col_end;
};

template <class T>
void run_patch(const PixelJob<T>& job, i64 group, i64 image, const Channels& channels, i64 q0,
               const Patch& patch, T* buffer, i64* depth_lists) {
    const ConvProblem<T>& p = job.problems[0];
    const i64 block = job.flat ? 1 : block_rows(channels.count);
    const i64 pitch = (job.flat ? flat_vecs(channels.count) : kMaxVecs) * kLanes<T>;
    const i64 row_pitch = p.dst_step[1] * p.dst_size[2];
    T* plane = p.dst + group * job.groups.dst + image * p.dst_image + channels.first * p.dst_plane +
               (q0 * p.dst_step[0] + p.dst_start[0]) * p.dst_size[1] * p.dst_size[2] +
               p.dst_start[1] * p.dst_size[2];
    for (i64 row = patch.row_begin; row < patch.row_end; row += block) {
        const i64 rows = min_of(block, patch.row_end - row);
        for (i64 x0 = patch.col_begin; x0 < patch.col_end; x0 += pitch) {
            const i64 cols = min_of(patch.col_end - x0, pitch);
            T* dst = plane + row * row_pitch + x0 * p.dst_step[2];
            if (job.residues == 1 && p.dst_step[2] == 1) {
                run_tile(job, 0, group, image, q0, row, rows, x0, cols, channels,
                         Place<T>{dst, p.dst_plane, row_pitch}, depth_lists);
                continue;
            }
            for (i64 residue = 0; residue < job.residues; ++residue) {
                const i64 some = min_of(job.problems[residue].grid[2] - x0, cols);
                if (some <= 0) continue;
                run_tile(job, residue, group, image, q0, row, rows, x0, some, channels,
                         Place<T>{buffer + residue * kTileElements<T>, block * pitch, pitch},
                         depth_lists);
            }
            const i64 count = min_of(p.dst_size[2] - x0 * job.residues, cols * job.residues);
            for (int c = 0; c < channels.count; ++c) {
                for (i64 r = 0; r < rows; ++r) {
                    merge_residues(job.residues, buffer + (c * block + r) * pitch, count,
                                   dst + c * p.dst_plane + r * row_pitch);
                }
            }
        }
    }
}

}  // namespace

template <class T>
void conv_pixel_lanes(const ConvProblem<T>* problems, const ConvWeights<T>* weights, i64 residues,
                      const ConvGroups& groups, const T* bias) {
    const ConvProblem<T>& p = problems[0];
    if (p.rows == 0 || p.columns() == 0 || groups.count == 0) return;
    const bool flat = p.grid[1] == 1;
    const TapRowRuns<T> runs(p, flat ? 1 : kMaxTapRows);
    Workspace<i64> packed_at(residues), position(weights[0].volume);
    i64 packed_group = 0;
    double depth = 0;
    for (i64 residue = 0; residue < residues; ++residue) {
        packed_at.get()[residue] = packed_group;
        packed_group += p.rows * problems[residue].depth();
        depth += double(problems[residue].depth());
    }
    Workspace<T> packed(groups.count * packed_group);
    for (i64 residue = 0; residue < residues; ++residue) {
        ConvWeights<T> w = weights[residue];
        for (i64 k = 0; k < w.volume; ++k) {
            if (w.tap[k] >= 0) position.get()[w.tap[k]] = k;
        }
        for (i64 group = 0; group < groups.count; ++group, w.w += groups.weights) {
            pack_weights(problems[residue], w, runs, position.get(),
                         packed.get() + group * packed_group + packed_at.get()[residue]);
        }
    }
    const PixelJob<T> job{problems,        residues,     groups, &runs, packed.get(),
                          packed_at.get(), packed_group, bias,   flat};
    const i64 parts = ceil_div(p.rows, kFewChannels);
    const i64 planes = p.batch * groups.count * parts * p.grid[0];
    // Few planes are cut into bands of rows.
    const i64 band = round_up(
        ceil_div(p.grid[1], planes >= 32 ? i64(1) : ceil_div(i64(32), planes)), 4 * kMaxBlockRows);
    const i64 bands = ceil_div(p.grid[1], band);
    // Long rows are cut too: one alone may be all there is.
    const i64 cuts = ceil_div(p.grid[2], kRowPart);
    // A task is a run of neighbouring pieces: memory is read in long stretches.
    const i64 pieces = planes * bands * cuts, tasks = min_of(pieces, kTasks);
    const int slots =
        parallel_slots(tasks, 2 * p.columns() * groups.count * p.rows * max_of(i64(depth), i64(1)));
    Workspace<T> buffers(residues * kTileElements<T>, slots);
    Workspace<i64> depth_lists(2 * p.taps[0], slots);
    parallel(tasks, slots, [&](i64 task, int slot) {
        FlushDenormals flush;
        for (i64 piece = pieces * task / tasks; piece < pieces * (task + 1) / tasks; ++piece) {
            const i64 col = piece % cuts * kRowPart, row = piece / cuts % bands * band;
            const Patch patch{row, min_of(row + band, p.grid[1]), col,
                              min_of(col + kRowPart, p.grid[2])};
            i64 rest = piece / cuts / bands;
            const i64 q0 = rest % p.grid[0];
            rest /= p.grid[0];
            const i64 part = rest % parts;
            rest /= parts;
            run_patch(job, rest % groups.count, rest / groups.count, channels_of(part, p.rows), q0,
                      patch, buffers.slot(slot), depth_lists.slot(slot));
        }
    });
}

#define FUSEDNN_PIXEL_LANES(T)                                                           \
    template void conv_pixel_lanes<T>(const ConvProblem<T>*, const ConvWeights<T>*, i64, \
                                      const ConvGroups&, const T*);
FUSEDNN_INSTANTIATE(FUSEDNN_PIXEL_LANES)

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
