#include "bindings/array.h"

#include <string>

#include "bindings/device_array.h"
#include "core/dispatch.h"
#include "core/errors.h"
#include "core/memory.h"
#include "ops/shapes.h"

namespace fusednn::bindings {

namespace {

using py::detail::npy_api;

// Under this size NumPy's own small-block cache is faster than a capsule around ours.
constexpr std::size_t kSmallResult = 1024;

std::string type_name(py::handle object) {
    return Py_TYPE(object.ptr())->tp_name;
}

std::string dtype_name(py::handle array) {
    return py::str(array.attr("dtype")).cast<std::string>();
}

void require_array(py::handle object, const char* op, const char* argument) {
    if (npy_api::get().PyArray_Check_(object.ptr())) return;
    if (is_device_array(object)) {
        throw NoKernel(std::string(op) + ": no CUDA kernel; " + argument + " is on a GPU");
    }
    throw TypeMismatch(std::string(op) + ": " + argument + " must be a NumPy array, got " +
                       type_name(object));
}

// NumPy's type number decides; byte order and alignment are looked at apart.
int type_number(py::handle array) {
    return py::detail::array_descriptor_proxy(py::detail::array_proxy(array.ptr())->descr)
        ->type_num;
}

bool readable_in_place(py::handle array) {
    constexpr int needed = npy_api::NPY_ARRAY_C_CONTIGUOUS_ | npy_api::NPY_ARRAY_ALIGNED_;
    const auto* proxy = py::detail::array_proxy(array.ptr());
    const char order = py::detail::array_descriptor_proxy(proxy->descr)->byteorder;
    return (proxy->flags & needed) == needed && order != '>';
}

void fill_view(ArrayView& view, py::handle array, DType dtype, const char* op,
               const char* argument) {
    const auto* proxy = py::detail::array_proxy(array.ptr());
    if (proxy->nd > kMaxDims) {
        throw Error(std::string(op) + ": " + argument + " has " + std::to_string(proxy->nd) +
                    " dimensions, expected at most " + std::to_string(kMaxDims));
    }
    view.data = proxy->data;
    view.dtype = dtype;
    view.device = Device::cpu;
    view.ndim = proxy->nd;
    for (int axis = 0; axis < proxy->nd; ++axis) view.shape[axis] = proxy->dimensions[axis];
}

py::object contiguous_copy(py::handle array, py::handle descr) {
    auto& api = npy_api::get();
    constexpr int flags = npy_api::NPY_ARRAY_C_CONTIGUOUS_ | npy_api::NPY_ARRAY_ALIGNED_ |
                          npy_api::NPY_ARRAY_FORCECAST_;
    PyObject* copy = api.PyArray_FromAny_(array.ptr(), descr.inc_ref().ptr(), 0, 0, flags, nullptr);
    if (!copy) throw py::error_already_set();
    return py::reinterpret_steal<py::object>(copy);
}

template <class T>
py::handle descr_of() {
    static const py::handle descr = py::dtype::of<T>().release();
    return descr;
}

py::object make_array(py::handle descr, std::size_t item, int ndim, const i64* shape, void** data) {
    auto& api = npy_api::get();
    Py_intptr_t dims[kMaxDims];
    std::size_t bytes = item;
    for (int axis = 0; axis < ndim; ++axis) {
        dims[axis] = shape[axis];
        bytes = std::size_t(ops::checked_product("result", i64(bytes), shape[axis]));
    }
    void* block = bytes > kSmallResult ? memory_acquire(bytes) : nullptr;
    PyObject* array = api.PyArray_NewFromDescr_(
        api.PyArray_Type_, descr.inc_ref().ptr(), ndim, dims, nullptr, block,
        block ? npy_api::NPY_ARRAY_WRITEABLE_ | npy_api::NPY_ARRAY_C_CONTIGUOUS_ |
                    npy_api::NPY_ARRAY_ALIGNED_
              : 0,
        nullptr);
    if (!array) {
        memory_release(block);
        throw py::error_already_set();
    }
    auto result = py::reinterpret_steal<py::object>(array);
    if (block) {
        PyObject* capsule = PyCapsule_New(block, nullptr, [](PyObject* self) {
            memory_release(PyCapsule_GetPointer(self, nullptr));
        });
        if (!capsule) {
            memory_release(block);
            throw py::error_already_set();
        }
        if (api.PyArray_SetBaseObject_(array, capsule) < 0) throw py::error_already_set();
    }
    *data = py::detail::array_proxy(array)->data;
    return result;
}

// A C-contiguous copy of a float array, whatever its strides and byte order.
template <class T>
py::object floating_copy(py::handle array) {
    const auto* proxy = py::detail::array_proxy(array.ptr());
    const i64 item = i64(sizeof(T));
    i64 shape[kMaxDims], strides[kMaxDims];
    for (int axis = 0; axis < proxy->nd && axis < kMaxDims; ++axis) {
        shape[axis] = proxy->dimensions[axis];
        strides[axis] = proxy->strides[axis];
    }
    Transposed from;
    if (!(proxy->flags & npy_api::NPY_ARRAY_ALIGNED_) || proxy->nd > kMaxDims ||
        py::detail::array_descriptor_proxy(proxy->descr)->byteorder == '>' ||
        !find_transposed(proxy->nd, shape, strides, item, &from)) {
        return contiguous_copy(array, descr_of<T>());
    }
    void* data;
    py::object copy = make_array(descr_of<T>(), sizeof(T), proxy->nd, shape, &data);
    GilRelease release(from.batch * from.rows * from.columns * item);
    kernels<T>().transpose_matrices(from.batch, from.rows, from.columns,
                                    static_cast<const T*>(static_cast<const void*>(proxy->data)),
                                    static_cast<T*>(data));
    return copy;
}

}  // namespace

bool find_transposed(int ndim, const i64* size, const i64* stride, i64 item, Transposed* found) {
    int behind = ndim;  // the first axis of B
    for (int axis = 0; axis < ndim; ++axis) {
        if (size[axis] > 1 && stride[axis] == item) behind = axis + 1;
    }
    if (behind == ndim) return false;
    i64 step = item;
    const auto fits = [&](int axis) { return size[axis] == 1 || stride[axis] == step; };
    int front = behind;  // the first axis of A
    while (front > 0 && fits(front - 1)) {
        step *= size[--front];
        found->columns *= size[front];
    }
    for (int axis = ndim - 1; axis >= behind; --axis) {
        if (!fits(axis)) return false;
        step *= size[axis];
        found->rows *= size[axis];
    }
    for (int axis = front - 1; axis >= 0; --axis) {
        if (!fits(axis)) return false;
        step *= size[axis];
        found->batch *= size[axis];
    }
    return true;
}

Array Array::floating(py::handle object, const char* op, const char* argument) {
    require_array(object, op, argument);
    const int number = type_number(object);
    Array result;
    DType dtype;
    if (number == npy_api::NPY_FLOAT_) {
        dtype = DType::f32;
    } else if (number == npy_api::NPY_DOUBLE_) {
        dtype = DType::f64;
    } else {
        throw TypeMismatch(std::string(op) + ": " + argument + " has dtype " + dtype_name(object) +
                           ", expected float32 or float64");
    }
    result.owner_ = readable_in_place(object) ? py::reinterpret_borrow<py::object>(object)
                    : dtype == DType::f32     ? floating_copy<float>(object)
                                              : floating_copy<double>(object);
    fill_view(result.view_, result.owner_, dtype, op, argument);
    return result;
}

Array Array::floating_like(py::handle object, const Array& like, const char* op,
                           const char* argument) {
    Array result = floating(object, op, argument);
    if (result.dtype() != like.dtype()) {
        const char* names[] = {"float32", "float64"};
        throw TypeMismatch(std::string(op) + ": " + argument + " has dtype " +
                           names[int(result.dtype())] + ", expected " + names[int(like.dtype())] +
                           " like input");
    }
    return result;
}

namespace {

// Aligned, in native byte order, strides that are whole elements, and the last axis contiguous.
bool rows_readable(py::handle array, i64 item, bool flat) {
    const auto* proxy = py::detail::array_proxy(array.ptr());
    const char order = py::detail::array_descriptor_proxy(proxy->descr)->byteorder;
    if (!(proxy->flags & npy_api::NPY_ARRAY_ALIGNED_) || order == '>') return false;
    for (int axis = 0; axis < proxy->nd; ++axis) {
        if (proxy->strides[axis] % item != 0) return false;
    }
    if (proxy->nd == 0 || proxy->dimensions[proxy->nd - 1] <= 1) return true;
    const i64 last = proxy->strides[proxy->nd - 1];
    return last == item || (flat && last == 0);
}

}  // namespace

void Array::fill_strides(std::size_t item) {
    const auto* proxy = py::detail::array_proxy(owner_.ptr());
    for (int axis = 0; axis < proxy->nd; ++axis) strides_[axis] = proxy->strides[axis] / i64(item);
}

Array Array::strided(py::handle object, const char* op, const char* argument, bool flat) {
    require_array(object, op, argument);
    const int number = type_number(object);
    const bool single = number == npy_api::NPY_FLOAT_;
    const std::size_t item = single ? sizeof(float) : sizeof(double);
    if ((!single && number != npy_api::NPY_DOUBLE_) || !rows_readable(object, i64(item), flat)) {
        Array result = floating(object, op, argument);
        result.fill_strides(item);
        return result;
    }
    Array result;
    result.owner_ = py::reinterpret_borrow<py::object>(object);
    fill_view(result.view_, object, single ? DType::f32 : DType::f64, op, argument);
    result.fill_strides(item);
    return result;
}

bool Array::is_bfloat16(py::handle object) {
    if (!npy_api::get().PyArray_Check_(object.ptr())) return false;
    const int number = type_number(object);
    // A type of another package, which has its number at run time: its name decides.
    return number != npy_api::NPY_FLOAT_ && number != npy_api::NPY_DOUBLE_ &&
           dtype_name(object) == "bfloat16";
}

Array Array::bfloat16(py::handle object, const char* op, const char* argument) {
    constexpr i64 item = sizeof(BFloat16);
    Array result;
    result.owner_ = rows_readable(object, item, false)
                        ? py::reinterpret_borrow<py::object>(object)
                        : contiguous_copy(object, object.attr("dtype").attr("newbyteorder")("="));
    fill_view(result.view_, result.owner_, DType::bf16, op, argument);
    result.fill_strides(item);
    return result;
}

Array Array::boolean(py::handle object, const char* op, const char* argument) {
    require_array(object, op, argument);
    if (type_number(object) != npy_api::NPY_BOOL_) {
        throw TypeMismatch(std::string(op) + ": " + argument + " has dtype " + dtype_name(object) +
                           ", expected bool");
    }
    Array result;
    result.owner_ = rows_readable(object, 1, true) ? py::reinterpret_borrow<py::object>(object)
                                                   : contiguous_copy(object, descr_of<bool>());
    fill_view(result.view_, result.owner_, DType::f32, op, argument);
    result.fill_strides(1);
    return result;
}

Array Array::exact(py::handle object, const py::dtype& dtype, const char* op,
                   const char* argument) {
    require_array(object, op, argument);
    if (type_number(object) != dtype.num()) {
        throw TypeMismatch(std::string(op) + ": " + argument + " has dtype " + dtype_name(object) +
                           ", expected " + py::str(dtype).cast<std::string>());
    }
    Array result;
    result.owner_ = readable_in_place(object) ? py::reinterpret_borrow<py::object>(object)
                                              : contiguous_copy(object, dtype);
    fill_view(result.view_, result.owner_, DType::f32, op, argument);
    return result;
}

Array Array::integer(py::handle object, const char* op, const char* argument) {
    require_array(object, op, argument);
    const std::string kind = py::str(object.attr("dtype").attr("kind"));
    if (kind != "i" && kind != "u") {
        throw TypeMismatch(std::string(op) + ": " + argument + " has dtype " + dtype_name(object) +
                           ", expected an integer dtype");
    }
    Array result;
    const bool in_place = py::isinstance<py::array_t<i64>>(object) && readable_in_place(object);
    result.owner_ = in_place ? py::reinterpret_borrow<py::object>(object)
                             : contiguous_copy(object, descr_of<i64>());
    fill_view(result.view_, result.owner_, DType::f32, op, argument);
    return result;
}

i64 Array::size() const {
    i64 size = 1;
    for (int axis = 0; axis < view_.ndim; ++axis) size *= view_.shape[axis];
    return size;
}

MutableArray MutableArray::like(py::handle object, const Array& like, const char* op,
                                const char* argument) {
    require_array(object, op, argument);
    const int number = type_number(object);
    const int wanted = like.dtype() == DType::f32 ? npy_api::NPY_FLOAT_ : npy_api::NPY_DOUBLE_;
    const auto* proxy = py::detail::array_proxy(object.ptr());
    if (number != wanted) {
        throw TypeMismatch(std::string(op) + ": " + argument + " has dtype " + dtype_name(object) +
                           ", expected " + (like.dtype() == DType::f32 ? "float32" : "float64"));
    }
    bool same_shape = proxy->nd == like.ndim();
    for (int axis = 0; same_shape && axis < proxy->nd; ++axis) {
        same_shape = proxy->dimensions[axis] == like.shape()[axis];
    }
    if (!same_shape) {
        ops::Shape found(proxy->dimensions, proxy->dimensions + proxy->nd);
        throw Error(std::string(op) + ": " + argument + " has shape " + ops::text(found) +
                    ", expected " +
                    ops::text(ops::Shape(like.shape(), like.shape() + like.ndim())));
    }
    if (!(proxy->flags & npy_api::NPY_ARRAY_WRITEABLE_) || !readable_in_place(object)) {
        throw Error(std::string(op) + ": " + argument +
                    " is updated in place and must be writable and C-contiguous");
    }
    MutableArray result;
    result.owner_ = py::reinterpret_borrow<py::object>(object);
    result.data_ = proxy->data;
    return result;
}

py::object new_array(DType dtype, int ndim, const i64* shape, void** data) {
    return dtype == DType::f32 ? make_array(descr_of<float>(), sizeof(float), ndim, shape, data)
                               : make_array(descr_of<double>(), sizeof(double), ndim, shape, data);
}

py::object new_int64_array(int ndim, const i64* shape, i64** data) {
    void* raw;
    auto result = make_array(descr_of<i64>(), sizeof(i64), ndim, shape, &raw);
    *data = static_cast<i64*>(raw);
    return result;
}

py::object new_tap_array(int bytes, int ndim, const i64* shape, void** data) {
    const py::handle descr = bytes == 1   ? descr_of<std::uint8_t>()
                             : bytes == 2 ? descr_of<std::uint16_t>()
                                          : descr_of<std::int32_t>();
    return make_array(descr, std::size_t(bytes), ndim, shape, data);
}

}  // namespace fusednn::bindings
