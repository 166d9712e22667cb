// Recycled, 64-byte-aligned memory for results and workspaces.
//
// A page the process touches for the first time costs about 1.5 microseconds in the kernel, which
// is more than most elementwise kernels need for the page's data. So freed blocks are kept and
// handed out again; what is kept is bounded, and given back on request.
#pragma once
#include "core/types.h"

namespace fusednn {

// Never null (throws std::bad_alloc); contents are undefined. 0 bytes is allowed.
void* memory_acquire(std::size_t bytes);
void memory_release(void* block) noexcept;

struct MemoryStats {
    i64 in_use;  // bytes handed out and not yet released
    i64 cached;  // bytes kept for the next call
    i64 limit;   // most bytes that are ever kept
};
MemoryStats memory_stats();

// Gives all kept memory back to the system.
void memory_empty_cache();

}  // namespace fusednn
