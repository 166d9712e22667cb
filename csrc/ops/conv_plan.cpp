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

// The kernel for few channels is the faster one as well with some more input channels, of which a
// band still stays near, and for few output channels, for which a product packs its columns in vain
// (measured 0.91 to 3 times, without AVX 0.73 to 1.6); but with strides only for wide images of
// which there is much. It also takes the input gradient of stride 1, a convolution of dy.
constexpr i64 kFewPlanes = 8, kFewRows = 16, kManyPlanes = 64;
constexpr i64 kManyPositions = 8192, kManyPlanesWidth = 12, kLeastPositions = 49;
constexpr i64 kMostBandBytes = 1024 * 1024;

bool unit_stride(const ConvParams& p) {
    return p.stride[1] == 1 && p.stride[2] == 1;
}

// Whether that kernel can compute y or (transposed) dx.
bool few_channels_apply(const ConvParams& p, bool transposed) {
    if (!is_flat(p) || (transposed && !unit_stride(p))) return false;
    for (int axis = 1; transposed && axis < 3; ++axis) {
        if (p.pad[axis] > (p.kernel[axis] - 1) * p.dilation[axis]) return false;
    }
    const i64 in = p.in_channels / p.groups, out = p.out_channels / p.groups;
    const i64 sources = transposed ? out : in, rows = transposed ? in : out;
    return sources <= kFewPlanes || (sources <= kManyPlanes && rows <= kFewRows);
}

// What the narrowest band of its input takes: it grows with large kernels.
i64 least_band_bytes(const ConvParams& p, bool transposed) {
    const i64 channels = (transposed ? p.out_channels : p.in_channels) / p.groups;
    const i64 rows = 3 * p.stride[1] + (p.kernel[1] - 1) * p.dilation[1] + 1;
    const i64 cols = 64 * p.stride[2] + (p.kernel[2] - 1) * p.dilation[2];
    return channels * rows * cols * 4;
}

bool prefer_few_channels(const ConvParams& p, bool transposed) {
    if (!few_channels_apply(p, transposed) || p.kernel[1] * p.kernel[2] == 1) return false;
    if (least_band_bytes(p, transposed) > kMostBandBytes) return false;
    const i64* size = transposed ? p.in_size : p.out_size;
    if (unit_stride(p)) return size[1] * size[2] >= kLeastPositions;
    const bool few = p.in_channels <= kFewPlanes * p.groups;
    return few && size[2] >= kManyPlanesWidth && p.batch * size[1] * size[2] >= kManyPositions;
}

// Whether a direct kernel can run this pass.
bool direct_applies(ConvPass pass, const ConvParams& p) {
    if (is_depthwise(p)) return true;
    const bool few_in = p.in_channels <= kFewChannels * p.groups;
    const bool few_out = p.out_channels <= kFewChannels * p.groups;
    const bool unit = unit_stride(p);
    if (pass == ConvPass::backward_input) return few_in || few_channels_apply(p, true);
    if (pass == ConvPass::backward_weight) return few_in && unit;
    return few_channels_apply(p, false) || (few_out && unit);
}

// Narrower images leave most lanes of a direct kernel idle.
constexpr i64 kDirectWidth = 8;
// With longer strides the residues of the input gradient's positions make a product of enough rows:
// measured 1.1 to 7 times faster from stride 4 on, but 0.3 to 1.2 times with stride 2.
constexpr i64 kDirectStride = 3;

bool strides_are_short(const ConvParams& p) {
    return p.stride[1] <= kDirectStride && p.stride[2] <= kDirectStride;
}

// A product reads the image of a 1 x 1 kernel where it lies, which pays from four channels on.
bool product_reads_in_place(const ConvParams& p) {
    return p.kernel[0] * p.kernel[1] * p.kernel[2] == 1 && p.in_channels >= 4 * p.groups;
}

// Patches that do not overlap are read once, so there is nothing to gain from a band of the input:
// from 8 x 8 on the product is as fast or up to 1.17 times faster.
bool large_patches(const ConvParams& p) {
    return p.kernel[1] >= 8 && p.kernel[2] >= 8 && p.stride[1] >= p.kernel[1] &&
           p.stride[2] >= p.kernel[2];
}

// The direct weight gradient shares loads between 4 rows of positions; without rows to share, a
// product is faster unless its other side is small as well.
bool has_rows_to_share(const ConvParams& p) {
    return p.out_size[1] >= 4 || p.out_channels <= 4 * kFewChannels * p.groups;
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

bool winograd_fits(const ConvParams& p) {
    return winograd_applies(p) && sums_are_long(p);
}

bool prefer_direct(ConvPass pass, const ConvParams& p) {
    if (!direct_applies(pass, p)) return false;
    if (is_depthwise(p)) return pass != ConvPass::backward_input || strides_are_short(p);
    const bool few_in = p.in_channels <= kFewChannels * p.groups;
    if (pass == ConvPass::backward_weight) {
        return has_rows_to_share(p) && p.out_size[2] >= kDirectWidth;
    }
    if (pass == ConvPass::backward_input) {
        if (few_in) return strides_are_short(p) && p.in_size[2] >= kDirectWidth;
        return !winograd_fits(p) && prefer_few_channels(p, true);
    }
    if (p.out_channels <= kFewChannels * p.groups) return p.out_size[2] >= kDirectWidth;
    if (large_patches(p)) return false;
    if (few_in && p.out_size[2] >= kDirectWidth && !product_reads_in_place(p)) return true;
    return !winograd_fits(p) && prefer_few_channels(p, false);
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
    if (pass == ConvPass::backward_weight || !winograd_fits(p)) {
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
                        (transposed
                             ? "at most 4 output channels per group, or with stride 1 in two "
                               "dimensions at most 8 input channels, 64 for up to 16 "
                               "output channels"
                             : "one input channel per group, in two dimensions at most 8, 64 "
                               "for up to 16 output channels, or at most 4 output channels "
                               "per group and stride 1") +
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
