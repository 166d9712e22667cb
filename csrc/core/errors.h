// Exceptions that reach Python: Error becomes ValueError, TypeMismatch becomes TypeError,
// DeviceError becomes RuntimeError, NoKernel becomes NotImplementedError.
#pragma once
#include <stdexcept>
#include <string>

namespace fusednn {

struct Error : std::invalid_argument {
    using std::invalid_argument::invalid_argument;
};

struct TypeMismatch : std::invalid_argument {
    using std::invalid_argument::invalid_argument;
};

// What CUDA reports.
struct DeviceError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

struct NoKernel : std::runtime_error {
    using std::runtime_error::runtime_error;
};

}  // namespace fusednn
