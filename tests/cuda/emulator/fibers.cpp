// Threads of a kernel as fibers: their stacks, the switch between them, and who runs next.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "emulator/state.h"

uint3 threadIdx{}, blockIdx{};
dim3 blockDim{}, gridDim{};

#if !EMULATOR_UCONTEXT
// Saves the callee-saved registers and the stack pointer, and takes those of the other context.
extern "C" void emulator_switch(void** save, void* load);
asm(R"(
    .text
    .p2align 4
    .globl emulator_switch
    .hidden emulator_switch
    .type emulator_switch,@function
emulator_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
    .size emulator_switch,.-emulator_switch
)");
#endif

namespace emulator {

Machine machine;

namespace {

// After so many rounds of a polling loop nothing will come any more.
constexpr std::uint64_t kMostPolls = 20'000'000;

// ---- contexts ----------------------------------------

#if EMULATOR_UCONTEXT
void prepare(Context& context, unsigned char* stack, std::size_t bytes, void (*entry)()) {
    getcontext(&context);
    context.uc_stack.ss_sp = stack;
    context.uc_stack.ss_size = bytes;
    context.uc_link = nullptr;
    makecontext(&context, entry, 0);
}
void swap_contexts(Context& from, Context& to) {
    swapcontext(&from, &to);
}
#else
void prepare(Context& context, unsigned char* stack, std::size_t bytes, void (*entry)()) {
    const auto end = (reinterpret_cast<std::uintptr_t>(stack) + bytes) & ~std::uintptr_t(15);
    auto** top = reinterpret_cast<void**>(end);
    *--top = nullptr;  // entry sees the stack as after a call: 8 bytes off 16
    *--top = reinterpret_cast<void*>(entry);
    for (int i = 0; i < 6; ++i) *--top = nullptr;
    context.stack_pointer = top;
}
void swap_contexts(Context& from, Context& to) {
    emulator_switch(&from.stack_pointer, to.stack_pointer);
}
#endif

void allocate_stack(Fiber& fiber) {
    const auto page = std::size_t(sysconf(_SC_PAGESIZE));
    void* memory = mmap(nullptr, machine.options.stack + page, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    if (memory == MAP_FAILED) {
        std::perror("emulator: stack");
        std::abort();
    }
    mprotect(memory, page, PROT_NONE);
    fiber.stack = static_cast<unsigned char*>(memory) + page;
}

// ---- who runs next ----------------------------------------

// The first bit of `mask` behind bit `after`, circular.
std::uint32_t next_bit(std::uint32_t mask, std::uint32_t after) {
    const std::uint32_t behind = after >= 31 ? 0 : mask & ~((2u << after) - 1);
    return std::uint32_t(__builtin_ctz(behind ? behind : mask));
}

std::uint32_t start_from(std::uint32_t fixed) {
    return machine.options.seed ? random_number() & 31 : fixed;
}

Fiber* take(Block& block, std::uint32_t number, std::uint32_t after) {
    Warp& warp = block.warps[number];
    const std::uint32_t lane = next_bit(warp.runnable, start_from(after));
    warp.runnable &= ~(1u << lane);
    if (!warp.runnable) block.ready &= ~(1u << number);
    return warp.fiber[lane];
}

Fiber* take_first(Block& block) {
    return take(block, next_bit(block.ready, start_from(31)), 31);
}

// Another lane of this warp, another warp of this block, another block. Null if nobody can go on.
// away: from here, if anything else can run.
Fiber* pick(bool away) {
    Fiber* fiber = machine.current;
    Block* block = fiber->block;
    const std::size_t blocks = machine.blocks.size();
    if (block) {
        Warp& warp = *fiber->warp;
        const bool leave = away || (machine.options.seed && (random_number() & 7) == 0);
        if (warp.runnable && !leave) return take(*block, warp.id, fiber->lane);
        if (block->ready && !(away && blocks > 1)) {
            return take(*block, next_bit(block->ready, start_from(warp.id)), 31);
        }
    }
    std::size_t at = 0;
    for (std::size_t i = 0; i < blocks; ++i) {
        if (machine.blocks[i].get() == block) at = i;
    }
    for (std::size_t i = 1; i <= blocks; ++i) {
        Block& other = *machine.blocks[(at + i) % blocks];
        if (other.ready) return take_first(other);
    }
    return nullptr;
}

[[noreturn]] void end_thread() {
    Fiber* fiber = machine.current;
    Block& block = *fiber->block;
    if (!fiber->copies.empty()) {
        fail("thread ends with an asynchronous copy in flight (no copy_async_wait after it)");
    }
    fiber->state = State::done;
    fiber->warp->live &= ~(1u << fiber->lane);
    --block.live;
    --machine.grid_live;
    leave_operations(*fiber->warp, fiber->lane);
    leave_barriers(block);
    if (Fiber* next = pick(false)) {
        switch_to(next);
        std::abort();
    }
    for (const auto& one : machine.blocks) {
        if (one->live > 0) report_deadlock();
    }
    switch_to(&machine.host);
    std::abort();
}

void run_thread() {
    machine.run(machine.context);
    end_thread();
}

}  // namespace

std::uint32_t random_number() {  // xorshift
    machine.random ^= machine.random << 13;
    machine.random ^= machine.random >> 7;
    machine.random ^= machine.random << 17;
    return std::uint32_t(machine.random >> 32);
}

void make_context(Fiber& fiber) {
    if (!fiber.stack) allocate_stack(fiber);
    prepare(fiber.context, fiber.stack, machine.options.stack, run_thread);
}

void switch_to(Fiber* to) {
    Fiber* from = machine.current;
    if (from == to) return;
    machine.current = to;
    ++machine.counts.switches;
    if (to != &machine.host) {
        threadIdx = to->index;
        blockIdx = to->block->index;
    }
    swap_contexts(from->context, to->context);
}

void make_ready(Fiber* fiber) {
    fiber->state = State::ready;
    fiber->warp->runnable |= 1u << fiber->lane;
    fiber->block->ready |= 1u << fiber->warp->id;
}

void wait_here(State state, Site site) {
    machine.current->state = state;
    machine.current->site = site;
    Fiber* next = pick(false);
    if (!next) report_deadlock();
    machine.polls = 0;
    switch_to(next);
}

void give_way() {
    if (++machine.polls > kMostPolls) fail("livelock: a polling loop never ends");
    Fiber* fiber = machine.current;
    make_ready(fiber);
    Fiber* next = pick(true);
    if (next != fiber) switch_to(next);
}

void run_ready() {
    machine.host.block = nullptr;
    if (machine.blocks[0]->ready) switch_to(take_first(*machine.blocks[0]));
}

}  // namespace emulator
