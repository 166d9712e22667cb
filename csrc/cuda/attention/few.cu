// Attention's forward for few queries, as in generation: keys and values are read once, as fast as
// memory gives them, and the keys of a head are cut into parts for many blocks. How they are cut
// depends on the shape alone; a second kernel joins the parts in order.
//
// A block has the rows (queries of heads) that share keys. For each tile of keys:
//   1. eight lanes to a key: products with all rows
//   2. a warp to a row: masks, maximum, exponentials, sum
//   3. a thread to some columns of the values and every so many keys: sums for all rows
#include "cuda/attention/few.h"

#include "cuda/attention/cache.h"
#include "cuda/kernels.h"

namespace fusednn::cuda {

namespace {

constexpr int kThreads = 128, kWarps = kThreads / 32;
constexpr int kRows = 8;  // of a block
constexpr int kTile = 64;
constexpr int kMostFeatures = 256;
// Blocks that fill a GPU, and the keys that a part has at least.
constexpr i64 kFullGrid = 512, kPartKeys = 256;

template <class T>
struct FewMath {
    using Sum = Accumulate<T>;
    using Scores = Sum[1][1];
};

// K: what keys and values are.
template <class T, class K>
struct FewTiles {
    using Sum = Accumulate<T>;
    alignas(16) Sum query[kRows][kMostFeatures];
    Sum scores[kRows][kTile];
    Sum maximum[kRows], decay[kRows], inverse[kRows];
    Sum sum[kRows][32];  // of exponentials, by lane
    Work work;
    // What the threads that share columns have summed up.
    alignas(16) Sum sums[kThreads][kRows][16 / sizeof(K)];
};

// Of a part of the keys and a row: the largest score, the sum of exponentials, and (in values) that
// of weighted values.
template <class T>
struct PartStats {
    T maximum, sum;
};

template <class T>
struct FewCall {
    AttentionParams<T> p;
    HeadArray<T> output;
    Accumulate<T>* stats;
    Format<T> format;
    Dropout dropout;
    bool masked;
    i64 parts, part_keys;
    PartStats<Accumulate<T>>* part_stats;  // (parts, batch, heads, queries); unused for one part
    Accumulate<T>* part_values;            // likewise, value_dim each
};

// The row's place and 1 / its sum.
template <class T>
FUSEDNN_DEVICE void store_stats(const FewCall<T>& call, i64 row, Accumulate<T> maximum,
                                Accumulate<T> inverse) {
    if (!call.stats) return;
    call.stats[row] = finite_maximum(maximum);
    call.stats[call.p.batch * call.p.heads * call.p.queries + row] = inverse;
}

template <class T, class K>
class BlockFew {
  public:
    using Sum = Accumulate<T>;
    static constexpr int kRun = 16 / int(sizeof(K));
    struct alignas(16) Run {
        Sum of[kRun];
    };

    FUSEDNN_DEVICE BlockFew(const FewCall<T>& call, FewTiles<T, K>& tiles)
        : call_(call), p_(call.p), tiles_(tiles), item_(tiles.work.item), s_(tiles.work.sequence) {}

    FUSEDNN_DEVICE void run() {
        load_queries();
        const int lane = int(threadIdx.x) % 32;
        for (int row = int(threadIdx.x) / 32; row < kRows; row += kWarps) {
            if (lane == 0) tiles_.maximum[row] = -Sum(INFINITY);
            tiles_.sum[row][lane] = Sum(0);
        }
        __syncwarp();
#pragma unroll
        for (int r = 0; r < kRows; ++r)
#pragma unroll
            for (int k = 0; k < kRun; ++k) out_[r][k] = Sum(0);
        const int part0 = item_.tile * int(call_.part_keys);
        const int part1 = smaller_of(part0 + int(call_.part_keys), s_.keys);
        const int begin = larger_of(part0, s_.range(0).begin / kTile * kTile);
        const int end = smaller_of(part1, s_.range(s_.queries - 1).end);
#pragma unroll 1
        for (int key0 = begin; key0 < end; key0 += kTile) {
            __syncthreads();
            multiply(key0);
            __syncthreads();
#pragma unroll 1
            for (int r = 0; r < kRows / kWarps; ++r) weigh(r, key0, lane);
            __syncthreads();
            add_values(key0, end);
        }
        finish(lane);
    }

  private:
    FUSEDNN_DEVICE int first() const { return item_.chunk * kRows; }
    FUSEDNN_DEVICE int rows() const {
        return smaller_of(heads_of_group(p_) * int(p_.queries) - first(), kRows);
    }
    FUSEDNN_DEVICE int query_of(int row) const { return (first() + row) % int(p_.queries); }
    FUSEDNN_DEVICE int head_of(int row) const {
        return item_.head * heads_of_group(p_) + (first() + row) / int(p_.queries);
    }
    FUSEDNN_DEVICE i64 place_of(int row) const {
        return (i64(item_.batch) * p_.heads + head_of(row)) * p_.queries + query_of(row);
    }

    FUSEDNN_DEVICE void load_queries() {
#pragma unroll 2
        for (int i = int(threadIdx.x); i < kRows * kMostFeatures; i += kThreads) {
            const int row = i / kMostFeatures, d = i % kMostFeatures;
            Sum x = Sum(0);
            if (row < rows() && d < p_.dim) {
                x = call_.format.widen(
                    rows_of(p_.query, item_.batch, head_of(row), 0)[query_of(row)][d]);
            }
            tiles_.query[row][d] = x;
        }
    }

    // `count` values from a place that holds 16 bytes of them, if `wide`.
    FUSEDNN_DEVICE Run load(const K* from, bool wide, int count) const {
        Run x;
        if (wide && count >= kRun) {
            const Pack<K> all = *reinterpret_cast<const Pack<K>*>(from);
#pragma unroll
            for (int k = 0; k < kRun; ++k) x.of[k] = widened(call_.format, all.of[k]);
        } else {
#pragma unroll
            for (int k = 0; k < kRun; ++k) {
                x.of[k] = k < count ? widened(call_.format, from[k]) : Sum(0);
            }
        }
        return x;
    }

    FUSEDNN_DEVICE void multiply(int key0) {
        const int lane = int(threadIdx.x) % 32, part = lane % 8;
        const Rows<const K> keys = stored_rows<T, K>(p_.key, p_.half_key, item_);
        const bool wide = keys.wide();
        const int dim = int(p_.dim);
#pragma unroll 1
        for (int j = int(threadIdx.x) / 8; j < kTile; j += kThreads / 8) {
            const int key = smaller_of(key0 + j, s_.keys - 1);
            const K* const from = keys[key];
            Sum sum[kRows];
#pragma unroll
            for (int r = 0; r < kRows; ++r) sum[r] = Sum(0);
#pragma unroll 2
            for (int d = part * kRun; d < dim; d += 8 * kRun) {
                const Run x = load(from + d, wide, dim - d);
#pragma unroll
                for (int r = 0; r < kRows; ++r) {
                    const Run y = *reinterpret_cast<const Run*>(&tiles_.query[r][d]);
#pragma unroll
                    for (int k = 0; k < kRun; ++k) sum[r] += x.of[k] * y.of[k];
                }
            }
            Sum mine = Sum(0);
#pragma unroll
            for (int r = 0; r < kRows; ++r) {
                sum[r] = warp_reduce<8>(sum[r], Add());
                if (r == part) mine = sum[r];
            }
            tiles_.scores[part][j] = mine;
        }
    }

    // Row number `r` of this warp's: scores become weights. What is kept of its rows goes round.
    FUSEDNN_DEVICE void weigh(int r, int key0, int lane) {
        const int row = int(threadIdx.x) / 32 + r * kWarps;
        const int place = smaller_of(row, rows() - 1);  // rows that do not exist see nothing
        const int head = head_of(place), query = query_of(place);
        const HeadScores<FewMath<T>, T> scores(p_, call_.format, s_, head);
        Sum x[kTile / 32];
        const Sum before = tiles_.maximum[row];
        Sum most = before;
#pragma unroll 1
        for (int i = 0; i < kTile / 32; ++i) {
            const int key = key0 + lane + 32 * i;
            Sum slope, score = -Sum(INFINITY);
            if (row < rows()) {
                score = scores.score(tiles_.scores[row][lane + 32 * i], query, key, false, &slope);
            }
            turn(x, score);
            most = score > most ? score : most;
        }
        most = warp_reduce<32>(most, Larger());
        const Sum top = finite_maximum(most);
        const Sum decay = scores.exponential(before, top);
        Sum sum = Sum(0);
#pragma unroll 1
        for (int i = 0; i < kTile / 32; ++i) {
            Sum weight = scores.exponential(x[0], top);
            turn(x, weight);
            sum += weight;
            if (call_.dropout.on) {
                const bool keep = call_.dropout.keeps(std::uint64_t(s_.number * p_.heads + head),
                                                      query, key0 + lane + 32 * i);
                weight *= keep ? Sum(call_.dropout.factor) : Sum(0);
            }
            tiles_.scores[row][lane + 32 * i] = weight;
        }
        tiles_.sum[row][lane] = tiles_.sum[row][lane] * decay + sum;
        __syncwarp();  // all have read the last maximum
        if (lane == 0) {
            tiles_.maximum[row] = most;
            tiles_.decay[row] = decay;
        }
    }

    // Packs of columns, and the threads that share one.
    FUSEDNN_DEVICE int packs() const { return (int(p_.value_dim) + kRun - 1) / kRun; }
    FUSEDNN_DEVICE int sharers() const { return packs() ? kThreads / packs() : 0; }

    FUSEDNN_DEVICE void add_values(int key0, int end) {
        if (packs() == 0) return;
        const int column = int(threadIdx.x) % packs() * kRun, share = int(threadIdx.x) / packs();
        if (share >= sharers()) return;
        const Rows<const K> values = stored_rows<T, K>(p_.value, p_.half_value, item_);
        const bool wide = values.wide();
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
            const Sum decay = tiles_.decay[r];
#pragma unroll
            for (int k = 0; k < kRun; ++k) out_[r][k] *= decay;
        }
        const int count = smaller_of(kTile, end - key0);
#pragma unroll 2
        for (int j = share; j < count; j += sharers()) {
            const Run x = load(values[key0 + j] + column, wide, int(p_.value_dim) - column);
#pragma unroll
            for (int r = 0; r < kRows; ++r) {
                const Sum weight = tiles_.scores[r][j];
                // NaN and infinities of a hidden key do not matter.
                if (call_.masked && weight == Sum(0)) continue;
#pragma unroll
                for (int k = 0; k < kRun; ++k) out_[r][k] += weight * x.of[k];
            }
        }
    }

    FUSEDNN_DEVICE void finish(int lane) {
#pragma unroll
        for (int r = 0; r < kRows; ++r)
#pragma unroll
            for (int k = 0; k < kRun; ++k) tiles_.sums[threadIdx.x][r][k] = out_[r][k];
        const i64 all = p_.batch * p_.heads * p_.queries;
#pragma unroll 1
        for (int r = 0; r < kRows / kWarps; ++r) {
            const int row = int(threadIdx.x) / 32 + r * kWarps;
            const Sum most = tiles_.maximum[row];
            const Sum sum = warp_reduce<32>(tiles_.sum[row][lane], Add());
            const Sum inverse = sum == Sum(0) ? Sum(0) : Sum(1) / sum;
            if (lane != 0 || row >= rows()) continue;
            tiles_.inverse[row] = inverse;
            if (call_.parts == 1) {
                store_stats(call_, place_of(row), most, inverse);
            } else {
                call_.part_stats[item_.tile * all + place_of(row)] = {most, sum};
            }
        }
        __syncthreads();
        const int width = int(p_.value_dim);
#pragma unroll 1
        for (int i = int(threadIdx.x); i < rows() * width; i += kThreads) {
            const int row = i / width, column = i % width;
            Sum sum = Sum(0);
#pragma unroll 1
            for (int share = 0; share < sharers(); ++share) {
                sum += tiles_.sums[share * packs() + column / kRun][row][column % kRun];
            }
            if (call_.parts == 1) {
                rows_of(call_.output, item_.batch, head_of(row), 0)[query_of(row)][column] =
                    call_.format.narrow(sum * tiles_.inverse[row]);
            } else {
                call_.part_values[(item_.tile * all + place_of(row)) * width + column] = sum;
            }
        }
    }

    const FewCall<T>& call_;
    const AttentionParams<T>& p_;
    FewTiles<T, K>& tiles_;
    const Item& item_;
    const Sequence& s_;
    Sum out_[kRows][kRun];
};

template <class T, class K>
__global__ void __launch_bounds__(kThreads, 3)
    few_kernel(const __grid_constant__ FewCall<T> call, const Items items, i64 count) {
    using Tiles = FewTiles<T, K>;
    FUSEDNN_DYNAMIC_SHARED(Tiles, tiles);
#pragma unroll 1
    for (i64 number = blockIdx.x; number < count; number = tiles.work.number + gridDim.x) {
        tiles.work.find(call.p, items, nullptr, 0, number);
        BlockFew<T, K>(call, tiles).run();
    }
}

// A thread to a column of a row.
template <class T>
__global__ void __launch_bounds__(kThreads)
    join_kernel(const __grid_constant__ FewCall<T> call, i64 columns, i64 count) {
    using Sum = Accumulate<T>;
    const AttentionParams<T>& p = call.p;
    const bool natural = p.bias || p.softcap > 0;
    const Sum to_base_2 = natural ? Sum(kLog2E) : Sum(1);
    const i64 rows = p.batch * p.heads * p.queries, step = i64(gridDim.x) * kThreads;
#pragma unroll 1
    for (i64 i = i64(blockIdx.x) * kThreads + threadIdx.x; i < count; i += step) {
        const i64 row = quotient(i, columns), column = i - row * columns;
        Sum most = -Sum(INFINITY);
        for (i64 part = 0; part < call.parts; ++part) {
            const Sum other = call.part_stats[part * rows + row].maximum;
            most = other > most ? other : most;
        }
        const Sum top = finite_maximum(most);
        Sum sum = Sum(0), value = Sum(0);
        constexpr int together = sizeof(Sum) == 8 ? 1 : 2;  // doubles' exponentials are long
#pragma unroll together
        for (i64 part = 0; part < call.parts; ++part) {
            const PartStats<Sum> stats = call.part_stats[part * rows + row];
            const Sum factor = power_of_2((stats.maximum - top) * to_base_2);
            sum += stats.sum * factor;
            if (stats.sum != Sum(0) && p.value_dim > 0) {
                value += call.part_values[(part * rows + row) * p.value_dim + column] * factor;
            }
        }
        const Sum inverse = sum == Sum(0) ? Sum(0) : Sum(1) / sum;
        if (column == 0) store_stats(call, row, most, inverse);
        if (p.value_dim == 0) continue;
        const i64 line = quotient(row, p.queries), batch = quotient(line, p.heads);
        rows_of(call.output, int(batch), int(line - batch * p.heads),
                0)[row - line * p.queries][column] = call.format.narrow(value * inverse);
    }
}

template <class K, class T>
void launch_few(const FewCall<T>& call, const Items& items) {
    launch("attention_few", {blocks_for(items.count(), 1), kThreads, sizeof(FewTiles<T, K>)},
           few_kernel<T, K>, call, items, items.count());
}

}  // namespace

template <class T>
bool few_queries(const AttentionParams<T>& p) {
    return p.queries <= kMostFewQueries && !p.query_starts && p.dim <= kMostFeatures &&
           p.value_dim <= kMostFeatures && p.keys > 0;
}

template <class T>
void few_forward(const AttentionParams<T>& p, const Format<T>& format, const HeadArray<T>& output,
                 Accumulate<T>* stats) {
    using Sum = Accumulate<T>;
    const i64 rows = p.batch * p.heads * p.queries;
    if (rows == 0) return;
    const i64 chunks = parts_of(p.heads / p.kv_heads * p.queries, kRows);
    const i64 blocks = p.batch * p.kv_heads * chunks;
    const i64 most = parts_of(p.keys, kPartKeys), wanted = parts_of(kFullGrid, blocks);
    const i64 cut = parts_of(p.keys, wanted < most ? wanted : most);
    const i64 part_keys = parts_of(cut, kTile) * kTile, parts = parts_of(p.keys, part_keys);
    const Workspace<PartStats<Sum>> part_stats(parts > 1 ? parts * rows : 0);
    const Workspace<Sum> part_values(parts > 1 ? parts * rows * p.value_dim : 0);
    const FewCall<T> call{p,
                          output,
                          stats,
                          format,
                          Dropout::of(p),
                          is_masked(p),
                          parts,
                          part_keys,
                          part_stats.get(),
                          part_values.get()};
    const Items items{parts, chunks, p.batch, p.kv_heads, false};
    if constexpr (std::is_same_v<T, float>) {
        has_half_cache(p) ? launch_few<BFloat16>(call, items) : launch_few<T>(call, items);
    } else {
        launch_few<T>(call, items);
    }
    if (parts == 1) return;
    const i64 columns = p.value_dim > 0 ? p.value_dim : 1;
    launch("attention_join", {blocks_for(rows * columns, kThreads), kThreads}, join_kernel<T>, call,
           columns, rows * columns);
}

#define FUSEDNN_FEW(T)                                                                             \
    template bool few_queries<T>(const AttentionParams<T>&);                                       \
    template void few_forward<T>(const AttentionParams<T>&, const Format<T>&, const HeadArray<T>&, \
                                 Accumulate<T>*);
FUSEDNN_INSTANTIATE(FUSEDNN_FEW)
FUSEDNN_FEW(HalfBits)

}  // namespace fusednn::cuda
