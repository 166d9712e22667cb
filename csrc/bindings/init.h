#pragma once
#include <pybind11/pybind11.h>

namespace fusednn::bindings {

void init_runtime(pybind11::module_& m);
void init_conv(pybind11::module_& m);
void init_conv_transpose(pybind11::module_& m);
void init_pool(pybind11::module_& m);
void init_unfold(pybind11::module_& m);
void init_dense(pybind11::module_& m);
void init_activation(pybind11::module_& m);
void init_norm(pybind11::module_& m);
void init_embedding(pybind11::module_& m);
void init_average(pybind11::module_& m);
void init_loss(pybind11::module_& m);
void init_attention(pybind11::module_& m);
void init_optim(pybind11::module_& m);
void init_recurrent(pybind11::module_& m);

}  // namespace fusednn::bindings
