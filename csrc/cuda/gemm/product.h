// The product that gemm and the convolutions share: out = finish(A B), tile by tile.
//
// A block owns a tile of sums and walks along the depth; while it multiplies one pair of tiles, the
// next two are being copied into shared memory. Where there are too few tiles for a GPU the depth
// is cut too: the parts go to a workspace, and a second kernel adds them in order. How it is cut
// depends on the shape alone, so results are the same bits in every run and on every GPU.
#pragma once
#include "core/precision.h"
#include "cuda/gemm/math.h"
#include "cuda/gemm/output.h"

namespace fusednn::cuda {

template <class A_, class B_, class Out_>
struct Work {
    using A = A_;
    using B = B_;
    using Out = Out_;
    i64 m, n, k;
    A a;
    B b;
    Out out;
};

// Batches of one shape; others (kVaries) bring fill(work, z, tile depth), which makes `work` that
// of batch z, with all pointers set and no batch strides. `work` then has the largest m and n.
template <class Work_>
struct SameShapes {
    using Work = Work_;
    static constexpr bool kVaries = false;
    Work work;
};

namespace {

struct ProductGrid {
    i64 batches, row_tiles, column_tiles;
    i64 splits, split_depth;  // parts of the depth
    i64 items() const { return batches * row_tiles * column_tiles * splits; }
};

// Where a tile's sums belong: in batch z of the output, or (not null) in a part of the workspace.
template <class Sum>
struct TilePlace {
    i64 z, row0, column0;
    int rows, columns;  // that exist
    Sum* part;
};

template <class Math, class Work>
struct ProductShared {
    using T = typename Math::Value;
    using A = typename Work::A;
    using B = typename Work::B;
    static constexpr bool kByRowA = Math::kTensor && A::kAlong;
    static constexpr bool kByRowB = Math::kTensor && B::kAlong;

    struct Pairs {
        Tile<T, Math::kRows, Math::kDepth, Math::kPad, kByRowA> a[Math::kStages];
        Tile<T, Math::kColumns, Math::kDepth, Math::kPad, kByRowB> b[Math::kStages];
    };
    union {
        Pairs pairs;
        // On their way out; the padding spreads the rows of a fragment over all banks.
        typename Math::Sum sums[Math::kRows][Math::kColumns + 8];
    };
    typename A::Row a_rows[A::kHasRows ? Math::kRows : 1];
    typename B::Row b_rows[B::kHasRows ? Math::kColumns : 1];
    i64 columns[Work::Out::Columns::kPlain ? 1 : Math::kColumns];  // offsets in the output
    TilePlace<typename Math::Sum> place;
};

// A tile's sums, which stand in shared memory, go to the output or to a part of the workspace. From
// the threads' registers they would go in smaller pieces, by as many copies of this code as a
// thread has pieces.
template <class Math, class Work>
FUSEDNN_DEVICE void store_sums(const ProductShared<Math, Work>& s, const Work& work) {
    using T = typename Work::Out::Value;
    using Sum = typename Math::Sum;
    constexpr int kRun = Pack<Sum>::kSize, kRuns = Math::kColumns / kRun;
    const TilePlace<Sum> tile = s.place;
    T* out = work.out.data + tile.z * work.out.batch;
    const bool wide = tile.part ? work.n % kRun == 0 : work.out.wide;
#pragma unroll 1
    for (int at = int(threadIdx.x); at < Math::kRows * kRuns; at += Math::kThreads) {
        const int row = at / kRuns, column = at % kRuns * kRun;
        if (row >= tile.rows || column >= tile.columns) continue;
        const i64 i = tile.row0 + row, j = tile.column0 + column;
        const Sum* sums = &s.sums[row][column];
        const int count = tile.columns - column < kRun ? tile.columns - column : kRun;
        Sum* to_part = tile.part + i * work.n + j;
        T* line = out + i * work.out.row;
        const auto place = [&](int c) {
            if constexpr (Work::Out::Columns::kPlain) return tile.column0 + c;
            return s.columns[c];
        };
        if (wide && count == kRun) {
            const Run<Sum, kRun> run = *reinterpret_cast<const Run<Sum, kRun>*>(sums);
            if (tile.part) {
                *reinterpret_cast<Run<Sum, kRun>*>(to_part) = run;
                continue;
            }
            Run<T, kRun>* to = reinterpret_cast<Run<T, kRun>*>(line + place(column));
            Run<T, kRun> result{};
            if (work.out.accumulate) result = *to;
#pragma unroll
            for (int e = 0; e < kRun; ++e) {
                result.of[e] = work.out.finish(run.of[e], result.of[e], tile.z, i, j + e);
            }
            *to = result;
        } else {
#pragma unroll 1
            for (int e = 0; e < count; ++e) {
                if (tile.part) {
                    to_part[e] = sums[e];
                    continue;
                }
                T& to = line[place(column + e)];
                to = work.out.finish(sums[e], work.out.accumulate ? to : T{}, tile.z, i, j + e);
            }
        }
    }
}

// One tile of one batch, the depth [first, last).
template <class Math, class Work>
FUSEDNN_DEVICE void product_tile(ProductShared<Math, Work>& s, const Work& work, i64 z, i64 row0,
                                 i64 column0, i64 first, i64 last, typename Math::Sum* part) {
    using T = typename Math::Value;
    using A = typename Work::A;
    using B = typename Work::B;
    constexpr int kThreads = Math::kThreads, kDepth = Math::kDepth, kStages = Math::kStages;
    const int thread = int(threadIdx.x);
    const int rows = int(work.m - row0 < Math::kRows ? work.m - row0 : Math::kRows);
    const int columns = int(work.n - column0 < Math::kColumns ? work.n - column0 : Math::kColumns);
    if constexpr (A::kHasRows) {
        for (int r = thread; r < rows; r += kThreads) s.a_rows[r] = work.a.row_of(row0 + r);
    }
    if constexpr (B::kHasRows) {
        for (int r = thread; r < columns; r += kThreads) s.b_rows[r] = work.b.row_of(column0 + r);
    }
    if constexpr (!Work::Out::Columns::kPlain) {
        for (int j = thread; j < columns; j += kThreads) {
            s.columns[j] = work.out.columns.offset(column0 + j);
        }
    }
    // Kept where it takes no registers while the product is made.
    if (thread == 0) s.place = {z, row0, column0, rows, columns, part};
    __syncthreads();

    const T *a = work.a.data + work.a.batch_offset(z), *b = work.b.data + work.b.batch_offset(z);
    const Lane<Tile<T, Math::kRows, kDepth, 0, false>, kThreads, A::kAlong> lane_a;
    const Lane<Tile<T, Math::kColumns, kDepth, 0, false>, kThreads, B::kAlong> lane_b;
    typename A::State at_a{};
    typename B::State at_b{};
    if (first < last) {
        at_a = work.a.begin(first + lane_a.depth);
        at_b = work.b.begin(first + lane_b.depth);
    }
    Math math;
    math.clear();
    int stage = 0, filled = 0;  // the stage to fill next; how many are on their way
#pragma unroll 1
    for (i64 at = first; at < last + (kStages - 1) * kDepth; at += kDepth) {
        const bool ready = filled == kStages - 1;
        if (ready) {
            copy_async_wait<kStages - 2>();
            __syncthreads();  // the oldest pair has come, and the one before it is used up
        } else {
            ++filled;
        }
        if (at < last) {
            work.a.template copy<kThreads>(s.pairs.a[stage], a, s.a_rows, at_a,
                                           {row0, rows, at, last});
            work.b.template copy<kThreads>(s.pairs.b[stage], b, s.b_rows, at_b,
                                           {column0, columns, at, last});
        }
        copy_async_commit();
        stage = stage == kStages - 1 ? 0 : stage + 1;
        if (ready) math.add(s.pairs.a[stage], s.pairs.b[stage], work.out.format);
    }
    copy_async_wait<0>();
    __syncthreads();  // the last pair is used up: its place is the sums'
    math.store(s.sums);
    __syncthreads();
    store_sums(s, work);
    __syncthreads();
}

// `parts`: (batches, splits, m, n), or null without splits.
template <class Math, class Problem>
__global__ void __launch_bounds__(Math::kThreads, Math::kBlocks)
    product_kernel(Problem problem, ProductGrid grid, i64 items, typename Math::Sum* parts) {
    using Work = typename Problem::Work;
    using Shared = ProductShared<Math, Work>;
    FUSEDNN_DYNAMIC_SHARED(Shared, s);
    for (i64 item = blockIdx.x; item < items; item += gridDim.x) {
        const i64 row_tile = item % grid.row_tiles, rest = item / grid.row_tiles;
        const i64 row0 = row_tile * Math::kRows;
        const i64 column0 = rest % grid.column_tiles * Math::kColumns;
        const i64 batch_split = rest / grid.column_tiles;
        const i64 z = batch_split / grid.splits, split = batch_split % grid.splits;
        if constexpr (Problem::kVaries) {
            const Work work = problem.batch(z, Math::kDepth);
            if (row0 < work.m && column0 < work.n) {
                product_tile<Math>(s, work, 0, row0, column0, 0, work.k, parts);
            }
        } else {
            const Work& work = problem.work;
            const i64 first = split * grid.split_depth;
            const i64 last = first + grid.split_depth < work.k ? first + grid.split_depth : work.k;
            typename Math::Sum* part = parts ? parts + batch_split * work.m * work.n : nullptr;
            product_tile<Math>(s, work, z, row0, column0, first, last, part);
        }
    }
}

// Adds the parts of the depth of sums m x n, in order.
template <class Out, class Sum>
__global__ void __launch_bounds__(kElementThreads)
    add_parts(Out out, i64 m, i64 n, i64 size, i64 splits, const Sum* __restrict__ parts) {
    const i64 matrix = m * n, step = i64(gridDim.x) * blockDim.x;
#pragma unroll 1
    for (i64 at = i64(blockIdx.x) * blockDim.x + threadIdx.x; at < size; at += step) {
        const i64 z = at / matrix, place = at - z * matrix, i = place / n, j = place - i * n;
        const Sum* part = parts + z * splits * matrix + place;
        Sum sum = Sum(0);
#pragma unroll 4
        for (i64 split = 0; split < splits; ++split) sum += part[split * matrix];
        typename Out::Value* to = out.data + z * out.batch + i * out.row + out.columns.offset(j);
        *to = out.finish(sum, out.accumulate ? *to : typename Out::Value{}, z, i, j);
    }
}

// ---- the host's side
// -----------------------------------------------------------------------------

// Blocks that fill the GPUs this is written for (108 to 132 multiprocessors), and with how many
// less a depth is cut. A constant: results must not depend on the GPU.
constexpr i64 kFullGrid = 256, kFewBlocks = 128;
// What a part of the depth has at least, and how many parts there are at most.
constexpr i64 kPartDepth = 256, kMostParts = 128;

inline i64 tiles_of(i64 size, i64 tile) {
    return (size + tile - 1) / tile;
}

// whole_m: the rows by which the cut of the depth is chosen.
template <class Math, class Problem>
void launch_product(const char* name, Problem problem, i64 batches, i64 whole_m) {
    using Sum = typename Math::Sum;
    using Work = typename Problem::Work;
    Work& work = problem.work;
    if (work.m == 0 || work.n == 0 || batches == 0) return;
    work.a.prepare(Math::kDepth);
    work.b.prepare(Math::kDepth);
    ProductGrid grid{batches, tiles_of(work.m, Math::kRows), tiles_of(work.n, Math::kColumns), 1,
                     work.k};
    const i64 planned = batches * tiles_of(whole_m, Math::kRows) * grid.column_tiles;
    if (!Problem::kVaries && planned < kFewBlocks) {
        const i64 wanted = tiles_of(kFullGrid, planned), most = work.k / kPartDepth;
        i64 splits = wanted < most ? wanted : most;
        splits = splits < kMostParts ? splits : kMostParts;
        if (splits > 1) {
            grid.split_depth = tiles_of(tiles_of(work.k, splits), Math::kDepth) * Math::kDepth;
            grid.splits = tiles_of(work.k, grid.split_depth);
        }
    }
    const i64 size = batches * work.m * work.n;
    Workspace<Sum> parts(grid.splits > 1 ? size * grid.splits : 0);
    launch(name, {blocks_for(grid.items(), 1), Math::kThreads, sizeof(ProductShared<Math, Work>)},
           product_kernel<Math, Problem>, problem, grid, grid.items(), parts.get());
    if (grid.splits > 1) {
        launch("add_parts", {blocks_for(size, kElementThreads), kElementThreads},
               add_parts<typename Work::Out, Sum>, work.out, work.m, work.n, size, grid.splits,
               static_cast<const Sum*>(parts.get()));
    }
}

using ExactLarge = Exact<float, 128, 64, 8, 8, 3>;
using ExactSmall = Exact<float, 64, 64, 8, 4, 4>;
using ExactFlat = Exact<float, 32, 128, 4, 4, 2>;
using ExactDouble = Exact<double, 64, 64, 4, 4, 2>;
// For positions of 64 bits, which take registers.
using ExactGeneral = Exact<float, 64, 64, 8, 4, 2>;
using ExactDoubleGeneral = Exact<double, 64, 64, 4, 4, 1>;
using TensorLarge = Tensor<128, 64, 64, 32, 3>;
using TensorSmall = Tensor<64, 64, 32, 32, 4>;
using HalfLarge = HalfTensor<128, 128, 64, 64, 2>;
using HalfSmall = HalfTensor<64, 64, 32, 32, 4>;

// Large tiles read least; with few of them most of a GPU would have nothing to do.
constexpr i64 kLargeTiles = 64;

inline bool large_tiles(i64 m, i64 n, i64 batches, i64 columns = 64) {
    return m > 64 && n > 64 && tiles_of(m, 128) * tiles_of(n, columns) * batches >= kLargeTiles;
}

// out = finish(A B) for `batches` batches. kGeneral: an index type for whatever size, slower.
// Batches that vary need their registers for themselves: small tiles.
template <bool kGeneral, class Problem>
void product(const char* name, const Problem& problem, i64 batches, i64 whole_m) {
    using T = typename Problem::Work::A::Value;
    const i64 m = whole_m, n = problem.work.n;
    if constexpr (sizeof(T) == 8) {
        using Math = std::conditional_t<kGeneral, ExactDoubleGeneral, ExactDouble>;
        launch_product<Math>(name, problem, batches, whole_m);
    } else if constexpr (sizeof(T) == 2) {
        static_assert(!kGeneral, "16-bit floats have no kernels with 64-bit positions");
        if constexpr (!Problem::kVaries) {
            if (large_tiles(m, n, batches, HalfLarge::kColumns)) {
                return launch_product<HalfLarge>(name, problem, batches, whole_m);
            }
        }
        launch_product<HalfSmall>(name, problem, batches, whole_m);
    } else if constexpr (kGeneral) {
        launch_product<ExactGeneral>(name, problem, batches, whole_m);
    } else if (float32_precision() == Float32Precision::high) {
        if constexpr (!Problem::kVaries) {
            if (large_tiles(m, n, batches)) {
                return launch_product<TensorLarge>(name, problem, batches, whole_m);
            }
        }
        launch_product<TensorSmall>(name, problem, batches, whole_m);
    } else {
        if (m <= 32) return launch_product<ExactFlat>(name, problem, batches, whole_m);
        if constexpr (!Problem::kVaries) {
            if (large_tiles(m, n, batches)) {
                return launch_product<ExactLarge>(name, problem, batches, whole_m);
            }
        }
        launch_product<ExactSmall>(name, problem, batches, whole_m);
    }
}

template <bool kGeneral, class Problem>
void product(const char* name, const Problem& problem, i64 batches) {
    product<kGeneral>(name, problem, batches, problem.work.m);
}

}  // namespace

}  // namespace fusednn::cuda
