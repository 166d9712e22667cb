#include "ops/conv_packed.h"

#include "core/dispatch.h"
#include "core/memory.h"
#include "ops/dtype.h"

namespace fusednn::ops {

PackedWeight::Buffer PackedWeight::apply(DType dtype, const void* weight, ConvParams& params) {
    return with_dtype(dtype, [&](auto zero) -> Buffer {
        using T = decltype(zero);
        const KernelTable<T>& table = kernels<T>();
        const ConvPacking wanted = table.conv_packing(params);
        if (wanted.form == ConvPacking::none) return nullptr;
        const std::lock_guard<std::mutex> lock(mutex_);
        const bool fits =
            table_ == &table && packing_.form == wanted.form && packing_.size == wanted.size;
        if (!fits) {
            const i64 bytes = wanted.size * i64(sizeof(T));
            Buffer buffer(memory_acquire(std::size_t(bytes)), memory_release);
            table.conv_pack(params, static_cast<const T*>(weight), static_cast<T*>(buffer.get()));
            buffer_ = std::move(buffer);
            table_ = &table;
            packing_ = wanted;
            bytes_ = bytes;
        }
        params.packed = buffer_.get();
        return buffer_;
    });
}

i64 PackedWeight::bytes() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return bytes_;
}

}  // namespace fusednn::ops
