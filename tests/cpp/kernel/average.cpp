// Average pooling over listed windows and its gradient, embeddings and rotary positions.
#include <cmath>

#include "kernel/support.h"

namespace fusednn::test {

namespace {

// Windows of three axes; `regular` tells the kernel the rule of the last.
struct Windows {
    std::vector<i64> begin[3], end[3], count[3];
    AvgPoolParams params{};

    void axis(int a, i64 in, i64 kernel, i64 stride, i64 pad) {
        const i64 out = (in + 2 * pad - kernel) / stride + 1;
        params.in_size[a] = in, params.out_size[a] = out;
        for (i64 o = 0; o < out; ++o) {
            const i64 start = o * stride - pad;
            begin[a].push_back(start < 0 ? 0 : start);
            end[a].push_back(start + kernel > in ? in : start + kernel);
            count[a].push_back(kernel);
        }
    }
    void finish(i64 planes, i64 kernel, i64 stride, i64 pad) {
        params.planes = planes;
        for (int a = 0; a < 3; ++a) {
            params.begin[a] = begin[a].data(), params.end[a] = end[a].data();
            params.count[a] = count[a].data();
        }
        params.kernel = kernel, params.stride = stride, params.pad = pad;
    }
};

template <class T>
void average_case(i64 planes, i64 height, i64 width, i64 kernel, i64 stride, i64 pad,
                  bool regular) {
    Windows w;
    w.axis(0, 2, 2, 1, 0);
    w.axis(1, height, kernel, stride, pad);
    w.axis(2, width, kernel, stride, pad);
    w.finish(planes, regular ? kernel : 0, stride, pad);
    const AvgPoolParams& p = w.params;
    const i64 ins = 2 * height * width, outs = p.out_size[1] * p.out_size[2];
    Random random(std::uint64_t(planes * 3 + height * 5 + width * 7 + kernel));
    const auto x = random.array<T>(planes * ins), dy = random.array<T>(planes * outs);
    std::vector<Sum> y(std::size_t(planes * outs)), dx(std::size_t(planes * ins));
    const double number = double(2 * kernel * kernel);
    for (i64 i = 0; i < planes * outs; ++i) {
        const i64 o = i % outs, oh = o / p.out_size[2], ow = o % p.out_size[2];
        for (i64 d = 0; d < 2; ++d) {
            for (i64 h = w.begin[1][oh]; h < w.end[1][oh]; ++h) {
                for (i64 v = w.begin[2][ow]; v < w.end[2][ow]; ++v) {
                    const i64 at = i / outs * ins + (d * height + h) * width + v;
                    y[i].add(double(x[at]) / number);
                    dx[at].add(double(dy[i]) / number);
                }
            }
        }
    }
    Expected forward, backward;
    for (const Sum& sum : y) forward.push(sum.value, sum.slack<T>());
    for (const Sum& sum : dx) backward.push(sum.value, sum.slack<T>());
    const std::string name = std::to_string(planes) + "x2x" + std::to_string(height) + "x" +
                             std::to_string(width) + " k" + std::to_string(kernel) + " s" +
                             std::to_string(stride) + " p" + std::to_string(pad) +
                             (regular ? "" : " listed");
    check<T>("avg_pool " + name, {forward, backward},
             [&](const KernelTable<T>& table, T* const* out) {
                 table.avg_pool_forward(p, x.data(), out[0]);
                 table.avg_pool_backward(p, dy.data(), out[1]);
             });
}

template <class T>
void embedding_case(i64 count, i64 rows, i64 width) {
    Random random(std::uint64_t(count + rows * 3 + width * 5));
    const auto table = random.array<T>(rows * width), dy = random.array<T>(count * width);
    std::vector<i64> ids, starts(std::size_t(rows) + 1, 0), order;
    for (i64 i = 0; i < count; ++i) ids.push_back(random.below(rows));
    for (i64 r = 0; r < rows; ++r) {
        for (i64 i = 0; i < count; ++i) {
            if (ids[i] == r) order.push_back(i);
        }
        starts[r + 1] = i64(order.size());
    }
    order.reserve(1);
    Expected y, gradient;
    std::vector<Sum> sums(static_cast<std::size_t>(rows * width));
    for (i64 i = 0; i < count * width; ++i) {
        const i64 at = ids[i / width] * width + i % width;
        y.push(double(table[at]));
        sums[at].add(double(dy[i]));
    }
    for (const Sum& sum : sums) gradient.push(sum.value, sum.slack<T>());
    check<T>("embedding " + std::to_string(count) + " of " + std::to_string(rows) + "x" +
                 std::to_string(width),
             {y, gradient}, [&](const KernelTable<T>& kernels, T* const* out) {
                 kernels.embedding_forward(count, width, ids.data(), table.data(), out[0]);
                 kernels.embedding_backward(rows, width, starts.data(), order.data(), dy.data(),
                                            nullptr, out[1]);
             });
}

template <class T>
void rotary_case(i64 batch, i64 heads, i64 length, i64 width, i64 rotated, bool interleaved) {
    Random random(std::uint64_t(length + width * 3 + rotated));
    const i64 half = rotated / 2, size = batch * heads * length * width;
    const auto x = random.array<T>(size);
    std::vector<T> cos, sin;
    for (i64 i = 0; i < batch * length * half; ++i) {
        cos.push_back(T(std::cos(double(i))));
        sin.push_back(T(std::sin(double(i))));
    }
    cos.reserve(1), sin.reserve(1);
    RotaryParams p{};
    p.batch = batch, p.heads = heads, p.length = length, p.width = width, p.rotated = rotated;
    p.position_stride = width, p.head_stride = length * width;
    p.batch_stride = heads * length * width;
    p.interleaved = interleaved;
    Expected y;
    for (i64 i = 0; i < size; ++i) y.push(double(x[i]));
    for (i64 row = 0; row < batch * heads * length; ++row) {
        const i64 place = row / length / heads * length + row % length;
        for (i64 k = 0; k < half; ++k) {
            const i64 a = row * width + (interleaved ? 2 * k : k);
            const i64 b = row * width + (interleaved ? 2 * k + 1 : k + half);
            const double c = double(cos[place * half + k]), s = double(sin[place * half + k]);
            y.value[a] = double(x[a]) * c - double(x[b]) * s;
            y.value[b] = double(x[a]) * s + double(x[b]) * c;
            y.slack[a] = y.slack[b] = 4 * eps<T>();
        }
    }
    check<T>("rotary " + std::to_string(width) + " " + std::to_string(rotated), {y},
             [&](const KernelTable<T>& table, T* const* out) {
                 table.rotary(p, x.data(), cos.data(), sin.data(), nullptr, out[0]);
             });
}

template <class T>
void average_cases() {
    for (i64 width : {5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 65}) {
        for (i64 kernel : {1, 2, 3, 5}) {
            for (i64 stride : {1, 2, 3}) {
                average_case<T>(2, 6, width, kernel, stride, kernel / 2, true);
            }
        }
        average_case<T>(2, 6, width, 3, 2, 1, false);
    }
    average_case<T>(60, 57, 60, 3, 2, 1, true);
}

template <class T>
void embedding_cases() {
    for (i64 width : {1, 3, 8, 15, 16, 17, 33}) {
        embedding_case<T>(40, 9, width);
        rotary_case<T>(2, 3, 5, 2 * width, 2 * width, false);
        rotary_case<T>(2, 3, 5, 2 * width + 3, 2 * width, true);
    }
    embedding_case<T>(0, 4, 5);
    embedding_case<T>(5000, 300, 129);
}

}  // namespace

void test_average() {
    average_cases<float>();
    average_cases<double>();
}

void test_embedding() {
    embedding_cases<float>();
    embedding_cases<double>();
}

}  // namespace fusednn::test
