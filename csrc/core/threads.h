// The thread pool: one copy for the whole process, shared by every ISA build.
//
// A job is a number of tasks. Threads claim task numbers from an atomic counter; the calling thread
// claims too, and at the end it waits only for tasks that somebody has begun, never for a worker
// that was not scheduled. So a busy neighbour costs its share of the work and nothing more, and one
// thread is always enough to finish. What a task computes must depend on its number alone, never on
// the slot or the thread count: that is what makes results bit-identical at any thread count.
#pragma once
#include "core/types.h"

namespace fusednn {

// `slot` is in [0, slots): two tasks running at the same time have different slots, so it may index
// per-thread scratch memory and nothing else.
using TaskFn = void (*)(void* context, i64 task, int slot);

// How many threads a job of this size may use now (>= 1). `cost` is the estimated work of ALL its
// tasks in flops (or bytes moved); under kMinParallelCost the answer is 1.
int parallel_slots(i64 tasks, i64 cost);

// Runs fn(context, t, slot) for t in [0, tasks) on at most `slots` threads and returns when all are
// done. With one slot, from inside another task, or while another thread uses the pool, the calling
// thread does everything itself in slot 0, in order. Tasks must not throw.
void parallel_for(i64 tasks, int slots, TaskFn fn, void* context);

// Waking a parked thread takes 5 to 10 microseconds; under this much work it cannot pay.
constexpr i64 kMinParallelCost = 2'000'000;

// Starts the pool's bookkeeping and reads FUSEDNN_NUM_THREADS; Error if its value is no count.
void init_threads();

int get_num_threads();
// n >= 1 fixes the thread count; 0 returns to the default (FUSEDNN_NUM_THREADS, else the CPUs that
// the affinity mask and the cgroup quota grant, looked at again as they change).
void set_num_threads(int n);

// CPUs this process may use: the affinity mask, cut by the cgroup CPU quota. At least 1.
int available_cpus();

}  // namespace fusednn
