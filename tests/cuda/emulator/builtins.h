// CUDA's device functions that involve other threads: barriers, shuffles, votes, atomics.
#pragma once
#include "emulator/emulator.h"

namespace emulator {

int shuffle_up_source(int delta, int width);
int shuffle_down_source(int delta, int width);
int shuffle_xor_source(int mask, int width);
int shuffle_source(int lane, int width);

struct Shuffled {
    std::uint64_t value;
    std::int32_t source;
};
void shuffle_body(WarpWords&, std::uint32_t mask);
void ballot_body(WarpWords&, std::uint32_t mask);
void all_body(WarpWords&, std::uint32_t mask);
void any_body(WarpWords&, std::uint32_t mask);
void match_body(WarpWords&, std::uint32_t mask);

template <class T>
T shuffle(const char* name, std::uint32_t mask, T value, int source, Site site) {
    static_assert(sizeof(T) <= 8 && std::is_trivially_copyable<T>::value, "1 to 8 bytes");
    Shuffled in{0, source};
    std::memcpy(&in.value, &value, sizeof(T));
    std::uint64_t out;
    warp_operation(name, shuffle_body, mask, false, site, &in, sizeof in, &out, 8);
    T result;
    std::memcpy(&result, &out, sizeof(T));
    return result;
}

template <class T>
T vote(const char* name, WarpBody body, std::uint32_t mask, T value, Site site) {
    T result;
    warp_operation(name, body, mask, false, site, &value, sizeof value, &result, sizeof result);
    return result;
}

// `Combine` of the values of all lanes.
template <class Combine, class T>
void reduce_body(WarpWords& words, std::uint32_t mask) {
    bool first = true;
    T sum{};
    for (int l = 0; l < 32; ++l) {
        if (!(mask >> l & 1)) continue;
        T value;
        std::memcpy(&value, words.in[l], sizeof value);
        sum = first ? value : Combine()(sum, value);
        first = false;
    }
    for (int l = 0; l < 32; ++l) {
        if (mask >> l & 1) std::memcpy(words.out[l], &sum, sizeof sum);
    }
}

// T, not deduced: the pointer alone says what T is, as with CUDA's overloads.
template <class T>
struct Same {
    using Type = T;
};
template <class T>
using same = typename Same<T>::Type;

// Not instrumented: `touch` has told the shadow that this is one atomic access.
template <class T, class Fn>
__attribute__((noinline, no_sanitize("thread"))) T atomic(T* pointer, Fn fn, Site site) {
    touch(pointer, sizeof(T), Access::atomic, -1, site);
    const T old = *pointer;
    *pointer = fn(old);
    return old;
}

}  // namespace emulator

// ---- barriers
// ------------------------------------------------------------------------------------

inline void __syncthreads(EMULATOR_SITE) {
    emulator::barrier(EMULATOR_HERE);
}
inline int __syncthreads_count(int p, EMULATOR_SITE) {
    return emulator::barrier_vote(EMULATOR_HERE, p, emulator::Vote::count);
}
inline int __syncthreads_and(int p, EMULATOR_SITE) {
    return emulator::barrier_vote(EMULATOR_HERE, p, emulator::Vote::all);
}
inline int __syncthreads_or(int p, EMULATOR_SITE) {
    return emulator::barrier_vote(EMULATOR_HERE, p, emulator::Vote::any);
}
inline void __syncwarp(unsigned mask = 0xffffffffu, EMULATOR_SITE) {
    emulator::syncwarp(mask, EMULATOR_HERE);
}
inline void __threadfence() {}  // memory is always up to date here; order is the shadow's business
inline void __threadfence_block() {}
inline void __nanosleep(unsigned) {
    emulator::give_way();
}
template <class T>
T __ldg(const T* pointer) {
    return *pointer;
}

// ---- shuffles and votes
// --------------------------------------------------------------------------

#define EMULATOR_SHUFFLE(name, parameter, source)                                      \
    template <class T>                                                                 \
    T name(unsigned mask, T value, parameter, int width = 32, EMULATOR_SITE) {         \
        return emulator::shuffle(#name, mask, value, emulator::source, EMULATOR_HERE); \
    }
EMULATOR_SHUFFLE(__shfl_sync, int lane, shuffle_source(lane, width))
EMULATOR_SHUFFLE(__shfl_up_sync, unsigned delta, shuffle_up_source(int(delta), width))
EMULATOR_SHUFFLE(__shfl_down_sync, unsigned delta, shuffle_down_source(int(delta), width))
EMULATOR_SHUFFLE(__shfl_xor_sync, int lanes, shuffle_xor_source(lanes, width))
#undef EMULATOR_SHUFFLE

inline unsigned __ballot_sync(unsigned mask, int p, EMULATOR_SITE) {
    return emulator::vote("__ballot_sync", emulator::ballot_body, mask, unsigned(p != 0),
                          EMULATOR_HERE);
}
inline int __all_sync(unsigned mask, int p, EMULATOR_SITE) {
    return emulator::vote("__all_sync", emulator::all_body, mask, int(p != 0), EMULATOR_HERE);
}
inline int __any_sync(unsigned mask, int p, EMULATOR_SITE) {
    return emulator::vote("__any_sync", emulator::any_body, mask, int(p != 0), EMULATOR_HERE);
}
inline unsigned __match_any_sync(unsigned mask, unsigned value, EMULATOR_SITE) {
    return emulator::vote("__match_any_sync", emulator::match_body, mask, value, EMULATOR_HERE);
}

#define EMULATOR_REDUCE(name, T, expression)                                         \
    inline T name(unsigned mask, T value, EMULATOR_SITE) {                           \
        struct Combine {                                                             \
            T operator()(T a, T b) const { return expression; }                      \
        };                                                                           \
        return emulator::vote(#name, emulator::reduce_body<Combine, T>, mask, value, \
                              EMULATOR_HERE);                                        \
    }
EMULATOR_REDUCE(__reduce_add_sync, int, a + b)
EMULATOR_REDUCE(__reduce_add_sync, unsigned, a + b)
EMULATOR_REDUCE(__reduce_min_sync, int, b < a ? b : a)
EMULATOR_REDUCE(__reduce_min_sync, unsigned, b < a ? b : a)
EMULATOR_REDUCE(__reduce_max_sync, int, a < b ? b : a)
EMULATOR_REDUCE(__reduce_max_sync, unsigned, a < b ? b : a)
EMULATOR_REDUCE(__reduce_and_sync, unsigned, a& b)
EMULATOR_REDUCE(__reduce_or_sync, unsigned, a | b)
EMULATOR_REDUCE(__reduce_xor_sync, unsigned, a ^ b)
#undef EMULATOR_REDUCE

// ---- atomics
// -------------------------------------------------------------------------------------

#define EMULATOR_ATOMIC(name, expression)                                                        \
    template <class T>                                                                           \
    T name(T* pointer, emulator::same<T> value, EMULATOR_SITE) {                                 \
        return emulator::atomic(pointer, [=](T old) -> T { return expression; }, EMULATOR_HERE); \
    }
EMULATOR_ATOMIC(atomicAdd, T(old + value))
EMULATOR_ATOMIC(atomicSub, T(old - value))
EMULATOR_ATOMIC(atomicMax, old < value ? value : old)
EMULATOR_ATOMIC(atomicMin, value < old ? value : old)
EMULATOR_ATOMIC(atomicOr, T(old | value))
EMULATOR_ATOMIC(atomicAnd, T(old& value))
EMULATOR_ATOMIC(atomicExch, value)
#undef EMULATOR_ATOMIC
template <class T>
T atomicCAS(T* pointer, emulator::same<T> expected, emulator::same<T> value, EMULATOR_SITE) {
    return emulator::atomic(
        pointer, [=](T old) { return old == expected ? value : old; }, EMULATOR_HERE);
}
inline unsigned atomicInc(unsigned* pointer, unsigned limit, EMULATOR_SITE) {
    return emulator::atomic(
        pointer, [=](unsigned old) { return old >= limit ? 0u : old + 1; }, EMULATOR_HERE);
}
