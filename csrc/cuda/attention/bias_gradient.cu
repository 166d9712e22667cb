// The gradient of an additive mask: dS, added up over what the mask was broadcast along.
//
// It is computed apart from the other gradients, from scores computed once more. A block owns a
// tile of the mask, or all of an axis along which the mask is broadcast, and goes through all heads
// and tiles that read it, in order: no two blocks add to one place.
#include "cuda/attention/gradient.h"
#include "cuda/kernels.h"

namespace fusednn::cuda {

namespace {

template <class Math>
struct BiasTiles {
    alignas(16) typename Math::Value row_a[Math::kRows][Math::kStride];
    alignas(16) typename Math::Value row_b[Math::kRows][Math::kStride];
    alignas(16) typename Math::Value column_a[Math::kColumns][Math::kStride];
    alignas(16) typename Math::Value column_b[Math::kColumns][Math::kStride];
    typename Math::Sum of_warp[Math::kWarps][Math::kColumns];
};

// Which tiles a block goes through: [begin, end) of each axis.
struct BiasRange {
    int batch0, batch1, head0, head1, row0, row1, key0, key1;
};

template <class Math, class T>
class BiasBackward {
  public:
    using Sum = typename Math::Sum;
    using Scores = typename Math::Scores;
    using Tiles = BiasTiles<Math>;
    static constexpr int kLaneRows = Math::kRowsOfLane, kLaneColumns = Math::kColumnsOfLane;

    FUSEDNN_DEVICE BiasBackward(const GradientCall<T>& call, Tiles& tiles)
        : call_(call), p_(call.p), tiles_(tiles) {}

    FUSEDNN_DEVICE void run(const BiasRange& range) {
        clear(sum_);
#pragma unroll 1
        for (int batch = range.batch0; batch < range.batch1; ++batch) {
#pragma unroll 1
            for (int part = 0; part < p_.sequences; ++part) {
                const Sequence s = get_sequence(p_, batch, part);
#pragma unroll 1
                for (int head = range.head0; head < range.head1; ++head) {
#pragma unroll 1
                    for (int row0 = range.row0; row0 < range.row1; row0 += Math::kRows) {
#pragma unroll 1
                        for (int key0 = range.key0; key0 < range.key1; key0 += Math::kColumns) {
                            add_tile(s, head, row0 - s.query0, key0 - s.key0);
                        }
                    }
                }
            }
        }
        store(range);
    }

  private:
    // Of one head, row0 and key0 counted in the sequence.
    FUSEDNN_DEVICE void add_tile(const Sequence& s, int head, int row0, int key0) {
        const int first_row = larger_of(row0, 0);
        const int last_row = smaller_of(row0 + Math::kRows, s.queries) - 1;
        if (first_row > last_row || s.range(first_row).begin >= key0 + Math::kColumns ||
            s.range(last_row).end <= key0) {
            return;
        }
        const int kv_head = head / heads_of_group(p_);
        const Side<Math> keys{tiles_.row_a, tiles_.column_a,
                              rows_of(p_.query, s.batch, head, s.query0),
                              rows_of(p_.key, s.batch, kv_head, s.key0), int(p_.dim)};
        const Side<Math> values{tiles_.row_b, tiles_.column_b,
                                rows_of(call_.g.grad, s.batch, head, s.query0),
                                rows_of(p_.value, s.batch, kv_head, s.key0), int(p_.value_dim)};
        const Walk<Math> walk(row0, s.queries);
        Scores x, dp;
        __syncthreads();
        walk.multiply(call_.format, x, keys, key0, s.keys, false);
        __syncthreads();
        clear(dp);
        if (!call_.g.of_weights) walk.multiply(call_.format, dp, values, key0, s.keys, false);
        const HeadScores<Math, T> scores(p_, call_.format, s, head);
        const i64 first = call_.first_row(s, head);
#pragma unroll
        for (int i = 0; i < kLaneRows; ++i) {
            const int row = row0 + Math::row(i);
            const bool real = row >= 0 && row < s.queries;
            const QueryStats<Sum> stats = query_stats(call_, first + row, real);
            const Peak<Sum> peak = real ? call_.peaks[first + row] : Peak<Sum>{-1, Sum(0)};
#pragma unroll 1
            for (int n = 0; n < kLaneColumns; ++n) {
                const int key = key0 + Math::column(n);
                Sum slope, d = dp[i][0];
                const Sum score = scores.score(x[i][0], row, key, false, &slope);
                const Sum w = scores.weight(score, stats.maximum, stats.inverse);
                turn(x[i], score);
                turn(dp[i], d);
                if (w != Sum(0)) {
                    if (call_.g.of_weights) d = call_.format.widen(values.rows[row][s.key0 + key]);
                    if (call_.dropout.on) {
                        const bool keep = call_.dropout.keeps(
                            std::uint64_t(s.number * p_.heads + head), row, key);
                        d *= keep ? Sum(call_.dropout.factor) : Sum(0);
                    }
                    d = key == peak.key ? peak.ds : w * (d - stats.dot);
                }
                turn(sum_[i], w == Sum(0) ? sum_[i][0] : sum_[i][0] + d);
            }
        }
    }

    // Along broadcast axes the tile's sums are added up, in one order.
    FUSEDNN_DEVICE void store(const BiasRange& range) {
        const i64* const stride = call_.g.bias_stride;
        T* const to = call_.g.bias + range.batch0 * stride[0] + range.head0 * stride[1];
        if (stride[3] == 0) {
#pragma unroll
            for (int i = 0; i < kLaneRows; ++i) {
#pragma unroll
                for (int n = 1; n < kLaneColumns; ++n) sum_[i][0] += sum_[i][n];
                sum_[i][0] = row_reduce(sum_[i][0], Add());
            }
        }
        if (stride[2] == 0) return store_columns(range, to);
#pragma unroll
        for (int i = 0; i < kLaneRows; ++i) {
            const int row = range.row0 + Math::row(i);
            if (row >= range.row1) continue;
#pragma unroll
            for (int n = 0; n < kLaneColumns; ++n) {
                const int key = range.key0 + Math::column(n);
                if (stride[3] == 0 ? n > 0 || threadIdx.x % 4 != 0 : key >= range.key1) continue;
                to[row * stride[2] + key * stride[3]] = call_.format.narrow(sum_[i][n]);
            }
        }
    }

    FUSEDNN_DEVICE void store_columns(const BiasRange& range, T* to) {
        const i64* const stride = call_.g.bias_stride;
        const int warp = int(threadIdx.x) / 32;
        __syncthreads();
#pragma unroll
        for (int n = 0; n < kLaneColumns; ++n) {
            Sum sum = sum_[0][n];
#pragma unroll
            for (int i = 1; i < kLaneRows; ++i) sum += sum_[i][n];
#pragma unroll
            for (int step = 16; step >= 4; step /= 2) {
                sum += __shfl_xor_sync(kAllLanes, sum, step);
            }
            if (threadIdx.x % 32 < 4) tiles_.of_warp[warp][Math::column(n)] = sum;
        }
        __syncthreads();
        for (int n = int(threadIdx.x); n < Math::kColumns; n += Math::kThreads) {
            if (stride[3] == 0 ? n > 0 : range.key0 + n >= range.key1) continue;
            Sum sum = tiles_.of_warp[0][n];
            for (int other = 1; other < Math::kWarps; ++other) sum += tiles_.of_warp[other][n];
            to[(range.key0 + n) * stride[3]] = call_.format.narrow(sum);
        }
    }

    const GradientCall<T>& call_;
    const AttentionParams<T>& p_;
    Tiles& tiles_;
    Scores sum_;
};

template <class Math, class T>
__global__ void __launch_bounds__(Math::kThreads, Math::kBlocks)
    bias_kernel(const __grid_constant__ GradientCall<T> call, const Items items, i64 key_tiles,
                i64 count) {
    FUSEDNN_DYNAMIC_SHARED(BiasTiles<Math>, tiles);
    const AttentionParams<T>& p = call.p;
    const i64* const stride = call.g.bias_stride;
#pragma unroll 1
    for (i64 number = blockIdx.x; number < count; number += gridDim.x) {
        const Item item = items[number];
        const int row0 = item.tile / int(key_tiles) * Math::kRows;
        const int key0 = item.tile % int(key_tiles) * Math::kColumns;
        BiasRange range{0, int(p.batch), 0, int(p.heads), 0, int(p.queries), 0, int(p.keys)};
        if (stride[0]) range.batch0 = item.batch, range.batch1 = item.batch + 1;
        if (stride[1]) range.head0 = item.head, range.head1 = item.head + 1;
        if (stride[2]) range.row0 = row0, range.row1 = smaller_of(row0 + Math::kRows, range.row1);
        if (stride[3]) {
            range.key0 = key0;
            range.key1 = smaller_of(key0 + Math::kColumns, range.key1);
        }
        BiasBackward<Math, T>(call, tiles).run(range);
    }
}

}  // namespace

template <class T>
void bias_gradient(const GradientCall<T>& call) {
    const AttentionParams<T>& p = call.p;
    const i64* stride = call.g.bias_stride;
    with_narrow_math<T>([&](auto math) {
        using Math = decltype(math);
        const i64 key_tiles = stride[3] ? parts_of(p.keys, Math::kColumns) : 1;
        const i64 row_tiles = stride[2] ? parts_of(p.queries, Math::kRows) : 1;
        const Items items{row_tiles * key_tiles, 1, stride[0] ? p.batch : 1,
                          stride[1] ? p.heads : 1, false};
        launch("attention_bias",
               {blocks_for(items.count(), 1), Math::kThreads, sizeof(BiasTiles<Math>)},
               bias_kernel<Math, T>, call, items, key_tiles, items.count());
    });
}

#define FUSEDNN_BIAS(T) template void bias_gradient<T>(const GradientCall<T>&);
FUSEDNN_INSTANTIATE(FUSEDNN_BIAS)
FUSEDNN_BIAS(HalfBits)

}  // namespace fusednn::cuda
