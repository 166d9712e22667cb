// bfloat16 in pairs: two vectors in the place of one, taken apart by a shift and a mask, exactly.
#pragma once
#include "cpu/simd.h"

namespace fusednn {
namespace FUSEDNN_ISA {

// Lane i holds a[i] below b[i].
FUSEDNN_INLINE Vec<float> pair_of(WordVec a, WordVec b) {
    return (Vec<float>)(a | (b << 16));
}
FUSEDNN_INLINE Vec<float> first_of_pair(Vec<float> pair) {
    return (Vec<float>)((WordVec)pair << 16);
}
FUSEDNN_INLINE Vec<float> second_of_pair(Vec<float> pair) {
    return (Vec<float>)((WordVec)pair & 0xffff0000u);
}

// p's vector, once in a register: both halves of a pair are made from there, not from memory.
FUSEDNN_INLINE Vec<float> load_pair(const float* p) {
    Vec<float> pair = load(p);
#if defined(__AVX512F__)
    __asm__("" : "+v"(pair));
#elif defined(__x86_64__)
    __asm__("" : "+x"(pair));
#endif
    return pair;
}

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
