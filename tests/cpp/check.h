// The few lines a test program needs.
#pragma once
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

// qemu-user aborts where a forked child of many threads starts threads of its own, and cannot start
// this program again.
#if defined(FUSEDNN_EMULATED)
constexpr bool kEmulated = true;
#else
constexpr bool kEmulated = false;
#endif

inline int failures = 0;

#define CHECK(condition)                                                        \
    do {                                                                        \
        if (!(condition)) {                                                     \
            std::printf("%s:%d: failed: %s\n", __FILE__, __LINE__, #condition); \
            ++failures;                                                         \
        }                                                                       \
    } while (0)

#define CHECK_THROWS(expression, Exception, part)                                       \
    do {                                                                                \
        try {                                                                           \
            expression;                                                                 \
            std::printf("%s:%d: did not throw: %s\n", __FILE__, __LINE__, #expression); \
            ++failures;                                                                 \
        } catch (const Exception& error) {                                              \
            if (std::string(error.what()).find(part) == std::string::npos) {            \
                std::printf("%s:%d: '%s' is not in '%s'\n", __FILE__, __LINE__, part,   \
                            error.what());                                              \
                ++failures;                                                             \
            }                                                                           \
        }                                                                               \
    } while (0)

// Runs `body` in a forked child; true if it returns within 20 seconds without a failed check.
template <class Body>
bool passes_in_child(const Body& body) {
    std::fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        failures = 0;
        alarm(20);  // a child that hangs is killed
        body();
        std::fflush(stdout);
        _exit(failures ? 1 : 0);
    }
    int status = 0;
    return waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}
