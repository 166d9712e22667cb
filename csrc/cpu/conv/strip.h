// The 3 x 3 taps of one source channel on one destination channel, step 1: most of all depthwise
// convolutions and of their input gradients.
//
// A strip of neighbouring columns is walked from top to bottom. A source row that was loaded is
// used for the three destination rows it reaches, whose sums stay in registers as all nine weights
// do: a row costs three loads and nine multiply-adds a vector, and nothing is begun anew on the way
// down, as it is for each block of rows in pixel_tile.h.
#pragma once
#include "cpu/opaque.h"
#include "cpu/simd.h"

namespace fusednn {
namespace FUSEDNN_ISA {

// Vectors across a strip: 9 weights, 3 sums to a vector and what was loaded are in registers.
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int kStripVecs = 4;
#else
constexpr int kStripVecs = 1;
#endif

// One strip, `rows` destination rows long.
template <class T>
struct Strip {
    const T* src;  // row of the first tap row and destination row 0, column of the first tap
    i64 row_pitch;
    i64 row_begin, row_end;  // the rows from there on that exist, of rows + 2
    i64 before, after;       // source columns that exist from src on: [before, after)
    const T* weights;        // [tap row][tap column]
    T start;                 // of every sum: the bias
    T* out;
    i64 out_row;
    i64 rows, cols;  // that exist
};

// kEdge: some tap of the first or last vector reads outside the source.
template <class T, int V, bool kEdge>
void strip_3x3(const Strip<T>& s) {
    constexpr int lanes = kLanes<T>;
    Vec<T> weight[9];
#pragma GCC unroll 9
    for (int k = 0; k < 9; ++k) weight[k] = opaque<Vec<T>>(broadcast(s.weights[k]));
    const Vec<T> start = broadcast(s.start);
    LaneSet first[3], last[3];
#pragma GCC unroll 3
    for (int l = 0; l < 3; ++l) {
        const i64 begin = min_of(max_of(s.before - l, i64(0)), i64(lanes));
        const i64 at = (V - 1) * lanes + l;
        const i64 end = min_of(max_of(s.after - at, i64(0)), i64(lanes));
        first[l] = lanes_between(begin, V == 1 ? end : lanes);
        last[l] = lanes_between(V == 1 ? begin : 0, end);
    }
    Vec<T> above[V], middle[V];
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) above[v] = middle[v] = start;
    const i64 rows = s.rows, row_pitch = s.row_pitch, tail = s.cols - (V - 1) * lanes;
    const T* src = s.src;
    T* out = s.out - 2 * s.out_row;
    for (i64 i = 0; i < rows + 2; ++i) {
        Vec<T> below[V];
        if (i >= s.row_begin && i < s.row_end) {
#pragma GCC unroll 4
            for (int v = 0; v < V; ++v) {
                Vec<T> below_v = start;
#pragma GCC unroll 3
                for (int l = 0; l < 3; ++l) {
                    const T* from = src + v * lanes + l;
                    const bool masked = kEdge && (v == 0 || v == V - 1);
                    const Vec<T> x = opaque<Vec<T>>(
                        masked ? load_lanes(from, v == 0 ? first[l] : last[l]) : load(from));
                    above[v] = multiply_add(weight[6 + l], x, above[v]);
                    middle[v] = multiply_add(weight[3 + l], x, middle[v]);
                    below_v = multiply_add(weight[l], x, below_v);
                }
                below[v] = below_v;
            }
        } else {
#pragma GCC unroll 4
            for (int v = 0; v < V; ++v) below[v] = start;
        }
        if (i >= 2) {
#pragma GCC unroll 4
            for (int v = 0; v < V - 1; ++v) store(out + v * lanes, above[v]);
            if (tail >= lanes) {
                store(out + (V - 1) * lanes, above[V - 1]);
            } else {
                store_partial(out + (V - 1) * lanes, above[V - 1], tail);
            }
        }
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) {
            above[v] = middle[v];
            middle[v] = below[v];
        }
        src += row_pitch;
        out += s.out_row;
    }
}

template <class T>
using StripFn = void (*)(const Strip<T>&);

template <class T>
struct StripTable {
    StripFn<T> entry[kStripVecs][2];
};

template <class T, int V>
constexpr void fill_strips(StripTable<T>& table) {
    table.entry[V - 1][0] = strip_3x3<T, V, false>;
    table.entry[V - 1][1] = strip_3x3<T, V, true>;
    if constexpr (V > 1) fill_strips<T, V - 1>(table);
}

template <class T>
constexpr StripTable<T> make_strip_table() {
    StripTable<T> table{};
    fill_strips<T, kStripVecs>(table);
    return table;
}

template <class T>
constexpr StripTable<T> strips = make_strip_table<T>();

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
