// Optimiser updates. Everything is checked before the first element is written.
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

// Updated arrays may share memory with nothing else: a vector of one would be written before the
// other is read. `arrays` are of `bytes` each; those without data are left out.
void require_apart(const char* op, i64 bytes, std::initializer_list<Memory> arrays) {
    for (const Memory* a = arrays.begin(); a != arrays.end(); ++a) {
        for (const Memory* b = arrays.begin(); b != a; ++b) {
            if (!a->data || !b->data) continue;
            const auto first = reinterpret_cast<std::uintptr_t>(b->data);
            const auto second = reinterpret_cast<std::uintptr_t>(a->data);
            const auto distance = first < second ? second - first : first - second;
            if (distance >= std::uintptr_t(bytes)) continue;
            throw Error(std::string(op) + ": " + a->name + " shares memory with " + b->name +
                        ", expected arrays that do not overlap");
        }
    }
}

i64 bytes_of(const Array& array) {
    return array.size() * i64(array.dtype() == DType::f32 ? sizeof(float) : sizeof(double));
}

void sgd_step(py::handle param_object, py::handle grad_object, py::handle buffer_object,
              bool first_step, double lr, double momentum, double dampening, double weight_decay,
              bool nesterov, bool maximize) {
    const char* op = "sgd_step";
    Call call(op);
    const Array grad = call.floating(grad_object, "grad");
    const MutableArray param = call.mutable_like(param_object, grad, "param");
    std::optional<MutableArray> buffer;
    if (!buffer_object.is_none()) {
        buffer = call.mutable_like(buffer_object, grad, "momentum_buffer");
    }
    require_apart(op, bytes_of(grad),
                  {{"param", param.data<void>()},
                   {"grad", grad.view().data},
                   {"momentum_buffer", buffer ? buffer->data<void>() : nullptr}});
    const i64 size = grad.size();
    const Run run(call, size * 4);
    with_dtype(grad.dtype(), [&](auto zero) {
        using T = decltype(zero);
        SgdParams<T> p;
        p.size = size;
        p.param = param.data<T>();
        p.grad = grad.data<T>();
        p.momentum_buffer = buffer ? buffer->data<T>() : nullptr;
        p.first_step = first_step;
        p.lr = lr;
        p.momentum = momentum;
        p.dampening = dampening;
        p.weight_decay = weight_decay;
        p.nesterov = nesterov;
        p.maximize = maximize;
        run.kernels<T>().sgd_step(p);
    });
}

void adam_step(py::handle param_object, py::handle grad_object, py::handle avg_object,
               py::handle avg_sq_object, py::handle max_object, py::handle step_object, double lr,
               double beta1, double beta2, double eps, double weight_decay, bool decoupled_decay,
               bool maximize) {
    const char* op = "adam_step";
    const i64 step = to_int(step_object, op, "step");
    if (step < 1) throw Error("adam_step: step must be at least 1, got " + std::to_string(step));
    Call call(op);
    const Array grad = call.floating(grad_object, "grad");
    const MutableArray param = call.mutable_like(param_object, grad, "param");
    const MutableArray avg = call.mutable_like(avg_object, grad, "exp_avg");
    const MutableArray avg_sq = call.mutable_like(avg_sq_object, grad, "exp_avg_sq");
    std::optional<MutableArray> most;
    if (!max_object.is_none()) {
        most = call.mutable_like(max_object, grad, "max_exp_avg_sq");
    }
    require_apart(op, bytes_of(grad),
                  {{"param", param.data<void>()},
                   {"grad", grad.view().data},
                   {"exp_avg", avg.data<void>()},
                   {"exp_avg_sq", avg_sq.data<void>()},
                   {"max_exp_avg_sq", most ? most->data<void>() : nullptr}});
    const i64 size = grad.size();
    const Run run(call, size * 8);
    with_dtype(grad.dtype(), [&](auto zero) {
        using T = decltype(zero);
        AdamParams<T> p;
        p.size = size;
        p.param = param.data<T>();
        p.grad = grad.data<T>();
        p.exp_avg = avg.data<T>();
        p.exp_avg_sq = avg_sq.data<T>();
        p.max_exp_avg_sq = most ? most->data<T>() : nullptr;
        p.lr = lr;
        p.beta1 = beta1;
        p.beta2 = beta2;
        p.eps = eps;
        p.weight_decay = weight_decay;
        p.step = step;
        p.decoupled_decay = decoupled_decay;
        p.maximize = maximize;
        run.kernels<T>().adam_step(p);
    });
}

void rmsprop_step(py::handle param_object, py::handle grad_object, py::handle square_object,
                  py::handle grad_avg_object, py::handle buffer_object, double lr, double alpha,
                  double eps, double weight_decay, double momentum, bool maximize) {
    const char* op = "rmsprop_step";
    Call call(op);
    const Array grad = call.floating(grad_object, "grad");
    const MutableArray param = call.mutable_like(param_object, grad, "param");
    const MutableArray square = call.mutable_like(square_object, grad, "square_avg");
    std::optional<MutableArray> grad_avg, buffer;
    if (!grad_avg_object.is_none()) {
        grad_avg = call.mutable_like(grad_avg_object, grad, "grad_avg");
    }
    if (!buffer_object.is_none()) {
        buffer = call.mutable_like(buffer_object, grad, "momentum_buffer");
    }
    const i64 size = grad.size();
    const Run run(call, size * 8);
    with_dtype(grad.dtype(), [&](auto zero) {
        using T = decltype(zero);
        RmspropParams<T> p;
        p.size = size;
        p.param = param.data<T>();
        p.grad = grad.data<T>();
        p.square_avg = square.data<T>();
        p.grad_avg = grad_avg ? grad_avg->data<T>() : nullptr;
        p.momentum_buffer = buffer ? buffer->data<T>() : nullptr;
        p.lr = lr;
        p.alpha = alpha;
        p.eps = eps;
        p.weight_decay = weight_decay;
        p.momentum = momentum;
        p.maximize = maximize;
        run.kernels<T>().rmsprop_step(p);
    });
}

void adagrad_step(py::handle param_object, py::handle grad_object, py::handle sum_object, double lr,
                  double eps, double weight_decay, bool maximize) {
    const char* op = "adagrad_step";
    Call call(op);
    const Array grad = call.floating(grad_object, "grad");
    const MutableArray param = call.mutable_like(param_object, grad, "param");
    const MutableArray sum = call.mutable_like(sum_object, grad, "sum");
    const i64 size = grad.size();
    const Run run(call, size * 8);
    with_dtype(grad.dtype(), [&](auto zero) {
        using T = decltype(zero);
        AdagradParams<T> p;
        p.size = size;
        p.param = param.data<T>();
        p.grad = grad.data<T>();
        p.sum = sum.data<T>();
        p.lr = lr;
        p.eps = eps;
        p.weight_decay = weight_decay;
        p.maximize = maximize;
        run.kernels<T>().adagrad_step(p);
    });
}

double sum_of_squares(py::handle object, double scale) {
    const Array array = Array::floating(object, "sum_of_squares", "input");
    const i64 size = array.size();
    GilRelease release(size * 4);
    return with_dtype(array.dtype(), [&](auto zero) {
        using T = decltype(zero);
        return kernels<T>().sum_of_squares(size, array.data<T>(), scale);
    });
}

}  // namespace

void init_optim(py::module_& m) {
    m.def("sgd_step", &sgd_step);
    m.def("adam_step", &adam_step);
    m.def("rmsprop_step", &rmsprop_step);
    m.def("adagrad_step", &adagrad_step);
    m.def("sum_of_squares", &sum_of_squares);
}

}  // namespace fusednn::bindings
