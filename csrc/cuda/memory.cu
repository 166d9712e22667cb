// Workspaces come from one memory pool per device, in stream order: what an op gives back, the next
// one in the same stream gets at once, without waiting for the device.
#include <mutex>
#include <vector>

#include "cuda/device.h"
#include "cuda/gpu.h"

namespace fusednn::cuda {

namespace {

// What a pool keeps when the device has nothing to do; the rest goes back to the system.
constexpr std::uint64_t kKept = std::uint64_t(1) << 30;

std::mutex pools_mutex;
std::vector<cudaMemPool_t> pools;  // by device; never destroyed, the process's end does that

cudaMemPool_t pool_of(int device) {
    const std::lock_guard<std::mutex> lock(pools_mutex);
    if (pools.size() <= std::size_t(device)) pools.resize(std::size_t(device) + 1, nullptr);
    cudaMemPool_t& pool = pools[std::size_t(device)];
    if (pool) return pool;
    cudaMemPoolProps properties{};
    properties.allocType = cudaMemAllocationTypePinned;  // resident on the device
    properties.location.type = cudaMemLocationTypeDevice;
    properties.location.id = device;
    cudaMemPool_t made;
    check(cudaMemPoolCreate(&made, &properties), "cudaMemPoolCreate");
    std::uint64_t kept = kKept;
    check(cudaMemPoolSetAttribute(made, cudaMemPoolAttrReleaseThreshold, &kept),
          "cudaMemPoolSetAttribute");
    return pool = made;
}

}  // namespace

void* workspace_acquire(std::size_t bytes) {
    if (bytes == 0) return nullptr;
    void* block = nullptr;
    check(cudaMallocFromPoolAsync(&block, bytes, pool_of(current_device()), current_stream()),
          "allocating a workspace");
    return block;
}

void workspace_release(void* block) noexcept {
    if (block) cudaFreeAsync(block, current_stream());
}

}  // namespace fusednn::cuda
