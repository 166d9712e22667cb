// Built instead of csrc/cuda/*.cu where there is no CUDA compiler.
#include "core/errors.h"
#include "cuda/cast.h"
#include "cuda/device.h"
#include "cuda/embedding/places.h"
#include "cuda/ids.h"
#include "cuda/norm/running.h"
#include "cuda/pool/indices.h"

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

template <>
const KernelTable<BFloat16>& table<BFloat16>() {
    throw DeviceError(status());
}

template <>
const KernelTable<Float16>& table<Float16>() {
    throw DeviceError(status());
}

void cast(i64, DType, const void*, DType, void*) {
    throw DeviceError(status());
}

i64 first_outside(i64, const i64*, i64, const i64*, i64*) {
    throw DeviceError(status());
}

void embedding_keys(i64, i64, i64, const i64*, i64*) {
    throw DeviceError(status());
}

template <class T>
void embedding_starts(i64, i64, const i64*, const i64*, i64*, T*) {
    throw DeviceError(status());
}
template void embedding_starts<float>(i64, i64, const i64*, const i64*, i64*, float*);
template void embedding_starts<double>(i64, i64, const i64*, const i64*, i64*, double*);

template <class T>
void batch_norm_running(const BatchNormParams&, const T*, Accumulate<T>*, Accumulate<T>*, double,
                        double, Accumulate<T>*) {
    throw DeviceError(status());
}
#define FUSEDNN_RUNNING(T)                                                                \
    template void batch_norm_running<T>(const BatchNormParams&, const T*, Accumulate<T>*, \
                                        Accumulate<T>*, double, double, Accumulate<T>*);
FUSEDNN_RUNNING(float)
FUSEDNN_RUNNING(double)
FUSEDNN_RUNNING(BFloat16)
FUSEDNN_RUNNING(Float16)

void max_pool_indices(const PoolParams&, const void*, int, i64*) {
    throw DeviceError(status());
}

Scope::Scope(const char*, int, std::uintptr_t) {
    throw DeviceError(status());
}

Scope::~Scope() {}

}  // namespace fusednn::cuda
