#include "ops/embedding.h"

#include "bindings/call.h"
#include "bindings/init.h"
#include "bindings/ints.h"
#include "core/errors.h"
#include "cuda/embedding/places.h"

namespace fusednn::bindings {

namespace {

// Every id must name one of `rows`.
void check_ids(const Call& call, py::handle object, const char* argument, const Array& ids,
               const ops::Shape& shape, i64 rows, const std::string& where) {
    const bool is_unsigned = call.is_unsigned(object);
    if (call.device() == Device::cpu) {
        return ops::check_ids(call.op(), argument, ids.data<i64>(), shape, rows, where,
                              is_unsigned);
    }
    i64 value;
    const i64 wrong = call.first_outside(ids, rows, nullptr, &value);
    if (wrong < 0) return;
    ops::refuse_id(call.op(), argument, value, shape, wrong, rows, where, is_unsigned);
}

py::object embedding_forward(py::handle ids_object, py::handle weight_object) {
    const char* op = "embedding";
    Call call(op);
    const Array ids = call.integer(ids_object, "input");
    const Array weight = call.floating_or_half(weight_object, "weight");
    const ops::Shape table = ops::shape_of(weight.view());
    ops::Shape shape = ops::shape_of(ids.view());
    ops::check_table(op, table);
    check_ids(call, ids_object, "input", ids, shape, table[0],
              "weight of shape " + ops::text(table));
    shape.push_back(table[1]);
    ops::checked_size(op, shape);
    void* y;
    py::object result = call.new_array(weight.dtype(), int(shape.size()), shape.data(), &y);
    const Run run(call, ids.size() * table[1] * 4);
    with_device_dtype(weight.dtype(), [&](auto zero) {
        using T = decltype(zero);
        run.kernels<T>().embedding_forward(ids.size(), table[1], ids.data<i64>(), weight.data<T>(),
                                           static_cast<T*>(y));
    });
    return result;
}

// The gradient on a GPU, where CuPy sorts the places by their ids.
void gather_rows(Call& call, const Array& dy, const Array& ids, i64 rows, i64 width, i64 skipped,
                 bool by_frequency, void* dtable) {
    const i64 count = ids.size(), starts_size = rows + 1;
    i64 *key, *start;
    const py::object keys = call.new_int64_array(1, &count, &key);
    const py::object starts = call.new_int64_array(1, &starts_size, &start);
    void* scale = nullptr;
    py::object scales;
    if (by_frequency) scales = call.new_array(accumulate_dtype(dy.dtype()), 1, &rows, &scale);
    {
        const Run run(call, count * 8);
        cuda::embedding_keys(count, rows, skipped, ids.data<i64>(), key);
    }
    const py::object sorted = keys.attr("argsort")(py::arg("kind") = "stable");
    const Array order = call.integer(sorted, "order");
    const Run run(call, (count + rows) * width * 4);
    with_device_dtype(dy.dtype(), [&](auto zero) {
        using T = decltype(zero);
        auto* factors = static_cast<Accumulate<T>*>(scale);
        cuda::embedding_starts(rows, count, key, order.data<i64>(), start, factors);
        run.kernels<T>().embedding_backward(rows, width, start, order.data<i64>(), dy.data<T>(),
                                            factors, static_cast<T*>(dtable));
    });
}

// padding_idx: -1 for none.
py::object embedding_backward(py::handle grad, py::handle ids_object, py::handle rows_object,
                              py::handle padding_idx, bool by_frequency) {
    const char* op = "embedding";
    Call call(op);
    const Array dy = call.floating_or_half(grad, "grad");
    const Array ids = call.integer(ids_object, "input");
    const i64 rows = to_int(rows_object, op, "num_embeddings");
    const ops::Shape found = ops::shape_of(dy.view());
    ops::Shape shape = ops::shape_of(ids.view());
    check_ids(call, ids_object, "input", ids, shape, rows, "weight");
    shape.push_back(found.empty() ? 0 : found.back());
    ops::require_shape(op, "grad", found, shape);
    const i64 size[2] = {rows, shape.back()};
    void* dtable;
    py::object result = call.new_array(dy.dtype(), 2, size, &dtable);
    const i64 skipped = to_int(padding_idx, op, "padding_idx");
    if (call.device() == Device::cuda) {
        gather_rows(call, dy, ids, rows, size[1], skipped, by_frequency, dtable);
        return result;
    }
    const Run run(call, (ids.size() + rows) * size[1] * 4);
    const ops::Places places = ops::places_of(ids.data<i64>(), ids.size(), rows, skipped);
    with_dtype(dy.dtype(), [&](auto zero) {
        using T = decltype(zero);
        std::vector<T> scale;
        if (by_frequency) {
            for (i64 r = 0; r < rows; ++r) {
                const i64 uses = places.starts[std::size_t(r) + 1] - places.starts[std::size_t(r)];
                scale.push_back(T(1) / T(uses ? uses : 1));
            }
        }
        run.kernels<T>().embedding_backward(
            rows, size[1], places.starts.data(), places.order.data(), dy.data<T>(),
            scale.empty() ? nullptr : scale.data(), static_cast<T*>(dtable));
    });
    return result;
}

// 0, 1, ... for each image, in the memory of the current GPU.
py::object repeated_positions(const ops::Shape& positions) {
    const py::module_ cupy = py::module_::import("cupy");
    return cupy.attr("tile")(cupy.attr("arange")(positions[1], py::arg("dtype") = "int64"),
                             positions[0]);
}

py::object rotary(py::handle input, py::handle cos, py::handle sin, py::handle position_ids,
                  bool interleaved, py::handle num_heads, py::handle rotary_dim, bool inverse) {
    const char* op = "rotary_embedding";
    Call call(op);
    const Array x = call.floating_or_half(input, "input");
    const Array c = call.accumulated_like(cos, x, "cos");
    const Array s = call.accumulated_like(sin, x, "sin");
    std::optional<Array> ids;
    if (!position_ids.is_none()) ids = call.integer(position_ids, "position_ids");
    ops::RotaryShapes shapes = ops::rotary_shapes(
        op, ops::shape_of(x.view()), ops::shape_of(c.view()), ops::shape_of(s.view()),
        ids.has_value(), to_int(num_heads, op, "num_heads"), to_int(rotary_dim, op, "rotary_dim"));
    shapes.params.interleaved = interleaved;
    shapes.params.inverse = inverse;
    const i64* rows = nullptr;
    std::vector<i64> counted;
    std::optional<Array> on_device;
    if (ids) {
        ops::require_shape(op, "position_ids", ops::shape_of(ids->view()), shapes.positions);
        check_ids(call, position_ids, "position_ids", *ids, shapes.positions, shapes.angles,
                  "cos of shape " + ops::text(ops::shape_of(c.view())));
        rows = ids->data<i64>();
    } else if (!shapes.per_place) {
        if (call.device() == Device::cpu) {
            counted = ops::counted_positions(shapes.positions);
            rows = counted.data();
        } else {
            on_device = call.integer(repeated_positions(shapes.positions), "position_ids");
            rows = on_device->data<i64>();
        }
    }
    void* y;
    py::object result = call.new_array(x.dtype(), x.ndim(), x.shape(), &y);
    const Run run(call, x.size() * 4);
    with_device_dtype(x.dtype(), [&](auto zero) {
        using T = decltype(zero);
        run.kernels<T>().rotary(shapes.params, x.data<T>(), c.data<Accumulate<T>>(),
                                s.data<Accumulate<T>>(), rows, static_cast<T*>(y));
    });
    return result;
}

}  // namespace

void init_embedding(py::module_& m) {
    m.def("embedding_forward", &embedding_forward);
    m.def("embedding_backward", &embedding_backward);
    m.def("rotary", &rotary);
}

}  // namespace fusednn::bindings
