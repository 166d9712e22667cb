// sequence.cu for 16-bit arrays: products on the tensor cores, sums, gates and c in float; h goes
// through memory in 16 bits. One kernel for all cells and both formats.
//
// A block owns up to 8 hidden units: the rows of W_hh that make their gates lie in its shared
// memory over all steps, and a product's rows are 16 sequences (half_tile.h). Where the device does
// not hold all blocks at once, the kernel is launched for every step: the same bits.
#include <cstddef>

#include "cuda/recurrent/half_tile.h"

namespace fusednn::cuda {

namespace {

constexpr i64 kWantedBlocks = 128;

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

}  // namespace

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

#define FUSEDNN_SEQUENCE_HALF(T)                                                                 \
    template <>                                                                                  \
    bool sequence_suits<T>(const RecurrentParams<T>& p) {                                        \
        return suits(p, shared_bytes(p.cell, p.hidden), blocks_of(p.hidden, units_of(p.hidden)), \
                     p.hidden);                                                                  \
    }
FUSEDNN_INSTANTIATE_HALF(FUSEDNN_SEQUENCE_HALF)

}  // namespace fusednn::cuda
