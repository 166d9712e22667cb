// The thread pool and workspace memory as kernels use them: lambdas instead of function pointers.
#pragma once
#include "core/memory.h"
#include "core/threads.h"
#include "cpu/simd.h"

namespace fusednn {
namespace FUSEDNN_ISA {

// body(task, slot) for every task; see core/threads.h.
template <class Body>
FUSEDNN_INLINE void parallel(i64 tasks, int slots, const Body& body) {
    parallel_for(
        tasks, slots,
        [](void* context, i64 task, int slot) { (*static_cast<const Body*>(context))(task, slot); },
        const_cast<Body*>(&body));
}

// Scratch memory for `slots` threads, `count` elements each, from the recycling allocator.
template <class T>
class Workspace {
  public:
    FUSEDNN_INLINE Workspace(i64 count, int slots = 1)
        : stride_(round_up(count, 64)),
          base_(static_cast<T*>(memory_acquire(std::size_t(stride_ * slots) * sizeof(T)))) {}
    FUSEDNN_INLINE ~Workspace() { memory_release(base_); }
    FUSEDNN_INLINE T* slot(int index) const { return base_ + stride_ * index; }
    FUSEDNN_INLINE T* get() const { return base_; }
    Workspace(const Workspace&) = delete;
    Workspace& operator=(const Workspace&) = delete;

  private:
    i64 stride_;
    T* base_;
};

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
