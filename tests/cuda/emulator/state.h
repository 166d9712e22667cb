// What the parts of the emulator share. One launch runs at a time, and one thread of it.
#pragma once
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "emulator/emulator.h"
#include "emulator/runtime.h"

#if defined(__x86_64__)
#define EMULATOR_UCONTEXT 0
#else
#define EMULATOR_UCONTEXT 1
#include <ucontext.h>
#endif

namespace emulator {

#if !defined(FUSEDNN_EMULATOR_STRICT)
#error "FUSEDNN_EMULATOR_STRICT must be 0 or 1"
#endif
constexpr bool kStrict = FUSEDNN_EMULATOR_STRICT;

// ---- threads
// -------------------------------------------------------------------------------------

#if EMULATOR_UCONTEXT
using Context = ucontext_t;
#else
struct Context {
    void* stack_pointer = nullptr;
};
#endif

enum class State : std::uint8_t { ready, barrier, warp, named, grid, done };

struct Warp;
struct Block;

// An asynchronous copy that was issued and not yet waited for.
struct Copy {
    unsigned char* to;
    const unsigned char* from;
    int bytes, source_bytes;
    std::uint32_t group;
};

struct Fiber {
    Context context;
    unsigned char* stack = nullptr;
    Warp* warp = nullptr;
    Block* block = nullptr;
    uint3 index{};
    std::uint32_t number = 0, lane = 0;
    State state = State::done;
    Site site{};              // where it waits
    std::uint32_t group = 0;  // of the copies that it issues
    std::vector<Copy> copies;
};

struct Operation {
    const char* name;
    WarpBody body;
    std::uint32_t mask;
    Site site;
};

struct Warp {
    std::uint32_t id = 0;
    std::uint32_t live = 0, runnable = 0, waiting = 0;  // lanes; waiting: in a warp operation
    Fiber* fiber[32] = {};
    Operation operation[32];
    WarpWords words;
    // Vector clocks of the lanes, which __syncwarp advances: lane l knows what lane k did before
    // k's clock was lane_seen[l][k].
    std::uint16_t lane_seen[32][32];
    std::uint16_t lane_clock[32];
};

struct NamedBarrier {
    int expected = 0, arrived = 0;
    std::uint32_t warps = 0, waiting_warps = 0;
    std::vector<Fiber*> waiting;
};

struct Block {
    uint3 index{};
    std::uint32_t serial = 0;
    int live = 0, arrived = 0;
    Site barrier_site{};
    bool voting = false;
    int votes = 0, result = 0;
    std::uint32_t ready = 0;  // warps with a runnable lane
    std::vector<Warp> warps;
    // Vector clocks of the warps, which barriers of the block advance; warp_seen[w * warps + v].
    std::vector<std::uint32_t> warp_clock, warp_seen;
    NamedBarrier named[16];
    unsigned char* shared = nullptr;
};

// ---- memory
// --------------------------------------------------------------------------------------

// One reserved region: a slot of shared memory for each resident block, then a heap per device.
constexpr std::size_t kSharedSlot = 512 << 10, kSharedSlots = 256;
constexpr std::size_t kStaticMost = 48 << 10, kDynamicOffset = 64 << 10;
constexpr std::size_t kSharedBytes = kSharedSlot * kSharedSlots;
constexpr int kDevices = 2;
constexpr std::size_t kHeapBytes = std::size_t(1) << 28;
constexpr std::size_t kRegion = kSharedBytes + kDevices * kHeapBytes;
constexpr std::size_t kGuard = 512;  // between buffers
constexpr unsigned char kPoison = 0xff;

struct StaticObject {
    const void* key;
    std::size_t offset, bytes;
};

// ---- the machine
// ---------------------------------------------------------------------------------

struct Machine {
    std::recursive_mutex mutex;  // of whatever the host calls
    Options options;
    Counts counts{};

    unsigned char* region = nullptr;
    std::map<std::size_t, std::size_t> heap;  // offset -> bytes
    std::size_t cursor[kDevices] = {};        // end of what was allocated last

    std::vector<Fiber> fibers;
    std::vector<std::unique_ptr<Block>> blocks;  // resident ones
    Fiber host;
    Fiber* current = nullptr;  // null outside launches
    void (*run)(void*) = nullptr;
    void* context = nullptr;
    const char* kernel = "";
    std::size_t shared = 0;
    bool cooperative = false;
    std::uint32_t block_threads = 0;
    std::vector<StaticObject> statics;
    std::size_t static_top = 0;

    // Numbers of blocks, in the order they started; what is older than base_serial is ordered
    // before everything that runs. 1 stands for the host.
    std::uint32_t serial = 2, base_serial = 2;
    int grid_arrived = 0, grid_live = 0;

    std::uint64_t random = 1, polls = 0;
    bool failed = false;
    bool for_warp = false;  // an operation runs for all lanes
    std::string report;
    cudaError_t last_error = cudaSuccess;
    int device = 0;
};
extern Machine machine;

inline bool in_launch() {
    return machine.current != nullptr;
}

// ---- fibers.cpp
// ----------------------------------------------------------------------------------

std::uint32_t random_number();
void make_context(Fiber&);
void switch_to(Fiber* to);
void make_ready(Fiber*);
// The current thread cannot go on: another one does, or it is a deadlock.
void wait_here(State, Site);
void run_ready();

// ---- barriers.cpp, warp.cpp
// ----------------------------------------------------------------------

void leave_barriers(Block&);  // a thread has ended, on which others may have waited
void leave_operations(Warp&, std::uint32_t lane);

// ---- memory.cpp
// ----------------------------------------------------------------------------------

void reserve_region();
std::size_t offset_of(const void* pointer);
bool in_region(const void* pointer);
bool in_shared(const void* pointer);
bool in_heap(const void* pointer);
// Makes bytes usable, poisoned and uninitialised; and unusable again.
void open_memory(void* pointer, std::size_t bytes);
void close_memory(void* pointer, std::size_t bytes);

// While it lives, host code of the emulator may look at device memory; other host code must not.
class Unlock {
  public:
    Unlock();
    ~Unlock();
    Unlock(const Unlock&) = delete;
    Unlock& operator=(const Unlock&) = delete;
};

// ---- shadow.cpp: does nothing in the fast build
// --------------------------------------------------

void mark_closed(void* pointer, std::size_t bytes);
void mark_uninitialised(void* pointer, std::size_t bytes);
void mark_host_written(void* pointer, std::size_t bytes);
void mark_in_flight(void* pointer, std::size_t bytes);
void mark_landed(const Fiber*, void* pointer, std::size_t bytes);
void forget_launches();  // everything so far counts as written by the host
void check_access(const void* pointer, std::size_t bytes, Access, const Fiber*, const void* code,
                  Site);

// ---- report.cpp
// ----------------------------------------------------------------------------------

[[noreturn]] void stop(const std::string& report);
[[noreturn]] void report_deadlock();
std::string text(const Site&);
std::string name_of(const Fiber*);
// An address of code as 32 bits, 0 for none, and its line of source.
std::uint32_t short_address(const void* code);
std::string line_of(std::uint32_t address);
std::string place_of(const void* pointer);

// ---- profile.cpp
// ---------------------------------------------------------------------------------

void profile_access(const void* pointer, std::size_t bytes, bool write, const Fiber*,
                    std::uint32_t code, Site);
void profile_flush();

}  // namespace emulator
