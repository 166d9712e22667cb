// Keys and values in bfloat16 beside float queries, a cache in half the bytes: few queries read
// them as they are (few.cu), other kernels read float copies.
#pragma once
#include <type_traits>

#include "cuda/attention/problem.h"
#include "cuda/kernels.h"

namespace fusednn::cuda {

// Arrays without elements have no address.
template <class T>
bool has_half_cache(const AttentionParams<T>& p) {
    return p.half_key.data || p.half_value.data;
}

// ---- copies ----------------------------------------

// to (batch, heads, rows, width), dense = from, widened; axes that `from` broadcasts are of size 1.
void widen_heads(const HeadArray<const BFloat16>& from, i64 batch, i64 heads, i64 rows, i64 width,
                 float* to);

// A HeadArray as floats, while this lives.
class WideHeads {
  public:
    WideHeads(const HeadArray<const BFloat16>& from, i64 batch, i64 heads, i64 rows, i64 width)
        : row_(rows * width),
          batch_(from.batch ? batch : 1),
          heads_(from.head ? heads : 1),
          copy_(batch_ * heads_ * row_),
          array_{copy_.get(), from.batch ? heads_ * row_ : 0, from.head ? row_ : 0, width} {
        widen_heads(from, batch_, heads_, rows, width, copy_.get());
    }
    const HeadArray<const float>& array() const { return array_; }

  private:
    const i64 row_, batch_, heads_;
    const Workspace<float> copy_;
    const HeadArray<const float> array_;
};

// run(p), with keys and values of T.
template <class T, class Run>
void with_wide_cache(const AttentionParams<T>& p, const Run& run) {
    if constexpr (std::is_same_v<T, float>) {
        if (has_half_cache(p)) {
            const WideHeads keys(p.half_key, p.batch, p.kv_heads, p.keys, p.dim);
            const WideHeads values(p.half_value, p.batch, p.kv_heads, p.keys, p.value_dim);
            AttentionParams<T> wide = p;
            wide.key = keys.array();
            wide.value = values.array();
            wide.half_key = wide.half_value = {};
            return run(wide);
        }
    }
    run(p);
}

// Of keys and values that are as float as queries, or (bfloat16 beside float) widened where they
// are read.
template <class T, class K>
FUSEDNN_DEVICE Accumulate<T> widened(const Format<T>& format, const K& x) {
    if constexpr (std::is_same_v<T, K>) {
        return format.widen(x);
    } else {
        return widen(x);
    }
}
template <class T, class K>
FUSEDNN_DEVICE Rows<const K> stored_rows(const HeadArray<const T>& same,
                                         const HeadArray<const BFloat16>& half, const Item& item) {
    if constexpr (std::is_same_v<T, K>) {
        return rows_of(same, item.batch, item.head, 0);
    } else {
        return rows_of(half, item.batch, item.head, 0);
    }
}

}  // namespace fusednn::cuda
