#include "core/threads.h"

#include <pthread.h>
#include <signal.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>

#include "core/errors.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace fusednn {

namespace {

// How long a thread looks for work, or for the end of a job, before it sleeps. Waking it again
// costs 5 to 10 microseconds; a program that calls one small op a millisecond must stay under 5 %
// of a CPU.
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

// True in a thread that is inside a task or runs a job: what it calls runs inline.
thread_local bool inside_job = false;

class Pool {
  public:
    // Runs a job on the caller and on workers 1 .. slots - 1, as far as they turn up.
    void run(i64 tasks, int slots, TaskFn fn, void* context) {
        start_workers(slots - 1);
        tasks_ = tasks;
        slots_ = slots;
        fn_ = fn;
        context_ = context;
        next_.store(0, std::memory_order_relaxed);
        // Opening publishes the job: everything above happens before any worker's joining.
        state_.store((state_.load(std::memory_order_relaxed) & ~kJobMask) + kGeneration + kOpen);
        if (parked_.load() > 0) {
            std::lock_guard<std::mutex> lock(mutex_);
            wake_.notify_all();
        }
        inside_job = true;
        work(0);
        inside_job = false;
        // From here nobody can join; those inside finish the task they have.
        state_.fetch_and(~kOpen);
        const auto finished = [&] { return (state_.load() & kJoinedMask) == 0; };
        if (spin_until(finished)) return;
        // A worker that lost its CPU in the middle of a task: sleeping gives it this one.
        std::unique_lock<std::mutex> lock(mutex_);
        caller_waits_.store(true);
        done_.wait(lock, finished);
        caller_waits_.store(false);
    }

    // One job at a time; who finds the pool taken works alone.
    bool try_take() { return !taken_.exchange(true, std::memory_order_acquire); }
    void give_back() { taken_.store(false, std::memory_order_release); }

  private:
    // state_: number of workers inside the job | open for joining | generation of the job.
    static constexpr std::uint64_t kJoinedMask = 0xffff;
    static constexpr std::uint64_t kOpen = 0x10000;
    static constexpr std::uint64_t kGeneration = 0x20000;
    static constexpr std::uint64_t kJobMask = kGeneration - 1;

    void start_workers(int wanted) {
        while (workers_ < wanted) {
            // Signals are the main thread's business (Python's handlers run there).
            sigset_t all, old;
            sigfillset(&all);
            pthread_sigmask(SIG_SETMASK, &all, &old);
            try {
                std::thread(&Pool::worker_main, this, workers_ + 1).detach();
                ++workers_;
            } catch (const std::system_error&) {
                wanted = workers_;  // no more threads to be had: the job runs on those there are
            }
            pthread_sigmask(SIG_SETMASK, &old, nullptr);
        }
    }

    void work(int slot) {
        for (;;) {
            const i64 task = next_.fetch_add(1, std::memory_order_relaxed);
            if (task >= tasks_) return;
            fn_(context_, task, slot);
        }
    }

    // Joins the open job if it is not `seen`; on success `seen` becomes its generation.
    bool try_join(std::uint64_t& seen) {
        std::uint64_t state = state_.load(std::memory_order_relaxed);
        while ((state & kOpen) && (state & ~kJobMask) != seen) {
            if (state_.compare_exchange_weak(state, state + 1)) {
                seen = state & ~kJobMask;
                return true;
            }
        }
        return false;
    }

    void leave() {
        const std::uint64_t left = state_.fetch_sub(1) - 1;
        if ((left & kJobMask) == 0 && caller_waits_.load()) {
            std::lock_guard<std::mutex> lock(mutex_);
            done_.notify_all();
        }
    }

    void worker_main(int slot) {
        inside_job = true;
        std::uint64_t seen = 0;
        for (;;) {
            if (!spin_until([&] { return try_join(seen); })) {
                std::unique_lock<std::mutex> lock(mutex_);
                parked_.fetch_add(1);
                wake_.wait(lock, [&] { return try_join(seen); });
                parked_.fetch_sub(1);
            }
            if (slot < slots_) work(slot);
            leave();
        }
    }

    std::atomic<bool> taken_{false};
    // The job; written while no worker is inside.
    i64 tasks_ = 0;
    int slots_ = 1;
    TaskFn fn_ = nullptr;
    void* context_ = nullptr;

    alignas(64) std::atomic<i64> next_{0};
    alignas(64) std::atomic<std::uint64_t> state_{0};
    std::atomic<int> parked_{0};
    std::atomic<bool> caller_waits_{false};
    int workers_ = 0;
    std::mutex mutex_;
    std::condition_variable wake_, done_;
};

// Leaked on purpose: workers may outlive static destruction.
std::atomic<Pool*> pool{nullptr};
// set_num_threads, or 0; FUSEDNN_NUM_THREADS, or 0.
std::atomic<int> fixed_threads{0};
std::atomic<int> environment_threads{0};

// The child has none of the parent's threads, and its locks may be in any state: it starts over,
// with one thread, since forked workers usually share the machine with their siblings.
void reset_in_child() {
    pool.store(new Pool);
    fixed_threads.store(1);
    inside_job = false;
}

Pool& get_pool() {
    static std::once_flag once;
    std::call_once(once, [] {
        pool.store(new Pool);
        pthread_atfork(nullptr, nullptr, reset_in_child);
    });
    return *pool.load();
}

}  // namespace

void init_threads() {
    get_pool();
    const char* value = std::getenv("FUSEDNN_NUM_THREADS");
    if (!value || !*value) return;
    char* end = nullptr;
    const long threads = std::strtol(value, &end, 10);
    if (*end || threads < 1 || threads > 4096) {
        throw Error(std::string("FUSEDNN_NUM_THREADS must be an integer from 1 to 4096, got '") +
                    value + "'");
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
    if (n < 0 || n > 4096) {
        throw Error("set_num_threads: n must be from 0 (the default) to 4096, got " +
                    std::to_string(n));
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
