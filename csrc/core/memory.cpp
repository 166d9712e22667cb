#include "core/memory.h"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <new>
#include <vector>

namespace fusednn {

namespace {

// Blocks up to kLargest are carved from slabs and kept in lists by size class, four classes to an
// octave; larger ones are mapped by themselves and kept in one best-fit list.
constexpr std::size_t kHeader = 64;  // keeps what follows aligned
constexpr std::size_t kLargest = 256 * 1024 + kHeader;
constexpr std::size_t kSlab = 2 * 1024 * 1024;
constexpr std::size_t kHugePage = 2 * 1024 * 1024;
// From here a 2 MB page costs less to clear than its 512 small pages cost to fault in.
constexpr std::size_t kHuge = 4 * 1024 * 1024;
constexpr std::size_t kMostCached = 512 * 1024 * 1024;

// Stands in the kHeader bytes in front of every block.
struct Header {
    std::size_t size;  // whole block, header included
    int size_class;    // -1 for large ones
    Header* next;      // in its free list
};

constexpr int kClasses = 4 * 20;

// Classes are 64 * 2^(k/4), rounded up to multiples of 64.
int class_of(std::size_t size) {
    std::size_t units = (size + 63) / 64;
    int octave = 0;
    while ((std::size_t(8) << octave) <= units) ++octave;  // units in [4, 8) << octave from 4 on
    if (units < 4) return int(units);                      // classes 1, 2, 3: one unit apart
    const std::size_t step = std::size_t(1) << octave;
    const std::size_t quarter = (units + step - 1) / step;  // 4 .. 8
    return 4 * octave + int(quarter);
}

std::size_t size_of_class(int size_class) {
    if (size_class < 4) return std::size_t(size_class) * 64;
    const int octave = (size_class - 4) / 4, quarter = (size_class - 4) % 4 + 4;
    return (std::size_t(quarter) << octave) * 64;
}

void* map(std::size_t size, int flags) {
    void* block =
        mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
    if (block == MAP_FAILED) throw std::bad_alloc();
    return block;
}

// A mapping that starts on a huge page, advised to consist of them.
void* map_huge(std::size_t size) {
    auto* block = static_cast<char*>(map(size + kHugePage, 0));
    const std::size_t skip = (kHugePage - reinterpret_cast<std::uintptr_t>(block)) % kHugePage;
    if (skip) munmap(block, skip);
    munmap(block + skip + size, kHugePage - skip);
    madvise(block + skip, size, MADV_HUGEPAGE);
    return block + skip;
}

class Allocator {
  public:
    void* acquire(std::size_t bytes) {
        if (bytes > SIZE_MAX / 2) throw std::bad_alloc();
        const std::size_t size = bytes + kHeader;
        std::lock_guard<std::mutex> lock(mutex_);
        Header* header = size <= kLargest ? acquire_small(size) : acquire_large(size);
        in_use_ += header->size;
        return reinterpret_cast<char*>(header) + kHeader;
    }

    void release(void* block) {
        auto* header = reinterpret_cast<Header*>(static_cast<char*>(block) - kHeader);
        std::lock_guard<std::mutex> lock(mutex_);
        in_use_ -= header->size;
        cached_ += header->size;
        if (header->size_class >= 0) {
            --small_in_use_;
            header->next = free_[header->size_class];
            free_[header->size_class] = header;
        } else {
            large_.push_back(header);  // at the end: the list is in the order of release
            large_cached_ += header->size;
            trim(limit_);
        }
    }

    MemoryStats stats() {
        std::lock_guard<std::mutex> lock(mutex_);
        return {i64(in_use_), i64(cached_), i64(limit_)};
    }

    void empty_cache() {
        std::lock_guard<std::mutex> lock(mutex_);
        trim(0);
        if (small_in_use_ > 0) return;  // slabs are shared by many blocks
        for (Header*& list : free_) list = nullptr;
        for (void* slab : slabs_) munmap(slab, kSlab);
        slabs_.clear();
        slab_left_ = 0;
        cached_ = 0;
    }

    std::mutex& mutex() { return mutex_; }

  private:
    Header* acquire_small(std::size_t size) {
        const int wanted = class_of(size);
        ++small_in_use_;
        // A block up to twice the size will do, so that changing shapes reuse each other's.
        for (int size_class = wanted; size_class <= std::min(wanted + 4, kClasses - 1);
             ++size_class) {
            Header* header = free_[size_class];
            if (!header) continue;
            free_[size_class] = header->next;
            cached_ -= header->size;
            return header;
        }
        return carve(wanted);
    }

    Header* carve(int size_class) {
        const std::size_t size = size_of_class(size_class);
        if (size > slab_left_) {
            // What is left of the old slab becomes blocks of the largest classes that fit.
            while (slab_left_ >= 2 * kHeader) {
                int fits = class_of(slab_left_);
                if (size_of_class(fits) > slab_left_) --fits;
                Header* rest = take(fits);
                cached_ += rest->size;
                rest->next = free_[fits];
                free_[fits] = rest;
            }
            // All pages at once: far cheaper than one fault each, and a first call is no slower
            // than the next.
            slabs_.reserve(slabs_.size() + 1);
            slab_ = static_cast<char*>(map(kSlab, MAP_POPULATE));
            slabs_.push_back(slab_);
            slab_left_ = kSlab;
        }
        return take(size_class);
    }

    Header* take(int size_class) {
        auto* header = reinterpret_cast<Header*>(slab_);
        header->size = size_of_class(size_class);
        header->size_class = size_class;
        slab_ += header->size;
        slab_left_ -= header->size;
        return header;
    }

    Header* acquire_large(std::size_t size) {
        // The smallest that is large enough, and at most half larger than needed.
        auto best = large_.end();
        for (auto it = large_.begin(); it != large_.end(); ++it) {
            if ((*it)->size < size || (*it)->size - size > size / 2) continue;
            if (best == large_.end() || (*it)->size <= (*best)->size) best = it;
        }
        if (best != large_.end()) {
            Header* header = *best;
            large_.erase(best);
            cached_ -= header->size;
            large_cached_ -= header->size;
            return header;
        }
        const std::size_t page = size >= kHuge ? kHugePage : std::size_t(65536);
        const std::size_t whole = (size + page - 1) / page * page;
        large_.reserve(large_.size() + 1);
        auto* header = static_cast<Header*>(size >= kHuge ? map_huge(whole) : map(whole, 0));
        header->size = whole;
        header->size_class = -1;
        return header;
    }

    // Gives the longest unused large blocks back until at most `most` bytes of them are kept.
    void trim(std::size_t most) {
        auto end = large_.begin();
        while (large_cached_ > most && end != large_.end()) {
            const std::size_t size = (*end)->size;
            munmap(*end, size);
            large_cached_ -= size;
            cached_ -= size;
            ++end;
        }
        large_.erase(large_.begin(), end);
    }

    static std::size_t choose_limit() {
        const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
        if (pages <= 0 || page <= 0) return kMostCached;
        return std::min(kMostCached, std::size_t(pages) * std::size_t(page) / 8);
    }

    std::mutex mutex_;
    Header* free_[kClasses] = {};
    std::vector<Header*> large_;
    std::vector<void*> slabs_;
    char* slab_ = nullptr;
    std::size_t slab_left_ = 0;
    std::size_t in_use_ = 0, cached_ = 0, large_cached_ = 0;
    std::size_t small_in_use_ = 0;
    std::size_t limit_ = choose_limit();
};

// Leaked on purpose: arrays may be released after static destruction.
Allocator& allocator() {
    static Allocator* instance = [] {
        auto* created = new Allocator;
        // A child of fork finds the lists whole and the lock free.
        pthread_atfork([] { allocator().mutex().lock(); }, [] { allocator().mutex().unlock(); },
                       [] { allocator().mutex().unlock(); });
        return created;
    }();
    return *instance;
}

}  // namespace

#if defined(__SANITIZE_ADDRESS__)

// Under AddressSanitizer every block is its own, so that overruns and late uses are found.
void* memory_acquire(std::size_t bytes) {
    void* block = nullptr;
    if (posix_memalign(&block, 64, bytes ? bytes : 1) != 0) throw std::bad_alloc();
    return block;
}

void memory_release(void* block) noexcept {
    std::free(block);
}

#else

void* memory_acquire(std::size_t bytes) {
    return allocator().acquire(bytes);
}

void memory_release(void* block) noexcept {
    if (block) allocator().release(block);
}

#endif

MemoryStats memory_stats() {
    return allocator().stats();
}

void memory_empty_cache() {
    allocator().empty_cache();
}

}  // namespace fusednn
