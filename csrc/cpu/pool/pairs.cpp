// 2 x 2 max pooling with stride 2 and no padding: windows share nothing, so the input is read once,
// straight into registers, and the gradient is written once, without clearing it first.
// x, dx (planes, H, W); y, dy, argmax (planes, H / 2, W / 2).
#include "cpu/kernels.h"
#include "cpu/parallel.h"
#include "cpu/pool/lanes.h"
#include "cpu/pool/pool.h"
#include "cpu/pool/window.h"

namespace fusednn {
namespace FUSEDNN_ISA {

namespace {

// ---- one vector of windows ----------------------------------------

// Two vectors of columns from each of a window's rows.
template <class T>
struct Rows {
    Vec<T> top[2], bottom[2];
};

template <class T>
FUSEDNN_INLINE Vec<T> maxima(const Rows<T>& r) {
    const Vec<T> a = max_nan<T>(r.top[0], r.bottom[0]), b = max_nan<T>(r.top[1], r.bottom[1]);
    return max_nan<T>(even_lanes<T>(a, b), odd_lanes<T>(a, b));
}

// Where `later` takes the lead: it is larger, or a NaN (the last NaN counts).
template <class T>
FUSEDNN_INLINE Mask<T> beats(Vec<T> later, Vec<T> lead) {
    return (later > lead) | (later != later);
}

// Each row's first maximum, then the first of the two rows: row-major order.
template <class T>
FUSEDNN_INLINE Vec<T> maxima(const Rows<T>& r, Mask<T>& taps) {
    const Vec<T> a = even_lanes<T>(r.top[0], r.top[1]), b = odd_lanes<T>(r.top[0], r.top[1]);
    const Vec<T> c = even_lanes<T>(r.bottom[0], r.bottom[1]);
    const Vec<T> d = odd_lanes<T>(r.bottom[0], r.bottom[1]);
    const Mask<T> right_top = beats<T>(b, a), right_bottom = beats<T>(d, c);
    const Vec<T> top = select<T>(right_top, b, a), bottom = select<T>(right_bottom, d, c);
    const Mask<T> low = beats<T>(bottom, top);
    taps = low ? 2 - right_bottom : -right_top;
    return select<T>(low, bottom, top);
}

// The gradient of two vectors of columns of one row; the row's taps are tap and tap + 1.
template <class T>
FUSEDNN_INLINE void spread(Vec<T> dy, Mask<T> taps, Int<T> tap, Vec<T>& low, Vec<T>& high) {
    const Vec<T> left = select<T>(taps == tap, dy, Vec<T>{});
    const Vec<T> right = select<T>(taps == tap + 1, dy, Vec<T>{});
    low = interleave_low<T>(left, right);
    high = interleave_high<T>(left, right);
}

// ---- planes narrower than a vector ----------------------------------------

template <class T, int W, int... I>
FUSEDNN_INLINE void split_rows(Vec<T> a, Vec<T> b, Vec<T>& top, Vec<T>& bottom, detail::Seq<I...>) {
    top = __builtin_shufflevector(a, b, (I / W * 2 * W + I % W)...);
    bottom = __builtin_shufflevector(a, b, (I / W * 2 * W + W + I % W)...);
}
template <class T, int W, int... I>
FUSEDNN_INLINE void join_rows(Vec<T> top, Vec<T> bottom, Vec<T>& a, Vec<T>& b, detail::Seq<I...>) {
    constexpr int L = kLanes<T>;
    if constexpr (W == L) {
        a = top;
        b = bottom;
    } else {
        a = __builtin_shufflevector(top, bottom, (I / W % 2 * L + I / W / 2 * W + I % W)...);
        b = __builtin_shufflevector(top, bottom,
                                    (I / W % 2 * L + L / 2 + I / W / 2 * W + I % W)...);
    }
}

// Rows of W <= kLanes columns, W a divisor, with an even number of rows per plane: all rows lie end
// to end, so 4 vectors of x hold the windows of one vector of y, rows interleaved in blocks of W.
// Returns how many of the `rows` output rows it did, from the first on.
template <class T, int W, bool kTaps>
FUSEDNN_INLINE i64 narrow_forward(const T* x, i64 rows, T* y, std::uint8_t* argmax) {
    constexpr int L = kLanes<T>;
    if constexpr (W <= L) {
        constexpr auto order = typename detail::MakeSeq<L>::type{};
        const i64 chunks = rows * (W / 2) / L;
        for (i64 i = 0; i < chunks; ++i, x += 4 * L, y += L) {
            Rows<T> r;
            split_rows<T, W>(load(x), load(x + L), r.top[0], r.bottom[0], order);
            split_rows<T, W>(load(x + 2 * L), load(x + 3 * L), r.top[1], r.bottom[1], order);
            if constexpr (kTaps) {
                Mask<T> taps;
                store(y, maxima<T>(r, taps));
                detail::store_bytes<T>(argmax + i * L, taps);
            } else {
                store(y, maxima<T>(r));
            }
        }
        return chunks * L / (W / 2);
    }
    return 0;
}

template <class T, int W>
FUSEDNN_INLINE i64 narrow_backward(const T* dy, const std::uint8_t* argmax, i64 rows, T* dx) {
    constexpr int L = kLanes<T>;
    if constexpr (W <= L) {
        constexpr auto order = typename detail::MakeSeq<L>::type{};
        const i64 chunks = rows * (W / 2) / L;
        for (i64 i = 0; i < chunks; ++i, dy += L, dx += 4 * L) {
            const Vec<T> g = load(dy);
            const Mask<T> taps = detail::load_bytes<T>(argmax + i * L);
            Rows<T> r;
            spread<T>(g, taps, 0, r.top[0], r.top[1]);
            spread<T>(g, taps, 2, r.bottom[0], r.bottom[1]);
            for (int half = 0; half < 2; ++half) {
                Vec<T> a, b;
                join_rows<T, W>(r.top[half], r.bottom[half], a, b, order);
                store(dx + 2 * half * L, a);
                store(dx + (2 * half + 1) * L, b);
            }
        }
        return chunks * L / (W / 2);
    }
    return 0;
}

// ---- rows of any width ----------------------------------------

struct Plane {
    i64 h, w, out_h, out_w;
    // First element of the two input rows of an output row.
    FUSEDNN_INLINE i64 input_row(i64 row) const { return (row / out_h * h + row % out_h * 2) * w; }
    FUSEDNN_INLINE bool narrow() const { return h == 2 * out_h && w == 2 * out_w; }
};

// Output rows [begin, end).
template <class T, bool kTaps>
void forward_rows(const Plane& p, const T* x, const T* x_end, T* y, void* argmax, int bytes,
                  i64 begin, i64 end) {
    constexpr int L = kLanes<T>;
    if (p.narrow() && (!kTaps || bytes == 1)) {
        const T* from = x + p.input_row(begin);
        T* to = y + begin * p.out_w;
        auto* taps = static_cast<std::uint8_t*>(argmax) + (kTaps ? begin * p.out_w : 0);
        const i64 rows = end - begin;
        if (p.w == 16) begin += narrow_forward<T, 16, kTaps>(from, rows, to, taps);
        if (p.w == 8) begin += narrow_forward<T, 8, kTaps>(from, rows, to, taps);
        if (p.w == 4) begin += narrow_forward<T, 4, kTaps>(from, rows, to, taps);
        if (p.w == 2) begin += narrow_forward<T, 2, kTaps>(from, rows, to, taps);
    }
    for (i64 row = begin; row < end; ++row) {
        const T* top = x + p.input_row(row);
        for (i64 o = 0; o < p.out_w; o += L) {
            Rows<T> r;
            for (int half = 0; half < 2; ++half) {
                const i64 n = min_of(max_of(p.w - 2 * o - half * L, i64(0)), i64(L));
                const T* from = top + 2 * o + half * L;
                r.top[half] = load_before(from, n, x_end);
                r.bottom[half] = load_before(from + p.w, n, x_end);
            }
            const i64 at = row * p.out_w + o, last = end * p.out_w, n = p.out_w - o;
            if constexpr (kTaps) {
                Mask<T> taps;
                store_before(y + at, maxima<T>(r, taps), n, y + last);
                store_taps<T>(argmax, at, taps, n, last, bytes);
            } else {
                store_before(y + at, maxima<T>(r), n, y + last);
            }
        }
    }
}

template <class T>
void backward_rows(const Plane& p, const T* dy, const void* argmax, int bytes, T* dx, i64 begin,
                   i64 end, i64 all_rows) {
    constexpr int L = kLanes<T>;
    T* const dx_end = dx + p.input_row(end);
    if (p.narrow() && bytes == 1) {
        const T* from = dy + begin * p.out_w;
        const auto* taps = static_cast<const std::uint8_t*>(argmax) + begin * p.out_w;
        T* to = dx + p.input_row(begin);
        const i64 rows = end - begin;
        if (p.w == 16) begin += narrow_backward<T, 16>(from, taps, rows, to);
        if (p.w == 8) begin += narrow_backward<T, 8>(from, taps, rows, to);
        if (p.w == 4) begin += narrow_backward<T, 4>(from, taps, rows, to);
        if (p.w == 2) begin += narrow_backward<T, 2>(from, taps, rows, to);
    }
    const i64 all = all_rows * p.out_w;
    for (i64 row = begin; row < end; ++row) {
        // One input row after the other: what a row's last vector writes too much is written over.
        T* to = dx + p.input_row(row);
        for (int r = 0; r < 2; ++r, to += p.w) {
            for (i64 o = 0; o < p.out_w; o += L) {
                const i64 at = row * p.out_w + o, n = min_of(p.out_w - o, i64(L));
                Vec<T> low, high;
                spread<T>(load_before(dy + at, n, dy + all),
                          load_taps<T>(argmax, at, n, all, bytes), Int<T>(2 * r), low, high);
                store_before(to + 2 * o, low, 2 * n, dx_end);
                if (2 * n > L) store_before(to + 2 * o + L, high, 2 * n - L, dx_end);
            }
            if (p.w > 2 * p.out_w) to[p.w - 1] = 0;
        }
        if (row % p.out_h == p.out_h - 1 && p.h > 2 * p.out_h) {
            for (i64 i = 0; i < p.w; i += L) store_before(to + i, Vec<T>{}, p.w - i, dx_end);
        }
    }
}

FUSEDNN_INLINE Plane plane_of(const PoolParams& p) {
    return {p.in_size[1], p.in_size[2], p.out_size[1], p.out_size[2]};
}

}  // namespace

bool is_pairs(const PoolParams& p) {
    for (int i = 0; i < 3; ++i) {
        const i64 k = i == 0 ? 1 : 2;
        if (p.kernel[i] != k || p.stride[i] != k || p.pad[i] != 0 || p.dilation[i] != 1 ||
            p.out_size[i] != p.in_size[i] / k) {
            return false;
        }
    }
    return true;
}

template <class T>
void max_pool_pairs(const PoolParams& p, const T* x, T* y, void* argmax, int argmax_bytes) {
    const Plane plane = plane_of(p);
    const i64 planes = p.planes * p.in_size[0];
    const i64 rows = planes * plane.out_h, elements = planes * plane.h * plane.w;
    const T* x_end = x + elements;
    const i64 each = rows_per_task(rows, elements), tasks = ceil_div(rows, each);
    parallel(tasks, parallel_slots(tasks, elements * i64(sizeof(T))), [&](i64 task, int) {
        const i64 begin = task * each, end = min_of(begin + each, rows);
        if (argmax) {
            forward_rows<T, true>(plane, x, x_end, y, argmax, argmax_bytes, begin, end);
        } else {
            forward_rows<T, false>(plane, x, x_end, y, nullptr, 1, begin, end);
        }
    });
}

template <class T>
void max_pool_pairs_backward(const PoolParams& p, const T* dy, const void* argmax, int argmax_bytes,
                             T* dx) {
    const Plane plane = plane_of(p);
    const i64 planes = p.planes * p.in_size[0];
    const i64 rows = planes * plane.out_h, elements = planes * plane.h * plane.w;
    const i64 each = rows_per_task(rows, elements), tasks = ceil_div(rows, each);
    parallel(tasks, parallel_slots(tasks, elements * i64(sizeof(T))), [&](i64 task, int) {
        const i64 begin = task * each;
        backward_rows(plane, dy, argmax, argmax_bytes, dx, begin, min_of(begin + each, rows), rows);
    });
}

#define FUSEDNN_POOL_PAIRS(T)                                                     \
    template void max_pool_pairs<T>(const PoolParams&, const T*, T*, void*, int); \
    template void max_pool_pairs_backward<T>(const PoolParams&, const T*, const void*, int, T*);
FUSEDNN_INSTANTIATE(FUSEDNN_POOL_PAIRS)

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
