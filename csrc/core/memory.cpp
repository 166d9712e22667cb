#include "core/memory.h"

#include <malloc.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>

#include "core/cgroup.h"

#define FUSEDNN_ASAN 0
#if defined(__SANITIZE_ADDRESS__)
#undef FUSEDNN_ASAN
#define FUSEDNN_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#undef FUSEDNN_ASAN
#define FUSEDNN_ASAN 1
#endif
#endif

namespace fusednn {

namespace {

constexpr std::size_t kKilobyte = 1024, kMegabyte = 1024 * kKilobyte;
constexpr std::size_t kPage = 4 * kKilobyte, kHugePage = 2 * kMegabyte;

// Everything is mapped in huge pages. The first write to 2 MB takes 0.08 ms so, and 1.0 ms in 4 KB
// pages (EPYC 9004, virtual machine); 8 MB take 0.3 and 8 ms.
//
// Blocks under kHugePage are carved from slabs, whose pages are made present one huge page at a
// time, so that a first call is about as fast as the next. The slab's size only bounds how much
// address space one long-lived block can pin.
constexpr std::size_t kSlab = 8 * kMegabyte;
constexpr std::size_t kMostCached = 512 * kMegabyte;

// Blocks of a page and more start at multiples of kStep, each at another one than the last: arrays
// that are walked in step at equal page offsets can evict each other from the L1 cache (four
// streams a page apart ran 6 to 13 times slower on Zen 4). Multiples of 512 also keep clear of what
// follows within a cache line or two of a NumPy array's 16: stores just ahead of loads cost 20 %.
constexpr std::size_t kStep = 512;

#ifdef MADV_POPULATE_WRITE
constexpr int kPopulateWrite = MADV_POPULATE_WRITE;
#else
constexpr int kPopulateWrite = 23;  // Linux 5.14; older kernels refuse it, and fault pages in
#endif

// ---- size classes ----------------------------------------

// Multiples of 64 bytes; from 512 bytes on eight to an octave, so that at most an eighth is unused.
constexpr int kClasses = 8 * 42;
constexpr std::size_t kLargestRequest = std::size_t(1) << 46;

// The smallest class whose blocks hold `bytes`.
int class_of(std::size_t bytes) {
    const std::size_t units = bytes <= 64 ? 1 : (bytes + 63) / 64;
    if (units < 8) return int(units);
    const int octave = 60 - __builtin_clzll(units);  // units >> octave is 8 .. 15
    const std::size_t step = std::size_t(1) << octave;
    return 8 * octave + int((units + step - 1) >> octave);
}

constexpr std::size_t bytes_of(int size_class) {
    return size_class < 16 ? std::size_t(size_class) * 64
                           : (std::size_t(size_class % 8 + 8) << (size_class / 8 - 1)) * 64;
}

// The first class mapped block by block, in multiples of huge pages.
constexpr int kFirstLarge = 8 * 13;
static_assert(bytes_of(kFirstLarge) == kHugePage);

// A free block of up to four classes more than needed (at most half larger) is taken before a new
// one is made: changing shapes then live in each other's blocks.
constexpr int kReach = 4;

// ---- mappings and their blocks ----------------------------------------

template <class Node>
struct List {
    Node *first = nullptr, *last = nullptr;

    void push_front(Node* node) {
        node->prev = nullptr;
        node->next = first;
        (first ? first->prev : last) = node;
        first = node;
    }
    void push_back(Node* node) {
        node->next = nullptr;
        node->prev = last;
        (last ? last->next : first) = node;
        last = node;
    }
    void remove(Node* node) {
        (node->prev ? node->prev->next : first) = node->next;
        (node->next ? node->next->prev : last) = node->prev;
    }
};

struct Mapping;

// Stands in the 64 bytes in front of what is handed out.
struct alignas(64) Block {
    Mapping* mapping;
    Block* sibling;      // the block made before it in the same mapping
    Block *prev, *next;  // in the free list of its class
    int size_class;
};

// A slab, or the mapping of one large block; stands at the start of it.
struct alignas(64) Mapping {
    std::size_t bytes;
    char* carved;           // blocks end here
    std::size_t committed;  // bytes that are, or are taken to be, backed by memory
    int live;               // blocks handed out
    Block* blocks;          // all of them
    Mapping *prev, *next;   // in the list of idle mappings

    char* base() { return reinterpret_cast<char*>(this); }
};

char* align_up(char* address, std::size_t alignment) {
    const auto value = reinterpret_cast<std::uintptr_t>(address);
    return address + (alignment - value % alignment) % alignment;
}

// A mapping that starts on a huge page; null if there is no memory.
Mapping* map(std::size_t bytes) {
    void* found = mmap(nullptr, bytes + kHugePage, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (found == MAP_FAILED) return nullptr;
    auto* start = static_cast<char*>(found);
    char* base = align_up(start, kHugePage);
    if (base > start) munmap(start, std::size_t(base - start));
    const auto behind = std::size_t(start + kHugePage - base);
    if (behind) munmap(base + bytes, behind);
    madvise(base, bytes, MADV_HUGEPAGE);
    auto* mapping = new (base) Mapping{};
    mapping->bytes = bytes;
    mapping->carved = base + sizeof(Mapping);
    return mapping;
}

void unmap(Mapping* list) {
    while (list) {
        Mapping* next = list->next;
        munmap(list, list->bytes);
        list = next;
    }
}

std::size_t choose_limit() {
    std::size_t memory = std::size_t(sysconf(_SC_PHYS_PAGES)) * std::size_t(sysconf(_SC_PAGESIZE));
    const i64 granted = cgroup_limits().memory;
    if (granted > 0) memory = std::min(memory, std::size_t(granted));
    return std::min(kMostCached, memory / 8);
}

class Allocator {
  public:
    void* acquire(std::size_t bytes) {
        if (bytes > kLargestRequest) throw std::bad_alloc();
        const int smallest = class_of(bytes);
        int wanted = smallest;
        if (wanted >= kFirstLarge) {
            wanted = class_of((bytes + kHugePage - 1) / kHugePage * kHugePage);
        }
        std::lock_guard<std::mutex> lock(mutex_);
        Block* block = find(wanted, std::max(wanted, smallest + kReach));
        if (!block) block = make(wanted);
        if (block->mapping->live++ == 0) idle_.remove(block->mapping);
        in_use_ += bytes_of(block->size_class);
        return block + 1;
    }

    void release(void* memory) {
        Block* block = static_cast<Block*>(memory) - 1;
        Mapping* dropped = nullptr;
        {
            std::lock_guard<std::mutex> lock(mutex_);
            in_use_ -= bytes_of(block->size_class);
            free_[block->size_class].push_front(block);
            if (--block->mapping->live == 0) {
                idle_.push_back(block->mapping);  // so the list is in the order of last use
            }
            if (committed_ - in_use_ > limit_) dropped = drop(limit_);
        }
        unmap(dropped);
    }

    MemoryStats stats() {
        std::lock_guard<std::mutex> lock(mutex_);
        return {i64(in_use_), i64(committed_ - in_use_), i64(limit_)};
    }

    void empty_cache() {
        Mapping* dropped;
        {
            std::lock_guard<std::mutex> lock(mutex_);
            dropped = drop(0);
        }
        unmap(dropped);
    }

    std::mutex& mutex() { return mutex_; }

  private:
    Block* find(int wanted, int largest) {
        for (int size_class = wanted; size_class <= largest; ++size_class) {
            Block* block = free_[size_class].first;
            if (!block) continue;
            free_[size_class].remove(block);
            return block;
        }
        return nullptr;
    }

    Block* make(int size_class) {
        Block* block = size_class < kFirstLarge ? carve(size_class) : make_large(size_class);
        if (!block) {
            // Address space or memory is short: what is kept goes first.
            unmap(drop(0));
            block = size_class < kFirstLarge ? carve(size_class) : make_large(size_class);
        }
        if (!block) throw std::bad_alloc();
        return block;
    }

    // A new block whose memory starts at `data`; null if the mapping has no room for it.
    static Block* add_block(Mapping* mapping, char* data, int size_class) {
        if (data + bytes_of(size_class) > mapping->base() + mapping->bytes) return nullptr;
        auto* block = new (data - sizeof(Block)) Block{};
        block->mapping = mapping;
        block->sibling = mapping->blocks;
        block->size_class = size_class;
        mapping->blocks = block;
        mapping->carved = data + bytes_of(size_class);
        return block;
    }

    static char* next_data(Mapping* slab, std::size_t bytes) {
        return align_up(slab->carved + sizeof(Block), bytes < kPage ? 64 : kStep);
    }

    Block* carve(int size_class) {
        const std::size_t bytes = bytes_of(size_class);
        if (slab_ && next_data(slab_, bytes) + bytes > slab_->base() + slab_->bytes) retire_slab();
        if (!slab_) {
            slab_ = map(kSlab);
            if (!slab_) return nullptr;
            idle_.push_back(slab_);
        }
        char* data = next_data(slab_, bytes);
        while (slab_->base() + slab_->committed < data + bytes) {
            madvise(slab_->base() + slab_->committed, kHugePage, kPopulateWrite);
            slab_->committed += kHugePage;
            committed_ += kHugePage;
        }
        return add_block(slab_, data, size_class);
    }

    // What is left of the slab becomes a free block of the largest class that fits.
    void retire_slab() {
        char* end = slab_->base() + slab_->bytes;
        for (int size_class = kFirstLarge - 1; size_class > 0; --size_class) {
            char* data = next_data(slab_, bytes_of(size_class));
            if (data + bytes_of(size_class) > end) continue;
            free_[size_class].push_front(add_block(slab_, data, size_class));
            break;
        }
        committed_ += slab_->bytes - slab_->committed;
        slab_->committed = slab_->bytes;
        slab_ = nullptr;
    }

    Block* make_large(int size_class) {
        const std::size_t bytes = bytes_of(size_class);
        Mapping* mapping = map(bytes + kPage);
        if (!mapping) return nullptr;
        mapping->committed = mapping->bytes;
        committed_ += mapping->bytes;
        idle_.push_back(mapping);
        offset_ = (offset_ + 3 * kStep) % kPage;
        return add_block(mapping, mapping->base() + kStep + offset_, size_class);
    }

    // Takes mappings without a live block, least recently used first, out of the lists until at
    // most `most` bytes are kept; to be unmapped by the caller.
    Mapping* drop(std::size_t most) {
        Mapping* dropped = nullptr;
        while (committed_ - in_use_ > most && idle_.first) {
            Mapping* mapping = idle_.first;
            idle_.remove(mapping);
            for (Block* block = mapping->blocks; block; block = block->sibling) {
                free_[block->size_class].remove(block);
            }
            committed_ -= mapping->committed;
            if (mapping == slab_) slab_ = nullptr;
            mapping->next = dropped;
            dropped = mapping;
        }
        return dropped;
    }

    std::mutex mutex_;
    List<Block> free_[kClasses + kReach];
    List<Mapping> idle_;
    Mapping* slab_ = nullptr;  // the one new blocks are carved from
    std::size_t offset_ = 0;   // of the last large block
    std::size_t committed_ = 0, in_use_ = 0;
    const std::size_t limit_ = choose_limit();
};

// Leaked on purpose: arrays may be released after static destruction.
Allocator& allocator() {
    static Allocator* const instance = [] {
        auto* created = new Allocator;
        // A child of fork finds the lists whole and the lock free.
        pthread_atfork([] { allocator().mutex().lock(); }, [] { allocator().mutex().unlock(); },
                       [] { allocator().mutex().unlock(); });
        return created;
    }();
    return *instance;
}

// For tests: with FUSEDNN_POISON_MEMORY=1 every block is full of NaN when it is handed out.
void poison(void* block, std::size_t bytes) {
    static const bool wanted = [] {
        const char* value = std::getenv("FUSEDNN_POISON_MEMORY");
        return value && std::strcmp(value, "1") == 0;
    }();
    if (wanted || FUSEDNN_ASAN) std::memset(block, 0xff, bytes);
}

}  // namespace

#if FUSEDNN_ASAN

// Under AddressSanitizer every block is its own: overruns are found to the byte, and late uses too.
namespace {
std::atomic<i64> asan_in_use{0};
}

void* memory_acquire(std::size_t bytes) {
    void* block = nullptr;
    if (bytes > kLargestRequest || posix_memalign(&block, 64, bytes ? bytes : 1) != 0) {
        throw std::bad_alloc();
    }
    asan_in_use += i64(malloc_usable_size(block));
    poison(block, bytes);
    return block;
}

void memory_release(void* block) noexcept {
    if (!block) return;
    asan_in_use -= i64(malloc_usable_size(block));
    std::free(block);
}

MemoryStats memory_stats() {
    return {asan_in_use.load(), 0, allocator().stats().limit};
}

#else

void* memory_acquire(std::size_t bytes) {
    void* block = allocator().acquire(bytes);
    poison(block, bytes);
    return block;
}

void memory_release(void* block) noexcept {
    if (block) allocator().release(block);
}

MemoryStats memory_stats() {
    return allocator().stats();
}

#endif

void memory_empty_cache() {
    allocator().empty_cache();
}

}  // namespace fusednn
