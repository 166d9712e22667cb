#include "core/cgroup.h"

#include <cstdlib>
#include <fstream>
#include <sstream>

namespace fusednn {

namespace {

// The number a file starts with; 0 if there is none, as in "max" and "-1" (both mean no limit).
double number_in(const std::string& path) {
    std::ifstream file(path);
    double value = 0;
    return file >> value && value > 0 ? value : 0;
}

double cpus_v2(const std::string& folder) {
    std::ifstream file(folder + "/cpu.max");  // "150000 100000" or "max 100000"
    double quota = 0, period = 0;
    return file >> quota >> period && quota > 0 && period > 0 ? quota / period : 0;
}

double cpus_v1(const std::string& folder) {
    const double period = number_in(folder + "/cpu.cfs_period_us");
    return period > 0 ? number_in(folder + "/cpu.cfs_quota_us") / period : 0;
}

double memory_v2(const std::string& folder) {
    return number_in(folder + "/memory.max");
}

double memory_v1(const std::string& folder) {
    return number_in(folder + "/memory.limit_in_bytes");
}

void lower(double& least, double limit) {
    if (limit > 0 && (least == 0 || limit < least)) least = limit;
}

// The least limit from `group` up to the mount: a parent's limit binds its children. Inside a
// container the group's own path is often not visible, and its limits stand at the mount itself.
double tightest(const std::string& mount, std::string group, double (*read)(const std::string&)) {
    double least = 0;
    for (;;) {
        if (group == "/") group.clear();
        lower(least, read(mount + group));
        const auto slash = group.find_last_of('/');
        if (slash == std::string::npos) return least;
        group.resize(slash);
    }
}

}  // namespace

CgroupLimits cgroup_limits(const std::string& root) {
    const std::string mount = root + "/sys/fs/cgroup";
    std::ifstream groups(root + "/proc/self/cgroup");
    std::string line;
    double cpus = 0, memory = 0;
    while (std::getline(groups, line)) {
        // "0::/group" for version 2, "4:cpu,cpuacct:/group" for version 1.
        const auto first = line.find(':'), second = line.find(':', first + 1);
        if (first == std::string::npos || second == std::string::npos) continue;
        const std::string names = line.substr(first + 1, second - first - 1);
        const std::string group = line.substr(second + 1);
        if (names.empty()) {
            lower(cpus, tightest(mount, group, cpus_v2));
            lower(memory, tightest(mount, group, memory_v2));
            continue;
        }
        std::istringstream list(names);
        for (std::string name; std::getline(list, name, ',');) {
            if (name == "cpu") {
                lower(cpus, tightest(mount + "/cpu", group, cpus_v1));
                lower(cpus, tightest(mount + "/" + names, group, cpus_v1));
            } else if (name == "memory") {
                lower(memory, tightest(mount + "/memory", group, memory_v1));
            }
        }
    }
    // Version 1 writes "no limit" as a number close to 2^63.
    return {cpus, memory < 9e18 ? i64(memory) : 0};
}

}  // namespace fusednn
