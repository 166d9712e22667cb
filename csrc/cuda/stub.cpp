// Built instead of csrc/cuda/*.cu where there is no CUDA compiler.
#include "core/errors.h"
#include "cuda/device.h"

namespace fusednn::cuda {

bool compiled() {
    return false;
}

int device_count() {
    return 0;
}

std::string status() {
    return "this build has no CUDA half (it was compiled without nvcc)";
}

int device_of(const void*) {
    return -1;
}

// Never reached: without a device no array is on one.

int current_device() {
    throw DeviceError(status());
}

void order_streams(std::uintptr_t, std::uintptr_t) {
    throw DeviceError(status());
}

template <>
const KernelTable<float>& table<float>() {
    throw DeviceError(status());
}

template <>
const KernelTable<double>& table<double>() {
    throw DeviceError(status());
}

Scope::Scope(const char*, int, std::uintptr_t) {
    throw DeviceError(status());
}

Scope::~Scope() {}

}  // namespace fusednn::cuda
