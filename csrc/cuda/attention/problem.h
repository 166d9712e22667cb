// What attention's kernels share: which keys a query sees, where sequences begin, and how rows of
// heads come into shared memory. Twin of cpu/attention/problem.h.
#pragma once
#include "core/kernels.h"
#include "cuda/elementwise.h"
#include "cuda/reduce.h"

namespace fusednn::cuda {

constexpr double kLog2E = 1.44269504088896340736;

FUSEDNN_HOST_DEVICE i64 parts_of(i64 size, i64 part) {
    return (size + part - 1) / part;
}

// Positions are counted in 32 bits: the host refuses axes of 2^30 and more.
constexpr i64 kMostRows = i64(1) << 30;

FUSEDNN_HOST_DEVICE int smaller_of(int a, int b) {
    return a < b ? a : b;
}
FUSEDNN_HOST_DEVICE int larger_of(int a, int b) {
    return a > b ? a : b;
}

// Parts of a result's columns; one at least, which has the rows' statistics.
FUSEDNN_HOST_DEVICE i64 chunks_of(i64 columns, i64 part) {
    return columns > part ? parts_of(columns, part) : 1;
}

// Heads of queries that share one of keys.
template <class T>
FUSEDNN_DEVICE int heads_of_group(const AttentionParams<T>& p) {
    return int(p.heads) / int(p.kv_heads);
}

struct KeyRange {
    int begin, end;
};

// One sequence: its place in the axes of queries and keys, and who sees whom in it. Queries and
// keys are counted from its beginning.
struct Sequence {
    int batch;
    i64 number;  // among all sequences of all batches
    int query0, queries;
    int key0, keys;
    int reach_left, reach_right;  // of query i: from key i - reach_left to i + reach_right

    // The keys query i may see, masks apart. Both ends never fall as i grows.
    FUSEDNN_DEVICE KeyRange range(int i) const {
        return {smaller_of(larger_of(i - reach_left, 0), keys),
                larger_of(smaller_of(i + reach_right + 1, keys), 0)};
    }
    // The queries that may see key j, likewise.
    FUSEDNN_DEVICE KeyRange queries_of(int j) const {
        return {smaller_of(larger_of(j - reach_right, 0), queries),
                larger_of(smaller_of(j + reach_left + 1, queries), 0)};
    }
};

template <class T>
FUSEDNN_DEVICE Sequence get_sequence(const AttentionParams<T>& p, int batch, int part) {
    Sequence s;
    s.batch = batch;
    s.number = i64(batch) * p.sequences + part;
    s.query0 = p.query_starts ? int(p.query_starts[part]) : 0;
    s.queries = int(p.query_starts    ? p.query_starts[part + 1] - s.query0
                    : p.query_lengths ? p.query_lengths[batch]
                                      : p.queries);
    s.key0 = p.key_starts ? int(p.key_starts[part]) : 0;
    s.keys = int(p.key_starts    ? p.key_starts[part + 1] - s.key0
                 : p.key_lengths ? p.key_lengths[batch]
                                 : p.keys);
    const int offset = p.lower_right ? s.keys - s.queries : 0;
    const int most = int(kMostRows) - 1;  // beyond all there is, and sums stay below 2^31
    s.reach_left = int(p.left < most ? p.left : most) - offset;
    s.reach_right = int(p.right < most ? p.right : most) + offset;
    return s;
}

// ---- who does what
// -------------------------------------------------------------------------------

// Tiles of `size` rows, sequence by sequence: sequence n's begin at number first_tile(starts, n,
// size), and it has room for all it needs, whatever its length.
FUSEDNN_DEVICE int first_tile(const i64* starts, int n, int size) {
    return int(starts[n]) / size + n;
}
inline i64 tiles_of_rows(i64 rows, const i64* starts, i64 sequences, i64 size) {
    return starts ? rows / size + sequences : parts_of(rows, size);
}

// The sequence that owns tile `tile`, and the tile's first row in it. The last tiles of a sequence
// may have no row.
FUSEDNN_DEVICE int sequence_of_tile(const i64* starts, int sequences, int size, int tile,
                                    int* row0) {
    if (!starts) {
        *row0 = tile * size;
        return 0;
    }
    int low = 0, high = sequences;  // first_tile(low) <= tile
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        if (first_tile(starts, middle, size) <= tile) {
            low = middle;
        } else {
            high = middle;
        }
    }
    *row0 = (tile - first_tile(starts, low, size)) * size;
    return low;
}

// A block's work: a tile of rows of one head, and the columns of the result that it computes.
struct Item {
    int tile, chunk, batch, head;
};
// Tiles with much work come first: under a causal mask the last queries, the first keys.
struct Items {
    i64 tiles, chunks, batch, heads;
    bool last_first;

    FUSEDNN_HOST_DEVICE i64 count() const { return tiles * chunks * batch * heads; }
    FUSEDNN_DEVICE Item operator[](i64 number) const {
        Item item;
        item.head = digit(number, heads);
        item.batch = digit(number, batch);
        item.chunk = digit(number, chunks);
        item.tile = int(number);
        if (last_first) item.tile = int(tiles) - 1 - item.tile;
        return item;
    }

  private:
    FUSEDNN_DEVICE static int digit(i64& number, i64 base) {
        const i64 above = quotient(number, base);
        const int below = int(number - above * base);
        number = above;
        return below;
    }
};

// What a block works on, in shared memory. Read there wherever it is needed: as values of each
// thread it would hold some 20 registers all the time.
struct Work {
    Sequence sequence;
    Item item;
    int row0;  // the tile's first in its sequence
    i64 number;

    // Becomes number `next` of `items`, whose tiles have `size` rows; for all threads of a block.
    template <class T>
    FUSEDNN_DEVICE void find(const AttentionParams<T>& p, const Items& items, const i64* starts,
                             int size, i64 next) {
        __syncthreads();  // others still read the last one
        if (threadIdx.x == 0) {
            number = next;
            item = items[next];
            const int part = sequence_of_tile(starts, int(p.sequences), size, item.tile, &row0);
            sequence = get_sequence(p, item.batch, part);
        }
        __syncthreads();
    }
};

// Whether some query does not see all keys: then NaN and infinities need care, see careful_add.
template <class T>
bool is_masked(const AttentionParams<T>& p) {
    return p.mask || p.bias || p.key_lengths || p.left < p.queries + p.keys ||
           p.right < p.queries + p.keys;
}

// ---- rows in memory
// ------------------------------------------------------------------------------

// Rows of one head.
template <class T>
struct Rows {
    T* data;
    i64 stride;

    FUSEDNN_DEVICE T* operator[](i64 row) const { return data + row * stride; }
    // Does every row begin where 16 bytes do?
    FUSEDNN_DEVICE bool wide() const {
        return (reinterpret_cast<std::uintptr_t>(data) | std::uintptr_t(stride) * sizeof(T)) % 16 ==
               0;
    }
};

template <class T>
FUSEDNN_DEVICE Rows<T> rows_of(const HeadArray<T>& array, int batch, int head, int row0) {
    return {array.data + batch * array.batch + head * array.head + row0 * array.row, array.row};
}

// Features of a tile that are read: whole steps of the products.
FUSEDNN_DEVICE int whole_steps(int columns, int most) {
    return smaller_of((columns + 15) / 16 * 16, most);
}

// Starts to copy rows [row0, row0 + tile_rows) of those there are, [0, rows), and their columns
// from column0 on, as many as the tile is wide; what does not exist becomes 0.
template <int kThreads, int kWidth, class T, int kStride>
FUSEDNN_DEVICE void copy_rows(T (*tile)[kStride], int tile_rows, const Rows<const T>& from,
                              int row0, int rows, int column0, int columns) {
    constexpr int kRun = 16 / int(sizeof(T)), kRuns = kWidth / kRun;
    const int left = columns - column0, width = whole_steps(left, kWidth);
    if (from.wide()) {
#pragma unroll 1
        for (int i = int(threadIdx.x); i < tile_rows * kRuns; i += kThreads) {
            const int r = i / kRuns, c = i % kRuns * kRun, row = row0 + r;
            if (c >= width) continue;
            const bool real = row >= 0 && row < rows && c < left;
            const int bytes = real ? smaller_of(left - c, kRun) * int(sizeof(T)) : 0;
            copy_async<16>(&tile[r][c], real ? from[row] + column0 + c : from.data, bytes);
        }
    } else {
#pragma unroll 1
        for (int i = int(threadIdx.x); i < tile_rows * kWidth; i += kThreads) {
            const int r = i / kWidth, c = i % kWidth, row = row0 + r;
            if (c >= width) continue;
            const bool real = row >= 0 && row < rows && c < left;
            if constexpr (sizeof(T) == 2) {  // less than an asynchronous copy moves
                tile[r][c] = real ? from[row][column0 + c] : T{};
            } else {
                copy_async<int(sizeof(T))>(&tile[r][c], real ? from[row] + column0 + c : from.data,
                                           real ? int(sizeof(T)) : 0);
            }
        }
    }
}

}  // namespace fusednn::cuda
