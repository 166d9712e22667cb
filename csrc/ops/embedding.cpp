#include "ops/embedding.h"

#include "core/errors.h"

namespace fusednn::ops {

void check_ids(const char* op, const char* argument, const i64* ids, const Shape& shape, i64 rows,
               const std::string& where, bool is_unsigned) {
    const i64 count = checked_size(op, shape);
    for (i64 i = 0; i < count; ++i) {
        if (ids[i] >= 0 && ids[i] < rows) continue;
        refuse_id(op, argument, ids[i], shape, i, rows, where, is_unsigned);
    }
}

void refuse_id(const char* op, const char* argument, i64 id, const Shape& shape, i64 at, i64 rows,
               const std::string& where, bool is_unsigned) {
    const std::string value = is_unsigned ? std::to_string(std::uint64_t(id)) : std::to_string(id);
    throw Error(std::string(op) + ": " + argument + " value " + value + index_text(shape, at) +
                " is out of bounds for the " + std::to_string(rows) + " rows of " + where);
}

void check_table(const char* op, const Shape& table) {
    if (table.size() == 2) return;
    throw Error(std::string(op) + ": weight has shape " + text(table) + ", expected (rows, width)");
}

Places places_of(const i64* ids, i64 count, i64 rows, i64 skipped) {
    Places places;
    places.starts.assign(std::size_t(rows) + 1, 0);
    for (i64 i = 0; i < count; ++i) {
        if (ids[i] != skipped) ++places.starts[std::size_t(ids[i]) + 1];
    }
    for (std::size_t r = 0; r < std::size_t(rows); ++r) places.starts[r + 1] += places.starts[r];
    places.order.resize(std::size_t(places.starts.back()));
    std::vector<i64> next(places.starts.begin(), places.starts.end() - 1);
    for (i64 i = 0; i < count; ++i) {
        if (ids[i] != skipped) places.order[std::size_t(next[std::size_t(ids[i])]++)] = i;
    }
    return places;
}

RotaryShapes rotary_shapes(const char* op, const Shape& input, const Shape& cos, const Shape& sin,
                           bool has_ids, i64 num_heads, i64 rotary_dim) {
    const std::string name = op;
    if (input.size() != 4 && input.size() != 3) {
        throw Error(name + ": input has shape " + text(input) +
                    ", expected (N, heads, L, E), or (N, L, heads * E) with num_heads");
    }
    RotaryShapes shapes;
    RotaryParams& p = shapes.params;
    const bool split = input.size() == 4;
    p.batch = input[0];
    p.heads = split ? input[1] : num_heads;
    p.length = input[split ? 2 : 1];
    if (!split && (num_heads < 1 || input[2] % num_heads)) {
        throw Error(name + ": num_heads is " + std::to_string(num_heads) +
                    ", expected a divisor of the last size of input of shape " + text(input));
    }
    if (split && num_heads != 0 && num_heads != input[1]) {
        throw Error(name + ": num_heads is " + std::to_string(num_heads) + ", expected " +
                    std::to_string(input[1]) + " for input of shape " + text(input));
    }
    p.width = split ? input[3] : input[2] / num_heads;
    p.position_stride = split ? p.width : input[2];
    p.head_stride = split ? p.length * p.width : p.width;
    p.batch_stride = p.heads * p.length * p.width;
    p.rotated = rotary_dim == 0 ? p.width : rotary_dim;
    if (p.rotated % 2 || p.rotated < 0 || p.rotated > p.width) {
        throw Error(name + ": rotary_dim is " + std::to_string(p.rotated) +
                    ", expected an even number of at most the head's width " +
                    std::to_string(p.width));
    }
    require_shape(op, "sin", sin, cos);
    const i64 half = p.rotated / 2;
    shapes.positions = {p.batch, p.length};
    shapes.per_place = !has_ids && cos.size() == 3;
    if (shapes.per_place) {
        require_shape(op, "cos", cos, {p.batch, p.length, half});
        shapes.angles = p.batch * p.length;
    } else {
        if (cos.size() != 2 || cos[1] != half || (!has_ids && cos[0] < p.length)) {
            throw Error(name + ": cos has shape " + text(cos) + ", expected (" +
                        (has_ids ? std::string("positions") : std::to_string(p.length)) + ", " +
                        std::to_string(half) + ")" + (has_ids ? "" : " or more rows"));
        }
        shapes.angles = cos[0];
    }
    checked_size(op, input);
    return shapes;
}

std::vector<i64> counted_positions(const Shape& positions) {
    std::vector<i64> rows;
    for (i64 b = 0; b < positions[0]; ++b) {
        for (i64 t = 0; t < positions[1]; ++t) rows.push_back(t);
    }
    return rows;
}

}  // namespace fusednn::ops
