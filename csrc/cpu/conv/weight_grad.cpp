// Convolution weight and bias gradients.
//
//   x  (N, C, D, H, W)     dy (N, O, OD, OH, OW)     dw (O, C/groups, KD, KH, KW)     db (O)
//
// dw[o, (c, tap)] = sum over images and positions q of dy[o, q] * im2col[(c, tap), q]: per group a
// product with rows o, columns (c, tap), and k running over positions. The im2col matrix is made
// one small block at a time (pack.h) and transposed on the way into the GEMM panels.
//
// The sum over positions is cut into units (a stretch of one image's positions), and where dw alone
// does not give enough tasks, the units into splits with a partial dw each. Both cuts depend on
// shape alone, and partial results are added in order: the same bits at any thread count.
#include "cpu/conv/channel_weight_grad.h"
#include "cpu/conv/depthwise.h"
#include "cpu/conv/pack.h"
#include "cpu/conv/pixel_lanes.h"
#include "cpu/gemm/engine.h"
#include "cpu/kernels.h"

namespace fusednn {
namespace FUSEDNN_ISA {

namespace {

constexpr i64 kUnitPositions = 256;
constexpr i64 kWantedTasks = 16;

template <class T>
struct WeightGrad {
    ConvProblem<T> columns;  // group 0's im2col matrix (rows, dst: unused)
    const T* dy;
    i64 rows, depth, positions;  // of one group: O/groups, C/groups * taps, out pixels
    i64 dy_image;
    i64 units_per_image, unit_positions, units;
    i64 panels_per_task, col_panels, col_tasks, splits;
};

template <class T>
FUSEDNN_INLINE void cut(WeightGrad<T>& g, const ConvParams& c) {
    g.units_per_image = ceil_div(g.positions, kUnitPositions);
    g.unit_positions = ceil_div(g.positions, max_of(g.units_per_image, i64(1)));
    g.units = c.batch * g.units_per_image;
    g.col_panels = ceil_div(g.depth, kTileCols<T>);
    const i64 fit =
        kPackedBlockBytes / (max_of(g.unit_positions, i64(1)) * kTileCols<T> * i64(sizeof(T)));
    g.panels_per_task = max_of(min_of(fit, g.col_panels), i64(1));
    g.col_tasks = ceil_div(g.col_panels, g.panels_per_task);
    const i64 tasks = max_of(g.col_tasks * c.groups, i64(1));
    g.splits = max_of(min_of(ceil_div(kWantedTasks, tasks), g.units), i64(1));
}

// The unit's block of the transposed im2col matrix, for column panels [begin, end):
// dst[panel][position][kTileCols].
template <class T>
FUSEDNN_INLINE void pack_unit(const WeightGrad<T>& g, ColumnTable<T>& table, i64 image, i64 q0,
                              i64 count, i64 begin, i64 end, T* dst) {
    constexpr int lanes = kLanes<T>;
    constexpr i64 width = kTileCols<T>;
    // Rows are (c, tap), columns positions; the slack takes the last row's run-over.
    alignas(64) T block[width * width + width];
    for (i64 q = 0; q < count; q += width) {
        const i64 positions = min_of(width, count - q);
        table.set_columns(image * g.positions + q0 + q, positions, begin * width,
                          min_of(end * width, g.depth) - begin * width);
        for (i64 panel = begin; panel < end; ++panel) {
            const i64 k0 = panel * width;
            table.pack(k0, min_of(width, g.depth - k0), block);
            T* out = dst + ((panel - begin) * count + q) * width;
            for (i64 i = 0; i < positions; i += lanes) {
                for (i64 j = 0; j < width; j += lanes) {
                    Vec<T> v[lanes];
#pragma GCC unroll 16
                    for (int r = 0; r < lanes; ++r) v[r] = load(block + (j + r) * width + i);
                    transpose<T>(v);
                    const i64 valid = min_of(i64(lanes), positions - i);
#pragma GCC unroll 16
                    for (int r = 0; r < lanes; ++r) {
                        if (r < valid) store(out + (i + r) * width + j, v[r]);
                    }
                }
            }
        }
    }
}

// Adds units [unit0, unit1) for column panels [begin, end) into dw (rows x depth).
template <class T>
FUSEDNN_INLINE void add_units(const WeightGrad<T>& g, i64 unit0, i64 unit1, i64 begin, i64 end,
                              ColumnTable<T>& table, T* a_block, T* b_block, T* dw) {
    constexpr i64 width = kTileCols<T>;
    const RowPanels panels(g.rows);
    for (i64 unit = unit0; unit < unit1; ++unit) {
        const i64 image = unit / g.units_per_image;
        const i64 q0 = unit % g.units_per_image * g.unit_positions;
        const i64 count = min_of(g.unit_positions, g.positions - q0);
        if (count <= 0) continue;
        const T* dy = g.dy + image * g.dy_image + q0;
        for (i64 panel = 0; panel < panels.count; ++panel) {
            const i64 row0 = panels.start(panel);
            pack_rows(count, panels.height(panel), dy + row0 * g.positions, g.positions, i64(1),
                      a_block + row0 * count, false);
        }
        pack_unit(g, table, image, q0, count, begin, end, b_block);
        for (i64 panel = 0; panel < panels.count; ++panel) {
            const i64 row0 = panels.start(panel);
            for (i64 col = begin; col < end; ++col) {
                TileOutput<T> out;
                out.c = dw + row0 * g.depth + col * width;
                out.ldc = g.depth;
                out.cols = min_of(width, g.depth - col * width);
                out.accumulate = unit != unit0;
                out.row_bias = out.col_bias = nullptr;
                out.activation = Activation::none;
                tile_function<T>(panels.height(panel), out.cols, true)(
                    count, a_block + row0 * count, 0, b_block + (col - begin) * count * width,
                    width, out);
            }
        }
    }
}

template <class T>
WeightGrad<T> describe(const ConvParams& c, const T* x, const T* dy, i64* offset) {
    WeightGrad<T> g;
    ConvProblem<T>& p = g.columns;
    p.batch = c.batch;
    p.src_plane = volume(c.in_size);
    p.src_image = c.in_channels * p.src_plane;
    p.src = x;
    p.channels = c.in_channels / c.groups;
    for (int axis = 0; axis < 3; ++axis) {
        p.grid[axis] = c.out_size[axis];
        p.src_size[axis] = c.in_size[axis];
        p.step[axis] = c.stride[axis];
        p.taps[axis] = c.kernel[axis];
        p.offset[axis] = offset;
        for (i64 i = 0; i < c.kernel[axis]; ++i) *offset++ = i * c.dilation[axis] - c.pad[axis];
    }
    g.dy = dy;
    g.rows = c.out_channels / c.groups;
    g.depth = p.depth();
    g.positions = p.positions();
    g.dy_image = c.out_channels * g.positions;
    cut(g, c);
    return g;
}

}  // namespace

template <class T>
void conv_backward_weight(const ConvParams& c, const T* x, const T* dy, T* dw) {
    if (c.algorithm == ConvAlgorithm::direct) {
        const bool unit = c.stride[1] == 1 && c.stride[2] == 1;
        return unit ? pixel_lanes_backward_weight(c, x, dy, dw)
                    : depthwise_backward_weight(c, x, dy, dw);
    }
    if (prefer_channel_weight_grad<T>(c)) return channel_weight_grad(c, x, dy, dw);
    Workspace<i64> offsets(c.kernel[0] + c.kernel[1] + c.kernel[2]);
    const WeightGrad<T> all = describe(c, x, dy, offsets.get());
    const i64 size = c.groups * all.rows * all.depth;
    if (all.units == 0 || all.rows == 0) {
        for (i64 i = 0; i < size; ++i) dw[i] = T(0);
        return;
    }
    const i64 tasks = c.groups * all.col_tasks * all.splits;
    const int slots = parallel_slots(tasks, 2 * size * c.batch * all.positions);
    Workspace<char> tables(ColumnTable<T>::workspace(all.columns), slots);
    Workspace<T> a_work(all.rows * all.unit_positions + kPackSlack<T>, slots);
    Workspace<T> b_work(all.panels_per_task * all.unit_positions * kTileCols<T>, slots);
    Workspace<T> partial(all.splits > 1 ? all.splits * size : 0);
    parallel(tasks, slots, [&](i64 task, int slot) {
        FlushDenormals flush;
        const i64 split = task % all.splits, rest = task / all.splits;
        const i64 group = rest / all.col_tasks, col_task = rest % all.col_tasks;
        WeightGrad<T> g = all;
        g.columns.src += group * g.columns.channels * g.columns.src_plane;
        g.dy += group * g.rows * g.positions;
        ColumnTable<T> table(g.columns, tables.slot(slot));
        T* out = all.splits > 1 ? partial.get() + split * size : dw;
        const i64 begin = col_task * g.panels_per_task;
        add_units(g, g.units * split / g.splits, g.units * (split + 1) / g.splits, begin,
                  min_of(begin + g.panels_per_task, g.col_panels), table, a_work.slot(slot),
                  b_work.slot(slot), out + group * g.rows * g.depth);
    });
    if (all.splits == 1) return;
    const T* sums = partial.get();
    for (i64 i = 0; i < size; ++i) {
        T sum = sums[i];
        for (i64 split = 1; split < all.splits; ++split) sum += sums[split * size + i];
        dw[i] = sum;
    }
}

namespace {

// Bias gradients are sums of very many terms and cost no more than reading them: so they are taken
// in double, whatever T is.

template <class T>
FUSEDNN_INLINE double sum_row(i64 count, const T* x) {
    constexpr int lanes = kLanes<double>;
    Vec<double> sum[4] = {};
    i64 i = 0;
    for (; i + 4 * lanes <= count; i += 4 * lanes) {
#pragma GCC unroll 4
        for (int part = 0; part < 4; ++part) sum[part] += load_wide(x + i + part * lanes);
    }
    for (; i + lanes <= count; i += lanes) sum[0] += load_wide(x + i);
    double total = sum_lanes<double>((sum[0] + sum[1]) + (sum[2] + sum[3]));
    for (; i < count; ++i) total += double(x[i]);
    return total;
}

// Columns [begin, begin + count) of x (rows x channels) summed over the rows; count is at most
// kColumns.
constexpr i64 kColumns = 64;

template <class T>
FUSEDNN_INLINE void sum_columns(i64 rows, i64 channels, i64 begin, i64 count, const T* x, T* out) {
    double sum[kColumns] = {};
    for (i64 r = 0; r < rows; ++r) {
        const T* row = x + r * channels + begin;
        for (i64 c = 0; c < count; ++c) sum[c] += double(row[c]);
    }
    for (i64 c = 0; c < count; ++c) out[begin + c] = T(sum[c]);
}

}  // namespace

template <class T>
void bias_grad(i64 outer, i64 channels, i64 inner, const T* dy, T* db) {
    const i64 bytes = outer * channels * inner * i64(sizeof(T));
    if (inner == 1) {
        const i64 tasks = ceil_div(channels, kColumns);
        parallel(tasks, parallel_slots(tasks, bytes), [&](i64 task, int) {
            const i64 begin = task * kColumns;
            sum_columns(outer, channels, begin, min_of(kColumns, channels - begin), dy, db);
        });
        return;
    }
    parallel(channels, parallel_slots(channels, bytes), [&](i64 channel, int) {
        double total = 0;
        for (i64 i = 0; i < outer; ++i)
            total += sum_row(inner, dy + (i * channels + channel) * inner);
        db[channel] = T(total);
    });
}

#define FUSEDNN_WEIGHT_GRAD(T)                                                        \
    template void conv_backward_weight<T>(const ConvParams&, const T*, const T*, T*); \
    template void bias_grad<T>(i64, i64, i64, const T*, T*);
FUSEDNN_INSTANTIATE(FUSEDNN_WEIGHT_GRAD)

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
