// Attention's forward, in one pass over the keys (Milakov and Gimelshein, "Online normalizer
// calculation for softmax", 2018; Dao, "FlashAttention-2", ICLR 2024).
//
// A block owns a tile of queries of one head, and walks over the tiles of keys that some of them
// see:
//   1. scores S = Q K^T in registers, while V is on its way
//   2. masks; the rows' maxima so far; exponentials P; the sums so far
//   3. O = O * decay + P V, while the next K is on its way
// at the end O / sum goes to the output.
#include "cuda/attention/few.h"
#include "cuda/attention/tiles.h"
#include "cuda/kernels.h"

namespace fusednn::cuda {

namespace {

template <class Math>
struct ForwardTiles {
    alignas(16) typename Math::Value query[Math::kRows][Math::kStride];
    alignas(16) typename Math::Value key[Math::kColumns][Math::kStride];
    alignas(16) typename Math::Value value[Math::kColumns][Math::kStride];
    typename Math::Exchange exchange;
    Work work;
};

template <class T>
struct ForwardCall {
    AttentionParams<T> p;
    HeadArray<T> output;
    Accumulate<T>* stats;
    Format<T> format;
    Dropout dropout;
    bool masked;
};

// A block's rows.
template <class Math, class T>
class BlockForward {
  public:
    using Sum = typename Math::Sum;
    using Tiles = ForwardTiles<Math>;
    static constexpr int kLaneRows = Math::kRowsOfLane, kLaneColumns = Math::kColumnsOfLane;

    FUSEDNN_DEVICE BlockForward(const ForwardCall<T>& call, Tiles& tiles)
        : call_(call),
          p_(call.p),
          tiles_(tiles),
          s_(tiles.work.sequence),
          item_(tiles.work.item),
          row0_(tiles.work.row0) {
        const int kv_head = item_.head / heads_of_group(p_);
        queries_ = rows_of(p_.query, s_.batch, item_.head, s_.query0);
        keys_ = rows_of(p_.key, s_.batch, kv_head, s_.key0);
        values_ = rows_of(p_.value, s_.batch, kv_head, s_.key0);
        row1_ = smaller_of(row0_ + Math::kRows, s_.queries);
        busy_ = row0_ + Math::first_row() < row1_;
    }

    FUSEDNN_DEVICE void run() {
#pragma unroll 1
        for (int careful = 0; careful < 2; ++careful) {
            pass(careful > 0);
            // Only what is no number takes care, and is worth it where keys are hidden.
            if (!call_.masked || !__syncthreads_or(!all_finite<Math>(out_))) break;
        }
        finish();
    }

  private:
    FUSEDNN_DEVICE void copy_query(int depth) {
        copy_rows<Math::kThreads, Math::kDim>(tiles_.query, Math::kRows, queries_, row0_,
                                              s_.queries, depth, int(p_.dim));
    }
    FUSEDNN_DEVICE void copy_key(int key0, int depth) {
        copy_rows<Math::kThreads, Math::kDim>(tiles_.key, Math::kColumns, keys_, key0, s_.keys,
                                              depth, int(p_.dim));
    }

    FUSEDNN_DEVICE void pass(bool careful) {
        clear(out_);
#pragma unroll
        for (int i = 0; i < kLaneRows; ++i) {
            maximum_[i] = -Sum(INFINITY);
            sum_[i] = 0;
        }
        const int begin = s_.range(row0_).begin, end = s_.range(row1_ - 1).end;
        const int inner_begin = s_.range(row1_ - 1).begin, inner_end = s_.range(row0_).end;
        const int depths = int(chunks_of(p_.dim, Math::kDim));
        const HeadScores<Math, T> scores(p_, call_.format, s_, item_.head);
        const int first = begin / Math::kColumns * Math::kColumns;
        if (first < end) {
            copy_query(0);
            copy_key(first, 0);
        }
        copy_async_commit();
#pragma unroll 1
        for (int key0 = first; key0 < end; key0 += Math::kColumns) {
            copy_rows<Math::kThreads, Math::kDim>(tiles_.value, Math::kColumns, values_, key0,
                                                  s_.keys, column0(), int(p_.value_dim));
            copy_async_commit();
            typename Math::Scores x;
            clear(x);
            multiply(x, key0, depths);
            __syncthreads();
            if (key0 + Math::kColumns < end) {
                if (depths > 1) copy_query(0);
                copy_key(key0 + Math::kColumns, 0);
            }
            copy_async_commit();
            const bool inner = key0 >= inner_begin && key0 + Math::kColumns <= inner_end;
            if (busy_) weights(scores, x, key0, inner);
            copy_async_wait<1>();
            __syncthreads();
            if (busy_) {
                add_rows<Math>(call_.format, careful, out_, x, tiles_.exchange, tiles_.value,
                               whole_steps(int(p_.value_dim) - column0(), Math::kDim));
            }
            __syncthreads();
        }
    }

    // More features than a tile holds come one part after the other.
    FUSEDNN_DEVICE void multiply(typename Math::Scores& x, int key0, int depths) {
        copy_async_wait<1>();
        __syncthreads();
#pragma unroll 1
        for (int part = 0; part < depths; ++part) {
            const int depth = part * Math::kDim;
            if (part > 0) {
                __syncthreads();
                copy_query(depth);
                copy_key(key0, depth);
                copy_async_commit();
                copy_async_wait<0>();
                __syncthreads();
            }
            if (busy_) {
                Math::multiply(call_.format, x, tiles_.query, tiles_.key,
                               whole_steps(int(p_.dim) - depth, Math::kDim));
            }
        }
    }

    FUSEDNN_DEVICE void weights(const HeadScores<Math, T>& scores, typename Math::Scores& x,
                                int key0, bool inner) {
        const Place<Math, false> place{tiles_.work.row0, key0};
        scores.adjust(x, place, inner);
#pragma unroll
        for (int i = 0; i < kLaneRows; ++i) {
            Sum most = maximum_[i];
#pragma unroll
            for (int n = 0; n < kLaneColumns; ++n) most = x[i][n] > most ? x[i][n] : most;
            most = row_reduce(most, Larger());
            const Sum top = finite_maximum(most);
            const Sum decay = scores.exponential(maximum_[i], top);
            maximum_[i] = most;
            Sum sum = 0;
#pragma unroll
            for (int n = 0; n < kLaneColumns; ++n) {
                x[i][n] = scores.exponential(x[i][n], top);
                sum += x[i][n];
            }
            sum_[i] = sum_[i] * decay + sum;
#pragma unroll
            for (int m = 0; m < Math::kOutOfLane; ++m) out_[i][m] *= decay;
        }
        if (!call_.dropout.on) return;
        unsigned kept[kLaneRows];
        draw<Math>(call_.dropout, std::uint64_t(s_.number * p_.heads + item_.head), place, kept);
#pragma unroll
        for (int i = 0; i < kLaneRows; ++i)
#pragma unroll
            for (int n = 0; n < kLaneColumns; ++n) {
                x[i][n] *= kept[i] >> n & 1 ? Sum(call_.dropout.factor) : Sum(0);
            }
    }

    FUSEDNN_DEVICE void finish() {
        Sum inverse[kLaneRows];
        const i64 rows = p_.batch * p_.heads * p_.queries;
        const i64 first = (s_.batch * p_.heads + item_.head) * p_.queries + s_.query0;
#pragma unroll
        for (int i = 0; i < kLaneRows; ++i) {
            const Sum sum = row_reduce(sum_[i], Add());
            inverse[i] = sum == Sum(0) ? Sum(0) : Sum(1) / sum;
            const int row = row0_ + Math::row(i);
            if (!call_.stats || item_.chunk > 0 || threadIdx.x % 4 != 0 || row >= row1_) continue;
            call_.stats[first + row] = finite_maximum(maximum_[i]);
            call_.stats[rows + first + row] = inverse[i];
        }
        store_rows<Math>(call_.format, out_, rows_of(call_.output, s_.batch, item_.head, s_.query0),
                         row0_, row1_, column0(), int(p_.value_dim), inverse);
    }

    FUSEDNN_DEVICE int column0() const { return item_.chunk * Math::kDim; }

    const ForwardCall<T>& call_;
    const AttentionParams<T>& p_;
    Tiles& tiles_;
    const Sequence& s_;
    const Item& item_;
    const int row0_;
    int row1_;
    Rows<const T> queries_, keys_, values_;
    bool busy_;  // has this warp rows?
    typename Math::Out out_;
    Sum maximum_[kLaneRows], sum_[kLaneRows];  // sums by lane
};

template <class Math, class T>
__global__ void __launch_bounds__(Math::kThreads, Math::kBlocks)
    forward_kernel(const __grid_constant__ ForwardCall<T> call, const Items items, i64 count) {
    FUSEDNN_DYNAMIC_SHARED(ForwardTiles<Math>, tiles);
#pragma unroll 1
    for (i64 number = blockIdx.x; number < count; number = tiles.work.number + gridDim.x) {
        tiles.work.find(call.p, items, call.p.query_starts, Math::kRows, number);
        if (tiles.work.row0 < tiles.work.sequence.queries) BlockForward<Math, T>(call, tiles).run();
    }
}

constexpr int kClearThreads = 256;

template <class T>
__global__ void __launch_bounds__(kClearThreads)
    clear_kernel(HeadArray<T> array, i64 heads, i64 rows, i64 width, i64 size) {
    const i64 step = i64(gridDim.x) * kClearThreads;
#pragma unroll 1
    for (i64 i = i64(blockIdx.x) * kClearThreads + threadIdx.x; i < size; i += step) {
        const i64 line = quotient(i, width), all = quotient(line, rows);
        const i64 batch = quotient(all, heads), head = all - batch * heads;
        array.data[batch * array.batch + head * array.head + (line - all * rows) * array.row + i -
                   line * width] = T{};
    }
}

}  // namespace

template <class T>
void clear_heads(const HeadArray<T>& array, i64 batch, i64 heads, i64 rows, i64 width) {
    const i64 size = batch * heads * rows * width;
    launch("clear", {blocks_for(size, kClearThreads), kClearThreads}, clear_kernel<T>, array, heads,
           rows, width, size);
}

namespace {

template <class T>
void forward(const AttentionParams<T>& p, const Format<T>& format, const HeadArray<T>& output,
             Accumulate<T>* stats) {
    if (few_queries(p)) return few_forward(p, format, output, stats);
    if (p.query_lengths || p.query_starts) {
        clear_heads(output, p.batch, p.heads, p.queries, p.value_dim);
        if (stats) {
            clear_heads<Accumulate<T>>({stats, 0, 0, 1}, 1, 1, 2 * p.batch * p.heads * p.queries,
                                       1);
        }
    }
    const ForwardCall<T> call{p, output, stats, format, Dropout::of(p), is_masked(p)};
    with_forward_math<T>(p.dim > p.value_dim ? p.dim : p.value_dim, [&](auto math) {
        using Math = decltype(math);
        const Items items{tiles_of_rows(p.queries, p.query_starts, p.sequences, Math::kRows),
                          chunks_of(p.value_dim, Math::kDim), p.batch, p.heads, true};
        launch("attention_forward",
               {blocks_for(items.count(), 1), Math::kThreads, sizeof(ForwardTiles<Math>)},
               forward_kernel<Math, T>, call, items, items.count());
    });
}

}  // namespace

template <class T>
void attention_forward(const AttentionParams<T>& p, const HeadArray<T>& output,
                       Accumulate<T>* stats) {
    forward(stored(p), StorageOf<T>::format(), stored(output), stats);
}

#define FUSEDNN_CLEAR(T) template void clear_heads<T>(const HeadArray<T>&, i64, i64, i64, i64);
FUSEDNN_INSTANTIATE(FUSEDNN_CLEAR)
FUSEDNN_CLEAR(HalfBits)
#define FUSEDNN_ATTENTION(T)                                                           \
    template void attention_forward<T>(const AttentionParams<T>&, const HeadArray<T>&, \
                                       Accumulate<T>*);
FUSEDNN_INSTANTIATE(FUSEDNN_ATTENTION)
FUSEDNN_INSTANTIATE_HALF(FUSEDNN_ATTENTION)

}  // namespace fusednn::cuda
