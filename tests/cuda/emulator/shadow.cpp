// What is known of every byte of device memory: who wrote last, and who has read since.
//
// "Happens before" is decided by vector clocks. Barriers of the block and named ones order warps,
// __syncwarp orders lanes, grid_sync orders all. Shuffles order nothing, and neither does anything
// else order blocks of one launch. Atomics do not race with atomics.
#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>

#include "emulator/state.h"

namespace emulator {

namespace {

constexpr std::size_t kGrain = 1;  // bytes to a cell: neighbours may belong to different threads

// An access is a stamp of 64 bits:
//   serial of the block (20) | thread (10) | its warp's clock (16) | its lane's clock (16) | flags
//   (2)
// and 0 means closed memory, 1 memory that is open and was never written.
using Stamp = std::uint64_t;
constexpr Stamp kUninitialised = 1, kHost = Stamp(1) << 44;
constexpr Stamp kAtomic = 1, kInFlight = 2;

struct Cell {
    Stamp write, read, other_read;
    std::uint32_t write_code, read_code;
};
Cell* cells = nullptr;

Cell* cell_of(std::size_t offset) {
    if (!cells) {
        void* memory = mmap(nullptr, kRegion / kGrain * sizeof(Cell), PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED) {
            std::perror("emulator: shadow memory");
            std::abort();
        }
        cells = static_cast<Cell*>(memory);
    }
    return cells + offset / kGrain;
}

template <class Fn>
void for_cells(void* pointer, std::size_t bytes, Fn fn) {
    if constexpr (!kStrict) return;
    const std::size_t offset = offset_of(pointer);
    Cell* first = cell_of(offset);
    Cell* last = cell_of(offset + bytes + kGrain - 1);
    for (Cell* cell = first; cell < last; ++cell) fn(*cell);
}

std::uint32_t serial_of(Stamp stamp) {
    return std::uint32_t(stamp >> 44);
}
std::uint32_t thread_of(Stamp stamp) {
    return std::uint32_t(stamp >> 34) & 1023u;
}

Stamp stamp(const Fiber* fiber, Stamp flags) {
    const Block& block = *fiber->block;
    const Warp& warp = *fiber->warp;
    return Stamp(block.serial) << 44 | Stamp(fiber->number) << 34 |
           Stamp(block.warp_clock[warp.id]) << 18 | Stamp(warp.lane_clock[fiber->lane]) << 2 |
           flags;
}

// Did that access happen before what `fiber` does now?
bool ordered(Stamp access, const Fiber* fiber) {
    const std::uint32_t serial = serial_of(access), thread = thread_of(access);
    if (serial < machine.base_serial) return true;
    const Block& block = *fiber->block;
    if (serial != block.serial) return false;
    if (thread == fiber->number) return true;
    const std::uint32_t warp = thread / 32, own = fiber->warp->id;
    const std::uint32_t warp_clock = std::uint32_t(access >> 18) & 0xffffu;
    const std::uint32_t lane_clock = std::uint32_t(access >> 2) & 0xffffu;
    if (block.warp_seen[own * block.warps.size() + warp] > warp_clock) return true;
    return warp == own && fiber->warp->lane_seen[fiber->lane][thread % 32] > lane_clock;
}

std::string name_of(Stamp access) {
    const std::uint32_t thread = thread_of(access);
    const std::string name = "thread " + std::to_string(thread) + " (warp " +
                             std::to_string(thread / 32) + " lane " + std::to_string(thread % 32) +
                             ")";
    for (const auto& block : machine.blocks) {
        if (block->serial == serial_of(access)) return name + " of the same block";
    }
    return name + " of another block";
}

// An access that is being checked.
struct Now {
    const void* pointer;
    std::size_t bytes;
    Access access;
    const Fiber* fiber;
    const void* code;
    Site site;

    [[noreturn]] void report(const char* kind, const std::string& more = "") const {
        const char* verbs[] = {"reads", "writes", "updates atomically"};
        stop(std::string(kind) + ": " + emulator::name_of(fiber) + " " + verbs[int(access)] + " " +
             std::to_string(bytes) + " bytes at " +
             (code ? line_of(short_address(code)) : text(site)) + "\n  in " + place_of(pointer) +
             more);
    }
    [[noreturn]] void conflict(const char* kind, Stamp other, std::uint32_t other_code,
                               const char* verb) const {
        report(kind, "\n  which " + name_of(other) + " " + verb +
                         (other_code ? " at " + line_of(other_code) : "") +
                         ", and nothing orders the two");
    }
};

void check_cell(Cell& cell, const Now& now) {
    const Fiber* fiber = now.fiber;
    if (cell.write == 0) now.report("out of bounds");
    if (cell.write == kUninitialised) {
        if (now.access != Access::write) now.report("uninitialised memory");
    } else {
        if ((cell.write & kInFlight) && serial_of(cell.write) >= machine.base_serial) {
            now.conflict("copy_async in flight", cell.write, cell.write_code,
                         "is still filling with copy_async");
        }
        const bool both_atomic = now.access == Access::atomic && (cell.write & kAtomic);
        if (!both_atomic && !ordered(cell.write, fiber)) {
            now.conflict(
                now.access == Access::read ? "race (read after write)" : "race (write after write)",
                cell.write, cell.write_code, cell.write & kAtomic ? "updated atomically" : "wrote");
        }
    }
    if (now.access == Access::read) {
        const Stamp own = stamp(fiber, 0);
        if (cell.read == own) return;
        if (cell.read == 0 || ordered(cell.read, fiber)) {
            cell.read = own;
            cell.read_code = short_address(now.code);
        } else {
            cell.other_read = own;
        }
        return;
    }
    if (cell.read && !ordered(cell.read, fiber)) {
        now.conflict("race (write after read)", cell.read, cell.read_code, "read");
    }
    if (cell.other_read && !ordered(cell.other_read, fiber)) {
        now.conflict("race (write after read)", cell.other_read, 0, "read");
    }
    cell = {stamp(fiber, now.access == Access::atomic ? kAtomic : 0), 0, 0, short_address(now.code),
            0};
}

}  // namespace

void mark_closed(void* pointer, std::size_t bytes) {
    for_cells(pointer, bytes, [](Cell& cell) { cell = Cell{}; });
}
void mark_uninitialised(void* pointer, std::size_t bytes) {
    for_cells(pointer, bytes, [](Cell& cell) { cell = Cell{kUninitialised, 0, 0, 0, 0}; });
}
void mark_host_written(void* pointer, std::size_t bytes) {
    for_cells(pointer, bytes, [](Cell& cell) { cell = Cell{kHost, 0, 0, 0, 0}; });
}
void mark_in_flight(void* pointer, std::size_t bytes) {
    for_cells(pointer, bytes, [](Cell& cell) { cell.write |= kInFlight; });
}
void mark_landed(const Fiber* fiber, void* pointer, std::size_t bytes) {
    for_cells(pointer, bytes, [&](Cell& cell) { cell = Cell{stamp(fiber, 0), 0, 0, 0, 0}; });
}

void forget_launches() {
    for (const auto& [offset, bytes] : machine.heap) {
        for_cells(machine.region + offset, bytes, [](Cell& cell) {
            if (cell.write > kUninitialised) cell.write = kHost;
            cell.read = cell.other_read = 0;
        });
    }
}

void check_access(const void* pointer, std::size_t bytes, Access access, const Fiber* fiber,
                  const void* code, Site site) {
    if constexpr (!kStrict) return;
    const std::size_t offset = offset_of(pointer);
    Now now{pointer, bytes, access, fiber, code, site};
    const std::size_t first = offset / kGrain, last = (offset + bytes - 1) / kGrain;
    for (std::size_t i = first; i <= last; ++i) {
        now.pointer = machine.region + i * kGrain;
        check_cell(*cell_of(i * kGrain), now);
    }
}

}  // namespace emulator
