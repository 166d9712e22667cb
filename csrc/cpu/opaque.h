#pragma once
#include "cpu/simd.h"

namespace fusednn {
namespace FUSEDNN_ISA {

// v in a register, of which the compiler knows nothing more: a product that was rounded stays so,
// where contraction would otherwise take it into a later sum unrounded, and a vector that was
// loaded is not loaded again for each of its uses.
template <class V>
FUSEDNN_INLINE V opaque(V v) {
#if defined(__AVX512F__)
    __asm__("" : "+v"(v));
#elif defined(__x86_64__)
    __asm__("" : "+x"(v));
#else
    __asm__("" : "+w"(v));
#endif
    return v;
}

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
