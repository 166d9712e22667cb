// Optimiser updates of lists of parameters. Everything is checked before the first element is
// written.
#include <vector>

#include "bindings/call.h"
#include "bindings/init.h"
#include "bindings/ints.h"
#include "core/errors.h"

namespace fusednn::bindings {

namespace {

// One of the arrays of an update.
struct Memory {
    const char* name;
    const void* data;
};

// The arrays of an update may share memory with each other only if both are read: a vector of one
// would be written before the other is read. They are of `bytes` each.
void require_apart(const char* op, i64 bytes, const std::vector<Memory>& arrays) {
    for (auto a = arrays.begin(); a != arrays.end(); ++a) {
        for (auto b = arrays.begin(); b != a; ++b) {
            const auto first = reinterpret_cast<std::uintptr_t>(b->data);
            const auto second = reinterpret_cast<std::uintptr_t>(a->data);
            const auto distance = first < second ? second - first : first - second;
            if (distance >= std::uintptr_t(bytes)) continue;
            throw Error(std::string(op) + ": " + a->name + " shares memory with " + b->name +
                        ", expected arrays that do not overlap");
        }
    }
}

i64 item_of(const Array& array) {
    return array.dtype() == DType::f32 ? i64(sizeof(float)) : i64(sizeof(double));
}

// A list of `count` entries; -1: of any number.
std::vector<py::handle> entries(py::handle object, const char* op, const char* argument,
                                i64 count = -1) {
    const std::string name = std::string(op) + ": " + argument;
    if (!PyList_Check(object.ptr())) {
        throw TypeMismatch(name + " must be a list, got " + Py_TYPE(object.ptr())->tp_name);
    }
    const auto size = i64(PyList_GET_SIZE(object.ptr()));
    if (count >= 0 && size != count) {
        throw Error(name + " has " + std::to_string(size) + " entries, expected " +
                    std::to_string(count) + " like grad");
    }
    std::vector<py::handle> result;
    for (i64 i = 0; i < size; ++i) {
        result.emplace_back(PyList_GET_ITEM(object.ptr(), Py_ssize_t(i)));
    }
    return result;
}

// Parameters that are updated together: gradients, and columns of arrays that are changed (the
// parameters themselves, then their states), one of each for every parameter. All have one dtype
// and are in one place.
class Updates {
  public:
    Updates(Call& call, py::handle params, py::handle grads) : call_(call) {
        for (const py::handle grad : entries(grads, call.op(), "grad")) {
            grads_.push_back(grads_.empty() ? call.floating(grad, "grad")
                                            : call.floating_like(grad, grads_[0], "grad"));
            elements_ += grads_.back().size();
        }
        column(params, "param");
    }

    // Takes a list of arrays; the column's number, or kNone for None.
    static constexpr int kNone = -1;
    int column(py::handle objects, const char* name) {
        if (objects.is_none()) return kNone;
        std::vector<MutableArray> arrays;
        arrays.reserve(grads_.size());
        const auto list = entries(objects, call_.op(), name, count());
        for (std::size_t i = 0; i < list.size(); ++i) {
            arrays.push_back(call_.mutable_like(list[i], grads_[i], name));
        }
        names_.push_back(name);
        columns_.push_back(std::move(arrays));
        return int(columns_.size()) - 1;
    }

    void require_apart() const {
        std::vector<Memory> arrays;
        for (std::size_t i = 0; i < grads_.size(); ++i) {
            arrays.clear();
            arrays.push_back({"param", columns_[0][i].data<void>()});
            arrays.push_back({"grad", grads_[i].view().data});
            for (std::size_t c = 1; c < columns_.size(); ++c) {
                arrays.push_back({names_[c], columns_[c][i].data<void>()});
            }
            bindings::require_apart(call_.op(), grads_[i].size() * item_of(grads_[i]), arrays);
        }
    }

    i64 count() const { return i64(grads_.size()); }
    i64 elements() const { return elements_; }
    DType dtype() const { return grads_.empty() ? DType::f32 : grads_[0].dtype(); }

    // A kernel's entry for each parameter: size, param and grad; fill(entry, i) does the rest.
    template <class Tensor, class Fill>
    std::vector<Tensor> tensors(const Fill& fill) const {
        std::vector<Tensor> result(grads_.size());
        for (std::size_t i = 0; i < result.size(); ++i) {
            using T = std::remove_pointer_t<decltype(Tensor::param)>;
            result[i].size = grads_[i].size();
            result[i].param = at<T>(0, i);
            result[i].grad = grads_[i].data<T>();
            fill(result[i], i);
        }
        return result;
    }
    template <class T>
    T* at(int column, std::size_t i) const {
        return column == kNone ? nullptr : columns_[std::size_t(column)][i].data<T>();
    }

  private:
    Call& call_;
    std::vector<Array> grads_;
    std::vector<const char*> names_;
    std::vector<std::vector<MutableArray>> columns_;
    i64 elements_ = 0;
};

void sgd_step(py::handle params, py::handle grads, py::handle buffers, py::handle first_steps,
              double lr, double momentum, double dampening, double weight_decay, bool nesterov,
              bool maximize) {
    Call call("sgd_step");
    Updates updates(call, params, grads);
    const int buffer = updates.column(buffers, "momentum_buffer");
    std::vector<bool> first;
    for (const py::handle one : entries(first_steps, call.op(), "first_step", updates.count())) {
        first.push_back(one.cast<bool>());
    }
    updates.require_apart();
    const SgdOptions options{lr, momentum, dampening, weight_decay, nesterov, maximize};
    const Run run(call, updates.elements() * 4);
    with_dtype(updates.dtype(), [&](auto zero) {
        using T = decltype(zero);
        const auto list = updates.tensors<SgdTensor<T>>([&](SgdTensor<T>& p, std::size_t i) {
            p.momentum_buffer = updates.at<T>(buffer, i);
            p.first_step = first[i];
        });
        run.kernels<T>().sgd_step(options, updates.count(), list.data());
    });
}

void adam_step(py::handle params, py::handle grads, py::handle avgs, py::handle avg_sqs,
               py::handle maxima, py::handle steps, double lr, double beta1, double beta2,
               double eps, double weight_decay, bool decoupled_decay, bool maximize) {
    Call call("adam_step");
    std::vector<i64> step;
    for (const py::handle one : entries(steps, call.op(), "step")) {
        step.push_back(to_int(one, call.op(), "step"));
        if (step.back() >= 1) continue;
        throw Error("adam_step: step must be at least 1, got " + std::to_string(step.back()));
    }
    Updates updates(call, params, grads);
    const int avg = updates.column(avgs, "exp_avg");
    const int avg_sq = updates.column(avg_sqs, "exp_avg_sq");
    const int most = updates.column(maxima, "max_exp_avg_sq");
    entries(steps, call.op(), "step", updates.count());
    updates.require_apart();
    const AdamOptions options{lr, beta1, beta2, eps, weight_decay, decoupled_decay, maximize};
    const Run run(call, updates.elements() * 8);
    with_dtype(updates.dtype(), [&](auto zero) {
        using T = decltype(zero);
        const auto list = updates.tensors<AdamTensor<T>>([&](AdamTensor<T>& p, std::size_t i) {
            p.exp_avg = updates.at<T>(avg, i);
            p.exp_avg_sq = updates.at<T>(avg_sq, i);
            p.max_exp_avg_sq = updates.at<T>(most, i);
            p.step = step[i];
        });
        run.kernels<T>().adam_step(options, updates.count(), list.data());
    });
}

void rmsprop_step(py::handle params, py::handle grads, py::handle squares, py::handle grad_avgs,
                  py::handle buffers, double lr, double alpha, double eps, double weight_decay,
                  double momentum, bool maximize) {
    Call call("rmsprop_step");
    Updates updates(call, params, grads);
    const int square = updates.column(squares, "square_avg");
    const int grad_avg = updates.column(grad_avgs, "grad_avg");
    const int buffer = updates.column(buffers, "momentum_buffer");
    updates.require_apart();
    const RmspropOptions options{lr, alpha, eps, weight_decay, momentum, maximize};
    const Run run(call, updates.elements() * 8);
    with_dtype(updates.dtype(), [&](auto zero) {
        using T = decltype(zero);
        using Tensor = RmspropTensor<T>;
        const auto list = updates.tensors<Tensor>([&](Tensor& p, std::size_t i) {
            p.square_avg = updates.at<T>(square, i);
            p.grad_avg = updates.at<T>(grad_avg, i);
            p.momentum_buffer = updates.at<T>(buffer, i);
        });
        run.kernels<T>().rmsprop_step(options, updates.count(), list.data());
    });
}

void adagrad_step(py::handle params, py::handle grads, py::handle sums, py::handle lrs, double eps,
                  double weight_decay, bool maximize) {
    Call call("adagrad_step");
    Updates updates(call, params, grads);
    const int sum = updates.column(sums, "sum");
    std::vector<double> lr;
    for (const py::handle one : entries(lrs, call.op(), "lr", updates.count())) {
        lr.push_back(one.cast<double>());
    }
    updates.require_apart();
    const AdagradOptions options{eps, weight_decay, maximize};
    const Run run(call, updates.elements() * 8);
    with_dtype(updates.dtype(), [&](auto zero) {
        using T = decltype(zero);
        using Tensor = AdagradTensor<T>;
        const auto list = updates.tensors<Tensor>([&](Tensor& p, std::size_t i) {
            p.sum = updates.at<T>(sum, i);
            p.lr = lr[i];
        });
        run.kernels<T>().adagrad_step(options, updates.count(), list.data());
    });
}

// A float, or for arrays on a GPU one element of float64 there.
py::object sum_of_squares(py::handle objects, double scale) {
    Call call("sum_of_squares");
    std::vector<Array> arrays;
    i64 elements = 0;
    for (const py::handle object : entries(objects, call.op(), "input")) {
        arrays.push_back(arrays.empty() ? call.floating(object, "input")
                                        : call.floating_like(object, arrays[0], "input"));
        elements += arrays.back().size();
    }
    double sum = 0;
    if (arrays.empty()) return py::float_(sum);
    void* total = &sum;
    py::object result;
    const bool here = call.device() == Device::cpu;
    if (!here) result = call.new_array(DType::f64, 0, nullptr, &total);
    {
        const Run run(call, elements * 4);
        with_dtype(arrays[0].dtype(), [&](auto zero) {
            using T = decltype(zero);
            std::vector<FlatArray<const T>> list;
            for (const Array& one : arrays) list.push_back({one.size(), one.data<T>()});
            run.kernels<T>().sum_of_squares(i64(list.size()), list.data(), scale,
                                            static_cast<double*>(total));
        });
    }
    return here ? py::float_(sum) : result;
}

void scale_arrays(py::handle objects, double factor) {
    Call call("scale_arrays");
    std::vector<Array> arrays;
    std::vector<MutableArray> writable;
    i64 elements = 0;
    for (const py::handle object : entries(objects, call.op(), "input")) {
        arrays.push_back(arrays.empty() ? call.floating(object, "input")
                                        : call.floating_like(object, arrays[0], "input"));
        writable.push_back(call.mutable_like(object, arrays.back(), "input"));
        elements += arrays.back().size();
    }
    if (arrays.empty()) return;
    const Run run(call, elements * 4);
    with_dtype(arrays[0].dtype(), [&](auto zero) {
        using T = decltype(zero);
        std::vector<FlatArray<T>> list;
        for (std::size_t i = 0; i < arrays.size(); ++i) {
            list.push_back({arrays[i].size(), writable[i].data<T>()});
        }
        run.kernels<T>().scale_arrays(i64(list.size()), list.data(), factor);
    });
}

}  // namespace

void init_optim(py::module_& m) {
    m.def("sgd_step", &sgd_step);
    m.def("adam_step", &adam_step);
    m.def("rmsprop_step", &rmsprop_step);
    m.def("adagrad_step", &adagrad_step);
    m.def("sum_of_squares", &sum_of_squares);
    m.def("scale_arrays", &scale_arrays);
}

}  // namespace fusednn::bindings
