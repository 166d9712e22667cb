// Matrix products: every edge of the register tiles, transposed operands, epilogues, accumulation.
#include "kernel/support.h"

namespace fusednn::test {

namespace {

struct Shape {
    i64 m, n, k;
};

struct Options {
    bool transpose_a = false, transpose_b = false, accumulate = false;
    bool row_bias = false, col_bias = false, relu = false;
    i64 gap = 0;  // columns of C beyond n that must stay as they are
};

template <class T>
void gemm_case(const Shape& s, const Options& o) {
    Random random(std::uint64_t(s.m * 7919 + s.n * 104729 + s.k));
    const auto a = random.array<T>(s.m * s.k), b = random.array<T>(s.k * s.n);
    const auto rows = random.array<T>(s.m), cols = random.array<T>(s.n);
    const i64 ldc = s.n + o.gap;
    const auto before = random.array<T>(s.m * ldc);
    const i64 a_row = o.transpose_a ? 1 : s.k, a_col = o.transpose_a ? s.m : 1;
    const i64 b_row = o.transpose_b ? 1 : s.n, b_col = o.transpose_b ? s.k : 1;

    Expected c;
    for (i64 i = 0; i < s.m; ++i) {
        for (i64 j = 0; j < ldc; ++j) {
            if (j >= s.n) {
                c.push(double(before[i * ldc + j]));
                continue;
            }
            Sum sum;
            if (o.accumulate) sum.add(double(before[i * ldc + j]));
            for (i64 p = 0; p < s.k; ++p) {
                sum.add(double(a[i * a_row + p * a_col]) * double(b[p * b_row + j * b_col]));
            }
            if (o.row_bias) sum.add(double(rows[i]));
            if (o.col_bias) sum.add(double(cols[j]));
            c.push(o.relu && sum.value < 0 ? 0 : sum.value, sum.slack<T>());
        }
    }
    const std::string what = "gemm " + std::to_string(s.m) + "x" + std::to_string(s.n) + "x" +
                             std::to_string(s.k) + (o.transpose_a ? " a^T" : "") +
                             (o.transpose_b ? " b^T" : "") + (o.accumulate ? " +=" : "") +
                             (o.row_bias ? " row bias" : "") + (o.col_bias ? " col bias" : "") +
                             (o.relu ? " relu" : "");
    check<T>(what, {c}, [&](const KernelTable<T>& table, T* const* out) {
        for (i64 i = 0; i < s.m; ++i) {
            for (i64 j = o.accumulate ? 0 : s.n; j < ldc; ++j)
                out[0][i * ldc + j] = before[i * ldc + j];
        }
        GemmParams<T> p{};
        p.m = s.m, p.n = s.n, p.k = s.k;
        p.a = a.data(), p.a_row = a_row, p.a_col = a_col;
        p.b = b.data(), p.b_row = b_row, p.b_col = b_col;
        p.c = out[0], p.ldc = ldc;
        p.accumulate = o.accumulate;
        p.row_bias = o.row_bias ? rows.data() : nullptr;
        p.col_bias = o.col_bias ? cols.data() : nullptr;
        p.activation = o.relu ? Activation::relu : Activation::none;
        table.gemm(p);
    });
}

Options variant(i64 index) {
    Options o;
    o.transpose_a = index & 1, o.transpose_b = index & 2;
    o.accumulate = index % 5 == 4;
    o.row_bias = !o.accumulate && index % 3 == 1;
    o.col_bias = !o.accumulate && index % 4 == 3;
    o.relu = !o.accumulate && index % 7 >= 4;
    o.gap = index % 3;
    return o;
}

template <class T>
void all() {
    const i64 edges[] = {0, 1, 2, 5, 6, 7, 13, 14, 15, 16, 17, 31, 32, 33};
    i64 index = 0;
    for (i64 m : edges) {
        for (i64 n : edges) gemm_case<T>({m, n, 7}, variant(index++));
    }
    for (i64 k : {0, 1, 2, 8, 31, 64, 255, 256, 257, 513}) {
        for (i64 i = 0; i < 8; ++i) gemm_case<T>({5, 19, k}, variant(index++));
    }
    // More than one block along each axis, and enough work for several threads.
    for (const Shape& s : {Shape{97, 131, 67}, Shape{211, 61, 301}, Shape{61, 523, 101},
                           Shape{1, 1031, 97}, Shape{1031, 1, 97}, Shape{307, 14, 401}}) {
        for (i64 i = 0; i < 4; ++i) gemm_case<T>(s, variant(index++));
    }
    // Every rest of columns behind whole vectors, by the deep products that have narrow tiles.
    for (i64 rest = 0; rest <= 32; ++rest) gemm_case<T>({29, 160 + rest, 71}, variant(index++));
}

}  // namespace

void test_gemm() {
    all<float>();
    all<double>();
}

}  // namespace fusednn::test
