#include "ops/attention.h"

#include <algorithm>

#include "core/errors.h"

namespace fusednn::ops {

namespace {

// The size that two broadcast to, or -1.
i64 broadcast(i64 a, i64 b) {
    return a == b || b == 1 ? a : a == 1 ? b : -1;
}

std::string all_shapes(const Shape& query, const Shape& key, const Shape& value) {
    return "query " + text(query) + ", key " + text(key) + ", value " + text(value);
}

}  // namespace

AttentionShapes attention_shapes(const char* op, const Shape& query, const Shape& key,
                                 const Shape& value, bool enable_gqa) {
    const std::string name(op);
    const std::size_t rank = query.size();
    if (rank < 2 || rank > 4 || key.size() != rank || value.size() != rank) {
        throw Error(name + ": expected query (..., H, Tq, D), key (..., H, Tk, D) and value " +
                    "(..., H, Tk, Dv) with the same number of axes, got " +
                    all_shapes(query, key, value));
    }
    const auto axis = [&](const Shape& shape, std::size_t from_end) {
        return from_end <= rank ? shape[rank - from_end] : 1;
    };
    AttentionShapes s;
    s.queries = axis(query, 2);
    s.keys = axis(key, 2);
    s.dim = axis(query, 1);
    s.value_dim = axis(value, 1);
    if (axis(key, 1) != s.dim) {
        throw Error(name + ": key has " + std::to_string(axis(key, 1)) + " features, expected " +
                    std::to_string(s.dim) + " as query: " + all_shapes(query, key, value));
    }
    if (axis(value, 2) != s.keys) {
        throw Error(name + ": value has " + std::to_string(axis(value, 2)) + " rows, expected " +
                    std::to_string(s.keys) + " as key: " + all_shapes(query, key, value));
    }
    s.heads = axis(query, 3);
    s.kv_heads = broadcast(axis(key, 3), axis(value, 3));
    if (enable_gqa) {
        if (s.kv_heads < 0 || (s.kv_heads == 0 ? s.heads != 0 : s.heads % s.kv_heads != 0)) {
            throw Error(name + ": with enable_gqa query's heads must be a multiple of key's and " +
                        "value's: " + all_shapes(query, key, value));
        }
    } else {
        // Queries' one head for many of keys is broadcast, keys' one head for many is shared.
        const i64 heads = s.kv_heads < 0 ? -1 : broadcast(s.heads, s.kv_heads);
        if (heads < 0) {
            throw Error(name + ": heads differ (enable_gqa=True shares keys among groups): " +
                        all_shapes(query, key, value));
        }
        if (s.kv_heads != 1) s.kv_heads = heads;
        s.heads = heads;
        if (s.kv_heads > s.heads) s.kv_heads = s.heads;
    }
    const i64 kv_batch = broadcast(axis(key, 4), axis(value, 4));
    s.batch = kv_batch < 0 ? -1 : broadcast(axis(query, 4), kv_batch);
    if (s.batch < 0) {
        throw Error(name + ": batches differ: " + all_shapes(query, key, value));
    }
    if (rank == 4) s.output.push_back(s.batch);
    if (rank >= 3) s.output.push_back(s.heads);
    s.output.push_back(s.queries);
    s.output.push_back(s.value_dim);
    for (const Shape* shape : {&query, &key, &value}) checked_size(op, *shape);
    checked_size(op, s.output);
    // Work estimates multiply these.
    checked_size(op, {s.batch, s.heads, s.queries + 1, s.keys + 1});
    return s;
}

void mask_strides(const char* op, const AttentionShapes& shapes, const Shape& mask,
                  const i64* strides, i64 (&result)[4]) {
    const Shape full{shapes.batch, shapes.heads, shapes.queries, shapes.keys};
    bool fits = mask.size() <= 4;
    for (std::size_t axis = 0; fits && axis < 4; ++axis) {
        result[axis] = 0;
        const std::size_t missing = 4 - mask.size();
        if (axis < missing) continue;
        const i64 size = mask[axis - missing];
        if (size != 1) result[axis] = strides[axis - missing];
        fits = size == 1 || size == full[axis];
    }
    if (fits) return;
    const Shape scores(full.end() - std::ptrdiff_t(shapes.output.size()), full.end());
    throw Error(std::string(op) + ": attn_mask has shape " + text(mask) +
                ", which does not broadcast to the scores' shape " + text(scores));
}

void check_lengths(const char* op, const char* argument, const Shape& shape, const i64* lengths,
                   i64 batch, i64 most) {
    require_shape(op, argument, shape, {batch});
    for (i64 b = 0; b < batch; ++b) {
        if (lengths[b] >= 0 && lengths[b] <= most) continue;
        throw Error(std::string(op) + ": " + argument + "[" + std::to_string(b) + "] is " +
                    std::to_string(lengths[b]) + ", expected 0 to " + std::to_string(most));
    }
}

i64 check_starts(const char* op, const char* argument, const Shape& shape, const i64* starts,
                 i64 most) {
    const std::string what = std::string(op) + ": " + argument;
    if (shape.size() != 1 || shape[0] < 2) {
        throw Error(what + " has shape " + text(shape) +
                    ", expected (sequences + 1,) with at least one sequence");
    }
    if (starts[0] != 0) throw Error(what + "[0] is " + std::to_string(starts[0]) + ", expected 0");
    for (i64 i = 1; i < shape[0]; ++i) {
        if (starts[i] >= starts[i - 1] && starts[i] <= most) continue;
        throw Error(what + "[" + std::to_string(i) + "] is " + std::to_string(starts[i]) +
                    ", expected " + std::to_string(starts[i - 1]) + " to " + std::to_string(most));
    }
    return shape[0] - 1;
}

void check_dropout(const char* op, double dropout) {
    if (dropout >= 0 && dropout <= 1) return;
    std::string value = std::to_string(dropout);
    throw Error(std::string(op) + ": dropout_p is " + value + ", expected a probability in [0, 1]");
}

}  // namespace fusednn::ops
