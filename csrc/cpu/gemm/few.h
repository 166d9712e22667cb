// When gemm() takes the path for few rows.
#pragma once

namespace fusednn {
namespace FUSEDNN_ISA {

// Rows of A up to which every output is a dot product along k: A's rows and B's columns are both
// contiguous there, and packing B (read once, used by few rows) would cost more than the product.
constexpr int kDotRows = 4;

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
