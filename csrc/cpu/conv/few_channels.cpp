// Convolution of few input channels, as in a network's first layer.
//
//   x  (N, C, H, W)     w (O, C/groups, KH, KW)     y (N, O, OH, OW)
//
// A band of the few input planes fits into a cache, padded (scratch.h). From there a tile of output
// channels times output columns reads what each tap shows it in place, where a product would first
// write it out KH * KW times. Taps in rows of padding are left out.
#include "cpu/conv/few_channels.h"

#include "cpu/conv/offset_tile.h"
#include "cpu/conv/scratch.h"
#include "cpu/kernels.h"

namespace fusednn {
namespace FUSEDNN_ISA {

namespace {

// Of scratch per task: a fraction of the smallest L2 cache in use. A tile's part of it stays in L1.
constexpr i64 kScratchBytes = 96 * 1024;
constexpr i64 kPlaneBytes = 6 * 1024;  // of each channel, at least
// Output columns of a band: longer rows are cut, as one alone may be all there is; and sooner where
// the bands of all channels would take more than this.
constexpr i64 kBandCols = 1024, kLeastBandCols = 64;
constexpr i64 kMostBandBytes = 1024 * 1024;
// Output rows that are worked on with one panel of weights: what they read overlaps.
constexpr i64 kRowsPerPanel = 4;

// The scratch of joined rows: [channel][column tap][row][output column].
template <class T>
struct JoinedRows {
    i64 rows, src_rows;  // of outputs, of the input with its padding
    i64 pitch;           // elements from one column tap to the next
    i64 size;            // of a channel

    JoinedRows(const ConvParams& c, i64 bytes) {
        const i64 width = c.out_size[2], reach = (c.kernel[1] - 1) * c.dilation[1] + 1;
        const i64 fit = bytes / i64(sizeof(T)) / max_of(c.kernel[2] * width, i64(1));
        rows = min_of(max_of(fit - reach + 1, i64(1)), c.out_size[1]);
        src_rows = rows + reach - 1;
        pitch = src_rows * width + kTileCols<T>;  // whole tiles are read
        size = c.kernel[2] * pitch;
    }

    // Whether what joining saves in multiply-adds is more than the copies take, about as much as
    // three multiply-adds a vector.
    bool pays(const ConvParams& c) const {
        if (c.stride[1] != 1 || c.stride[2] != 1 || c.kernel[2] == 0) return false;
        const i64 vecs = ceil_div(c.out_size[2], kLanes<T>);
        const i64 idle = rows * vecs - ceil_div(rows * c.out_size[2], kLanes<T>);
        const i64 outs = c.out_channels / c.groups;
        return idle * c.kernel[1] * outs > 3 * src_rows * vecs;
    }

    // The copies of one channel for output rows [row0, row0 + rows).
    void fill(const ConvParams& c, const T* plane, i64 row0, T* scratch) const {
        constexpr i64 lanes = kLanes<T>;
        const i64 width = c.out_size[2], top = row0 - c.pad[1];
        const i64 begin = min_of(max_of(-top, i64(0)), src_rows);
        const i64 end = max_of(begin, min_of(c.in_size[1] - top, src_rows));
        for (i64 l = 0; l < c.kernel[2]; ++l, scratch += pitch) {
            const i64 first = l * c.dilation[2] - c.pad[2];
            for (i64 i = 0; i < begin * width; ++i) scratch[i] = T(0);
            // A row's last vector reaches into the next row, whose first one is copied after it.
            for (i64 x = (ceil_div(width, lanes) - 1) * lanes; x >= 0; x -= lanes) {
                const i64 low = min_of(max_of(-first - x, i64(0)), lanes);
                const i64 high = max_of(min_of(c.in_size[2] - first - x, lanes), low);
                const LaneSet inside = lanes_between(low, high);
                for (i64 r = begin; r < end; ++r) {
                    const T* src = plane + (top + r) * c.in_size[2] + first + x;
                    store(scratch + r * width + x, load_lanes(src, inside));
                }
            }
            for (i64 i = end * width; i < src_rows * width; ++i) scratch[i] = T(0);
        }
    }
};

template <class T>
i64 band_columns(const ConvParams& c) {
    const i64 reach = (c.kernel[1] - 1) * c.dilation[1] + 1;
    const i64 rows = (kRows - 1) * c.stride[1] + reach;
    const i64 residues = min_of(c.stride[2], (c.kernel[2] - 1) * c.dilation[2] + 1);
    const i64 column = max_of(c.in_channels / c.groups, i64(1)) * rows * residues * i64(sizeof(T));
    const i64 fit = kMostBandBytes / column / kTileCols<T> * kTileCols<T>;
    return min_of(max_of(fit, kLeastBandCols), min_of(kBandCols, c.out_size[2]));
}

// All that the tasks share. Taps are ordered [kernel row][channel][kernel column].
template <class T>
struct Job {
    const ConvParams* params;
    Pass pass;
    Band<T> band;
    JoinedRows<T> joined;
    bool join;
    RowPanels panels;
    i64 channels, rows;  // of a group
    i64 row_taps, taps;  // of one kernel row, of all
    const i64* offset;   // of each tap in the scratch
    const T* weights;    // [group][panel of output channels][tap][output channel]
};

// The taps' offsets, and the weights in the order of the tiles; `position` holds a tap's place in
// the kernel.
template <class T>
void prepare(const Job<T>& job, const T* w, i64* offset, i64* position, T* packed) {
    const ConvParams& c = *job.params;
    const i64 row_step = c.dilation[1] * (job.join ? c.out_size[2] : job.band.row_pitch);
    const i64 channel_step = job.join ? job.joined.size : job.band.size;
    for (i64 l = 0; l < c.kernel[2]; ++l) {
        const i64 column = l * c.dilation[2], step = c.stride[2];
        const i64 first =
            job.join ? l * job.joined.pitch : column % step * job.band.pitch + column / step;
        for (i64 j = 0; j < c.kernel[1]; ++j) {
            for (i64 channel = 0; channel < job.channels; ++channel) {
                const i64 tap = j * job.row_taps + channel * c.kernel[2] + l;
                offset[tap] = first + channel * channel_step + j * row_step;
                position[tap] = (channel * c.kernel[1] + j) * c.kernel[2] + l;
            }
        }
    }
    for (i64 group = 0; group < c.groups; ++group) {
        for (i64 panel = 0; panel < job.panels.count; ++panel) {
            const int height = job.panels.height(panel);
            const T* first = w + (group * job.rows + job.panels.start(panel)) * job.taps;
            for (i64 tap = 0; tap < job.taps; ++tap) {
                const T* from = first + position[tap];
                for (int r = 0; r < height; ++r) *packed++ = from[r * job.taps];
            }
        }
    }
}

// Kernel rows [begin, end) that meet the input from any of output rows [first, last].
struct KernelRows {
    i64 begin, end;
    KernelRows(const ConvParams& c, i64 first, i64 last) {
        const i64 step = c.dilation[1], lowest = last * c.stride[1] - c.pad[1];
        const i64 left = c.in_size[1] - (first * c.stride[1] - c.pad[1]);
        begin = lowest < 0 ? min_of(ceil_div(-lowest, step), c.kernel[1]) : 0;
        end = max_of(begin, min_of(ceil_div(max_of(left, i64(0)), step), c.kernel[1]));
    }
};

// A part of one group of one image: the weights and bias of its group, its scratch and its output.
template <class T>
struct Part {
    i64 row0, rows, col0, cols;
    const T *weights, *bias, *scratch;
    T* y;
};

// One panel of output channels at cols positions from `at` on, which lie in output rows
// [first, last].
template <class T>
FUSEDNN_INLINE void run_tile(const Job<T>& job, const Part<T>& part, i64 panel, i64 first, i64 last,
                             i64 cols, const T* src, T* y) {
    const ConvParams& c = *job.params;
    const i64 row = job.panels.start(panel);
    const int height = job.panels.height(panel);
    const KernelRows taps(c, first, last);
    TileOutput<T> out{};
    out.ldc = c.out_size[1] * c.out_size[2];
    out.c = y + row * out.ldc;
    out.cols = cols;
    out.row_bias = part.bias ? part.bias + row : nullptr;
    const i64 skipped = taps.begin * job.row_taps;
    offset_tile<T>(height, cols)((taps.end - taps.begin) * job.row_taps, job.offset + skipped, src,
                                 part.weights + row * job.taps + skipped * height, out);
}

template <class T>
void run_band(const Job<T>& job, const Part<T>& part) {
    const ConvParams& c = *job.params;
    for (i64 some = 0; some < part.rows; some += kRowsPerPanel) {
        for (i64 x0 = 0; x0 < part.cols; x0 += kTileCols<T>) {
            const i64 cols = min_of(part.cols - x0, i64(kTileCols<T>));
            for (i64 panel = 0; panel < job.panels.count; ++panel) {
                for (i64 r = some; r < min_of(part.rows, some + kRowsPerPanel); ++r) {
                    const i64 row = part.row0 + r;
                    run_tile(job, part, panel, row, row, cols,
                             part.scratch + r * c.stride[1] * job.band.row_pitch + x0,
                             part.y + row * c.out_size[2] + part.col0 + x0);
                }
            }
        }
    }
}

template <class T>
void run_joined(const Job<T>& job, const Part<T>& part) {
    const i64 width = job.params->out_size[2], end = part.rows * width;
    constexpr i64 step = kTileCols<T>;
    for (i64 some = 0; some < end; some += kRowsPerPanel * step) {
        for (i64 panel = 0; panel < job.panels.count; ++panel) {
            for (i64 at = some; at < min_of(end, some + kRowsPerPanel * step); at += step) {
                const i64 cols = min_of(end - at, step);
                run_tile(job, part, panel, part.row0 + at / width,
                         part.row0 + (at + cols - 1) / width, cols, part.scratch + at,
                         part.y + part.row0 * width + at);
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
    const i64 band_cols = band_columns<T>(c);
    pass.out_size[2] = band_cols;
    const i64 plane = c.in_size[1] * c.in_size[2], out_plane = c.out_size[1] * c.out_size[2];
    if (c.batch * rows * c.groups * out_plane == 0) return;
    Workspace<i64> offset(taps), position(taps);
    Workspace<T> packed(c.out_channels * taps);
    const i64 bytes = max_of(kScratchBytes / max_of(channels, i64(1)), kPlaneBytes);
    const JoinedRows<T> joined(c, bytes);
    const Job<T> job{&c,       pass,           Band<T>(pass, bytes),
                     joined,   joined.pays(c), RowPanels(rows),
                     channels, rows,           row_taps,
                     taps,     offset.get(),   packed.get()};
    prepare(job, w, offset.get(), position.get(), packed.get());
    const i64 band = job.join ? joined.rows : job.band.rows, bands = ceil_div(c.out_size[1], band);
    const i64 cuts = job.join ? 1 : ceil_div(c.out_size[2], max_of(band_cols, i64(1)));
    const i64 tasks = c.batch * c.groups * bands * cuts;
    const int slots =
        parallel_slots(tasks, 2 * c.batch * c.out_channels * out_plane * max_of(taps, i64(1)));
    const i64 size = job.join ? joined.size : job.band.size;
    Workspace<T> scratch(channels * size, slots);
    parallel(tasks, slots, [&](i64 task, int slot) {
        FlushDenormals flush;
        const i64 col0 = task % cuts * band_cols, row0 = task / cuts % bands * band;
        const i64 image = task / cuts / bands / c.groups, group = task / cuts / bands % c.groups;
        Pass pass_part = pass;
        pass_part.pad[2] -= col0 * c.stride[2];
        for (i64 channel = 0; channel < channels; ++channel) {
            const T* from = x + (image * c.in_channels + group * channels + channel) * plane;
            T* to = scratch.slot(slot) + channel * size;
            if (job.join) {
                joined.fill(c, from, row0, to);
            } else {
                copy_band(pass_part, job.band, from, 0, row0, to);
            }
        }
        const Part<T> part{row0,
                           min_of(band, c.out_size[1] - row0),
                           col0,
                           min_of(band_cols, c.out_size[2] - col0),
                           packed.get() + group * rows * taps,
                           bias ? bias + group * rows : nullptr,
                           scratch.slot(slot),
                           y + (image * c.out_channels + group * rows) * out_plane};
        job.join ? run_joined(job, part) : run_band(job, part);
    });
}

#define FUSEDNN_FEW_CHANNELS(T) \
    template void few_channels_forward<T>(const ConvParams&, const T*, const T*, const T*, T*);
FUSEDNN_INSTANTIATE(FUSEDNN_FEW_CHANNELS)

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
