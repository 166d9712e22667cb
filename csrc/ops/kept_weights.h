// The packed weights of a recurrent layer, kept from call to call.
#pragma once
#include <atomic>
#include <vector>

#include "core/kept.h"
#include "ops/shapes.h"

namespace fusednn::ops {

// Whoever has one must use it with weights whose values do not change, and any batch, dtype and ISA
// build: what does not fit is packed anew.
class KeptWeights {
  public:
    KeptWeights() = default;
    KeptWeights(const KeptWeights&) = delete;
    KeptWeights& operator=(const KeptWeights&) = delete;
    ~KeptWeights();

    // For one call: `matrices` are `count` of them, or null while another thread's call has them
    // (this one then packs for itself), and where there are none to begin with.
    class Use {
      public:
        Use(KeptWeights* kept, DType dtype, i64 count);
        ~Use();
        Use(const Use&) = delete;
        Use& operator=(const Use&) = delete;
        KeptMatrix* matrices() const { return matrices_; }

      private:
        KeptWeights* kept_;
        KeptMatrix* matrices_ = nullptr;
    };

    i64 bytes() const { return bytes_; }

  private:
    void clear();

    std::atomic<bool> taken_{false};
    std::atomic<i64> bytes_{0};
    const void* table_ = nullptr;  // of the kernels that packed: another ISA has other forms
    std::vector<KeptMatrix> matrices_;
};

}  // namespace fusednn::ops
