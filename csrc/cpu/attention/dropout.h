// Which weights dropout keeps: Philox 4x32-10 (Salmon, Moraes, Dror, Shaw, "Parallel random
// numbers: as easy as 1, 2, 3", SC 2011), a function of key and position alone, so that backward
// (and any other device) draws the same.
#pragma once
#include "cpu/attention/problem.h"

namespace fusednn {
namespace FUSEDNN_ISA {

// Keys that share a call of the generator: 16 counters of 4 words.
constexpr i64 kDropoutGroup = 64;

// words[w * 16 + c]: word w of the counter (16 * group + c, row, head low, head high).
inline void philox_words(std::uint64_t key, std::uint64_t head, std::uint32_t row,
                         std::uint32_t group, std::uint32_t* words) {
    constexpr int count = 16;
    std::uint32_t x0[count], x1[count], x2[count], x3[count];
    for (int c = 0; c < count; ++c) {
        x0[c] = group * count + std::uint32_t(c);
        x1[c] = row;
        x2[c] = std::uint32_t(head);
        x3[c] = std::uint32_t(head >> 32);
    }
    std::uint32_t k0 = std::uint32_t(key), k1 = std::uint32_t(key >> 32);
    for (int round = 0; round < 10; ++round) {
        for (int c = 0; c < count; ++c) {
            const std::uint64_t a = std::uint64_t(x0[c]) * 0xd2511f53u;
            const std::uint64_t b = std::uint64_t(x2[c]) * 0xcd9e8d57u;
            x0[c] = std::uint32_t(b >> 32) ^ x1[c] ^ k0;
            x1[c] = std::uint32_t(b);
            x2[c] = std::uint32_t(a >> 32) ^ x3[c] ^ k1;
            x3[c] = std::uint32_t(a);
        }
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    for (int c = 0; c < count; ++c) {
        words[c] = x0[c];
        words[count + c] = x1[c];
        words[2 * count + c] = x2[c];
        words[3 * count + c] = x3[c];
    }
}

// The factors of a row's weights: keep[j - key0] = 0 or 1 / (1 - dropout) for the keys [begin,
// end). key0 is a multiple of kDropoutGroup; `head` counts through the heads of all sequences.
template <class T>
inline void dropout_factors(const AttentionParams<T>& p, i64 head, i64 row, i64 key0, KeyRange keys,
                            T* keep) {
    // A word below this drops; at dropout 1 all do.
    const double threshold = p.dropout * 4294967296.0;
    const std::uint64_t bound = std::uint64_t(threshold);
    const T factor = p.dropout < 1 ? T(1 / (1 - p.dropout)) : T(0);
    for (i64 group = keys.begin / kDropoutGroup; group * kDropoutGroup < keys.end; ++group) {
        std::uint32_t words[kDropoutGroup];
        philox_words(p.dropout_key, std::uint64_t(head), std::uint32_t(row), std::uint32_t(group),
                     words);
        T* out = keep + group * kDropoutGroup - key0;
        for (int j = 0; j < kDropoutGroup; ++j) out[j] = words[j] >= bound ? factor : T(0);
    }
}

}  // namespace FUSEDNN_ISA
}  // namespace fusednn
