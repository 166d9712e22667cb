// Convolution of few input channels, as in a network's first layer.
//
//   x  (N, C, H, W)     w (O, C/groups, KH, KW)     y (N, O, OH, OW)
//
// A band of the few input planes fits into a cache, padded (scratch.h). From there a tile of output
// channels times output columns reads what each tap shows it in place, where a product would first
// write it out KH * KW times. Taps in rows of padding are left out.
#include "cpu/conv/few_channels.h"

#include "cpu/conv/scratch.h"
#include "cpu/gemm/tile.h"
#include "cpu/kernels.h"

namespace fusednn {
namespace FUSEDNN_ISA {

namespace {

// Of scratch per task: a fraction of the smallest L2 cache in use. A tile's part of it stays in L1.
constexpr i64 kScratchBytes = 96 * 1024;
// Output columns of a band: longer rows are cut, as one alone may be all there is.
constexpr i64 kBandCols = 1024;
// Output rows that are worked on with one panel of weights: what they read overlaps.
constexpr i64 kRowsPerPanel = 4;

// sums[r][column] = over taps of weights[tap][r] * src[offset[tap] + column].
template <class T, int R, int V>
void tap_tile(i64 taps, const i64* offset, const T* src, const T* weights,
              const TileOutput<T>& out) {
    constexpr int lanes = kLanes<T>;
    Vec<T> sum[R][V];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
        for (int v = 0; v < V; ++v) sum[r][v] = Vec<T>{};
    }
    for (i64 t = 0; t < taps; ++t) {
        Vec<T> x[V];
#pragma GCC unroll 2
        for (int v = 0; v < V; ++v) x[v] = load(src + offset[t] + v * lanes);
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
            const Vec<T> weight = broadcast(weights[r]);
#pragma GCC unroll 2
            for (int v = 0; v < V; ++v) sum[r][v] = multiply_add(weight, x[v], sum[r][v]);
        }
        weights += R;
    }
    store_sums<T, R, V>(sum, out);
}

template <class T>
using TapTileFn = void (*)(i64, const i64*, const T*, const T*, const TileOutput<T>&);

template <class T>
struct TapTileTable {
    TapTileFn<T> entry[kTileRows][kTileVecs];
};

template <class T, int R>
constexpr void fill(TapTileTable<T>& table) {
    table.entry[R - 1][0] = tap_tile<T, R, 1>;
    table.entry[R - 1][1] = tap_tile<T, R, 2>;
    if constexpr (R > 1) fill<T, R - 1>(table);
}

template <class T>
constexpr TapTileTable<T> make_table() {
    TapTileTable<T> table{};
    fill<T, kTileRows>(table);
    return table;
}

template <class T>
constexpr TapTileTable<T> tap_tiles = make_table<T>();

// All that the tasks share. Taps are ordered [kernel row][channel][kernel column].
template <class T>
struct Job {
    const ConvParams* params;
    Pass pass;
    Band<T> band;
    RowPanels panels;
    i64 channels, rows;  // of a group
    i64 row_taps, taps;  // of one kernel row, of all
    const i64* offset;   // of each tap in the scratch
    const T* weights;    // [group][panel of output channels][tap][output channel]
};

template <class T>
void prepare(const Job<T>& job, const T* w, i64* offset, T* packed) {
    const ConvParams& c = *job.params;
    const i64 kernel = c.kernel[1] * c.kernel[2];
    for (i64 group = 0; group < c.groups; ++group) {
        for (i64 panel = 0; panel < job.panels.count; ++panel) {
            const int height = job.panels.height(panel);
            const T* first = w + (group * job.rows + job.panels.start(panel)) * job.taps;
            for (i64 t = 0; t < job.taps; ++t) {
                const i64 l = t % c.kernel[2], channel = t / c.kernel[2] % job.channels;
                const i64 at = channel * kernel + t / job.row_taps * c.kernel[2] + l;
                for (int r = 0; r < height; ++r) *packed++ = first[r * job.taps + at];
            }
        }
    }
    for (i64 t = 0; t < job.taps; ++t) {
        const i64 column = t % c.kernel[2] * c.dilation[2];
        offset[t] = t / c.kernel[2] % job.channels * job.band.size +
                    t / job.row_taps * c.dilation[1] * job.band.row_pitch +
                    column % c.stride[2] * job.band.pitch + column / c.stride[2];
    }
}

// Output rows [row0, row0 + rows) and columns [col0, col0 + cols) of one group of one image, from
// the scratch. y: the group's.
template <class T>
void run_band(const Job<T>& job, i64 row0, i64 rows, i64 col0, i64 cols, const T* weights,
              const T* bias, const T* scratch, T* y) {
    const ConvParams& c = *job.params;
    const i64 width = c.out_size[2], plane = c.out_size[1] * width;
    TileOutput<T> out{};
    out.ldc = plane;
    for (i64 some = 0; some < rows; some += kRowsPerPanel) {
        for (i64 x0 = 0; x0 < cols; x0 += kTileCols<T>) {
            out.cols = min_of(cols - x0, i64(kTileCols<T>));
            for (i64 panel = 0; panel < job.panels.count; ++panel) {
                const i64 first = job.panels.start(panel);
                const int height = job.panels.height(panel);
                out.row_bias = bias ? bias + first : nullptr;
                const auto tile = tap_tiles<T>.entry[height - 1][out.cols > kLanes<T>];
                for (i64 r = some; r < min_of(rows, some + kRowsPerPanel); ++r) {
                    const i64 top = (row0 + r) * c.stride[1] - c.pad[1], step = c.dilation[1];
                    const i64 begin = top < 0 ? min_of(ceil_div(-top, step), c.kernel[1]) : 0;
                    const i64 end = max_of(
                        begin,
                        min_of(ceil_div(max_of(c.in_size[1] - top, i64(0)), step), c.kernel[1]));
                    out.c = y + first * plane + (row0 + r) * width + col0 + x0;
                    tile((end - begin) * job.row_taps, job.offset + begin * job.row_taps,
                         scratch + r * c.stride[1] * job.band.row_pitch + x0,
                         weights + first * job.taps + begin * job.row_taps * height, out);
                }
            }
        }
    }
}

}  // namespace

template <class T>
void few_channels_forward(const ConvParams& c, const T* x, const T* w, const T* bias, T* y) {
    const i64 channels = c.in_channels / c.groups, rows = c.out_channels / c.groups;
    const i64 row_taps = channels * c.kernel[2], taps = row_taps * c.kernel[1];
    Pass pass = forward_pass(c);
    pass.out_size[2] = min_of(pass.out_size[2], kBandCols);
    const i64 plane = c.in_size[1] * c.in_size[2], out_plane = c.out_size[1] * c.out_size[2];
    if (c.batch * rows * c.groups * out_plane == 0) return;
    Workspace<i64> offset(taps);
    Workspace<T> packed(c.out_channels * taps);
    const Job<T> job{&c,
                     pass,
                     Band<T>(pass, kScratchBytes / max_of(channels, i64(1))),
                     RowPanels(rows),
                     channels,
                     rows,
                     row_taps,
                     taps,
                     offset.get(),
                     packed.get()};
    prepare(job, w, offset.get(), packed.get());
    const i64 bands = ceil_div(c.out_size[1], job.band.rows);
    const i64 cuts = ceil_div(c.out_size[2], kBandCols);
    const i64 tasks = c.batch * c.groups * bands * cuts;
    const int slots =
        parallel_slots(tasks, 2 * c.batch * c.out_channels * out_plane * max_of(taps, i64(1)));
    Workspace<T> scratch(channels * job.band.size, slots);
    parallel(tasks, slots, [&](i64 task, int slot) {
        FlushDenormals flush;
        const i64 col0 = task % cuts * kBandCols, row0 = task / cuts % bands * job.band.rows;
        const i64 image = task / cuts / bands / c.groups, group = task / cuts / bands % c.groups;
        Pass part = pass;
        part.pad[2] -= col0 * c.stride[2];
        for (i64 channel = 0; channel < channels; ++channel) {
            copy_band(part, job.band,
                      x + (image * c.in_channels + group * channels + channel) * plane, 0, row0,
                      scratch.slot(slot) + channel * job.band.size);
        }
        run_band(job, row0, min_of(job.band.rows, c.out_size[1] - row0), col0,
                 min_of(kBandCols, c.out_size[2] - col0), packed.get() + group * rows * taps,
                 bias ? bias + group * rows : nullptr, scratch.slot(slot),
                 y + (image * c.out_channels + group * rows) * out_plane);
    });
}

#define FUSEDNN_FEW_CHANNELS(T) \
    template void few_channels_forward<T>(const ConvParams&, const T*, const T*, const T*, T*);
FUSEDNN_INSTANTIATE(FUSEDNN_FEW_CHANNELS)

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
