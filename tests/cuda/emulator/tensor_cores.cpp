// Products of fragments, and loads of matrices from shared memory. Fragments are laid out as in the
// PTX ISA; with g = lane / 4 and t = lane % 4:
//
//   C, D 16 x 8          c0, c1 -> (g, 2t), (g, 2t + 1)        c2, c3 -> the same of row g + 8
//   A 16 x 16, 16 bits   r0 -> (g, 2t ..)      r1 -> (g + 8, 2t ..)      two values to a register
//                        r2 -> (g, 2t + 8 ..)  r3 -> (g + 8, 2t + 8 ..)
//   B 16 x 8, 16 bits    r0 -> (2t .., g)      r1 -> (2t + 8 .., g)
//   A 16 x 8, tf32       r0 -> (g, t)  r1 -> (g + 8, t)  r2 -> (g, t + 4)  r3 -> (g + 8, t + 4)
//   B 8 x 8, tf32        r0 -> (t, g)  r1 -> (t + 4, g)
//   A 8 x 4, f64         (g, t);   B 4 x 8, f64  (t, g);   C, D 8 x 8, f64  (g, 2t), (g, 2t + 1)
//
// Products are added in the order of k, in float (or double); a GPU rounds and orders differently.
#include <algorithm>

#include "emulator/state.h"

// The bodies are declared beside the functions that use them.
namespace emulator {
void mma_bf16_body(WarpWords&, std::uint32_t mask);
void mma_f16_body(WarpWords&, std::uint32_t mask);
void mma_tf32_body(WarpWords&, std::uint32_t mask);
void mma_f64_body(WarpWords&, std::uint32_t mask);

namespace {

template <int K>
void multiply(WarpWords& words, const float (&a)[16][K], const float (&b)[K][8]) {
    ++machine.counts.mma;
    float d[16][8];
    const auto element = [&](int l, int i) -> float& {
        return d[l / 4 + 8 * (i / 2)][l % 4 * 2 + i % 2];
    };
    for (int l = 0; l < 32; ++l) {
        for (int i = 0; i < 4; ++i) element(l, i) = bits<float>(words.in[l][6 + i]);
    }
    for (int i = 0; i < 16; ++i) {
        for (int k = 0; k < K; ++k) {
            for (int j = 0; j < 8; ++j) d[i][j] += a[i][k] * b[k][j];
        }
    }
    for (int l = 0; l < 32; ++l) {
        for (int i = 0; i < 4; ++i) words.out[l][i] = bits<std::uint32_t>(element(l, i));
    }
}

template <class ToFloat>
void multiply_16bit(WarpWords& words, ToFloat to_float) {
    float a[16][16], b[16][8];
    for (int l = 0; l < 32; ++l) {
        const int g = l / 4, t = l % 4;
        const auto half = [&](int word, int h) {
            return to_float(std::uint16_t(words.in[l][word] >> 16 * h));
        };
        for (int h = 0; h < 2; ++h) {
            for (int r = 0; r < 4; ++r) a[g + 8 * (r % 2)][2 * t + 8 * (r / 2) + h] = half(r, h);
            for (int r = 0; r < 2; ++r) b[2 * t + 8 * r + h][g] = half(4 + r, h);
        }
    }
    multiply<16>(words, a, b);
}

struct MatrixRow {
    const unsigned char* row;
    std::int32_t count, transposed;
};

void load_body(WarpWords& words, std::uint32_t) {
    ++machine.counts.load_matrix;
    MatrixRow in[32];
    for (int l = 0; l < 32; ++l) std::memcpy(&in[l], words.in[l], sizeof in[l]);
    for (int m = 0; m < in[0].count; ++m) {
        std::uint16_t e[8][8];
        int banks[8] = {}, worst = 0;
        for (int r = 0; r < 8; ++r) {
            const int l = 8 * m + r;
            const unsigned char* row = in[l].row;
            const Site site = machine.current->warp->fiber[l]->site;
            const std::string what = "load_matrix at " + text(site) + ": the row of lane " +
                                     std::to_string(l) + " is not ";
            if (!in_shared(row)) stop(what + "in shared memory");
            if (std::uintptr_t(row) % 16) stop(what + "at a multiple of 16 bytes");
            touch(row, 16, Access::read, l, site);
            std::memcpy(e[r], row, 16);
            worst = std::max(worst, ++banks[std::uintptr_t(row) / 16 % 8]);
        }
        machine.counts.load_matrix_conflicts += std::uint64_t(worst - 1);
        for (int l = 0; l < 32; ++l) {
            const int a = l / 4, b = l % 4 * 2;
            const std::uint32_t low = in[0].transposed ? e[b][a] : e[a][b];
            const std::uint32_t high = in[0].transposed ? e[b + 1][a] : e[a][b + 1];
            words.out[l][m] = low | high << 16;
        }
    }
}

}  // namespace

void mma_bf16_body(WarpWords& words, std::uint32_t) {
    multiply_16bit(words,
                   [](std::uint16_t half) { return bits<float>(std::uint32_t(half) << 16); });
}

void mma_f16_body(WarpWords& words, std::uint32_t) {
    multiply_16bit(words, [](std::uint16_t half) { return __half2float(__half{half}); });
}

void mma_tf32_body(WarpWords& words, std::uint32_t) {
    // The hardware does not look at the lower 13 bits.
    const auto value = [&](int l, int word) {
        return bits<float>(words.in[l][word] & 0xffffe000u);
    };
    float a[16][8], b[8][8];
    for (int l = 0; l < 32; ++l) {
        const int g = l / 4, t = l % 4;
        for (int r = 0; r < 4; ++r) a[g + 8 * (r % 2)][t + 4 * (r / 2)] = value(l, r);
        for (int r = 0; r < 2; ++r) b[t + 4 * r][g] = value(l, 4 + r);
    }
    multiply<8>(words, a, b);
}

void mma_f64_body(WarpWords& words, std::uint32_t) {
    ++machine.counts.mma;
    double in[32][4];  // a, b, c0, c1
    for (int l = 0; l < 32; ++l) std::memcpy(in[l], words.in[l], sizeof in[l]);
    for (int l = 0; l < 32; ++l) {
        const int row = l / 4, column = l % 4 * 2;
        double d[2] = {in[l][2], in[l][3]};
        for (int k = 0; k < 4; ++k) {
            const double a = in[row * 4 + k][0];
            for (int j = 0; j < 2; ++j) d[j] = fma(a, in[(column + j) * 4 + k][1], d[j]);
        }
        std::memcpy(words.out[l], d, sizeof d);
    }
}

void load_matrix(std::uint32_t* r, int count, bool transposed, const void* row, Site site) {
    const MatrixRow in{static_cast<const unsigned char*>(row), count, transposed};
    warp_operation(transposed ? "load_matrix_transposed" : "load_matrix", load_body, 0xffffffffu,
                   true, site, &in, sizeof in, r, std::size_t(count) * 4);
}

}  // namespace emulator
