// sequence_back.cu for 16-bit arrays: products on the tensor cores; dh and dc are float, in the
// registers of a thread to two sequences of a unit, and d_gates goes through memory in 16 bits. One
// kernel for all cells and both formats.
//
// A block owns 8 hidden units: their columns of W_hh lie in its shared memory over all steps, and a
// product's rows are 16 sequences (half_tile.h). Where the device does not hold all blocks at once,
// cell and product are launches of their own: the same bits.
#include <cstddef>

#include "cuda/recurrent/half_tile.h"

namespace fusednn::cuda {

namespace {

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

}  // namespace

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

#define FUSEDNN_SEQUENCE_HALF_BACK(T)                                                   \
    template <>                                                                         \
    bool sequence_back_suits<T>(const RecurrentParams<T>& p) {                          \
        return suits(p, back_shared(p.cell, p.hidden), blocks_of(p.hidden, kMostUnits), \
                     gates_of(p.cell) * p.hidden);                                      \
    }
FUSEDNN_INSTANTIATE_HALF(FUSEDNN_SEQUENCE_HALF_BACK)

}  // namespace fusednn::cuda
