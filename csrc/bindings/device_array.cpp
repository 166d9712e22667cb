#include "bindings/device_array.h"

#include <utility>

#include "core/errors.h"
#include "cuda/device.h"

namespace fusednn::bindings {

namespace {

// The types of memory in DLPack that a CUDA kernel can read.
constexpr int kDlpackCuda = 2, kDlpackManaged = 13;

// The default stream by the name that cannot be mistaken (cudaStreamLegacy), as in the interface.
constexpr std::uintptr_t kDefaultStream = 1;

// Imported when the first array needs it, and kept for the life of the process.
py::handle cupy(const char* op) {
    static PyObject* module = nullptr;
    if (module) return module;
    try {
        module = py::module_::import("cupy").release().ptr();
        return module;
    } catch (py::error_already_set& error) {
        if (!error.matches(PyExc_ImportError)) throw;
        const std::string text = std::string(op) +
                                 ": arrays on a GPU need CuPy; pip install 'fusednn[cuda]' (" +
                                 error.what() + ")";
        py::set_error(PyExc_ImportError, text.c_str());
        throw py::error_already_set();
    }
}

// None for what has none; what the property itself raises is passed on.
py::object interface_of(py::handle object) {
    PyObject* found = PyObject_GetAttrString(object.ptr(), "__cuda_array_interface__");
    if (found) return py::reinterpret_steal<py::object>(found);
    if (!PyErr_ExceptionMatches(PyExc_AttributeError)) throw py::error_already_set();
    PyErr_Clear();
    return py::none();
}

bool on_cuda_by_dlpack(py::handle object) {
    if (!py::hasattr(object, "__dlpack_device__") || !py::hasattr(object, "__dlpack__")) {
        return false;
    }
    const auto place = object.attr("__dlpack_device__")().cast<std::pair<int, int>>();
    return place.first == kDlpackCuda || place.first == kDlpackManaged;
}

// Which interface says more: without its version 3 nobody tells which stream an array is made in,
// but DLPack's consumer says where it will be read.
bool prefers_dlpack(const py::object& interface, py::handle object) {
    return interface["version"].cast<int>() < 3 && py::hasattr(object, "__dlpack__");
}

// What ml_dtypes' bfloat16, CuPy and PyTorch write for it: two bytes of no known meaning.
bool maybe_bfloat16(const std::string& type) {
    return type == "<V2" || type == "|V2";
}

// "bfloat16", or "torch.bfloat16".
bool says_bfloat16(py::handle object) {
    if (!py::hasattr(object, "dtype")) return false;
    const auto name = py::str(object.attr("dtype")).cast<std::string>();
    const auto dot = name.rfind('.');
    return name.substr(dot == std::string::npos ? 0 : dot + 1) == "bfloat16";
}

i64 item_size(const std::string& type) {
    if (type == kBFloat16Type) return 2;
    return type.size() < 3 ? 0 : std::stoll(type.substr(2));
}

void read_strides(DeviceArray& array, const py::object& strides) {
    i64 step = item_size(array.type);
    for (int axis = array.ndim - 1; axis >= 0; --axis) {
        array.strides[axis] =
            strides.is_none() ? step : strides.cast<py::tuple>()[std::size_t(axis)].cast<i64>();
        step *= array.shape[axis];
    }
}

// In C order?
bool contiguous(const DeviceArray& array) {
    for (int axis = 0; axis < array.ndim; ++axis) {
        if (array.shape[axis] == 0) return true;
    }
    i64 step = item_size(array.type);
    for (int axis = array.ndim - 1; axis >= 0; --axis) {
        if (array.shape[axis] == 1) continue;
        if (array.strides[axis] != step) return false;
        step *= array.shape[axis];
    }
    return true;
}

py::object entry(const py::dict& interface, const char* key) {
    return interface.contains(key) ? py::object(interface[key]) : py::none();
}

std::uintptr_t stream_of(const py::dict& interface, const std::string& name) {
    const py::object stream = entry(interface, "stream");
    if (stream.is_none()) return 0;
    const auto number = stream.cast<std::uintptr_t>();
    if (number == 0) {
        throw Error(name + " has stream 0 in its __cuda_array_interface__, which is ambiguous");
    }
    return number;
}

}  // namespace

bool is_device_array(py::handle object) {
    return !interface_of(object).is_none() || on_cuda_by_dlpack(object);
}

DeviceArray read_device_array(py::handle object, const char* op, const char* argument) {
    const std::string name = std::string(op) + ": " + argument;
    DeviceArray array{};
    array.owner = py::reinterpret_borrow<py::object>(object);
    py::object offered = interface_of(object);
    const bool by_dlpack = offered.is_none() && on_cuda_by_dlpack(object);
    if (offered.is_none() && !by_dlpack) {
        throw TypeMismatch(name + " must be a NumPy array, got " + Py_TYPE(object.ptr())->tp_name);
    }
    if (by_dlpack || prefers_dlpack(offered, object)) {
        array.owner = cupy(op).attr("from_dlpack")(object);
        offered = interface_of(array.owner);
    }
    const auto interface = offered.cast<py::dict>();
    if (!entry(interface, "mask").is_none()) {
        throw TypeMismatch(name + " is a masked array, expected one without mask");
    }
    const auto shape = interface["shape"].cast<py::tuple>();
    if (shape.size() > std::size_t(kMaxDims)) {
        throw Error(name + " has " + std::to_string(shape.size()) +
                    " dimensions, expected at most " + std::to_string(kMaxDims));
    }
    array.ndim = int(shape.size());
    for (int axis = 0; axis < array.ndim; ++axis) {
        array.shape[axis] = shape[std::size_t(axis)].cast<i64>();
    }
    array.type = interface["typestr"].cast<std::string>();
    const auto [address, read_only] = interface["data"].cast<std::pair<std::uintptr_t, bool>>();
    array.data = reinterpret_cast<void*>(address);
    array.read_only = read_only;
    if (maybe_bfloat16(array.type) && says_bfloat16(array.owner)) array.type = kBFloat16Type;
    read_strides(array, entry(interface, "strides"));
    array.contiguous = contiguous(array);
    array.stream = stream_of(interface, name);
    // An array without elements lies nowhere.
    array.device = address ? cuda::device_of(array.data)
                           : (cuda::device_count() > 0 ? cuda::current_device() : -1);
    if (array.device >= 0) return array;
    if (cuda::device_count() == 0) {
        throw DeviceError(name + " is on a GPU, but fusednn cannot use one: " + cuda::status());
    }
    throw Error(name + " has a __cuda_array_interface__, but its data is not on a GPU");
}

DeviceArray contiguous_device_array(py::handle object, const char* op, const char* argument) {
    const DeviceArray array = read_device_array(object, op, argument);
    if (array.contiguous) return array;
    const py::handle module = cupy(op);
    CurrentDevice current;
    current.enter(array.device, op);
    // The interface does not tell CuPy that it is bfloat16; DLPack does.
    const char* reader =
        array.type == kBFloat16Type && !py::isinstance(array.owner, module.attr("ndarray"))
            ? "from_dlpack"
            : "asarray";
    return read_device_array(module.attr("ascontiguousarray")(module.attr(reader)(array.owner)), op,
                             argument);
}

py::object as_int64(py::handle object, const char* op) {
    return cupy(op).attr("asarray")(object, py::arg("dtype") = "int64");
}

void CurrentDevice::enter(int device, const char* op) {
    if (entered_ || cuda::current_device() == device) return;
    py::object entered = cupy(op).attr("cuda").attr("Device")(device);
    entered.attr("__enter__")();
    entered_ = std::move(entered);
}

void CurrentDevice::leave() {
    try {
        const py::error_scope pending;  // an error on its way stays what it is
        entered_.attr("__exit__")(py::none(), py::none(), py::none());
    } catch (py::error_already_set& error) {
        error.discard_as_unraisable("leaving a CUDA device");
    }
}

std::uintptr_t current_stream(const char* op) {
    const auto stream =
        cupy(op).attr("cuda").attr("get_current_stream")().attr("ptr").cast<std::uintptr_t>();
    return stream ? stream : kDefaultStream;
}

namespace {

// NumPy knows the name only once ml_dtypes is imported.
py::object bfloat16_dtype(const char* op) {
    try {
        return py::module_::import("ml_dtypes").attr("bfloat16");
    } catch (py::error_already_set& error) {
        if (!error.matches(PyExc_ImportError)) throw;
        const std::string text = std::string(op) +
                                 ": bfloat16 arrays need the package ml_dtypes; pip install "
                                 "'fusednn[cuda]' (" +
                                 error.what() + ")";
        py::set_error(PyExc_ImportError, text.c_str());
        throw py::error_already_set();
    }
}

}  // namespace

py::object new_device_array(const char* dtype, int ndim, const i64* shape, void** data,
                            const char* op) {
    py::tuple sizes(ndim);
    for (int axis = 0; axis < ndim; ++axis) sizes[std::size_t(axis)] = shape[axis];
    py::object array = cupy(op).attr("empty")(
        sizes, py::arg("dtype") = dtype == std::string(kBFloat16Type) ? bfloat16_dtype(op)
                                                                      : py::object(py::str(dtype)));
    *data = reinterpret_cast<void*>(array.attr("data").attr("ptr").cast<std::uintptr_t>());
    return array;
}

}  // namespace fusednn::bindings
