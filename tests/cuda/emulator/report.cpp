// Texts of reports: threads, places in memory, lines of source.
#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "emulator/state.h"

namespace emulator {

namespace {

std::string file_name(const std::string& path) {
    const auto slash = path.rfind('/');
    return slash == std::string::npos ? path : path.substr(slash + 1);
}

std::string indexed(const uint3& index) {
    return "(" + std::to_string(index.x) + "," + std::to_string(index.y) + "," +
           std::to_string(index.z) + ")";
}

// Frames of the emulator itself say nothing about the kernel.
bool own_frame(const std::string& line) {
    for (const char* file : {"builtins.h", "emulator.h", "types.h", "ptx.h", "hooks.cpp"}) {
        if (line.rfind(file, 0) == 0) return true;
    }
    return false;
}

}  // namespace

std::string text(const Site& site) {
    return (site.file ? file_name(site.file) : "?") + ":" + std::to_string(site.line);
}

std::string name_of(const Fiber* fiber) {
    return "block " + indexed(fiber->block->index) + " thread " + indexed(fiber->index) +
           " [warp " + std::to_string(fiber->warp->id) + " lane " + std::to_string(fiber->lane) +
           "]";
}

std::uint32_t short_address(const void* code) {
    return code ? std::uint32_t(std::uintptr_t(code) - std::uintptr_t(&threadIdx)) : 0;
}

// "inlined.h:12 < kernel.cu:34", asked of addr2line; "?" without debug information.
std::string line_of(std::uint32_t address) {
    if (!address) return "?";
    const auto code = std::uintptr_t(&threadIdx) + std::intptr_t(std::int32_t(address)) - 1;
    Dl_info info{};
    if (!dladdr(reinterpret_cast<void*>(code), &info) || !info.dli_fname) return "?";
    char command[600];
    std::snprintf(command, sizeof command, "addr2line -iCe '%s' 0x%zx 2>/dev/null", info.dli_fname,
                  std::size_t(code - std::uintptr_t(info.dli_fbase)));
    std::string lines;
    FILE* pipe = popen(command, "r");
    if (!pipe) return "?";
    char buffer[512];
    while (std::fgets(buffer, sizeof buffer, pipe)) {
        std::string line(buffer);
        line.erase(line.find_last_not_of("\n ") + 1);
        if (const auto note = line.find(" (disc"); note != std::string::npos) line.erase(note);
        line = file_name(line);
        if (!own_frame(line)) lines += lines.empty() ? line : " < " + line;
    }
    pclose(pipe);
    return lines.empty() ? "?" : lines;
}

std::string place_of(const void* pointer) {
    const std::size_t offset = offset_of(pointer);
    if (offset >= kSharedBytes) {
        // Half of a guard before a buffer is still called that buffer's.
        auto after = machine.heap.upper_bound(offset + kGuard / 2);
        if (after == machine.heap.begin()) return "global memory";
        --after;
        return "global memory, byte " +
               std::to_string(std::ptrdiff_t(offset) - std::ptrdiff_t(after->first)) +
               " of a buffer of " + std::to_string(after->second);
    }
    const std::size_t in = offset % kSharedSlot;
    if (in >= kDynamicOffset) {
        return "dynamic shared memory, byte " + std::to_string(in - kDynamicOffset) + " of " +
               std::to_string(machine.shared);
    }
    for (const StaticObject& object : machine.statics) {
        if (in < object.offset || in >= object.offset + object.bytes + kGuard) continue;
        return "static shared memory, byte " + std::to_string(in - object.offset) +
               " of an object of " + std::to_string(object.bytes);
    }
    return "static shared memory, byte " + std::to_string(in);
}

void stop(const std::string& report) {
    machine.failed = true;
    machine.report = std::string("in kernel ") + machine.kernel + ": " + report;
    if (!in_launch() || machine.current == &machine.host) {
        std::fprintf(stderr, "emulator: %s\n", machine.report.c_str());
        std::abort();
    }
    switch_to(&machine.host);
    std::abort();
}

void fail(const std::string& what) {
    const bool thread = in_launch() && machine.current != &machine.host;
    stop((thread ? name_of(machine.current) + ": " : std::string()) + what);
}

void report_deadlock() {
    static const char* const waits[] = {"nothing",         "__syncthreads",    "a warp operation",
                                        "a named barrier", "the grid barrier", "nothing"};
    std::string report = "deadlock: no thread can go on";
    int shown = 0;
    for (const auto& block : machine.blocks) {
        for (const Warp& warp : block->warps) {
            const Fiber* before = nullptr;  // one line for lanes that wait at the same place
            for (const Fiber* fiber : warp.fiber) {
                if (!fiber || fiber->state == State::done || shown > 5) continue;
                const bool same = before && before->state == fiber->state &&
                                  before->site.line == fiber->site.line;
                if (same) continue;
                before = fiber;
                ++shown;
                report += "\n  " + name_of(fiber) + " waits in " + waits[int(fiber->state)] +
                          " at " + text(fiber->site);
                if (fiber->state != State::warp) continue;
                const Operation& operation = warp.operation[fiber->lane];
                char lanes[64];
                std::snprintf(lanes, sizeof lanes, ", for lanes 0x%08x",
                              operation.mask & warp.live & ~warp.waiting);
                report += std::string(" (") + operation.name + ")" + lanes;
            }
        }
    }
    stop(report);
}

}  // namespace emulator
