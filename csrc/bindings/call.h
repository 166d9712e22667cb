// One call of an op whose arrays may be on the CPU or on a GPU, but all in one place.
//
//   Call call("relu");
//   const Array x = call.floating(input, "input");    // the first array says where the call runs
//   py::object result = call.new_array(x.dtype(), x.ndim(), x.shape(), &y);
//   const Run run(call, x.size() * 2);
//   run.kernels<float>().relu_forward(...)
//
// What an op takes from Array itself instead of from a Call must be NumPy's.
#pragma once
#include <optional>
#include <vector>

#include "bindings/array.h"
#include "bindings/device_array.h"
#include "core/dispatch.h"

namespace fusednn::bindings {

class Call {
  public:
    explicit Call(const char* op) : op_(op) {}

    // As those of Array, on either side; Error where another argument is elsewhere.
    Array floating(py::handle object, const char* argument);
    Array floating_like(py::handle object, const Array& like, const char* argument);
    // 16-bit floats as well, on a GPU: for ops that dispatch by with_device_dtype. floating refuses
    // them as what has no kernel, floating_like demands the dtype of `like`, whatever it is.
    Array floating_or_half(py::handle object, const char* argument);
    // The dtype that sums and statistics of `like` have: float32 beside 16-bit floats.
    Array accumulated_like(py::handle object, const Array& like, const char* argument);
    // 16-bit floats as well, as floating_or_half.
    Array strided(py::handle object, const char* argument, bool flat = false);
    Array boolean(py::handle object, const char* argument);
    Array integer(py::handle object, const char* argument);
    MutableArray mutable_like(py::handle object, const Array& like, const char* argument);
    // Has this array, on either side, an unsigned dtype?
    bool is_unsigned(py::handle object) const;
    // On a GPU: the first of the ids that is neither in [0, rows) nor *allowed (which may be null),
    // with its value; -1 if there is none. Waits for what is being computed there.
    i64 first_outside(const Array& ids, i64 rows, const i64* allowed, i64* value) const;
    // The numbers of an integer array, on either side. Waits for what is being computed there.
    std::vector<i64> on_host(const Array& array) const;
    // Winning taps of max pooling, uint8, uint16 or int32 for `bytes` of 1, 2 or 4.
    Array taps(py::handle object, const char* argument, int bytes);

    // New arrays beside those of the call.
    py::object new_array(DType dtype, int ndim, const i64* shape, void** data);
    // (batch, heads, rows, columns) with the heads of each row side by side in memory.
    py::object new_row_major_heads(DType dtype, const i64* shape, void** data);
    py::object new_int64_array(int ndim, const i64* shape, i64** data);
    py::object new_tap_array(int bytes, int ndim, const i64* shape, void** data);

    const char* op() const { return op_; }
    Device device() const { return number_ < 0 ? Device::cpu : Device::cuda; }
    int number() const { return number_; }  // of the GPU
    std::uintptr_t stream() const { return stream_; }

  private:
    static constexpr int kCpu = -1, kUnknown = -2;

    void settle(int number, const char* argument);
    DeviceArray placed(py::handle object, const char* argument);
    DeviceArray contiguous(const DeviceArray& array, const char* argument);
    Array view_of(DeviceArray array, const char* argument);
    Array rows_of(DeviceArray array, const char* argument, i64 item, bool flat);
    [[noreturn]] void refuse(const char* argument, const DeviceArray& array,
                             const char* expected) const;
    bool is_numpy(py::handle object, const char* argument);
    Array any_floating(py::handle object, const char* argument, bool half);
    Array of_dtype(py::handle object, DType expected, const char* argument);

    const char* op_;
    int number_ = kUnknown;
    const char* first_ = nullptr;  // the argument that said where
    std::uintptr_t stream_ = 0;
    CurrentDevice current_;
};

// While it lives, kernels of the call run; see GilRelease for `cost`.
class Run {
  public:
    Run(const Call& call, i64 cost) : device_(call.device()), release_(cost) {
        if (device_ == Device::cuda) scope_.emplace(call.op(), call.number(), call.stream());
    }
    template <class T>
    const KernelTable<T>& kernels() const {
        return fusednn::kernels<T>(device_);
    }

  private:
    Device device_;
    GilRelease release_;
    std::optional<cuda::Scope> scope_;
};

}  // namespace fusednn::bindings
