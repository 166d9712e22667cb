// How many CPUs this process may use: its affinity mask, cut by the cgroup quota.
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>

#include "core/cgroup.h"
#include "core/threads.h"

namespace fusednn {

namespace {

int affinity_cpus() {
    // Room for 8192 CPUs; a kernel with more refuses, and is taken at its smallest promise.
    constexpr int kBytes = 1024;
    unsigned long mask[kBytes / sizeof(unsigned long)] = {};
    auto* set = reinterpret_cast<cpu_set_t*>(mask);
    if (sched_getaffinity(0, sizeof mask, set) != 0) return 1;
    return std::max(1, CPU_COUNT_S(sizeof mask, set));
}

// CPUs the quota grants, rounded up; 0 without one. Its files are read at most once a second:
// quotas change rarely, ops run often.
int quota_cpus() {
    static std::atomic<i64> read_at{-1};
    static std::atomic<int> quota{0};
    const i64 now = std::chrono::duration_cast<std::chrono::seconds>(
                        std::chrono::steady_clock::now().time_since_epoch())
                        .count();
    if (read_at.load(std::memory_order_relaxed) != now && read_at.exchange(now) != now) {
        // A ten-thousandth less, so that rounding errors do not make a whole CPU.
        quota = int(std::ceil(std::min(cgroup_limits().cpus, 1e6) - 1e-4));
    }
    return quota.load(std::memory_order_relaxed);
}

}  // namespace

int available_cpus() {
    const int affinity = affinity_cpus(), quota = quota_cpus();
    return quota > 0 ? std::min(affinity, quota) : affinity;
}

}  // namespace fusednn
