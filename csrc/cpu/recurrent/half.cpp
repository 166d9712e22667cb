// Products with bfloat16 weights where they lie.
#include "cpu/recurrent/half.h"

#include "cpu/parallel.h"

namespace fusednn {
namespace FUSEDNN_ISA {

namespace {

// R rows times C rows of b: one partial sum a lane, the lanes added in a fixed tree.
template <int R, int C>
void dot_bf16_tile(i64 k, const float* a, i64 a_row, const BFloat16* b, float (&to)[4][4]) {
    constexpr int lanes = kLanes<float>;
    Vec<float> sum[R][C] = {};
    const auto add = [&](const auto& load_a, const auto& load_b) {
        Vec<float> x[R];
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) x[r] = load_a(a + r * a_row);
#pragma GCC unroll 4
        for (int col = 0; col < C; ++col) {
            const Vec<float> y = load_b(b + col * k);
#pragma GCC unroll 4
            for (int r = 0; r < R; ++r) sum[r][col] = multiply_add(x[r], y, sum[r][col]);
        }
    };
    i64 p = 0;
    for (; p + lanes <= k; p += lanes) {
        add([&](const float* at) { return load(at + p); },
            [&](const BFloat16* at) { return load_as<float>(at + p); });
    }
    if (p < k) {
        add([&](const float* at) { return load_partial(at + p, k - p); },
            [&](const BFloat16* at) { return load_partial_as<float>(at + p, k - p); });
    }
    for (int r = 0; r < R; ++r) {
        for (int col = 0; col < C; ++col) to[r][col] = sum_lanes<float>(sum[r][col]);
    }
}

template <int C>
void dot_bf16_rows(i64 rows, i64 k, const float* a, i64 a_row, const BFloat16* b,
                   float (&to)[4][4]) {
    if (rows == 1) return dot_bf16_tile<1, C>(k, a, a_row, b, to);
    if (rows == 2) return dot_bf16_tile<2, C>(k, a, a_row, b, to);
    if (rows == 3) return dot_bf16_tile<3, C>(k, a, a_row, b, to);
    dot_bf16_tile<4, C>(k, a, a_row, b, to);
}

}  // namespace

template <class T>
void dot_bf16(i64 m, i64 n, i64 k, const T* a, i64 a_row, const BFloat16* b, const T* bias, T* c,
              i64 ldc, bool accumulate) {
    if constexpr (sizeof(T) == sizeof(float)) {
        // Rows of b in a task: 64 KB, to be worth claiming.
        const i64 group = round_up(max_of(i64(32768) / max_of(k, i64(1)), i64(1)), 4);
        const i64 tasks = ceil_div(n, group);
        parallel(tasks, parallel_slots(tasks, 2 * m * n * k), [&](i64 task, int) {
            FlushDenormals flush;
            const i64 end = min_of((task + 1) * group, n);
            for (i64 j = task * group; j < end;) {
                const i64 cols = end - j >= 4 ? 4 : 1;
                for (i64 row = 0; row < m; row += 4) {
                    const i64 rows = min_of(m - row, i64(4));
                    float sums[4][4];
                    if (cols == 4) {
                        dot_bf16_rows<4>(rows, k, a + row * a_row, a_row, b + j * k, sums);
                    } else {
                        dot_bf16_rows<1>(rows, k, a + row * a_row, a_row, b + j * k, sums);
                    }
                    for (i64 r = 0; r < rows; ++r) {
                        for (i64 i = 0; i < cols; ++i) {
                            float& to = c[(row + r) * ldc + j + i];
                            const float before = accumulate ? to : bias ? bias[j + i] : 0.0f;
                            to = before + sums[r][i];
                        }
                    }
                }
                j += cols;
            }
        });
    }
}

template <class T>
void widen_bf16(i64 count, const BFloat16* from, T* to) {
    if constexpr (sizeof(T) == sizeof(float)) {
        constexpr i64 chunk = 32768;
        const i64 tasks = ceil_div(count, chunk);
        parallel(tasks, parallel_slots(tasks, count * 6), [&](i64 task, int) {
            const i64 end = min_of((task + 1) * chunk, count);
            for (i64 i = task * chunk; i < end; i += kLanes<T>) {
                if (i + kLanes<T> <= end) {
                    store(to + i, load_as<float>(from + i));
                } else {
                    store_partial(to + i, load_partial_as<float>(from + i, end - i), end - i);
                }
            }
        });
    }
}

#define FUSEDNN_HALF(T)                                                                         \
    template void dot_bf16<T>(i64, i64, i64, const T*, i64, const BFloat16*, const T*, T*, i64, \
                              bool);                                                            \
    template void widen_bf16<T>(i64, const BFloat16*, T*);
FUSEDNN_INSTANTIATE(FUSEDNN_HALF)

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
