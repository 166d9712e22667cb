// Memory for a matrix in the form that a kernel packs it into, kept from call to call by a layer.
#pragma once
#include "core/types.h"

namespace fusednn {

struct KeptMatrix {
    void* data = nullptr;
    i64 bytes = 0, form = 0;
};

// The kept copy, if it has this size and form (of the kernel's own choice); else new memory in its
// place, which the caller fills. `ready` says which of the two.
void* kept_matrix(KeptMatrix* matrix, i64 bytes, i64 form, bool* ready);
void kept_release(KeptMatrix* matrix) noexcept;

}  // namespace fusednn
