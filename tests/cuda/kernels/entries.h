// Kernels that exist for the tests alone: probes of single instructions, and kernels that use
// barriers, asynchronous copies and tensor cores in the ways that csrc/cuda does or will. They show
// that the emulator computes what the PTX ISA says, and that it notices what is wrong
// (tests/cuda/mutate.py). Written by the rules of docs/cuda.md, like those of csrc/cuda.
//
// They are in the emulated extension and, for a GPU, in a library that bench/gpu_check.sh builds.
// Every entry is a C function of device pointers and counts that gives an error's text or null.
#pragma once
#include <exception>
#include <string>

#include "cuda/gpu.h"

#define FUSEDNN_TEST_ENTRY extern "C" __attribute__((visibility("default"))) const char*

namespace fusednn::cuda {

inline std::string entry_error;

// Runs `launches` and waits for them; the text of what went wrong, or null.
template <class Fn>
const char* run_entry(Fn launches) {
    try {
        launches();
        check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
        return nullptr;
    } catch (const std::exception& error) {
        entry_error = error.what();
        return entry_error.c_str();
    }
}

}  // namespace fusednn::cuda
