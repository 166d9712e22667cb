// What the host side of a kernel file uses: launches, workspaces, checked calls. All of it works on
// the stream of the op that runs (device.h: Scope), and turns what CUDA reports into an exception
// that names op and call.
#pragma once
#include <tuple>
#include <utility>

#include "cuda/gpu.h"

namespace fusednn::cuda {

cudaStream_t current_stream();
const char* current_op();

// Does nothing for cudaSuccess; else throws DeviceError "op: call: CUDA's own text".
void check(cudaError_t error, const char* call);

// Scratch memory on the device of the op, in the order of its stream.
void* workspace_acquire(std::size_t bytes);
void workspace_release(void* block) noexcept;

template <class T>
class Workspace {
  public:
    explicit Workspace(i64 count)
        : base_(static_cast<T*>(workspace_acquire(std::size_t(count) * sizeof(T)))) {}
    ~Workspace() { workspace_release(base_); }
    T* get() const { return base_; }
    Workspace(const Workspace&) = delete;
    Workspace& operator=(const Workspace&) = delete;

  private:
    T* base_;
};

// ---- launches
// ------------------------------------------------------------------------------------

// Blocks of a one-dimensional grid for `count` items, `each` to a block. A grid has room for 2^31 -
// 1 blocks along x, but only for 65535 along y and z: large counts belong to x. Kernels step on by
// the whole grid, so that fewer blocks than asked for still do all of it.
constexpr i64 kMostBlocks = (i64(1) << 31) - 1;
inline unsigned blocks_for(i64 count, i64 each) {
    const i64 blocks = (count + each - 1) / each;
    return unsigned(blocks < kMostBlocks ? blocks : kMostBlocks);
}

struct LaunchShape {
    dim3 grid, block;
    std::size_t shared = 0;  // bytes of dynamic shared memory, sizeof the struct
};

namespace detail {
template <class... P, class... A>
void launch(const char* name, bool cooperative, const LaunchShape& shape, void (*kernel)(P...),
            A&&... args) {
    if (shape.grid.x == 0) return;
#if defined(FUSEDNN_EMULATE)
    emulator::launch_kernel(kernel, name, shape.grid, shape.block, shape.shared, cooperative,
                            args...);
#else
    const auto* code = reinterpret_cast<const void*>(kernel);
    if (shape.shared > 48 * 1024) {  // more than every device gives without being asked
        check(cudaFuncSetAttribute(code, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                   int(shape.shared)),
              name);
    }
    std::tuple<P...> values(static_cast<P>(args)...);
    const cudaError_t error = std::apply(
        [&](P&... one) {
            // Through void: what is const stays so, CUDA only copies.
            void* pointers[] = {const_cast<void*>(static_cast<const void*>(&one))...};
            return cooperative
                       ? cudaLaunchCooperativeKernel(code, shape.grid, shape.block, pointers,
                                                     shape.shared, current_stream())
                       : cudaLaunchKernel(code, shape.grid, shape.block, pointers, shape.shared,
                                          current_stream());
        },
        values);
    check(error, name);
#endif
    check(cudaGetLastError(), name);
}
}  // namespace detail

// Runs a kernel; `name` is for error texts and the emulator's reports. A grid of no blocks is no
// work. What fails while the kernel runs is reported by a later call, as always with CUDA.
template <class... P, class... A>
void launch(const char* name, const LaunchShape& shape, void (*kernel)(P...), A&&... args) {
    detail::launch(name, false, shape, kernel, args...);
}

// How many blocks of a kernel the device of the op holds at once.
template <class... P>
i64 resident_blocks(void (*kernel)(P...), const LaunchShape& shape) {
#if defined(FUSEDNN_EMULATE)
    (void)kernel;
    (void)shape;
    return emulator::options().resident;
#else
    const auto* code = reinterpret_cast<const void*>(kernel);
    const int threads = int(shape.block.x * shape.block.y * shape.block.z);
    int device = 0, most = 0, each = 0, count = 0;
    check(cudaGetDevice(&device), "cudaGetDevice");
    check(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
          "cudaDeviceGetAttribute");
    if (shape.shared > std::size_t(most)) return 0;
    if (shape.shared > 48 * 1024) {
        check(cudaFuncSetAttribute(code, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                   int(shape.shared)),
              "cudaFuncSetAttribute");
    }
    check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, code, threads, shape.shared),
          "cudaOccupancyMaxActiveBlocksPerMultiprocessor");
    check(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device),
          "cudaDeviceGetAttribute");
    return i64(each) * count;
#endif
}

// The same as launch for kernels that use grid_sync: all blocks must fit on the device at once.
template <class... P, class... A>
void launch_cooperative(const char* name, const LaunchShape& shape, void (*kernel)(P...),
                        A&&... args) {
    detail::launch(name, true, shape, kernel, args...);
}

}  // namespace fusednn::cuda
