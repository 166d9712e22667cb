// sequence.cu and sequence_back.cu for 16-bit arrays: products on the tensor cores, sums, gates, c
// and dh in float; h and d_gates go through memory in 16 bits. One kernel each for all cells and
// both formats.
//
// A block owns up to 8 hidden units: the rows of W_hh that make their gates (backward: their
// columns of W_hh) lie in its shared memory over all steps. Of a product's depth each warp has
// every eighth piece of 32; their parts are added in their order.
//
//   fragments   a lane has 8 neighbours of the depth, read at once, where mma m16n8k16 speaks of
//               others: as long as both sides take the same ones, the sum is that of two products
//
// The order of a sum depends on the depth alone.
#include <cstddef>

#include "cuda/elementwise.h"
#include "cuda/recurrent/sequence.h"

namespace fusednn::cuda {

namespace {

using Half = HalfBits;

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kMostUnits = 8, kRows = 16, kColumns = 8, kPiece = 32;
constexpr int kMostTiles = 4;  // of 8 columns: the gates of 8 units
constexpr i64 kMostShared = 96 << 10, kMostHidden = 1024, kMostBatch = 64, kWantedBlocks = 128;

// Four words of two values, at once.
struct alignas(16) Words {
    std::uint32_t of[4];
};

// Rows of weights in shared memory: 8 of them, 64 bytes apart from the next modulo 128, are read by
// the 8 lanes of a quarter of a warp without conflicts.
FUSEDNN_HOST_DEVICE int pitch_of(i64 depth) {
    return int((depth + 63) / 64 * 64) + 32;
}

// What a warp multiplies: rows [first, first + 16) of a, of which there are `rows`, with `depth`
// values; wide: they can be read by 16 bytes.
struct Rows16 {
    HalfIn a;
    i64 row, first, rows;
    int depth;
    bool wide;

    FUSEDNN_DEVICE Words at(int r, int k) const {
        Words words{};
        if (first + r >= rows) return words;
        const HalfBits* from = a.data + (first + r) * row + k;
        if (wide) {
            if (k < depth) words = *reinterpret_cast<const Words*>(from);
            return words;
        }
#pragma unroll
        for (int e = 0; e < 8; ++e) {
            const std::uint32_t bits = k + e < depth ? from[e].bits : 0;
            words.of[e / 2] |= bits << (e % 2 * 16);
        }
        return words;
    }
};

// This warp's part of a (16 x depth) times weights^T (columns x depth, `tiles` times 8): sum[j] has
// rows l / 4 and l / 4 + 8, columns j * 8 + l % 4 * 2 and the next one.
FUSEDNN_DEVICE void multiply_tile(float (&sum)[kMostTiles][4], const Rows16& rows, int tiles,
                                  const HalfBits* weights, int pitch) {
    const int lane = int(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
    const bool brain = rows.a.format.brain;
#pragma unroll 2
    for (int k0 = int(threadIdx.x) / 32 * kPiece; k0 < rows.depth; k0 += kWarps * kPiece) {
        const int k = k0 + t * 8;
        const Words upper = rows.at(g, k), lower = rows.at(g + 8, k);
        const std::uint32_t a[2][4] = {{upper.of[0], lower.of[0], upper.of[1], lower.of[1]},
                                       {upper.of[2], lower.of[2], upper.of[3], lower.of[3]}};
#pragma unroll
        for (int j = 0; j < kMostTiles; ++j) {
            if (j >= tiles) break;
            const Words w = *reinterpret_cast<const Words*>(weights + (j * 8 + g) * pitch + k);
            const std::uint32_t b[2][2] = {{w.of[0], w.of[1]}, {w.of[2], w.of[3]}};
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                if (brain) {
                    mma_bf16(sum[j], a[half], b[half]);
                } else {
                    mma_f16(sum[j], a[half], b[half]);
                }
            }
        }
    }
}

// ---- forward
// -------------------------------------------------------------------------------------

// Units of a block: fewer where there are few, so that there are many blocks.
int units_of(i64 hidden) {
    int units = kMostUnits;
    while (units > 2 && (hidden + units / 2 - 1) / (units / 2) <= kWantedBlocks) units /= 2;
    return units;
}
int tiles_of(Cell cell, i64 hidden) {
    return (gates_of(cell) * units_of(hidden) + kColumns - 1) / kColumns;
}

// The warps' parts of a tile, a bank further in each row; then (columns, pitch) weights.
struct Shared {
    float parts[kWarps][kRows][kMostTiles * kColumns + 1];
    alignas(16) HalfBits weights[8];
};
i64 shared_bytes(Cell cell, i64 hidden) {
    return i64(offsetof(Shared, weights)) +
           i64(tiles_of(cell, hidden)) * kColumns * pitch_of(hidden) * 2;
}

// One unit of one sequence at step t, from the parts of its gates' sums if there is a product.
struct HalfPlace {
    i64 row, unit, start, t;
    int tile_row, tile_unit, units;
    bool product;
};
FUSEDNN_DEVICE void finish_unit(const Sequence<Half>& s, const HalfPlace& p,
                                const float (&parts)[kWarps][kRows][kMostTiles * kColumns + 1],
                                HalfOut from, HalfOut to, HalfOut seen) {
    const int gates = gates_of(s.cell), kept = kept_gates(s.cell);
    const i64 at = p.row * s.hidden + p.unit, state = p.row * s.depth + p.unit;
    const HalfOut mine = s.gates + ((p.start - s.row0 + p.row) * s.gates_row + p.unit);
    UnitIn<float> in{};
#pragma unroll
    for (int g = 0; g < 4; ++g) {
        if (g >= gates) continue;
        in.x[g] = HalfIn(mine)[g * s.hidden];
#pragma unroll
        for (int w = 0; p.product && w < kWarps; ++w) {
            in.u[g] += parts[w][p.tile_row][g * p.units + p.tile_unit];
        }
    }
    in.h = HalfIn(from)[state];
    if (s.b_hn) in.b_hn = s.b_hn[p.unit];
    if (s.c) in.c = s.c[at];
    const UnitOut<float> out = cell_of_unit(s.cell, in);
    if (s.keep) {
#pragma unroll
        for (int g = 0; g < 4; ++g) {
            if (g < kept) mine[g * s.hidden] = out.before[g];
        }
        s.h_before[(p.start - s.h_row) * s.hidden + at] = in.h;
        if (s.c) s.c_before[(p.start - s.c_row) * s.hidden + at] = in.c;
    }
    if (s.c) s.c[at] = out.c;
    to[state] = out.h;
    const i64 b = s.view.sequence_of(p.row);
    if (s.out) s.out[p.t * s.out_step + b * s.out_row + p.unit] = out.h;
    if (!s.mask) return;
    const float factor = s.mask[b * s.hidden + p.unit], rounded = HalfIn(to)[state];
    seen[state] = factor != 0.0f ? rounded * factor : 0.0f;
}

// Column c of the block's tiles is gate c / units of unit c % units; zeros for those that are not.
FUSEDNN_DEVICE void load_weights(const Sequence<Half>& s, i64 unit0, int units, int columns,
                                 int pitch, HalfBits* to) {
    const int lane = int(threadIdx.x) % 32, gates = gates_of(s.cell);
#pragma unroll 1
    for (int c = int(threadIdx.x) / 32; c < columns; c += kWarps) {
        const int gate = c / units;
        const i64 unit = unit0 + c % units;
        const bool real = gate < gates && unit < s.hidden;
        const HalfBits* row = s.w_hh.data + (gate * s.hidden + unit) * s.hidden;
#pragma unroll 4
        for (int k = lane; k < pitch; k += 32) {
            to[c * pitch + k] = real && k < s.hidden ? row[k] : HalfBits{};
        }
    }
}

__global__ void __launch_bounds__(kThreads, 2)
    sequence_kernel(Sequence<Half> s, int units, int tiles, unsigned* counter) {
    FUSEDNN_DYNAMIC_SHARED(Shared, shared);
    HalfBits* const weights = shared.weights;
    const int thread = int(threadIdx.x), lane = thread % 32, warp = thread / 32;
    const int pitch = pitch_of(s.hidden), tile_row = thread / units, tile_unit = thread % units;
    const i64 unit0 = i64(blockIdx.x) * units, unit = unit0 + tile_unit;
    load_weights(s, unit0, units, tiles * kColumns, pitch, weights);
    __syncthreads();

    const bool has_unit = tile_row < kRows && unit < s.hidden;
    const i64 size = s.batch * s.depth;
    unsigned phase = 0;
#pragma unroll 1
    for (i64 n = s.begin; n < s.end; ++n) {
        const i64 t = s.reverse ? s.all_steps - 1 - n : n;
        const i64 start = s.view.start(t), active = s.view.active(t);
        const HalfOut from = s.h + n % 2 * size, to = s.h + (n + 1) % 2 * size;
        const HalfOut seen = s.mask ? s.seen + n % 2 * size : from;
        const HalfOut next_seen = s.mask ? s.seen + (n + 1) % 2 * size : to;
        const bool product = n > 0 || !s.from_zeros;
#pragma unroll 1
        for (i64 first = 0; first < s.batch; first += kRows) {
            if (product && first < active) {
                float sum[kMostTiles][4] = {};
                multiply_tile(sum, {seen, s.depth, first, s.batch, int(s.hidden + 7) / 8 * 8, true},
                              tiles, weights, pitch);
#pragma unroll
                for (int j = 0; j < kMostTiles; ++j) {
                    if (j >= tiles) break;
#pragma unroll
                    for (int i = 0; i < 4; ++i) {
                        shared.parts[warp][lane / 4 + i / 2 * 8]
                                    [j * kColumns + lane % 4 * 2 + i % 2] = sum[j][i];
                    }
                }
            }
            __syncthreads();
            const i64 row = first + tile_row;
            if (has_unit && row < active) {
                finish_unit(s, {row, unit, start, t, tile_row, tile_unit, units, product},
                            shared.parts, from, to, next_seen);
            } else if (has_unit &&
                       row < s.batch) {  // who has ended, or not begun, goes on as it is
                const i64 state = row * s.depth + unit;
                to.data[state] = from.data[state];
                if (s.mask) next_seen.data[state] = seen.data[state];
            }
            __syncthreads();  // the parts have been read
        }
        if (n + 1 < s.end) grid_sync(counter, phase);
    }
}

// ---- backward
// ------------------------------------------------------------------------------------

struct BackShared {
    float parts[kWarps][kMostBatch][kMostUnits];
    alignas(16) HalfBits weights[8];
};
i64 back_shared(Cell cell, i64 hidden) {
    return i64(offsetof(BackShared, weights)) +
           i64(kMostUnits) * pitch_of(gates_of(cell) * hidden) * 2;
}

// The cell of one unit; dh and dc are this thread's.
FUSEDNN_DEVICE void cell_back(const SequenceBack<Half>& s, i64 t, i64 row, i64 unit, float& dh,
                              float& dc) {
    const int kept = kept_gates(s.cell);
    const i64 at = s.view.start(t) + row;
    const HalfIn gates = s.gates + ((at - s.gates_first) * s.gates_row + unit);
    UnitBackIn<float> in{};
#pragma unroll
    for (int g = 0; g < 4; ++g) {
        if (g < kept) in.kept[g] = gates[g * s.hidden];
    }
    gates_from_before(s.cell, in.kept);
    if (kept == 4) in.before = s.before[(at - s.before_first) * s.hidden + unit];
    in.dh = dh;
    in.dc = dc;
    if (s.d_out) {
        in.dh += s.d_out[t * s.out_step + s.view.sequence_of(row) * s.out_row + unit];
    }
    const UnitBackOut<float> out = cell_of_unit_back(s.cell, in);
    const HalfOut d_gates = s.d_gates + ((at - s.d_first) * s.d_row + unit);
#pragma unroll
    for (int g = 0; g < 4; ++g) {
        if (g < kept) d_gates[g * s.hidden] = out.d_gates[g];
    }
    dh = out.dh;
    dc = out.dc;
}

// cell, product: which of the two are wanted; with both, all blocks meet between them. A thread has
// the unit of two sequences, 32 apart.
__global__ void __launch_bounds__(kThreads, 2)
    sequence_back_kernel(SequenceBack<Half> s, bool cell, bool product, bool wide,
                         unsigned* counter) {
    constexpr int kEach = 2, kApart = kThreads / kMostUnits;
    FUSEDNN_DYNAMIC_SHARED(BackShared, shared);
    HalfBits* const weights = shared.weights;
    const int thread = int(threadIdx.x), lane = thread % 32, warp = thread / 32;
    const int depth = gates_of(s.cell) * int(s.hidden), pitch = pitch_of(depth);
    const int column = thread % kMostUnits;
    const i64 unit = i64(blockIdx.x) * kMostUnits + column;
#pragma unroll 4
    for (int k = thread / kMostUnits; product && k < pitch; k += kApart) {
        const bool real = k < depth && unit < s.hidden;
        weights[column * pitch + k] = real ? s.w_hh.data[k * s.hidden + unit] : HalfBits{};
    }
    float dh[kEach], dc[kEach], factor[kEach];
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
        const i64 row = thread / kMostUnits + e * kApart;
        const bool mine = row < s.batch && unit < s.hidden;
        const i64 state = row * s.hidden + unit;
        dh[e] = mine ? s.dh[state] : 0.0f;
        dc[e] = mine && s.dc ? s.dc[state] : 0.0f;
        factor[e] = mine && s.mask ? s.mask[s.view.sequence_of(row) * s.hidden + unit] : 1.0f;
    }
    unsigned phase = 0;
#pragma unroll 1
    for (i64 n = s.end - 1; n >= s.begin; --n) {
        const i64 t = s.reverse ? s.all_steps - 1 - n : n, active = s.view.active(t);
#pragma unroll
        for (int e = 0; e < kEach; ++e) {
            const i64 row = thread / kMostUnits + e * kApart;
            if (cell && row < active && unit < s.hidden) cell_back(s, t, row, unit, dh[e], dc[e]);
        }
        if (!product || (n == 0 && !s.to_state)) continue;
        if (cell) {
            grid_sync(counter, phase);
        } else {
            __syncthreads();
        }
        // A GRU's d_gates begin with what belongs to x alone.
        const HalfOut d = s.d_gates + ((s.view.start(t) - s.d_first) * s.d_row +
                                       (s.cell == Cell::gru ? s.hidden : 0));
#pragma unroll 1
        for (i64 first = 0; first < active; first += kRows) {
            float sum[kMostTiles][4] = {};
            multiply_tile(sum, {d, s.d_row, first, active, depth, wide}, 1, weights, pitch);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                shared.parts[warp][first + lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2] = sum[0][i];
            }
        }
        __syncthreads();
#pragma unroll
        for (int e = 0; e < kEach; ++e) {
            const i64 row = thread / kMostUnits + e * kApart;
            if (row >= active) continue;
            float sum = shared.parts[0][row][column];
#pragma unroll
            for (int w = 1; w < kWarps; ++w) sum += shared.parts[w][row][column];
            dh[e] += factor[e] != 0.0f ? sum * factor[e] : 0.0f;
        }
    }
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
        const i64 row = thread / kMostUnits + e * kApart;
        if (row >= s.batch || unit >= s.hidden) continue;
        s.dh[row * s.hidden + unit] = dh[e];
        if (s.dc) s.dc[row * s.hidden + unit] = dc[e];
    }
}

template <class T>
bool suits(const RecurrentParams<T>& p, i64 shared, i64 blocks, i64 depth) {
    return p.cell != Cell::norm_lstm && !p.w_hr && p.hidden > 0 && p.hidden <= kMostHidden &&
           p.batch > 0 && p.batch <= kMostBatch && shared <= kMostShared &&
           blocks * p.batch * depth * 2 <= kMostTraffic;
}
i64 blocks_of(i64 hidden, int units) {
    return (hidden + units - 1) / units;
}

}  // namespace

template <class T>
bool half_sequence_suits(const RecurrentParams<T>& p) {
    return suits(p, shared_bytes(p.cell, p.hidden), blocks_of(p.hidden, units_of(p.hidden)),
                 p.hidden);
}
template <class T>
bool half_sequence_back_suits(const RecurrentParams<T>& p) {
    return suits(p, back_shared(p.cell, p.hidden), blocks_of(p.hidden, kMostUnits),
                 gates_of(p.cell) * p.hidden);
}

template <>
void run_sequence<Half>(const Sequence<Half>& s) {
    if (s.begin == s.end) return;
    const int units = units_of(s.hidden), tiles = tiles_of(s.cell, s.hidden);
    const LaunchShape shape{unsigned(blocks_of(s.hidden, units)), kThreads,
                            std::size_t(shared_bytes(s.cell, s.hidden))};
    const char* name = "recurrent_sequence";
    if (i64(shape.grid.x) <= resident_blocks(sequence_kernel, shape)) {
        const Workspace<unsigned> counter(1);
        clear_values(counter.get(), 1);
        launch_cooperative(name, shape, sequence_kernel, s, units, tiles, counter.get());
        return;
    }
    Sequence<Half> step = s;
    for (i64 n = s.begin; n < s.end; ++n) {
        step.begin = n;
        step.end = n + 1;
        launch(name, shape, sequence_kernel, step, units, tiles, static_cast<unsigned*>(nullptr));
    }
}

template <>
void run_sequence_back<Half>(const SequenceBack<Half>& s) {
    if (s.begin >= s.end) return;
    const LaunchShape shape{unsigned(blocks_of(s.hidden, kMostUnits)), kThreads,
                            std::size_t(back_shared(s.cell, s.hidden))};
    const i64 first = s.cell == Cell::gru ? s.hidden : 0;
    const bool wide = detail::whole_packs(s.d_gates.data) && s.d_row % 8 == 0 && first % 8 == 0;
    const char* name = "recurrent_sequence_back";
    if (i64(shape.grid.x) <= resident_blocks(sequence_back_kernel, shape)) {
        const Workspace<unsigned> counter(1);
        clear_values(counter.get(), 1);
        launch_cooperative(name, shape, sequence_back_kernel, s, true, true, wide, counter.get());
        return;
    }
    SequenceBack<Half> step = s;
    for (i64 at = s.end - 1; at >= s.begin; --at) {
        step.begin = at;
        step.end = at + 1;
        const auto run = [&](bool cell) {
            launch(name, shape, sequence_back_kernel, step, cell, !cell, wide,
                   static_cast<unsigned*>(nullptr));
        };
        run(true);
        if (at > 0 || s.to_state) run(false);
    }
}

#define FUSEDNN_SEQUENCE_HALF(T)                               \
    template <>                                                \
    bool sequence_suits<T>(const RecurrentParams<T>& p) {      \
        return half_sequence_suits(p);                         \
    }                                                          \
    template <>                                                \
    bool sequence_back_suits<T>(const RecurrentParams<T>& p) { \
        return half_sequence_back_suits(p);                    \
    }
FUSEDNN_INSTANTIATE_HALF(FUSEDNN_SEQUENCE_HALF)

}  // namespace fusednn::cuda
