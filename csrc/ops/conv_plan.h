// Which algorithm computes a convolution: the cost model, to be read and to be asked.
#pragma once
#include <string>

#include "core/kernels.h"

namespace fusednn::ops {

enum class ConvPass { forward, backward_input, backward_weight };

// Fills params.algorithm. `wanted` is "auto", "implicit_gemm", "winograd" or "direct"; Error if it
// is none of them or does not apply to this convolution. The weight gradient has no Winograd form:
// with "winograd" it takes the implicit product.
// `transposed`: the op is a transposed convolution, whose forward pass is `backward_input`.
void choose_algorithm(const char* op, const std::string& wanted, ConvPass pass, ConvParams& params,
                      bool transposed = false);

const char* algorithm_name(ConvAlgorithm algorithm);
// One sentence: why choose_algorithm(..., "auto", pass, params) chose what it did.
std::string explain_algorithm(ConvPass pass, const ConvParams& params);

}  // namespace fusednn::ops
