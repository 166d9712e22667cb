// Attention: shapes of heads, masks, lengths and packed sequences.
#pragma once
#include "ops/shapes.h"

namespace fusednn::ops {

struct AttentionShapes {
    i64 batch, heads, kv_heads, queries, keys, dim, value_dim;
    Shape output;  // as many axes as the query
};

// query (..., H, Tq, D), key (..., Hkv, Tk, D), value (..., Hkv, Tk, Dv) with 2 to 4 axes, the same
// number each. Axes in front of T are equal or broadcast from 1; with enable_gqa, H is a multiple
// of the others' heads.
AttentionShapes attention_shapes(const char* op, const Shape& query, const Shape& key,
                                 const Shape& value, bool enable_gqa);

// Strides for (batch, heads, queries, keys) of a mask that broadcasts there; `strides` are those of
// the mask's own axes.
void mask_strides(const char* op, const AttentionShapes& shapes, const Shape& mask,
                  const i64* strides, i64 (&result)[4]);

// (batch) real rows each, from 0 to `most`.
void check_lengths(const char* op, const char* argument, const Shape& shape, const i64* lengths,
                   i64 batch, i64 most);
// Where packed sequences begin, and where the last one ends: from 0, never falling, to at most
// `most`. Returns how many sequences they are.
i64 check_starts(const char* op, const char* argument, const Shape& shape, const i64* starts,
                 i64 most);

// In [0, 1].
void check_dropout(const char* op, double dropout);

}  // namespace fusednn::ops
