// The weight gradient of a pair of channels, dw[tap] = sum over q of dy[q] x[q + offset(tap)], with
// positions in the lanes: one vector of x serves every row of a block of dy that it meets.
#include "cpu/conv/pixel_lanes.h"
#include "cpu/kernels.h"

namespace fusednn {
namespace FUSEDNN_ISA {

namespace {

constexpr i64 kTasks = 16;  // enough for a few threads; each reads whole runs of planes

constexpr int kBlockRows = 4;  // rows of dy in registers

// Columns of taps that are summed in one pass: with more, sums and dy would leave 16 registers.
constexpr int col_taps(int tap_rows) {
    return tap_rows <= 3 ? 3 : 2;
}

// Blocks of rows of dy, and the taps of neighbouring source rows.
template <class T>
struct GradStrip {
    const T* dy;
    i64 cols;
    i64 blocks;
    const T* x;  // its first row
    i64 width, height;
    i64 row;  // of x that tap row 0 and dy's first row meet
    const i64* col_offset;
    Vec<T>* sums;  // [tap row][column tap]
    i64 sums_row;
};

template <class T, int K, int L, int R, bool kEdge>
FUSEDNN_INLINE void add_vector(const GradStrip<T>& s, const T* grad, i64 row0, i64 x0,
                               Vec<T> (&sum)[K][L]) {
    constexpr i64 lanes = kLanes<T>;
    const i64 count = min_of(s.cols - x0, lanes);
    Vec<T> dy[R];
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
        const T* row = grad + r * s.cols + x0;
        dy[r] = kEdge ? load_partial(row, count) : load(row);
    }
    LaneSet inside[L];
#pragma GCC unroll 3
    for (int l = 0; l < L; ++l) {
        // Both factors stop at dy's end: what lies behind it may be infinite.
        const i64 first = x0 + s.col_offset[l];
        inside[l] = lanes_between(min_of(max_of(-first, i64(0)), lanes),
                                  min_of(max_of(s.width - first, i64(0)), count));
    }
#pragma GCC unroll 8
    for (int i = 0; i < R + K - 1; ++i) {
        if (row0 + i < 0 || row0 + i >= s.height) continue;
#pragma GCC unroll 3
        for (int l = 0; l < L; ++l) {
            const T* src = s.x + (row0 + i) * s.width + x0 + s.col_offset[l];
            const Vec<T> x = kEdge ? load_lanes(src, inside[l]) : load(src);
#pragma GCC unroll 5
            for (int k = 0; k < K; ++k) {
                if (i - k < 0 || i - k >= R) continue;
                sum[k][l] = multiply_add(dy[i - k], x, sum[k][l]);
            }
        }
    }
}

template <class T, int K, int L, int R>
void grad_strip(const GradStrip<T>& s) {
    constexpr i64 lanes = kLanes<T>;
    Vec<T> sum[K][L];
#pragma GCC unroll 5
    for (int k = 0; k < K; ++k) {
#pragma GCC unroll 3
        for (int l = 0; l < L; ++l) sum[k][l] = s.sums[k * s.sums_row + l];
    }
    i64 lowest = s.col_offset[0], highest = lowest;
    for (int l = 1; l < L; ++l) {
        lowest = min_of(lowest, s.col_offset[l]);
        highest = max_of(highest, s.col_offset[l]);
    }
    for (i64 block = 0; block < s.blocks; ++block) {
        const T* dy = s.dy + block * R * s.cols;
        const i64 row = s.row + block * R;
        for (i64 x0 = 0; x0 < s.cols; x0 += lanes) {
            if (x0 + lanes <= s.cols && x0 + lowest >= 0 && x0 + lanes + highest <= s.width) {
                add_vector<T, K, L, R, false>(s, dy, row, x0, sum);
            } else {
                add_vector<T, K, L, R, true>(s, dy, row, x0, sum);
            }
        }
    }
#pragma GCC unroll 5
    for (int k = 0; k < K; ++k) {
#pragma GCC unroll 3
        for (int l = 0; l < L; ++l) s.sums[k * s.sums_row + l] = sum[k][l];
    }
}

template <class T>
using GradStripFn = void (*)(const GradStrip<T>&);

// By tap rows, column taps, and rows of dy: 4, 2 or 1.
template <class T>
struct GradStripTable {
    GradStripFn<T> entry[kMaxTapRows][3][3];
};

template <class T, int K, int L>
constexpr void fill(GradStripTable<T>& table) {
    table.entry[K - 1][L - 1][0] = grad_strip<T, K, L, kBlockRows>;
    table.entry[K - 1][L - 1][1] = grad_strip<T, K, L, 2>;
    table.entry[K - 1][L - 1][2] = grad_strip<T, K, L, 1>;
    if constexpr (L > 1) {
        fill<T, K, L - 1>(table);
    } else if constexpr (K > 1) {
        fill<T, K - 1, col_taps(K - 1)>(table);
    }
}

template <class T>
constexpr GradStripTable<T> make_table() {
    GradStripTable<T> table{};
    fill<T, kMaxTapRows, col_taps(kMaxTapRows)>(table);
    return table;
}

template <class T>
constexpr GradStripTable<T> grad_strips = make_table<T>();

// Adds one plane of dy and one of x to the sums of the taps of one depth: sums[tap row][column].
template <class T>
void add_planes(const ConvProblem<T>& p, const TapRowRuns<T>& runs, const T* x, const T* dy,
                Vec<T>* sums) {
    GradStrip<T> s;
    s.cols = p.grid[2];
    s.width = p.src_size[2];
    s.sums_row = p.taps[2];
    s.x = x;
    s.height = p.src_size[1];
    i64 row = 0;
    for (int size = 0; size < 3; ++size) {
        const i64 rows = kBlockRows >> size;
        s.blocks = (p.grid[1] - row) / rows;
        s.dy = dy + row * s.cols;
        for (i64 run = 0; s.blocks > 0 && run < runs.size(); ++run) {
            const TapRows& tap_rows = runs[run];
            s.row = row + tap_rows.lowest;
            const i64 step = col_taps(int(tap_rows.count));
            for (i64 l = 0; l < p.taps[2]; l += step) {
                s.col_offset = p.offset[2] + l;
                s.sums = sums + tap_rows.first * p.taps[2] + l;
                const i64 cols = min_of(step, p.taps[2] - l);
                grad_strips<T>.entry[tap_rows.count - 1][cols - 1][size](s);
            }
        }
        row += s.blocks * rows;
    }
}

// Adds one image of a pair of channels.
template <class T>
FUSEDNN_INLINE void add_pair(const ConvProblem<T>& p, const TapRowRuns<T>& runs, const T* x,
                             const T* dy, Vec<T>* sums) {
    for (i64 q0 = 0; q0 < p.grid[0]; ++q0) {
        for (i64 d = 0; d < p.taps[0]; ++d) {
            const i64 z = q0 * p.step[0] + p.offset[0][d];
            if (z < 0 || z >= p.src_size[0]) continue;
            add_planes(p, runs, x + z * p.src_size[1] * p.src_size[2],
                       dy + q0 * p.grid[1] * p.grid[2], sums + d * p.taps[1] * p.taps[2]);
        }
    }
}

}  // namespace

template <class T>
void pixel_lanes_backward_weight(const ConvParams& c, const T* x, const T* dy, T* dw) {
    Workspace<i64> lists(forward_lists(c));
    const ConvProblem<T> p = forward_problem<T>(c, x, nullptr, nullptr, lists.get()).problem;
    const TapRowRuns<T> runs(p, kMaxTapRows);
    const i64 taps = p.tap_count();
    // A task is some neighbouring pairs of channels, whose planes of one image lie together in
    // memory; the images are added in order.
    const i64 pairs = c.out_channels * p.channels;
    const i64 block = max_of(ceil_div(pairs, kTasks), i64(1)), tasks = ceil_div(pairs, block);
    const int slots = parallel_slots(tasks, 2 * pairs * p.columns() * taps);
    Workspace<T> work(block * taps * kLanes<T>, slots);
    parallel(tasks, slots, [&](i64 task, int slot) {
        FlushDenormals flush;
        auto* sums = reinterpret_cast<Vec<T>*>(work.slot(slot));
        const i64 begin = task * block, end = min_of(begin + block, pairs);
        for (i64 t = 0; t < (end - begin) * taps; ++t) sums[t] = Vec<T>{};
        for (i64 image = 0; image < p.batch; ++image) {
            for (i64 pair = begin; pair < end; ++pair) {
                const i64 row = pair / p.channels, channel = pair % p.channels;
                add_pair(
                    p, runs,
                    x + image * p.src_image + (row / p.rows * p.channels + channel) * p.src_plane,
                    dy + image * p.dst_image + row * p.dst_plane, sums + (pair - begin) * taps);
            }
        }
        for (i64 t = 0; t < (end - begin) * taps; ++t) {
            dw[begin * taps + t] = sum_lanes<T>(sums[t]);
        }
    });
}

#define FUSEDNN_PIXEL_WEIGHT_GRAD(T) \
    template void pixel_lanes_backward_weight<T>(const ConvParams&, const T*, const T*, T*);
FUSEDNN_INSTANTIATE(FUSEDNN_PIXEL_WEIGHT_GRAD)

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
