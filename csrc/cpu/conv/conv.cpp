// Convolution forward.
//
//   x  (N, C, D, H, W)             y (N, O, OD, OH, OW)
//   w  (O, C/groups, KD, KH, KW)   bias (O)
//
// Per group:   y[o, q] = bias[o] + sum over (c, tap) of w[o, c, tap] x[c, q*stride + tap*dil -
// pad], a product of w as it lies in memory with the implicit im2col matrix (problem.h, pack.h).
#include "cpu/conv/depthwise.h"
#include "cpu/conv/few_channels.h"
#include "cpu/conv/forms.h"
#include "cpu/conv/pixel_lanes.h"
#include "cpu/kernels.h"

namespace fusednn {
namespace FUSEDNN_ISA {

template <class T>
ConvPacking conv_packing(const ConvParams& params) {
    const ConvParams c = flattened(params);
    Workspace<i64> lists(forward_lists(c));
    if (c.algorithm == ConvAlgorithm::winograd) {
        const WinogradProblem<T> p =
            winograd_problem<T>(c, false, nullptr, nullptr, nullptr, nullptr);
        return {ConvPacking::winograd, c.groups * winograd_packed_size(p)};
    }
    const ConvProblem<T> p = forward_problem<T>(c, nullptr, nullptr, nullptr, lists.get()).problem;
    const bool product =
        c.algorithm == ConvAlgorithm::implicit_gemm && p.rows > 0 && p.columns() > 0;
    if (product && prefer_channel_lanes(p)) {
        return {ConvPacking::channel_lanes, c.groups * channel_lanes_packed_size(p)};
    }
    return {ConvPacking::none, 0};
}

template <class T>
void conv_pack(const ConvParams& params, const T* w, T* packed) {
    const ConvParams c = flattened(params);
    const ConvGroups groups = groups_of(c, false);
    if (c.algorithm == ConvAlgorithm::winograd) {
        WinogradProblem<T> p = winograd_problem<T>(c, false, nullptr, w, nullptr, nullptr);
        for (i64 group = 0; group < groups.count; ++group) {
            winograd_pack(p, packed);
            p.w += groups.weights;
            packed += winograd_packed_size(p);
        }
        return;
    }
    Workspace<i64> lists(forward_lists(c));
    const ForwardProblem<T> all = forward_problem<T>(c, nullptr, w, nullptr, lists.get());
    for (i64 group = 0; group < groups.count; ++group) {
        channel_lanes_pack(all.problem, of_group(all.weights, groups, group), packed);
        packed += channel_lanes_packed_size(all.problem);
    }
}

template <class T>
void conv_forward(const ConvParams& params, const T* x, const T* w, const T* bias, T* y) {
    const ConvParams c = flattened(params);
    const ConvGroups groups = groups_of(c, false);
    const T* packed = static_cast<const T*>(c.packed);
    if (c.algorithm == ConvAlgorithm::winograd) {
        WinogradProblem<T> p = winograd_problem(c, false, x, w, bias, y);
        p.packed = packed;
        if (run_winograd_groups(p, groups)) return;
        packed = nullptr;  // it is not in the form that the product reads
    }
    Workspace<i64> lists(forward_lists(c));
    const ForwardProblem<T> all = forward_problem(c, x, w, y, lists.get());
    if (c.algorithm == ConvAlgorithm::direct) {
        const bool depthwise = c.groups > 1 && c.groups == c.in_channels;
        if (pixel_lanes_apply(all.problem) && (depthwise || all.problem.rows <= kFewChannels)) {
            return conv_pixel_lanes(&all.problem, &all.weights, 1, groups, bias);
        }
        if (depthwise) return depthwise_forward(c, x, w, bias, y);
        return few_channels_forward(c, x, w, bias, y);
    }
    for (i64 group = 0; group < c.groups; ++group) {
        const ConvProblem<T> p = of_group(all.problem, groups, group);
        const ConvWeights<T> weights = of_group(all.weights, groups, group);
        run_product(p, weights, MatrixA<T>{weights.w, weights.row_stride, 1},
                    packed ? packed + group * channel_lanes_packed_size(p) : nullptr,
                    bias ? bias + group * p.rows : nullptr);
    }
}

#define FUSEDNN_CONV(T)                                          \
    template ConvPacking conv_packing<T>(const ConvParams&);     \
    template void conv_pack<T>(const ConvParams&, const T*, T*); \
    template void conv_forward<T>(const ConvParams&, const T*, const T*, const T*, T*);
FUSEDNN_INSTANTIATE(FUSEDNN_CONV)

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
