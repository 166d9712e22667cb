#include "cuda/device.h"

#include "core/errors.h"
#include "cuda/gpu.h"

namespace fusednn::cuda {

namespace {

thread_local Scope* active = nullptr;

cudaStream_t to_stream(std::uintptr_t stream) {
    return reinterpret_cast<cudaStream_t>(stream);
}

}  // namespace

bool compiled() {
    return true;
}

int device_count() {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess) {
        cudaGetLastError();  // clears it, so that a later call does not report this one's failure
        return 0;
    }
    return count;
}

std::string status() {
    int count = 0;
    const cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess) {
        cudaGetLastError();
        return std::string("no CUDA device: ") + cudaGetErrorString(error);
    }
    std::string text = std::to_string(count) + " CUDA device" + (count == 1 ? "" : "s");
    for (int index = 0; index < count; ++index) {
        cudaDeviceProp properties;
        if (cudaGetDeviceProperties(&properties, index) != cudaSuccess) continue;
        text += std::string(index == 0 ? ": " : ", ") + properties.name + " (sm_" +
                std::to_string(properties.major) + std::to_string(properties.minor) + ")";
    }
    return text;
}

int device_of(const void* pointer) {
    cudaPointerAttributes attributes{};
    if (cudaPointerGetAttributes(&attributes, pointer) != cudaSuccess) {
        cudaGetLastError();
        return -1;
    }
    const bool owned =
        attributes.type == cudaMemoryTypeDevice || attributes.type == cudaMemoryTypeManaged;
    return owned ? attributes.device : -1;
}

int current_device() {
    int device = 0;
    check(cudaGetDevice(&device), "cudaGetDevice");
    return device;
}

void order_streams(std::uintptr_t earlier, std::uintptr_t later) {
    if (earlier == later) return;
    cudaEvent_t event;
    check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreate");
    cudaError_t error = cudaEventRecord(event, to_stream(earlier));
    if (error == cudaSuccess) error = cudaStreamWaitEvent(to_stream(later), event, 0);
    cudaEventDestroy(event);  // which CUDA does once the event has passed
    check(error, "waiting for the stream that made an array");
}

Scope::Scope(const char* op, int device, std::uintptr_t stream)
    : op_(op), device_(device), previous_device_(device), stream_(stream), outer_(active) {
    active = this;
    try {
        check(cudaGetDevice(&previous_device_), "cudaGetDevice");
        if (previous_device_ != device) check(cudaSetDevice(device), "cudaSetDevice");
    } catch (...) {
        active = outer_;
        throw;
    }
}

Scope::~Scope() {
    if (previous_device_ != device_) cudaSetDevice(previous_device_);
    active = outer_;
}

const char* current_op() {
    return active ? active->op() : "cuda";
}

cudaStream_t current_stream() {
    return active ? to_stream(active->stream()) : nullptr;
}

void check(cudaError_t error, const char* call) {
    if (error == cudaSuccess) return;
    const std::string text = cudaGetErrorString(error);
    cudaGetLastError();
    throw DeviceError(std::string(current_op()) + ": " + call + ": " + text);
}

}  // namespace fusednn::cuda
