// The kernels of every ISA build this machine can run, against naive loops; no Python needed.
//
// usage: kernel_test [GROUP...]   (all groups if none is named)
#include <chrono>
#include <cstdio>
#include <cstring>

#include "core/dispatch.h"
#include "kernel/support.h"

using namespace fusednn;
using namespace fusednn::test;

namespace {

struct Group {
    const char* name;
    void (*run)();
};

const Group groups[] = {
    {"gemm", test_gemm},           {"conv", test_conv},       {"unfold", test_unfold},
    {"transpose", test_transpose}, {"pool", test_pool},       {"activation", test_activation},
    {"unary", test_unary},         {"norm", test_norm},       {"average", test_average},
    {"embedding", test_embedding}, {"softmax", test_softmax}, {"cross_entropy", test_cross_entropy},
    {"attention", test_attention}, {"optim", test_optim},     {"recurrent", test_recurrent},
};

void run(const Group& group) {
    const Totals before = totals();
    const auto start = std::chrono::steady_clock::now();
    group.run();
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    std::printf(
        "%-14s %6lld checks, %lld failed, %.1f s\n", group.name,
        static_cast<long long>(totals().passed - before.passed + totals().failed - before.failed),
        static_cast<long long>(totals().failed - before.failed), seconds.count());
    std::fflush(stdout);
}

}  // namespace

int main(int count, char** arguments) {
    std::string isas;
    for (const std::string& isa : usable_isas()) isas += " " + isa;
    std::printf("ISAs:%s\n", isas.c_str());
    for (int i = 1; i < count; ++i) {
        bool known = false;
        for (const Group& group : groups) known = known || !std::strcmp(group.name, arguments[i]);
        if (known) continue;
        std::printf("kernel_test: unknown group '%s'\n", arguments[i]);
        return 2;
    }
    for (const Group& group : groups) {
        bool wanted = count == 1;
        for (int i = 1; i < count; ++i) wanted = wanted || !std::strcmp(group.name, arguments[i]);
        if (wanted) run(group);
    }
    std::printf("%lld passed, %lld failed\n", static_cast<long long>(totals().passed),
                static_cast<long long>(totals().failed));
    return totals().failed ? 1 : 0;
}
