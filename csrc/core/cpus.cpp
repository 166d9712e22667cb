// How many CPUs this process may use: its affinity mask, cut by the cgroup quota.
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <fstream>
#include <sstream>
#include <string>

#include "core/threads.h"

namespace fusednn {

namespace {

int affinity_cpus() {
    // 8192 CPUs; a kernel with more answers EINVAL and is taken at its smallest promise.
    constexpr int kBytes = 1024;
    unsigned long mask[kBytes / sizeof(unsigned long)] = {};
    auto* set = reinterpret_cast<cpu_set_t*>(mask);
    if (sched_getaffinity(0, sizeof mask, set) != 0) return 1;
    return std::max(1, CPU_COUNT_S(sizeof mask, set));
}

// CPUs that "quota period" in microseconds grants, rounded up; 0 for no limit.
int granted(double quota, double period) {
    if (quota <= 0 || period <= 0) return 0;
    return std::max(1, int(std::ceil(quota / period)));
}

int read_v2(const std::string& folder) {
    std::ifstream file(folder + "/cpu.max");
    std::string quota;
    double period = 0;
    if (!(file >> quota >> period) || quota == "max") return 0;
    return granted(std::atof(quota.c_str()), period);
}

int read_v1(const std::string& folder) {
    std::ifstream quota_file(folder + "/cpu.cfs_quota_us"),
        period_file(folder + "/cpu.cfs_period_us");
    double quota = 0, period = 0;
    if (!(quota_file >> quota) || !(period_file >> period)) return 0;
    return granted(quota, period);
}

// The least of the limits from a group up to the root: a parent's quota binds its children.
template <class Read>
int tightest(const std::string& root, std::string group, const Read& read) {
    int least = 0;
    for (;;) {
        const int limit = read(root + group);
        if (limit && (!least || limit < least)) least = limit;
        if (group.empty() || group == "/") return least;
        group.resize(group.find_last_of('/'));
    }
}

int read_quota() {
    std::ifstream groups("/proc/self/cgroup");
    std::string line;
    int least = 0;
    while (std::getline(groups, line)) {
        // "0::/group" (v2) or "4:cpu,cpuacct:/group" (v1)
        const auto first = line.find(':');
        const auto second = line.find(':', first + 1);
        if (first == std::string::npos || second == std::string::npos) continue;
        const std::string controllers = line.substr(first + 1, second - first - 1);
        const std::string group = line.substr(second + 1);
        int limit = 0;
        if (controllers.empty()) {
            limit = tightest("/sys/fs/cgroup", group, read_v2);
        } else {
            std::istringstream names(controllers);
            std::string name;
            while (std::getline(names, name, ',')) {
                if (name == "cpu") limit = tightest("/sys/fs/cgroup/cpu", group, read_v1);
            }
        }
        if (limit && (!least || limit < least)) least = limit;
    }
    return least;
}

// Files are read at most once a second: quotas change rarely, ops run often.
int quota_cpus() {
    static std::atomic<std::int64_t> read_at{-1};
    static std::atomic<int> quota{0};
    const auto now = std::chrono::duration_cast<std::chrono::seconds>(
                         std::chrono::steady_clock::now().time_since_epoch())
                         .count();
    if (read_at.exchange(now) != now) quota = read_quota();
    return quota;
}

}  // namespace

int available_cpus() {
    const int affinity = affinity_cpus(), quota = quota_cpus();
    return quota ? std::min(affinity, quota) : affinity;
}

}  // namespace fusednn
