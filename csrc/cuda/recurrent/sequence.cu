// A block owns some hidden units: the rows of W_hh that make their gates stay in its shared memory
// over all steps, c in the same thread's hands. Only h goes through memory; once a step all blocks
// meet.
//
//   a warp's tile   4 columns (the gates of a unit; 4 units of an RNN) by kRows sequences. The
//                   lanes share the depth, 16 bytes each at a time.
//   reduction       a tree over the lanes that hands each of them one of the sums
//   cell            the lanes that have a unit's gates put them together
//
// A sum's order depends on `hidden` alone: neither on the batch nor on how units are spread over
// blocks. Where the device does not hold all blocks at once, the same kernel is launched for every
// step: the same bits, but W_hh is read anew each time.
#include "cuda/recurrent/sequence.h"

#include "core/precision.h"
#include "cuda/recurrent/tile.h"

namespace fusednn::cuda {

namespace {

constexpr int kWarps = kSequenceThreads / 32;
// Tiles of a block; more warps than tiles share the sequences.
constexpr int kMostTiles = 4;
constexpr i64 kWantedBlocks = 128;
// More sequences make products large enough for tiles of their own; with TF32 sooner.
constexpr i64 kMostBatch = 64, kMostBatchTensor = 16;

// Columns of a tile that have weights, and units.
template <int kGates>
constexpr int kTileColumns = kGates == 3 ? 3 : 4;
template <int kGates>
constexpr int kTileUnits = kGates == 1 ? 4 : 1;

struct Tiling {
    int tiles;  // of a block: 1, 2 or 4
    i64 blocks;
};
Tiling tiling_of(Cell cell, i64 hidden) {
    const i64 each = gates_of(cell) == 1 ? 4 : 1;
    Tiling tiling{1, 0};
    while (tiling.tiles < kMostTiles && hidden > kWantedBlocks * tiling.tiles * each) {
        tiling.tiles *= 2;
    }
    tiling.blocks = (hidden + tiling.tiles * each - 1) / (tiling.tiles * each);
    return tiling;
}
template <class T>
i64 shared_bytes(Cell cell, i64 hidden) {
    const i64 columns = gates_of(cell) == 3 ? 3 : 4;
    return tiling_of(cell, hidden).tiles * columns * sequence_depth<T>(hidden) * i64(sizeof(T));
}

// Rows of W_hh into shared memory, zeros behind their ends and for units that do not exist.
template <class T, int kGates>
FUSEDNN_DEVICE void load_weights(const Sequence<T>& s, int unit0, int columns, T* to) {
    const int depth = int(s.depth), hidden = int(s.hidden), lane = int(threadIdx.x) % 32;
#pragma unroll 1
    for (int column = int(threadIdx.x) / 32; column < columns; column += kWarps) {
        const int tile = column / kTileColumns<kGates>, c = column % kTileColumns<kGates>;
        const int unit = unit0 + tile * kTileUnits<kGates> + (kGates == 1 ? c : 0);
        const T* row = s.w_hh + (kGates == 1 ? unit : c * hidden + unit) * hidden;
#pragma unroll 4
        for (int k = lane; k < depth; k += 32) {
            to[column * depth + k] = unit < hidden && k < hidden ? row[k] : T(0);
        }
    }
}

// This lane's sum of the tile: of row lane / 4, modulo kRows, and column lane % 4. h: the tile's
// first row; `last` is the last row that may be read.
template <class T, int kGates, int kRows>
FUSEDNN_DEVICE T tile_product(const T* weights, const T* h, int last, int depth) {
    constexpr int n = Pack<T>::kSize, columns = kTileColumns<kGates>;
    const int lane = int(threadIdx.x) % 32;
    T sum[kRows * 4] = {};
#pragma unroll(kRows == 1 ? 4 : 1)
    for (int k = lane * n; k < depth; k += 32 * n) {
        Pack<T> w[columns];
#pragma unroll
        for (int c = 0; c < columns; ++c) {
            w[c] = *reinterpret_cast<const Pack<T>*>(weights + c * depth + k);
        }
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
            const int row = r < last ? r : last;
            const Pack<T> x = *reinterpret_cast<const Pack<T>*>(h + row * depth + k);
#pragma unroll
            for (int c = 0; c < columns; ++c) {
#pragma unroll
                for (int e = 0; e < n; ++e) sum[r * 4 + c] += x.of[e] * w[c].of[e];
            }
        }
    }
    add_lanes<16>(sum);
    return sum[0];
}

// Where a unit of a sequence stands at a step.
struct UnitPlace {
    int row, unit;
    i64 start, t;
};

// The cell; h in `from`, new h in `to`, both (batch, depth).
template <class T, int kGates>
FUSEDNN_DEVICE void finish_unit(const Sequence<T>& s, const UnitPlace& p, UnitIn<T>& in,
                                const T* from, T* to, T* seen) {
    const int hidden = int(s.hidden);
    const int at = p.row * hidden + p.unit, state = p.row * int(s.depth) + p.unit;
    const Cell cell = kGates == 4 ? Cell::lstm : kGates == 3 ? Cell::gru : s.cell;
    constexpr int kept = kGates == 1 ? 1 : 4;
    constexpr bool has_c = kGates == 4;
    in.h = from[state];
    in.b_hn = s.b_hn ? s.b_hn[p.unit] : T(0);
    in.c = has_c ? s.c[at] : T(0);
    const UnitOut<T> out = cell_of_unit(cell, in);
    if (s.keep) {
        T* gates = s.gates + (p.start - s.row0 + p.row) * s.gates_row + p.unit;
#pragma unroll
        for (int g = 0; g < kept; ++g) gates[g * hidden] = out.kept[g];
        s.h_before[(p.start - s.h_row) * s.hidden + at] = in.h;
        if (has_c) s.c_before[(p.start - s.c_row) * s.hidden + at] = in.c;
    }
    if (has_c) s.c[at] = out.c;
    to[state] = out.h;
    const i64 b = s.view.sequence_of(p.row);
    if (s.out) s.out[p.t * s.out_step + b * s.out_row + p.unit] = out.h;
    if (!s.mask) return;
    const T factor = s.mask[b * s.hidden + p.unit];
    seen[state] = factor != T(0) ? out.h * factor : T(0);
}

template <class T, int kGates, int kRows>
__global__ void __launch_bounds__(kSequenceThreads, 2)
    sequence_kernel(Sequence<T> s, int tile_bits, unsigned* counter) {
    FUSEDNN_DYNAMIC_SHARED(SharedWeights<T>, shared);
    T* const all_weights = shared.first.of;
    constexpr int columns = kTileColumns<kGates>, units = kTileUnits<kGates>;
    const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32, depth = int(s.depth);
    const int tiles = 1 << tile_bits, tile = warp & (tiles - 1), groups = kWarps >> tile_bits;
    const int hidden = int(s.hidden), batch = int(s.batch);
    const int unit0 = int(blockIdx.x) * tiles * units;
    load_weights<T, kGates>(s, unit0, tiles * columns, all_weights);
    __syncthreads();

    const T* weights = all_weights + tile * columns * depth;
    const int column = lane % 4;
    const int unit = unit0 + tile * units + (kGates == 1 ? column : 0);
    const bool has_gate = unit < hidden && column < kGates * units && lane < 4 * kRows;
    const bool has_cell = has_gate && (kGates == 1 || column == 0);
    const int size = batch * depth;
    unsigned phase = 0;
#pragma unroll 1
    for (i64 n = s.begin; n < s.end; ++n) {
        const i64 t = s.reverse ? s.all_steps - 1 - n : n;
        const i64 start = s.view.start(t);
        const int active = int(s.view.active(t));
        const int here = int(n % 2) * size, next = size - here;
        const T* from = s.h + here;
        T* to = s.h + next;
        const T* seen = s.seen ? s.seen + here : from;
        T* next_seen = s.seen ? s.seen + next : nullptr;
#pragma unroll 1
        for (int first = (warp >> tile_bits) * kRows; first < batch; first += groups * kRows) {
            const int row = first + lane / 4 % kRows;
            if (first < active) {
                UnitIn<T> in{};
                T x = T(0), sum = T(0);
                if (has_gate && row < active) {
                    const int gate = kGates == 1 ? 0 : column;
                    x = s.gates[(start - s.row0 + row) * s.gates_row + gate * hidden + unit];
                }
                if (n > 0 || !s.from_zeros) {
                    const int last = active - 1 - first;
                    sum = tile_product<T, kGates, kRows>(weights, seen + first * depth,
                                                         last < kRows ? last : kRows, depth);
                }
                if constexpr (kGates == 1) {
                    in.x[0] = x;
                    in.u[0] = sum;
                } else {
#pragma unroll
                    for (int g = 0; g < kGates; ++g) {
                        in.x[g] = __shfl_sync(kAllLanes, x, (lane & ~3) + g);
                        in.u[g] = __shfl_sync(kAllLanes, sum, (lane & ~3) + g);
                    }
                }
                __syncwarp();  // x has been read where the gates' values may go
                if (has_cell && row < active) {
                    finish_unit<T, kGates>(s, {row, unit, start, t}, in, from, to, next_seen);
                }
            }
            // Who has ended, or not begun, goes on as it is.
            if (has_cell && row >= active && row < batch) {
                const int state = row * depth + unit;
                to[state] = from[state];
                if (next_seen) next_seen[state] = seen[state];
            }
        }
        if (n + 1 < s.end) grid_sync(counter, phase);
    }
}

template <class T, int kGates, int kRows>
void launch_sequence(const Sequence<T>& s) {
    const Tiling tiling = tiling_of(s.cell, s.hidden);
    const LaunchShape shape{unsigned(tiling.blocks), kSequenceThreads,
                            std::size_t(shared_bytes<T>(s.cell, s.hidden))};
    const auto kernel = sequence_kernel<T, kGates, kRows>;
    const int bits = tiling.tiles / 2;  // of 1, 2 and 4
    if (tiling.blocks <= resident_blocks(kernel, shape)) {
        const Workspace<unsigned> counter(1);
        clear_values(counter.get(), 1);
        launch_cooperative("recurrent_sequence", shape, kernel, s, bits, counter.get());
        return;
    }
    Sequence<T> step = s;
    for (i64 n = s.begin; n < s.end; ++n) {
        step.begin = n;
        step.end = n + 1;
        launch("recurrent_sequence", shape, kernel, step, bits, static_cast<unsigned*>(nullptr));
    }
}

template <class T, int kGates>
void launch_rows(const Sequence<T>& s) {
    s.batch <= 2 ? launch_sequence<T, kGates, 1>(s) : launch_sequence<T, kGates, kTileRows>(s);
}

}  // namespace

template <class T>
bool sequence_suits(const RecurrentParams<T>& p) {
    const bool tensor = sizeof(T) == 4 && float32_precision() == Float32Precision::high;
    return p.cell != Cell::norm_lstm && !p.w_hr && p.hidden > 0 && p.hidden <= kMostHidden &&
           p.batch > 0 && p.batch <= (tensor ? kMostBatchTensor : kMostBatch) &&
           shared_bytes<T>(p.cell, p.hidden) <= kMostShared &&
           tiling_of(p.cell, p.hidden).blocks * p.batch * p.hidden * i64(sizeof(T)) <= kMostTraffic;
}

template <class T>
void run_sequence(const Sequence<T>& s) {
    if (s.begin == s.end) return;
    const int gates = gates_of(s.cell);
    gates == 4 ? launch_rows<T, 4>(s) : gates == 3 ? launch_rows<T, 3>(s) : launch_rows<T, 1>(s);
}

#define FUSEDNN_SEQUENCE(T)                                     \
    template bool sequence_suits<T>(const RecurrentParams<T>&); \
    template void run_sequence<T>(const Sequence<T>&);
FUSEDNN_INSTANTIATE(FUSEDNN_SEQUENCE)

}  // namespace fusednn::cuda
