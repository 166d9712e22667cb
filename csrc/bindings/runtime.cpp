// Threads, ISA, memory and what was built: everything that is not an op.
#include <pybind11/stl.h>

#include <algorithm>
#include <map>
#include <string>

#include "bindings/array.h"
#include "bindings/init.h"
#include "bindings/ints.h"
#include "core/dispatch.h"
#include "core/errors.h"
#include "core/memory.h"
#include "core/precision.h"
#include "core/threads.h"
#include "cuda/device.h"

namespace py = pybind11;

// The two functions that threadpoolctl finds by name.
extern "C" {
__attribute__((visibility("default"))) int fusednn_get_num_threads() {
    return fusednn::get_num_threads();
}
// threadpoolctl puts back what it found: where that is the default, the default stays in force
// (it follows the CPUs that are available) instead of becoming a fixed number.
__attribute__((visibility("default"))) void fusednn_set_num_threads(int n) {
    if (n < 1 || n > 4096) return;
    fusednn::set_num_threads(0);
    if (fusednn::get_num_threads() != n) fusednn::set_num_threads(n);
}
}

namespace fusednn::bindings {

namespace {

std::string compiler() {
#if defined(__clang__)
    return "Clang " __clang_version__;
#else
    return "GCC " __VERSION__;
#endif
}

std::string build_type() {
#if defined(NDEBUG)
    std::string type = "optimised";
#elif defined(__OPTIMIZE__)
    std::string type = "optimised, assertions on";
#else
    std::string type = "debug";
#endif
#if defined(__SANITIZE_ADDRESS__)
    type += ", address sanitizer";
#endif
#if defined(__SANITIZE_THREAD__)
    type += ", thread sanitizer";
#endif
    return type;
}

std::map<std::string, std::string> build_info() {
    return {{"compiler", compiler()},
            {"build type", build_type()},
            {"cuda kernels", cuda::compiled() ? "yes" : "no"}};
}

// A result that Python fills, in recycled memory.
py::object empty(py::handle shape_object, bool is_double) {
    const ops::Shape shape = to_shape(shape_object, "empty", "shape");
    if (shape.size() > std::size_t(kMaxDims)) {
        throw Error("empty: shape " + ops::text(shape) + " has more than " +
                    std::to_string(kMaxDims) + " dimensions");
    }
    void* data;
    return new_array(is_double ? DType::f64 : DType::f32, int(shape.size()), shape.data(), &data);
}

std::map<std::string, i64> memory() {
    const MemoryStats stats = memory_stats();
    return {{"in_use", stats.in_use}, {"cached", stats.cached}, {"limit", stats.limit}};
}

// Any int reaches the check, so that one far out of range is refused like one just out of it.
void set_threads(py::handle n) {
    const i64 least = -1, most = 1'000'000;
    set_num_threads(int(std::clamp(to_int(n, "set_num_threads", "n"), least, most)));
}

void set_precision(const std::string& precision) {
    if (precision != "highest" && precision != "high") {
        throw Error("set_float32_precision: precision must be 'highest' or 'high', got '" +
                    precision + "'");
    }
    set_float32_precision(precision == "high" ? Float32Precision::high : Float32Precision::highest);
}

std::string precision() {
    return float32_precision() == Float32Precision::high ? "high" : "highest";
}

}  // namespace

void init_runtime(py::module_& m) {
    m.attr("__version__") = FUSEDNN_VERSION;
    m.def(
        "set_num_threads", &set_threads, py::arg("n"), py::pos_only(),
        "Lets kernels use n threads, also more than there are CPUs; 0 returns to the default.\n\n"
        "The default is FUSEDNN_NUM_THREADS where it is set, else the CPUs this process may use:\n"
        "its affinity mask, cut by the quota of its control group. A forked process starts with\n"
        "1. Results are the same bits for any number. ValueError if n is negative or over 4096.");
    m.def("get_num_threads", &get_num_threads,
          "The number of threads that kernels may use now; see `set_num_threads`.");
    m.def("available_cpus", &available_cpus);
    m.def("cpu_isa", &current_isa,
          "The instruction set whose kernels run: baseline, avx2, avx512 or neon.\n\n"
          "The best that this CPU has, or what the environment variable FUSEDNN_ISA names.");
    m.def("usable_isas", &usable_isas);
    m.def("compiled_isas", &compiled_isas);
    m.def("set_isa", &set_isa);
    m.def("empty", &empty);
    m.def("memory_stats", &memory);
    m.def("empty_cache", &memory_empty_cache, py::call_guard<py::gil_scoped_release>());
    m.def("build_info", &build_info);
    m.def(
        "has_cuda", [] { return cuda::device_count() > 0; },
        "Whether this build has CUDA kernels and a device to run them on.");
    m.def("cuda_status", &cuda::status,
          "One sentence: the CUDA devices that can be used, or why there are none.");
    m.def("set_float32_precision", &set_precision, py::arg("precision"), py::pos_only(),
          "How a GPU computes products of float32 arrays (matrix products, convolutions).\n\n"
          "'highest', the default: products of float32 values, added in float32. 'high': on the\n"
          "tensor cores, whose factors have 10 bits of mantissa (TF32); about 3 decimal digits of\n"
          "each product, several times as fast. One setting for the process; float64, and float32\n"
          "on the CPU, are computed the same either way. ValueError for another value.\n\n"
          ">>> import fusednn as fn\n"
          ">>> fn.set_float32_precision('highest')");
    m.def("get_float32_precision", &precision,
          "'highest' or 'high'; see `set_float32_precision`.\n\n"
          ">>> import fusednn as fn\n"
          ">>> fn.get_float32_precision()\n"
          "'highest'");
    // The first pages now, so that the first op is as fast as the next.
    memory_release(memory_acquire(1));
}

}  // namespace fusednn::bindings
