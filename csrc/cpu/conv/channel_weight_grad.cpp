#include "cpu/conv/channel_weight_grad.h"

#include "cpu/conv/offset_tile.h"
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

// Of a unit's pixels: about an L2 cache. Large kernels and strides read more.
constexpr i64 kMostBytes = 512 * 1024;

// How the work is cut, by shape alone.
template <class T>
struct Cut {
    i64 rows, channels, taps;  // of a group
    i64 col_blocks;            // of kTileCols channels; the last may have less
    i64 row_blocks;            // of output channels
    i64 blocks;                // of both
    i64 unit_rows, unit_cols;  // positions of a unit
    i64 row_units, col_units, units;
    i64 pixel_rows, pixel_cols;  // what a unit reads, with the padding
    i64 splits, block_size;      // elements of the sums of a block, at most

    explicit Cut(const ConvParams& c) {
        rows = c.out_channels / c.groups;
        channels = c.in_channels / c.groups;
        taps = c.kernel[1] * c.kernel[2];
        col_blocks = ceil_div(channels, kTileCols<T>);
        col_units = ceil_div(c.out_size[2], kUnitPositions);
        unit_cols = ceil_div(c.out_size[2], col_units);
        row_units = ceil_div(c.out_size[1], max_of(kUnitPositions / unit_cols, i64(1)));
        unit_rows = ceil_div(c.out_size[1], row_units);
        units = c.batch * row_units * col_units;
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
    i64 pixels() const { return pixel_rows * pixel_cols; }
};

// Channels [first, first + count) of a group, in whole vectors of `width` lanes together, and
// output channels [row0, row0 + rows).
template <class T>
struct Block {
    i64 first, count, width, row0, rows;
    Block(const Cut<T>& cut, i64 index) {
        const i64 part = index % cut.row_blocks;
        first = index / cut.row_blocks * kTileCols<T>;
        count = min_of(i64(kTileCols<T>), cut.channels - first);
        width = round_up(count, kLanes<T>);
        row0 = cut.rows * part / cut.row_blocks;
        rows = cut.rows * (part + 1) / cut.row_blocks - row0;
    }
};

template <class T>
struct Unit {
    i64 image, row0, rows, col0, cols;
    Unit(const Cut<T>& cut, const ConvParams& c, i64 index) {
        const i64 rest = index / cut.col_units;
        col0 = index % cut.col_units * cut.unit_cols;
        row0 = rest % cut.row_units * cut.unit_rows;
        image = rest / cut.row_units;
        rows = min_of(cut.unit_rows, c.out_size[1] - row0);
        cols = min_of(cut.unit_cols, c.out_size[2] - col0);
    }
};

// Pixels [0, count) of some planes: dst[pixel * pitch + channel]. Behind the last plane its
// elements are repeated: they are dropped in the end.
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

// What a unit reads of a block of channels, which begins at `image`, with zeros for padding:
// dst[pixel row][pixel column][channel].
template <class T>
FUSEDNN_INLINE void fill_pixels(const ConvParams& c, const Cut<T>& cut, const Unit<T>& unit,
                                const T* image, const Block<T>& block, T* dst) {
    const i64 top = unit.row0 * c.stride[1] - c.pad[1], left = unit.col0 * c.stride[2] - c.pad[2];
    const i64 begin = min_of(max_of(-left, i64(0)), cut.pixel_cols);
    const i64 end = max_of(begin, min_of(c.in_size[2] - left, cut.pixel_cols));
    for (i64 r = 0; r < cut.pixel_rows; ++r, dst += cut.pixel_cols * block.width) {
        const i64 y = top + r;
        const bool inside = y >= 0 && y < c.in_size[1];
        const i64 from = inside ? begin : cut.pixel_cols, to = inside ? end : cut.pixel_cols;
        for (i64 i = 0; i < from * block.width; ++i) dst[i] = T(0);
        if (from < to) {
            transpose_pixels(image + y * c.in_size[2] + left + from, c.in_size[1] * c.in_size[2],
                             block.count, to - from, block.width, dst + from * block.width);
        }
        for (i64 i = to * block.width; i < cut.pixel_cols * block.width; ++i) dst[i] = T(0);
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
    const i64 positions = c.out_size[1] * c.out_size[2];
    const RowPanels panels(block.rows);
    for (i64 index = begin; index < end; ++index) {
        const Unit<T> unit(cut, c, index);
        const i64 count = unit.rows * unit.cols;
        fill_pixels(c, cut, unit,
                    x + (unit.image * c.in_channels + block.first) * c.in_size[1] * c.in_size[2],
                    block, buffers.pixels);
        // A unit has whole rows, or one: its positions follow each other in dy.
        const T* rows = dy + (unit.image * c.out_channels + block.row0) * positions +
                        unit.row0 * c.out_size[2] + unit.col0;
        for (i64 panel = 0; panel < panels.count; ++panel) {
            const i64 row0 = panels.start(panel);
            pack_rows(count, panels.height(panel), rows + row0 * positions, positions, i64(1),
                      buffers.factors + row0 * count, false);
        }
        for (i64 i = 0; i < count; ++i) {
            buffers.offset[i] =
                (i / unit.cols * c.stride[1] * cut.pixel_cols + i % unit.cols * c.stride[2]) *
                block.width;
        }
        TileOutput<T> out{};
        out.ldc = cut.taps * block.width;
        out.cols = block.width;
        out.accumulate = index != begin;
        for (i64 tap = 0; tap < cut.taps; ++tap) {
            const T* pixels = buffers.pixels + (tap / c.kernel[2] * c.dilation[1] * cut.pixel_cols +
                                                tap % c.kernel[2] * c.dilation[2]) *
                                                   block.width;
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
    for (i64 row = 0; row < block.rows; ++row) {
        for (i64 tap = 0; tap < cut.taps; ++tap) {
            const T* from = sums + (row * cut.taps + tap) * block.width;
            T* to = dw + ((block.row0 + row) * cut.channels + block.first) * cut.taps + tap;
            for (i64 c = 0; c < block.count; ++c) {
                T sum = from[c];
                for (i64 split = 1; split < cut.splits; ++split) sum += from[split * apart + c];
                to[c * cut.taps] = sum;
            }
        }
    }
}

}  // namespace

template <class T>
bool prefer_channel_weight_grad(const ConvParams& c) {
    const bool flat = c.kernel[0] == 1 && c.in_size[0] == 1 && c.pad[0] == 0;
    if (!flat) return false;
    const i64 elements_out = c.batch * c.out_channels * c.out_size[1] * c.out_size[2];
    if (elements_out == 0 || c.in_channels * c.in_size[1] * c.in_size[2] == 0) return false;
    const Cut<T> cut(c);
    if (cut.taps < 2 || cut.pixels() * kTileCols<T> * i64(sizeof(T)) > kMostBytes) return false;
    // Cycles, measured: an element of im2col takes about one, an element that is transposed half a
    // one, an element of dw that is brought into order two; and lanes that stay empty.
    const double images = double(cut.units), elements = double(cut.channels);
    const double positions = double(cut.unit_rows * cut.unit_cols);
    const double im2col = images * positions * double(cut.taps) * elements;
    const i64 lanes = round_up(cut.channels, kLanes<T>);
    const double transposed = 0.5 * images * double(cut.pixels() * lanes * cut.row_blocks);
    const double ordered = 2 * double(cut.rows * cut.taps) * elements;
    const double idle = images * positions * double(cut.taps * cut.rows) *
                        double(lanes - cut.channels) / double(kLanes<T>);
    return transposed + ordered + idle < im2col;
}

template <class T>
void channel_weight_grad(const ConvParams& c, const T* x, const T* dy, T* dw) {
    const Cut<T> cut(c);
    const i64 blocks = c.groups * cut.blocks, tasks = blocks * cut.splits;
    const i64 positions = c.out_size[1] * c.out_size[2], unit = cut.unit_rows * cut.unit_cols;
    const int slots = parallel_slots(
        tasks, 2 * c.batch * positions * c.groups * cut.rows * cut.channels * cut.taps);
    Workspace<T> pixels(cut.pixels() * kTileCols<T>, slots);
    Workspace<T> factors(ceil_div(cut.rows, cut.row_blocks) * unit + kPackSlack<T>, slots);
    Workspace<i64> offset(unit, slots);
    const bool split = cut.splits > 1;
    Workspace<T> own(split ? 0 : cut.block_size, slots);
    Workspace<T> parts(split ? tasks * cut.block_size : 0);
    const auto group_of = [&](i64 block) { return block / cut.blocks; };
    const auto order = [&](i64 block, const T* sums) {
        order_sums(cut, Block<T>(cut, block % cut.blocks), sums, blocks * cut.block_size,
                   dw + group_of(block) * cut.rows * cut.channels * cut.taps);
    };
    parallel(tasks, slots, [&](i64 task, int slot) {
        FlushDenormals flush;
        const i64 part = task / blocks, block = task % blocks, group = group_of(block);
        T* sums = split ? parts.get() + task * cut.block_size : own.slot(slot);
        add_units(c, cut, Block<T>(cut, block % cut.blocks), cut.units * part / cut.splits,
                  cut.units * (part + 1) / cut.splits,
                  x + group * cut.channels * c.in_size[1] * c.in_size[2],
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
