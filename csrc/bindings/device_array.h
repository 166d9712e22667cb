// Arrays on a GPU, of whatever library: read through __cuda_array_interface__ (version 3) or
// DLPack, made by CuPy.
#pragma once
#include <pybind11/pybind11.h>

#include <cstdint>
#include <string>

#include "core/types.h"

namespace fusednn::bindings {

namespace py = pybind11;

// What DeviceArray::type is for bfloat16, which NumPy has no letters for.
constexpr const char* kBFloat16Type = "bfloat16";

struct DeviceArray {
    py::object owner;  // keeps the memory
    void* data;
    std::string type;  // as NumPy writes it: "<f4"; or kBFloat16Type
    int ndim;
    i64 shape[kMaxDims];
    i64 strides[kMaxDims];  // in bytes
    bool contiguous, read_only;
    int device;
    std::uintptr_t stream;  // what is being computed there goes into the array; 0: nothing is
};

// Does the object offer its memory on a CUDA device? False for all NumPy arrays.
bool is_device_array(py::handle object);

// Error or TypeMismatch naming op and argument for what is no array, masked, has too many
// dimensions, ...
DeviceArray read_device_array(py::handle object, const char* op, const char* argument);
// The same elements in C order, copied by CuPy where they are not.
DeviceArray contiguous_device_array(py::handle object, const char* op, const char* argument);

// A copy as int64.
py::object as_int64(py::handle object, const char* op);

// Makes CuPy's device `device` the current one until it is destroyed, if it is not already.
class CurrentDevice {
  public:
    CurrentDevice() = default;
    ~CurrentDevice() {
        if (entered_) leave();
    }
    CurrentDevice(const CurrentDevice&) = delete;
    CurrentDevice& operator=(const CurrentDevice&) = delete;
    void enter(int device, const char* op);

  private:
    void leave();

    py::object entered_;
};

// The stream that CuPy uses now on its current device.
std::uintptr_t current_stream(const char* op);
// cupy.empty on the current device. dtype: "float32"
py::object new_device_array(const char* dtype, int ndim, const i64* shape, void** data,
                            const char* op);

}  // namespace fusednn::bindings
