#include "core/dispatch.h"

#include <atomic>
#include <cstdlib>

#include "core/errors.h"

namespace fusednn {

#define FUSEDNN_DECLARE_ISA(isa)                \
    namespace isa {                             \
    extern const KernelTable<float> table_f32;  \
    extern const KernelTable<double> table_f64; \
    }

#if FUSEDNN_HAVE_BASELINE
FUSEDNN_DECLARE_ISA(baseline)
#endif
#if FUSEDNN_HAVE_AVX2
FUSEDNN_DECLARE_ISA(avx2)
#endif
#if FUSEDNN_HAVE_AVX512
FUSEDNN_DECLARE_ISA(avx512)
#endif
#if FUSEDNN_HAVE_NEON
FUSEDNN_DECLARE_ISA(neon)
#endif

namespace {

struct IsaBuild {
    const char* name;
    const KernelTable<float>* f32;
    const KernelTable<double>* f64;
    bool (*usable)();
};

// The builtin asks CPUID for the feature and XGETBV whether the system saves its registers.
[[maybe_unused]] bool always() {
    return true;
}
#if defined(__x86_64__)
bool has_avx2() {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}
bool has_avx512() {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
}
#endif

const IsaBuild builds[] = {
#if FUSEDNN_HAVE_BASELINE
    {"baseline", &baseline::table_f32, &baseline::table_f64, always},
#endif
#if FUSEDNN_HAVE_NEON
    {"neon", &neon::table_f32, &neon::table_f64, always},
#endif
#if FUSEDNN_HAVE_AVX2
    {"avx2", &avx2::table_f32, &avx2::table_f64, has_avx2},
#endif
#if FUSEDNN_HAVE_AVX512
    {"avx512", &avx512::table_f32, &avx512::table_f64, has_avx512},
#endif
};

std::atomic<const IsaBuild*> active{&builds[0]};

std::string joined(const std::vector<std::string>& names) {
    std::string text;
    for (const auto& name : names) text += (text.empty() ? "" : ", ") + name;
    return text;
}

const IsaBuild& find_build(const std::string& name, const std::string& origin) {
    for (const auto& build : builds) {
        if (name != build.name) continue;
        if (build.usable()) return build;
        throw Error(origin + ": this CPU cannot run ISA '" + name +
                    "'; it can run: " + joined(usable_isas()));
    }
    throw Error(origin + ": unknown ISA '" + name +
                "', expected one of: " + joined(compiled_isas()));
}

}  // namespace

template <>
const KernelTable<float>& kernels<float>() {
    return *active.load(std::memory_order_acquire)->f32;
}

template <>
const KernelTable<double>& kernels<double>() {
    return *active.load(std::memory_order_acquire)->f64;
}

std::string current_isa() {
    return kernels<float>().isa;
}

std::vector<std::string> usable_isas() {
    std::vector<std::string> names;
    for (const auto& build : builds) {
        if (build.usable()) names.push_back(build.name);
    }
    return names;
}

std::vector<std::string> compiled_isas() {
    std::vector<std::string> names;
    for (const auto& build : builds) names.push_back(build.name);
    return names;
}

void init_isa() {
    const char* forced = std::getenv("FUSEDNN_ISA");
    if (forced && *forced) {
        active = &find_build(forced, "FUSEDNN_ISA");
        return;
    }
    for (const auto& build : builds) {
        if (build.usable()) active = &build;
    }
}

void set_isa(const std::string& name) {
    active = &find_build(name, "isa");
}

}  // namespace fusednn
