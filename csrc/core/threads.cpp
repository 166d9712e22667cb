#include "core/threads.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <climits>
#include <cstdlib>
#include <string>

#include "core/errors.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace fusednn {

namespace {

constexpr int kMostThreads = 4096;

// How long a thread looks for work, or for the end of a job, before it sleeps. Less than waking it
// again would cost twice over; and a program that calls one small op a millisecond must stay under
// 5 % of a CPU.
constexpr auto kSpin = std::chrono::microseconds(20);

void pause_cpu() {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

template <class Done>
bool spin_until(const Done& done) {
    const auto deadline = std::chrono::steady_clock::now() + kSpin;
    do {
        for (int i = 0; i < 32; ++i) {
            if (done()) return true;
            pause_cpu();
        }
    } while (std::chrono::steady_clock::now() < deadline);
    return done();
}

void futex_wait(const std::uint32_t* word, std::uint32_t while_equal) {
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, while_equal, nullptr, nullptr, 0);
}

void futex_wake(const std::uint32_t* word, int threads) {
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, threads, nullptr, nullptr, 0);
}

// True in a thread that is inside a task or runs a job: what it calls runs inline.
thread_local bool inside_job = false;

// Workers are never joined and the pool is never destroyed: a process may exit while they sleep, or
// even while they work.
class Pool {
  public:
    // One job at a time; who finds the pool taken works alone.
    bool try_take() { return !taken_.exchange(true, std::memory_order_acquire); }
    void give_back() { taken_.store(false, std::memory_order_release); }

    // Runs a job on the caller and on as many workers, up to slots - 1, as turn up.
    void run(i64 tasks, int slots, TaskFn fn, void* context) {
        start_workers(slots - 1);
        tasks_ = tasks;
        fn_ = fn;
        context_ = context;
        caller_cpu_.store(sched_getcpu(), std::memory_order_relaxed);
        next_.store(0, std::memory_order_relaxed);
        const std::uint64_t job = (state_.load(std::memory_order_relaxed) & kJobMask) + kJob;
        state_.store(job + kPlace * std::uint64_t(slots - 1));
        wake_workers(slots - 1);

        inside_job = true;
        work(0);
        inside_job = false;

        state_.fetch_and(~kPlacesMask);  // from here nobody can join
        wait_for_joined();
    }

  private:
    // One word, so that joining a job and closing it exclude each other:
    // number of the job (32 bits) | places left for workers (16) | workers inside (16).
    static constexpr std::uint64_t kInsideMask = 0xffff;
    static constexpr std::uint64_t kPlace = 0x10000;
    static constexpr std::uint64_t kPlacesMask = 0xffff0000;
    static constexpr std::uint64_t kJob = std::uint64_t(1) << 32;
    static constexpr std::uint64_t kJobMask = ~(kJob - 1);
    static_assert(kMostThreads < 0xffff && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__);

    // Workers sleep until the number changes, the caller until the rest does.
    const std::uint32_t* half(int index) const {
        return reinterpret_cast<const std::uint32_t*>(&state_) + index;
    }

    void start_workers(int wanted) {
        if (workers_ >= wanted) return;
        // Signals are the main thread's business (Python's handlers run there), except those that
        // a thread raises by itself: a crash must still be reported.
        sigset_t blocked, old;
        sigfillset(&blocked);
        for (int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP}) {
            sigdelset(&blocked, fault);
        }
        pthread_attr_t detached;
        pthread_attr_init(&detached);
        pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
        pthread_sigmask(SIG_SETMASK, &blocked, &old);
        pthread_t thread;
        // Where no thread is to be had, the job runs on those there are.
        while (workers_ < wanted && pthread_create(&thread, &detached, worker_main, this) == 0) {
            pthread_setname_np(thread, "fusednn");
            ++workers_;
        }
        pthread_sigmask(SIG_SETMASK, &old, nullptr);
        pthread_attr_destroy(&detached);
    }

    // At most two: each worker that joins wakes the next two, so that filling many places takes
    // the caller no longer than filling one.
    void wake_workers(int places) {
        if (places > 0 && parked_.load() > 0) futex_wake(half(1), places < 2 ? places : 2);
    }

    void work(int slot) {
        for (;;) {
            const i64 task = next_.fetch_add(1, std::memory_order_relaxed);
            if (task >= tasks_) return;
            fn_(context_, task, slot);
        }
    }

    void wait_for_joined() {
        const auto finished = [this] { return (state_.load() & kInsideMask) == 0; };
        if (spin_until(finished)) return;
        // A worker lost its CPU in the middle of a task: sleeping gives it this one.
        caller_sleeps_.store(true);
        for (;;) {
            const auto inside = std::uint32_t(state_.load());
            if (inside == 0) break;
            futex_wait(half(0), inside);
        }
        caller_sleeps_.store(false, std::memory_order_relaxed);
    }

    // Takes a place in the job that is open, unless it is the one last `seen`; gives the slot, or
    // 0.
    int try_join(std::uint64_t& state, std::uint64_t& seen) {
        state = state_.load();
        while ((state & kPlacesMask) && (state & kJobMask) != seen) {
            const std::uint64_t joined = state - kPlace + 1;
            if (state_.compare_exchange_weak(state, joined)) {
                seen = state & kJobMask;
                const int slot = int((state & kPlacesMask) / kPlace);
                wake_workers(slot - 1);
                return slot;
            }
        }
        return 0;
    }

    void leave() {
        const std::uint64_t left = state_.fetch_sub(1) - 1;
        if ((left & kInsideMask) == 0 && caller_sleeps_.load()) futex_wake(half(0), 1);
    }

    static void* worker_main(void* self) {
        static_cast<Pool*>(self)->serve();
        return nullptr;
    }

    void serve() {
        inside_job = true;
        std::uint64_t state = 0, seen = 0;
        int slot = 0;
        const auto joined = [&] { return (slot = try_join(state, seen)) != 0; };
        for (;;) {
            // Where other work keeps this thread on the caller's CPU, spinning would take from it.
            const bool beside = sched_getcpu() == caller_cpu_.load(std::memory_order_relaxed);
            if (!(beside ? joined() : spin_until(joined))) {
                // A job opened after the last look has another number, and the wait returns at
                // once; one opened after the wait began finds this thread counted as parked.
                parked_.fetch_add(1);
                futex_wait(half(1), std::uint32_t(state >> 32));
                parked_.fetch_sub(1);
                continue;
            }
            work(slot);
            leave();
        }
    }

    std::atomic<bool> taken_{false};
    std::atomic<bool> caller_sleeps_{false};
    std::atomic<int> parked_{0};
    std::atomic<int> caller_cpu_{-1};
    int workers_ = 0;
    // The job; written while no worker is inside.
    i64 tasks_ = 0;
    TaskFn fn_ = nullptr;
    void* context_ = nullptr;
    // Each on a cache line of its own: these two are what threads fight for.
    alignas(64) std::atomic<i64> next_{0};
    alignas(64) std::atomic<std::uint64_t> state_{0};
};

std::atomic<Pool*> pool{nullptr};
// set_num_threads, or 0; FUSEDNN_NUM_THREADS, or 0.
std::atomic<int> fixed_threads{0};
std::atomic<int> environment_threads{0};

// The child has none of the parent's threads, and its pool may be in the middle of a job: it starts
// over, with one thread, since forked workers usually share the machine with their siblings.
void reset_in_child() {
    pool.store(new Pool);
    fixed_threads.store(1);
    inside_job = false;
}

Pool& get_pool() {
    static const bool created = [] {
        pool.store(new Pool);
        pthread_atfork(nullptr, nullptr, reset_in_child);
        return true;
    }();
    static_cast<void>(created);
    return *pool.load(std::memory_order_acquire);
}

}  // namespace

void init_threads() {
    get_pool();
    available_cpus();  // reads the quota's files now, not in the first op
    const char* value = std::getenv("FUSEDNN_NUM_THREADS");
    if (!value || !*value) return;
    char* end = nullptr;
    const long threads = std::strtol(value, &end, 10);
    if (*end || threads < 1 || threads > kMostThreads) {
        throw Error("FUSEDNN_NUM_THREADS must be an integer from 1 to " +
                    std::to_string(kMostThreads) + ", got '" + value + "'");
    }
    environment_threads = int(threads);
}

int get_num_threads() {
    const int fixed = fixed_threads.load(std::memory_order_relaxed);
    if (fixed) return fixed;
    const int environment = environment_threads.load(std::memory_order_relaxed);
    return environment ? environment : available_cpus();
}

void set_num_threads(int n) {
    if (n < 0 || n > kMostThreads) {
        throw Error("set_num_threads: n must be from 0 (the default) to " +
                    std::to_string(kMostThreads) + ", got " + std::to_string(n));
    }
    fixed_threads = n;
}

int parallel_slots(i64 tasks, i64 cost) {
    if (cost < kMinParallelCost || tasks < 2 || inside_job) return 1;
    const i64 threads = get_num_threads();
    return int(threads < tasks ? threads : tasks);
}

void parallel_for(i64 tasks, int slots, TaskFn fn, void* context) {
    if (slots > 1 && tasks > 1 && !inside_job) {
        Pool& shared = get_pool();
        if (shared.try_take()) {
            shared.run(tasks, slots, fn, context);
            shared.give_back();
            return;
        }
    }
    for (i64 task = 0; task < tasks; ++task) fn(context, task, 0);
}

}  // namespace fusednn
