#include "bindings/call.h"

#include <algorithm>
#include <string>

#include "core/errors.h"
#include "cuda/ids.h"
#include "ops/shapes.h"

namespace fusednn::bindings {

namespace {

std::string place(int number) {
    return number < 0 ? "on the CPU" : "on cuda:" + std::to_string(number);
}

// "<f4" as people say it.
std::string type_name(const std::string& type) {
    return type == kBFloat16Type ? type : py::str(py::dtype(type)).cast<std::string>();
}

bool half_type(const std::string& type) {
    return type == "<f2" || type == kBFloat16Type;
}

DType floating_type(const std::string& type) {
    return type == "<f8"           ? DType::f64
           : type == "<f2"         ? DType::f16
           : type == kBFloat16Type ? DType::bf16
                                   : DType::f32;
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

bool Call::is_numpy(py::handle object, const char* argument) {
    if (!py::isinstance<py::array>(object)) return false;
    settle(kCpu, argument);
    return true;
}

// What is being computed in another stream is waited for before anything reads it.
DeviceArray Call::placed(py::handle object, const char* argument) {
    DeviceArray array = read_device_array(object, op_, argument);
    settle(array.device, argument);
    if (array.stream) cuda::order_streams(array.stream, stream_);
    return array;
}

// A copy in C order: by our kernel where matrices are transposed, else by CuPy.
DeviceArray Call::contiguous(const DeviceArray& array, const char* argument) {
    const bool single = array.type == "<f4";
    Transposed from;
    if ((!single && array.type != "<f8") ||
        !find_transposed(array.ndim, array.shape, array.strides, single ? 4 : 8, &from)) {
        return contiguous_device_array(array.owner, op_, argument);
    }
    DeviceArray copy = array;
    copy.owner = new_array(single ? DType::f32 : DType::f64, array.ndim, array.shape, &copy.data);
    copy.contiguous = true;
    const Run run(*this, from.batch * from.rows * from.columns * 8);
    const auto transpose = [&](auto zero) {
        using T = decltype(zero);
        run.kernels<T>().transpose_matrices(from.batch, from.rows, from.columns,
                                            static_cast<const T*>(array.data),
                                            static_cast<T*>(copy.data));
    };
    single ? transpose(0.0f) : transpose(0.0);
    return copy;
}

Array Call::view_of(DeviceArray array, const char* argument) {
    if (!array.contiguous) array = contiguous(array, argument);
    Array result;
    result.view_.data = array.data;
    result.view_.dtype = floating_type(array.type);
    result.view_.device = Device::cuda;
    result.view_.ndim = array.ndim;
    i64 stride = 1;
    for (int axis = array.ndim - 1; axis >= 0; --axis) {
        result.view_.shape[axis] = array.shape[axis];
        result.strides_[axis] = stride;
        stride *= array.shape[axis];
    }
    result.owner_ = std::move(array.owner);
    return result;
}

// Rows may lie anywhere, as for Array::strided.
Array Call::rows_of(DeviceArray array, const char* argument, i64 item, bool flat) {
    bool readable = !array.contiguous && array.ndim > 0;
    for (int axis = 0; axis < array.ndim; ++axis) {
        readable = readable && array.strides[axis] % item == 0;
    }
    const int last = array.ndim - 1;
    readable = readable && (array.shape[last] <= 1 || array.strides[last] == item ||
                            (flat && array.strides[last] == 0));
    i64 strides[kMaxDims];
    for (int axis = 0; axis < array.ndim; ++axis) strides[axis] = array.strides[axis] / item;
    array.contiguous = array.contiguous || readable;
    Array result = view_of(std::move(array), argument);
    if (readable) std::copy(strides, strides + result.ndim(), result.strides_);
    return result;
}

void Call::refuse(const char* argument, const DeviceArray& array, const char* expected) const {
    throw TypeMismatch(std::string(op_) + ": " + argument + " has dtype " + type_name(array.type) +
                       ", expected " + expected);
}

Array Call::any_floating(py::handle object, const char* argument, bool half) {
    if (is_numpy(object, argument)) return Array::floating(object, op_, argument);
    DeviceArray array = placed(object, argument);
    if (half_type(array.type)) {
        if (half) return view_of(std::move(array), argument);
        throw NoKernel(std::string(op_) + ": no CUDA kernel for " + type_name(array.type) + " (" +
                       argument + ")");
    }
    if (array.type != "<f4" && array.type != "<f8") {
        refuse(argument, array,
               half ? "float32, float64, bfloat16 or float16" : "float32 or float64");
    }
    return view_of(std::move(array), argument);
}

Array Call::floating(py::handle object, const char* argument) {
    return any_floating(object, argument, false);
}

Array Call::floating_or_half(py::handle object, const char* argument) {
    return any_floating(object, argument, true);
}

Array Call::of_dtype(py::handle object, DType expected, const char* argument) {
    Array result = any_floating(object, argument, true);
    if (result.dtype() != expected) {
        throw TypeMismatch(std::string(op_) + ": " + argument + " has dtype " +
                           dtype_name(result.dtype()) + ", expected " + dtype_name(expected) +
                           " like input");
    }
    return result;
}

Array Call::floating_like(py::handle object, const Array& like, const char* argument) {
    return of_dtype(object, like.dtype(), argument);
}

Array Call::accumulated_like(py::handle object, const Array& like, const char* argument) {
    if (!is_half(like.dtype())) return floating_like(object, like, argument);
    Array result = any_floating(object, argument, true);
    if (result.dtype() == DType::f32) return result;
    throw TypeMismatch(std::string(op_) + ": " + argument + " has dtype " +
                       dtype_name(result.dtype()) + ", expected float32 beside " +
                       dtype_name(like.dtype()));
}

Array Call::strided(py::handle object, const char* argument, bool flat) {
    if (is_numpy(object, argument)) return Array::strided(object, op_, argument, flat);
    DeviceArray array = placed(object, argument);
    if (array.type != "<f4" && array.type != "<f8" && !half_type(array.type)) {
        refuse(argument, array, "float32, float64, bfloat16 or float16");
    }
    const i64 item = item_size(floating_type(array.type));
    return rows_of(std::move(array), argument, item, flat);
}

Array Call::boolean(py::handle object, const char* argument) {
    if (is_numpy(object, argument)) return Array::boolean(object, op_, argument);
    DeviceArray array = placed(object, argument);
    if (array.type != "|b1") refuse(argument, array, "bool");
    return rows_of(std::move(array), argument, 1, true);
}

Array Call::integer(py::handle object, const char* argument) {
    if (is_numpy(object, argument)) return Array::integer(object, op_, argument);
    DeviceArray array = placed(object, argument);
    const char kind = array.type.size() > 1 ? array.type[1] : '?';
    if (kind != 'i' && kind != 'u') refuse(argument, array, "an integer dtype");
    if (array.type != "<i8") {
        array = read_device_array(as_int64(array.owner, op_), op_, argument);
    }
    return view_of(std::move(array), argument);
}

bool Call::is_unsigned(py::handle object) const {
    if (py::isinstance<py::array>(object)) {
        const auto* descr = py::detail::array_proxy(object.ptr())->descr;
        return py::detail::array_descriptor_proxy(descr)->kind == 'u';
    }
    const std::string type = read_device_array(object, op_, "indices").type;
    return type.size() > 1 && type[1] == 'u';
}

i64 Call::first_outside(const Array& ids, i64 rows, const i64* allowed, i64* value) const {
    const Run run(*this, ids.size() * 8 + 1'000'000);  // other threads run while this one waits
    return cuda::first_outside(ids.size(), ids.data<i64>(), rows, allowed, value);
}

std::vector<i64> Call::on_host(const Array& array) const {
    if (device() == Device::cpu) return {array.data<i64>(), array.data<i64>() + array.size()};
    const auto copy = as_int64(array.owner_, op_).attr("get")().cast<py::array_t<i64>>();
    return {copy.data(), copy.data() + copy.size()};
}

MutableArray Call::mutable_like(py::handle object, const Array& like, const char* argument) {
    if (is_numpy(object, argument)) return MutableArray::like(object, like, op_, argument);
    DeviceArray array = placed(object, argument);
    constexpr const char* types[] = {"<f4", "<f8", kBFloat16Type, "<f2"};  // as DType counts
    if (array.type != types[int(like.dtype())]) refuse(argument, array, dtype_name(like.dtype()));
    const ops::Shape found(array.shape, array.shape + array.ndim);
    ops::require_shape(op_, argument, found, ops::shape_of(like.view()));
    if (!array.contiguous || array.read_only) {
        throw Error(std::string(op_) + ": " + argument +
                    " is updated in place and must be writable and C-contiguous");
    }
    MutableArray result;
    result.data_ = array.data;
    result.owner_ = std::move(array.owner);
    return result;
}

Array Call::taps(py::handle object, const char* argument, int bytes) {
    const TapType expected = tap_type(bytes);
    if (is_numpy(object, argument)) {
        return Array::exact(object, py::dtype(expected.type), op_, argument);
    }
    DeviceArray array = placed(object, argument);
    if (array.type != expected.type) refuse(argument, array, expected.name);
    return view_of(std::move(array), argument);
}

py::object Call::new_array(DType dtype, int ndim, const i64* shape, void** data) {
    if (device() == Device::cpu) return bindings::new_array(dtype, ndim, shape, data);
    return new_device_array(dtype_name(dtype), ndim, shape, data, op_);
}

py::object Call::new_row_major_heads(DType dtype, const i64* shape, void** data) {
    const i64 order[4] = {shape[0], shape[2], shape[1], shape[3]};
    return new_array(dtype, 4, order, data).attr("swapaxes")(1, 2);
}

py::object Call::new_int64_array(int ndim, const i64* shape, i64** data) {
    if (device() == Device::cpu) return bindings::new_int64_array(ndim, shape, data);
    void* raw;
    py::object array = new_device_array("int64", ndim, shape, &raw, op_);
    *data = static_cast<i64*>(raw);
    return array;
}

py::object Call::new_tap_array(int bytes, int ndim, const i64* shape, void** data) {
    if (device() == Device::cpu) return bindings::new_tap_array(bytes, ndim, shape, data);
    return new_device_array(tap_type(bytes).name, ndim, shape, data, op_);
}

}  // namespace fusednn::bindings
