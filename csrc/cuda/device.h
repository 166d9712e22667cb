// What the host asks of the CUDA half. device.cu answers where it is built, stub.cpp elsewhere.
#pragma once
#include <string>

namespace fusednn::cuda {

bool compiled();       // was the CUDA half built?
int device_count();    // 0 without a usable driver or device; never throws
std::string status();  // one sentence: the devices, or why there are none

}  // namespace fusednn::cuda
