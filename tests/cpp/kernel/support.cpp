#include "kernel/support.h"

#include <cmath>
#include <cstdio>
#include <cstring>

#include "core/memory.h"
#include "core/threads.h"

namespace fusednn::test {

namespace {

#if defined(__SANITIZE_ADDRESS__)
constexpr std::size_t kWatched = 0;  // the red zones around a block of the exact size see more
#else
constexpr std::size_t kWatched = 64;
#endif
constexpr unsigned char kPoison = 0xff;  // four or eight of them are a NaN

// An output array, all NaN, between two watched stretches.
template <class T>
class Output {
  public:
    explicit Output(std::size_t size)
        : size_(size), bytes_(size * sizeof(T) + 2 * kWatched, kPoison) {
        bytes_.reserve(1);  // not null, even of nothing
    }
    T* data() { return reinterpret_cast<T*>(bytes_.data() + kWatched); }
    std::size_t size() const { return size_; }
    bool intact() const {
        for (std::size_t i = 0; i < kWatched; ++i) {
            if (bytes_[i] != kPoison || bytes_[bytes_.size() - 1 - i] != kPoison) return false;
        }
        return true;
    }
    bool same_bits(Output& other) {
        return size_ == 0 || std::memcmp(data(), other.data(), size_ * sizeof(T)) == 0;
    }

  private:
    std::size_t size_;
    std::vector<unsigned char> bytes_;
};

// Whatever a kernel takes as scratch memory next starts as NaN. AddressSanitizer's allocator fills
// by itself (ASAN_OPTIONS=malloc_fill_byte=255).
void poison_workspaces() {
#if !defined(__SANITIZE_ADDRESS__)
    std::vector<void*> blocks;
    for (std::size_t bytes = 256; bytes <= (1u << 20); bytes *= 4) {
        for (int copy = 0; copy < 2; ++copy) {
            blocks.push_back(memory_acquire(bytes));
            std::memset(blocks.back(), kPoison, bytes);
        }
    }
    for (void* block : blocks) memory_release(block);
#endif
}

bool close(double found, double expected, double slack) {
    if (std::isnan(expected)) return std::isnan(found);
    if (std::isinf(expected)) return found == expected;
    return std::fabs(found - expected) <= slack;
}

void report(bool good, const std::string& what, const std::string& how) {
    Totals& t = totals();
    ++(good ? t.passed : t.failed);
    if (!good) std::printf("FAILED %s: %s\n", what.c_str(), how.c_str());
}

template <class T>
void compare(const std::string& what, std::vector<Output<T>>& outputs,
             const std::vector<Expected>& expected) {
    for (std::size_t k = 0; k < outputs.size(); ++k) {
        const Expected& e = expected[k];
        std::string how;
        for (std::size_t i = 0; i < e.value.size() && how.empty(); ++i) {
            const double found = double(outputs[k].data()[i]);
            if (close(found, e.value[i], e.slack[i])) continue;
            char text[160];
            std::snprintf(text, sizeof text, "output %zu[%zu] is %.9g, expected %.9g within %.2g",
                          k, i, found, e.value[i], e.slack[i]);
            how = text;
        }
        report(how.empty(), what, how);
    }
}

}  // namespace

Totals& totals() {
    static Totals instance;
    return instance;
}

template <class T>
void check(const std::string& what, const std::vector<Expected>& expected,
           const std::function<void(const KernelTable<T>&, T* const* outputs)>& run) {
    for (const std::string& isa : usable_isas()) {
        set_isa(isa);
        const std::string where = what + " " + type_name<T>() + " " + isa;
        std::vector<Output<T>> first;
        for (int threads = 1; threads <= 3; ++threads) {
            set_num_threads(threads);
            std::vector<Output<T>> outputs;
            for (const Expected& e : expected) outputs.emplace_back(e.value.size());
            std::vector<T*> pointers;
            for (Output<T>& output : outputs) pointers.push_back(output.data());
            poison_workspaces();
            run(kernels<T>(), pointers.data());
            for (Output<T>& output : outputs) {
                if (!output.intact()) report(false, where, "wrote beyond an output's end");
            }
            if (threads == 1) {
                compare(where, outputs, expected);
                first = std::move(outputs);
                continue;
            }
            for (std::size_t k = 0; k < outputs.size(); ++k) {
                report(first[k].same_bits(outputs[k]), where,
                       std::to_string(threads) + " threads give other bits");
            }
        }
    }
}

template void check<float>(const std::string&, const std::vector<Expected>&,
                           const std::function<void(const KernelTable<float>&, float* const*)>&);
template void check<double>(const std::string&, const std::vector<Expected>&,
                            const std::function<void(const KernelTable<double>&, double* const*)>&);

}  // namespace fusednn::test
