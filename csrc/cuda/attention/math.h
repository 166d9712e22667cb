// What a block does with tiles in shared memory: which lane owns which sums, and how they grow.
//
// A warp owns 8 * kRowsOfLane rows. Lane (g, t) = (lane / 4, lane % 4) owns of each of its rows g +
// 8 i the columns column(n) of the scores and out_column(m) of the result, so that a row's four
// lanes are neighbours in every kind of mathematics.
#pragma once
#include <type_traits>

#include "cuda/attention/problem.h"

namespace fusednn::cuda {

// A tile's rows and their places, whatever the mathematics.
template <int kRowsOfLane_, int kColumns_, int kDim_, int kBlocks_>
struct Layout {
    static constexpr int kWarps = 4, kThreads = 32 * kWarps, kBlocks = kBlocks_;
    static constexpr int kRowsOfLane = kRowsOfLane_, kRows = 8 * kRowsOfLane * kWarps;
    static constexpr int kColumns = kColumns_, kColumnsOfLane = kColumns / 4;
    static constexpr int kDim = kDim_, kOutOfLane = kDim / 4;
    static_assert(64 % kColumns == 0 && kColumns >= 16, "dropout counts keys in groups of 64");

    FUSEDNN_DEVICE static int first_row() { return int(threadIdx.x) / 32 * (8 * kRowsOfLane); }
    FUSEDNN_DEVICE static int row(int i) { return first_row() + int(threadIdx.x) % 32 / 4 + 8 * i; }
};

// Fused multiply-adds: each sum is one chain in the order of the depth.
template <class T, int kRowsOfLane_, int kColumns_, int kDim_, int kBlocks_>
struct Exact : Layout<kRowsOfLane_, kColumns_, kDim_, kBlocks_> {
    using Base = Layout<kRowsOfLane_, kColumns_, kDim_, kBlocks_>;
    using Base::kColumns, Base::kColumnsOfLane, Base::kDim, Base::kOutOfLane, Base::kRows,
        Base::kRowsOfLane, Base::row;
    using Value = T;
    using Sum = T;
    static constexpr int kRun = 16 / int(sizeof(T)), kOutRun = kRun;
    // 16 bytes of padding: rows that are read at once lie in different banks.
    static constexpr int kStride = kDim + kRun;
    using Scores = Sum[kRowsOfLane][kColumnsOfLane];
    using Out = Sum[kRowsOfLane][kOutOfLane];
    using Format = cuda::Format<Value>;
    // Weights on their way from the lanes that computed them to those that multiply with them.
    struct alignas(16) Exchange {
        T of[kRows][kColumns + kRun];
    };

    FUSEDNN_DEVICE static int column(int n) { return int(threadIdx.x) % 4 + 4 * n; }
    FUSEDNN_DEVICE static int out_column(int m) {
        return m / kRun * (4 * kRun) + int(threadIdx.x) % 4 * kRun + m % kRun;
    }

    // s[row][column] += sum over d < depth of a[row][d] b[column][d]
    template <int kA, int kB>
    FUSEDNN_DEVICE static void multiply(const Format&, Scores& s, const T (&a)[kA][kStride],
                                        const T (&b)[kB][kStride], int depth) {
#pragma unroll 1
        for (int d = 0; d < depth; d += kRun) {
            Pack<T> x[kRowsOfLane];
#pragma unroll
            for (int i = 0; i < kRowsOfLane; ++i) {
                x[i] = *reinterpret_cast<const Pack<T>*>(&a[row(i)][d]);
            }
#pragma unroll
            for (int n = 0; n < kColumnsOfLane; ++n) {
                const Pack<T> y = *reinterpret_cast<const Pack<T>*>(&b[column(n)][d]);
#pragma unroll
                for (int i = 0; i < kRowsOfLane; ++i)
#pragma unroll
                    for (int e = 0; e < kRun; ++e) s[i][n] += x[i].of[e] * y.of[e];
            }
        }
    }

    // Weights for the other lanes of their warp.
    FUSEDNN_DEVICE static void put(const Format&, const Scores& w, Exchange& exchange) {
        __syncwarp();
#pragma unroll
        for (int i = 0; i < kRowsOfLane; ++i)
#pragma unroll
            for (int n = 0; n < kColumnsOfLane; ++n) exchange.of[row(i)][column(n)] = w[i][n];
        __syncwarp();
    }

    // out[row][c] += sum over the columns of w[row][column] b[column][c], c < width
    template <int kB>
    FUSEDNN_DEVICE static void add_rows(const Format& format, Out& out, const Scores& w,
                                        Exchange& exchange, const T (&b)[kB][kStride], int width) {
        put(format, w, exchange);
#pragma unroll 1
        for (int j = 0; j < kColumns; j += kRun) {
            Pack<T> x[kRowsOfLane];
#pragma unroll
            for (int i = 0; i < kRowsOfLane; ++i) {
                x[i] = *reinterpret_cast<const Pack<T>*>(&exchange.of[row(i)][j]);
            }
#pragma unroll
            for (int e = 0; e < kRun; ++e) {
#pragma unroll
                for (int m = 0; m < kOutOfLane; m += kRun) {
                    if (m * 4 >= width) break;
                    const Pack<T> y = *reinterpret_cast<const Pack<T>*>(&b[j + e][out_column(m)]);
#pragma unroll
                    for (int i = 0; i < kRowsOfLane; ++i)
#pragma unroll
                        for (int k = 0; k < kRun; ++k) out[i][m + k] += x[i].of[e] * y.of[k];
                }
            }
        }
    }
};

// ---- tensor cores
// --------------------------------------------------------------------------------

// Fragments of 16 rows and 8 columns of sums, see the PTX ISA, "Matrix Fragments for mma.m16n8k8"
// and k16: a lane has of rows g and g + 8 the columns 2 t and 2 t + 1. Sums are float.
template <int kRowsOfLane_, int kColumns_, int kDim_, int kBlocks_>
struct Fragments : Layout<kRowsOfLane_, kColumns_, kDim_, kBlocks_> {
    using Base = Layout<kRowsOfLane_, kColumns_, kDim_, kBlocks_>;
    using Base::kColumns, Base::kColumnsOfLane, Base::kDim, Base::kOutOfLane, Base::kRowsOfLane;
    static_assert(kRowsOfLane % 2 == 0, "whole fragments");
    using Sum = float;
    static constexpr int kOutRun = 2;
    // Padding spreads what is read at once over all banks.
    static constexpr int kStride = kDim + 8;
    static constexpr int kDown = kRowsOfLane / 2;
    using Scores = Sum[kRowsOfLane][kColumnsOfLane];
    using Out = Sum[kRowsOfLane][kOutOfLane];

    FUSEDNN_DEVICE static int out_column(int m) {
        return m / 2 * 8 + int(threadIdx.x) % 4 * 2 + m % 2;
    }

  protected:
    // The sums of fragment (down, across) += product(sums).
    template <int kSums, class Product>
    FUSEDNN_DEVICE static void add(Sum (&s)[kRowsOfLane][kSums], int down, int across,
                                   const Product& product) {
        float d[4] = {s[2 * down][2 * across], s[2 * down][2 * across + 1],
                      s[2 * down + 1][2 * across], s[2 * down + 1][2 * across + 1]};
        product(d);
        s[2 * down][2 * across] = d[0];
        s[2 * down][2 * across + 1] = d[1];
        s[2 * down + 1][2 * across] = d[2];
        s[2 * down + 1][2 * across + 1] = d[3];
    }
};

// A factor as gemm/math.h's near_tf32 makes it: what the tensor cores cut off is made up for.
FUSEDNN_DEVICE std::uint32_t attention_tf32(float x) {
    return __float_as_uint(x * (1.0f + 0.72f / 2048));
}

// Factors of float with 10 bits of mantissa (TF32). Depths are dealt to lanes so that a lane reads
// two neighbours at once, and columns so that rows of other tiles are read without bank conflicts:
// sums do not care about either order.
template <int kRowsOfLane_, int kColumns_, int kDim_, int kBlocks_>
struct Tf32 : Fragments<kRowsOfLane_, kColumns_, kDim_, kBlocks_> {
    using Base = Fragments<kRowsOfLane_, kColumns_, kDim_, kBlocks_>;
    using Base::kColumns, Base::kColumnsOfLane, Base::kDim, Base::kOutOfLane, Base::kRows,
        Base::kRowsOfLane, Base::kStride, Base::kDown, Base::row;
    using typename Base::Out, typename Base::Scores;
    using Value = float;
    using Format = cuda::Format<float>;
    struct alignas(16) Exchange {
        float of[kRows][kColumns + 4];
    };

    // Which of 8 columns is number c of a fragment.
    FUSEDNN_DEVICE static int dealt(int c) { return c ^ (c >> 2); }
    FUSEDNN_DEVICE static int column(int n) {
        return n / 2 * 8 + dealt(int(threadIdx.x) % 4 * 2 + n % 2);
    }

    template <int kA, int kB>
    FUSEDNN_DEVICE static void multiply(const Format&, Scores& s, const float (&a)[kA][kStride],
                                        const float (&b)[kB][kStride], int depth) {
        const int lane = int(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
#pragma unroll 1
        for (int d = 0; d < depth; d += 8) {
            std::uint32_t x[kDown][4];
#pragma unroll
            for (int f = 0; f < kDown; ++f) {
                const float2 upper = *reinterpret_cast<const float2*>(&a[row(2 * f)][d + 2 * t]);
                const float2 lower =
                    *reinterpret_cast<const float2*>(&a[row(2 * f + 1)][d + 2 * t]);
                x[f][0] = attention_tf32(upper.x);
                x[f][1] = attention_tf32(lower.x);
                x[f][2] = attention_tf32(upper.y);
                x[f][3] = attention_tf32(lower.y);
            }
#pragma unroll
            for (int j = 0; j < kColumns / 8; ++j) {
                const float2 pair =
                    *reinterpret_cast<const float2*>(&b[j * 8 + dealt(g)][d + 2 * t]);
                const std::uint32_t y[2] = {attention_tf32(pair.x), attention_tf32(pair.y)};
#pragma unroll
                for (int f = 0; f < kDown; ++f) {
                    Base::add(s, f, j, [&](float (&sum)[4]) { mma_tf32(sum, x[f], y); });
                }
            }
        }
    }

    FUSEDNN_DEVICE static void put(const Format&, const Scores& w, Exchange& exchange) {
        __syncwarp();
#pragma unroll
        for (int i = 0; i < kRowsOfLane; ++i)
#pragma unroll
            for (int n = 0; n < kColumnsOfLane; ++n) exchange.of[row(i)][column(n)] = w[i][n];
        __syncwarp();
    }

    template <int kB>
    FUSEDNN_DEVICE static void add_rows(const Format&, Out& out, const Scores& w, Exchange&,
                                        const float (&b)[kB][kStride], int width) {
        const int g = int(threadIdx.x) % 32 / 4;
#pragma unroll
        for (int j = 0; j < kColumns / 8; ++j) {
            std::uint32_t x[kDown][4];
#pragma unroll
            for (int f = 0; f < kDown; ++f) {
                x[f][0] = attention_tf32(w[2 * f][2 * j]);
                x[f][1] = attention_tf32(w[2 * f + 1][2 * j]);
                x[f][2] = attention_tf32(w[2 * f][2 * j + 1]);
                x[f][3] = attention_tf32(w[2 * f + 1][2 * j + 1]);
            }
#pragma unroll
            for (int m = 0; m < kOutOfLane / 2; ++m) {
                if (m * 8 >= width) break;
                const std::uint32_t y[2] = {attention_tf32(b[column(2 * j)][m * 8 + g]),
                                            attention_tf32(b[column(2 * j + 1)][m * 8 + g])};
#pragma unroll
                for (int f = 0; f < kDown; ++f) {
                    Base::add(out, f, m, [&](float (&sum)[4]) { mma_tf32(sum, x[f], y); });
                }
            }
        }
    }
};

// 16-bit floats, of either format.
template <int kRowsOfLane_, int kColumns_, int kDim_, int kBlocks_>
struct Halves : Fragments<kRowsOfLane_, kColumns_, kDim_, kBlocks_> {
    using Base = Fragments<kRowsOfLane_, kColumns_, kDim_, kBlocks_>;
    using Base::kColumns, Base::kColumnsOfLane, Base::kDim, Base::kOutOfLane, Base::kRows,
        Base::kRowsOfLane, Base::kStride, Base::kDown, Base::row, Base::first_row;
    using typename Base::Out, typename Base::Scores;
    using Value = HalfBits;
    using Format = cuda::Format<HalfBits>;
    struct alignas(16) Exchange {
        HalfBits of[kRows][kColumns + 8];
    };

    FUSEDNN_DEVICE static int column(int n) { return n / 2 * 8 + int(threadIdx.x) % 4 * 2 + n % 2; }

    template <int kA, int kB>
    FUSEDNN_DEVICE static void multiply(const Format& format, Scores& s,
                                        const HalfBits (&a)[kA][kStride],
                                        const HalfBits (&b)[kB][kStride], int depth) {
        if (format.brain) {
            multiply_as<BFloat16>(s, a, b, depth);
        } else {
            multiply_as<Float16>(s, a, b, depth);
        }
    }

    FUSEDNN_DEVICE static void put(const Format& format, const Scores& w, Exchange& exchange) {
        __syncwarp();
#pragma unroll
        for (int i = 0; i < kRowsOfLane; ++i)
#pragma unroll
            for (int n = 0; n < kColumnsOfLane; ++n) {
                exchange.of[row(i)][column(n)] = format.narrow(w[i][n]);
            }
        __syncwarp();
    }

    template <int kB>
    FUSEDNN_DEVICE static void add_rows(const Format& format, Out& out, const Scores& w, Exchange&,
                                        const HalfBits (&b)[kB][kStride], int width) {
        if (format.brain) {
            add_rows_as<BFloat16>(out, w, b, width);
        } else {
            add_rows_as<Float16>(out, w, b, width);
        }
    }

  private:
    // One copy for each format. A choice within the loops makes of each product two, one of them
    // idle, and copies of all sums.
    template <class Half, int kA, int kB>
    FUSEDNN_DEVICE static void multiply_as(Scores& s, const HalfBits (&a)[kA][kStride],
                                           const HalfBits (&b)[kB][kStride], int depth) {
        const int lane = int(threadIdx.x) % 32;
#pragma unroll 1
        for (int d = 0; d < depth; d += 16) {
            std::uint32_t x[kDown][4];
#pragma unroll
            for (int f = 0; f < kDown; ++f) {
                load_matrix_x4(x[f], &a[first_row() + f * 16 + lane % 16][d + lane / 16 * 8]);
            }
#pragma unroll
            for (int j = 0; j < kColumns / 16; ++j) {
                std::uint32_t r[4];
                load_matrix_x4(r, &b[j * 16 + lane % 8 + lane / 16 * 8][d + lane / 8 % 2 * 8]);
                pair<Half>(s, x, r, j);
            }
        }
    }

    template <class Half, int kB>
    FUSEDNN_DEVICE static void add_rows_as(Out& out, const Scores& w,
                                           const HalfBits (&b)[kB][kStride], int width) {
        const int lane = int(threadIdx.x) % 32;
#pragma unroll
        for (int j = 0; j < kColumns / 16; ++j) {
            std::uint32_t x[kDown][4];
#pragma unroll
            for (int f = 0; f < kDown; ++f) {
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    const int i = 2 * f + e % 2, n = 4 * j + e / 2 * 2;
                    x[f][e] = narrow_pair<Half>(w[i][n], w[i][n + 1]);
                }
            }
#pragma unroll
            for (int m = 0; m < kDim / 16; ++m) {
                if (m * 16 >= width) break;
                std::uint32_t r[4];
                load_matrix_x4_transposed(r, &b[j * 16 + lane % 16][m * 16 + lane / 16 * 8]);
                pair<Half>(out, x, r, m);
            }
        }
    }

    // Two fragments side by side.
    template <class Half, int kSums>
    FUSEDNN_DEVICE static void pair(float (&s)[kRowsOfLane][kSums],
                                    const std::uint32_t (&x)[kDown][4], const std::uint32_t (&r)[4],
                                    int across) {
        const std::uint32_t y[2][2] = {{r[0], r[1]}, {r[2], r[3]}};
#pragma unroll
        for (int f = 0; f < kDown; ++f)
#pragma unroll
            for (int side = 0; side < 2; ++side) {
                Base::add(s, f, 2 * across + side, [&](float (&sum)[4]) {
                    if constexpr (std::is_same_v<Half, BFloat16>) {
                        mma_bf16(sum, x[f], y[side]);
                    } else {
                        mma_f16(sum, x[f], y[side]);
                    }
                });
            }
    }
};

// ---- for all kinds
// -------------------------------------------------------------------------------

// The others move one on and `last` follows. A loop that takes row[0] each time and ends with this
// has gone once around, with one copy of its body: what masks, softcaps and dropout need is most of
// a kernel's machine code otherwise. (An index that runs would keep the row out of registers.)
template <class T, int kCount>
FUSEDNN_DEVICE void turn(T (&row)[kCount], T last) {
#pragma unroll
    for (int n = 1; n < kCount; ++n) row[n - 1] = row[n];
    row[kCount - 1] = last;
}

// The same for the rows of a lane, of which the first has changed.
template <class T, int kRows, int kCount>
FUSEDNN_DEVICE void turn_rows(T (&rows)[kRows][kCount]) {
#pragma unroll
    for (int m = 0; m < kCount; ++m) {
        const T first = rows[0][m];
#pragma unroll
        for (int i = 1; i < kRows; ++i) rows[i - 1][m] = rows[i][m];
        rows[kRows - 1][m] = first;
    }
}
template <class T, int kRows, int kCount>
FUSEDNN_DEVICE void copy(T (&to)[kRows][kCount], const T (&from)[kRows][kCount]) {
#pragma unroll
    for (int i = 0; i < kRows; ++i)
#pragma unroll
        for (int n = 0; n < kCount; ++n) to[i][n] = from[i][n];
}
template <class Array>
FUSEDNN_DEVICE void clear(Array& sums) {
#pragma unroll
    for (auto& row : sums)
#pragma unroll
        for (auto& sum : row) sum = 0;
}

// out += w b as Math::add_rows, but weights of 0 add nothing, whatever they meet: NaN and
// infinities of a hidden key do not matter. Only where there are some; slow.
template <class Math, class Tile>
FUSEDNN_DEVICE void careful_add(const typename Math::Format& format, typename Math::Out& out,
                                const typename Math::Scores& w, typename Math::Exchange& exchange,
                                const Tile& b, int width) {
    using Sum = typename Math::Sum;
    Math::put(format, w, exchange);
#pragma unroll 1
    for (int j = 0; j < Math::kColumns; ++j) {
#pragma unroll 1
        for (int i = 0; i < Math::kRowsOfLane; ++i) {
            const Sum weight = format.widen(exchange.of[Math::row(i)][j]);
            const int columns = weight == Sum(0) ? 0 : width;
#pragma unroll
            for (int m = 0; m < Math::kOutOfLane; ++m) {
                const int column = Math::out_column(m);
                if (column < columns) out[0][m] += weight * format.widen(b[j][column]);
            }
            turn_rows(out);
        }
    }
}

template <class Math, class Tile>
FUSEDNN_DEVICE void add_rows(const typename Math::Format& format, bool careful,
                             typename Math::Out& out, const typename Math::Scores& w,
                             typename Math::Exchange& exchange, const Tile& b, int width) {
    if (careful) {
        careful_add<Math>(format, out, w, exchange, b, width);
    } else {
        Math::add_rows(format, out, w, exchange, b, width);
    }
}

// Whether all sums of this thread are numbers.
template <class Math>
FUSEDNN_DEVICE bool all_finite(const typename Math::Out& out) {
    using Sum = typename Math::Sum;
    Sum zero = 0;
#pragma unroll
    for (int i = 0; i < Math::kRowsOfLane; ++i)
#pragma unroll
        for (int m = 0; m < Math::kOutOfLane; ++m) zero += out[i][m] * Sum(0);
    return zero == zero;
}

// Over the four lanes of a row.
template <class T, class Combine>
FUSEDNN_DEVICE T row_reduce(T value, Combine combine) {
    return warp_reduce<4>(value, combine);
}

namespace detail {
template <class T, int kRun>
struct alignas(sizeof(T) * kRun) StoreRun {
    T of[kRun];
};
}  // namespace detail

// The columns [column0, columns) of this lane's rows that exist, as far as the tile reaches, each
// value times its row's factor. `out` is used up.
template <class Math, class T>
FUSEDNN_DEVICE void store_rows(const Format<T>& format, typename Math::Out& out, const Rows<T>& to,
                               int row0, int rows, int column0, int columns,
                               typename Math::Sum (&factor)[Math::kRowsOfLane]) {
    constexpr int kRun = Math::kOutRun;
    using Run = detail::StoreRun<T, kRun>;
    const bool wide = to.wide() && column0 % kRun == 0;
#pragma unroll 1
    for (int i = 0; i < Math::kRowsOfLane; ++i) {
        const int row = row0 + Math::row(i), first = column0 + Math::out_column(0);
        const int all = row < rows ? columns - first : 0;
        T* const line = to[row] + first;
#pragma unroll
        for (int m = 0; m < Math::kOutOfLane; m += kRun) {
            // A constant: the rest of the address goes into the instruction.
            const int column = Math::out_column(m) - Math::out_column(0), left = all - column;
            Run run;
#pragma unroll
            for (int k = 0; k < kRun; ++k) run.of[k] = format.narrow(out[0][m + k] * factor[0]);
            if (wide && left >= kRun) {
                *reinterpret_cast<Run*>(line + column) = run;
            } else {
#pragma unroll
                for (int k = 0; k < kRun; ++k) {
                    if (k < left) line[column + k] = run.of[k];
                }
            }
        }
        turn(factor, factor[0]);
#pragma unroll
        for (int next = 1; next < Math::kRowsOfLane; ++next)
#pragma unroll
            for (int m = 0; m < Math::kOutOfLane; ++m) out[next - 1][m] = out[next][m];
    }
}

}  // namespace fusednn::cuda
