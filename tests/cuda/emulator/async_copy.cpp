// Asynchronous copies land as late as the hardware allows: the destination is poisoned when a copy
// is issued, and filled when the thread waits for its group. In between the shadow knows it as in
// flight.
#include "emulator/state.h"

namespace emulator {

void copy_async(void* to, const void* from, int bytes, int source_bytes, Site site) {
    Fiber* fiber = machine.current;
    fiber->site = site;
    auto* target = static_cast<unsigned char*>(to);
    const auto* source = static_cast<const unsigned char*>(from);
    const std::string what = "copy_async at " + text(site) + ": ";
    if (!in_shared(target)) fail(what + "the destination is not shared memory");
    if (source_bytes < 0 || source_bytes > bytes) {
        fail(what + std::to_string(source_bytes) + " source bytes, expected 0 to " +
             std::to_string(bytes));
    }
    if (std::uintptr_t(target) % std::uintptr_t(bytes) ||
        (source_bytes > 0 && std::uintptr_t(source) % std::uintptr_t(bytes))) {
        fail(what + "an address is not a multiple of " + std::to_string(bytes) + " bytes");
    }
    if (source_bytes > 0) {
        if (!in_heap(source)) fail(what + "the source is not global memory");
        touch(source, std::size_t(source_bytes), Access::read, -1, site);
    }
    touch(target, std::size_t(bytes), Access::write, -1, site);
    std::memset(target, kPoison, std::size_t(bytes));
    mark_in_flight(target, std::size_t(bytes));
    fiber->copies.push_back({target, source, bytes, source_bytes, fiber->group});
    machine.counts.copied_bytes += std::uint64_t(source_bytes);
}

void copy_async_commit() {
    ++machine.current->group;
}

void copy_async_wait(int keep, Site site) {
    Fiber* fiber = machine.current;
    fiber->site = site;
    std::size_t kept = 0;
    for (const Copy& copy : fiber->copies) {
        // The newest `keep` groups, and the one that is not committed, go on.
        if (std::int64_t(copy.group) >= std::int64_t(fiber->group) - keep) {
            fiber->copies[kept++] = copy;
            continue;
        }
        std::memcpy(copy.to, copy.from, std::size_t(copy.source_bytes));
        std::memset(copy.to + copy.source_bytes, 0, std::size_t(copy.bytes - copy.source_bytes));
        mark_landed(fiber, copy.to, std::size_t(copy.bytes));
    }
    fiber->copies.resize(kept);
}

}  // namespace emulator
