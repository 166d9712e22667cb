// A CUDA block emulator for tests: runs kernels that a host compiler has compiled, and reports what
// a GPU would silently get wrong.
//
// One fiber per CUDA thread, one block at a time (all blocks at once for a cooperative launch), one
// OS thread. Built twice: `fast`, and `strict`, which sees every load and store of the kernels
// (hooks.cpp) and knows of each whether it was in bounds, initialised and ordered (shadow.cpp).
//
// The headers of this folder are compiled into the kernels; its .cpp files must not be compiled
// with the kernels' -fsanitize flags.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <tuple>
#include <type_traits>

#include "emulator/types.h"

namespace emulator {

// Where in the kernel's source something happens: the default arguments of the built-ins.
struct Site {
    const char* file;
    int line;
};
#define EMULATOR_SITE const char *site_file = __builtin_FILE(), int site_line = __builtin_LINE()
#define EMULATOR_HERE        \
    ::emulator::Site {       \
        site_file, site_line \
    }

// ---- for the tests
// -------------------------------------------------------------------------------

struct Options {
    std::uint32_t seed = 0;                 // 0: a fixed order; else threads and blocks at random
    std::size_t shared_limit = 227 * 1024;  // of sm_90; sm_80 has 163 KB
    std::size_t stack = 128 * 1024;
    int resident = 256;  // blocks that the device holds at once; 256 is the most
    bool profile = false;
};
Options& options();

struct Counts {
    std::uint64_t launches, blocks, threads, switches, barriers, warp_operations, mma, load_matrix,
        load_matrix_conflicts, copied_bytes, stream_waits;
};
Counts& counts();

// Per source line: sectors of global and wavefronts of shared memory, against the fewest possible.
// Of what was run since the last call, in the strict build and with options().profile.
std::string profile();
// Of the last launch that failed.
const std::string& last_report();

// ---- for the built-ins
// ---------------------------------------------------------------------------

// Ends the launch; the host sees that it failed.
[[noreturn]] void fail(const std::string& what);

void barrier(Site);
enum class Vote { count, all, any };
int barrier_vote(Site, int predicate, Vote);
void named_barrier(Site, int id, int threads, bool wait);
void grid_barrier(Site);
void syncwarp(std::uint32_t mask, Site);
void give_way();  // inside a polling loop

// One operation of a warp. Every live lane of `mask` must arrive with the same one; the last to
// come runs `body` for all, which reads in[] and writes out[] of each lane.
constexpr int kIn = 12, kOut = 4;  // words
struct WarpWords {
    std::uint32_t in[32][kIn];
    std::uint32_t out[32][kOut];
};
using WarpBody = void (*)(WarpWords&, std::uint32_t mask);
// aligned: all 32 lanes must arrive, from the same line.
void warp_operation(const char* name, WarpBody body, std::uint32_t mask, bool aligned, Site,
                    const void* in, std::size_t in_bytes, void* out, std::size_t out_bytes);

void* static_shared(const void* key, std::size_t bytes, std::size_t align);
void* dynamic_shared(std::size_t bytes);

void copy_async(void* to, const void* from, int bytes, int source_bytes, Site);
void copy_async_commit();
void copy_async_wait(int keep, Site);
void load_matrix(std::uint32_t* r, int count, bool transposed, const void* row, Site);

// Accesses that the emulator makes for a kernel.
enum class Access { read, write, atomic };
void touch(const void* pointer, std::size_t bytes, Access, int lane, Site);

int lane();

// ---- launches
// ------------------------------------------------------------------------------------

void launch(dim3 grid, dim3 block, std::size_t shared, bool cooperative, const char* name,
            void (*run)(void*), void* context);
void reject_launch(const std::string& why);
bool is_device_pointer(const void* pointer);

template <class T>
bool argument_fits(const T&) {
    return true;
}
template <class T>
bool argument_fits(T* const& pointer) {
    return is_device_pointer(pointer);
}

template <class... P, class... A>
void launch_kernel(void (*kernel)(P...), const char* name, dim3 grid, dim3 block,
                   std::size_t shared, bool cooperative, A&&... args) {
    struct Context {
        void (*kernel)(P...);
        std::tuple<P...> args;
    } context{kernel, std::tuple<P...>(static_cast<P>(args)...)};
    if (!std::apply([](const P&... one) { return (argument_fits(one) && ...); }, context.args)) {
        return reject_launch("an argument points to host memory");
    }
    launch(
        grid, block, shared, cooperative, name,
        [](void* raw) {
            auto* c = static_cast<Context*>(raw);
            std::apply(c->kernel, c->args);
        },
        &context);
}

}  // namespace emulator
