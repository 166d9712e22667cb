// The extension module: exception translation, and one init function per op file.
#include <pybind11/pybind11.h>

#include "bindings/init.h"
#include "core/dispatch.h"
#include "core/errors.h"
#include "core/threads.h"

PYBIND11_MODULE(_core, m) {
    namespace py = pybind11;
    using namespace fusednn;
    m.doc() = "Compiled kernels of fusednn.";

    py::register_exception_translator([](std::exception_ptr pointer) {
        try {
            if (pointer) std::rethrow_exception(pointer);
        } catch (const TypeMismatch& error) {
            PyErr_SetString(PyExc_TypeError, error.what());
        } catch (const Error& error) {
            PyErr_SetString(PyExc_ValueError, error.what());
        } catch (const NoKernel& error) {
            PyErr_SetString(PyExc_NotImplementedError, error.what());
        }
    });

    init_isa();
    init_threads();
    bindings::init_runtime(m);
    bindings::init_conv(m);
    bindings::init_conv_transpose(m);
    bindings::init_pool(m);
    bindings::init_unfold(m);
    bindings::init_dense(m);
    bindings::init_activation(m);
    bindings::init_norm(m);
    bindings::init_embedding(m);
    bindings::init_average(m);
    bindings::init_loss(m);
    bindings::init_attention(m);
    bindings::init_optim(m);
    bindings::init_recurrent(m);
}
