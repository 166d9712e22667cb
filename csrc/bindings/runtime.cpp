// Threads, ISA, memory and what was built: everything that is not an op.
#include "bindings/init.h"
#include "core/dispatch.h"
#include "core/memory.h"
#include "core/threads.h"
#include "cuda/device.h"

#include <pybind11/stl.h>

namespace py = pybind11;

// The two functions that threadpoolctl finds by name.
extern "C" {
__attribute__((visibility("default"))) int fusednn_get_num_threads() {
    return fusednn::get_num_threads();
}
__attribute__((visibility("default"))) void fusednn_set_num_threads(int n) {
    if (n >= 1 && n <= 4096) fusednn::set_num_threads(n);
}
}

namespace fusednn::bindings {

namespace {

std::map<std::string, std::string> build_info() {
    return {
        {"compiler", __VERSION__},
        {"isas",
         [] {
             std::string names;
             for (const auto& name : compiled_isas()) names += (names.empty() ? "" : ", ") + name;
             return names;
         }()},
        {"cuda", cuda::compiled() ? "yes" : "no"},
    };
}

}  // namespace

void init_runtime(py::module_& m) {
    m.attr("__version__") = FUSEDNN_VERSION;
    m.def("set_num_threads", &set_num_threads);
    m.def("get_num_threads", &get_num_threads);
    m.def("available_cpus", &available_cpus);
    m.def("cpu_isa", &current_isa);
    m.def("usable_isas", &usable_isas);
    m.def("compiled_isas", &compiled_isas);
    m.def("set_isa", &set_isa);
    m.def("memory_stats", [] {
        const MemoryStats stats = memory_stats();
        return std::map<std::string, i64>{
            {"in_use", stats.in_use}, {"cached", stats.cached}, {"limit", stats.limit}};
    });
    m.def("empty_cache", &memory_empty_cache);
    m.def("build_info", &build_info);
    m.def("has_cuda", [] { return cuda::device_count() > 0; });
    m.def("cuda_status", &cuda::status);
}

}  // namespace fusednn::bindings
