// What the host asks of the CUDA half; no CUDA header is needed to ask. device.cu, memory.cu and
// table.cu answer where it is built, stub.cpp elsewhere.
#pragma once
#include <cstdint>
#include <string>

#include "core/kernels.h"

namespace fusednn::cuda {

bool compiled();       // was the CUDA half built?
int device_count();    // 0 without a usable driver or device; never throws
std::string status();  // one sentence: the devices, or why there are none

// The number of the device whose memory `pointer` points to; -1 if it is no device memory.
int device_of(const void* pointer);
int current_device();

// What is put into stream `later` from now on waits for all that is in `earlier`.
void order_streams(std::uintptr_t earlier, std::uintptr_t later);

// The kernels that take device pointers. An entry that has no kernel throws NoKernel.
template <class T>
const KernelTable<T>& table();
template <>
const KernelTable<float>& table<float>();
template <>
const KernelTable<double>& table<double>();
template <>
const KernelTable<BFloat16>& table<BFloat16>();
template <>
const KernelTable<Float16>& table<Float16>();

// While it lives, kernels of this thread run on `device` in `stream`, and their errors name `op`.
class Scope {
  public:
    Scope(const char* op, int device, std::uintptr_t stream);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

    const char* op() const { return op_; }
    int device() const { return device_; }
    std::uintptr_t stream() const { return stream_; }

  private:
    const char* op_;
    int device_, previous_device_;
    std::uintptr_t stream_;
    Scope* outer_;
};

}  // namespace fusednn::cuda
