// A convolution's weights in the form that its kernels read, kept from call to call.
#pragma once
#include <memory>
#include <mutex>

#include "ops/conv.h"

namespace fusednn::ops {

// Holds one packed copy. Whoever has one must use it with one weight whose values do not change,
// and any number of input shapes, dtypes and ISA builds: the copy is made anew when its form
// changes.
class PackedWeight {
  public:
    using Buffer = std::shared_ptr<void>;

    // Packs the weight unless that is done, and sets params.packed where the forward pass of these
    // shapes reads a packed form. The buffer must be held while it is read. Any thread may call.
    Buffer apply(DType dtype, const void* weight, ConvParams& params);
    i64 bytes() const;

  private:
    mutable std::mutex mutex_;
    Buffer buffer_;
    const void* table_ = nullptr;  // of the kernels that made it: another ISA has other forms
    ConvPacking packing_{ConvPacking::none, 0};
    i64 bytes_ = 0;
};

}  // namespace fusednn::ops
