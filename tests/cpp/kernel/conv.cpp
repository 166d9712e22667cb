// Convolution forward, its three gradients, and unfold/fold, against the definition.
#include <algorithm>
#include <array>

#include "kernel/support.h"

namespace fusednn::test {

namespace {

using Axes = std::array<i64, 3>;  // depth, height, width

ConvParams conv(i64 batch, i64 channels, Axes in, i64 outs, Axes kernel, Axes stride = {1, 1, 1},
                Axes pad = {0, 0, 0}, Axes dilation = {1, 1, 1}, i64 groups = 1) {
    ConvParams p{};
    p.batch = batch, p.groups = groups, p.in_channels = channels, p.out_channels = outs;
    for (int a = 0; a < 3; ++a) {
        p.in_size[a] = in[a], p.kernel[a] = kernel[a], p.stride[a] = stride[a];
        p.dilation[a] = dilation[a], p.pad[a] = pad[a];
        p.out_size[a] = (in[a] + 2 * pad[a] - dilation[a] * (kernel[a] - 1) - 1) / stride[a] + 1;
        if (p.out_size[a] == 1) p.stride[a] = 1;  // as the shape rules do
    }
    return p;
}

ConvParams plane(i64 batch, i64 channels, i64 height, i64 width, i64 outs, i64 k, i64 stride = 1,
                 i64 pad = -1, i64 dilation = 1, i64 groups = 1) {
    const i64 same = pad < 0 ? k / 2 : pad;
    return conv(batch, channels, {1, height, width}, outs, {1, k, k}, {1, stride, stride},
                {0, same, same}, {1, dilation, dilation}, groups);
}

// More zeros behind the width than in front: `more` outputs in addition. Negative: the last columns
// of the input are left unread, as under a transposed convolution's output padding.
ConvParams uneven(ConvParams p, i64 more) {
    p.out_size[2] += more;
    return p;
}

i64 volume(const i64 (&size)[3]) {
    return size[0] * size[1] * size[2];
}

std::string text(const ConvParams& p) {
    std::string s = p.algorithm == ConvAlgorithm::direct ? "direct " : "";
    s += std::to_string(p.batch) + "x" + std::to_string(p.in_channels);
    for (i64 n : p.in_size) s += "x" + std::to_string(n);
    s += " O" + std::to_string(p.out_channels) + " k";
    for (i64 n : p.kernel) s += std::to_string(n) + ",";
    s += " s" + std::to_string(p.stride[2]) + " p" + std::to_string(p.pad[2]) + " d" +
         std::to_string(p.dilation[2]) + " g" + std::to_string(p.groups);
    return s;
}

// visit(n, group, output pixel, tap, input pixel) for every tap that reads a real element.
template <class Visit>
void each_tap(const ConvParams& p, const Visit& visit) {
    const i64 pixels = volume(p.out_size), taps = volume(p.kernel);
    for (i64 pixel = 0; pixel < pixels; ++pixel) {
        for (i64 tap = 0; tap < taps; ++tap) {
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
            if (inside) visit(pixel, tap, at);
        }
    }
}

// visit(x index, w index, y index) for every product of the convolution.
template <class Visit>
void each_product(const ConvParams& p, const Visit& visit) {
    const i64 ins = p.in_channels / p.groups, outs = p.out_channels / p.groups;
    const i64 in_pixels = volume(p.in_size), out_pixels = volume(p.out_size);
    const i64 taps = volume(p.kernel);
    each_tap(p, [&](i64 pixel, i64 tap, i64 at) {
        for (i64 n = 0; n < p.batch; ++n) {
            for (i64 o = 0; o < p.out_channels; ++o) {
                for (i64 c = 0; c < ins; ++c) {
                    const i64 channel = o / outs * ins + c;
                    visit((n * p.in_channels + channel) * in_pixels + at,
                          (o * ins + c) * taps + tap,
                          (n * p.out_channels + o) * out_pixels + pixel);
                }
            }
        }
    });
}

// Fast algorithms (Winograd) mix neighbouring outputs, so an output may be off by the rounding of
// its largest neighbour, and by 4 times what a plain sum may.
template <class T>
Expected with_common_slack(const std::vector<Sum>& sums) {
    double slack = 0;
    for (const Sum& sum : sums) slack = std::max(slack, 4 * sum.slack<T>());
    Expected e;
    for (const Sum& sum : sums) e.push(sum.value, slack);
    return e;
}

template <class T>
void conv_case(const ConvParams& p) {
    Random random(std::uint64_t(p.batch + 3 * p.in_channels + 5 * p.out_channels + p.in_size[2]));
    const i64 in = p.batch * p.in_channels * volume(p.in_size);
    const i64 out = p.batch * p.out_channels * volume(p.out_size);
    const i64 weights = p.out_channels * (p.in_channels / p.groups) * volume(p.kernel);
    const auto x = random.array<T>(in), w = random.array<T>(weights), dy = random.array<T>(out);
    const auto bias = random.array<T>(p.out_channels), in_bias = random.array<T>(p.in_channels);

    std::vector<Sum> y(out), plain(out), dx(in), dw(weights), db(p.out_channels);
    each_product(p, [&](i64 ix, i64 iw, i64 iy) {
        plain[iy].add(double(x[ix]) * double(w[iw]));
        dx[ix].add(double(dy[iy]) * double(w[iw]));
        dw[iw].add(double(dy[iy]) * double(x[ix]));
    });
    for (i64 i = 0; i < out; ++i) {
        const i64 channel = i / volume(p.out_size) % p.out_channels;
        y[i] = plain[i];
        y[i].add(double(bias[channel]));
        db[channel].add(double(dy[i]));
    }
    // The transposed convolution is this input gradient, with a bias.
    std::vector<Sum> shifted = dx;
    for (i64 i = 0; i < in; ++i) {
        shifted[i].add(double(in_bias[i / volume(p.in_size) % p.in_channels]));
    }
    const std::string name = text(p);
    check<T>("conv_forward " + name, {with_common_slack<T>(y)},
             [&](const KernelTable<T>& table, T* const* o) {
                 table.conv_forward(p, x.data(), w.data(), bias.data(), o[0]);
             });
    check<T>("conv_forward no bias " + name, {with_common_slack<T>(plain)},
             [&](const KernelTable<T>& table, T* const* o) {
                 table.conv_forward(p, x.data(), w.data(), nullptr, o[0]);
             });
    check<T>("conv_forward packed " + name, {with_common_slack<T>(y)},
             [&](const KernelTable<T>& table, T* const* o) {
                 std::vector<T> packed(std::size_t(table.conv_packing(p).size));
                 if (!packed.empty()) table.conv_pack(p, w.data(), packed.data());
                 ConvParams given = p;
                 given.packed = packed.empty() ? nullptr : packed.data();
                 table.conv_forward(given, x.data(), w.data(), bias.data(), o[0]);
             });
    check<T>("conv_backward_input " + name, {with_common_slack<T>(dx)},
             [&](const KernelTable<T>& table, T* const* o) {
                 table.conv_backward_input(p, dy.data(), w.data(), nullptr, o[0]);
             });
    check<T>("conv_backward_input bias " + name, {with_common_slack<T>(shifted)},
             [&](const KernelTable<T>& table, T* const* o) {
                 table.conv_backward_input(p, dy.data(), w.data(), in_bias.data(), o[0]);
             });
    check<T>("conv_backward_weight " + name, {with_common_slack<T>(dw)},
             [&](const KernelTable<T>& table, T* const* o) {
                 table.conv_backward_weight(p, x.data(), dy.data(), o[0]);
             });
    check<T>("bias_grad " + name, {with_common_slack<T>(db)},
             [&](const KernelTable<T>& table, T* const* o) {
                 table.bias_grad(p.batch, p.out_channels, volume(p.out_size), dy.data(), o[0]);
             });
}

template <class T>
void unfold_case(const ConvParams& p) {
    Random random(std::uint64_t(p.in_size[1] * 31 + p.in_size[2]));
    const i64 in_pixels = volume(p.in_size), out_pixels = volume(p.out_size);
    const i64 taps = volume(p.kernel), planes = p.batch * p.in_channels;
    const auto x = random.array<T>(planes * in_pixels);
    const auto columns = random.array<T>(planes * taps * out_pixels);
    Expected unfolded;
    unfolded.value.assign(columns.size(), 0.0);  // what lies in the padding
    unfolded.slack.assign(columns.size(), 0.0);
    std::vector<Sum> folded(x.size());
    each_tap(p, [&](i64 pixel, i64 tap, i64 at) {
        for (i64 plane = 0; plane < planes; ++plane) {
            const i64 column = (plane * taps + tap) * out_pixels + pixel;
            unfolded.value[column] = double(x[plane * in_pixels + at]);
            folded[plane * in_pixels + at].add(double(columns[column]));
        }
    });
    check<T>("unfold " + text(p), {unfolded},
             [&](const KernelTable<T>& table, T* const* o) { table.unfold(p, x.data(), o[0]); });
    check<T>(
        "fold " + text(p), {with_common_slack<T>(folded)},
        [&](const KernelTable<T>& table, T* const* o) { table.fold(p, columns.data(), o[0]); });
}

std::vector<ConvParams> shapes() {
    std::vector<ConvParams> list = {
        // Nothing at all along one axis or another.
        plane(0, 3, 5, 5, 4, 3),
        plane(2, 0, 5, 5, 4, 3),
        plane(2, 3, 5, 5, 0, 3),
        conv(1, 2, {1, 1, 0}, 3, {1, 1, 3}, {1, 1, 1}, {0, 0, 2}),
        // One of everything; kernels as large as the input, or larger.
        plane(1, 1, 1, 1, 1, 1),
        conv(1, 1, {1, 5, 4}, 1, {1, 5, 4}),
        plane(1, 2, 1, 1, 3, 3),
        plane(1, 1, 2, 2, 1, 5),
        // Primes, mixed axes, strides that do not divide, dilation, padding beyond half the kernel.
        plane(2, 3, 11, 13, 5, 3),
        plane(3, 7, 13, 17, 5, 3, 2),
        conv(2, 5, {1, 17, 11}, 7, {1, 3, 5}, {1, 2, 3}, {0, 0, 4}, {1, 2, 1}),
        plane(1, 2, 19, 23, 3, 3, 3, 5, 4),
        plane(1, 3, 9, 9, 4, 2, 3, 0),
        plane(2, 4, 8, 6, 6, 1, 2),
        plane(2, 33, 15, 15, 65, 3),
        plane(1, 3, 29, 31, 8, 7, 2),
        plane(3, 2, 14, 14, 5, 5),
        // Groups: dense, depthwise, depthwise with several outputs a channel.
        plane(2, 6, 9, 9, 4, 3, 1, -1, 1, 2),
        plane(1, 12, 7, 7, 18, 3, 2, -1, 1, 3),
        plane(2, 5, 11, 17, 5, 3, 1, -1, 1, 5),
        plane(1, 4, 13, 13, 8, 5, 2, -1, 1, 4),
        plane(1, 3, 10, 10, 3, 3, 1, -1, 2, 3),
        plane(2, 3, 21, 37, 3, 3, 2, -1, 1, 3),
        // One and three spatial axes.
        conv(2, 3, {1, 1, 17}, 4, {1, 1, 3}, {1, 1, 1}, {0, 0, 1}),
        conv(1, 2, {1, 1, 31}, 5, {1, 1, 7}, {1, 1, 2}, {0, 0, 0}, {1, 1, 3}),
        conv(4, 8, {1, 1, 1}, 8, {1, 1, 1}),
        conv(1, 6, {1, 1, 40}, 6, {1, 1, 4}, {1, 1, 1}, {}, {1, 1, 1}, 6),
        conv(1, 2, {5, 6, 7}, 3, {3, 3, 3}, {1, 1, 1}, {1, 1, 1}),
        conv(2, 2, {4, 3, 5}, 2, {2, 1, 3}, {1, 2, 2}, {1, 0, 1}, {1, 1, 1}, 2),
        // Strides whose residues go together in the input gradient, some, all, or with gaps
        // between.
        plane(2, 3, 12, 17, 5, 4, 4, 0),
        plane(1, 5, 24, 33, 6, 8, 4, 2),
        plane(1, 2, 20, 23, 3, 2, 7, 1),
        plane(1, 3, 25, 26, 4, 6, 4, 3, 2),
        plane(1, 4, 21, 20, 6, 3, 6, 0, 3, 2),
        conv(2, 3, {1, 1, 160}, 5, {1, 1, 32}, {1, 1, 16}, {0, 0, 8}),
        conv(1, 2, {6, 5, 7}, 3, {2, 2, 2}, {2, 2, 2}),
        // More taps than a block of the product is deep: blocks begin and end inside a kernel.
        conv(1, 3, {1, 30, 40}, 2, {1, 23, 25}, {1, 1, 1}, {0, 3, 5}),
        conv(1, 2, {1, 1, 900}, 3, {1, 1, 700}, {1, 1, 3}, {0, 0, 9}),
        conv(2, 3, {9, 10, 11}, 2, {7, 8, 9}, {1, 1, 2}, {1, 0, 2}),
        // Padding that differs from side to side.
        uneven(plane(2, 3, 7, 9, 5, 3), 3),
        uneven(plane(1, 4, 8, 9, 6, 3, 2), -1),
        uneven(plane(1, 16, 8, 11, 16, 3), 2),
        uneven(plane(1, 16, 8, 11, 16, 5), -3),
        uneven(plane(2, 5, 11, 17, 5, 3, 2, 0, 1, 5), 1),
        uneven(conv(1, 3, {1, 1, 17}, 4, {1, 1, 4}, {1, 1, 3}), -2),
        // Enough work for several threads: dense, 1x1, strided, depthwise.
        plane(2, 32, 20, 20, 32, 3),
        plane(1, 48, 17, 19, 40, 1),
        plane(1, 96, 14, 14, 33, 1),
        plane(3, 17, 23, 21, 19, 3, 2),
        plane(2, 24, 40, 33, 24, 3, 1, -1, 1, 24),
        plane(5, 3, 19, 19, 16, 5),
    };
    // Output widths around one and two vectors; channels around the tiles; Winograd's tiles.
    for (i64 width : {3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33})
        list.push_back(plane(1, 3, 3, width, 2, 3));
    // Strips of three taps: around their widths, cut by rows, out of a volume, with odd padding.
    for (i64 width : {1, 2, 5, 15, 16, 17, 47, 48, 63, 64, 65, 66, 67, 113})
        list.push_back(plane(1, 2, 5, width, 2, 3, 1, -1, 1, 2));
    list.push_back(plane(2, 3, 131, 19, 3, 3, 1, -1, 1, 3));
    list.push_back(plane(1, 3, 7, 70, 3, 3, 1, 0, 1, 3));
    list.push_back(plane(1, 3, 6, 34, 3, 3, 1, 4, 1, 3));
    list.push_back(uneven(plane(1, 3, 9, 33, 3, 3, 1, -1, 1, 3), 2));
    list.push_back(uneven(plane(1, 3, 9, 33, 3, 3, 1, 2, 1, 3), -2));
    list.push_back(conv(1, 2, {3, 6, 20}, 2, {1, 3, 3}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}, 2));
    for (i64 channels : {13, 14, 15, 27, 28, 29}) list.push_back(plane(1, 2, 6, 6, channels, 3));
    for (i64 size : {4, 5, 6, 7, 8, 9, 13}) list.push_back(plane(1, 16, size, size, 16, 3));
    return list;
}

}  // namespace

void test_conv() {
    for (ConvParams p : shapes()) {
        conv_case<float>(p);
        conv_case<double>(p);
        const bool flat = p.kernel[0] == 1 && p.in_size[0] == 1;
        const bool unit = p.stride[1] == 1 && p.stride[2] == 1;
        const bool few = p.in_channels <= kFewChannels * p.groups && flat && unit;
        if (!few && (p.groups == 1 || p.groups != p.in_channels)) continue;
        p.algorithm = ConvAlgorithm::direct;
        conv_case<float>(p);
        conv_case<double>(p);
    }
}

void test_unfold() {
    for (ConvParams p : shapes()) {
        if (p.groups != 1 || p.batch * p.in_channels * volume(p.out_size) > 20'000) continue;
        p.out_channels = 0;  // plays no part
        unfold_case<float>(p);
        unfold_case<double>(p);
    }
}

}  // namespace fusednn::test
