#include "ops/norm.h"

#include <cmath>
#include <sstream>

#include "core/errors.h"

namespace fusednn::ops {

namespace {

void check_eps(const char* op, double eps) {
    if (eps >= 0 && std::isfinite(eps)) return;
    std::ostringstream value;
    value << eps;
    throw Error(std::string(op) + ": eps is " + value.str() + ", expected a number of at least 0");
}

void check_channels(const char* op, const Shape& input, const std::vector<NamedShape>& arrays) {
    if (input.size() < 2) {
        throw Error(std::string(op) + ": input has shape " + text(input) +
                    ", expected (N, C) or (N, C, ...)");
    }
    checked_size(op, input);
    for (const NamedShape& one : arrays) {
        if (one.shape && *one.shape != Shape{input[1]}) {
            throw Error(std::string(op) + ": " + one.name + " has shape " + text(*one.shape) +
                        ", expected (" + std::to_string(input[1]) + ",) for input of shape " +
                        text(input));
        }
    }
}

i64 product_from(const Shape& shape, std::size_t first) {
    i64 product = 1;
    for (std::size_t i = first; i < shape.size(); ++i) product *= shape[i];
    return product;
}

}  // namespace

LayerNormParams layer_norm_shapes(const char* op, bool rms, const Shape& input,
                                  const Shape& normalized, const std::vector<NamedShape>& affine,
                                  double eps) {
    check_eps(op, eps);
    if (normalized.empty()) {
        throw Error(std::string(op) + ": normalized_shape is (), expected at least one size");
    }
    const bool fits = input.size() >= normalized.size() &&
                      std::equal(normalized.rbegin(), normalized.rend(), input.rbegin());
    if (!fits) {
        const std::string sizes = text(normalized);
        throw Error(std::string(op) + ": input has shape " + text(input) +
                    ", expected its last sizes to be normalized_shape " + sizes);
    }
    for (const NamedShape& one : affine) {
        if (one.shape) require_shape(op, one.name, *one.shape, normalized);
    }
    checked_size(op, input);
    const std::size_t lead = input.size() - normalized.size();
    return {product_from(Shape(input.begin(), input.begin() + i64(lead)), 0),
            product_from(normalized, 0), eps, rms};
}

GroupNormParams group_norm_shapes(const char* op, const Shape& input, i64 groups,
                                  const std::vector<NamedShape>& affine, double eps) {
    check_eps(op, eps);
    check_channels(op, input, affine);
    if (groups < 1 || input[1] % groups != 0) {
        throw Error(std::string(op) + ": num_groups is " + std::to_string(groups) +
                    ", expected a divisor of the " + std::to_string(input[1]) +
                    " channels of input of shape " + text(input));
    }
    return {input[0], groups, input[1], product_from(input, 2), eps};
}

BatchNormParams batch_norm_shapes(const char* op, const Shape& input,
                                  const std::vector<NamedShape>& channel_arrays, bool training,
                                  bool relu) {
    check_channels(op, input, channel_arrays);
    const BatchNormParams params{input[0], input[1], product_from(input, 2), training, relu};
    if (training && params.outer * params.inner == 1) {
        throw Error(std::string(op) +
                    ": training needs more than 1 value per channel, input has shape " +
                    text(input));
    }
    return params;
}

template <class T>
void update_running(const BatchNormParams& params, const T* mean, const T* low, const T* variance,
                    double momentum, T* running_mean, T* running_variance) {
    const double count = double(params.outer * params.inner);
    for (i64 c = 0; c < params.channels; ++c) {
        const double found = double(mean[c]) + double(low[c]);
        if (running_mean) {
            running_mean[c] = T((1 - momentum) * double(running_mean[c]) + momentum * found);
        }
        if (running_variance) {
            const double unbiased = double(variance[c]) * (count / (count - 1));
            running_variance[c] =
                T((1 - momentum) * double(running_variance[c]) + momentum * unbiased);
        }
    }
}

template void update_running<float>(const BatchNormParams&, const float*, const float*,
                                    const float*, double, float*, float*);
template void update_running<double>(const BatchNormParams&, const double*, const double*,
                                     const double*, double, double*, double*);

}  // namespace fusednn::ops
