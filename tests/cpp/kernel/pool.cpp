// Max pooling and its gradient, with ties, NaN and infinities, against the definition.
#include <array>
#include <cmath>
#include <cstring>

#include "kernel/support.h"

namespace fusednn::test {

namespace {

using Axes = std::array<i64, 3>;
enum class Values { plain, ties, specials };

PoolParams pool(i64 planes, Axes in, Axes kernel, Axes stride, Axes pad = {0, 0, 0},
                Axes dilation = {1, 1, 1}) {
    PoolParams p{};
    p.planes = planes;
    for (int a = 0; a < 3; ++a) {
        p.in_size[a] = in[a], p.kernel[a] = kernel[a], p.stride[a] = stride[a];
        p.dilation[a] = dilation[a], p.pad[a] = pad[a];
        p.out_size[a] = (in[a] + 2 * pad[a] - dilation[a] * (kernel[a] - 1) - 1) / stride[a] + 1;
    }
    return p;
}

PoolParams plane(i64 planes, i64 height, i64 width, i64 k, i64 s, i64 pad = 0, i64 dilation = 1) {
    return pool(planes, {1, height, width}, {1, k, k}, {1, s, s}, {0, pad, pad},
                {1, dilation, dilation});
}

i64 volume(const i64 (&size)[3]) {
    return size[0] * size[1] * size[2];
}

int bytes_for(i64 taps) {
    return taps <= 256 ? 1 : taps <= 65536 ? 2 : 4;
}

template <class T>
std::vector<T> values(Random& random, i64 size, Values kind) {
    auto x = random.array<T>(size);
    for (T& v : x) {
        if (kind == Values::ties) v = T(random.below(3));
        if (kind != Values::specials) continue;
        const i64 dice = random.below(6);
        if (dice == 0) v = std::numeric_limits<T>::quiet_NaN();
        if (dice <= 2 && dice > 0) v = -std::numeric_limits<T>::infinity();
        if (dice == 3) v = T(-0.0);
    }
    return x;
}

struct Winner {
    double value;
    i64 tap, at;  // -1: no real element yet
};

// The first maximum in row-major order, or the last NaN.
template <class T>
Winner winner(const PoolParams& p, const T* x, i64 pixel) {
    Winner best{-INFINITY, -1, -1};
    for (i64 tap = 0; tap < volume(p.kernel); ++tap) {
        i64 o = pixel, t = tap, at = 0, step = 1;
        bool inside = true;
        for (int a = 2; a >= 0; --a) {
            const i64 i =
                o % p.out_size[a] * p.stride[a] + t % p.kernel[a] * p.dilation[a] - p.pad[a];
            inside = inside && i >= 0 && i < p.in_size[a];
            at += i * step;
            step *= p.in_size[a];
            o /= p.out_size[a], t /= p.kernel[a];
        }
        if (!inside) continue;
        const double v = double(x[at]);
        if (best.tap < 0 || v > best.value || std::isnan(v)) best = {v, tap, at};
    }
    return best;
}

template <class T>
T read_tap(const unsigned char* taps, i64 index, int bytes) {
    std::uint32_t tap = 0;  // little-endian, as every machine that runs this
    std::memcpy(&tap, taps + index * bytes, std::size_t(bytes));
    return T(tap);
}

template <class T>
void pool_case(const PoolParams& p, Values kind) {
    Random random(std::uint64_t(p.planes + p.in_size[1] * 3 + p.in_size[2] * 7));
    const i64 inputs = volume(p.in_size), outputs = volume(p.out_size);
    const auto x = values<T>(random, p.planes * inputs, kind);
    const auto dy = random.array<T>(p.planes * outputs);
    const int bytes = bytes_for(volume(p.kernel));

    Expected y, taps, gradient;
    std::vector<Sum> dx(x.size());
    std::vector<unsigned char> argmax(std::size_t(p.planes * outputs * bytes));
    for (i64 i = 0; i < p.planes * outputs; ++i) {
        const i64 base = i / outputs * inputs;
        const Winner best = winner(p, x.data() + base, i % outputs);
        y.push(best.value);
        taps.push(double(best.tap));
        dx[base + best.at].add(double(dy[i]));
        std::memcpy(argmax.data() + i * bytes, &best.tap, std::size_t(bytes));
    }
    for (const Sum& sum : dx) gradient.push(sum.value, sum.slack<T>());

    std::string name = std::to_string(p.planes);
    for (i64 n : p.in_size) name += "x" + std::to_string(n);
    name += " k" + std::to_string(p.kernel[2]) + " s" + std::to_string(p.stride[2]) + " p" +
            std::to_string(p.pad[2]) + " d" + std::to_string(p.dilation[2]) + " values " +
            std::to_string(int(kind));
    check<T>("max_pool_forward " + name, {y, taps},
             [&](const KernelTable<T>& table, T* const* out) {
                 std::vector<unsigned char> found(argmax.size(), 0xff);
                 table.max_pool_forward(p, x.data(), out[0], found.data(), bytes);
                 for (i64 i = 0; i < p.planes * outputs; ++i) {
                     out[1][i] = read_tap<T>(found.data(), i, bytes);
                 }
             });
    check<T>("max_pool_forward no argmax " + name, {y},
             [&](const KernelTable<T>& table, T* const* out) {
                 table.max_pool_forward(p, x.data(), out[0], nullptr, bytes);
             });
    check<T>("max_pool_backward " + name, {gradient},
             [&](const KernelTable<T>& table, T* const* out) {
                 table.max_pool_backward(p, dy.data(), argmax.data(), bytes, out[0]);
             });
}

}  // namespace

void test_pool() {
    std::vector<PoolParams> list = {
        plane(0, 6, 6, 2, 2),
        plane(1, 1, 1, 1, 1),
        plane(1, 3, 3, 3, 1),
        plane(6, 11, 13, 3, 2, 1),
        plane(6, 11, 13, 2, 2),
        pool(2, {1, 7, 9}, {1, 2, 3}, {1, 3, 1}, {0, 1, 0}, {1, 1, 2}),
        plane(1, 10, 10, 3, 1, 2, 4),
        plane(1, 5, 5, 2, 2, 1),
        plane(15, 6, 7, 3, 5, 1),
        plane(2, 9, 9, 2, 1),
        plane(2, 12, 50, 3, 1, 1),
        plane(2, 8, 40, 3, 3),
        // Winners that need two and four bytes.
        pool(2, {1, 20, 19}, {1, 17, 16}, {1, 1, 1}),
        plane(1, 301, 300, 300, 1),
        // One and three spatial axes.
        pool(6, {1, 1, 17}, {1, 1, 3}, {1, 1, 2}, {0, 0, 1}),
        pool(1, {1, 1, 4}, {1, 1, 4}, {1, 1, 4}),
        pool(2, {5, 6, 7}, {2, 2, 2}, {2, 2, 2}),
        pool(2, {5, 6, 7}, {3, 3, 3}, {1, 2, 2}, {1, 1, 1}),
        // Enough work for several threads.
        plane(64, 56, 57, 3, 2, 1),
        plane(130, 57, 56, 2, 2),
    };
    for (i64 width : {1, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33}) {
        list.push_back(plane(2, 4, 2 * width, 2, 2));
        list.push_back(plane(2, 5, 2 * width, 3, 2, 1));
        list.push_back(plane(2, 5, width + 2, 3, 1));
    }
    for (const PoolParams& p : list) {
        for (Values kind : {Values::plain, Values::ties, Values::specials}) {
            pool_case<float>(p, kind);
            pool_case<double>(p, kind);
        }
    }
}

}  // namespace fusednn::test
