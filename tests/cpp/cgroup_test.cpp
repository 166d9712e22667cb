// Control group limits, read from copies of the files that both versions of the interface show.
#include "core/cgroup.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "check.h"

namespace {

namespace fs = std::filesystem;

// A folder that stands for "/".
class Root {
  public:
    Root() {
        std::string name = (fs::temp_directory_path() / "fusednn-cgroup-XXXXXX").string();
        if (mkdtemp(name.data())) path_ = name;
    }
    ~Root() { fs::remove_all(path_); }
    Root& file(const std::string& name, const std::string& text) {
        const fs::path path = path_ / name;
        fs::create_directories(path.parent_path());
        std::ofstream(path) << text << '\n';
        return *this;
    }
    fusednn::CgroupLimits limits() const { return fusednn::cgroup_limits(path_.string()); }
    double cpus() const { return limits().cpus; }
    fusednn::i64 memory() const { return limits().memory; }

  private:
    fs::path path_;
};

const std::string kCgroup = "proc/self/cgroup", kMount = "sys/fs/cgroup";

void nothing_there() {
    CHECK(Root().cpus() == 0 && Root().memory() == 0);
    CHECK(Root().file(kCgroup, "0::/").cpus() == 0);
    CHECK(Root().file(kCgroup, "no colon\n:\nx:").cpus() == 0);
}

void version_2() {
    CHECK(Root().file(kCgroup, "0::/a").file(kMount + "/a/cpu.max", "max 100000").cpus() == 0);
    CHECK(Root().file(kCgroup, "0::/a").file(kMount + "/a/cpu.max", "150000 100000").cpus() == 1.5);
    CHECK(Root().file(kCgroup, "0::/a").file(kMount + "/a/cpu.max", "nonsense").cpus() == 0);
    // A parent's limit binds, however deep the group; so does the mount's own, as in a container
    // whose group has a path that is not visible inside.
    Root nested;
    nested.file(kCgroup, "0::/a/b/c")
        .file(kMount + "/a/b/c/cpu.max", "400000 100000")
        .file(kMount + "/a/b/cpu.max", "max 100000")
        .file(kMount + "/a/cpu.max", "200000 100000")
        .file(kMount + "/a/b/memory.max", "max")
        .file(kMount + "/a/memory.max", "1000000");
    CHECK(nested.cpus() == 2);
    CHECK(nested.memory() == 1000000);
    CHECK(nested.file(kMount + "/cpu.max", "50000 100000").cpus() == 0.5);
    CHECK(Root().file(kCgroup, "0::/docker/x").file(kMount + "/cpu.max", "3 1").cpus() == 3);
    CHECK(Root().file(kCgroup, "0::/").file(kMount + "/cpu.max", "3 1").cpus() == 3);
}

void version_1() {
    const std::string groups = "4:memory:/m\n3:cpuset:/\n1:cpu,cpuacct:/a/b\n0::/";
    Root root;
    root.file(kCgroup, groups)
        .file(kMount + "/cpu/a/b/cpu.cfs_quota_us", "-1")
        .file(kMount + "/cpu/a/b/cpu.cfs_period_us", "100000")
        .file(kMount + "/memory/m/memory.limit_in_bytes", "9223372036854771712");
    CHECK(root.cpus() == 0);
    CHECK(root.memory() == 0);
    root.file(kMount + "/cpu/a/cpu.cfs_quota_us", "250000")
        .file(kMount + "/cpu/a/cpu.cfs_period_us", "100000")
        .file(kMount + "/memory/memory.limit_in_bytes", "5000000000");
    CHECK(root.cpus() == 2.5);
    CHECK(root.memory() == 5000000000);
    // The mount may bear the names of all its controllers.
    CHECK(Root()
              .file(kCgroup, groups)
              .file(kMount + "/cpu,cpuacct/cpu.cfs_quota_us", "70000")
              .file(kMount + "/cpu,cpuacct/cpu.cfs_period_us", "20000")
              .cpus() == 3.5);
}

}  // namespace

int main() {
    nothing_there();
    version_2();
    version_1();
    return failures ? 1 : 0;
}
