#include "ops/conv_plan.h"

#include "core/errors.h"

namespace fusednn::ops {

namespace {

// Every group of several has one input channel.
bool is_depthwise(const ConvParams& p) {
    return p.groups > 1 && p.groups == p.in_channels;
}

bool is_flat(const ConvParams& p) {
    return p.kernel[0] == 1 && p.in_size[0] == 1 && p.pad[0] == 0;
}

// The forward pass can be direct with some more input channels: a band of them still stays near. It
// is faster (measured 1.0 to 1.7 times, to 2.3 with AVX2; without it 0.85 to 1.4) but for narrow
// images and, with strides, where there is little of it.
constexpr i64 kFewPlanes = 8;
constexpr i64 kManyPositions = 8192, kManyPlanesWidth = 12;

// Whether a direct kernel can run this pass.
bool direct_applies(ConvPass pass, const ConvParams& p) {
    if (is_depthwise(p)) return true;
    const bool few_in = p.in_channels <= kFewChannels * p.groups;
    const bool few_out = p.out_channels <= kFewChannels * p.groups;
    const bool unit = p.stride[1] == 1 && p.stride[2] == 1;
    if (pass == ConvPass::backward_input) return few_in;
    if (pass == ConvPass::backward_weight) return few_in && unit;
    const bool few_planes = p.in_channels <= kFewPlanes * p.groups;
    return (few_planes && is_flat(p)) || (few_out && unit);
}

// Narrower images leave most lanes of a direct kernel idle.
constexpr i64 kDirectWidth = 8;
// With longer strides the residues of the input gradient's positions make a product of enough rows:
// measured 1.1 to 7 times faster from stride 4 on, but 0.3 to 1.2 times with stride 2.
constexpr i64 kDirectStride = 3;

// The direct weight gradient shares loads between 4 rows of positions; without rows to share, a
// product is faster unless its other side is small as well.
bool has_rows_to_share(const ConvParams& p) {
    return p.out_size[1] >= 4 || p.out_channels <= 4 * kFewChannels * p.groups;
}

bool prefer_direct(ConvPass pass, const ConvParams& p) {
    if (pass == ConvPass::backward_weight && !is_depthwise(p) && !has_rows_to_share(p))
        return false;
    if (!direct_applies(pass, p)) return false;
    const bool backward = pass == ConvPass::backward_input;
    if (pass == ConvPass::forward && !is_depthwise(p) && p.in_channels > kFewChannels * p.groups &&
        p.out_channels > kFewChannels * p.groups &&
        (p.out_size[2] < kManyPlanesWidth ||
         ((p.stride[1] > 1 || p.stride[2] > 1) &&
          p.batch * p.out_size[1] * p.out_size[2] < kManyPositions))) {
        return false;
    }
    if (backward && (p.stride[1] > kDirectStride || p.stride[2] > kDirectStride)) return false;
    return is_depthwise(p) || (backward ? p.in_size : p.out_size)[2] >= kDirectWidth;
}

bool winograd_applies(const ConvParams& p) {
    if (!is_flat(p) || p.kernel[1] != p.kernel[2]) return false;
    if (p.kernel[1] != 3 && p.kernel[1] != 5) return false;
    for (int axis = 1; axis < 3; ++axis) {
        if (p.stride[axis] != 1 || p.dilation[axis] != 1) return false;
        // The input gradient pads by the rest of the kernel.
        if (p.pad[axis] > p.kernel[axis] - 1) return false;
    }
    return true;
}

// The transforms' rounding errors do not shrink with the sums: under 16 channels they would exceed
// 16 times those of a plain sum.
constexpr i64 kWinogradChannels = 16;

bool sums_are_long(const ConvParams& p) {
    return p.in_channels / p.groups >= kWinogradChannels &&
           p.out_channels / p.groups >= kWinogradChannels;
}

// What the algorithms cost, in multiply-adds of the implicit product.
struct Costs {
    double product, winograd;
};

// The constants are measured (docs/kernels/conv.md): a patch or output element costs as much to
// transform as 9 multiply-adds, a kernel of the weights as much as 280.
constexpr double kTransform = 9, kWeightTransform = 280;
constexpr int kPatchPoints = 36;

Costs estimate(ConvPass pass, const ConvParams& p) {
    const bool backward = pass == ConvPass::backward_input;
    const i64* size = backward ? p.in_size : p.out_size;
    const double in = double(p.in_channels / p.groups), out = double(p.out_channels / p.groups);
    const double images = double(p.batch) * double(p.groups);
    Costs costs;
    costs.product = images * double(p.out_size[1] * p.out_size[2]) *
                    double(p.kernel[1] * p.kernel[2]) * in * out;
    const i64 tile = 7 - p.kernel[1];
    const double tiles =
        double(p.batch) * double((size[1] + tile - 1) / tile) * double((size[2] + tile - 1) / tile);
    // Tiles fill whole vectors (16 of float32; the same rule for all, so that bits do not depend on
    // the ISA's choice).
    const double filled = double((i64(tiles) + 15) / 16 * 16);
    costs.winograd =
        double(p.groups) * (filled * kPatchPoints * (in * out + kTransform * (in + out)) +
                            kWeightTransform * in * out);
    return costs;
}

ConvAlgorithm automatic(ConvPass pass, const ConvParams& p) {
    if (prefer_direct(pass, p)) return ConvAlgorithm::direct;
    if (pass == ConvPass::backward_weight || !winograd_applies(p) || !sums_are_long(p)) {
        return ConvAlgorithm::implicit_gemm;
    }
    const Costs costs = estimate(pass, p);
    return costs.winograd < costs.product ? ConvAlgorithm::winograd : ConvAlgorithm::implicit_gemm;
}

}  // namespace

void choose_algorithm(const char* op, const std::string& wanted, ConvPass pass, ConvParams& p,
                      bool transposed) {
    if (wanted == "auto") {
        p.algorithm = automatic(pass, p);
    } else if (wanted == "implicit_gemm") {
        p.algorithm = ConvAlgorithm::implicit_gemm;
    } else if (wanted == "winograd") {
        if (!winograd_applies(p)) {
            throw Error(std::string(op) +
                        ": algorithm 'winograd' needs a 3 x 3 or 5 x 5 kernel with stride 1, "
                        "dilation 1 and padding less than the kernel");
        }
        p.algorithm = pass == ConvPass::backward_weight ? ConvAlgorithm::implicit_gemm
                                                        : ConvAlgorithm::winograd;
    } else if (wanted == "direct") {
        if (!direct_applies(transposed ? ConvPass::backward_input : ConvPass::forward, p)) {
            const std::string in = std::to_string(transposed ? p.out_channels : p.in_channels);
            const std::string out = std::to_string(transposed ? p.in_channels : p.out_channels);
            throw Error(std::string(op) + ": algorithm 'direct' needs " +
                        (transposed ? "at most 4 output channels per group"
                                    : "one input channel per group, at most 8 in two dimensions, "
                                      "or at most 4 output channels per group and stride 1") +
                        ", got " + in + " input and " + out + " output channels in " +
                        std::to_string(p.groups) + " groups");
        }
        p.algorithm =
            direct_applies(pass, p) ? ConvAlgorithm::direct : ConvAlgorithm::implicit_gemm;
    } else {
        throw Error(std::string(op) +
                    ": algorithm must be 'auto', 'implicit_gemm', 'winograd' or "
                    "'direct', got '" +
                    wanted + "'");
    }
}

const char* algorithm_name(ConvAlgorithm algorithm) {
    static const char* const names[] = {"implicit_gemm", "winograd", "direct"};
    return names[int(algorithm)];
}

std::string explain_algorithm(ConvPass pass, const ConvParams& p) {
    if (is_depthwise(p)) {
        return "one input channel per group: there is no product to gain from";
    }
    if (prefer_direct(pass, p)) {
        return "few channels per group: a product's tile would be nearly empty";
    }
    if (pass == ConvPass::backward_weight) return "the weight gradient is one product";
    if (!winograd_applies(p)) {
        return "Winograd needs a 3 x 3 or 5 x 5 kernel with stride 1 and dilation 1";
    }
    if (!sums_are_long(p)) {
        return "under 16 channels Winograd's rounding errors would exceed its stated bound";
    }
    const Costs costs = estimate(pass, p);
    const auto millions = [](double cost) {
        const std::string text = std::to_string(cost / 1e6);
        return text.substr(0, text.find('.') + 3);
    };
    return "estimated " + millions(costs.winograd) +
           " million multiply-adds by Winograd (transforms included) against " +
           millions(costs.product) + " million by the product";
}

}  // namespace fusednn::ops
