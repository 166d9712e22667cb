// The recurrence of the backward pass, the last step first, in one kernel.
//
// A block owns 4 hidden units: their columns of W_hh stay in its shared memory over all steps, dh
// and dc in the registers of a thread to each unit of a sequence. Only d_gates goes through memory,
// where pass 2 wants it anyway; once a step all blocks meet.
//
//   cell      a thread to a unit of a sequence: d_gates, dc, what a GRU hands on directly
//   product   dh = d_gates W_hh: a warp has an eighth of the depth (all gates), its lanes share
//             that, 16 bytes each at a time; the warps' parts are added in their order
//
// The order of a sum depends on the depth alone. Where the device does not hold all blocks at once,
// cell and product are launches of their own: the same bits.
#include <cstddef>

#include "core/precision.h"
#include "cuda/recurrent/sequence.h"
#include "cuda/recurrent/tile.h"

namespace fusednn::cuda {

namespace {

constexpr int kUnits = 4, kWarps = kSequenceThreads / 32;
constexpr int kMostRows = kSequenceThreads / kUnits;

template <class T>
i64 back_depth(Cell cell, i64 hidden) {
    constexpr i64 line = kSequenceThreads * Pack<T>::kSize;
    return (gates_of(cell) * hidden + line - 1) / line * line;
}

// A warp's part of the sums of kTileRows sequences: lane l < 16 has that of row l / 4, unit l % 4.
// d: the tile's first row at the warp's first place; `last` is the last row that may be read,
// `left` how many values there are from that place on. wide: rows can be read by 16 bytes.
template <class T>
FUSEDNN_DEVICE T part_of_product(const T* weights, int depth, const T* d, i64 d_row, int last,
                                 int left, bool wide) {
    constexpr int n = Pack<T>::kSize;
    const int lane = int(threadIdx.x) % 32;
    T sum[kTileRows * kUnits] = {};
    for (int k = lane * n; k < depth / kWarps && k < left; k += 32 * n) {
        Pack<T> w[kUnits];
#pragma unroll
        for (int c = 0; c < kUnits; ++c) {
            w[c] = *reinterpret_cast<const Pack<T>*>(weights + c * depth + k);
        }
#pragma unroll
        for (int r = 0; r < kTileRows; ++r) {
            const T* from = d + (r < last ? r : last) * d_row + k;
            Pack<T> x;
            if (wide) {
                x = *reinterpret_cast<const Pack<T>*>(from);
            } else {
#pragma unroll
                for (int e = 0; e < n; ++e) x.of[e] = k + e < left ? from[e] : T(0);
            }
#pragma unroll
            for (int c = 0; c < kUnits; ++c) {
#pragma unroll
                for (int e = 0; e < n; ++e) sum[r * kUnits + c] += x.of[e] * w[c].of[e];
            }
        }
    }
    add_lanes<16>(sum);
    return sum[0];
}

// The cell of one unit; dh and dc are this thread's.
template <class T>
FUSEDNN_DEVICE void cell_back(const SequenceBack<T>& s, i64 t, i64 row, i64 unit, T& dh, T& dc) {
    const int kept = kept_gates(s.cell);
    const i64 at = s.view.start(t) + row;
    const T* gates = s.gates + (at - s.gates_first) * s.gates_row + unit;
    UnitBackIn<T> in{};
#pragma unroll
    for (int g = 0; g < 4; ++g) {
        if (g < kept) in.kept[g] = gates[g * s.hidden];
    }
    if (kept == 4) in.before = s.before[(at - s.before_first) * s.hidden + unit];
    in.dh = dh;
    in.dc = dc;
    if (s.d_out) {
        in.dh += s.d_out[t * s.out_step + s.view.sequence_of(row) * s.out_row + unit];
    }
    const UnitBackOut<T> out = cell_of_unit_back(s.cell, in);
    T* d_gates = s.d_gates + (at - s.d_first) * s.d_row + unit;
#pragma unroll
    for (int g = 0; g < 4; ++g) {
        if (g < kept) d_gates[g * s.hidden] = out.d_gates[g];
    }
    dh = out.dh;
    dc = out.dc;
}

// The first of the launch's shared memory: the warps' parts of the sums, (kUnits, depth) weights.
template <class T>
struct BackShared {
    T parts[kWarps][kMostRows][kUnits];
    Pack<T> weights;
};

// cell, product: which of the two are wanted; with both, all blocks meet between them.
template <class T>
__global__ void __launch_bounds__(kSequenceThreads, 2)
    sequence_back_kernel(SequenceBack<T> s, bool cell, bool product, bool wide, int depth,
                         unsigned* counter) {
    FUSEDNN_DYNAMIC_SHARED(BackShared<T>, shared);
    T* const weights = shared.weights.of;
    const int thread = int(threadIdx.x), lane = thread % 32, warp = thread / 32;
    const int gates = gates_of(s.cell), values = gates * int(s.hidden);
    const i64 unit0 = i64(blockIdx.x) * kUnits;
    for (int i = thread; product && i < kUnits * depth; i += kSequenceThreads) {
        const int k = i / kUnits, c = i % kUnits;
        const bool real = k < values && unit0 + c < s.hidden;
        weights[c * depth + k] = real ? s.w_hh[k * s.hidden + unit0 + c] : T(0);
    }
    const i64 row = thread / kUnits, unit = unit0 + thread % kUnits, state = row * s.hidden + unit;
    const bool mine = row < s.batch && unit < s.hidden;
    T dh = mine ? s.dh[state] : T(0), dc = mine && s.dc ? s.dc[state] : T(0);
    const T factor = mine && s.mask ? s.mask[s.view.sequence_of(row) * s.hidden + unit] : T(1);
    // This warp's part of the depth, in the order of the rows of W_hh: a GRU's d_gates begin with
    // what belongs to x alone.
    const int k0 = warp * (depth / kWarps), left = values - k0;
    const i64 d0 = k0 + (s.cell == Cell::gru ? s.hidden : 0);
    unsigned phase = 0;
    for (i64 n = s.end - 1; n >= s.begin; --n) {
        const i64 t = s.reverse ? s.all_steps - 1 - n : n, active = s.view.active(t);
        if (cell && mine && row < active) cell_back(s, t, row, unit, dh, dc);
        if (!product || (n == 0 && !s.to_state)) continue;
        if (cell) {
            grid_sync(counter, phase);
        } else {
            __syncthreads();
        }
        for (i64 first = 0; first < active; first += kTileRows) {
            const T* d = s.d_gates + (s.view.start(t) - s.d_first + first) * s.d_row + d0;
            const i64 last = active - 1 - first;
            const T sum = part_of_product(weights + k0, depth, d, s.d_row,
                                          int(last < kTileRows ? last : kTileRows), left, wide);
            if (lane < kTileRows * kUnits && lane / kUnits <= last) {
                shared.parts[warp][first + lane / kUnits][lane % kUnits] = sum;
            }
        }
        __syncthreads();
        if (mine && row < active) {
            T sum = shared.parts[0][row][thread % kUnits];
#pragma unroll
            for (int w = 1; w < kWarps; ++w) sum += shared.parts[w][row][thread % kUnits];
            dh += factor != T(0) ? sum * factor : T(0);
        }
    }
    if (mine) s.dh[state] = dh;
    if (mine && s.dc) s.dc[state] = dc;
}

template <class T>
i64 back_shared(Cell cell, i64 hidden) {
    return i64(offsetof(BackShared<T>, weights)) +
           kUnits * back_depth<T>(cell, hidden) * i64(sizeof(T));
}

}  // namespace

template <class T>
bool sequence_back_suits(const RecurrentParams<T>& p) {
    // With TF32 the tensor cores are faster than the traffic.
    const bool tensor = sizeof(T) == 4 && float32_precision() == Float32Precision::high;
    const i64 depth = gates_of(p.cell) * p.hidden, item = sizeof(T);
    return p.cell != Cell::norm_lstm && !p.w_hr && p.hidden > 0 && p.hidden <= kMostHidden &&
           p.batch > 0 && p.batch <= (tensor ? 16 : kMostRows) &&
           back_shared<T>(p.cell, p.hidden) <= kMostShared &&
           (p.hidden + kUnits - 1) / kUnits * p.batch * depth * item <= kMostTraffic;
}

template <class T>
void run_sequence_back(const SequenceBack<T>& s) {
    if (s.begin >= s.end) return;
    const i64 depth = back_depth<T>(s.cell, s.hidden), first = s.cell == Cell::gru ? s.hidden : 0;
    const LaunchShape shape{unsigned((s.hidden + kUnits - 1) / kUnits), kSequenceThreads,
                            std::size_t(back_shared<T>(s.cell, s.hidden))};
    constexpr i64 n = Pack<T>::kSize;
    const bool wide = detail::whole_packs(s.d_gates) && s.d_row % n == 0 && first % n == 0 &&
                      s.hidden * gates_of(s.cell) % n == 0;
    const auto kernel = sequence_back_kernel<T>;
    const char* name = "recurrent_sequence_back";
    if (i64(shape.grid.x) <= resident_blocks(kernel, shape)) {
        const Workspace<unsigned> counter(1);
        clear_values(counter.get(), 1);
        launch_cooperative(name, shape, kernel, s, true, true, wide, int(depth), counter.get());
        return;
    }
    SequenceBack<T> step = s;
    for (i64 at = s.end - 1; at >= s.begin; --at) {
        step.begin = at;
        step.end = at + 1;
        const auto run = [&](bool cell) {
            launch(name, shape, kernel, step, cell, !cell, wide, int(depth),
                   static_cast<unsigned*>(nullptr));
        };
        run(true);
        if (at > 0 || s.to_state) run(false);
    }
}

#define FUSEDNN_SEQUENCE_BACK(T)                                     \
    template bool sequence_back_suits<T>(const RecurrentParams<T>&); \
    template void run_sequence_back<T>(const SequenceBack<T>&);
FUSEDNN_INSTANTIATE(FUSEDNN_SEQUENCE_BACK)

}  // namespace fusednn::cuda
