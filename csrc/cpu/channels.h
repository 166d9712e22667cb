// Sums and maps over an array (outer, channels, inner) where each channel has values of its own.
//
// With inner = 1 lanes are neighbouring channels, else neighbouring positions of one channel.
#pragma once
#include "cpu/softmax.h"

namespace fusednn {
namespace FUSEDNN_ISA {

struct ChannelShape {
    i64 outer, channels, inner;
    FUSEDNN_INLINE i64 size() const { return outer * channels * inner; }
};

// out[n] = sum over a row of what term(k, load_at, v) puts into v[n]; of the last vector only the
// lanes of the row count.
template <int N, class T, class Term>
FUSEDNN_INLINE void row_sums(i64 size, double (&out)[N], const Term& term) {
    constexpr i64 lanes = kLanes<T>;
    const auto whole = [](const T* p) { return load(p); };
    CarefulSum<T> sum[N];
    i64 k = 0;
    for (; k + kStretch * lanes <= size; k += kStretch * lanes) {
        Vec<T> part[N] = {};
#pragma GCC unroll 4
        for (i64 i = 0; i < kStretch; ++i) {
            Vec<T> v[N];
            term(k + i * lanes, whole, v);
            for (int n = 0; n < N; ++n) part[n] += v[n];
        }
        for (int n = 0; n < N; ++n) sum[n].add(part[n]);
    }
    Vec<T> part[N] = {};
    for (; k + lanes <= size; k += lanes) {
        Vec<T> v[N];
        term(k, whole, v);
        for (int n = 0; n < N; ++n) part[n] += v[n];
    }
    if (k < size) {
        const i64 left = size - k;
        Vec<T> v[N];
        term(k, [left](const T* p) { return load_partial(p, left); }, v);
        for (int n = 0; n < N; ++n) part[n] += first_lanes<T>(v[n], left, Vec<T>{});
    }
    for (int n = 0; n < N; ++n) {
        sum[n].add(part[n]);
        out[n] = double(add_lanes<T>(sum[n].total));
    }
}

// Part of one channel: `rows` runs of `inner` elements, `pitch` apart.
template <class T>
struct PlaneSlice {
    i64 base, rows, pitch, inner, channel;
    static constexpr int count = 1;

    FUSEDNN_INLINE i64 size() const { return rows * inner; }
    // What an array (channels) holds for the channels of a vector's lanes.
    FUSEDNN_INLINE Vec<T> of_channel(const T* p) const { return broadcast(p[channel]); }
    // One value for each of the slice's `count` channels, in the lanes they belong to.
    FUSEDNN_INLINE Vec<T> of_slice(const T* p) const { return broadcast(p[0]); }
    // out[n][i] = sum for channel i of what term(element, load_at, v) puts into v[n].
    template <int N, class Term>
    FUSEDNN_INLINE void sums(double (&out)[N][kLanes<T>], const Term& term) const {
        for (int n = 0; n < N; ++n) out[n][0] = 0;
        for (i64 row = 0; row < rows; ++row) {
            const i64 start = base + row * pitch;
            double part[N];
            row_sums<N, T>(inner, part, [&](i64 k, auto load_at, Vec<T>(&v)[N]) {
                term(start + k, load_at, v);
            });
            for (int n = 0; n < N; ++n) out[n][0] += part[n];
        }
    }
};

// Part of `count` channels side by side: `rows` vectors, `pitch` apart.
template <class T>
struct ColumnSlice {
    i64 base, rows, pitch, channel;
    int count;

    FUSEDNN_INLINE i64 size() const { return rows; }
    FUSEDNN_INLINE Vec<T> of_channel(const T* p) const { return load_partial(p + channel, count); }
    FUSEDNN_INLINE Vec<T> of_slice(const T* p) const { return load_partial(p, count); }
    template <int N, class Term>
    FUSEDNN_INLINE void sums(double (&out)[N][kLanes<T>], const Term& term) const {
        const int left = count;
        CarefulSum<T> sum[N];
        for (i64 start = 0; start < rows; start += kStretch) {
            Vec<T> part[N] = {};
            for (i64 row = start; row < min_of(start + kStretch, rows); ++row) {
                Vec<T> v[N];
                const i64 at = base + row * pitch;
                if (left == kLanes<T>) {
                    term(at, [](const T* p) { return load(p); }, v);
                } else {
                    term(at, [left](const T* p) { return load_partial(p, left); }, v);
                }
                for (int n = 0; n < N; ++n) part[n] += v[n];
            }
            for (int n = 0; n < N; ++n) sum[n].add(part[n]);
        }
        for (int n = 0; n < N; ++n) {
            T lanes[kLanes<T>];
            store(lanes, sum[n].total);
            for (int i = 0; i < left; ++i) out[n][i] = double(lanes[i]);
        }
    }
};

// How channels are cut: `rows` of the outer index a slice, and where one alone is large, `length`
// of the inner index, so that a slice of a channel is about 64 KB.
struct ChannelCut {
    i64 rows, length, segments, slices;
};
FUSEDNN_INLINE ChannelCut cut_channels(const ChannelShape& s) {
    constexpr i64 most = 16384;
    ChannelCut cut{max_of(most / max_of(s.inner, i64(1)), i64(1)), s.inner, 1, 0};
    if (s.inner == 1) cut.rows = 1024;
    if (s.inner > 2 * most) {
        cut.length = most;
        cut.segments = ceil_div(s.inner, most);
    }
    cut.slices = ceil_div(s.outer, cut.rows) * cut.segments;
    return cut;
}
// Elements of one channel in a slice.
FUSEDNN_INLINE i64 slice_size(const ChannelShape& s, const ChannelCut& cut, i64 slice) {
    const i64 rows = min_of(cut.rows, s.outer - slice / cut.segments * cut.rows);
    return rows * min_of(cut.length, s.inner - slice % cut.segments * cut.length);
}

// body(slice, slice number) for every slice of every channel; `cost` of an element.
template <class T, class Body>
FUSEDNN_INLINE void for_slices(const ChannelShape& s, i64 cost, const Body& body) {
    const ChannelCut cut = cut_channels(s);
    const i64 width = s.inner == 1 ? kLanes<T> : 1, across = ceil_div(s.channels, width);
    const i64 tasks = across * cut.slices;
    parallel(tasks, parallel_slots(tasks, s.size() * cost), [&](i64 task, int) {
        const i64 slice = task / across, channel = task % across * width;
        const i64 first = slice / cut.segments * cut.rows;
        const i64 rows = min_of(cut.rows, s.outer - first), pitch = s.channels * s.inner;
        const i64 base = first * pitch + channel * s.inner;
        if (s.inner == 1) {
            const int count = int(min_of(width, s.channels - channel));
            body(ColumnSlice<T>{base, rows, pitch, channel, count}, slice);
        } else {
            const i64 start = slice % cut.segments * cut.length;
            const i64 length = min_of(cut.length, s.inner - start);
            body(PlaneSlice<T>{base + start, rows, pitch, length, channel}, slice);
        }
    });
}

// Lanes of one channel, or of neighbouring ones: at(p) is what an array (channels) holds for them.
template <class T>
struct OneChannel {
    i64 channel;
    FUSEDNN_INLINE Vec<T> operator()(const T* p) const { return broadcast(p[channel]); }
};

// fn(element, load_at, store_at, of_channel) for every vector of the array.
template <class T, class Fn>
FUSEDNN_INLINE void map_channels(const ChannelShape& s, const Fn& fn) {
    if (s.inner == 1) {
        for_row_blocks(s.outer, s.channels / 4 + 1, [&](i64 begin, i64 end) {
            for (i64 row = begin; row < end; ++row) {
                for_row_vectors<T>(s.channels, [&](i64 k, auto load_at, auto store_at) {
                    fn(row * s.channels + k, load_at, store_at,
                       [=](const T* of) { return load_at(of + k); });
                });
            }
        });
        return;
    }
    for_row_blocks(s.outer * s.channels, s.inner / 4 + 1, [&](i64 begin, i64 end) {
        for (i64 plane = begin; plane < end; ++plane) {
            const i64 base = plane * s.inner;
            const OneChannel<T> of_channel{plane % s.channels};
            for_row_vectors<T>(s.inner, [&](i64 k, auto load_at, auto store_at) {
                fn(base + k, load_at, store_at, of_channel);
            });
        }
    });
}

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
