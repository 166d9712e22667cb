// The emulated devices' memory: one region, in which every byte belongs to a buffer, to an object
// in shared memory, or to nobody.
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "emulator/state.h"

namespace emulator {

namespace {

int unlocked = 0;  // how many Unlock live

std::size_t round_up(std::size_t value, std::size_t step) {
    return (value + step - 1) / step * step;
}

}  // namespace

void reserve_region() {
    if (machine.region) return;
    void* memory =
        mmap(nullptr, kRegion, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
        std::perror("emulator: device memory");
        std::abort();
    }
    machine.region = static_cast<unsigned char*>(memory);
    if (unlocked) mprotect(machine.region, kRegion, PROT_READ | PROT_WRITE);
}

std::size_t offset_of(const void* pointer) {
    return std::size_t(static_cast<const unsigned char*>(pointer) - machine.region);
}
bool in_region(const void* pointer) {
    return machine.region && offset_of(pointer) < kRegion;
}
bool in_shared(const void* pointer) {
    return machine.region && offset_of(pointer) < kSharedBytes;
}
bool in_heap(const void* pointer) {
    return in_region(pointer) && !in_shared(pointer);
}

void open_memory(void* pointer, std::size_t bytes) {
    std::memset(pointer, kPoison, bytes);
    mark_uninitialised(pointer, bytes);
}
void close_memory(void* pointer, std::size_t bytes) {
    mark_closed(pointer, bytes);
}

// What dereferences a device pointer on the host, where a GPU would not let it, ends in a
// segmentation fault here too: outside of the emulator the pages cannot be touched.
Unlock::Unlock() {
    machine.mutex.lock();
    if (unlocked++ == 0 && machine.region) {
        mprotect(machine.region, kRegion, PROT_READ | PROT_WRITE);
    }
}
Unlock::~Unlock() {
    if (--unlocked == 0 && machine.region) mprotect(machine.region, kRegion, PROT_NONE);
    machine.mutex.unlock();
}

void touch(const void* pointer, std::size_t bytes, Access access, int lane, Site site) {
    const Fiber* fiber = lane < 0 ? machine.current : machine.current->warp->fiber[lane];
    if (!in_region(pointer)) fail("access outside of device memory at " + text(site));
    const bool power = (bytes & (bytes - 1)) == 0;
    if (power && std::uintptr_t(pointer) % std::min<std::size_t>(bytes, 16)) {
        fail("misaligned access at " + text(site));
    }
    check_access(pointer, bytes, access, fiber, nullptr, site);
    if (machine.options.profile && access != Access::atomic && !machine.for_warp) {
        profile_access(pointer, bytes, access != Access::read, fiber, 0, site);
    }
}

// ---- shared memory
// -------------------------------------------------------------------------------

void* dynamic_shared(std::size_t bytes) {
    if (bytes > machine.shared) {
        fail("the kernel's shared memory is a struct of " + std::to_string(bytes) +
             " bytes, the launch gave it " + std::to_string(machine.shared));
    }
    return machine.current->block->shared + kDynamicOffset;
}

void* static_shared(const void* key, std::size_t bytes, std::size_t align) {
    unsigned char* base = machine.current->block->shared;
    std::size_t used = bytes;
    for (const StaticObject& object : machine.statics) {
        if (object.key == key) return base + object.offset;
        used += object.bytes;
    }
    if (used > kStaticMost) fail("more than 48 KB of static shared memory");
    if (used + machine.shared > machine.options.shared_limit) {
        fail("static and dynamic shared memory exceed the device's");
    }
    const std::size_t offset = round_up(machine.static_top, std::max<std::size_t>(align, 16));
    machine.statics.push_back({key, offset, bytes});
    machine.static_top = offset + bytes + 128;  // a gap, so that running over the end is seen
    for (const auto& block : machine.blocks) open_memory(block->shared + offset, bytes);
    return base + offset;
}

}  // namespace emulator

// ---- the runtime's functions
// ---------------------------------------------------------------------

using namespace emulator;

namespace {

constexpr std::size_t kAlignment = 256;

// The first place from `start` on where `bytes` have room in the heap that ends at `end`; 0 if
// none.
std::size_t find_room(std::size_t bytes, std::size_t start, std::size_t end) {
    const auto last = machine.heap.lower_bound(end);
    std::size_t place = round_up(start + kGuard, kAlignment);
    for (auto buffer = machine.heap.lower_bound(start); buffer != last; ++buffer) {
        if (place + bytes + kGuard <= buffer->first) return place;
        place = round_up(buffer->first + buffer->second + kGuard, kAlignment);
    }
    return place + bytes + kGuard <= end ? place : 0;
}

// Behind what was allocated last, so that what is freed stays unused for long.
std::size_t find_room(std::size_t bytes, int device) {
    const std::size_t begin = kSharedBytes + std::size_t(device) * kHeapBytes;
    const std::size_t end = begin + kHeapBytes;
    std::size_t& cursor = machine.cursor[device];
    std::size_t place = find_room(bytes, std::max(cursor, begin), end);
    if (place == 0) place = find_room(bytes, begin, end);
    if (place != 0) cursor = place + bytes;
    return place;
}

cudaError_t allocate(void** pointer, std::size_t bytes, int device) {
    const Unlock unlock;
    reserve_region();
    const std::size_t offset = find_room(bytes, device);
    if (offset == 0) return machine.last_error = cudaErrorMemoryAllocation;
    machine.heap[offset] = bytes;
    *pointer = machine.region + offset;
    open_memory(*pointer, bytes);
    return cudaSuccess;
}

bool in_buffer(const void* pointer, std::size_t bytes) {
    if (!in_heap(pointer)) return false;
    const std::size_t offset = offset_of(pointer);
    auto after = machine.heap.upper_bound(offset);
    if (after == machine.heap.begin()) return false;
    --after;
    return offset + bytes <= after->first + after->second;
}

}  // namespace

cudaError_t cudaMalloc(void** pointer, std::size_t bytes) {
    return allocate(pointer, bytes, machine.device);
}

cudaError_t cudaMemPoolCreate(cudaMemPool_t* pool, const cudaMemPoolProps* properties) {
    *pool = reinterpret_cast<cudaMemPool_t>(std::uintptr_t(properties->location.id) + 1);
    return cudaSuccess;
}

cudaError_t cudaMallocFromPoolAsync(void** pointer, std::size_t bytes, cudaMemPool_t pool,
                                    cudaStream_t) {
    return allocate(pointer, bytes, int(reinterpret_cast<std::uintptr_t>(pool)) - 1);
}

cudaError_t cudaFree(void* pointer) {
    if (!pointer) return cudaSuccess;
    const Unlock unlock;
    const auto found = machine.heap.find(offset_of(pointer));
    if (!in_heap(pointer) || found == machine.heap.end()) {
        return machine.last_error = cudaErrorInvalidValue;
    }
    close_memory(pointer, found->second);
    machine.heap.erase(found);
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t) {
    const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    if (bytes == 0) return cudaSuccess;
    const Unlock unlock;
    if ((to_device ? !in_buffer(to, bytes) : in_region(to)) ||
        (from_device ? !in_buffer(from, bytes) : in_region(from))) {
        return machine.last_error = cudaErrorInvalidValue;
    }
    std::memcpy(to, from, bytes);
    if (to_device) mark_host_written(to, bytes);
    return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t) {
    if (bytes == 0) return cudaSuccess;
    const Unlock unlock;
    if (!in_buffer(to, bytes)) return machine.last_error = cudaErrorInvalidValue;
    std::memset(to, value, bytes);
    mark_host_written(to, bytes);
    return cudaSuccess;
}
