// Which weights dropout keeps: the same as on the CPU, see cpu/attention/dropout.h. Philox 4x32-10
// of Salmon et al. (SC 2011), a function of key and position alone.
#pragma once
#include "cuda/attention/problem.h"

namespace fusednn::cuda {

// Keys j, j + 16, j + 32 and j + 48 of a group of 64 share a call: its words 0 to 3.
struct DropoutWords {
    std::uint32_t of[4];
};

FUSEDNN_DEVICE DropoutWords dropout_words(std::uint64_t key, std::uint64_t head, std::uint32_t row,
                                          std::uint32_t group, std::uint32_t key_in_16) {
    std::uint32_t x0 = group * 16 + key_in_16, x1 = row;
    std::uint32_t x2 = std::uint32_t(head), x3 = std::uint32_t(head >> 32);
    std::uint32_t k0 = std::uint32_t(key), k1 = std::uint32_t(key >> 32);
#pragma unroll
    for (int round = 0; round < 10; ++round) {
        const std::uint64_t a = std::uint64_t(x0) * 0xd2511f53u;
        const std::uint64_t b = std::uint64_t(x2) * 0xcd9e8d57u;
        x0 = std::uint32_t(b >> 32) ^ x1 ^ k0;
        x1 = std::uint32_t(b);
        x2 = std::uint32_t(a >> 32) ^ x3 ^ k1;
        x3 = std::uint32_t(a);
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    return {{x0, x1, x2, x3}};
}

// A call's dropout, as the kernels need it.
struct Dropout {
    bool on;
    std::uint64_t key;
    std::uint64_t bound;  // a word below this drops; with probability 1 all do
    double factor;        // of what is kept

    template <class T>
    static Dropout of(const AttentionParams<T>& p) {
        return {p.dropout > 0, p.dropout_key, std::uint64_t(p.dropout * 4294967296.0),
                p.dropout < 1 ? 1 / (1 - p.dropout) : 0.0};
    }
    FUSEDNN_DEVICE bool keeps(std::uint64_t head, int row, int j) const {
        const DropoutWords words = dropout_words(key, head, std::uint32_t(row),
                                                 std::uint32_t(j / 64), std::uint32_t(j % 16));
        const int word = j % 64 / 16;
        const std::uint32_t one = word < 2 ? (word == 0 ? words.of[0] : words.of[1])
                                           : (word == 2 ? words.of[2] : words.of[3]);
        return one >= bound;
    }
};

}  // namespace fusednn::cuda
