#include "bindings/call.h"

#include <string>

#include "core/errors.h"

namespace fusednn::bindings {

namespace {

std::string place(int number) {
    return number < 0 ? "on the CPU" : "on cuda:" + std::to_string(number);
}

// "<f4" as people say it.
std::string dtype_name(const std::string& type) {
    return py::str(py::dtype(type)).cast<std::string>();
}

const char* float_name(DType dtype) {
    return dtype == DType::f32 ? "float32" : "float64";
}

struct TapType {
    const char *name, *type;
};
TapType tap_type(int bytes) {
    return bytes == 1   ? TapType{"uint8", "|u1"}
           : bytes == 2 ? TapType{"uint16", "<u2"}
                        : TapType{"int32", "<i4"};
}

}  // namespace

// The first array decides. Its device becomes the current one, and the call runs in CuPy's stream.
void Call::settle(int number, const char* argument) {
    if (number_ == kUnknown) {
        if (number >= 0) {
            current_.enter(number, op_);
            stream_ = current_stream(op_);
        }
        number_ = number;
        first_ = argument;
        return;
    }
    if (number == number_) return;
    throw Error(std::string(op_) + ": " + argument + " is " + place(number) + ", expected " +
                place(number_) + " like " + first_);
}

// True for what is read as NumPy's array, or refused as none.
bool Call::is_numpy(py::handle object, const char* argument) {
    const bool numpy = py::isinstance<py::array>(object);
    if (!numpy && is_device_array(object)) return false;
    if (numpy) settle(kCpu, argument);
    return true;
}

Array Call::on_device(py::handle object, const char* argument, std::string* type) {
    DeviceArray array = read_device_array(object, op_, argument);
    settle(array.device, argument);
    // In this order: the copy is made in the call's stream.
    if (array.stream) cuda::order_streams(array.stream, stream_);
    if (!array.contiguous) array = contiguous_device_array(array.owner, op_, argument);
    Array result;
    *type = array.type;
    result.view_.data = array.data;
    result.view_.device = Device::cuda;
    result.view_.ndim = array.ndim;
    for (int axis = 0; axis < array.ndim; ++axis) result.view_.shape[axis] = array.shape[axis];
    result.owner_ = std::move(array.owner);
    return result;
}

Array Call::floating(py::handle object, const char* argument) {
    if (is_numpy(object, argument)) return Array::floating(object, op_, argument);
    std::string type;
    Array result = on_device(object, argument, &type);
    if (type != "<f4" && type != "<f8") {
        throw TypeMismatch(std::string(op_) + ": " + argument + " has dtype " + dtype_name(type) +
                           ", expected float32 or float64");
    }
    result.view_.dtype = type == "<f4" ? DType::f32 : DType::f64;
    return result;
}

Array Call::floating_like(py::handle object, const Array& like, const char* argument) {
    Array result = floating(object, argument);
    if (result.dtype() != like.dtype()) {
        throw TypeMismatch(std::string(op_) + ": " + argument + " has dtype " +
                           float_name(result.dtype()) + ", expected " + float_name(like.dtype()) +
                           " like input");
    }
    return result;
}

Array Call::taps(py::handle object, const char* argument, int bytes) {
    const TapType expected = tap_type(bytes);
    if (is_numpy(object, argument)) {
        return Array::exact(object, py::dtype(expected.type), op_, argument);
    }
    std::string type;
    Array result = on_device(object, argument, &type);
    if (type != expected.type) {
        throw TypeMismatch(std::string(op_) + ": " + argument + " has dtype " + dtype_name(type) +
                           ", expected " + expected.name);
    }
    return result;
}

py::object Call::new_array(DType dtype, int ndim, const i64* shape, void** data) {
    if (device() == Device::cpu) return bindings::new_array(dtype, ndim, shape, data);
    return new_device_array(float_name(dtype), ndim, shape, data, op_);
}

py::object Call::new_tap_array(int bytes, int ndim, const i64* shape, void** data) {
    if (device() == Device::cpu) return bindings::new_tap_array(bytes, ndim, shape, data);
    return new_device_array(tap_type(bytes).name, ndim, shape, data, op_);
}

}  // namespace fusednn::bindings
