// Launches: the checks that CUDA makes, blocks in their order, and what is left when they are done.
// And the rest of the runtime's functions.
#include <algorithm>
#include <cstdio>
#include <numeric>

#include "emulator/state.h"

namespace emulator {

namespace {

// Serials have 20 bits in the shadow.
constexpr std::uint64_t kMostSerials = 0xfffff;
// Grid barriers that a cooperative launch may take.
constexpr std::uint64_t kGridBarriers = 4096;

void start_block(Block& block, std::size_t slot, uint3 index, dim3 shape) {
    const std::uint32_t threads = machine.block_threads, warps = (threads + 31) / 32;
    block.index = index;
    block.serial = machine.serial++;
    block.live = int(threads);
    block.arrived = 0;
    block.ready = 0;
    block.voting = false;
    block.warps.resize(warps);
    block.warp_clock.assign(warps, 0);
    block.warp_seen.assign(std::size_t(warps) * warps, 0);
    for (auto& named : block.named) named = NamedBarrier{};
    block.shared = machine.region + slot * kSharedSlot;
    if (machine.shared) open_memory(block.shared + kDynamicOffset, machine.shared);
    for (const StaticObject& object : machine.statics) {
        open_memory(block.shared + object.offset, object.bytes);
    }
    for (std::uint32_t w = 0; w < warps; ++w) {
        Warp& warp = block.warps[w];
        warp.id = w;
        warp.live = warp.waiting = warp.runnable = 0;
        std::fill(std::begin(warp.fiber), std::end(warp.fiber), nullptr);
        std::memset(warp.lane_seen, 0, sizeof warp.lane_seen);
        std::memset(warp.lane_clock, 0, sizeof warp.lane_clock);
    }
    for (std::uint32_t t = 0; t < threads; ++t) {
        Fiber& fiber = machine.fibers[slot * threads + t];
        Warp& warp = block.warps[t / 32];
        fiber.warp = &warp;
        fiber.block = &block;
        fiber.number = t;
        fiber.lane = t % 32;
        fiber.copies.clear();
        fiber.group = 0;
        fiber.index = {t % shape.x, t / shape.x % shape.y, t / (shape.x * shape.y)};
        warp.fiber[fiber.lane] = &fiber;
        warp.live |= 1u << fiber.lane;
        make_context(fiber);
        make_ready(&fiber);
    }
    ++machine.counts.blocks;
    machine.counts.threads += threads;
}

std::string refusal(dim3 grid, dim3 block, std::size_t shared, bool cooperative) {
    const std::uint64_t threads = std::uint64_t(block.x) * block.y * block.z;
    const std::uint64_t blocks = std::uint64_t(grid.x) * grid.y * grid.z;
    if (threads == 0 || threads > 1024 || block.z > 64) {
        return "a block has 1 to 1024 threads, at most 64 along z";
    }
    if (blocks == 0 || grid.x > 0x7fffffffu || grid.y > 65535 || grid.z > 65535) {
        return "a grid has 1 to 2147483647 blocks along x, 1 to 65535 along y and z";
    }
    if (shared > machine.options.shared_limit) return "more shared memory than a block can have";
    if (in_launch()) return "launched from within a kernel";
    if (cooperative && blocks > kSharedSlots) {
        return "more blocks than fit at once, for a cooperative launch";
    }
    return "";
}

// Room for `blocks` blocks at once; stacks are kept.
void make_resident(std::size_t blocks) {
    const std::size_t threads = blocks * machine.block_threads;
    if (machine.fibers.size() < threads) {
        std::vector<Fiber> more(threads);
        for (std::size_t i = 0; i < machine.fibers.size(); ++i) {
            more[i].stack = machine.fibers[i].stack;
        }
        machine.fibers = std::move(more);
    }
    machine.blocks.resize(blocks);
    for (auto& block : machine.blocks) {
        if (!block) block = std::make_unique<Block>();
    }
}

// The blocks' order: as numbered, or at random.
std::vector<std::uint64_t> block_order(std::uint64_t blocks) {
    std::vector<std::uint64_t> order(blocks);
    std::iota(order.begin(), order.end(), std::uint64_t(0));
    if (machine.options.seed) {
        for (std::size_t i = blocks; i > 1; --i)
            std::swap(order[i - 1], order[random_number() % i]);
    }
    return order;
}

void close_shared(std::size_t blocks) {
    for (std::size_t slot = 0; slot < blocks; ++slot) {
        unsigned char* shared = machine.region + slot * kSharedSlot;
        if (machine.shared) close_memory(shared + kDynamicOffset, machine.shared);
        for (const StaticObject& object : machine.statics) {
            close_memory(shared + object.offset, object.bytes);
        }
    }
}

}  // namespace

Options& options() {
    return machine.options;
}
Counts& counts() {
    return machine.counts;
}
const std::string& last_report() {
    return machine.report;
}

bool is_device_pointer(const void* pointer) {
    return !pointer || in_heap(pointer);
}

void reject_launch(const std::string& why) {
    machine.report = "launch refused: " + why;
    machine.last_error = cudaErrorInvalidValue;
}

void launch(dim3 grid, dim3 block, std::size_t shared, bool cooperative, const char* name,
            void (*run)(void*), void* context) {
    const Unlock unlock;
    reserve_region();
    const std::string refused = refusal(grid, block, shared, cooperative);
    if (!refused.empty()) return reject_launch(refused);
    const std::uint64_t blocks = std::uint64_t(grid.x) * grid.y * grid.z;
    const std::uint64_t serials = cooperative ? kGridBarriers * blocks : blocks;
    if (machine.serial + serials + 16 > kMostSerials) {
        forget_launches();
        machine.serial = 2;
    }
    ++machine.counts.launches;
    machine.report.clear();
    machine.failed = false;
    machine.base_serial = machine.serial;
    machine.run = run;
    machine.context = context;
    machine.kernel = name;
    machine.shared = shared;
    machine.cooperative = cooperative;
    machine.block_threads = block.x * block.y * block.z;
    machine.statics.clear();
    machine.static_top = 0;
    machine.grid_arrived = 0;
    machine.random = 0x9E3779B97F4A7C15ull * (machine.options.seed + 1) | 1;
    gridDim = grid;
    blockDim = block;
    const std::size_t resident = cooperative ? std::size_t(blocks) : 1;
    make_resident(resident);
    const auto order = block_order(blocks);
    machine.current = &machine.host;
    for (std::size_t first = 0; first < blocks && !machine.failed; first += resident) {
        machine.grid_live = int(resident * machine.block_threads);
        for (std::size_t slot = 0; slot < resident; ++slot) {
            const std::uint64_t number = order[first + slot];
            const uint3 index{unsigned(number % grid.x), unsigned(number / grid.x % grid.y),
                              unsigned(number / grid.x / grid.y)};
            start_block(*machine.blocks[slot], slot, index, block);
        }
        run_ready();
        if (machine.options.profile) profile_flush();
    }
    machine.current = nullptr;
    machine.for_warp = false;
    close_shared(resident);
    if (!machine.failed) return;
    machine.last_error = cudaErrorLaunchFailure;
    for (Fiber& fiber : machine.fibers) fiber.copies.clear();
}

}  // namespace emulator

// ---- the rest of the runtime
// ---------------------------------------------------------------------

using namespace emulator;

cudaError_t cudaGetLastError() {
    const cudaError_t error = machine.last_error;
    machine.last_error = cudaSuccess;
    return error;
}

const char* cudaGetErrorString(cudaError_t error) {
    switch (error) {
        case cudaSuccess:
            return "no error";
        case cudaErrorMemoryAllocation:
            return "out of memory";
        case cudaErrorInvalidDevice:
            return "invalid device ordinal";
        default:
            return machine.report.empty() ? "invalid argument" : machine.report.c_str();
    }
}

cudaError_t cudaGetDeviceCount(int* count) {
    *count = kDevices;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
    *properties = cudaDeviceProp{"emulated", 9, 0, 2};
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
    *value = attribute == cudaDevAttrMultiProcessorCount ? 2 : 9;
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
    *device = machine.device;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
    if (device < 0 || device >= kDevices) return machine.last_error = cudaErrorInvalidDevice;
    machine.device = device;
    return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
    const bool device = pointer && in_heap(pointer);
    attributes->type = device ? cudaMemoryTypeDevice : cudaMemoryTypeUnregistered;
    attributes->device = device ? int((offset_of(pointer) - kSharedBytes) / kHeapBytes) : -1;
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) {
    ++machine.counts.stream_waits;
    return cudaSuccess;
}
