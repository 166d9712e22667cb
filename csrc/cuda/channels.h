// Arrays (outer, channels, inner): loops with something of each channel, and sums over the rest.
//
// Vectors are taken where all elements of one belong to a channel. Sums are cut into slices by the
// shape alone and joined first to last in double: the same bits in every run. Where inner is 1,
// threads of a warp have neighbouring channels, else a block has one channel and its threads have
// neighbouring places.
#pragma once
#include "cuda/reduce.h"
#include "cuda/rows.h"

namespace fusednn::cuda {

constexpr int kChannelThreads = 256;

struct ChannelView {
    i64 outer, channels, inner;
    i64 size() const { return outer * channels * inner; }
};

// ---- elementwise ----------------------------------------

// fn.run<kWide>(at, channel), for kWide elements of one channel.
template <class T, int kWide, class Fn>
__global__ void __launch_bounds__(kChannelThreads)
    map_channels_kernel(i64 size, i64 channels, i64 inner, Fn fn) {
    const i64 step = i64(gridDim.x) * blockDim.x * kWide;
#pragma unroll 1
    for (i64 at = (i64(blockIdx.x) * blockDim.x + threadIdx.x) * kWide; at < size; at += step) {
        const i64 line = quotient(at, inner);
        fn.template run<kWide>(at, line - quotient(line, channels) * channels);
    }
}

// `packs`: all arrays of the size of the view begin where 16 bytes do.
template <class T, class Fn>
void map_channels(const char* name, const ChannelView& view, bool packs, const Fn& fn) {
    constexpr int wide = Pack<T>::kSize;
    const i64 size = view.size();
    const bool vectors = packs && view.inner % wide == 0;
    const LaunchShape shape{blocks_for(size, kChannelThreads * (vectors ? wide : 1)),
                            kChannelThreads};
    vectors
        ? launch(name, shape, map_channels_kernel<T, wide, Fn>, size, view.channels, view.inner, fn)
        : launch(name, shape, map_channels_kernel<T, 1, Fn>, size, view.channels, view.inner, fn);
}

// ---- sums ----------------------------------------

// Places (outer * inner) of a slice; there are enough slices for several hundred blocks.
inline i64 slice_places(const ChannelView& view) {
    const i64 places = view.outer * view.inner;
    const i64 columns = view.inner == 1 ? (view.channels + 31) / 32 : view.channels;
    const i64 most = columns < 1024 ? 1024 / (columns ? columns : 1) : 1;
    const i64 even = (places + most - 1) / most;
    const i64 least = view.inner == 1 ? 64 : 2048;
    return even > least ? even : least;
}

// How many places a thread reads at once: four loads in flight, of Fn::kInputs arrays.
template <class Fn>
constexpr int kTogether = Fn::kInputs == 1 ? 4 : 2;

// partial[(slice * kValues + n) * channels + c] = the slice's sums of value n of fn(at, outer,
// channel, values).
template <int kValues, class T, class Fn>
__global__ void __launch_bounds__(kChannelThreads, 4)
    sum_places(i64 outer, i64 channels, i64 inner, i64 slice_size, i64 slices, double* partial,
               Fn fn) {
    const i64 places = outer * inner;
    // How far on the next place of a thread is: rows of `inner`, and within them.
    const i64 rows = inner < kChannelThreads ? kChannelThreads / int(inner) : 0;
    const i64 rest = kChannelThreads - rows * inner;
#pragma unroll 1
    for (i64 job = blockIdx.x; job < channels * slices; job += gridDim.x) {
        const i64 slice = quotient(job, channels), channel = job - slice * channels;
        const i64 begin = slice * slice_size;
        const i64 end = begin + slice_size < places ? begin + slice_size : places;
        double sum[kValues] = {};
        i64 place = begin + threadIdx.x, o = quotient(place, inner), i = place - o * inner;
        i64 at = (o * channels + channel) * inner + i;
#pragma unroll kTogether < Fn>
        for (; place < end; place += kChannelThreads) {
            T value[kValues];
            fn(at, o, channel, value);
            for (int n = 0; n < kValues; ++n) sum[n] += double(value[n]);
            const bool over = (i += rest) >= inner;
            i -= over ? inner : 0;
            o += rows + over;
            at += rows * channels * inner + rest + (over ? (channels - 1) * inner : 0);
        }
        for (int n = 0; n < kValues; ++n) {
            const double total = block_reduce<kChannelThreads>(sum[n], Add());
            if (threadIdx.x == 0) partial[(slice * kValues + n) * channels + channel] = total;
        }
    }
}

template <int kValues, class T, class Fn>
__global__ void __launch_bounds__(kChannelThreads)
    sum_columns(i64 outer, i64 channels, i64 slice_size, i64 slices, double* partial, Fn fn) {
    constexpr int warps = kChannelThreads / 32;
    FUSEDNN_SHARED(double[kValues][warps][32], of_warp);
    const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
    const i64 groups = (channels + 31) / 32;
#pragma unroll 1
    for (i64 job = blockIdx.x; job < groups * slices; job += gridDim.x) {
        const i64 slice = quotient(job, groups), channel = (job - slice * groups) * 32 + lane;
        const i64 begin = slice * slice_size;
        const i64 end = begin + slice_size < outer ? begin + slice_size : outer;
        double sum[kValues] = {};
        if (channel < channels) {
#pragma unroll kTogether < Fn>
            for (i64 o = begin + warp; o < end; o += warps) {
                T value[kValues];
                fn(o * channels + channel, o, channel, value);
                for (int n = 0; n < kValues; ++n) sum[n] += double(value[n]);
            }
        }
        __syncthreads();  // the last job's sums were read
        for (int n = 0; n < kValues; ++n) of_warp[n][warp][lane] = sum[n];
        __syncthreads();
        if (warp < kValues && channel < channels) {
            double total = 0;
#pragma unroll 1
            for (int w = 0; w < warps; ++w) total += of_warp[warp][w][lane];
            partial[(slice * kValues + warp) * channels + channel] = total;
        }
    }
}

// finish(channel, sums) for each channel, of its sums over all slices.
template <int kValues, class Finish>
__global__ void __launch_bounds__(kChannelThreads)
    join_slices(i64 channels, i64 slices, const double* partial, Finish finish) {
    const i64 step = i64(gridDim.x) * blockDim.x;
#pragma unroll 1
    for (i64 c = i64(blockIdx.x) * blockDim.x + threadIdx.x; c < channels; c += step) {
        double sum[kValues] = {};
#pragma unroll 4
        for (i64 slice = 0; slice < slices; ++slice) {
            for (int n = 0; n < kValues; ++n) {
                sum[n] += partial[(slice * kValues + n) * channels + c];
            }
        }
        finish(c, sum);
    }
}

// Sums over the rows of (outer, channels), as sum_channels.
template <int kValues, class T, class Fn, class Finish>
void sum_columns_of(const char* name, const ChannelView& view, const Fn& fn, const Finish& finish) {
    if (view.channels == 0) return;
    const i64 size = slice_places(view), slices = (view.outer + size - 1) / size;
    const i64 groups = (view.channels + 31) / 32;
    const Workspace<double> partial(slices * kValues * view.channels);
    launch(name, {blocks_for(groups * slices, 1), kChannelThreads}, sum_columns<kValues, T, Fn>,
           view.outer, view.channels, size, slices, partial.get(), fn);
    launch(name, {blocks_for(view.channels, kChannelThreads), kChannelThreads},
           join_slices<kValues, Finish>, view.channels, slices, partial.get(), finish);
}

// Sums over all places of each channel. fn: struct with kInputs, the arrays that it reads, and
// operator()(at, outer, channel, T (&)[n]) const; finish: one with operator()(channel, const double
// (&)[n]) const.
template <int kValues, class T, class Fn, class Finish>
void sum_channels(const char* name, const ChannelView& view, const Fn& fn, const Finish& finish) {
    if (view.inner == 1) return sum_columns_of<kValues, T>(name, view, fn, finish);
    if (view.channels == 0) return;
    const i64 places = view.outer * view.inner, size = slice_places(view);
    const i64 slices = (places + size - 1) / size;
    const Workspace<double> partial(slices * kValues * view.channels);
    launch(name, {blocks_for(view.channels * slices, 1), kChannelThreads},
           sum_places<kValues, T, Fn>, view.outer, view.channels, view.inner, size, slices,
           partial.get(), fn);
    launch(name, {blocks_for(view.channels, kChannelThreads), kChannelThreads},
           join_slices<kValues, Finish>, view.channels, slices, partial.get(), finish);
}

}  // namespace fusednn::cuda
