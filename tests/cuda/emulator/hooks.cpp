// What the compiler's instrumentation calls. The strict build compiles the kernels with
// -fsanitize=thread,bounds,alignment,shift,integer-divide-by-zero and links no sanitizer's run
// time: these functions take its place, so that every load and store of a kernel comes by here.
#include <cstdio>
#include <cstdlib>

#include "emulator/state.h"

namespace emulator {
namespace {

inline void seen(const void* pointer, std::size_t bytes, Access access, const void* code) {
    if (!in_region(pointer)) return;  // the thread's own stack, constants
    if (!in_launch() || machine.current == &machine.host) {
        std::fprintf(stderr, "emulator: host code looks at device memory at %s\n",
                     line_of(short_address(code)).c_str());
        std::abort();
    }
    check_access(pointer, bytes, access, machine.current, code, Site{});
    if (machine.options.profile) {
        profile_access(pointer, bytes, access != Access::read, machine.current, short_address(code),
                       Site{});
    }
}

// Where a check stands in the source: what the data of every check begins with.
struct CheckPlace {
    const char* file;
    std::uint32_t line, column;
};

[[noreturn]] void failed_check(const char* what, const CheckPlace* place) {
    fail(std::string(what) + " at " + text(Site{place->file, int(place->line)}));
}

}  // namespace
}  // namespace emulator

using emulator::Access;
using emulator::seen;

extern "C" {

#define EMULATOR_HOOK(name, bytes, access)                           \
    void name(void* p) {                                             \
        seen(p, bytes, Access::access, __builtin_return_address(0)); \
    }
#define EMULATOR_HOOKS(bytes)                                  \
    EMULATOR_HOOK(__tsan_read##bytes, bytes, read)             \
    EMULATOR_HOOK(__tsan_write##bytes, bytes, write)           \
    EMULATOR_HOOK(__tsan_unaligned_read##bytes, bytes, read)   \
    EMULATOR_HOOK(__tsan_unaligned_write##bytes, bytes, write) \
    EMULATOR_HOOK(__tsan_volatile_read##bytes, bytes, read)    \
    EMULATOR_HOOK(__tsan_volatile_write##bytes, bytes, write)
EMULATOR_HOOKS(1)
EMULATOR_HOOKS(2)
EMULATOR_HOOKS(4)
EMULATOR_HOOKS(8)
EMULATOR_HOOKS(16)
void __tsan_read_range(void* p, unsigned long bytes) {
    seen(p, bytes, Access::read, __builtin_return_address(0));
}
void __tsan_write_range(void* p, unsigned long bytes) {
    seen(p, bytes, Access::write, __builtin_return_address(0));
}
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}

#define EMULATOR_CHECK(name, what)                                          \
    void __ubsan_handle_##name(const emulator::CheckPlace* place) {         \
        emulator::failed_check(what, place);                                \
    }                                                                       \
    void __ubsan_handle_##name##_abort(const emulator::CheckPlace* place) { \
        emulator::failed_check(what, place);                                \
    }
EMULATOR_CHECK(out_of_bounds, "array index out of bounds")
EMULATOR_CHECK(type_mismatch_v1, "misaligned or null pointer")
EMULATOR_CHECK(shift_out_of_bounds, "shift out of range")
EMULATOR_CHECK(divrem_overflow, "division by zero")

}  // extern "C"
