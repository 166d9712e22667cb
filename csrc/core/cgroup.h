// What the control groups of this process grant it, in either version of the Linux interface.
#pragma once
#include <string>

#include "core/types.h"

namespace fusednn {

// The least of the limits set on the groups of this process and on all groups above them; 0 where
// none is set. `root` stands in front of the paths read (/proc/self/cgroup, /sys/fs/cgroup/...).
struct CgroupLimits {
    double cpus;  // CPU time per time: 1.5 means one CPU and a half
    i64 memory;   // bytes
};
CgroupLimits cgroup_limits(const std::string& root = "");

}  // namespace fusednn
