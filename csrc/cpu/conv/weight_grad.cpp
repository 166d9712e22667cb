// Convolution weight and bias gradients.
//
//   x  (N, C, D, H, W)     dy (N, O, OD, OH, OW)     dw (O, C/groups, KD, KH, KW)     db (O)
//
// dw[o, (c, tap)] = sum over images and positions q of dy[o, q] * im2col[(c, tap), q]: per group a
// product with rows o, columns (c, tap), and k running over positions. The im2col matrix is made
// one small block at a time (pack.h) and transposed on the way into the GEMM panels.
//
// The sum over the positions of all images is cut into units, and where dw alone does not give
// enough tasks, the units into splits: the first adds up in dw, the others each in a partial one.
// Both cuts depend on shape alone, and partial results are added in order: the same bits at any
// thread count.
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
// Of a unit's part of dy, which many output channels make shorter, but not below 64 positions; of
// the partial gradients.
constexpr i64 kMostFactors = 768 * 1024, kMostPartial = 512 * 1024;
// A large dw is cut itself, not below these: a task packs what its neighbours pack as well.
constexpr i64 kWantedTasks = 16, kWantedCuts = 8;
constexpr i64 kLeastPanels = 4, kLeastRows = 256;
// Taken from the partial gradients by one task of the last additions.
constexpr i64 kSumElements = 16 * 1024;

template <class T>
struct WeightGrad {
    ConvProblem<T> columns;  // group 0's im2col matrix (rows, dst: unused)
    const T* dy;
    i64 rows, depth;               // of one group: O/groups, C/groups * taps
    i64 positions, all_positions;  // of an image, of all
    i64 dy_image;
    i64 unit_positions, units;
    i64 panels_per_task, col_panels, col_tasks, row_tasks, splits;
};

template <class T>
FUSEDNN_INLINE void cut(WeightGrad<T>& g, const ConvParams& c) {
    const i64 element = sizeof(T);
    g.col_panels = ceil_div(g.depth, kTileCols<T>);
    g.all_positions = c.batch * g.positions;
    g.row_tasks = 1;
    const i64 partial = max_of(c.groups * g.rows * g.depth * element, i64(1));
    const i64 most_splits = 1 + kMostPartial / partial;
    if (most_splits == 1) {
        const i64 columns = max_of(g.col_panels / kLeastPanels * c.groups, i64(1));
        g.row_tasks = min_of(ceil_div(kWantedCuts, columns), max_of(g.rows / kLeastRows, i64(1)));
    }
    const i64 rows = max_of(ceil_div(g.rows, g.row_tasks), i64(1));
    g.units = ceil_div(g.all_positions,
                       min_of(kUnitPositions, max_of(kMostFactors / (rows * element), i64(64))));
    g.unit_positions = ceil_div(g.all_positions, max_of(g.units, i64(1)));
    g.panels_per_task =
        kPackedBlockBytes / (max_of(g.unit_positions, i64(1)) * kTileCols<T> * element);
    if (most_splits == 1) {
        const i64 wanted = ceil_div(kWantedCuts, c.groups * g.row_tasks);
        g.panels_per_task = min_of(g.panels_per_task, max_of(g.col_panels / wanted, kLeastPanels));
    }
    g.panels_per_task = max_of(min_of(g.panels_per_task, g.col_panels), i64(1));
    g.col_tasks = ceil_div(g.col_panels, g.panels_per_task);
    const i64 tasks = max_of(g.col_tasks * g.row_tasks * c.groups, i64(1));
    const i64 splits = min_of(ceil_div(kWantedTasks, tasks), min_of(g.units, most_splits));
    g.splits = max_of(splits, i64(1));
}

// The unit's block of the transposed im2col matrix, for column panels [begin, end):
// dst[panel][position][kTileCols].
template <class T>
FUSEDNN_INLINE void pack_unit(const WeightGrad<T>& g, ColumnTable<T>& table, i64 q0, i64 count,
                              i64 begin, i64 end, T* dst) {
    constexpr int lanes = kLanes<T>;
    constexpr i64 width = kTileCols<T>;
    // Rows are (c, tap), columns positions; the slack takes the last row's run-over.
    alignas(64) T block[width * width + width];
    for (i64 q = 0; q < count; q += width) {
        const i64 positions = min_of(width, count - q);
        table.set_columns(q0 + q, positions, begin * width,
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

// The unit's rows of dy as panels: the one that starts at row i goes to dst[i * count].
template <class T>
FUSEDNN_INLINE void pack_factors(const WeightGrad<T>& g, const RowPanels& panels, i64 q0, i64 count,
                                 T* dst) {
    for (i64 panel = 0; panel < panels.count; ++panel) {
        const i64 row0 = panels.start(panel), height = panels.height(panel);
        for (i64 done = 0, some; done < count; done += some) {
            const i64 image = (q0 + done) / g.positions, position = (q0 + done) % g.positions;
            some = min_of(count - done, g.positions - position);
            pack_rows(some, int(height), g.dy + image * g.dy_image + row0 * g.positions + position,
                      g.positions, i64(1), dst + row0 * count + done * height, false);
        }
    }
}

// Adds units [unit0, unit1) for column panels [begin, end) into dw (g.rows x depth).
template <class T>
FUSEDNN_INLINE void add_units(const WeightGrad<T>& g, i64 unit0, i64 unit1, i64 begin, i64 end,
                              ColumnTable<T>& table, T* a_block, T* b_block, T* dw) {
    constexpr i64 width = kTileCols<T>;
    const RowPanels panels(g.rows);
    for (i64 unit = unit0; unit < unit1; ++unit) {
        const i64 q0 = unit * g.unit_positions;
        const i64 count = min_of(g.unit_positions, g.all_positions - q0);
        if (count <= 0) continue;
        pack_factors(g, panels, q0, count, a_block);
        pack_unit(g, table, q0, count, begin, end, b_block);
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
    const bool depthwise = c.groups > 1 && c.groups == c.in_channels;
    if (!depthwise && prefer_channel_weight_grad<T>(c)) return channel_weight_grad(c, x, dy, dw);
    if (c.algorithm == ConvAlgorithm::direct) {
        const bool unit = c.stride[1] == 1 && c.stride[2] == 1;
        return unit ? pixel_lanes_backward_weight(c, x, dy, dw)
                    : depthwise_backward_weight(c, x, dy, dw);
    }
    Workspace<i64> offsets(c.kernel[0] + c.kernel[1] + c.kernel[2]);
    const WeightGrad<T> all = describe(c, x, dy, offsets.get());
    const i64 size = c.groups * all.rows * all.depth;
    if (all.units == 0 || all.rows == 0) {
        for (i64 i = 0; i < size; ++i) dw[i] = T(0);
        return;
    }
    const i64 tasks = c.groups * all.col_tasks * all.row_tasks * all.splits;
    const int slots = parallel_slots(tasks, 2 * size * all.all_positions);
    Workspace<char> tables(ColumnTable<T>::workspace(all.columns), slots);
    Workspace<T> a_work(ceil_div(all.rows, all.row_tasks) * all.unit_positions + kPackSlack<T>,
                        slots);
    Workspace<T> b_work(all.panels_per_task * all.unit_positions * kTileCols<T>, slots);
    Workspace<T> partial((all.splits - 1) * size);
    parallel(tasks, slots, [&](i64 task, int slot) {
        FlushDenormals flush;
        const i64 split = task % all.splits, rest = task / all.splits;
        const i64 row_task = rest % all.row_tasks, col_task = rest / all.row_tasks % all.col_tasks;
        const i64 group = rest / all.row_tasks / all.col_tasks;
        const i64 row0 = all.rows * row_task / all.row_tasks;
        WeightGrad<T> g = all;
        g.rows = all.rows * (row_task + 1) / all.row_tasks - row0;
        g.columns.src += group * g.columns.channels * g.columns.src_plane;
        g.dy += (group * all.rows + row0) * g.positions;
        ColumnTable<T> table(g.columns, tables.slot(slot));
        T* out = split > 0 ? partial.get() + (split - 1) * size : dw;
        const i64 begin = col_task * g.panels_per_task;
        add_units(g, g.units * split / g.splits, g.units * (split + 1) / g.splits, begin,
                  min_of(begin + g.panels_per_task, g.col_panels), table, a_work.slot(slot),
                  b_work.slot(slot), out + (group * all.rows + row0) * g.depth);
    });
    if (all.splits == 1) return;
    const i64 sums = ceil_div(size, kSumElements);
    parallel(sums, parallel_slots(sums, size * all.splits), [&](i64 task, int) {
        FlushDenormals flush;
        for (i64 i = task * kSumElements; i < min_of((task + 1) * kSumElements, size); ++i) {
            T sum = dw[i];
            for (i64 split = 1; split < all.splits; ++split) {
                sum += partial.get()[(split - 1) * size + i];
            }
            dw[i] = sum;
        }
    });
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
