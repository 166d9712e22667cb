#include <cuda_runtime_api.h>

#include "cuda/device.h"

namespace fusednn::cuda {

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

}  // namespace fusednn::cuda
