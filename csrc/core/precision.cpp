#include "core/precision.h"

#include <atomic>

namespace fusednn {

namespace {
std::atomic<Float32Precision> setting{Float32Precision::highest};
}  // namespace

Float32Precision float32_precision() {
    return setting.load(std::memory_order_relaxed);
}

void set_float32_precision(Float32Precision precision) {
    setting.store(precision, std::memory_order_relaxed);
}

}  // namespace fusednn
