// Rows of memory, each for a team of threads: some lanes of a warp, a warp, or a block, as the rows
// are long. Teams read their rows several times; the first time from memory, then from the caches.
#pragma once
#include "cuda/elementwise.h"
#include "cuda/reduce.h"

namespace fusednn::cuda {

constexpr int kRowThreads = 256;

// A thread's place: which row its team has, and which part of the row is its own. No thread leaves
// before the others: a team without a row has one of no elements.
template <int kTeam, int kWide>
struct RowTeam {
    static constexpr int kTeams = kRowThreads / kTeam;
    i64 row, size;
    bool live;
    int lane;

    FUSEDNN_DEVICE RowTeam(i64 first, i64 rows, i64 row_size)
        : row(first + threadIdx.x / kTeam),
          size(row_size),
          live(row < rows),
          lane(int(threadIdx.x) % kTeam) {
        if (!live) row = size = 0;
    }
    // body(k) for every kWide elements that are this thread's.
    template <class Body>
    FUSEDNN_DEVICE void each(const Body& body) const {
#pragma unroll 1
        for (i64 k = i64(lane) * kWide; k < size; k += kTeam * kWide) body(k);
    }
    template <class T, class Combine>
    FUSEDNN_DEVICE T all(T value, Combine combine) const {
        if constexpr (kTeam <= 32) {
            return warp_reduce<kTeam>(value, combine);
        } else {
            return block_reduce<kRowThreads>(value, combine);
        }
    }
};

// The rows of a kernel: for (i64 first = first_row<kTeam>(); first < rows; first += ...).
template <int kTeam>
FUSEDNN_DEVICE i64 first_row() {
    return i64(blockIdx.x) * (kRowThreads / kTeam);
}
template <int kTeam>
FUSEDNN_DEVICE i64 row_step() {
    return i64(gridDim.x) * (kRowThreads / kTeam);
}

// with(team, wide) as compile-time constants for rows of `size` elements; `packs`: all rows begin
// where 16 bytes do. A lane has about 8 vectors of the longest row of a team, a block what is left.
template <class T, class With>
void with_team(i64 size, bool packs, const With& with) {
    constexpr int wide = Pack<T>::kSize;
    using Single = std::integral_constant<int, 1>;
    using Vector = std::integral_constant<int, wide>;
    if (size <= 32) {
        with(std::integral_constant<int, 8>{}, Single{});
    } else if (size <= 32 * 8 * wide) {
        constexpr std::integral_constant<int, 32> team{};
        packs ? with(team, Vector{}) : with(team, Single{});
    } else {
        constexpr std::integral_constant<int, kRowThreads> team{};
        packs ? with(team, Vector{}) : with(team, Single{});
    }
}

// Do all rows of these arrays begin where 16 bytes do? Null pointers do.
template <class T, class... Pointers>
bool rows_of_packs(i64 size, Pointers... pointers) {
    return size % Pack<T>::kSize == 0 && (... && detail::whole_packs(pointers));
}

template <int kTeam>
LaunchShape row_shape(i64 rows) {
    return {blocks_for(rows, kRowThreads / kTeam), kRowThreads};
}

}  // namespace fusednn::cuda
