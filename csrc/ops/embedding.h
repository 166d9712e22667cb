// Embeddings: which rows are named, and where; and the geometry of rotary positions.
#pragma once
#include "ops/shapes.h"

namespace fusednn::ops {

// Every id must name one of `rows`; the error names the first that does not, and where it stands.
void check_ids(const char* op, const char* argument, const i64* ids, const Shape& shape, i64 rows,
               const std::string& where, bool is_unsigned);
// That error, of the id at place `at`.
[[noreturn]] void refuse_id(const char* op, const char* argument, i64 id, const Shape& shape,
                            i64 at, i64 rows, const std::string& where, bool is_unsigned);

// A table of embeddings has two axes.
void check_table(const char* op, const Shape& table);

// The places that name each row, row by row: order[starts[r] ... starts[r + 1]), ascending. Those
// of `skipped` are left out.
struct Places {
    std::vector<i64> starts, order;
};
Places places_of(const i64* ids, i64 count, i64 rows, i64 skipped);

struct RotaryShapes {
    RotaryParams params;
    Shape positions;  // (batch, length)
    i64 angles;       // rows of cos and sin
    bool per_place;   // cos and sin have a row for each place of the batch
};
// Input (N, heads, L, E), or (N, L, heads * E) with num_heads; cos, sin (positions, rotated / 2),
// or (N, L, rotated / 2). num_heads is 0 where it was not given; rotary_dim 0 for all of E.
RotaryShapes rotary_shapes(const char* op, const Shape& input, const Shape& cos, const Shape& sin,
                           bool has_ids, i64 num_heads, i64 rotary_dim);
// 0, 1, 2 ... for each of a batch: (batch, length).
std::vector<i64> counted_positions(const Shape& positions);

}  // namespace fusednn::ops
