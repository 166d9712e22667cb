// The thread pool: every task once, slots of one's own, nothing waits for a sleeper, forks.
#include "core/threads.h"

#include <sched.h>
#include <sys/resource.h>

#include <atomic>
#include <cstdlib>
#include <ctime>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "core/errors.h"

using namespace fusednn;

namespace {

template <class Body>
void parallel(i64 tasks, int slots, const Body& body) {
    parallel_for(
        tasks, slots,
        [](void* context, i64 task, int slot) { (*static_cast<const Body*>(context))(task, slot); },
        const_cast<Body*>(&body));
}

double cpu_seconds() {
    timespec time;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return double(time.tv_sec) + 1e-9 * double(time.tv_nsec);
}

// A job whose every task must run once, in a slot nobody else is in. Counts are plain ints: they
// reach the caller by the pool's ordering or not at all (ThreadSanitizer looks).
void check_job(i64 tasks, int slots) {
    std::vector<int> runs(std::size_t(tasks), 0);
    std::vector<std::atomic<int>> busy(std::size_t(slots > 0 ? slots : 1));
    std::atomic<int> errors{0};
    parallel(tasks, slots, [&](i64 task, int slot) {
        if (slot < 0 || slot >= slots || busy[std::size_t(slot)].exchange(1)) ++errors;
        ++runs[std::size_t(task)];
        busy[std::size_t(slot)].store(0);
    });
    CHECK(errors == 0);
    for (int count : runs) {
        if (count != 1) ++errors;
    }
    CHECK(errors == 0);
}

void every_task_runs_once() {
    for (int round = 0; round < 20; ++round) {
        for (i64 tasks : {0, 1, 2, 3, 7, 64, 1000}) {
            for (int slots : {1, 2, 3, 4, 9}) check_job(tasks, slots);
        }
    }
}

// Jobs far shorter than a wake-up: workers come late all the time, and must not touch a job that
// is over (its context is on this stack frame).
void late_workers_stay_out() {
    i64 total = 0;
    for (int round = 0; round < 20000; ++round) {
        std::atomic<i64> sum{0};
        parallel(3, 4, [&](i64 task, int) { sum += task + round; });
        total += sum.load() - 3 - 3 * i64(round);
        if (round % 1000 == 0) usleep(200);  // long enough for workers to park
    }
    CHECK(total == 0);
}

// Tasks that overlap for sure: slots are apart, and a caller that has run out of tasks sleeps until
// the workers inside are done.
void caller_waits_for_begun_tasks() {
    std::atomic<int> begun_by_workers{0}, errors{0};
    for (int round = 0; round < 30; ++round) {
        std::atomic<int> done{0};
        std::atomic<int> busy[4] = {};
        parallel(6, 4, [&](i64, int slot) {
            if (busy[slot].exchange(1)) ++errors;
            usleep(slot == 0 ? 300 : 2000);
            if (slot != 0) ++begun_by_workers;
            busy[slot] = 0;
            ++done;
        });
        CHECK(done == 6);
    }
    CHECK(errors == 0);
    CHECK(begun_by_workers > 0);
}

void nested_jobs_run_inline() {
    std::atomic<int> errors{0};
    parallel(8, 3, [&](i64, int) {
        const auto self = std::this_thread::get_id();
        if (parallel_slots(100, kMinParallelCost * 10) != 1) ++errors;
        i64 next = 0;
        parallel(5, 3, [&](i64 task, int slot) {
            if (slot != 0 || task != next++ || std::this_thread::get_id() != self) ++errors;
        });
        if (next != 5) ++errors;
    });
    CHECK(errors == 0);
    // The caller is outside again.
    set_num_threads(3);
    CHECK(parallel_slots(100, kMinParallelCost) == 3);
    set_num_threads(0);
}

void many_callers() {
    std::vector<std::thread> callers;
    for (int caller = 0; caller < 4; ++caller) {
        callers.emplace_back([] {
            for (int round = 0; round < 300; ++round) check_job(round % 70, 1 + round % 4);
        });
    }
    for (auto& caller : callers) caller.join();
}

void idle_pool_burns_nothing() {
    parallel(8, 4, [](i64, int) {});
    usleep(20000);
    const double before = cpu_seconds();
    usleep(200000);
    const double idle = cpu_seconds() - before;
    CHECK(idle < 0.02);
    if (idle >= 0.02) std::printf("%.4f s of CPU time in 0.2 s of idling\n", idle);
}

void thread_counts() {
    setenv("FUSEDNN_NUM_THREADS", "5", 1);
    init_threads();
    CHECK(get_num_threads() == 5);
    for (const char* bad : {"0", "-1", "two", "4097", "3x", "1.5", "99999999999999999999"}) {
        setenv("FUSEDNN_NUM_THREADS", bad, 1);
        CHECK_THROWS(init_threads(), Error, bad);
    }
    CHECK(get_num_threads() == 5);
    set_num_threads(3);
    CHECK(get_num_threads() == 3);
    CHECK(parallel_slots(100, kMinParallelCost) == 3);
    CHECK(parallel_slots(2, kMinParallelCost) == 2);
    CHECK(parallel_slots(1, kMinParallelCost) == 1);
    CHECK(parallel_slots(0, kMinParallelCost) == 1);
    CHECK(parallel_slots(100, kMinParallelCost - 1) == 1);
    CHECK_THROWS(set_num_threads(-1), Error, "got -1");
    CHECK_THROWS(set_num_threads(4097), Error, "got 4097");
    CHECK(get_num_threads() == 3);
    set_num_threads(0);
    CHECK(get_num_threads() == 5);
}

void default_follows_affinity() {
    CHECK(passes_in_child([] {
        set_num_threads(0);
        cpu_set_t all, one;
        sched_getaffinity(0, sizeof all, &all);
        CHECK(available_cpus() >= 1 && available_cpus() <= CPU_COUNT(&all));
        int first = 0;
        while (!CPU_ISSET(first, &all)) ++first;
        CPU_ZERO(&one);
        CPU_SET(first, &one);
        sched_setaffinity(0, sizeof one, &one);
        CHECK(available_cpus() == 1);
    }));
}

void children_start_over() {
    set_num_threads(3);
    const auto child = [] {
        CHECK(get_num_threads() == 1);
        CHECK(parallel_slots(100, kMinParallelCost) == 1);
        check_job(100, 1);
        set_num_threads(3);
        CHECK(parallel_slots(100, kMinParallelCost) == 3);
        for (int round = 0; round < 20; ++round) check_job(100, 3);
    };
    check_job(100, 3);
    CHECK(passes_in_child(child));
    // While another thread is in the middle of a job.
    std::atomic<bool> stop{false}, running{false};
    std::thread other([&] {
        while (!stop) {
            parallel(50, 3, [&](i64, int) {
                running = true;
                usleep(100);
            });
        }
    });
    while (!running) usleep(100);
    for (int round = 0; round < 10; ++round) CHECK(passes_in_child(child));
    stop = true;
    other.join();
    check_job(100, 3);
    CHECK(get_num_threads() == 3);
    set_num_threads(0);
}

// Where the system gives no thread, the caller does all the work.
void no_threads_to_be_had() {
    if (kSanitized) return;  // they need address space of their own
    CHECK(passes_in_child([] {
        const rlimit little{1, 1};
        setrlimit(RLIMIT_AS, &little);
        check_job(100, 4);
    }));
}

// A process may end while its workers sleep, spin or work: run in new processes of this program.
void exit_beside_workers() {
    for (const char* how : {"sleeping", "spinning", "working"}) {
        CHECK(passes_in_child([&] {
            execl("/proc/self/exe", "threads_test", how, nullptr);
            CHECK(false);
        }));
    }
}

int exit_as_asked(const std::string& how) {
    alarm(20);
    check_job(100, 3);
    if (how == "sleeping") usleep(1000);
    if (how == "working") {
        static std::atomic<bool> running{false};
        std::thread([] {
            for (;;) parallel(50, 3, [](i64, int) { running = true; });
        }).detach();
        while (!running) usleep(10);
    }
    return failures;
}

}  // namespace

int main(int count, char** arguments) {
    if (count == 2) return exit_as_asked(arguments[1]);
    unsetenv("FUSEDNN_NUM_THREADS");
    init_threads();
    no_threads_to_be_had();
    every_task_runs_once();
    late_workers_stay_out();
    caller_waits_for_begun_tasks();
    nested_jobs_run_inline();
    many_callers();
    idle_pool_burns_nothing();
    if (!kEmulated) {
        children_start_over();
        exit_beside_workers();
    }
    default_follows_affinity();
    thread_counts();
    return failures ? 1 : 0;
}
