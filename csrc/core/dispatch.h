// Which ISA build of the kernels runs. Chosen once at import, by CPUID or by FUSEDNN_ISA.
#pragma once
#include <string>
#include <vector>

#include "core/kernels.h"
#include "cuda/device.h"

namespace fusednn {

template <class T>
const KernelTable<T>& kernels();
template <>
const KernelTable<float>& kernels<float>();
template <>
const KernelTable<double>& kernels<double>();

// Those of the device that the arrays of a call are on.
template <class T>
const KernelTable<T>& kernels(Device device) {
    if constexpr (sizeof(T) == 2) {
        return cuda::table<T>();  // 16-bit floats are computed nowhere else
    } else {
        return device == Device::cuda ? cuda::table<T>() : kernels<T>();
    }
}

std::string current_isa();
// Names of the ISA builds that are compiled in AND that this CPU can run, slowest first.
std::vector<std::string> usable_isas();
// All that are compiled in.
std::vector<std::string> compiled_isas();

// Reads FUSEDNN_ISA; throws Error naming the choices if it is unknown or this CPU cannot run it.
void init_isa();
// For tests: switches the table of the whole process. Throws like init_isa.
void set_isa(const std::string& name);

}  // namespace fusednn
