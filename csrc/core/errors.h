// Exceptions that reach Python: Error becomes ValueError, TypeMismatch becomes TypeError.
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

}  // namespace fusednn
