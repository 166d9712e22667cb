// Transposed copies: every element, exactly.
#include "kernel/support.h"

namespace fusednn::test {

namespace {

template <class T>
void transpose_case(i64 batch, i64 rows, i64 columns) {
    Random random(std::uint64_t(rows * 131 + columns));
    const auto x = random.array<T>(batch * rows * columns);
    Expected y;
    for (i64 image = 0; image < batch; ++image) {
        for (i64 c = 0; c < columns; ++c) {
            for (i64 r = 0; r < rows; ++r) y.push(double(x[(image * rows + r) * columns + c]));
        }
    }
    const std::string name =
        std::to_string(batch) + "x" + std::to_string(rows) + "x" + std::to_string(columns);
    check<T>("transpose_matrices " + name, {y}, [&](const KernelTable<T>& table, T* const* o) {
        table.transpose_matrices(batch, rows, columns, x.data(), o[0]);
    });
}

}  // namespace

void test_transpose() {
    // Around vectors and blocks of every ISA, few columns, more than one panel and task.
    for (i64 rows : {0, 1, 3, 4, 7, 8, 9, 15, 16, 17, 33, 130}) {
        for (i64 columns : {0, 1, 2, 3, 4, 5, 8, 9, 15, 16, 17, 33}) {
            transpose_case<float>(2, rows, columns);
            transpose_case<double>(2, rows, columns);
        }
    }
    transpose_case<float>(3, 2100, 67);
    transpose_case<double>(1, 1030, 130);
}

}  // namespace fusednn::test
