// Optimiser updates. Everything is checked before the first element is written.
#include "bindings/array.h"
#include "bindings/init.h"
#include "core/dispatch.h"
#include "core/errors.h"

namespace fusednn::bindings {

namespace {

void sgd_step(py::handle param_object, py::handle grad_object, py::handle buffer_object,
              bool first_step, double lr, double momentum, double dampening, double weight_decay,
              bool nesterov, bool maximize) {
    const char* op = "sgd_step";
    const Array grad = Array::floating(grad_object, op, "grad");
    const MutableArray param = MutableArray::like(param_object, grad, op, "param");
    std::optional<MutableArray> buffer;
    if (!buffer_object.is_none()) {
        buffer = MutableArray::like(buffer_object, grad, op, "momentum_buffer");
    }
    const i64 size = grad.size();
    GilRelease release(size * 4);
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
        kernels<T>().sgd_step(p);
    });
}

void adam_step(py::handle param_object, py::handle grad_object, py::handle avg_object,
               py::handle avg_sq_object, py::handle max_object, i64 step, double lr, double beta1,
               double beta2, double eps, double weight_decay, bool decoupled_decay, bool maximize) {
    const char* op = "adam_step";
    if (step < 1) throw Error("adam_step: step must be at least 1, got " + std::to_string(step));
    const Array grad = Array::floating(grad_object, op, "grad");
    const MutableArray param = MutableArray::like(param_object, grad, op, "param");
    const MutableArray avg = MutableArray::like(avg_object, grad, op, "exp_avg");
    const MutableArray avg_sq = MutableArray::like(avg_sq_object, grad, op, "exp_avg_sq");
    std::optional<MutableArray> most;
    if (!max_object.is_none()) {
        most = MutableArray::like(max_object, grad, op, "max_exp_avg_sq");
    }
    const i64 size = grad.size();
    GilRelease release(size * 8);
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
        kernels<T>().adam_step(p);
    });
}

void rmsprop_step(py::handle param_object, py::handle grad_object, py::handle square_object,
                  py::handle grad_avg_object, py::handle buffer_object, double lr, double alpha,
                  double eps, double weight_decay, double momentum, bool maximize) {
    const char* op = "rmsprop_step";
    const Array grad = Array::floating(grad_object, op, "grad");
    const MutableArray param = MutableArray::like(param_object, grad, op, "param");
    const MutableArray square = MutableArray::like(square_object, grad, op, "square_avg");
    std::optional<MutableArray> grad_avg, buffer;
    if (!grad_avg_object.is_none()) {
        grad_avg = MutableArray::like(grad_avg_object, grad, op, "grad_avg");
    }
    if (!buffer_object.is_none()) {
        buffer = MutableArray::like(buffer_object, grad, op, "momentum_buffer");
    }
    const i64 size = grad.size();
    GilRelease release(size * 8);
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
        kernels<T>().rmsprop_step(p);
    });
}

void adagrad_step(py::handle param_object, py::handle grad_object, py::handle sum_object, double lr,
                  double eps, double weight_decay, bool maximize) {
    const char* op = "adagrad_step";
    const Array grad = Array::floating(grad_object, op, "grad");
    const MutableArray param = MutableArray::like(param_object, grad, op, "param");
    const MutableArray sum = MutableArray::like(sum_object, grad, op, "sum");
    const i64 size = grad.size();
    GilRelease release(size * 8);
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
        kernels<T>().adagrad_step(p);
    });
}

}  // namespace

void init_optim(py::module_& m) {
    m.def("sgd_step", &sgd_step);
    m.def("adam_step", &adam_step);
    m.def("rmsprop_step", &rmsprop_step);
    m.def("adagrad_step", &adagrad_step);
}

}  // namespace fusednn::bindings
