#include "cpu/conv/channel_lanes.h"

#include "cpu/conv/channel_tile.h"
#include "cpu/kernels.h"

namespace fusednn {
namespace FUSEDNN_ISA {

namespace {

// All positions of a grid row for one panel of destination channels.
template <class T>
FUSEDNN_INLINE void run_grid_row(const ConvProblem<T>& p, const GridRow& row, i64 row0,
                                 const T* packed, const T* bias, TapOffsets* tap_list) {
    T sums[kTileRows * kTileCols<T>];
    const RowPanels cut(p.grid[2]);
    const TapBase<T> base{p.src + row.image * p.src_image, packed, p.channels, p.src_plane,
                          p.tap_count() * kTileCols<T>};
    T* dst = place_of(p, row, row0);
    for (i64 panel = 0; panel < cut.count; ++panel) {
        const i64 x0 = cut.start(panel), count = cut.height(panel);
        sum_tile(p, base, row, x0, count, false, sums, tap_list);
        store_tile(p, sums, count, row0, dst + x0 * p.dst_step[2], bias);
    }
}

// Grid rows that run with one panel of weights before the next: what they read stays in L2.
constexpr i64 kRowsPerBlock = 8;

// Few positions and many channels: the packed weights would be written to and read from a far
// cache, for little use. Here they are packed a few channels at a time, and used at once for all
// positions, whose sums stay in the L1 cache.
constexpr i64 kSumBytes = 32 * 1024;
constexpr i64 kPackedChunkBytes = 64 * 1024;
// So many channels that a panel of weights takes more than this are done so as well, some more at a
// time, with sums for all positions in whatever cache holds them.
constexpr i64 kPackedBytes = 1536 * 1024, kLargeChunkBytes = 1024 * 1024;

template <class T>
FUSEDNN_INLINE bool few_positions(const ConvProblem<T>& p) {
    return p.columns() * kTileCols<T> * i64(sizeof(T)) <= kSumBytes &&
           p.depth() * kTileCols<T> * i64(sizeof(T)) > kPackedChunkBytes;
}

template <class T>
FUSEDNN_INLINE bool many_channels(const ConvProblem<T>& p) {
    return p.depth() * kTileCols<T> * i64(sizeof(T)) > kPackedBytes;
}

// What follows rows [row0, row0 + kTileCols) and channels [begin, end): part `part` of `parts` of
// it.
template <class T>
FUSEDNN_INLINE Ahead<T> weights_ahead(const ConvProblem<T>& p, const ConvWeights<T>& w, i64 row0,
                                      i64 end, i64 part, i64 parts) {
    const bool same_rows = end < p.channels;
    const i64 first = same_rows ? row0 : row0 + kTileCols<T>;
    const i64 rows = min_of(p.rows - first, i64(kTileCols<T>));
    if (rows <= 0) return {};
    const i64 from = rows * part / parts;
    return {w.w + (first + from) * w.row_stride + (same_rows ? end : 0) * w.channel_stride,
            rows * (part + 1) / parts - from, w.row_stride, w.channel_stride};
}

template <class T>
void run_channels_in_chunks(const ConvProblem<T>& p, const ConvWeights<T>& w, const T* packed,
                            const T* bias) {
    const i64 panels = ceil_div(p.rows, kTileCols<T>), grid_rows = p.batch * p.grid[0] * p.grid[1];
    const i64 channel_size = p.tap_count() * kTileCols<T>;
    const i64 chunk_bytes = few_positions(p) ? kPackedChunkBytes : kLargeChunkBytes;
    const i64 chunk = max_of(chunk_bytes / (channel_size * i64(sizeof(T))), i64(1));
    const int most = parallel_slots(panels * grid_rows, 2 * p.rows * p.columns() * p.depth());
    // Fewer panels than threads are shared by several, each of which packs the weights for its part
    // of the grid rows.
    const i64 parts = few_positions(p) ? i64(1) : min_of(ceil_div(i64(most), panels), grid_rows);
    const i64 tasks = panels * parts, part_rows = ceil_div(grid_rows, parts);
    const int slots = int(min_of(i64(most), tasks));
    Workspace<T> chunks(packed ? 0 : chunk * channel_size, slots);
    Workspace<T> all_sums(part_rows * p.grid[2] * kTileCols<T>, slots);
    Workspace<TapOffsets> tap_lists(p.tap_count(), slots);
    const RowPanels cut(p.grid[2]);
    parallel(tasks, slots, [&](i64 task, int slot) {
        FlushDenormals flush;
        const i64 of_rows = task / parts, first = grid_rows * (task % parts) / parts;
        const i64 count = grid_rows * (task % parts + 1) / parts - first;
        const i64 row0 = of_rows * kTileCols<T>;
        T* sums = all_sums.slot(slot);
        for (i64 begin = 0; begin < p.channels; begin += chunk) {
            const i64 end = min_of(begin + chunk, p.channels);
            const T* part = packed + (of_rows * p.channels + begin) * channel_size;
            if (!packed) {
                pack_panel(p, w, row0, begin, end, chunks.slot(slot));
                part = chunks.slot(slot);
            }
            for (i64 index = 0; index < count; ++index) {
                const GridRow row = grid_row(p, first + index);
                TapBase<T> base{p.src + row.image * p.src_image + begin * p.src_plane, part,
                                end - begin, p.src_plane, channel_size};
                for (i64 panel = 0; panel < cut.count; ++panel) {
                    const i64 x0 = cut.start(panel);
                    if (!packed) {
                        base.ahead = weights_ahead(p, w, row0, end, index * cut.count + panel,
                                                   count * cut.count);
                    }
                    sum_tile(p, base, row, x0, cut.height(panel), begin > 0,
                             sums + (index * p.grid[2] + x0) * kTileCols<T>, tap_lists.slot(slot));
                }
            }
        }
        for (i64 index = 0; index < count; ++index) {
            T* dst = place_of(p, grid_row(p, first + index), row0);
            for (i64 panel = 0; panel < cut.count; ++panel) {
                const i64 x0 = cut.start(panel);
                store_tile(p, sums + (index * p.grid[2] + x0) * kTileCols<T>, cut.height(panel),
                           row0, dst + x0 * p.dst_step[2], bias);
            }
        }
    });
}

// Panels [first, first + panels) of the weights.
template <class T>
void pack_panels(const ConvProblem<T>& p, const ConvWeights<T>& w, i64 first, i64 panels, int slots,
                 T* packed) {
    const i64 channel_size = p.tap_count() * kTileCols<T>, panel_size = p.channels * channel_size;
    // Channels of a panel per packing task, so that few panels still make many tasks.
    const i64 step = ceil_div(p.channels, i64(8));
    const i64 cuts = step ? ceil_div(p.channels, step) : 0;
    parallel(panels * cuts, slots, [&](i64 task, int) {
        const i64 panel = task / cuts, begin = task % cuts * step;
        pack_panel(p, w, (first + panel) * kTileCols<T>, begin, min_of(begin + step, p.channels),
                   packed + panel * panel_size + begin * channel_size);
    });
}

// All positions of panels [first, first + panels), which begin at `packed`.
template <class T>
void run_panels(const ConvProblem<T>& p, const T* packed, const T* bias, i64 first, i64 panels,
                int slots) {
    const i64 panel_size = p.depth() * kTileCols<T>;
    const i64 grid_rows = p.batch * p.grid[0] * p.grid[1];
    // A task is a block of neighbouring grid rows, which read much the same of the source, for some
    // of the panels: all of them while the blocks alone make enough tasks.
    const i64 blocks = ceil_div(grid_rows, kRowsPerBlock);
    const i64 parts = slots == 1 ? 1 : min_of(ceil_div(i64(slots) * 8, blocks), panels);
    Workspace<TapOffsets> tap_lists(p.tap_count(), slots);
    parallel(blocks * parts, slots, [&](i64 task, int slot) {
        FlushDenormals flush;
        const i64 block = task / parts, part = task % parts;
        const i64 begin = block * kRowsPerBlock, end = min_of(begin + kRowsPerBlock, grid_rows);
        for (i64 panel = panels * part / parts; panel < panels * (part + 1) / parts; ++panel) {
            for (i64 row = begin; row < end; ++row) {
                run_grid_row(p, grid_row(p, row), (first + panel) * kTileCols<T>,
                             packed + panel * panel_size, bias, tap_lists.slot(slot));
            }
        }
    });
}

}  // namespace

template <class T>
void channel_lanes_pack(const ConvProblem<T>& p, const ConvWeights<T>& w, T* packed) {
    const i64 panels = ceil_div(p.rows, i64(kTileCols<T>));
    pack_panels(p, w, i64(0), panels, parallel_slots(panels, p.rows * p.depth()), packed);
}

template <class T>
void conv_channel_lanes(const ConvProblem<T>& p, const ConvWeights<T>& w, const T* packed,
                        const T* bias) {
    if (p.rows == 0 || p.columns() == 0) return;
    if (few_positions(p) || many_channels(p)) return run_channels_in_chunks(p, w, packed, bias);
    const i64 panels = ceil_div(p.rows, kTileCols<T>), panel_size = p.depth() * kTileCols<T>;
    const int slots = parallel_slots(panels * p.batch * p.grid[0] * p.grid[1],
                                     2 * p.rows * p.columns() * max_of(p.depth(), i64(1)));
    if (packed) return run_panels(p, packed, bias, i64(0), panels, slots);
    // As many panels at a time as take no more memory than this or half of the destination.
    const i64 bytes = max_of(kPackedBytes, p.rows * p.columns() * i64(sizeof(T)) / 2);
    const i64 fit = max_of(bytes / (max_of(panel_size, i64(1)) * i64(sizeof(T))), i64(1));
    const i64 rounds = ceil_div(panels, fit), most = ceil_div(panels, rounds);
    Workspace<T> own(most * panel_size);
    for (i64 first = 0; first < panels; first += most) {
        const i64 some = min_of(most, panels - first);
        pack_panels(p, w, first, some, slots, own.get());
        run_panels(p, own.get(), bias, first, some, slots);
    }
}

#define FUSEDNN_CHANNEL_LANES(T)                                                                \
    template void channel_lanes_pack<T>(const ConvProblem<T>&, const ConvWeights<T>&, T*);      \
    template void conv_channel_lanes<T>(const ConvProblem<T>&, const ConvWeights<T>&, const T*, \
                                        const T*);
FUSEDNN_INSTANTIATE(FUSEDNN_CHANNEL_LANES)

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
