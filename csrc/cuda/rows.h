// Rows of memory, each for a team of threads: some lanes of a warp, a warp, or a block, as the rows
// are long. Teams read their rows several times; the first time from memory, then from the caches.
#pragma once
#include "cuda/elementwise.h"
#include "cuda/reduce.h"

namespace fusednn::cuda {

constexpr int kRowThreads = 256;

// A thread's place: which row its team has, and which part of the row is its own. No thread leaves
// before the others: a team without a row has one of no elements.
template <int kWide>
struct RowTeam {
    i64 row, size;
    bool live;
    int threads, lane;  // threads: a power of two, known when the kernel runs

    FUSEDNN_DEVICE RowTeam(int team, i64 first, i64 rows, i64 row_size)
        : row(first + threadIdx.x / unsigned(team)),
          size(row_size),
          live(row < rows),
          threads(team),
          lane(int(threadIdx.x) & (team - 1)) {
        if (!live) row = size = 0;
    }
    // body(k) for every kWide elements that are this thread's.
    template <class Body>
    FUSEDNN_DEVICE void each(const Body& body) const {
#pragma unroll 1
        for (i64 k = i64(lane) * kWide; k < size; k += threads * kWide) body(k);
    }
    template <class T, class Combine>
    FUSEDNN_DEVICE T all(T value, Combine combine) const {
        value = lanes_reduce(threads < 32 ? threads : 32, value, combine);
        return threads > 32 ? join_warps<kRowThreads>(value, combine) : value;
    }
};

// The rows of a kernel: for (i64 first = first_row(team); first < rows; first += ...).
FUSEDNN_DEVICE i64 first_row(int team) {
    return i64(blockIdx.x) * (kRowThreads / team);
}
FUSEDNN_DEVICE i64 row_step(int team) {
    return i64(gridDim.x) * (kRowThreads / team);
}

// with(team, wide) for rows of `size` elements, wide as a compile-time constant; `packs`: all rows
// begin where 16 bytes do. A lane has about 8 vectors of the longest row of a team, a block what is
// left.
template <class T, class With>
void with_team(i64 size, bool packs, const With& with) {
    constexpr int wide = Pack<T>::kSize;
    using Single = std::integral_constant<int, 1>;
    using Vector = std::integral_constant<int, wide>;
    const int team = size <= 32 ? 8 : size <= 32 * 8 * wide ? 32 : kRowThreads;
    packs&& team > 8 ? with(team, Vector{}) : with(team, Single{});
}

// body(place) for the classes of a thread's column, `inner` elements apart.
template <class T, class Body>
FUSEDNN_DEVICE void for_each_class(i64 classes, i64 base, i64 inner, const Body& body) {
    // Each of four loads waits for memory by itself if they are not together. Exponentials of
    // doubles take long enough, and much machine code.
    constexpr int together = sizeof(T) == 8 ? 1 : 4;
#pragma unroll together
    for (i64 k = 0; k < classes; ++k) body(base + k * inner);
}

// Do all rows of these arrays begin where 16 bytes do? Null pointers do.
template <class T, class... Pointers>
bool rows_of_packs(i64 size, Pointers... pointers) {
    return size % Pack<T>::kSize == 0 && (... && detail::whole_packs(pointers));
}

inline LaunchShape row_shape(int team, i64 rows) {
    return {blocks_for(rows, kRowThreads / team), kRowThreads};
}

}  // namespace fusednn::cuda
