#include "cpu/conv/channel_weight_grad.h"

#include "cpu/conv/offset_tile.h"
#include "cpu/conv/problem.h"
#include "cpu/gemm/pack.h"
#include "cpu/kernels.h"
#include "cpu/parallel.h"

namespace fusednn {
namespace FUSEDNN_ISA {

namespace {

// Positions of a unit: the depth of a tile. As many as amortise loading and storing its sums, and
// so few that what they read of x stays in L2.
constexpr i64 kUnitPositions = 256;
// Tasks that a gradient is cut into; where blocks of channels are fewer, the images are cut, each
// part with sums of its own, added in order.
constexpr i64 kWantedTasks = 8;
// Of all sums: where they would take more, output channels are cut, each part of which transposes
// the pixels again.
constexpr i64 kMostSums = 1280 * 1024;

// Beside the direct kernel for few channels, at least this part of the lanes must be in use.
constexpr double kLeastInUse = 0.7;

// Of a unit's pixels: about an L2 cache. Large kernels and strides read more.
constexpr i64 kMostBytes = 512 * 1024;

// How the work is cut, by shape alone. Where channels are few, a row of the kernel is one tap: with
// the channels of a pixel behind one another, and then those of its neighbours, all that the row
// reads lies together. The lanes are then pairs of column and channel.
template <class T>
struct Cut {
    bool by_rows;
    i64 rows, channels, taps;  // of a group
    i64 lanes;                 // channels, or pairs
    i64 col_blocks;            // of kTileCols lanes; the last may have less
    i64 row_blocks;            // of output channels
    i64 blocks;                // of both
    i64 unit_rows, unit_cols;  // positions of a unit
    i64 row_units, col_units, units;
    i64 pixel_depth, pixel_rows, pixel_cols;  // what a unit reads, with the padding
    i64 splits, block_size;                   // elements of the sums of a block, at most

    Cut(const ConvParams& c, bool kernel_rows) : by_rows(kernel_rows) {
        rows = c.out_channels / c.groups;
        channels = c.in_channels / c.groups;
        taps = c.kernel[0] * c.kernel[1] * (by_rows ? 1 : c.kernel[2]);
        lanes = by_rows ? channels * c.kernel[2] : channels;
        col_blocks = ceil_div(lanes, kTileCols<T>);
        col_units = ceil_div(c.out_size[2], kUnitPositions);
        unit_cols = ceil_div(c.out_size[2], col_units);
        row_units = ceil_div(c.out_size[1], max_of(kUnitPositions / unit_cols, i64(1)));
        unit_rows = ceil_div(c.out_size[1], row_units);
        units = c.batch * c.out_size[0] * row_units * col_units;
        pixel_depth = c.kernel[0];
        pixel_rows = (unit_rows - 1) * c.stride[1] + (c.kernel[1] - 1) * c.dilation[1] + 1;
        pixel_cols = (unit_cols - 1) * c.stride[2] + (c.kernel[2] - 1) * c.dilation[2] + 1;
        for (row_blocks = 0; row_blocks == 0 || (sums(c) > kMostSums && row_blocks < rows);) {
            ++row_blocks;
            blocks = col_blocks * row_blocks;
            splits = max_of(min_of(ceil_div(kWantedTasks, blocks * c.groups), units), i64(1));
            block_size = ceil_div(rows, row_blocks) * taps * kTileCols<T>;
        }
    }
    // Bytes of the sums that are there at once, of one thread.
    i64 sums(const ConvParams& c) const {
        return (splits > 1 ? splits * blocks * c.groups : 1) * block_size * i64(sizeof(T));
    }
    // Elements of a unit's pixels, and what is stored and read behind the last.
    i64 pixels() const {
        const i64 pitch = by_rows ? channels : kTileCols<T>;
        return pixel_depth * pixel_rows * pixel_cols * pitch + 2 * kTileCols<T>;
    }
    i64 lanes_filled() const { return round_up(lanes, kLanes<T>); }
};

// Lanes [first, first + count) of a group, in whole vectors of `width` lanes together, and output
// channels [row0, row0 + rows). `pitch`: elements of a pixel.
template <class T>
struct Block {
    i64 first, count, width, pitch, row0, rows;
    Block(const Cut<T>& cut, i64 index) {
        const i64 part = index % cut.row_blocks;
        first = index / cut.row_blocks * kTileCols<T>;
        count = min_of(i64(kTileCols<T>), cut.lanes - first);
        width = round_up(count, kLanes<T>);
        pitch = cut.by_rows ? cut.channels : width;
        row0 = cut.rows * part / cut.row_blocks;
        rows = cut.rows * (part + 1) / cut.row_blocks - row0;
    }
};

template <class T>
struct Unit {
    i64 image, depth, row0, rows, col0, cols;
    Unit(const Cut<T>& cut, const ConvParams& c, i64 index) {
        const i64 rest = index / cut.col_units;
        col0 = index % cut.col_units * cut.unit_cols;
        row0 = rest % cut.row_units * cut.unit_rows;
        depth = rest / cut.row_units % c.out_size[0];
        image = rest / cut.row_units / c.out_size[0];
        rows = min_of(cut.unit_rows, c.out_size[1] - row0);
        cols = min_of(cut.unit_cols, c.out_size[2] - col0);
    }
};

// Pixels [0, count) of some planes: dst[pixel * pitch + channel]. Whole vectors are stored: behind
// the last plane its elements are repeated, in lanes that are dropped in the end or where the next
// pixel is stored after them.
template <class T>
FUSEDNN_INLINE void transpose_pixels(const T* plane, i64 plane_size, i64 channels, i64 count,
                                     i64 pitch, T* dst) {
    constexpr i64 lanes = kLanes<T>;
    for (i64 first = 0; first < pitch; first += lanes) {
        const T* src[lanes];
        for (i64 i = 0; i < lanes; ++i) {
            src[i] = plane + min_of(first + i, channels - 1) * plane_size;
        }
        for (i64 p = 0; p < count; p += lanes) {
            // The last vector begins earlier, if there are enough for one.
            const i64 at = count >= lanes ? min_of(p, count - lanes) : 0;
            const i64 some = min_of(count, lanes);
            Vec<T> block[lanes];
#pragma GCC unroll 16
            for (int i = 0; i < lanes; ++i) {
                block[i] = some == lanes ? load(src[i] + at) : load_partial(src[i] + at, some);
            }
            transpose<T>(block);
            T* to = dst + at * pitch + first;
#pragma GCC unroll 16
            for (int i = 0; i < lanes; ++i) {
                if (i < some) store(to + i * pitch, block[i]);
            }
        }
    }
}

// What a unit reads of the channels of a block, which begin at `image`, with zeros for padding:
// dst[depth tap][pixel row][pixel column][channel].
template <class T>
FUSEDNN_INLINE void fill_pixels(const ConvParams& c, const Cut<T>& cut, const Unit<T>& unit,
                                const T* image, const Block<T>& block, T* dst) {
    const i64 top = unit.row0 * c.stride[1] - c.pad[1], left = unit.col0 * c.stride[2] - c.pad[2];
    const i64 begin = min_of(max_of(-left, i64(0)), cut.pixel_cols);
    const i64 end = max_of(begin, min_of(c.in_size[2] - left, cut.pixel_cols));
    const i64 channels = cut.by_rows ? cut.channels : block.count;
    const i64 pixel_rows = cut.pixel_depth * cut.pixel_rows;
    for (i64 r = 0; r < pixel_rows; ++r, dst += cut.pixel_cols * block.pitch) {
        const i64 y = top + r % cut.pixel_rows;
        const i64 z = unit.depth * c.stride[0] + r / cut.pixel_rows * c.dilation[0] - c.pad[0];
        const bool inside = y >= 0 && y < c.in_size[1] && z >= 0 && z < c.in_size[0];
        const i64 from = inside ? begin : cut.pixel_cols, to = inside ? end : cut.pixel_cols;
        for (i64 i = 0; i < from * block.pitch; ++i) dst[i] = T(0);
        if (from < to) {
            const T* src = image + (z * c.in_size[1] + y) * c.in_size[2] + left + from;
            transpose_pixels(src, volume(c.in_size), channels, to - from, block.pitch,
                             dst + from * block.pitch);
        }
        for (i64 i = to * block.pitch; i < cut.pixel_cols * block.pitch; ++i) dst[i] = T(0);
    }
}

// Workspaces of a task.
template <class T>
struct Buffers {
    T *pixels, *factors;
    i64* offset;
};

// sums[row][tap][width] of a block: units [begin, end). x, dy: the group's.
template <class T>
void add_units(const ConvParams& c, const Cut<T>& cut, const Block<T>& block, i64 begin, i64 end,
               const T* x, const T* dy, const Buffers<T>& buffers, T* sums) {
    const i64 positions = volume(c.out_size);
    const RowPanels panels(block.rows);
    for (i64 index = begin; index < end; ++index) {
        const Unit<T> unit(cut, c, index);
        const i64 count = unit.rows * unit.cols;
        const i64 channel = unit.image * c.in_channels + (cut.by_rows ? 0 : block.first);
        fill_pixels(c, cut, unit, x + channel * volume(c.in_size), block, buffers.pixels);
        // A unit has whole rows, or one: its positions follow each other in dy.
        const T* rows = dy + (unit.image * c.out_channels + block.row0) * positions +
                        (unit.depth * c.out_size[1] + unit.row0) * c.out_size[2] + unit.col0;
        for (i64 panel = 0; panel < panels.count; ++panel) {
            const i64 row0 = panels.start(panel);
            pack_rows(count, panels.height(panel), rows + row0 * positions, positions, i64(1),
                      buffers.factors + row0 * count, false);
        }
        for (i64 i = 0; i < count; ++i) {
            buffers.offset[i] =
                (i / unit.cols * c.stride[1] * cut.pixel_cols + i % unit.cols * c.stride[2]) *
                block.pitch;
        }
        TileOutput<T> out{};
        out.ldc = cut.taps * block.width;
        out.cols = block.width;
        out.accumulate = index != begin;
        const i64 columns = cut.by_rows ? 1 : c.kernel[2];
        for (i64 tap = 0; tap < cut.taps; ++tap) {
            const i64 row = tap / columns % c.kernel[1] * c.dilation[1] +
                            tap / columns / c.kernel[1] * cut.pixel_rows;
            const i64 pixel = row * cut.pixel_cols + tap % columns * c.dilation[2];
            const T* pixels =
                buffers.pixels + pixel * block.pitch + (cut.by_rows ? block.first : 0);
            for (i64 panel = 0; panel < panels.count; ++panel) {
                const i64 row0 = panels.start(panel);
                out.c = sums + row0 * out.ldc + tap * block.width;
                offset_tile<T>(panels.height(panel), block.width)(
                    count, buffers.offset, pixels, buffers.factors + row0 * count, out);
            }
        }
    }
}

// dw[row][channel][tap] of a block = the sums of all splits, `apart` elements from one to the next.
// dw: the group's.
template <class T>
void order_sums(const Cut<T>& cut, const Block<T>& block, const T* sums, i64 apart, T* dw) {
    const i64 columns = cut.lanes / cut.channels, volume = cut.taps * columns;
    for (i64 row = 0; row < block.rows; ++row) {
        T* of_row = dw + (block.row0 + row) * cut.channels * volume;
        for (i64 tap = 0; tap < cut.taps; ++tap) {
            const T* from = sums + (row * cut.taps + tap) * block.width;
            T* to = of_row + tap * columns;
            i64 column = block.first / cut.channels, channel = block.first % cut.channels;
            for (i64 i = 0; i < block.count; ++i) {
                T sum = from[i];
                for (i64 split = 1; split < cut.splits; ++split) sum += from[split * apart + i];
                to[channel * volume + column] = sum;
                if (++channel == cut.channels) {
                    channel = 0;
                    ++column;
                }
            }
        }
    }
}

// Cycles beside those of an im2col product: measured, an element that is transposed takes half a
// one, an element of dw that is brought into order two; and lanes that stay empty.
template <class T>
double extra_cycles(const Cut<T>& cut) {
    const double images = double(cut.units), positions = double(cut.unit_rows * cut.unit_cols);
    const i64 filled = cut.by_rows ? cut.col_blocks * kLanes<T> : cut.lanes_filled();
    const double pixels =
        double(cut.pixel_depth * cut.pixel_rows * cut.pixel_cols) * double(filled * cut.row_blocks);
    const double idle = double(cut.lanes_filled() - cut.lanes) / double(kLanes<T>);
    return 0.5 * images * pixels + 2 * double(cut.rows * cut.taps * cut.lanes) +
           images * positions * double(cut.taps * cut.rows) * idle;
}

// The better of the two cuts.
template <class T>
Cut<T> choose_cut(const ConvParams& c) {
    const Cut<T> plain(c, false);
    if (plain.channels > kLanes<T> || c.dilation[2] != 1) return plain;
    const Cut<T> by_rows(c, true);
    return extra_cycles(by_rows) < extra_cycles(plain) ? by_rows : plain;
}

}  // namespace

template <class T>
bool prefer_channel_weight_grad(const ConvParams& c) {
    if (c.batch * c.out_channels * volume(c.out_size) == 0) return false;
    if (c.in_channels * volume(c.in_size) == 0) return false;
    const Cut<T> cut = choose_cut<T>(c);
    const i64 taps = volume(c.kernel);
    if (taps < 2 || cut.pixels() * i64(sizeof(T)) > kMostBytes) return false;
    // Few channels on both sides, or most lanes empty: the direct kernel is faster.
    if (c.algorithm == ConvAlgorithm::direct &&
        double(cut.lanes) < kLeastInUse * double(cut.lanes_filled()))
        return false;
    // An element of im2col takes about a cycle.
    const double positions = double(cut.unit_rows * cut.unit_cols);
    return extra_cycles(cut) < double(cut.units) * positions * double(taps * cut.channels);
}

template <class T>
void channel_weight_grad(const ConvParams& c, const T* x, const T* dy, T* dw) {
    const Cut<T> cut = choose_cut<T>(c);
    const i64 blocks = c.groups * cut.blocks, tasks = blocks * cut.splits;
    const i64 positions = volume(c.out_size), unit = cut.unit_rows * cut.unit_cols;
    const int slots =
        parallel_slots(tasks, 2 * c.batch * positions * c.groups * cut.rows * cut.lanes * cut.taps);
    Workspace<T> pixels(cut.pixels(), slots);
    Workspace<T> factors(ceil_div(cut.rows, cut.row_blocks) * unit + kPackSlack<T>, slots);
    Workspace<i64> offset(unit, slots);
    const bool split = cut.splits > 1;
    Workspace<T> own(split ? 0 : cut.block_size, slots);
    Workspace<T> parts(split ? tasks * cut.block_size : 0);
    const auto group_of = [&](i64 block) { return block / cut.blocks; };
    const auto order = [&](i64 block, const T* sums) {
        order_sums(cut, Block<T>(cut, block % cut.blocks), sums, blocks * cut.block_size,
                   dw + group_of(block) * cut.rows * cut.taps * cut.lanes);
    };
    parallel(tasks, slots, [&](i64 task, int slot) {
        FlushDenormals flush;
        const i64 part = task / blocks, block = task % blocks, group = group_of(block);
        T* sums = split ? parts.get() + task * cut.block_size : own.slot(slot);
        add_units(c, cut, Block<T>(cut, block % cut.blocks), cut.units * part / cut.splits,
                  cut.units * (part + 1) / cut.splits, x + group * cut.channels * volume(c.in_size),
                  dy + group * cut.rows * positions,
                  Buffers<T>{pixels.slot(slot), factors.slot(slot), offset.slot(slot)}, sums);
        if (!split) order(block, sums);
    });
    if (!split) return;
    parallel(blocks, parallel_slots(blocks, blocks * cut.block_size * cut.splits),
             [&](i64 block, int) {
                 FlushDenormals flush;
                 order(block, parts.get() + block * cut.block_size);
             });
}

#define FUSEDNN_CHANNEL_WEIGHT_GRAD(T)                              \
    template bool prefer_channel_weight_grad<T>(const ConvParams&); \
    template void channel_weight_grad<T>(const ConvParams&, const T*, const T*, T*);
FUSEDNN_INSTANTIATE(FUSEDNN_CHANNEL_WEIGHT_GRAD)

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
