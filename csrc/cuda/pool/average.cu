// Average pooling and its gradient over windows that are listed, and maxima over such windows.
// x, dx (planes, D, H, W); y, dy (planes, OD, OH, OW).
//
//   forward   each output sums its window: a thread, or a warp where windows are long
//   backward  each input gathers dy / count of the windows that hold it, in row-major order, so
//             that sums are the same bits in every run
#include <vector>

#include "cuda/gpu.h"
#include "cuda/kernels.h"
#include "cuda/rows.h"

namespace fusednn::cuda {

namespace {

constexpr int kThreads = 256;

struct Lists {
    i64 in[3], out[3];
    const i64 *begin[3], *end[3];
    const i64* count[3];            // or null: divisor
    const i64 *first[3], *last[3];  // backward: the outputs whose windows hold an input
    double divisor;

    // What the sum of the window of output (d, h, w) is divided by.
    FUSEDNN_DEVICE double parts(i64 d, i64 h, i64 w) const {
        return count[0] ? double(count[0][d] * count[1][h] * count[2][w]) : divisor;
    }
};

// Position `at` in axes of these sizes.
struct Place {
    i64 plane, d, h, w;
    FUSEDNN_DEVICE Place(i64 at, const i64 (&size)[3]) {
        i64 line = quotient(at, size[2]);
        w = at - line * size[2];
        i64 slice = quotient(line, size[1]);
        h = line - slice * size[1];
        plane = quotient(slice, size[0]);
        d = slice - plane * size[0];
    }
};

i64 volume(const i64 (&size)[3]) {
    return size[0] * size[1] * size[2];
}

// The lists of a call on the device.
class DeviceLists {
  public:
    DeviceLists(const AvgPoolParams& p, bool backward)
        : values_(gathered(p, backward)), memory_(i64(values_.size())) {
        check(cudaMemcpyAsync(memory_.get(), values_.data(), values_.size() * sizeof(i64),
                              cudaMemcpyHostToDevice, current_stream()),
              "copying the windows");
        const i64* at = memory_.get();
        const auto take = [&](const i64* host, i64 count) {
            const i64* here = at;
            if (host) at += count;
            return host ? here : nullptr;
        };
        for (int a = 0; a < 3; ++a) {
            lists.in[a] = p.in_size[a];
            lists.out[a] = p.out_size[a];
            lists.begin[a] = take(p.begin[a], p.out_size[a]);
            lists.end[a] = take(p.end[a], p.out_size[a]);
            lists.count[a] = take(p.count[a], p.out_size[a]);
        }
        for (int a = 0; backward && a < 3; ++a) {
            lists.first[a] = take(p.begin[a], p.in_size[a]);
            lists.last[a] = take(p.begin[a], p.in_size[a]);
        }
        lists.divisor = p.divisor;
    }
    Lists lists{};

  private:
    static std::vector<i64> gathered(const AvgPoolParams& p, bool backward) {
        std::vector<i64> all;
        for (int a = 0; a < 3; ++a) {
            for (const i64* list : {p.begin[a], p.end[a], p.count[a]}) {
                if (list) all.insert(all.end(), list, list + p.out_size[a]);
            }
        }
        for (int a = 0; backward && a < 3; ++a) {
            std::vector<i64> last;
            i64 from = 0, to = 0;
            for (i64 i = 0; i < p.in_size[a]; ++i) {
                while (from < p.out_size[a] && p.end[a][from] <= i) ++from;
                while (to < p.out_size[a] && p.begin[a][to] <= i) ++to;
                all.push_back(from);
                last.push_back(to);
            }
            all.insert(all.end(), last.begin(), last.end());
        }
        return all;
    }

    std::vector<i64> values_;
    Workspace<i64> memory_;
};

template <class T>
__global__ void __launch_bounds__(kThreads, 4)
    forward_threads(Lists l, i64 outputs, In<T> x, Out<T> y) {
    using Sum = Accumulate<T>;
    const i64 at = i64(blockIdx.x) * kThreads + threadIdx.x;
    if (at >= outputs) return;
    const Place o(at, l.out);
    const i64 last_w = l.end[2][o.w];
    Sum sum = Sum(0);
#pragma unroll 1
    for (i64 d = l.begin[0][o.d]; d < l.end[0][o.d]; ++d) {
#pragma unroll 1
        for (i64 h = l.begin[1][o.h]; h < l.end[1][o.h]; ++h) {
            const auto line = x + ((o.plane * l.in[0] + d) * l.in[1] + h) * l.in[2];
#pragma unroll 2
            for (i64 w = l.begin[2][o.w]; w < last_w; ++w) sum += line[w];
        }
    }
    y[at] = sum / Sum(l.parts(o.d, o.h, o.w));
}

template <class T>
__global__ void __launch_bounds__(kThreads, 4)
    forward_warps(Lists l, i64 outputs, In<T> x, Out<T> y) {
    using Sum = Accumulate<T>;
    constexpr int warps = kThreads / 32;
    const int lane = int(threadIdx.x) % 32;
    const i64 at = i64(blockIdx.x) * warps + threadIdx.x / 32;
    const bool live = at < outputs;
    const Place o(live ? at : 0, l.out);
    const i64 last_w = l.end[2][o.w];
    double sum = 0;
#pragma unroll 1
    for (i64 d = l.begin[0][o.d]; live && d < l.end[0][o.d]; ++d) {
#pragma unroll 1
        for (i64 h = l.begin[1][o.h]; h < l.end[1][o.h]; ++h) {
            const auto line = x + ((o.plane * l.in[0] + d) * l.in[1] + h) * l.in[2];
            Sum part = Sum(0);
#pragma unroll 4
            for (i64 w = l.begin[2][o.w] + lane; w < last_w; w += 32) part += line[w];
            sum += double(part);
        }
    }
    sum = warp_reduce<32>(sum, Add());
    if (live && lane == 0) y[at] = Sum(sum / l.parts(o.d, o.h, o.w));
}

template <class T>
__global__ void __launch_bounds__(kThreads, 2)
    backward_kernel(Lists l, i64 inputs, In<T> dy, Out<T> dx) {
    using Sum = Accumulate<T>;
    const i64 at = i64(blockIdx.x) * kThreads + threadIdx.x;
    if (at >= inputs) return;
    const Place i(at, l.in);
    Sum sum = Sum(0);
#pragma unroll 1
    for (i64 d = l.first[0][i.d]; d < l.last[0][i.d]; ++d) {
#pragma unroll 1
        for (i64 h = l.first[1][i.h]; h < l.last[1][i.h]; ++h) {
            const auto line = dy + ((i.plane * l.out[0] + d) * l.out[1] + h) * l.out[2];
#pragma unroll 1
            for (i64 w = l.first[2][i.w]; w < l.last[2][i.w]; ++w) {
                sum += line[w] / Sum(l.parts(d, h, w));
            }
        }
    }
    dx[at] = sum;
}

template <class T>
__global__ void __launch_bounds__(kThreads, 2)
    max_kernel(Lists l, i64 outputs, In<T> x, Out<T> y, i64* __restrict__ indices) {
    using Value = Accumulate<T>;
    const i64 at = i64(blockIdx.x) * kThreads + threadIdx.x;
    if (at >= outputs) return;
    const Place o(at, l.out);
    const auto plane = x + o.plane * l.in[0] * l.in[1] * l.in[2];
    Value best = -Value(INFINITY);
    i64 winner = -1;
#pragma unroll 1
    for (i64 d = l.begin[0][o.d]; d < l.end[0][o.d]; ++d) {
#pragma unroll 1
        for (i64 h = l.begin[1][o.h]; h < l.end[1][o.h]; ++h) {
            const i64 line = (d * l.in[1] + h) * l.in[2];
#pragma unroll 1
            for (i64 w = l.begin[2][o.w]; w < l.end[2][o.w]; ++w) {
                const Value v = plane[line + w];
                // The first of equals, or the last NaN.
                if (v > best || v != v || winner < 0) best = v, winner = line + w;
            }
        }
    }
    y[at] = best;
    indices[at] = winner;
}

// Is the longest window of the last axis one for all lanes of a warp?
bool long_windows(const AvgPoolParams& p) {
    i64 longest = 0;
    for (i64 o = 0; o < p.out_size[2]; ++o) {
        const i64 size = p.end[2][o] - p.begin[2][o];
        longest = size > longest ? size : longest;
    }
    return longest >= 24;
}

}  // namespace

template <class T>
void avg_pool_forward(const AvgPoolParams& p, const T* x, T* y) {
    const i64 outputs = p.planes * volume(p.out_size);
    if (outputs == 0) return;
    const DeviceLists device(p, false);
    const char* name = "avg_pool_forward";
    if (long_windows(p)) {
        launch(name, {blocks_for(outputs, kThreads / 32), kThreads}, forward_warps<Storage<T>>,
               device.lists, outputs, reading(x), writing(y));
    } else {
        launch(name, {blocks_for(outputs, kThreads), kThreads}, forward_threads<Storage<T>>,
               device.lists, outputs, reading(x), writing(y));
    }
}

template <class T>
void avg_pool_backward(const AvgPoolParams& p, const T* dy, T* dx) {
    const i64 inputs = p.planes * volume(p.in_size);
    if (inputs == 0) return;
    const DeviceLists device(p, true);
    launch("avg_pool_backward", {blocks_for(inputs, kThreads), kThreads},
           backward_kernel<Storage<T>>, device.lists, inputs, reading(dy), writing(dx));
}

template <class T>
void adaptive_max_pool(const AvgPoolParams& p, const T* x, T* y, i64* indices) {
    const i64 outputs = p.planes * volume(p.out_size);
    if (outputs == 0) return;
    const DeviceLists device(p, false);
    launch("adaptive_max_pool", {blocks_for(outputs, kThreads), kThreads}, max_kernel<Storage<T>>,
           device.lists, outputs, reading(x), writing(y), indices);
}

#define FUSEDNN_AVERAGE(T)                                                  \
    template void avg_pool_forward<T>(const AvgPoolParams&, const T*, T*);  \
    template void avg_pool_backward<T>(const AvgPoolParams&, const T*, T*); \
    template void adaptive_max_pool<T>(const AvgPoolParams&, const T*, T*, i64*);
FUSEDNN_INSTANTIATE(FUSEDNN_AVERAGE)
FUSEDNN_INSTANTIATE_HALF(FUSEDNN_AVERAGE)

}  // namespace fusednn::cuda
