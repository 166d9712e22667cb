// What attention's kernels share: which keys a row sees, where sequences begin, blocks, scratch.
#pragma once
#include "cpu/gemm/tile.h"
#include "cpu/parallel.h"

namespace fusednn {
namespace FUSEDNN_ISA {

// Keys of a block. The scores of a panel of rows (14 x 256 floats, 14 KB) stay in L1, and K and V
// of a block (64 KB each at 64 floats a row) in L2, where the panels of a block of rows find them.
constexpr i64 kKeyBlock = 256;
// Most rows of queries that pass over the keys together: K and V come from memory once for so many,
// and their sums take 32 KB.
constexpr i64 kQueryBlock = 128;

// Up to so many rows a diagonal decides how they are cut.
constexpr i64 kDiagonalRows = 128;

struct KeyRange {
    i64 begin, end;
    FUSEDNN_INLINE bool empty() const { return begin >= end; }
};

FUSEDNN_INLINE KeyRange intersect(KeyRange a, KeyRange b) {
    return {max_of(a.begin, b.begin), min_of(a.end, b.end)};
}

// One sequence: its place in the axes of queries and keys, and who sees whom in it. Rows and keys
// are counted from its beginning.
struct Sequence {
    i64 batch;
    i64 number;  // among all sequences of all batches
    i64 query0, queries;
    i64 key0, keys;
    i64 offset, left, right;

    // The keys row i may see, masks apart. Both ends never fall as i grows.
    FUSEDNN_INLINE KeyRange range(i64 i) const {
        const i64 at = i + offset;
        return {min_of(max_of(at - left, i64(0)), keys),
                max_of(min_of(at + right + 1, keys), i64(0))};
    }
    // The keys that some of the rows [row0, row1) may see.
    FUSEDNN_INLINE KeyRange range(i64 row0, i64 row1) const {
        return {range(row0).begin, range(row1 - 1).end};
    }
};

template <class T>
FUSEDNN_INLINE Sequence get_sequence(const AttentionParams<T>& p, i64 number) {
    Sequence s;
    s.number = number;
    s.batch = number / p.sequences;
    const i64 part = number % p.sequences;
    s.query0 = p.query_starts ? p.query_starts[part] : 0;
    s.queries = p.query_starts    ? p.query_starts[part + 1] - s.query0
                : p.query_lengths ? p.query_lengths[s.batch]
                                  : p.queries;
    s.key0 = p.key_starts ? p.key_starts[part] : 0;
    s.keys = p.key_starts    ? p.key_starts[part + 1] - s.key0
             : p.key_lengths ? p.key_lengths[s.batch]
                             : p.keys;
    s.offset = p.lower_right ? s.keys - s.queries : 0;
    s.left = p.left;
    s.right = p.right;
    return s;
}

// How rows are cut into panels: tiles of full height are fastest, but the rows of one are computed
// for all keys that some of them see. Where that ends at a diagonal, lower ones do less in vain.
FUSEDNN_INLINE RowPanels row_panels(const Sequence& s, i64 rows) {
    const bool diagonal = s.right < s.keys && rows <= kDiagonalRows;
    return RowPanels(rows, diagonal ? min_of(kTileRows, 8) : kTileRows);
}

// Whether some row does not see all keys: then NaN and infinities need care, see careful_product.
template <class T>
FUSEDNN_INLINE bool is_masked(const AttentionParams<T>& p) {
    return p.mask || p.bias || p.key_lengths || p.left < p.queries + p.keys ||
           p.right < p.queries + p.keys;
}

// Rows of one head in place, or in a dense copy.
template <class T>
struct Rows {
    const T* data;
    i64 stride;
    FUSEDNN_INLINE const T* operator[](i64 row) const { return data + row * stride; }
};

template <class T>
FUSEDNN_INLINE Rows<T> rows_of(const HeadArray<const T>& array, i64 batch, i64 head, i64 row0) {
    return {array.data + batch * array.batch + head * array.head + row0 * array.row, array.row};
}

// body(keys, values): those of the call, in the type in which they are stored.
template <class T, class Body>
FUSEDNN_INLINE void with_stored(const AttentionParams<T>& p, const Body& body) {
    if constexpr (sizeof(T) == sizeof(float)) {
        if (p.half_key.data) return body(p.half_key, p.half_value);
    }
    body(p.key, p.value);
}

// A pointer into a mask or bias at row 0 and key 0 of a head of a sequence; null stays null.
template <class M>
struct MaskRows {
    const M* data;
    i64 row, col;
};

template <class M>
FUSEDNN_INLINE MaskRows<M> mask_of(const M* data, const i64 (&stride)[4], const Sequence& s,
                                   i64 head) {
    if (!data) return {nullptr, 0, 0};
    return {
        data + s.batch * stride[0] + head * stride[1] + s.query0 * stride[2] + s.key0 * stride[3],
        stride[2], stride[3]};
}

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
