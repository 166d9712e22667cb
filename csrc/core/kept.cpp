#include "core/kept.h"

#include "core/memory.h"

namespace fusednn {

void* kept_matrix(KeptMatrix* matrix, i64 bytes, i64 form, bool* ready) {
    *ready = matrix->data && matrix->bytes == bytes && matrix->form == form;
    if (*ready) return matrix->data;
    kept_release(matrix);
    matrix->data = memory_acquire(std::size_t(bytes));
    matrix->bytes = bytes;
    matrix->form = form;
    return matrix->data;
}

void kept_release(KeptMatrix* matrix) noexcept {
    if (matrix->data) memory_release(matrix->data);
    *matrix = KeptMatrix{};
}

}  // namespace fusednn
