#include "ops/kept_weights.h"

#include "core/dispatch.h"
#include "ops/dtype.h"

namespace fusednn::ops {

KeptWeights::~KeptWeights() {
    clear();
}

void KeptWeights::clear() {
    for (KeptMatrix& matrix : matrices_) kept_release(&matrix);
}

KeptWeights::Use::Use(KeptWeights* kept, DType dtype, i64 count) : kept_(kept) {
    if (!kept || kept->taken_.exchange(true)) {
        kept_ = nullptr;
        return;
    }
    const void* table =
        with_dtype(dtype, [](auto zero) -> const void* { return &kernels<decltype(zero)>(); });
    if (table != kept->table_ || i64(kept->matrices_.size()) != count) {
        kept->clear();
        kept->matrices_.assign(std::size_t(count), KeptMatrix{});
        kept->table_ = table;
    }
    matrices_ = kept->matrices_.data();
}

KeptWeights::Use::~Use() {
    if (!kept_) return;
    i64 bytes = 0;
    for (const KeptMatrix& matrix : kept_->matrices_) bytes += matrix.bytes;
    kept_->bytes_ = bytes;
    kept_->taken_ = false;
}

}  // namespace fusednn::ops
