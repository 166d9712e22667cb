// How float32 products are computed where the device has a choice (a GPU's tensor cores).
#pragma once

namespace fusednn {

enum class Float32Precision : int {
    highest,  // products of float32 values, added in float32
    high,     // factors cut to 10 bits of mantissa (TF32), added in float32
};

// One setting for the process.
Float32Precision float32_precision();
void set_float32_precision(Float32Precision precision);

}  // namespace fusednn
