// Convolution by minimal filtering (Winograd 1980; Lavin & Gray 2016, arXiv:1509.09308).
//
//   src (N, C, H, W)     weight (O, C, K, K)     dst (N, O, OH, OW)
//
// The output is cut into tiles of M x M, M = 4 for K = 3 and M = 2 for K = 5; a tile reads a 6 x 6
// patch of each source channel. With the points 0, 1, -1, 2, -2, infinity both sizes share B:
//
//   out = A^T [ sum over c of (G w G^T) * (B^T patch B) ] A,     * elementwise over 6 x 6
//
//   B^T = 4  0 -5  0  1  0      G rows, r = 0 .. K-1          A^T rows, i = 0 .. M-1
//         0 -4 -4  1  1  0        1/4 [r = 0]                   [i = 0], 1, (-1)^i, 2^i, (-2)^i,
//         0  4 -4 -1  1  0       -1/6                           [i = M - 1]
//         0 -2 -1  2  1  0       -1/6 (-1)^r
//         0  2 -1 -2  1  0        1/24 2^r
//         0  4  0 -5  0  1        1/24 (-2)^r, [r = K - 1]
//
// So 36 multiplications a tile replace 144 (K = 3) or 100 (K = 5); the products over c are 36
// matrix products. Passes:
//   1. weights -> U[36][O][C]                                      (in parallel over O)
//   2. for each panel of kTileCols tiles:                          (in parallel)
//      a. patches -> V[36][C][tile]
//      b. for each block of output channels: M[36][O block][tile] = U V, then the output transform
// Errors grow by the transforms' condition: about 10 times the direct sum's for K = 3 and K = 5.
#include "cpu/conv/winograd.h"

#include "cpu/gemm/engine.h"
#include "cpu/kernels.h"

namespace fusednn {
namespace FUSEDNN_ISA {

namespace {

constexpr int kPatch = 6;
constexpr int kPoints = kPatch * kPatch;
constexpr i64 kRowBlock = 4 * kTileRows;  // output channels whose products wait in L2 for pass 2b

template <class T>
constexpr i64 kPanel = kTileCols<T>;

// B^T applied to six vectors.
template <class V>
FUSEDNN_INLINE void transform_patch(const V (&r)[kPatch], V (&t)[kPatch]) {
    const V even = r[4] - 4 * r[2], odd = r[3] - 4 * r[1];
    const V even2 = r[4] - r[2], odd2 = 2 * (r[3] - r[1]);
    t[0] = 4 * r[0] - 5 * r[2] + r[4];
    t[1] = even + odd;
    t[2] = even - odd;
    t[3] = even2 + odd2;
    t[4] = even2 - odd2;
    t[5] = 4 * r[1] - 5 * r[3] + r[5];
}

// G applied to K vectors.
template <int K, class V>
FUSEDNN_INLINE void transform_weight(const V (&g)[K], V (&u)[kPatch]) {
    V even, odd, even2, odd2;
    if constexpr (K == 3) {
        even = g[0] + g[2];
        odd = g[1];
        even2 = g[0] + 4 * g[2];
        odd2 = 2 * g[1];
    } else {
        even = g[0] + g[2] + g[4];
        odd = g[1] + g[3];
        even2 = g[0] + 4 * g[2] + 16 * g[4];
        odd2 = 2 * g[1] + 8 * g[3];
    }
    using S = decltype(g[0][0] + g[0][0]);
    u[0] = g[0] * S(0.25);
    u[1] = (even + odd) * S(-1.0 / 6);
    u[2] = (even - odd) * S(-1.0 / 6);
    u[3] = (even2 + odd2) * S(1.0 / 24);
    u[4] = (even2 - odd2) * S(1.0 / 24);
    u[5] = g[K - 1];
}

// A^T applied to six vectors.
template <int M, class V>
FUSEDNN_INLINE void transform_output(const V (&m)[kPatch], V (&y)[M]) {
    const V sum1 = m[1] + m[2], diff1 = m[1] - m[2], sum2 = m[3] + m[4], diff2 = m[3] - m[4];
    y[0] = m[0] + sum1 + sum2;
    if constexpr (M == 2) {
        y[1] = diff1 + 2 * diff2 + m[5];
    } else {
        y[1] = diff1 + 2 * diff2;
        y[2] = sum1 + 4 * sum2;
        y[3] = diff1 + 8 * diff2 + m[5];
    }
}

// ---- pass 1 ----------------------------------------

// U of one output channel: u[point * point_stride + c].
template <class T, int K>
void weights_of_row(const WinogradProblem<T>& p, i64 row, T* u, i64 point_stride) {
    constexpr int lanes = kLanes<T>;
    constexpr int taps = K * K;
    const T* w = p.w + row * p.w_row;
    for (i64 c = 0; c < p.channels; c += lanes) {
        const int count = int(min_of(p.channels - c, i64(lanes)));
        // Lanes are channels: taps come by transposing blocks of lanes x lanes.
        Vec<T> g[K][K];
        for (int t0 = 0; t0 < taps; t0 += lanes) {
            Vec<T> block[lanes];
            const i64 left = min_of(taps - t0, lanes);
#pragma GCC unroll 16
            for (int i = 0; i < lanes; ++i) {
                const T* kernel = w + (c + min_of(i, count - 1)) * p.w_channel + t0;
                block[i] = load_partial(kernel, left);
            }
            transpose<T>(block);
            for (int i = 0; i < left; ++i) {
                const int t = p.reversed ? taps - 1 - (t0 + i) : t0 + i;
                g[t / K][t % K] = block[i];
            }
        }
        Vec<T> half[kPatch][K];
        for (int l = 0; l < K; ++l) {
            Vec<T> column[K], u_column[kPatch];
            for (int r = 0; r < K; ++r) column[r] = g[r][l];
            transform_weight<K>(column, u_column);
            for (int i = 0; i < kPatch; ++i) half[i][l] = u_column[i];
        }
        for (int i = 0; i < kPatch; ++i) {
            Vec<T> u_row[kPatch];
            transform_weight<K>(half[i], u_row);
            for (int j = 0; j < kPatch; ++j) {
                T* out = u + (i * kPatch + j) * point_stride + c;
                if (count == lanes) {
                    store(out, u_row[j]);
                } else {
                    store_partial(out, u_row[j], count);
                }
            }
        }
    }
}

// ---- pass 2 ----------------------------------------

// Tiles of one row of tiles: they start at tile column `col` of tile row `row`.
struct TileRun {
    i64 image, row, col, count;
};

template <class T, class Body>
FUSEDNN_INLINE void for_each_tile_run(const WinogradProblem<T>& p, i64 tile_size, i64 tile0,
                                      i64 count, const Body& body) {
    const i64 cols = ceil_div(p.dst_size[1], tile_size), rows = ceil_div(p.dst_size[0], tile_size);
    TileRun run;
    run.image = tile0 / (rows * cols);
    run.row = tile0 % (rows * cols) / cols;
    run.col = tile0 % cols;
    for (i64 done = 0; done < count; done += run.count) {
        run.count = min_of(count - done, cols - run.col);
        body(run, done);
        run.col = 0;
        if (++run.row == rows) {
            run.row = 0;
            ++run.image;
        }
    }
}

// Columns 0, 1, ... of M * kLanes neighbouring ones, sorted by their place in a tile of M.
template <class T, int M>
FUSEDNN_INLINE void sort_columns(const Vec<T>* v, Vec<T> (&d)[M]) {
    if constexpr (M == 2) {
        d[0] = even_lanes<T>(v[0], v[1]);
        d[1] = odd_lanes<T>(v[0], v[1]);
    } else {
        const Vec<T> even01 = even_lanes<T>(v[0], v[1]), even23 = even_lanes<T>(v[2], v[3]);
        const Vec<T> odd01 = odd_lanes<T>(v[0], v[1]), odd23 = odd_lanes<T>(v[2], v[3]);
        d[0] = even_lanes<T>(even01, even23);
        d[1] = even_lanes<T>(odd01, odd23);
        d[2] = odd_lanes<T>(even01, even23);
        d[3] = odd_lanes<T>(odd01, odd23);
    }
}

// Lanes K, K + 1, ... of the lanes a|b.
template <int K, class T, int... I>
FUSEDNN_INLINE Vec<T> slide(Vec<T> a, Vec<T> b, detail::Seq<I...>) {
    return __builtin_shufflevector(a, b, (I + K)...);
}

// Patches of a run, vertical transform, columns sorted by their place in the patch:
// stage[i][j][tile].
template <class T, int M>
FUSEDNN_INLINE void stage_run(const WinogradProblem<T>& p, const TileRun& run, const T* plane,
                              T* stage, i64 stage_pitch) {
    constexpr int lanes = kLanes<T>;
    // A patch runs into `reach` tiles to its right. Where a vector holds more, its last tiles wait
    // for the next step; otherwise (two lanes) the columns of the next vector are loaded as well.
    constexpr int reach = (kPatch - 1) / M;
    constexpr bool wide = lanes > reach;
    constexpr i64 chunk = wide ? lanes - reach : lanes;
    constexpr int loaded = wide ? M : 2 * M;
    using Lanes = typename detail::MakeSeq<lanes>::type;
    const i64 height = p.src_size[0], width = p.src_size[1];
    const i64 y0 = run.row * M - p.pad[0];
    for (i64 done = 0; done < run.count; done += chunk) {
        const i64 x0 = (run.col + done) * M - p.pad[1];
        Vec<T> rows[kPatch][loaded];
#pragma GCC unroll 4
        for (int q = 0; q < loaded; ++q) {
            const i64 x = x0 + q * lanes;
            const i64 begin = min_of(max_of(-x, i64(0)), i64(lanes));
            const LaneSet valid =
                lanes_between(begin, max_of(min_of(width - x, i64(lanes)), begin));
            Vec<T> r[kPatch], t[kPatch];
#pragma GCC unroll 6
            for (int i = 0; i < kPatch; ++i) {
                const i64 y = y0 + i;
                r[i] = y >= 0 && y < height ? load_lanes(plane + y * width + x, valid) : Vec<T>{};
            }
            transform_patch(r, t);
#pragma GCC unroll 6
            for (int i = 0; i < kPatch; ++i) rows[i][q] = t[i];
        }
#pragma GCC unroll 6
        for (int i = 0; i < kPatch; ++i) {
            Vec<T> d[M], next[M];
            sort_columns<T, M>(rows[i], d);
            sort_columns<T, M>(rows[i] + (wide ? 0 : M), next);
            T* out = stage + i * kPatch * stage_pitch + done;
#pragma GCC unroll 4
            for (int j = 0; j < M; ++j) {
                store(out + j * stage_pitch, d[j]);
                if (j + M < kPatch) {
                    store(out + (j + M) * stage_pitch, slide<1, T>(d[j], next[j], Lanes{}));
                }
                if (j + 2 * M < kPatch) {
                    store(out + (j + 2 * M) * stage_pitch, slide<2, T>(d[j], next[j], Lanes{}));
                }
            }
        }
    }
}

// V of one channel for a panel: v[point * point_stride + tile].
template <class T, int M>
FUSEDNN_INLINE void patches_of_channel(const WinogradProblem<T>& p, i64 tile0, i64 count,
                                       i64 channel, T* stage, T* v, i64 point_stride) {
    constexpr int lanes = kLanes<T>;
    constexpr i64 pitch = kPanel<T> + lanes;  // runs are stored with whole vectors
    const i64 plane_size = p.src_size[0] * p.src_size[1];
    for_each_tile_run(p, M, tile0, count, [&](const TileRun& run, i64 done) {
        stage_run<T, M>(p, run, p.src + run.image * p.src_image + channel * plane_size,
                        stage + done, pitch);
    });
    for (i64 tile = 0; tile < count; tile += lanes) {
#pragma GCC unroll 6
        for (int i = 0; i < kPatch; ++i) {
            Vec<T> r[kPatch], t[kPatch];
#pragma GCC unroll 6
            for (int j = 0; j < kPatch; ++j) r[j] = load(stage + (i * kPatch + j) * pitch + tile);
            transform_patch(r, t);
#pragma GCC unroll 6
            for (int j = 0; j < kPatch; ++j) {
                store(v + (i * kPatch + j) * point_stride + tile, t[j]);
            }
        }
    }
}

// Output transform of one channel: products m[point * point_stride + tile] -> dst. Returns false if
// a value is not finite.
template <class T, int M>
FUSEDNN_INLINE bool outputs_of_row(const WinogradProblem<T>& p, i64 tile0, i64 count, i64 row,
                                   const T* m, i64 point_stride) {
    constexpr int lanes = kLanes<T>;
    alignas(64) T lines[M][M * kPanel<T>];
    const Vec<T> bias = broadcast(p.bias ? p.bias[row] : T(0));
    Vec<T> finite{};  // stays 0 unless a value is infinite or NaN
    for (i64 tile = 0; tile < count; tile += lanes) {
        Vec<T> half[M][kPatch];
#pragma GCC unroll 6
        for (int j = 0; j < kPatch; ++j) {
            Vec<T> column[kPatch], y[M];
#pragma GCC unroll 6
            for (int i = 0; i < kPatch; ++i) {
                column[i] = load(m + (i * kPatch + j) * point_stride + tile);
            }
            transform_output<M>(column, y);
#pragma GCC unroll 4
            for (int i = 0; i < M; ++i) half[i][j] = y[i];
        }
#pragma GCC unroll 4
        for (int i = 0; i < M; ++i) {
            Vec<T> y[M];
            transform_output<M>(half[i], y);
#pragma GCC unroll 4
            for (int j = 0; j < M; ++j) {
                y[j] += bias;
                finite += y[j] * T(0);
            }
            T* line = lines[i] + tile * M;
            if constexpr (M == 2) {
                store(line, interleave_low<T>(y[0], y[1]));
                store(line + lanes, interleave_high<T>(y[0], y[1]));
            } else {
                const Vec<T> a = interleave_low<T>(y[0], y[2]), b = interleave_low<T>(y[1], y[3]);
                const Vec<T> c = interleave_high<T>(y[0], y[2]), d = interleave_high<T>(y[1], y[3]);
                store(line, interleave_low<T>(a, b));
                store(line + lanes, interleave_high<T>(a, b));
                store(line + 2 * lanes, interleave_low<T>(c, d));
                store(line + 3 * lanes, interleave_high<T>(c, d));
            }
        }
    }
    const i64 width = p.dst_size[1];
    for_each_tile_run(p, M, tile0, count, [&](const TileRun& run, i64 done) {
        const i64 cols = min_of(run.count * M, width - run.col * M);
        for (i64 i = 0; i < min_of(i64(M), p.dst_size[0] - run.row * M); ++i) {
            T* out = p.dst + run.image * p.dst_image +
                     (row * p.dst_size[0] + run.row * M + i) * width + run.col * M;
            const T* line = lines[i] + done * M;
            i64 x = 0;
            for (; x + lanes <= cols; x += lanes) store(out + x, load(line + x));
            if (x < cols) store_partial(out + x, load_partial(line + x, cols - x), cols - x);
        }
    });
    T total = sum_lanes<T>(finite);
    return total == total;
}

template <class T, int K>
void pack_weights(const WinogradProblem<T>& p, int slots, T* u) {
    const i64 u_stride = winograd_point_stride(p);
    parallel(p.rows, slots,
             [&](i64 row, int) { weights_of_row<T, K>(p, row, u + row * p.channels, u_stride); });
}

template <class T, int M>
bool run_winograd(const WinogradProblem<T>& p) {
    constexpr int K = kPatch + 1 - M;
    const i64 tiles = p.batch * ceil_div(p.dst_size[0], M) * ceil_div(p.dst_size[1], M);
    const i64 panels = ceil_div(tiles, kPanel<T>);
    const i64 cost = 2 * kPoints * tiles * p.channels * p.rows;
    const int slots = parallel_slots(max_of(panels, p.rows), cost);

    // Strides between points that are no multiple of 4 KB: the transforms write all 36 at once.
    const i64 u_stride = winograd_point_stride(p);
    const i64 v_stride = p.channels * kPanel<T> + kLanes<T>;
    const i64 m_stride = kRowBlock * kPanel<T> + kLanes<T>;
    Workspace<T> u_work(p.packed ? 0 : winograd_packed_size(p));
    if (!p.packed) pack_weights<T, K>(p, slots, u_work.get());
    const T* u = p.packed ? p.packed : u_work.get();

    Workspace<T> v_work(kPoints * v_stride, slots), m_work(kPoints * m_stride, slots);
    Workspace<T> stage_work(kPoints * (kPanel<T> + kLanes<T>), slots);
    Workspace<char> spoiled(1, slots);
    for (int slot = 0; slot < slots; ++slot) {
        *spoiled.slot(slot) = 0;
        // What a vector holds behind the last tile is transformed with the rest, and must be
        // finite.
        T* stage = stage_work.slot(slot);
        for (i64 i = 0; i < kPoints * (kPanel<T> + kLanes<T>); ++i) stage[i] = T(0);
    }
    parallel(panels, slots, [&](i64 panel, int slot) {
        FlushDenormals flush;
        T *v = v_work.slot(slot), *m = m_work.slot(slot);
        const i64 tile0 = panel * kPanel<T>, count = min_of(tiles - tile0, kPanel<T>);
        for (i64 channel = 0; channel < p.channels; ++channel) {
            patches_of_channel<T, M>(p, tile0, count, channel, stage_work.slot(slot),
                                     v + channel * kPanel<T>, v_stride);
        }
        for (i64 row0 = 0; row0 < p.rows; row0 += kRowBlock) {
            const i64 rows = min_of(p.rows - row0, kRowBlock);
            const RowPanels cut(rows);
            for (int point = 0; point < kPoints; ++point) {
                for (i64 i = 0; i < cut.count; ++i) {
                    TileOutput<T> out{};
                    out.c = m + point * m_stride + cut.start(i) * kPanel<T>;
                    out.ldc = kPanel<T>;
                    out.cols = count > kLanes<T> ? kPanel<T> : kLanes<T>;
                    tile_function<T>(cut.height(i), out.cols, false)(
                        p.channels, u + point * u_stride + (row0 + cut.start(i)) * p.channels,
                        p.channels, v + point * v_stride, kPanel<T>, out);
                }
            }
            for (i64 row = 0; row < rows; ++row) {
                if (!outputs_of_row<T, M>(p, tile0, count, row0 + row, m + row * kPanel<T>,
                                          m_stride)) {
                    *spoiled.slot(slot) = 1;
                }
            }
        }
    });
    bool finite = true;
    for (int slot = 0; slot < slots; ++slot) finite = finite && *spoiled.slot(slot) == 0;
    return finite;
}

}  // namespace

template <class T>
bool winograd(const WinogradProblem<T>& p) {
    return p.kernel == 3 ? run_winograd<T, 4>(p) : run_winograd<T, 2>(p);
}

template <class T>
void winograd_pack(const WinogradProblem<T>& p, T* packed) {
    const int slots = parallel_slots(p.rows, 2 * kPoints * p.rows * p.channels);
    if (p.kernel == 3) {
        pack_weights<T, 3>(p, slots, packed);
    } else {
        pack_weights<T, 5>(p, slots, packed);
    }
}

#define FUSEDNN_WINOGRAD(T)                               \
    template bool winograd<T>(const WinogradProblem<T>&); \
    template void winograd_pack<T>(const WinogradProblem<T>&, T*);
FUSEDNN_INSTANTIATE(FUSEDNN_WINOGRAD)

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
