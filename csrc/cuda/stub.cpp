// Built instead of csrc/cuda/*.cu where there is no CUDA compiler.
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

}  // namespace fusednn::cuda
