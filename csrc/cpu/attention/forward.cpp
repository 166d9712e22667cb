// Attention's forward, in one pass over the keys (Milakov and Gimelshein, "Online normalizer
// calculation for softmax", 2018; Dao et al., "FlashAttention", NeurIPS 2022).
//
// For a block of rows of one head, and for each block of keys that some row sees:
//   1. scores S = Q K^T of one panel of rows, a few KB in L1
//   2. masks; the rows' maxima so far; exponentials P; the sums so far
//   3. sums O = O * decay + P V; at the row's last block, O / sum goes to the output
#include "cpu/attention/dropout.h"
#include "cpu/attention/few.h"
#include "cpu/attention/scores.h"
#include "cpu/kernels.h"

namespace fusednn {
namespace FUSEDNN_ISA {

namespace {

constexpr int kExpRows = 4;

// Scores of a panel: rows stand so far apart that they do not share places in L1.
template <class T>
constexpr i64 kScoreStride = kKeyBlock + kTileCols<T> + 16;

template <class T>
struct Head {
    const T* keys;   // packed, scaled
    Rows<T> values;  // dense
    bool careful;    // some value is no number
};

template <class T>
i64 head_size(const AttentionParams<T>& p) {
    return packed_size<T>(p.keys, p.dim) + dense_size<T>(p.keys, p.value_dim);
}

template <class T>
Head<T> pack_head(const AttentionParams<T>& p, const Sequence& s, i64 kv_head, T* dst) {
    Head<T> head;
    with_stored(p, [&](const auto& keys, const auto& values) {
        pack_transposed(rows_of(keys, s.batch, kv_head, s.key0), s.keys, p.dim, key_factor(p), dst);
        head.values = dense_rows(rows_of(values, s.batch, kv_head, s.key0), s.keys, p.value_dim,
                                 dst + packed_size<T>(p.keys, p.dim));
    });
    head.keys = dst;
    head.careful = is_masked(p) && !all_finite(head.values, s.keys);
    return head;
}

// Scratch of one thread for one block of rows.
template <class T>
struct Scratch {
    T *queries, *scores, *sums_of_values, *maximum, *sums, *decay, *inverse, *keep;

    static i64 size(const AttentionParams<T>& p) {
        return dense_size<T>(kQueryBlock, p.dim) + kTileRows * kScoreStride<T> +
               kQueryBlock * round_up(p.value_dim, kLanes<T>) + kQueryBlock * (kLanes<T> + 1) +
               4 * 64 + kScoreStride<T> + kDropoutGroup;
    }
    Scratch(const AttentionParams<T>& p, T* base) {
        queries = base;
        scores = queries + dense_size<T>(kQueryBlock, p.dim);
        sums_of_values = scores + kTileRows * kScoreStride<T>;
        sums = sums_of_values + kQueryBlock * round_up(p.value_dim, kLanes<T>);
        decay = sums + kQueryBlock * kLanes<T>;
        inverse = decay + 64;
        maximum = inverse + 64;
        keep = maximum + kQueryBlock + 64;
    }
};

// A block of rows of one head.
template <class T>
class BlockForward {
  public:
    BlockForward(const AttentionParams<T>& p, const Sequence& s, i64 head, const Head<T>& kv,
                 const HeadArray<T>& output, T* stats, const Scratch<T>& scratch)
        : p_(p),
          s_(s),
          head_(head),
          kv_(kv),
          scratch_(scratch),
          scores_(p, s, head),
          natural_(is_natural(p)),
          value_stride_(round_up(p.value_dim, kLanes<T>)) {
        output_ = output.data + s.batch * output.batch + head * output.head + s.query0 * output.row;
        output_stride_ = output.row;
        const i64 row = (s.batch * p.heads + head) * p.queries + s.query0;
        maximum_out_ = stats ? stats + row : nullptr;
        inverse_out_ = stats ? stats + p.batch * p.heads * p.queries + row : nullptr;
    }

    void run(i64 row0, i64 row1) {
        row0_ = row0;
        const Rows<T> in_place = rows_of(p_.query, s_.batch, head_, s_.query0 + row0);
        // Rows of queries are only read one element at a time, so they may have any length.
        queries_ = in_place.stride == p_.dim
                       ? in_place
                       : dense_rows(in_place, row1 - row0, p_.dim, scratch_.queries);
        const RowPanels panels = row_panels(s_, row1 - row0);
        bool started[kQueryBlock] = {};
        const KeyRange all = s_.range(row0, row1);
        for (i64 key0 = all.begin / kKeyBlock * kKeyBlock; key0 < all.end; key0 += kKeyBlock) {
            for (i64 panel = 0; panel < panels.count; ++panel) {
                const i64 row = panels.start(panel);
                const int rows = panels.height(panel);
                const KeyRange sees = s_.range(row0 + row, row0 + row + rows);
                const KeyRange keys = intersect(sees, {key0, key0 + kKeyBlock});
                if (keys.empty()) continue;
                const i64 column = first_column<T>(keys);
                scores_.multiply(queries_[row], queries_.stride, rows, keys,
                                 kv_.keys + column * p_.dim, column, scratch_.scores,
                                 kScoreStride<T>);
                panel_weights(row, rows, scores_.span(row0 + row, rows, keys, column),
                              !started[panel]);
                panel_values(row, rows, keys, !started[panel], keys.end == sees.end);
                started[panel] = true;
            }
        }
        for (i64 panel = 0; panel < panels.count; ++panel) {
            if (!started[panel]) panel_nothing(panels.start(panel), panels.height(panel));
        }
    }

  private:
    void panel_weights(i64 row, int rows, const ScoreSpan& span, bool first) {
        T* maximum = scratch_.maximum + row;
        for (int group = 0; group < rows; group += kLanes<T>) {
            const int count = min_of(rows - group, kLanes<T>);
            Vec<T> tops[kLanes<T>];
            for (int lane = 0; lane < kLanes<T>; ++lane) tops[lane] = negative_infinity<T>();
            for (int lane = 0; lane < count; ++lane) {
                T* scores = scratch_.scores + (group + lane) * kScoreStride<T>;
                scores_.mask(row0_ + row + group + lane, span, scores, nullptr);
                tops[lane] = row_maxima(span, scores);
            }
            Vec<T> maxima = first ? negative_infinity<T>() : load(maximum + group);
            store(scratch_.decay + group, update_maxima<T>(natural_, tops, count, maxima));
            store_partial(maximum + group, maxima, count);
        }
        int r = 0;
        for (; r + kExpRows <= rows; r += kExpRows)
            panel_exponentials<kExpRows>(row, r, span, first);
        for (; r < rows; ++r) panel_exponentials<1>(row, r, span, first);
    }

    // Of rows [r, r + R): several at a time, because the chain of one is long.
    template <int R>
    void panel_exponentials(i64 row, int r, const ScoreSpan& span, bool first) {
        T* const scores = scratch_.scores + r * kScoreStride<T>;
        T* const sums = scratch_.sums + (row + r) * kLanes<T>;
        const T* maximum = scratch_.maximum + row + r;
        Vec<T> sum[R];
        if (natural_) {
            exponentials_of_rows<true, R>(span, scores, kScoreStride<T>, maximum, sum);
        } else {
            exponentials_of_rows<false, R>(span, scores, kScoreStride<T>, maximum, sum);
        }
        for (int i = 0; i < R; ++i) {
            T* own = sums + i * kLanes<T>;
            if (!first) sum[i] = multiply_add(load(own), broadcast(scratch_.decay[r + i]), sum[i]);
            store(own, sum[i]);
            if (p_.dropout > 0) drop(row + r + i, span, scores + i * kScoreStride<T>);
        }
    }

    void drop(i64 row, const ScoreSpan& span, T* scores) {
        const i64 key0 = span.key0 / kDropoutGroup * kDropoutGroup;
        dropout_factors(p_, s_.number * p_.heads + head_, row0_ + row, key0, span.keys,
                        scratch_.keep);
        const T* keep = scratch_.keep + (span.key0 - key0);
        for (i64 at = span.first<T>(); at < span.last<T>(); at += kLanes<T>) {
            store(scores + at, load(scores + at) * load(keep + at));
        }
    }

    // 1 / the sum of each row's weights, to the scratch and the stats.
    void panel_finish(i64 row, int rows) {
        for (int group = 0; group < rows; group += kLanes<T>) {
            const int count = min_of(rows - group, kLanes<T>);
            Vec<T> sums[kLanes<T>];
            for (int lane = 0; lane < kLanes<T>; ++lane) {
                sums[lane] = lane < count ? load(scratch_.sums + (row + group + lane) * kLanes<T>)
                                          : Vec<T>{};
            }
            const Vec<T> inverse = inverse_sums<T>(sum_each<T>(sums, count));
            store(scratch_.inverse + group, inverse);
            if (!maximum_out_) continue;
            const i64 i = row0_ + row + group;
            store_partial(maximum_out_ + i, finite_maximum<T>(load(scratch_.maximum + row + group)),
                          count);
            store_partial(inverse_out_ + i, inverse, count);
        }
    }

    void panel_values(i64 row, int rows, KeyRange keys, bool first, bool last) {
        ProductOutput<T> out{};
        T* sums = scratch_.sums_of_values + row * value_stride_;
        out.c = sums;
        out.ldc = value_stride_;
        out.add = first ? nullptr : sums;
        out.ld_add = value_stride_;
        out.decay = scratch_.decay;
        if (last) {
            panel_finish(row, rows);
            out.factor = scratch_.inverse;
            out.c = output_ + (row0_ + row) * output_stride_;
            out.ldc = output_stride_;
        }
        const T* weights = scratch_.scores + (keys.begin - first_column<T>(keys));
        const i64 count = keys.end - keys.begin;
        if (kv_.careful) {
            careful_product(Layout::rows, rows, p_.value_dim, count, weights, kScoreStride<T>,
                            kv_.values[keys.begin], kv_.values.stride, out);
        } else {
            panel_product(Layout::rows, rows, p_.value_dim, count, weights, kScoreStride<T>,
                          kv_.values[keys.begin], kv_.values.stride, out);
        }
    }

    // Rows that see no key of the sequence.
    void panel_nothing(i64 row, int rows) {
        fill_zero(scratch_.maximum, row, row + rows);
        fill_zero(scratch_.sums, row * kLanes<T>, (row + rows) * kLanes<T>);
        panel_finish(row, rows);
        for (int r = 0; r < rows; ++r) {
            fill_zero(output_ + (row0_ + row + r) * output_stride_, 0, p_.value_dim);
        }
    }

    const AttentionParams<T>& p_;
    const Sequence& s_;
    const i64 head_;
    const Head<T>& kv_;
    const Scratch<T>& scratch_;
    const Scores<T> scores_;
    const bool natural_;
    const i64 value_stride_;
    T* output_;
    i64 output_stride_;
    T *maximum_out_, *inverse_out_;
    i64 row0_ = 0;
    Rows<T> queries_{};
};

// What no sequence covers is 0.
template <class T>
void clear(const AttentionParams<T>& p, const HeadArray<T>& output, T* stats) {
    if (!p.query_lengths && !p.query_starts) return;
    for (i64 b = 0; b < p.batch; ++b) {
        for (i64 h = 0; h < p.heads; ++h) {
            for (i64 t = 0; t < p.queries; ++t) {
                fill_zero(output.data + b * output.batch + h * output.head + t * output.row, 0,
                          p.value_dim);
            }
        }
    }
    if (stats) fill_zero(stats, 0, 2 * p.batch * p.heads * p.queries);
}

}  // namespace

template <class T>
void attention_forward(const AttentionParams<T>& p, const HeadArray<T>& output, T* stats) {
    clear(p, output, stats);
    const i64 kv_tasks = p.batch * p.sequences * p.kv_heads,
              group = p.heads / max_of(p.kv_heads, i64(1));
    const i64 blocks = ceil_div(p.queries, kQueryBlock);
    if (kv_tasks * group * blocks == 0) return;
    if (few_queries(p)) return few_forward(p, output, stats);
    const i64 visible = min_of(p.left, p.keys) + min_of(p.right, p.keys);
    const i64 cost = p.batch * p.heads * p.queries * min_of(visible + 1, p.keys) * 2 *
                     (p.dim + p.value_dim + 16);
    const int slots = parallel_slots(kv_tasks * group * blocks, cost);
    // Whole heads, whose packed keys stay in the thread's cache, if there are enough of them to
    // keep all threads busy to the end; else blocks of rows.
    const bool by_head = slots == 1 || kv_tasks >= 4 * slots;
    const i64 size = round_up(head_size(p), 64), scratch_size = Scratch<T>::size(p);
    Workspace<T> packed(size * (by_head ? slots : kv_tasks));
    Workspace<T> scratch(scratch_size, slots);
    // Block `block` of a sequence's rows, all of about the same height.
    const auto run = [&](const Sequence& s, i64 head, const Head<T>& kv, i64 block, int slot) {
        const i64 count = ceil_div(s.queries, kQueryBlock);
        if (block >= count) return;
        const Scratch<T> mine(p, scratch.slot(slot));
        BlockForward<T>(p, s, head, kv, output, stats, mine)
            .run(s.queries * block / count, s.queries * (block + 1) / count);
    };
    if (by_head) {
        parallel(kv_tasks, slots, [&](i64 task, int slot) {
            FlushDenormals flush;
            const Sequence s = get_sequence(p, task / p.kv_heads);
            const i64 kv_head = task % p.kv_heads;
            const Head<T> kv = pack_head(p, s, kv_head, packed.get() + slot * size);
            for (i64 head = kv_head * group; head < (kv_head + 1) * group; ++head) {
                for (i64 block = 0; block < blocks; ++block) run(s, head, kv, block, slot);
            }
        });
        return;
    }
    Workspace<Head<T>> heads(kv_tasks);
    parallel(kv_tasks, slots, [&](i64 task, int) {
        FlushDenormals flush;
        heads.get()[task] = pack_head(p, get_sequence(p, task / p.kv_heads), task % p.kv_heads,
                                      packed.get() + task * size);
    });
    parallel(kv_tasks * group * blocks, slots, [&](i64 task, int slot) {
        FlushDenormals flush;
        // The last rows first: under a causal mask they are the most work.
        const i64 block = blocks - 1 - task % blocks, head = task / blocks;
        const Sequence s = get_sequence(p, head / p.heads);
        run(s, head % p.heads, heads.get()[head / group], block, slot);
    });
}

#define FUSEDNN_ATTENTION(T) \
    template void attention_forward<T>(const AttentionParams<T>&, const HeadArray<T>&, T*);
FUSEDNN_INSTANTIATE(FUSEDNN_ATTENTION)

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
