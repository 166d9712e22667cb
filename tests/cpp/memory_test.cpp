// The recycling allocator: alignment, exact counts, reuse, bounds, many threads, forks.
#include "core/memory.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <new>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "check.h"

using namespace fusednn;

namespace {

#if defined(__SANITIZE_ADDRESS__)
constexpr bool kRecycles = false;  // every block is its own there
#else
constexpr bool kRecycles = true;
#endif

constexpr std::size_t kMegabyte = 1024 * 1024;
const std::size_t kSizes[] = {0,       1,       63,      64,       65,       511,
                              512,     513,     1000,    4095,     4096,     4097,
                              65536,   262144,  1000000, 1966080,  1966081,  2097151,
                              2097152, 2097153, 6400000, 16777216, 16777217, 100000001};

i64 resident_bytes() {
    std::ifstream file("/proc/self/statm");
    i64 size = 0, resident = 0;
    file >> size >> resident;
    return resident * sysconf(_SC_PAGESIZE);
}

void aligned_writable_and_counted() {
    const i64 before = memory_stats().in_use;
    std::vector<unsigned char*> blocks;
    for (std::size_t size : kSizes) {
        const i64 in_use = memory_stats().in_use;
        auto* block = static_cast<unsigned char*>(memory_acquire(size));
        CHECK(block != nullptr);
        CHECK(reinterpret_cast<std::uintptr_t>(block) % 64 == 0);
        const i64 grown = memory_stats().in_use - in_use;
        CHECK(grown >= i64(size));
        // At most an eighth unused, or half a huge page's worth where blocks consist of them, or
        // (a recycled block) half.
        CHECK(grown <= i64(size) + i64(size) / 2 + i64(size < 1900000 ? 320 : 2 * kMegabyte));
        std::memset(block, int(blocks.size()) + 1, size);
        blocks.push_back(block);
    }
    // Nothing overlaps: every block still holds its own mark.
    int wrong = 0;
    for (std::size_t index = 0; index < blocks.size(); ++index) {
        const std::size_t size = kSizes[index];
        for (std::size_t at = 0; at < size; at += size < 5000 ? 1 : 997) {
            wrong += blocks[index][at] != index + 1;
        }
        if (size) wrong += blocks[index][size - 1] != index + 1;
    }
    CHECK(wrong == 0);
    std::reverse(blocks.begin(), blocks.end());
    for (auto* block : blocks) memory_release(block);
    CHECK(memory_stats().in_use == before);
    memory_release(nullptr);
    CHECK(memory_stats().in_use == before);
}

void blocks_are_reused() {
    if (!kRecycles) return;
    for (std::size_t size : kSizes) {
        void* first = memory_acquire(size);
        memory_release(first);
        const MemoryStats before = memory_stats();
        for (int round = 0; round < 10; ++round) {
            void* again = memory_acquire(size);
            CHECK(again == first);
            memory_release(again);
        }
        CHECK(memory_stats().cached == before.cached);
    }
    // A somewhat smaller request takes the block too, a much smaller one leaves it.
    memory_empty_cache();
    void* large = memory_acquire(30 * kMegabyte);
    memory_release(large);
    void* smaller = memory_acquire(24 * kMegabyte);
    CHECK(smaller == large);
    memory_release(smaller);
    void* small = memory_acquire(12 * kMegabyte);
    CHECK(small != large);
    memory_release(small);
}

void cache_can_be_emptied() {
    void* kept = memory_acquire(1000);
    void* dropped = memory_acquire(50 * kMegabyte);
    std::memset(dropped, 1, 50 * kMegabyte);
    memory_release(dropped);
    const i64 resident = resident_bytes();
    memory_empty_cache();
    if (kRecycles) CHECK(resident_bytes() < resident - i64(40 * kMegabyte));
    CHECK(memory_stats().cached <= i64(8 * kMegabyte));  // what shares a slab with `kept`
    memory_release(kept);
    memory_empty_cache();
    CHECK(memory_stats().cached == 0);
    CHECK(memory_stats().in_use == 0);
    memory_release(memory_acquire(5000));  // and it goes on
}

void what_is_kept_is_bounded() {
    const i64 limit = memory_stats().limit;
    CHECK(limit > 0 && limit <= i64(512 * kMegabyte));
    if (!kRecycles) return;
    // Large blocks, untouched: address space only.
    std::vector<void*> blocks;
    for (i64 total = 0; total < 2 * limit; total += i64(32 * kMegabyte)) {
        blocks.push_back(memory_acquire(32 * kMegabyte));
    }
    for (void* block : blocks) {
        memory_release(block);
        CHECK(memory_stats().cached <= limit);
    }
    CHECK(memory_stats().cached > limit / 2);
    // The longest unused went first: the last one released is still there.
    void* last = memory_acquire(32 * kMegabyte);
    CHECK(last == blocks.back());
    memory_release(last);
    // Small blocks count too, and their slabs are given back.
    blocks.clear();
    for (i64 total = 0; total < limit + limit / 4; total += 60000) {
        blocks.push_back(memory_acquire(60000));
    }
    for (void* block : blocks) memory_release(block);
    CHECK(memory_stats().cached <= limit);
    memory_empty_cache();
    CHECK(memory_stats().cached == 0);
}

// Changing shapes, over a range of 36 to 1 as images of 20 to 120 pixels a side give, two blocks at
// a time.
void changing_sizes_stay_bounded() {
    std::mt19937 random(1);
    std::uniform_int_distribution<int> side(20, 120);
    i64 after_100 = 0;
    for (int call = 0; call < 1000; ++call) {
        const std::size_t bytes = std::size_t(side(random)) * std::size_t(side(random)) * 64 * 4;
        void *result = memory_acquire(bytes), *work = memory_acquire(bytes * 3);
        std::memset(result, 1, bytes);
        std::memset(work, 1, bytes * 3);
        memory_release(work);
        memory_release(result);
        if (call == 100) after_100 = resident_bytes();
    }
    CHECK(resident_bytes() - after_100 < i64(16 * kMegabyte) || kSanitized);
    CHECK(memory_stats().cached < i64(100 * kMegabyte));
}

// Every thread fills blocks with its own mark, hands some to its neighbour to be released.
void many_threads() {
    const i64 before = memory_stats().in_use;
    constexpr int kThreads = 4;
    std::atomic<void*> handed[kThreads] = {};
    std::atomic<int> wrong{0};
    std::vector<std::thread> threads;
    for (int self = 0; self < kThreads; ++self) {
        threads.emplace_back([&, self] {
            std::mt19937 random(unsigned(self) + 7);
            struct Held {
                unsigned char* block;
                std::size_t size;
            };
            std::vector<Held> held;
            for (int round = 0; round < (kSanitized ? 3000 : 50000); ++round) {
                const std::size_t size = std::size_t(1) << (random() % 18);
                auto* block = static_cast<unsigned char*>(memory_acquire(size));
                block[0] = block[size - 1] = static_cast<unsigned char>(self);
                held.push_back({block, size});
                if (held.size() < 8) continue;
                std::swap(held[random() % held.size()], held.back());
                const Held last = held.back();
                held.pop_back();
                if (last.block[0] != self || last.block[last.size - 1] != self) ++wrong;
                memory_release(handed[(self + 1) % kThreads].exchange(last.block));
            }
            for (const Held& item : held) memory_release(item.block);
        });
    }
    for (auto& thread : threads) thread.join();
    for (auto& block : handed) memory_release(block.load());
    CHECK(wrong == 0);
    CHECK(memory_stats().in_use == before);
}

void forks_find_it_usable() {
    if (!kRecycles) return;  // AddressSanitizer's own allocator may be locked in a child
    std::atomic<bool> stop{false};
    std::vector<std::thread> others;
    for (int i = 0; i < 3; ++i) {
        others.emplace_back([&] {
            while (!stop) memory_release(memory_acquire(5000));
        });
    }
    for (int round = 0; round < 50; ++round) {
        CHECK(passes_in_child([] {
            void* block = memory_acquire(5000);
            std::memset(block, 1, 5000);
            memory_release(block);
            memory_release(memory_acquire(5 * kMegabyte));
            memory_empty_cache();
        }));
    }
    stop = true;
    for (auto& other : others) other.join();
}

void impossible_requests() {
    CHECK_THROWS(memory_acquire(SIZE_MAX), std::bad_alloc, "");
    CHECK_THROWS(memory_acquire(SIZE_MAX / 2), std::bad_alloc, "");
    if (!kSanitized) CHECK_THROWS(memory_acquire(std::size_t(1) << 46), std::bad_alloc, "");
    memory_release(memory_acquire(100));
}

// Arrays walked in step should not all start at the same offset in a page.
void offsets_differ() {
    if (!kRecycles) return;
    memory_empty_cache();
    for (std::size_t size : {std::size_t(65536), 8 * kMegabyte}) {
        void* blocks[4];
        for (void*& block : blocks) block = memory_acquire(size);
        for (int i = 0; i < 4; ++i) {
            for (int j = 0; j < i; ++j) {
                const auto a = reinterpret_cast<std::uintptr_t>(blocks[i]) % 4096;
                const auto b = reinterpret_cast<std::uintptr_t>(blocks[j]) % 4096;
                CHECK(a != b);
            }
        }
        for (void* block : blocks) memory_release(block);
    }
}

// With FUSEDNN_POISON_MEMORY=1, read once at the start: in a new process of this program.
void poison_on_request() {
    CHECK(passes_in_child([] {
        setenv("FUSEDNN_POISON_MEMORY", "1", 1);
        execl("/proc/self/exe", "memory_test", "poisoned", nullptr);
        CHECK(false);
    }));
}

int check_poison() {
    for (std::size_t size : {std::size_t(1), std::size_t(1000), 3 * kMegabyte}) {
        for (int round = 0; round < 2; ++round) {
            auto* block = static_cast<unsigned char*>(memory_acquire(size));
            std::size_t poisoned = 0;
            while (poisoned < size && block[poisoned] == 0xff) ++poisoned;
            CHECK(poisoned == size);
            std::memset(block, 0, size);
            memory_release(block);
        }
    }
    return failures;
}

}  // namespace

int main(int count, char**) {
    if (count == 2) return check_poison();
    if (!kEmulated) poison_on_request();
    offsets_differ();
    aligned_writable_and_counted();
    blocks_are_reused();
    cache_can_be_emptied();
    what_is_kept_is_bounded();
    changing_sizes_stay_bounded();
    many_threads();
    forks_find_it_usable();
    impossible_requests();
    return failures ? 1 : 0;
}
