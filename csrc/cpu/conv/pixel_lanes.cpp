#include "cpu/conv/pixel_lanes.h"

#include "cpu/conv/pixel_tile.h"
#include "cpu/conv/strip.h"
#include "cpu/gemm/tile.h"
#include "cpu/kernels.h"

namespace fusednn {
namespace FUSEDNN_ISA {

namespace {

constexpr i64 kMaxBlockRows = block_rows(1);
constexpr i64 kTasks = 64;  // 8 for each of up to 8 threads
constexpr i64 kRowPart = 4096;

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
    bool flat;    // one row of positions
    bool strips;  // 3 x 3 taps, as strip.h has them
};

// Three offsets that are neighbours, in either direction.
FUSEDNN_INLINE bool consecutive(const i64* offset) {
    const i64 step = offset[1] - offset[0];
    return (step == 1 || step == -1) && offset[2] - offset[1] == step;
}

// Whether strips can do it.
template <class T>
FUSEDNN_INLINE bool strips_apply(const ConvProblem<T>& p, i64 residues) {
    return residues == 1 && p.rows == 1 && p.channels == 1 && p.taps[0] == 1 && p.taps[1] == 3 &&
           p.taps[2] == 3 && consecutive(p.offset[1]) && consecutive(p.offset[2]) &&
           p.dst_step[2] == 1 && p.grid[1] > 1;
}

// Where column x0 of a row block's first row goes: a buffer, or straight into dx.
template <class T>
struct Place {
    T* out;
    i64 channel, row;
};

// Columns [begin, end) of a block of rows of one residue, run of tap rows after run, tile after
// tile.
template <class T>
FUSEDNN_INLINE void run_tiles(const PixelJob<T>& job, i64 residue, i64 group, i64 image, i64 q0,
                              i64 row0, i64 rows, i64 begin, i64 end, const Channels& channels,
                              const Place<T>& place, i64* depth_lists) {
    constexpr int lanes = kLanes<T>;
    const ConvProblem<T>& p = job.problems[residue];
    PixelTile<T> t;
    t.channels = p.channels;
    t.plane = p.src_plane;
    t.row_pitch = p.src_size[2];
    t.width = p.src_size[2];
    t.col_taps = p.taps[2];
    t.col_offset = p.offset[2];
    t.depth_src = depth_lists;
    t.depth_weights = depth_lists + p.taps[0];
    t.out_channel = place.channel;
    t.out_row = place.row;
    t.rows = rows;
    i64 lowest_col = 0, highest_col = 0;
    for (i64 l = 0; l < p.taps[2]; ++l) {
        lowest_col = min_of(lowest_col, p.offset[2][l]);
        highest_col = max_of(highest_col, p.offset[2][l]);
    }
    const T* src = p.src + group * job.groups.src + image * p.src_image;
    const T* packed =
        job.packed + group * job.packed_group + job.packed_at[residue] + channels.first * p.depth();
    const i64 block = job.flat ? 1 : block_rows(channels.count);
    const i64 pitch = (job.flat ? flat_vecs(channels.count) : kMaxVecs) * lanes;
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
        const i64 src_row = row0 + tap_rows.lowest, tap_count = max_of(tap_rows.count, i64(1));
        const i64 reach = block + tap_count - 1;
        t.row_begin = max_of(-src_row, i64(0));
        t.row_end = min_of(p.src_size[1] - src_row, reach);
        t.bias = run == 0 && job.bias ? job.bias + group * p.rows + channels.first : nullptr;
        t.accumulate = run > 0;
        const bool row_edge = t.row_begin > 0 || t.row_end < reach;
        const auto& tiles = pixel_tiles<T>;
        const int c = channels.count - 1;
        for (i64 x0 = begin; x0 < end; x0 += pitch) {
            t.cols = min_of(end - x0, pitch);
            int vecs = 1, log_vecs = 0;
            for (; vecs * lanes < t.cols; vecs *= 2) ++log_vecs;
            t.x0 = x0;
            t.src = src + src_row * p.src_size[2] + x0;
            t.out = place.out + (x0 - begin);
            const bool edge =
                row_edge || x0 + lowest_col < 0 || x0 + vecs * lanes + highest_col > p.src_size[2];
            (job.flat ? tiles.flat[c][log_vecs][edge]
                      : tiles.entry[c][tap_count - 1][vecs - 1][edge])(t);
        }
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
void run_strips(const PixelJob<T>& job, i64 group, i64 image, i64 q0, const Patch& patch,
                T* plane) {
    constexpr int lanes = kLanes<T>;
    const ConvProblem<T>& p = job.problems[0];
    const i64 rows = patch.row_end - patch.row_begin;
    const i64 z = q0 * p.step[0] + p.offset[0][0];
    const bool inside = z >= 0 && z < p.src_size[0];
    const i64 row = patch.row_begin + min_of(p.offset[1][0], p.offset[1][2]);
    const i64 lowest_col = min_of(p.offset[2][0], p.offset[2][2]);
    // As they are packed: columns of taps, in the order of the problem.
    const T* packed = job.packed + group * job.packed_group;
    T weights[9];
    for (int l = 0; l < 3; ++l) {
        const int column = p.offset[2][0] == lowest_col ? l : 2 - l;
        for (int k = 0; k < 3; ++k) weights[k * 3 + column] = packed[l * 3 + k];
    }
    Strip<T> s;
    s.row_pitch = p.src_size[2];
    s.row_begin = inside ? max_of(-row, i64(0)) : rows + 2;
    s.row_end = p.src_size[1] - row;
    s.weights = weights;
    s.start = job.bias ? job.bias[group] : T(0);
    s.out_row = p.dst_step[1] * p.dst_size[2];
    s.rows = rows;
    const auto run = [&](i64 x0, int vecs) {
        s.before = -(x0 + lowest_col);
        s.after = p.src_size[2] + s.before;
        // Vectors between the first and the last are not masked.
        if (vecs > 1 && (s.before > lanes || s.after < (vecs - 1) * lanes + 2)) return false;
        s.src = p.src + group * job.groups.src + image * p.src_image +
                (z * p.src_size[1] + row) * p.src_size[2] - s.before;
        s.out = plane + patch.row_begin * s.out_row + x0;
        s.cols = min_of(patch.col_end - x0, i64(vecs) * lanes);
        const bool edge = s.before > 0 || s.after < vecs * lanes + 2;
        strips<T>.entry[vecs - 1][edge](s);
        return true;
    };
    const RowPanels cut(ceil_div(patch.col_end - patch.col_begin, i64(lanes)), kStripVecs);
    for (i64 panel = 0; panel < cut.count; ++panel) {
        const i64 x0 = patch.col_begin + cut.start(panel) * lanes;
        const int vecs = cut.height(panel);
        if (run(x0, vecs)) continue;
        for (int v = 0; v < vecs; ++v) run(x0 + v * lanes, 1);
    }
}

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
    if (job.strips) return run_strips(job, group, image, q0, patch, plane);
    for (i64 row = patch.row_begin; row < patch.row_end; row += block) {
        const i64 rows = min_of(block, patch.row_end - row);
        if (job.residues == 1 && p.dst_step[2] == 1) {
            run_tiles(job, 0, group, image, q0, row, rows, patch.col_begin, patch.col_end, channels,
                      Place<T>{plane + row * row_pitch + patch.col_begin, p.dst_plane, row_pitch},
                      depth_lists);
            continue;
        }
        for (i64 x0 = patch.col_begin; x0 < patch.col_end; x0 += pitch) {
            const i64 cols = min_of(patch.col_end - x0, pitch);
            T* dst = plane + row * row_pitch + x0 * p.dst_step[2];
            for (i64 residue = 0; residue < job.residues; ++residue) {
                const i64 some = min_of(job.problems[residue].grid[2] - x0, cols);
                if (some <= 0) continue;
                run_tiles(job, residue, group, image, q0, row, rows, x0, x0 + some, channels,
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
    const TapRowRuns<T> runs(p, flat ? 1 : max_tap_rows(p.rows));
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
                          packed_at.get(), packed_group, bias,   flat,  strips_apply(p, residues)};
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
