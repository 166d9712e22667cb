#include "ops/attention.h"

#include <cmath>
#include <string>

#include "bindings/call.h"
#include "bindings/init.h"
#include "bindings/ints.h"
#include "core/errors.h"

namespace fusednn::bindings {

namespace {

constexpr const char* kOp = "scaled_dot_product_attention";
// Windows reach no further, so that kernels add positions without a thought.
constexpr i64 kFar = i64(1) << 40;

void require_dtype(const Array& array, const Array& query, const char* argument) {
    if (array.dtype() == query.dtype()) return;
    throw TypeMismatch(std::string(kOp) + ": " + argument + " has dtype " +
                       dtype_name(array.dtype()) + ", expected " + dtype_name(query.dtype()) +
                       " like query");
}

// Keys or values: of query's dtype, or halves of floats beside a float32 query.
Array stored(Call& call, py::handle object, const char* argument) {
    return Array::is_bfloat16(object) ? Array::bfloat16(object, kOp, argument)
                                      : call.strided(object, argument);
}

// 'f' for floats, 'b' for booleans: of arrays on either side, 0 for what is none.
char kind_of(py::handle object) {
    if (py::isinstance<py::array>(object)) {
        return std::string(py::str(object.attr("dtype").attr("kind")))[0];
    }
    if (!is_device_array(object)) return 0;
    const std::string type = read_device_array(object, kOp, "attn_mask").type;
    return type.size() > 1 ? type[1] : '?';
}

double number(py::handle object, const char* argument) {
    const double value = PyFloat_AsDouble(object.ptr());
    if (value == -1.0 && PyErr_Occurred()) {
        PyErr_Clear();
        throw TypeMismatch(std::string(kOp) + ": " + argument + " must be a number, got " +
                           Py_TYPE(object.ptr())->tp_name);
    }
    return value;
}

// What is rarely given, in the order of the tuple `extra`.
struct Extra {
    i64 left = kFar, right = kFar;
    double softcap = 0, dropout = 0;
    std::uint64_t dropout_key = 0;
    std::optional<Array> query_lengths, key_lengths, query_starts, key_starts;

    Extra(Call& call, py::handle object) {
        if (object.is_none()) return;
        const auto extra = py::reinterpret_borrow<py::tuple>(object);
        left = reach(extra[0], "window[0]");
        right = reach(extra[1], "window[1]");
        softcap = number(extra[2], "softcap");
        dropout = number(extra[3], "dropout_p");
        dropout_key = extra[4].cast<std::uint64_t>();
        const char* names[] = {"lengths", "lengths", "cu_seqlens", "cu_seqlens"};
        std::optional<Array>* arrays[] = {&query_lengths, &key_lengths, &query_starts, &key_starts};
        for (std::size_t i = 0; i < 4; ++i) {
            const py::object array = extra[5 + i];
            if (!array.is_none()) *arrays[i] = call.integer(array, names[i]);
        }
        ops::check_dropout(kOp, dropout);
    }

  private:
    static i64 reach(py::handle object, const char* argument) {
        if (object.is_none()) return kFar;
        const i64 value = to_int(object, kOp, argument);
        return value < 0 || value > kFar ? kFar : value;
    }
};

// All arguments of a call, checked. `again`: an earlier one has checked what lengths say.
struct AttentionCall {
    Call call{kOp};
    Array query, key, value;
    std::optional<Array> mask, bias;
    Extra extra;
    ops::AttentionShapes shapes;
    i64 mask_stride[4] = {};
    int causal;
    double scale;
    i64 sequences = 1;

    AttentionCall(py::handle q, py::handle k, py::handle v, py::handle attn_mask, int is_causal,
                  py::handle scale_object, bool enable_gqa, py::handle extra_object,
                  bool again = false)
        : query(call.strided(q, "query")),
          key(stored(call, k, "key")),
          value(stored(call, v, "value")),
          extra(call, extra_object),
          causal(is_causal) {
        check_stored();
        shapes = ops::attention_shapes(kOp, ops::shape_of(query.view()), ops::shape_of(key.view()),
                                       ops::shape_of(value.view()), enable_gqa);
        scale = scale_object.is_none() ? (shapes.dim ? 1 / std::sqrt(double(shapes.dim)) : 1.0)
                                       : number(scale_object, "scale");
        if (!attn_mask.is_none()) read_mask(attn_mask);
        read_sequences(again && call.device() == Device::cuda);
    }

    template <class T>
    AttentionParams<T> params() const {
        AttentionParams<T> p{};
        p.batch = shapes.batch;
        p.heads = shapes.heads;
        p.kv_heads = shapes.kv_heads;
        p.queries = shapes.queries;
        p.keys = shapes.keys;
        p.dim = shapes.dim;
        p.value_dim = shapes.value_dim;
        p.query = heads_of<T>(query);
        if (has_half_cache()) {
            p.half_key = heads_of<BFloat16>(key);
            p.half_value = heads_of<BFloat16>(value);
        } else {
            p.key = heads_of<T>(key);
            p.value = heads_of<T>(value);
        }
        p.mask = mask ? mask->data<std::uint8_t>() : nullptr;
        p.bias = bias ? bias->data<T>() : nullptr;
        for (int axis = 0; axis < 4; ++axis) {
            p.mask_stride[axis] = p.bias_stride[axis] = mask_stride[axis];
        }
        p.lower_right = causal == 2;
        p.left = extra.left;
        p.right = causal ? 0 : extra.right;
        p.query_lengths = ints(extra.query_lengths);
        p.key_lengths = ints(extra.key_lengths);
        p.sequences = sequences;
        p.query_starts = ints(extra.query_starts);
        p.key_starts = ints(extra.key_starts);
        p.scale = scale;
        p.softcap = extra.softcap;
        p.dropout = extra.dropout;
        p.dropout_key = extra.dropout_key;
        return p;
    }

    // Those of a call that stops at the weights.
    template <class T>
    AttentionParams<T> weight_params() const {
        AttentionParams<T> p = params<T>();
        p.value_dim = 0;
        p.value = {nullptr, 0, 0, 0};
        p.half_value = {nullptr, 0, 0, 0};
        return p;
    }

    bool has_half_cache() const {
        return key.dtype() == DType::bf16 && query.dtype() != DType::bf16;
    }
    void refuse_half() const {
        if (!has_half_cache()) return;
        throw TypeMismatch(std::string(kOp) +
                           ": no gradient flows where key and value are bfloat16; call it inside " +
                           "no_grad(), or with float32");
    }

    // Multiplications and additions, roughly.
    i64 cost() const {
        return query.size() / (shapes.dim ? shapes.dim : 1) * shapes.keys *
               (shapes.dim + shapes.value_dim + 8);
    }

    // The layout of a result (batch, heads, rows, width) that lies in memory as `like` does.
    py::object new_heads(const Array& like, i64 heads, i64 rows, i64 width, void** data,
                         i64 (&stride)[3]) {
        const bool beside = like.ndim() == 4 && heads > 1 && rows > 1 &&
                            like.stride(1) < like.stride(2) && like.stride(1) > 0;
        stride[0] = heads * rows * width;
        stride[1] = beside ? width : rows * width;
        stride[2] = beside ? heads * width : width;
        const i64 shape[4] = {shapes.batch, heads, rows, width};
        if (beside) return call.new_row_major_heads(query.dtype(), shape, data);
        return call.new_array(query.dtype(), query.ndim(), shape + 4 - query.ndim(), data);
    }

    // Broadcast axes and axes that are missing have stride 0.
    template <class T>
    HeadArray<const T> heads_of(const Array& array) const {
        const int rank = array.ndim();
        const auto stride = [&](int from_end) -> i64 {
            if (rank < from_end || array.shape()[rank - from_end] == 1) return 0;
            return array.stride(rank - from_end);
        };
        // One row has no next one; kernels like dense strides better than 0.
        const i64 row = array.shape()[rank - 2] == 1 ? array.shape()[rank - 1] : stride(2);
        return {array.data<T>(), stride(4), stride(3), row};
    }

  private:
    void check_stored() const {
        const bool cache = key.dtype() == DType::bf16 || value.dtype() == DType::bf16;
        if (!cache || query.dtype() == DType::bf16) {
            require_dtype(key, query, "key");
            require_dtype(value, query, "value");
            return;
        }
        if (query.dtype() != DType::f32) {
            throw TypeMismatch(std::string(kOp) +
                               ": key and value in bfloat16 need a float32 query, got " +
                               dtype_name(query.dtype()));
        }
        if (key.dtype() == value.dtype()) return;
        throw TypeMismatch(std::string(kOp) +
                           ": either both key and value are bfloat16 or neither is, got " +
                           (has_half_cache() ? "value" : "key") + " in float32 or float64");
    }

    static const i64* ints(const std::optional<Array>& array) {
        return array ? array->data<i64>() : nullptr;
    }

    void read_mask(py::handle object) {
        const char kind = kind_of(object);
        if (kind != 0 && kind != 'b' && kind != 'f') {
            throw TypeMismatch(std::string(kOp) + ": attn_mask has dtype " +
                               std::string(py::str(object.attr("dtype"))) +
                               ", expected bool (True: may attend) or the dtype of query (added)");
        }
        if (kind == 'b') {
            mask = call.boolean(object, "attn_mask");
        } else {
            bias = call.strided(object, "attn_mask", true);
            require_dtype(*bias, query, "attn_mask");
        }
        const Array& array = mask ? *mask : *bias;
        i64 strides[kMaxDims];
        for (int axis = 0; axis < array.ndim(); ++axis) strides[axis] = array.stride(axis);
        ops::mask_strides(kOp, shapes, ops::shape_of(array.view()), strides, mask_stride);
    }

    void read_sequences(bool checked) {
        if (extra.query_starts) sequences = extra.query_starts->size() - 1;
        if (checked) return;
        const auto lengths = [&](const std::optional<Array>& array, i64 most) {
            if (!array) return;
            ops::check_lengths(kOp, "lengths", ops::shape_of(array->view()),
                               call.on_host(*array).data(), shapes.batch, most);
        };
        lengths(extra.query_lengths, shapes.queries);
        lengths(extra.key_lengths, shapes.keys);
        if (!extra.query_starts) return;
        const Shape query_shape = ops::shape_of(extra.query_starts->view());
        const Shape key_shape = ops::shape_of(extra.key_starts->view());
        ops::require_shape(kOp, "cu_seqlens of keys", key_shape, query_shape);
        sequences = ops::check_starts(kOp, "cu_seqlens", query_shape,
                                      call.on_host(*extra.query_starts).data(), shapes.queries);
        ops::check_starts(kOp, "cu_seqlens", key_shape, call.on_host(*extra.key_starts).data(),
                          shapes.keys);
    }
    using Shape = ops::Shape;
};

template <class T>
HeadArray<T> head_array(void* data, const i64 (&stride)[3]) {
    return {static_cast<T*>(data), stride[0], stride[1], stride[2]};
}

py::tuple forward(py::handle query, py::handle key, py::handle value, py::handle mask, int causal,
                  py::handle scale, bool enable_gqa, py::handle extra, bool want_stats) {
    AttentionCall call(query, key, value, mask, causal, scale, enable_gqa, extra);
    const ops::AttentionShapes& s = call.shapes;
    if (want_stats) call.refuse_half();
    void *output, *stats = nullptr;
    i64 stride[3];
    py::object result =
        call.new_heads(call.query, s.heads, s.queries, s.value_dim, &output, stride);
    py::object stats_array = py::none();
    if (want_stats) {
        const i64 shape[4] = {2, s.batch, s.heads, s.queries};
        stats_array = call.call.new_array(accumulate_dtype(call.query.dtype()), 4, shape, &stats);
    }
    {
        const Run run(call.call, call.cost());
        with_device_dtype(call.query.dtype(), [&](auto zero) {
            using T = decltype(zero);
            run.kernels<T>().attention_forward(call.params<T>(), head_array<T>(output, stride),
                                               static_cast<Accumulate<T>*>(stats));
        });
    }
    return py::make_tuple(std::move(result), std::move(stats_array));
}

// Gradients of query, key, value (None, if `of_weights`: output are the weights then) and, if
// wanted, of an additive mask.
py::tuple gradients(AttentionCall& call, py::handle grad_object, py::handle output_object,
                    py::handle stats_object, bool want_mask, bool of_weights) {
    const ops::AttentionShapes& s = call.shapes;
    const Array grad = call.call.strided(grad_object, "grad");
    const Array output = call.call.strided(output_object, "output");
    const Array stats = call.call.accumulated_like(stats_object, call.query, "stats");
    require_dtype(grad, call.query, "grad");
    require_dtype(output, call.query, "output");
    ops::Shape shape = s.output;
    if (of_weights) shape.back() = s.keys;
    ops::require_shape(kOp, "grad", ops::shape_of(grad.view()), shape);
    ops::require_shape(kOp, "output", ops::shape_of(output.view()), shape);
    ops::require_shape(kOp, "stats", ops::shape_of(stats.view()), {2, s.batch, s.heads, s.queries});
    void *dq, *dk, *dv = nullptr, *dmask = nullptr;
    i64 q_stride[3], k_stride[3], v_stride[3] = {};
    py::object q = call.new_heads(call.query, s.heads, s.queries, s.dim, &dq, q_stride);
    py::object k = call.new_heads(call.key, s.kv_heads, s.keys, s.dim, &dk, k_stride);
    py::object v = py::none(), m = py::none();
    if (!of_weights) {
        v = call.new_heads(call.value, s.kv_heads, s.keys, s.value_dim, &dv, v_stride);
    }
    i64 mask_stride[4] = {};
    if (want_mask && call.bias) {
        const Array& bias = *call.bias;
        m = call.call.new_array(bias.dtype(), bias.ndim(), bias.shape(), &dmask);
        i64 strides[kMaxDims], step = 1;
        for (int axis = bias.ndim(); axis-- > 0; step *= bias.shape()[axis]) strides[axis] = step;
        ops::mask_strides(kOp, s, ops::shape_of(bias.view()), strides, mask_stride);
    }
    {
        const Run run(call.call, call.cost());
        with_device_dtype(call.query.dtype(), [&](auto zero) {
            using T = decltype(zero);
            AttentionGradients<T> g{};
            g.output = call.heads_of<T>(output);
            g.grad = call.heads_of<T>(grad);
            g.stats = stats.data<Accumulate<T>>();
            g.query = head_array<T>(dq, q_stride);
            g.key = head_array<T>(dk, k_stride);
            g.value = head_array<T>(dv, v_stride);
            g.bias = static_cast<T*>(dmask);
            for (int axis = 0; axis < 4; ++axis) g.bias_stride[axis] = mask_stride[axis];
            g.of_weights = of_weights;
            run.kernels<T>().attention_backward(
                of_weights ? call.weight_params<T>() : call.params<T>(), g);
        });
    }
    return py::make_tuple(std::move(q), std::move(k), std::move(v), std::move(m));
}

py::tuple backward(py::handle query, py::handle key, py::handle value, py::handle mask, int causal,
                   py::handle scale, bool enable_gqa, py::handle extra, py::handle grad,
                   py::handle output, py::handle stats, bool want_mask) {
    AttentionCall call(query, key, value, mask, causal, scale, enable_gqa, extra, true);
    return gradients(call, grad, output, stats, want_mask, false);
}

py::tuple weights_backward(py::handle query, py::handle key, py::handle mask, int causal,
                           py::handle scale, bool enable_gqa, py::handle extra, py::handle grad,
                           py::handle output, py::handle stats, bool want_mask) {
    AttentionCall call(query, key, key, mask, causal, scale, enable_gqa, extra, true);
    return gradients(call, grad, output, stats, want_mask, true);
}

// The weights, and what backward needs of each row.
py::tuple weights(py::handle query, py::handle key, py::handle mask, int causal, py::handle scale,
                  bool enable_gqa, py::handle extra, bool want_stats) {
    AttentionCall call(query, key, key, mask, causal, scale, enable_gqa, extra);
    if (want_stats) call.refuse_half();
    const ops::AttentionShapes& s = call.shapes;
    const i64 stats_shape[4] = {2, s.batch, s.heads, s.queries};
    const i64 shape[4] = {s.batch, s.heads, s.queries, s.keys};
    void *stats, *out;
    py::object stats_array =
        call.call.new_array(accumulate_dtype(call.query.dtype()), 4, stats_shape, &stats);
    const int rank = call.query.ndim();
    py::object result = call.call.new_array(call.query.dtype(), rank, shape + 4 - rank, &out);
    {
        const Run run(call.call, call.cost());
        with_device_dtype(call.query.dtype(), [&](auto zero) {
            using T = decltype(zero);
            const AttentionParams<T> p = call.weight_params<T>();
            run.kernels<T>().attention_forward(p, {nullptr, 0, 0, 0},
                                               static_cast<Accumulate<T>*>(stats));
            run.kernels<T>().attention_weights(p, static_cast<const Accumulate<T>*>(stats),
                                               static_cast<T*>(out));
        });
    }
    return py::make_tuple(std::move(result), std::move(stats_array));
}

}  // namespace

void init_attention(py::module_& m) {
    m.def("attention_forward", &forward);
    m.def("attention_backward", &backward);
    m.def("attention_weights", &weights);
    m.def("attention_weights_backward", &weights_backward);
}

}  // namespace fusednn::bindings
