// Classes, ids and positions are checked where they are; the host gets one number, and waits for
// it, since what is out of range must be refused before anything is computed.
#include "cuda/ids.h"

#include "cuda/gpu.h"

namespace fusednn::cuda {

namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    find_outside(i64 count, const i64* __restrict__ ids, i64 rows, bool has_allowed, i64 allowed,
                 unsigned long long* first) {
    const i64 step = i64(gridDim.x) * blockDim.x;
    for (i64 i = i64(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {
        const i64 id = ids[i];
        const bool inside = (id >= 0 && id < rows) || (has_allowed && id == allowed);
        if (!inside) atomicMin(first, (unsigned long long)(i));
    }
}

// Waits for the stream.
void fetch(void* to, const void* from, std::size_t bytes) {
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, current_stream()),
          "copying to the host");
    check(cudaStreamSynchronize(current_stream()), "waiting for the device");
}

}  // namespace

i64 first_outside(i64 count, const i64* ids, i64 rows, const i64* allowed, i64* value) {
    if (count == 0) return -1;
    const Workspace<unsigned long long> first(1);
    check(cudaMemsetAsync(first.get(), 0xff, 8, current_stream()), "clearing a workspace");
    launch("first_outside", {blocks_for(count, kThreads), kThreads}, find_outside, count, ids, rows,
           allowed != nullptr, allowed ? *allowed : i64(0), first.get());
    i64 found;
    fetch(&found, first.get(), 8);
    if (found >= 0) fetch(value, ids + found, 8);
    return found;
}

}  // namespace fusednn::cuda
