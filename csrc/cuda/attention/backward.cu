// Attention's backward (Dao, "FlashAttention-2", ICLR 2024), see gradient.h: one kernel over tiles
// of queries for dQ and the peaks, one over tiles of keys for dK and dV. Each sum belongs to one
// block and grows in one order.
#include "cuda/attention/gradient.h"
#include "cuda/kernels.h"

namespace fusednn::cuda {

namespace {

// The factors of a product of features, where they lie: of S and dP.
template <class Value>
struct Factors {
    Rows<const Value> rows, columns;
    int features;
};

template <class Math>
struct GradientTiles {
    // Those of S, and of dP: sides 0 and 1.
    alignas(16) typename Math::Value rows[2][Math::kRows][Math::kStride];
    alignas(16) typename Math::Value columns[2][Math::kColumns][Math::kStride];
    typename Math::Exchange exchange;
    Work work;
    Factors<typename Math::Value> factors[2];
    // In key_kernel, of the queries: their head, QueryStats and peaks.
    int head;
    typename Math::Sum stats[3][Math::kColumns];
    alignas(16) Peak<typename Math::Sum> peaks[Math::kColumns];

    FUSEDNN_DEVICE Side<Math> side(int which) {
        const auto& of = factors[which];
        return {rows[which], columns[which], of.rows, of.columns, of.features};
    }
};

// ---- dQ
// ------------------------------------------------------------------------------------------

template <class Math, class T>
class QueryBackward {
  public:
    using Sum = typename Math::Sum;
    using Tiles = GradientTiles<Math>;
    static constexpr int kLaneRows = Math::kRowsOfLane, kLaneColumns = Math::kColumnsOfLane;

    FUSEDNN_DEVICE QueryBackward(const GradientCall<T>& call, Tiles& tiles)
        : call_(call),
          p_(call.p),
          tiles_(tiles),
          s_(tiles.work.sequence),
          item_(tiles.work.item),
          walk_(tiles.work.row0, s_.queries),
          scores_(p_, call.format, s_, item_.head) {
        if (threadIdx.x == 0) {
            const int head = item_.head, kv_head = head / heads_of_group(p_);
            tiles.factors[0] = {rows_of(p_.query, s_.batch, head, s_.query0),
                                rows_of(p_.key, s_.batch, kv_head, s_.key0), int(p_.dim)};
            tiles.factors[1] = {rows_of(call.g.grad, s_.batch, head, s_.query0),
                                rows_of(p_.value, s_.batch, kv_head, s_.key0), int(p_.value_dim)};
        }
        const i64 first = call.first_row(s_, item_.head);
#pragma unroll
        for (int i = 0; i < kLaneRows; ++i) {
            const int row = walk_.row0 + Math::row(i);
            stats_[i] = query_stats(call, first + row, row < s_.queries);
        }
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
    FUSEDNN_DEVICE void pass(bool careful) {
        clear(out_);
#pragma unroll
        for (int i = 0; i < kLaneRows; ++i) {
            peaks_[i] = -1;
            slopes_[i] = Sum(1);
            rest_[i] = Sum(0);
        }
        const int last = smaller_of(walk_.row0 + Math::kRows, s_.queries) - 1;
        const int begin = s_.range(walk_.row0).begin, end = s_.range(last).end;
        const int inner_begin = s_.range(last).begin, inner_end = s_.range(walk_.row0).end;
        const int first = begin / Math::kColumns * Math::kColumns;
        // dP comes first, while the keys are on their way; values are on theirs from then on. The
        // step before the first, which there always is, only starts loads: one copy of what does.
        // Its barrier is what others wait at for `factors`.
#pragma unroll 1
        for (int key0 = first - Math::kColumns; key0 < end; key0 += Math::kColumns) {
            const int next = key0 + Math::kColumns;
            const bool real = key0 >= first;
            typename Math::Scores x, ds;
#pragma unroll 1
            for (int which = real; which >= 0; --which) {
                if (which > 0) {
                    copy_async_wait<1>();
                } else {
                    copy_async_wait<0>();
                }
                __syncthreads();
                if (which == 0) walk_.start(tiles_.side(1), !real, next, s_.keys, end);
                if (!real) continue;
                copy(ds, x);
                if (which > 0 && call_.g.of_weights) {
                    given(x, key0);
                } else {
                    const Side<Math> side = tiles_.side(which);
                    walk_.multiply(call_.format, x, side, key0, s_.keys, side.parts() == 1);
                }
            }
            if (real) {
                const bool inner = walk_.row0 + Math::kRows <= s_.queries && key0 >= inner_begin &&
                                   next <= inner_end;
                if (walk_.busy) row_gradients(x, ds, key0, inner);
                const Side<Math> keys = tiles_.side(0);
                if (keys.parts() > 1) {
                    __syncthreads();
                    keys.copy_column_tile(key0, s_.keys, item_.chunk);
                    wait_for_copies();
                }
                if (walk_.busy) {
                    add_rows<Math>(call_.format, careful, out_, ds, tiles_.exchange,
                                   keys.column_tile, keys.width(item_.chunk));
                }
            }
            __syncthreads();
            walk_.start(tiles_.side(0), !real, next, s_.keys, end);
        }
    }

    // dP where the weights were the result.
    FUSEDNN_DEVICE void given(typename Math::Scores& dp, int key0) {
        const Rows<const typename Math::Value> from = tiles_.factors[1].rows;
#pragma unroll
        for (int i = 0; i < kLaneRows; ++i) {
            const int row = walk_.row0 + Math::row(i);
#pragma unroll
            for (int n = 0; n < kLaneColumns; ++n) {
                const int key = key0 + Math::column(n);
                const bool real = row < s_.queries && key < s_.keys;
                dp[i][n] = real ? call_.format.widen(from[row][s_.key0 + key]) : Sum(0);
            }
        }
    }

    // dP becomes scale * dS. What has neither masks nor softcap nor dropout goes fast; the rest has
    // one copy for a row's elements, which go round.
    FUSEDNN_DEVICE void row_gradients(typename Math::Scores& x, typename Math::Scores& ds, int key0,
                                      bool inner) {
        const Place<Math, false> place{tiles_.work.row0, key0};
        if (scores_.plain() && !call_.dropout.on) {
#pragma unroll
            for (int i = 0; i < kLaneRows; ++i)
#pragma unroll
                for (int n = 0; n < kLaneColumns; ++n) {
                    const int key = place.key(i, n);
                    const Sum score = scores_.plain_score(x[i][n], place.query(i, n), key, inner);
                    ds[i][n] = gradient(i, key, score, Sum(1), ds[i][n]);
                }
            return;
        }
        unsigned kept[kLaneRows];
        if (call_.dropout.on) {
            draw<Math>(call_.dropout, std::uint64_t(s_.number * p_.heads + item_.head), place,
                       kept);
        }
#pragma unroll 1
        for (int n = 0; n < kLaneColumns; ++n)
#pragma unroll
            for (int i = 0; i < kLaneRows; ++i) {
                const int key = place.key(i, n);
                Sum slope, dp = ds[i][0];
                const Sum score = scores_.score(x[i][0], place.query(i, n), key, inner, &slope);
                if (call_.dropout.on) {
                    dp *= kept[i] >> n & 1 ? Sum(call_.dropout.factor) : Sum(0);
                }
                turn(x[i], score);
                turn(ds[i], gradient(i, key, score, slope, dp));
            }
    }

    // Of a score and dP, with the slope of the softcap; a peak's is left for the end.
    FUSEDNN_DEVICE Sum gradient(int i, int key, Sum score, Sum slope, Sum dp) {
        const Sum w = scores_.weight(score, stats_[i].maximum, stats_[i].inverse);
        // A key without weight may hold NaN.
        const bool heavy = stats_[i].inverse > Sum(0.5), peak = heavy && w > Sum(0.5);
        Sum d = w * (dp - stats_[i].dot);
        d = w == Sum(0) || peak ? Sum(0) : d;
        peaks_[i] = peak ? key : peaks_[i];
        slopes_[i] = peak ? slope : slopes_[i];
        rest_[i] += heavy ? d : Sum(0);
        return w == Sum(0) ? Sum(0) : d * Sum(p_.scale) * slope;
    }

    FUSEDNN_DEVICE void finish() {
        const i64 first = call_.first_row(s_, item_.head);
        Sum factor[kLaneRows];
#pragma unroll 1
        for (int i = 0; i < kLaneRows; ++i) {
            const int row = walk_.row0 + Math::row(i), mine = peaks_[0];
            const int peak = row_reduce(mine, Larger());
            const Sum ds = -row_reduce(rest_[0], Add());
            const Sum slope = row_reduce(mine >= 0 ? slopes_[0] : Sum(0), Add());
            turn(peaks_, mine);
            turn(rest_, rest_[0]);
            turn(slopes_, slopes_[0]);
            turn(factor, Sum(1));
            const bool real = row < s_.queries;
            if (real && threadIdx.x % 4 == 0 && item_.chunk == 0) {
                call_.peaks[first + row] = {peak, ds};
            }
            const Sum weight = ds * Sum(p_.scale) * slope;
            const T* const key = tiles_.factors[0].columns[peak] + item_.chunk * Math::kDim;
            const int features = real && peak >= 0 ? int(p_.dim) - item_.chunk * Math::kDim : 0;
#pragma unroll
            for (int m = 0; m < Math::kOutOfLane; ++m) {
                const int column = Math::out_column(m);
                Sum sum = out_[0][m];
                if (column < features) sum += weight * call_.format.widen(key[column]);
                out_[0][m] = sum;
            }
            turn_rows(out_);
        }
        store_rows<Math>(call_.format, out_,
                         rows_of(call_.g.query, s_.batch, item_.head, s_.query0), walk_.row0,
                         s_.queries, item_.chunk * Math::kDim, int(p_.dim), factor);
    }

    const GradientCall<T>& call_;
    const AttentionParams<T>& p_;
    Tiles& tiles_;
    const Sequence& s_;
    const Item& item_;
    const Walk<Math> walk_;
    const HeadScores<Math, T> scores_;
    QueryStats<Sum> stats_[kLaneRows];
    typename Math::Out out_;
    int peaks_[kLaneRows];
    Sum slopes_[kLaneRows], rest_[kLaneRows];  // the peak's slope, the sum of the others' dS
};

template <class Math, class T>
__global__ void __launch_bounds__(Math::kThreads, Math::kBlocks)
    query_kernel(const __grid_constant__ GradientCall<T> call, const Items items, i64 count) {
    FUSEDNN_DYNAMIC_SHARED(GradientTiles<Math>, tiles);
#pragma unroll 1
    for (i64 number = blockIdx.x; number < count; number = tiles.work.number + gridDim.x) {
        tiles.work.find(call.p, items, call.p.query_starts, Math::kRows, number);
        if (tiles.work.row0 < tiles.work.sequence.queries)
            QueryBackward<Math, T>(call, tiles).run();
    }
}

// ---- dK and dV
// -----------------------------------------------------------------------------------

// The rows of the tiles are keys here, the columns queries. item.head: of the keys.
template <class Math, class T>
class KeyBackward {
  public:
    using Sum = typename Math::Sum;
    using Tiles = GradientTiles<Math>;
    static constexpr int kLaneRows = Math::kRowsOfLane, kLaneColumns = Math::kColumnsOfLane;

    FUSEDNN_DEVICE KeyBackward(const GradientCall<T>& call, Tiles& tiles)
        : call_(call), p_(call.p), tiles_(tiles), s_(tiles.work.sequence), item_(tiles.work.item) {}

    FUSEDNN_DEVICE void run() {
#pragma unroll 1
        for (int careful = 0; careful < 2; ++careful) {
            clear(key_grad_);
            clear(value_grad_);
#pragma unroll 1
            for (int head = first_head(); head < first_head() + heads_of_group(p_);
                 head = tiles_.head + 1) {
                pass(head, careful > 0);
            }
            const bool finite = all_finite<Math>(key_grad_) && all_finite<Math>(value_grad_);
            if (!call_.masked || !__syncthreads_or(!finite)) break;
        }
        Sum factor[kLaneRows];
#pragma unroll
        for (int i = 0; i < kLaneRows; ++i) factor[i] = Sum(1);
        const int column0 = item_.chunk * Math::kDim;
        // One copy of what stores for both.
#pragma unroll 1
        for (int values = 0; values < 2; ++values) {
            __syncthreads();  // else the places of both are computed before, and spilled
            store_rows<Math>(
                call_.format, key_grad_,
                rows_of(values ? call_.g.value : call_.g.key, s_.batch, item_.head, s_.key0),
                tiles_.work.row0, s_.keys, column0, int(values ? p_.value_dim : p_.dim), factor);
#pragma unroll
            for (int i = 0; i < kLaneRows; ++i)
#pragma unroll
                for (int m = 0; m < Math::kOutOfLane; ++m) key_grad_[i][m] = value_grad_[i][m];
        }
    }

  private:
    FUSEDNN_DEVICE void pass(int head, bool careful) {
        __syncthreads();
        if (threadIdx.x == 0) {
            tiles_.head = head;
            tiles_.factors[0] = {rows_of(p_.key, s_.batch, item_.head, s_.key0),
                                 rows_of(p_.query, s_.batch, head, s_.query0), int(p_.dim)};
            tiles_.factors[1] = {rows_of(p_.value, s_.batch, item_.head, s_.key0),
                                 rows_of(call_.g.grad, s_.batch, head, s_.query0),
                                 int(p_.value_dim)};
        }
        const int last = smaller_of(tiles_.work.row0 + Math::kRows, s_.keys) - 1;
        const int begin = s_.queries_of(tiles_.work.row0).begin, end = s_.queries_of(last).end;
        const int first = begin / Math::kColumns * Math::kColumns;
        // As in QueryBackward::pass.
#pragma unroll 1
        for (int query0 = first - Math::kColumns; query0 < end; query0 += Math::kColumns) {
            step(query0, end, query0 >= first, careful);
        }
    }

    // The tile of queries from query0 on, if `real`, and the start of what the next step loads:
    // the gradients are on their way while dK grows, the queries while dP is computed.
    FUSEDNN_DEVICE void step(int query0, int end, bool real, bool careful) {
        const int next = query0 + Math::kColumns;
        typename Math::Scores x, ds;
        if (real) {
            products(x, ds, query0);
            const Side<Math> queries = tiles_.side(0), grads = tiles_.side(1);
            if (walk().busy) {
                const HeadScores<Math, T> scores(p_, call_.format, s_, tiles_.head);
                column_gradients(scores, x, ds, query0);
            }
            if (queries.parts() > 1 || grads.parts() > 1) {
                __syncthreads();
#pragma unroll 1
                for (int which = 0; which < 2; ++which) {
                    tiles_.side(which).copy_column_tile(query0, s_.queries, item_.chunk);
                }
                wait_for_copies();
            }
            if (walk().busy) {
                add_rows<Math>(call_.format, careful, value_grad_, x, tiles_.exchange,
                               tiles_.columns[1], grads.width(item_.chunk));
            }
        }
        __syncthreads();
        start_stats(next, end);
        walk().start(tiles_.side(1), !real && tiles_.head == first_head(), next, s_.queries, end);
        if (real && walk().busy) {
            add_rows<Math>(call_.format, careful, key_grad_, ds, tiles_.exchange, tiles_.columns[0],
                           tiles_.side(0).width(item_.chunk));
        }
        __syncthreads();
        walk().start(tiles_.side(0), !real && tiles_.head == first_head(), next, s_.queries, end);
    }

    FUSEDNN_DEVICE void products(typename Math::Scores& x, typename Math::Scores& ds, int query0) {
#pragma unroll 1
        for (int which = 1; which >= 0; --which) {
            if (which > 0) {
                copy_async_wait<1>();
            } else {
                copy_async_wait<0>();
            }
            __syncthreads();
            copy(ds, x);
            if (which > 0 && call_.g.of_weights) {
                given(x, query0);
            } else {
                const Side<Math> side = tiles_.side(which);
                walk().multiply(call_.format, x, side, query0, s_.queries, side.parts() == 1);
            }
        }
    }

    // Of the queries from query0 on, a warp to a kind of number. Those that do not exist get 0: no
    // key has a weight there.
    FUSEDNN_DEVICE void start_stats(int query0, int end) {
        static_assert(Math::kColumns == 32 && Math::kWarps == 4, "a lane to a query");
        if (query0 >= end) return;
        const int lane = int(threadIdx.x) % 32, kind = int(threadIdx.x) / 32;
        const bool real = query0 + lane < s_.queries;
        const i64 row = call_.first_row(s_, tiles_.head) + query0 + (real ? lane : 0);
        if (kind == 3) {
            constexpr int kBytes = int(sizeof(Peak<Sum>));
            copy_async<kBytes>(&tiles_.peaks[lane], call_.peaks + row, real ? kBytes : 0);
        } else {
            constexpr int kBytes = int(sizeof(Sum));
            const Sum* const from = kind == 2 ? call_.dots : call_.g.stats + kind * call_.rows();
            copy_async<kBytes>(&tiles_.stats[kind][lane], from + row, real ? kBytes : 0);
        }
    }

    // The rows stay for the other heads of a group.
    FUSEDNN_DEVICE int first_head() const { return item_.head * heads_of_group(p_); }
    FUSEDNN_DEVICE Walk<Math> walk() const { return {tiles_.work.row0, s_.keys}; }

    FUSEDNN_DEVICE void given(typename Math::Scores& dp, int query0) {
        const Rows<const typename Math::Value> from = tiles_.factors[1].columns;
#pragma unroll
        for (int i = 0; i < kLaneRows; ++i) {
            const int key = tiles_.work.row0 + Math::row(i);
#pragma unroll
            for (int n = 0; n < kLaneColumns; ++n) {
                const int query = query0 + Math::column(n);
                const bool real = query < s_.queries && key < s_.keys;
                dp[i][n] = real ? call_.format.widen(from[query][s_.key0 + key]) : Sum(0);
            }
        }
    }

    // Products become weights, as the values meet them, and dP becomes scale * dS; as
    // row_gradients.
    FUSEDNN_DEVICE void column_gradients(const HeadScores<Math, T>& scores,
                                         typename Math::Scores& x, typename Math::Scores& ds,
                                         int query0) {
        const Place<Math, true> place{tiles_.work.row0, query0};
        const int last_query = query0 + Math::kColumns - 1;
        const bool inner = last_query < s_.queries &&
                           s_.range(last_query).begin <= tiles_.work.row0 &&
                           s_.range(query0).end >= tiles_.work.row0 + Math::kRows;
        if (scores.plain() && !call_.dropout.on) {
#pragma unroll
            for (int n = 0; n < kLaneColumns; ++n) {
                const int query = query0 + Math::column(n);
                const Known known(tiles_, Math::column(n));
#pragma unroll
                for (int i = 0; i < kLaneRows; ++i) {
                    const int key = place.key(i, n);
                    x[i][n] = scores.weight(scores.plain_score(x[i][n], query, key, inner),
                                            known.stats.maximum, known.stats.inverse);
                    ds[i][n] = gradient(known, key, x[i][n], Sum(1), ds[i][n]);
                }
            }
            return;
        }
        unsigned kept[kLaneRows];
        if (call_.dropout.on) {
            draw<Math>(call_.dropout, std::uint64_t(s_.number * p_.heads + tiles_.head), place,
                       kept);
        }
#pragma unroll 1
        for (int n = 0; n < kLaneColumns; ++n) {
            const int query = query0 + Math::column(n);
            const Known known(tiles_, Math::column(n));
#pragma unroll
            for (int i = 0; i < kLaneRows; ++i) {
                const int key = place.key(i, n);
                Sum slope, factor = Sum(1);
                const Sum score = scores.score(x[i][0], query, key, inner, &slope);
                const Sum w = scores.weight(score, known.stats.maximum, known.stats.inverse);
                if (call_.dropout.on) {
                    factor = kept[i] >> n & 1 ? Sum(call_.dropout.factor) : Sum(0);
                }
                turn(x[i], w * factor);
                turn(ds[i], gradient(known, key, w, slope, ds[i][0] * factor));
            }
        }
    }

    // What is known of a query.
    struct Known {
        QueryStats<Sum> stats;
        Peak<Sum> peak;
        FUSEDNN_DEVICE Known(const Tiles& tiles, int column)
            : stats{tiles.stats[0][column], tiles.stats[1][column], tiles.stats[2][column]},
              peak(tiles.peaks[column]) {}
    };
    // Of a weight and dP, with the slope of the softcap.
    FUSEDNN_DEVICE Sum gradient(const Known& known, int key, Sum w, Sum slope, Sum dp) const {
        Sum d = w * (dp - known.stats.dot);
        d = key == known.peak.key ? known.peak.ds : d;
        d = d * Sum(p_.scale) * slope;
        return w == Sum(0) ? Sum(0) : d;
    }

    const GradientCall<T>& call_;
    const AttentionParams<T>& p_;
    Tiles& tiles_;
    const Sequence& s_;
    const Item& item_;
    typename Math::Out key_grad_, value_grad_;
};

template <class Math, class T>
__global__ void __launch_bounds__(Math::kThreads, Math::kBlocks)
    key_kernel(const __grid_constant__ GradientCall<T> call, const Items items, i64 count) {
    FUSEDNN_DYNAMIC_SHARED(GradientTiles<Math>, tiles);
#pragma unroll 1
    for (i64 number = blockIdx.x; number < count; number = tiles.work.number + gridDim.x) {
        tiles.work.find(call.p, items, call.p.key_starts, Math::kRows, number);
        if (tiles.work.row0 < tiles.work.sequence.keys) KeyBackward<Math, T>(call, tiles).run();
    }
}

// ---- D
// -------------------------------------------------------------------------------------------

constexpr int kDotThreads = 256;

// D of each row, a warp to a row. Where the outputs are weights and one is 0, as of a hidden key,
// its gradient does not matter.
template <class T>
__global__ void __launch_bounds__(kDotThreads)
    dot_kernel(const __grid_constant__ AttentionGradients<T> g, const Format<T> format, i64 heads,
               i64 queries, i64 width, i64 rows, Accumulate<T>* dots) {
    using Sum = Accumulate<T>;
    const i64 step = i64(gridDim.x) * (kDotThreads / 32);
    const int lane = int(threadIdx.x) % 32;
#pragma unroll 1
    for (i64 row = i64(blockIdx.x) * (kDotThreads / 32) + threadIdx.x / 32; row < rows;
         row += step) {
        const i64 line = quotient(row, queries), query = row - line * queries;
        const int batch = int(quotient(line, heads)), head = int(line - batch * heads);
        const T* a = rows_of(g.grad, batch, head, 0)[query];
        const T* b = rows_of(g.output, batch, head, 0)[query];
        Sum sum = 0;
        for (i64 i = lane; i < width; i += 32) {
            const Sum y = format.widen(b[i]);
            if (!g.of_weights || y != Sum(0)) sum += format.widen(a[i]) * y;
        }
        sum = warp_reduce<32>(sum, Add());
        if (lane == 0) dots[row] = sum;
    }
}

template <class T>
void backward(const AttentionParams<T>& p, const Format<T>& format,
              const AttentionGradients<T>& g) {
    using Sum = Accumulate<T>;
    if (p.query_lengths || p.key_lengths || p.query_starts) {
        clear_heads(g.query, p.batch, p.heads, p.queries, p.dim);
        clear_heads(g.key, p.batch, p.kv_heads, p.keys, p.dim);
        clear_heads(g.value, p.batch, p.kv_heads, p.keys, p.value_dim);
    }
    const i64 rows = p.batch * p.heads * p.queries;
    const Workspace<Sum> dots(rows);
    const Workspace<Peak<Sum>> peaks(rows);
    launch("attention_dots", {blocks_for(rows, kDotThreads / 32), kDotThreads}, dot_kernel<T>, g,
           format, p.heads, p.queries, g.of_weights ? p.keys : p.value_dim, rows, dots.get());
    const GradientCall<T> call{p, g, dots.get(), peaks.get(), format, Dropout::of(p), is_masked(p)};
    with_gradient_math<T>(p.dim > p.value_dim ? p.dim : p.value_dim, [&](auto math) {
        using Math = decltype(math);
        constexpr i64 kShared = sizeof(GradientTiles<Math>);
        const i64 chunks = chunks_of(p.dim, Math::kDim);
        const i64 value_chunks = chunks_of(p.value_dim, Math::kDim);
        const Items queries{tiles_of_rows(p.queries, p.query_starts, p.sequences, Math::kRows),
                            chunks, p.batch, p.heads, true};
        launch("attention_queries", {blocks_for(queries.count(), 1), Math::kThreads, kShared},
               query_kernel<Math, T>, call, queries, queries.count());
        const Items keys{tiles_of_rows(p.keys, p.key_starts, p.sequences, Math::kRows),
                         chunks > value_chunks ? chunks : value_chunks, p.batch, p.kv_heads, false};
        launch("attention_keys", {blocks_for(keys.count(), 1), Math::kThreads, kShared},
               key_kernel<Math, T>, call, keys, keys.count());
    });
    if (g.bias) bias_gradient(call);
}

}  // namespace

template <class T>
void attention_backward(const AttentionParams<T>& p, const AttentionGradients<T>& g) {
    backward(stored(p), StorageOf<T>::format(), stored(g));
}

#define FUSEDNN_ATTENTION(T) \
    template void attention_backward<T>(const AttentionParams<T>&, const AttentionGradients<T>&);
FUSEDNN_INSTANTIATE(FUSEDNN_ATTENTION)
FUSEDNN_INSTANTIATE_HALF(FUSEDNN_ATTENTION)

}  // namespace fusednn::cuda
