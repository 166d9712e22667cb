// NumPy arrays <-> plain views: the dtype and copy policy of every binding.
//
// Any array is accepted for reading. What a kernel cannot read in place (strided, byte-swapped,
// misaligned) is copied inside once, with no warning; float32 stays float32, float64 stays float64,
// and nothing is ever cast silently.
#pragma once
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <unistd.h>

#include "core/types.h"
#include "ops/dtype.h"

namespace fusednn::bindings {

namespace py = pybind11;

// An argument that a kernel can read: C-contiguous, aligned, native byte order.
class Array {
  public:
    // A float32 or float64 array; TypeMismatch naming op, argument and what was found otherwise.
    static Array floating(py::handle object, const char* op, const char* argument);
    // The same with the dtype of `like` demanded.
    static Array floating_like(py::handle object, const Array& like, const char* op,
                               const char* argument);
    // A floating array whose rows may lie anywhere: only the last axis must be contiguous (or of
    // stride 0, if `flat` allows), else it is copied. See stride().
    static Array strided(py::handle object, const char* op, const char* argument,
                         bool flat = false);
    // The same for an array of ml_dtypes' bfloat16, whose package need not be there.
    static bool is_bfloat16(py::handle object);
    static Array bfloat16(py::handle object, const char* op, const char* argument);
    // The same for booleans, read as bytes.
    static Array boolean(py::handle object, const char* op, const char* argument);
    // An array of that very dtype.
    static Array exact(py::handle object, const py::dtype& dtype, const char* op,
                       const char* argument);
    // An array of any integer dtype, converted to int64; booleans and floats are refused.
    static Array integer(py::handle object, const char* op, const char* argument);

    const ArrayView& view() const { return view_; }
    DType dtype() const { return view_.dtype; }
    int ndim() const { return view_.ndim; }
    const i64* shape() const { return view_.shape; }
    i64 size() const;
    // Elements from one place to the next along an axis; of strided() and boolean() arrays only.
    i64 stride(int axis) const { return strides_[axis]; }
    template <class T>
    const T* data() const {
        return static_cast<const T*>(view_.data);
    }

  private:
    friend class Call;  // which makes those on a GPU
    void fill_strides(std::size_t item);

    py::object owner_;
    ArrayView view_;
    i64 strides_[kMaxDims];
};

// An argument that is written in place: exact dtype, C-contiguous, aligned, writable, or an error.
class MutableArray {
  public:
    static MutableArray like(py::handle object, const Array& like, const char* op,
                             const char* argument);
    template <class T>
    T* data() const {
        return static_cast<T*>(data_);
    }

  private:
    friend class Call;
    py::object owner_;
    void* data_;
};

// An array of shape (batch..., A..., B...) that lies in memory as (batch..., B..., A...).
struct Transposed {
    i64 batch = 1, rows = 1, columns = 1;  // in memory: rows of B, columns of A
};
// Channels-last images, (N, T, C) sequences and transposed matrices come like this. False for what
// does not. Strides and item size are in bytes.
bool find_transposed(int ndim, const i64* size, const i64* stride, i64 item, Transposed* found);

// A new C-contiguous array for a result, from the recycling allocator; contents undefined.
py::object new_array(DType dtype, int ndim, const i64* shape, void** data);
py::object new_int64_array(int ndim, const i64* shape, i64** data);
// uint8, uint16 or int32 for `bytes` of 1, 2 or 4: the winning taps of max pooling.
py::object new_tap_array(int bytes, int ndim, const i64* shape, void** data);

// Lets other Python threads run during a kernel that is worth it (about 20 microseconds and more);
// `cost` is in flops or bytes moved.
class GilRelease {
  public:
    explicit GilRelease(i64 cost) : thread_(cost > 500'000 ? PyEval_SaveThread() : nullptr) {}
    GilRelease(const GilRelease&) = delete;
    GilRelease& operator=(const GilRelease&) = delete;
    // A daemon thread that comes back while the interpreter ends is unwound by Python up to 3.13:
    // that would end the process here, or drop references without the lock further up. It waits for
    // the end instead, as from 3.14 on.
    ~GilRelease() {
        if (!thread_) return;
        try {
            PyEval_RestoreThread(thread_);
        } catch (...) {
            for (;;) pause();
        }
    }

  private:
    PyThreadState* thread_;
};

}  // namespace fusednn::bindings
