#include "ops/embedding.h"

#include "bindings/array.h"
#include "bindings/init.h"
#include "bindings/ints.h"
#include "core/dispatch.h"
#include "core/errors.h"

namespace fusednn::bindings {

namespace {

bool is_unsigned(py::handle array) {
    const auto* descr = py::detail::array_proxy(array.ptr())->descr;
    return py::detail::array_descriptor_proxy(descr)->kind == 'u';
}

py::object embedding_forward(py::handle ids_object, py::handle weight_object) {
    const char* op = "embedding";
    const Array ids = Array::integer(ids_object, op, "input");
    const Array weight = Array::floating(weight_object, op, "weight");
    const ops::Shape table = ops::shape_of(weight.view());
    ops::Shape shape = ops::shape_of(ids.view());
    ops::check_table(op, table);
    ops::check_ids(op, "input", ids.data<i64>(), shape, table[0],
                   "weight of shape " + ops::text(table), is_unsigned(ids_object));
    shape.push_back(table[1]);
    ops::checked_size(op, shape);
    void* y;
    py::object result = new_array(weight.dtype(), int(shape.size()), shape.data(), &y);
    GilRelease release(ids.size() * table[1] * 4);
    with_dtype(weight.dtype(), [&](auto zero) {
        using T = decltype(zero);
        kernels<T>().embedding_forward(ids.size(), table[1], ids.data<i64>(), weight.data<T>(),
                                       static_cast<T*>(y));
    });
    return result;
}

// padding_idx: -1 for none.
py::object embedding_backward(py::handle grad, py::handle ids_object, py::handle rows_object,
                              py::handle padding_idx, bool by_frequency) {
    const char* op = "embedding";
    const Array dy = Array::floating(grad, op, "grad");
    const Array ids = Array::integer(ids_object, op, "input");
    const i64 rows = to_int(rows_object, op, "num_embeddings");
    const ops::Shape found = ops::shape_of(dy.view());
    ops::Shape shape = ops::shape_of(ids.view());
    ops::check_ids(op, "input", ids.data<i64>(), shape, rows, "weight", is_unsigned(ids_object));
    shape.push_back(found.empty() ? 0 : found.back());
    ops::require_shape(op, "grad", found, shape);
    const i64 size[2] = {rows, shape.back()};
    void* dtable;
    py::object result = new_array(dy.dtype(), 2, size, &dtable);
    const i64 skipped = to_int(padding_idx, op, "padding_idx");
    GilRelease release((ids.size() + rows) * size[1] * 4);
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
        kernels<T>().embedding_backward(rows, size[1], places.starts.data(), places.order.data(),
                                        dy.data<T>(), scale.empty() ? nullptr : scale.data(),
                                        static_cast<T*>(dtable));
    });
    return result;
}

py::object rotary(py::handle input, py::handle cos, py::handle sin, py::handle position_ids,
                  bool interleaved, py::handle num_heads, py::handle rotary_dim, bool inverse) {
    const char* op = "rotary_embedding";
    const Array x = Array::floating(input, op, "input");
    const Array c = Array::floating_like(cos, x, op, "cos");
    const Array s = Array::floating_like(sin, x, op, "sin");
    std::optional<Array> ids;
    if (!position_ids.is_none()) ids = Array::integer(position_ids, op, "position_ids");
    ops::RotaryShapes shapes = ops::rotary_shapes(
        op, ops::shape_of(x.view()), ops::shape_of(c.view()), ops::shape_of(s.view()),
        ids.has_value(), to_int(num_heads, op, "num_heads"), to_int(rotary_dim, op, "rotary_dim"));
    shapes.params.interleaved = interleaved;
    shapes.params.inverse = inverse;
    const i64* rows = nullptr;
    std::vector<i64> counted;
    if (ids) {
        ops::require_shape(op, "position_ids", ops::shape_of(ids->view()), shapes.positions);
        ops::check_ids(op, "position_ids", ids->data<i64>(), shapes.positions, shapes.angles,
                       "cos of shape " + ops::text(ops::shape_of(c.view())),
                       is_unsigned(position_ids));
        rows = ids->data<i64>();
    } else if (!shapes.per_place) {
        counted = ops::counted_positions(shapes.positions);
        rows = counted.data();
    }
    void* y;
    py::object result = new_array(x.dtype(), x.ndim(), x.shape(), &y);
    GilRelease release(x.size() * 4);
    with_dtype(x.dtype(), [&](auto zero) {
        using T = decltype(zero);
        kernels<T>().rotary(shapes.params, x.data<T>(), c.data<T>(), s.data<T>(), rows,
                            static_cast<T*>(y));
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
