#include "ops/norm.h"

#include <cmath>

#include "bindings/call.h"
#include "bindings/init.h"
#include "bindings/ints.h"
#include "core/errors.h"
#include "cuda/norm/running.h"

namespace fusednn::bindings {

namespace {

// What an element costs, all passes together.
constexpr i64 kElementCost = 8;

// An argument that may be None; accumulated: of the dtype that statistics have.
class Optional {
  public:
    Optional(Call& call, py::handle object, const Array& like, const char* name,
             bool accumulated = false)
        : name_(name) {
        if (object.is_none()) return;
        array_ = accumulated ? call.accumulated_like(object, like, name)
                             : call.floating_like(object, like, name);
        shape_ = ops::shape_of(array_->view());
    }
    ops::NamedShape named() const { return {name_, array_ ? &shape_ : nullptr}; }
    template <class T>
    const T* data() const {
        return array_ ? array_->data<T>() : nullptr;
    }

  private:
    const char* name_;
    std::optional<Array> array_;
    ops::Shape shape_;
};

// A new array for a result that may not be wanted: None then.
struct Result {
    py::object array = py::none();
    void* data = nullptr;

    Result(Call& call, bool wanted, DType dtype, const ops::Shape& shape) {
        if (wanted) array = call.new_array(dtype, int(shape.size()), shape.data(), &data);
    }
    template <class T>
    T* get() const {
        return static_cast<T*>(data);
    }
};

const char* layer_op(bool rms) {
    return rms ? "rms_norm" : "layer_norm";
}

py::tuple layer_norm_forward(bool rms, py::handle input, py::handle normalized_shape,
                             py::handle weight, py::handle bias, py::handle residual, double eps) {
    const char* op = layer_op(rms);
    Call call(op);
    const Array x = call.floating_or_half(input, "input");
    const Optional w(call, weight, x, "weight"), b(call, bias, x, "bias");
    const Optional r(call, residual, x, "residual");
    const ops::Shape shape = ops::shape_of(x.view());
    const auto params =
        ops::layer_norm_shapes(op, rms, shape, to_shape(normalized_shape, op, "normalized_shape"),
                               {w.named(), b.named()}, eps);
    if (r.named().shape) ops::require_shape(op, "residual", *r.named().shape, shape);
    const Result y(call, true, x.dtype(), shape),
        stats(call, true, accumulate_dtype(x.dtype()), {3, params.rows});
    const Result sum(call, r.named().shape != nullptr, x.dtype(), shape);
    {
        const Run run(call, x.size() * kElementCost);
        with_device_dtype(x.dtype(), [&](auto zero) {
            using T = decltype(zero);
            run.kernels<T>().layer_norm_forward(params, x.data<T>(), r.data<T>(), w.data<T>(),
                                                b.data<T>(), sum.get<T>(), y.get<T>(),
                                                stats.get<Accumulate<T>>());
        });
    }
    return py::make_tuple(y.array, stats.array, sum.array);
}

py::tuple layer_norm_backward(bool rms, py::handle grad, py::handle input,
                              py::handle normalized_shape, py::handle weight, py::handle stats,
                              bool want_weight, bool want_bias) {
    const char* op = layer_op(rms);
    Call call(op);
    const Array dy = call.floating_or_half(grad, "grad");
    const Array x = call.floating_like(input, dy, "input");
    const Array s = call.accumulated_like(stats, dy, "stats");
    const Optional w(call, weight, dy, "weight");
    const ops::Shape shape = ops::shape_of(x.view());
    const ops::Shape inner = to_shape(normalized_shape, op, "normalized_shape");
    const auto params = ops::layer_norm_shapes(op, rms, shape, inner, {w.named()}, 0);
    ops::require_shape(op, "grad", ops::shape_of(dy.view()), shape);
    ops::require_shape(op, "stats", ops::shape_of(s.view()), {3, params.rows});
    const Result dx(call, true, dy.dtype(), shape);
    const Result dw(call, want_weight, dy.dtype(), inner), db(call, want_bias, dy.dtype(), inner);
    {
        const Run run(call, x.size() * kElementCost);
        with_device_dtype(dy.dtype(), [&](auto zero) {
            using T = decltype(zero);
            run.kernels<T>().layer_norm_backward(params, dy.data<T>(), x.data<T>(), w.data<T>(),
                                                 s.data<Accumulate<T>>(), dx.get<T>(), dw.get<T>(),
                                                 db.get<T>());
        });
    }
    return py::make_tuple(dx.array, dw.array, db.array);
}

py::tuple group_norm_forward(const std::string& name, py::handle input, py::handle groups,
                             py::handle weight, py::handle bias, double eps) {
    const char* op = name.c_str();
    Call call(op);
    const Array x = call.floating_or_half(input, "input");
    const Optional w(call, weight, x, "weight"), b(call, bias, x, "bias");
    const ops::Shape shape = ops::shape_of(x.view());
    const auto params = ops::group_norm_shapes(op, shape, to_int(groups, op, "num_groups"),
                                               {w.named(), b.named()}, eps);
    const Result y(call, true, x.dtype(), shape);
    const Result stats(call, true, accumulate_dtype(x.dtype()), {3, params.batch * params.groups});
    {
        const Run run(call, x.size() * kElementCost);
        with_device_dtype(x.dtype(), [&](auto zero) {
            using T = decltype(zero);
            run.kernels<T>().group_norm_forward(params, x.data<T>(), w.data<T>(), b.data<T>(),
                                                y.get<T>(), stats.get<Accumulate<T>>());
        });
    }
    return py::make_tuple(y.array, stats.array);
}

py::tuple group_norm_backward(const std::string& name, py::handle grad, py::handle input,
                              py::handle groups, py::handle weight, py::handle stats,
                              bool want_weight, bool want_bias) {
    const char* op = name.c_str();
    Call call(op);
    const Array dy = call.floating_or_half(grad, "grad");
    const Array x = call.floating_like(input, dy, "input");
    const Array s = call.accumulated_like(stats, dy, "stats");
    const Optional w(call, weight, dy, "weight");
    const ops::Shape shape = ops::shape_of(x.view());
    const auto params =
        ops::group_norm_shapes(op, shape, to_int(groups, op, "num_groups"), {w.named()}, 0);
    ops::require_shape(op, "grad", ops::shape_of(dy.view()), shape);
    ops::require_shape(op, "stats", ops::shape_of(s.view()), {3, params.batch * params.groups});
    const Result dx(call, true, dy.dtype(), shape);
    const Result dw(call, want_weight, dy.dtype(), {params.channels});
    const Result db(call, want_bias, dy.dtype(), {params.channels});
    {
        const Run run(call, x.size() * kElementCost);
        with_device_dtype(dy.dtype(), [&](auto zero) {
            using T = decltype(zero);
            run.kernels<T>().group_norm_backward(params, dy.data<T>(), x.data<T>(), w.data<T>(),
                                                 s.data<Accumulate<T>>(), dx.get<T>(), dw.get<T>(),
                                                 db.get<T>());
        });
    }
    return py::make_tuple(dx.array, dw.array, db.array);
}

// stats (3, C) of the batch, or of the running statistics; the latter brought up to date.
template <class T>
void fill_stats(Device device, const BatchNormParams& params, const T* x,
                Accumulate<T>* running_mean, Accumulate<T>* running_var, double momentum,
                double eps, Accumulate<T>* stats) {
    if (device == Device::cuda) {
        return cuda::batch_norm_running(params, x, running_mean, running_var, momentum, eps, stats);
    }
    if constexpr (std::is_same_v<T, Accumulate<T>>) {  // 16-bit floats are a GPU's
        T* const mean = stats;
        T *const low = mean + params.channels, *const last = low + params.channels;
        if (!params.training) {
            for (i64 c = 0; c < params.channels; ++c) {
                mean[c] = running_mean[c], low[c] = 0, last[c] = running_var[c];
            }
        } else if (params.outer * params.inner == 0) {
            // An empty batch says nothing: the statistics stay what they are.
            for (i64 i = 0; i < 3 * params.channels; ++i) stats[i] = 0;
        } else {
            kernels<T>().batch_norm_stats(params, x, mean, low, last);
            ops::update_running(params, mean, low, last, momentum, running_mean, running_var);
        }
        for (i64 c = 0; c < params.channels; ++c) {
            last[c] = T(1.0 / std::sqrt(double(last[c]) + eps));
        }
    }
}

py::tuple batch_norm_forward(py::handle input, py::handle running_mean, py::handle running_var,
                             py::handle weight, py::handle bias, bool training, double momentum,
                             double eps, bool relu) {
    const char* op = "batch_norm";
    Call call(op);
    const Array x = call.floating_or_half(input, "input");
    const Optional w(call, weight, x, "weight"), b(call, bias, x, "bias");
    const Optional mean(call, running_mean, x, "running_mean", true);
    const Optional var(call, running_var, x, "running_var", true);
    const ops::Shape shape = ops::shape_of(x.view());
    const auto params = ops::batch_norm_shapes(
        op, shape, {w.named(), b.named(), mean.named(), var.named()}, training, relu);
    if (!training && (!mean.named().shape || !var.named().shape)) {
        throw Error("batch_norm: evaluation needs running_mean and running_var, got None");
    }
    const ops::Shape channels = {params.channels};
    const Result y(call, true, x.dtype(), shape),
        stats(call, true, accumulate_dtype(x.dtype()), {3, params.channels});
    std::optional<MutableArray> new_mean, new_var;
    if (training) {
        const Result like(call, true, accumulate_dtype(x.dtype()), channels);
        const Array same = call.floating(like.array, "input");
        if (mean.named().shape) new_mean = call.mutable_like(running_mean, same, "running_mean");
        if (var.named().shape) new_var = call.mutable_like(running_var, same, "running_var");
    }
    {
        const Run run(call, x.size() * kElementCost);
        with_device_dtype(x.dtype(), [&](auto zero) {
            using T = decltype(zero);
            // Read, unless there is something to write.
            using Sum = Accumulate<T>;
            Sum* m = new_mean ? new_mean->data<Sum>() : const_cast<Sum*>(mean.data<Sum>());
            Sum* v = new_var ? new_var->data<Sum>() : const_cast<Sum*>(var.data<Sum>());
            fill_stats<T>(call.device(), params, x.data<T>(), m, v, momentum, eps,
                          stats.get<Accumulate<T>>());
            run.kernels<T>().batch_norm_apply(params, x.data<T>(), stats.get<Accumulate<T>>(),
                                              w.data<T>(), b.data<T>(), y.get<T>());
        });
    }
    return py::make_tuple(y.array, stats.array);
}

py::tuple batch_norm_backward(py::handle grad, py::handle input, py::handle output,
                              py::handle weight, py::handle stats, bool training, bool want_weight,
                              bool want_bias) {
    const char* op = "batch_norm";
    Call call(op);
    const Array dy = call.floating_or_half(grad, "grad");
    const Array x = call.floating_like(input, dy, "input");
    const Array s = call.accumulated_like(stats, dy, "stats");
    const Optional y(call, output, dy, "output"), w(call, weight, dy, "weight");
    const ops::Shape shape = ops::shape_of(x.view());
    const auto params =
        ops::batch_norm_shapes(op, shape, {w.named()}, training, y.named().shape != nullptr);
    ops::require_shape(op, "grad", ops::shape_of(dy.view()), shape);
    ops::require_shape(op, "stats", ops::shape_of(s.view()), {3, params.channels});
    if (params.relu) ops::require_shape(op, "output", *y.named().shape, shape);
    const Result dx(call, true, dy.dtype(), shape);
    const Result dw(call, want_weight, dy.dtype(), {params.channels});
    const Result db(call, want_bias, dy.dtype(), {params.channels});
    {
        const Run run(call, x.size() * kElementCost);
        with_device_dtype(dy.dtype(), [&](auto zero) {
            using T = decltype(zero);
            run.kernels<T>().batch_norm_backward(params, dy.data<T>(), x.data<T>(), y.data<T>(),
                                                 s.data<Accumulate<T>>(), w.data<T>(), dx.get<T>(),
                                                 dw.get<T>(), db.get<T>());
        });
    }
    return py::make_tuple(dx.array, dw.array, db.array);
}

}  // namespace

void init_norm(py::module_& m) {
    m.def("layer_norm_forward", &layer_norm_forward);
    m.def("layer_norm_backward", &layer_norm_backward);
    m.def("group_norm_forward", &group_norm_forward);
    m.def("group_norm_backward", &group_norm_backward);
    m.def("batch_norm_forward", &batch_norm_forward);
    m.def("batch_norm_backward", &batch_norm_backward);
}

}  // namespace fusednn::bindings
