// Attention forward, backward and weights against loops over all pairs.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernel/support.h"

namespace fusednn::test {

namespace {

enum class Rule { none, causal, lower_right, mask, bias, window, lengths, softcap };

struct Sizes {
    i64 batch, heads, kv_heads, queries, keys, dim, value_dim;
};

std::string text(const Sizes& s, Rule rule) {
    std::string name;
    for (i64 n : {s.batch, s.heads, s.kv_heads, s.queries, s.keys, s.dim, s.value_dim}) {
        name += (name.empty() ? "" : "x") + std::to_string(n);
    }
    return name + " rule " + std::to_string(int(rule));
}

// All arrays of a case, and what the loops make of them.
template <class T>
struct Problem {
    Sizes size;
    Rule rule;
    std::vector<T> q, k, v, grad, bias;
    std::vector<std::uint8_t> mask;
    std::vector<i64> lengths;
    AttentionParams<T> p{};
    // Exact: weights, output, gradients.
    std::vector<double> w, o, dq, dk, dv, dbias;

    // half: keys and values are numbers of bfloat16.
    Problem(const Sizes& s, Rule r, bool half = false) : size(s), rule(r) {
        Random random(std::uint64_t(s.queries * 1000 + s.keys) + std::uint64_t(r));
        q = random.array<T>(s.batch * s.heads * s.queries * s.dim);
        k = random.array<T>(s.batch * s.kv_heads * s.keys * s.dim);
        v = random.array<T>(s.batch * s.kv_heads * s.keys * s.value_dim);
        if (half) {
            for (std::vector<T>* x : {&k, &v}) {
                for (T& value : *x) value = T(std::nearbyint(double(value) * 128) / 128);
            }
        }
        grad = random.array<T>(s.batch * s.heads * s.queries * s.value_dim);
        bias = random.array<T>(s.heads * s.queries * s.keys);
        for (i64 i = 0; i < s.batch * s.queries * s.keys; ++i) {
            mask.push_back(std::uint8_t(random.below(3) != 0));
        }
        for (i64 b = 0; b < s.batch; ++b) lengths.push_back(random.below(s.keys + 1));
        fill_params();
        compute();
    }

    // Of the softcap at a score.
    double slope(i64 b, i64 h, i64 i, i64 j) const {
        if (!(p.softcap > 0)) return 1;
        const i64 query = ((b * size.heads + h) * size.queries + i) * size.dim;
        const i64 key = ((b * size.kv_heads + kv(h)) * size.keys + j) * size.dim;
        double x = 0;
        for (i64 d = 0; d < size.dim; ++d) {
            x += double(q[std::size_t(query + d)]) * double(k[std::size_t(key + d)]);
        }
        const double t = std::tanh(x * p.scale / p.softcap);
        return 1 - t * t;
    }
    i64 kv(i64 h) const { return h / (size.heads / size.kv_heads); }
    i64 score(i64 b, i64 h, i64 i, i64 j) const {
        return ((b * size.heads + h) * size.queries + i) * size.keys + j;
    }
    template <class V>
    static HeadArray<V> heads(V* data, i64 count, i64 rows, i64 width) {
        return {data, count * rows * width, rows * width, width};
    }

  private:
    void fill_params() {
        const i64 far = i64(1) << 40;
        p.batch = size.batch;
        p.heads = size.heads;
        p.kv_heads = size.kv_heads;
        p.queries = size.queries;
        p.keys = size.keys;
        p.dim = size.dim;
        p.value_dim = size.value_dim;
        p.query = heads<const T>(q.data(), size.heads, size.queries, size.dim);
        p.key = heads<const T>(k.data(), size.kv_heads, size.keys, size.dim);
        p.value = heads<const T>(v.data(), size.kv_heads, size.keys, size.value_dim);
        p.left = rule == Rule::window ? 5 : far;
        p.right = rule == Rule::causal || rule == Rule::lower_right ? 0
                  : rule == Rule::window                            ? 3
                                                                    : far;
        p.lower_right = rule == Rule::lower_right;
        p.sequences = 1;
        p.scale = 0.7;
        const i64 rows = size.queries * size.keys;
        if (rule == Rule::mask) {
            p.mask = mask.data();
            const i64 strides[4] = {rows, 0, size.keys, 1};
            std::copy(strides, strides + 4, p.mask_stride);
        }
        if (rule == Rule::bias || rule == Rule::softcap) {
            p.bias = bias.data();
            const i64 strides[4] = {0, rows, size.keys, 1};
            std::copy(strides, strides + 4, p.bias_stride);
        }
        if (rule == Rule::lengths) p.key_lengths = lengths.data();
        if (rule == Rule::softcap) p.softcap = 1.25;
    }

    bool sees(i64 b, i64 i, i64 j) const {
        const i64 at = i + (p.lower_right ? size.keys - size.queries : 0);
        if (j < at - p.left || j > at + p.right) return false;
        if (p.mask && !mask[std::size_t((b * size.queries + i) * size.keys + j)]) return false;
        return !p.key_lengths || j < lengths[std::size_t(b)];
    }

    void compute() {
        w.assign(std::size_t(size.batch * size.heads * size.queries * size.keys), 0);
        o.assign(grad.size(), 0);
        dq.assign(q.size(), 0);
        dk.assign(k.size(), 0);
        dv.assign(v.size(), 0);
        dbias.assign(bias.size(), 0);
        for (i64 b = 0; b < size.batch; ++b) {
            for (i64 h = 0; h < size.heads; ++h) {
                for (i64 i = 0; i < size.queries; ++i) row(b, h, i);
            }
        }
    }

    void row(i64 b, i64 h, i64 i) {
        const i64 at_q = ((b * size.heads + h) * size.queries + i) * size.dim;
        const i64 at_o = ((b * size.heads + h) * size.queries + i) * size.value_dim;
        const i64 first = (b * size.kv_heads + kv(h)) * size.keys;
        std::vector<double> s(std::size_t(size.keys), -INFINITY), slope(s.size(), 1), dp(s.size());
        double top = -INFINITY, sum = 0, mean = 0;
        for (i64 j = 0; j < size.keys; ++j) {
            if (!sees(b, i, j)) continue;
            double x = 0;
            for (i64 d = 0; d < size.dim; ++d) {
                x += double(q[at_q + d]) * double(k[(first + j) * size.dim + d]);
            }
            x *= p.scale;
            if (p.softcap > 0) {
                const double t = std::tanh(x / p.softcap);
                slope[j] = 1 - t * t;
                x = t * p.softcap;
            }
            if (p.bias) x += double(bias[(h * size.queries + i) * size.keys + j]);
            s[j] = x;
            top = std::max(top, x);
        }
        for (i64 j = 0; j < size.keys; ++j) sum += std::isinf(s[j]) ? 0 : std::exp(s[j] - top);
        for (i64 j = 0; j < size.keys; ++j) {
            if (std::isinf(s[j])) continue;
            const double weight = w[score(b, h, i, j)] = std::exp(s[j] - top) / sum;
            for (i64 d = 0; d < size.value_dim; ++d) {
                const double value = double(v[(first + j) * size.value_dim + d]);
                const double g = double(grad[at_o + d]);
                o[at_o + d] += weight * value;
                dp[j] += g * value;
                dv[(first + j) * size.value_dim + d] += weight * g;
            }
            mean += weight * dp[j];
        }
        for (i64 j = 0; j < size.keys; ++j) {
            const double ds = w[score(b, h, i, j)] * (dp[j] - mean);
            dbias[(h * size.queries + i) * size.keys + j] += ds;
            for (i64 d = 0; d < size.dim; ++d) {
                dq[at_q + d] += ds * slope[j] * p.scale * double(k[(first + j) * size.dim + d]);
                dk[(first + j) * size.dim + d] += ds * slope[j] * p.scale * double(q[at_q + d]);
            }
        }
    }
};

// Inputs are below 1, so weights' relative errors (of a dozen roundings for scores that are sums of
// `dim` products) reach sums of weights as they are, and sums over queries root by root.
template <class T>
Expected expect(const std::vector<double>& values, const Sizes& s, i64 terms) {
    Expected e;
    const double allowed = eps<T>() * (16 + double(s.dim)) * std::sqrt(double(terms) + 1);
    for (double value : values) e.push(value, allowed);
    return e;
}

// Gradients where the weights are the result: dq and dk of sum(dw * weights).
template <class T>
void weights_case(const Problem<T>& problem, const std::string& name) {
    const Sizes& s = problem.size;
    const i64 rows = s.batch * s.heads * s.queries;
    const std::vector<T> dw = Random(7).array<T>(rows * s.keys);
    std::vector<double> dq(problem.q.size(), 0), dk(problem.k.size(), 0);
    for (i64 row = 0; row < rows; ++row) {
        const i64 h = row / s.queries % s.heads, b = row / s.queries / s.heads;
        const double* w = problem.w.data() + row * s.keys;
        double mean = 0;
        for (i64 j = 0; j < s.keys; ++j) mean += w[j] * double(dw[std::size_t(row * s.keys + j)]);
        for (i64 j = 0; j < s.keys; ++j) {
            const i64 key = ((b * s.kv_heads + problem.kv(h)) * s.keys + j) * s.dim;
            const double ds = w[j] * (double(dw[std::size_t(row * s.keys + j)]) - mean) *
                              problem.slope(b, h, row % s.queries, j) * problem.p.scale;
            for (i64 d = 0; d < s.dim; ++d) {
                dq[std::size_t(row * s.dim + d)] += ds * double(problem.k[std::size_t(key + d)]);
                dk[std::size_t(key + d)] += ds * double(problem.q[std::size_t(row * s.dim + d)]);
            }
        }
    }
    const i64 shared = s.queries * (s.heads / s.kv_heads);
    check<T>("attention_weights_backward " + name, {expect<T>(dq, s, 1), expect<T>(dk, s, shared)},
             [&](const KernelTable<T>& table, T* const* out) {
                 std::vector<T> weights(dw.size() + 1), stats(std::size_t(2 * rows) + 1);
                 AttentionParams<T> p = problem.p;
                 p.value_dim = 0;
                 p.value = {nullptr, 0, 0, 0};
                 table.attention_forward(p, {nullptr, 0, 0, 0}, stats.data());
                 table.attention_weights(p, stats.data(), weights.data());
                 AttentionGradients<T> g{};
                 g.of_weights = true;
                 g.output = Problem<T>::template heads<const T>(weights.data(), s.heads, s.queries,
                                                                s.keys);
                 g.grad =
                     Problem<T>::template heads<const T>(dw.data(), s.heads, s.queries, s.keys);
                 g.stats = stats.data();
                 g.query = Problem<T>::heads(out[0], s.heads, s.queries, s.dim);
                 g.key = Problem<T>::heads(out[1], s.kv_heads, s.keys, s.dim);
                 table.attention_backward(p, g);
             });
}

// Keys and values as halves of floats: the problem's own have to be such.
void half_case(const Problem<float>& problem, const std::string& name) {
    const Sizes& s = problem.size;
    const auto halves = [](const std::vector<float>& x) {
        std::vector<BFloat16> result(x.size() + 1);
        for (std::size_t i = 0; i < x.size(); ++i) {
            std::uint32_t bits;
            std::memcpy(&bits, &x[i], sizeof bits);
            result[i] = {std::uint16_t(bits >> 16)};
        }
        return result;
    };
    const std::vector<BFloat16> k = halves(problem.k), v = halves(problem.v);
    AttentionParams<float> p = problem.p;
    p.key = p.value = {nullptr, 0, 0, 0};
    p.half_key = Problem<float>::heads<const BFloat16>(k.data(), s.kv_heads, s.keys, s.dim);
    p.half_value = Problem<float>::heads<const BFloat16>(v.data(), s.kv_heads, s.keys, s.value_dim);
    check<float>("attention_forward bfloat16 " + name,
                 {expect<float>(problem.o, s, 1), expect<float>(problem.w, s, 1)},
                 [&](const KernelTable<float>& table, float* const* out) {
                     std::vector<float> stats(std::size_t(2 * s.batch * s.heads * s.queries) + 1);
                     table.attention_forward(
                         p, Problem<float>::heads(out[0], s.heads, s.queries, s.value_dim),
                         stats.data());
                     table.attention_weights(p, stats.data(), out[1]);
                 });
}

template <class T>
void attention_case(const Sizes& s, Rule rule) {
    const Problem<T> problem(s, rule);
    const AttentionParams<T>& p = problem.p;
    const std::string name = text(s, rule);
    const i64 rows = s.batch * s.heads * s.queries;
    const i64 shared = s.queries * (s.heads / s.kv_heads);
    const auto forward = [&](const KernelTable<T>& table, T* output, T* stats) {
        table.attention_forward(p, Problem<T>::heads(output, s.heads, s.queries, s.value_dim),
                                stats);
    };
    check<T>("attention_forward " + name, {expect<T>(problem.o, s, 1)},
             [&](const KernelTable<T>& table, T* const* out) { forward(table, out[0], nullptr); });
    check<T>("attention_weights " + name, {expect<T>(problem.w, s, 1)},
             [&](const KernelTable<T>& table, T* const* out) {
                 std::vector<T> output(problem.o.size() + 1), stats(std::size_t(2 * rows) + 1);
                 forward(table, output.data(), stats.data());
                 table.attention_weights(p, stats.data(), out[0]);
             });
    std::vector<Expected> expected = {expect<T>(problem.dq, s, 1), expect<T>(problem.dk, s, shared),
                                      expect<T>(problem.dv, s, shared)};
    if (p.bias) expected.push_back(expect<T>(problem.dbias, s, s.batch));
    check<T>(
        "attention_backward " + name, expected, [&](const KernelTable<T>& table, T* const* out) {
            std::vector<T> output(problem.o.size() + 1), stats(std::size_t(2 * rows) + 1);
            forward(table, output.data(), stats.data());
            AttentionGradients<T> g{};
            g.output =
                Problem<T>::template heads<const T>(output.data(), s.heads, s.queries, s.value_dim);
            g.grad = Problem<T>::template heads<const T>(problem.grad.data(), s.heads, s.queries,
                                                         s.value_dim);
            g.stats = stats.data();
            g.query = Problem<T>::heads(out[0], s.heads, s.queries, s.dim);
            g.key = Problem<T>::heads(out[1], s.kv_heads, s.keys, s.dim);
            g.value = Problem<T>::heads(out[2], s.kv_heads, s.keys, s.value_dim);
            if (p.bias) {
                g.bias = out[3];
                std::copy(p.bias_stride, p.bias_stride + 4, g.bias_stride);
            }
            table.attention_backward(p, g);
        });
    weights_case(problem, name);
    if constexpr (sizeof(T) == sizeof(float)) half_case(Problem<float>(s, rule, true), name);
}

}  // namespace

void test_attention() {
    const Sizes list[] = {
        {1, 1, 1, 1, 1, 1, 1},    {0, 2, 2, 3, 4, 5, 6},     {2, 2, 1, 0, 4, 3, 2},
        {1, 2, 2, 3, 0, 4, 4},    {2, 2, 2, 2, 5, 7, 3},     {1, 2, 1, 4, 131, 17, 16},
        {2, 4, 2, 5, 7, 8, 9},    {1, 2, 2, 13, 33, 15, 32}, {1, 1, 1, 14, 31, 16, 33},
        {1, 2, 1, 15, 17, 5, 1},  {1, 1, 1, 129, 65, 8, 16}, {1, 1, 1, 60, 257, 32, 12},
        {1, 1, 1, 260, 260, 8, 8}};
    for (const Sizes& s : list) {
        for (Rule rule : {Rule::none, Rule::causal, Rule::lower_right, Rule::mask, Rule::bias,
                          Rule::window, Rule::lengths, Rule::softcap}) {
            attention_case<float>(s, rule);
            attention_case<double>(s, rule);
        }
    }
}

}  // namespace fusednn::test
