// Recurrent layers: forward against the definition step by step, backward against its differences.
#include <algorithm>
#include <cmath>

#include "kernel/support.h"

namespace fusednn::test {

namespace {

using Values = std::vector<double>;

struct Layer {
    Cell cell;
    i64 steps, batch, inputs, hidden, proj;
    bool reverse, bias, state;
    std::vector<i64> lengths;  // falling, or empty
    bool mask = false;         // on h, on its way into w_hh

    bool norm() const { return cell == Cell::norm_lstm; }
    bool has_c() const { return cell == Cell::lstm || norm(); }
    i64 gates() const { return has_c() ? 4 : cell == Cell::gru ? 3 : 1; }
    i64 outputs() const { return proj ? proj : hidden; }
    i64 length(i64 b) const { return lengths.empty() ? steps : lengths[std::size_t(b)]; }
    i64 rows() const {
        i64 sum = 0;
        for (i64 b = 0; b < batch; ++b) sum += length(b);
        return sum;
    }
};

// What multiplies a value of h on its way into w_hh.
double mask_of(const Layer& l, i64 sequence, i64 k) {
    return !l.mask ? 1 : (sequence + k) % 3 == 0 ? 0 : 1.5;
}

// All that a layer reads, in one vector each: x, h0, c0, w_ih, w_hh, b_ih, b_hh, w_hr, and of the
// normalised LSTM gain_ih, gain_hh, gain_c, bias_c.
using Inputs = std::vector<Values>;
enum { kX, kH0, kC0, kWih, kWhh, kBih, kBhh, kWhr, kGih, kGhh, kGc, kBc, kInputs };
constexpr double kEps = 0.1;  // large: what differences in double can follow

i64 size_of(const Layer& l, int which) {
    const i64 width = l.gates() * l.hidden;
    const i64 sizes[kInputs] = {l.steps * l.batch * l.inputs,
                                l.batch * l.outputs(),
                                l.batch * l.hidden,
                                width * l.inputs,
                                width * l.outputs(),
                                width,
                                width,
                                l.proj * l.hidden,
                                l.norm() ? width : 0,
                                l.norm() ? width : 0,
                                l.norm() ? l.hidden : 0,
                                l.norm() ? l.hidden : 0};
    return sizes[which];
}

double logistic(double x) {
    return 1 / (1 + std::exp(-x));
}

void normalise(Values& v) {
    double mean = 0, square = 0;
    for (double x : v) mean += x / double(v.size());
    for (double x : v) square += (x - mean) * (x - mean) / double(v.size());
    for (double& x : v) x = (x - mean) / std::sqrt(square + kEps);
}

// One step of one sequence: h and c in and out.
void step(const Layer& l, const Inputs& in, i64 sequence, const double* x, Values& h, Values& c) {
    Values a(std::size_t(l.gates() * l.hidden)), u(a.size());
    for (i64 r = 0; r < i64(a.size()); ++r) {
        a[r] = l.bias ? in[kBih][r] : 0;
        u[r] = l.bias ? in[kBhh][r] : 0;
        for (i64 k = 0; k < l.inputs; ++k) a[r] += in[kWih][r * l.inputs + k] * x[k];
        for (i64 k = 0; k < l.outputs(); ++k) {
            u[r] += in[kWhh][r * l.outputs() + k] * h[k] * mask_of(l, sequence, k);
        }
    }
    if (l.norm()) {
        for (i64 r = 0; r < i64(a.size()); ++r) {
            a[r] -= l.bias ? in[kBih][r] : 0;
            u[r] -= l.bias ? in[kBhh][r] : 0;
        }
        normalise(a);
        normalise(u);
        for (i64 r = 0; r < i64(a.size()); ++r) {
            a[r] = a[r] * in[kGih][r] + (l.bias ? in[kBih][r] : 0);
            u[r] = u[r] * in[kGhh][r] + (l.bias ? in[kBhh][r] : 0);
        }
    }
    Values next(std::size_t(l.hidden));
    for (i64 j = 0; j < l.hidden; ++j) {
        const auto sum = [&](i64 gate) { return a[gate * l.hidden + j] + u[gate * l.hidden + j]; };
        if (l.has_c()) {
            c[j] = logistic(sum(1)) * c[j] + logistic(sum(0)) * std::tanh(sum(2));
            next[j] = logistic(sum(3)) * std::tanh(c[j]);
        } else if (l.cell == Cell::gru) {
            const double r = logistic(sum(0)), z = logistic(sum(1));
            const double n = std::tanh(a[2 * l.hidden + j] + r * u[2 * l.hidden + j]);
            next[j] = (1 - z) * n + z * h[j];
        } else {
            const double s = sum(0);
            next[j] = l.cell == Cell::rnn_tanh            ? std::tanh(s)
                      : l.cell == Cell::rnn_relu && s < 0 ? 0
                                                          : s;
        }
    }
    if (l.norm()) {
        Values y = c;
        normalise(y);
        for (i64 j = 0; j < l.hidden; ++j) {
            const double o = logistic(a[3 * l.hidden + j] + u[3 * l.hidden + j]);
            next[j] = o * std::tanh(y[j] * in[kGc][j] + (l.bias ? in[kBc][j] : 0));
        }
    }
    if (!l.proj) {
        h = next;
        return;
    }
    for (i64 k = 0; k < l.proj; ++k) {
        h[k] = 0;
        for (i64 j = 0; j < l.hidden; ++j) h[k] += in[kWhr][k * l.hidden + j] * next[j];
    }
}

struct Outputs {
    Values out, h_n, c_n;
};

Outputs forward(const Layer& l, const Inputs& in) {
    Outputs to;
    to.out.assign(std::size_t(l.steps * l.batch * l.outputs()), 0);
    for (i64 b = 0; b < l.batch; ++b) {
        Values h(in[kH0].begin() + b * l.outputs(), in[kH0].begin() + (b + 1) * l.outputs());
        Values c(in[kC0].begin() + b * l.hidden, in[kC0].begin() + (b + 1) * l.hidden);
        for (i64 n = 0; n < l.length(b); ++n) {
            const i64 t = l.reverse ? l.length(b) - 1 - n : n;
            step(l, in, b, in[kX].data() + (t * l.batch + b) * l.inputs, h, c);
            std::copy(h.begin(), h.end(), to.out.begin() + (t * l.batch + b) * l.outputs());
        }
        to.h_n.insert(to.h_n.end(), h.begin(), h.end());
        to.c_n.insert(to.c_n.end(), c.begin(), c.end());
    }
    return to;
}

double dot(const Values& a, const Values& b) {
    double sum = 0;
    for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
    return sum;
}

Expected expected(const Values& values, double slack) {
    Expected e;
    for (double v : values) e.push(v, slack);
    return e;
}

template <class T>
class Case {
  public:
    explicit Case(const Layer& layer) : l_(layer) {
        Random random(std::uint64_t(layer.hidden * 31 + layer.batch));
        for (int i = 0; i < kInputs; ++i) {
            given_[i] = random.array<T>(size_of(l_, i));
            for (T& v : given_[i]) v = T(i == kX ? double(v) : double(v) * 0.5);
            if ((i == kH0 || i == kC0) && !l_.state) {
                std::fill(given_[i].begin(), given_[i].end(), T(0));
            }
            in_.emplace_back(given_[i].begin(), given_[i].end());
        }
        for (i64 t = 0; t < l_.steps && !l_.lengths.empty(); ++t) {
            active_.push_back(std::count_if(l_.lengths.begin(), l_.lengths.end(),
                                            [&](i64 length) { return length > t; }));
        }
        for (i64 b = 0; b < l_.batch; ++b) order_.push_back(b);
        for (i64 i = 0; i < l_.batch * l_.outputs(); ++i) {
            mask_.push_back(T(mask_of(l_, i / l_.outputs(), i % l_.outputs())));
        }
        blocks_ = {0};
        if (l_.steps > 2) blocks_.push_back(l_.steps / 2);
        blocks_.push_back(l_.steps);
    }

    void run() {
        const Outputs to = forward(l_, in_);
        const double slack = eps<T>() * 40 * double(l_.steps + 1);
        const bool lstm = l_.has_c();
        std::vector<Expected> results{expected(to.out, slack), expected(to.h_n, slack)};
        if (lstm) results.push_back(expected(to.c_n, slack));
        check<T>("recurrent_forward " + name(), results,
                 [&](const KernelTable<T>& table, T* const* out) { call(table, out, nullptr); });

        Random random(7);
        const auto d_out = random.array<T>(i64(to.out.size()));
        const auto d_h = random.array<T>(i64(to.h_n.size()));
        const auto d_c = random.array<T>(i64(to.c_n.size()));
        const auto loss = [&] {
            const Outputs o = forward(l_, in_);
            return dot(o.out, Values(d_out.begin(), d_out.end())) +
                   dot(o.h_n, Values(d_h.begin(), d_h.end())) +
                   (lstm ? dot(o.c_n, Values(d_c.begin(), d_c.end())) : 0);
        };
        std::vector<Expected> gradients;
        for (int i = 0; i < kInputs; ++i) gradients.push_back(differences(loss, i));
        const i64 row = gates_row() * (l_.norm() ? 3 : 1) + l_.hidden + l_.outputs() + 2;
        std::vector<T> reserve(std::size_t(l_.rows() * row));
        reserve.reserve(1);
        check<T>("recurrent_backward " + name(), gradients,
                 [&](const KernelTable<T>& table, T* const* out) {
                     std::vector<T> y(to.out.size()), h(to.h_n.size()), c(to.c_n.size());
                     T* const results[] = {y.data(), h.data(), c.data()};
                     call(table, results, reserve.data());
                     RecurrentGrads<T> g{};
                     g.reserve = reserve.data();
                     g.d_out = d_out.data();
                     g.out_step = l_.batch * l_.outputs();
                     g.out_row = l_.outputs();
                     g.d_h_n = d_h.data();
                     g.d_c_n = lstm ? d_c.data() : nullptr;
                     g.d_x = out[kX];
                     g.d_h0 = out[kH0];
                     g.d_c0 = lstm ? out[kC0] : nullptr;
                     g.d_w_ih = out[kWih];
                     g.d_w_hh = out[kWhh];
                     g.d_b_ih = l_.bias ? out[kBih] : nullptr;
                     g.d_b_hh = l_.bias ? out[kBhh] : nullptr;
                     g.d_w_hr = l_.proj ? out[kWhr] : nullptr;
                     g.d_gain_ih = l_.norm() ? out[kGih] : nullptr;
                     g.d_gain_hh = l_.norm() ? out[kGhh] : nullptr;
                     g.d_gain_c = l_.norm() ? out[kGc] : nullptr;
                     g.d_bias_c = l_.norm() && l_.bias ? out[kBc] : nullptr;
                     table.recurrent_backward(params(), g);
                 });
    }

  private:
    i64 gates_row() const { return (l_.has_c() || l_.cell == Cell::gru ? 4 : 1) * l_.hidden + 3; }
    std::string name() const {
        return std::to_string(int(l_.cell)) + " T" + std::to_string(l_.steps) + " B" +
               std::to_string(l_.batch) + " I" + std::to_string(l_.inputs) + " H" +
               std::to_string(l_.hidden) + (l_.reverse ? " reverse" : "");
    }
    RecurrentParams<T> params() const {
        RecurrentParams<T> p{};
        p.cell = l_.cell;
        p.reverse = l_.reverse;
        p.steps = l_.steps;
        p.batch = l_.batch;
        p.rows = l_.rows();
        p.inputs = l_.inputs;
        p.hidden = l_.hidden;
        p.outputs = l_.outputs();
        p.gates_row = gates_row();
        p.active = l_.lengths.empty() ? nullptr : active_.data();
        p.order = l_.lengths.empty() ? nullptr : order_.data();
        p.x = given_[kX].data();
        p.x_step = l_.batch * l_.inputs;
        p.x_row = l_.inputs;
        p.w_ih = given_[kWih].data();
        p.w_hh = given_[kWhh].data();
        p.b_ih = l_.bias ? given_[kBih].data() : nullptr;
        p.b_hh = l_.bias ? given_[kBhh].data() : nullptr;
        p.w_hr = l_.proj ? given_[kWhr].data() : nullptr;
        p.mask = l_.mask ? mask_.data() : nullptr;
        p.blocks = blocks_.data();
        p.block_count = i64(blocks_.size()) - 1;
        p.h0 = l_.state ? given_[kH0].data() : nullptr;
        p.gain_ih = given_[kGih].data();
        p.gain_hh = given_[kGhh].data();
        p.gain_c = given_[kGc].data();
        p.bias_c = l_.bias ? given_[kBc].data() : nullptr;
        p.eps = kEps;
        p.c0 = l_.state && l_.has_c() ? given_[kC0].data() : nullptr;
        return p;
    }
    void call(const KernelTable<T>& table, T* const* out, T* reserve) const {
        RecurrentResults<T> to{};
        to.out = out[0];
        to.out_step = l_.batch * l_.outputs();
        to.out_row = l_.outputs();
        to.h_n = out[1];
        to.c_n = l_.has_c() ? out[2] : nullptr;
        to.reserve = reserve;
        table.recurrent_forward(params(), to);
    }
    // d loss / d input by central differences; nothing for what the layer does not read.
    template <class Loss>
    Expected differences(const Loss& loss, int which) {
        const bool unused = (which == kC0 && !l_.has_c()) ||
                            ((which == kBih || which == kBhh || which == kBc) && !l_.bias) ||
                            (which == kWhr && !l_.proj);
        Expected e;
        for (double& v : in_[std::size_t(which)]) {
            if (unused) break;
            const double before = v, width = 1e-5;
            v = before + width;
            const double above = loss();
            v = before - width;
            const double slope = (above - loss()) / (2 * width);
            v = before;
            e.push(slope, 1e-8 + eps<T>() * 400 * double(l_.steps * l_.batch + 1));
        }
        return e;
    }

    Layer l_;
    std::vector<T> given_[kInputs];
    Inputs in_;
    std::vector<i64> active_, order_, blocks_;
    std::vector<T> mask_;
};

template <class T>
void cases() {
    for (Cell cell : {Cell::rnn_tanh, Cell::rnn_identity, Cell::lstm, Cell::gru, Cell::norm_lstm}) {
        const i64 proj = cell == Cell::lstm ? 2 : 0;
        const Layer layers[] = {
            {cell, 1, 1, 2, 3, 0, false, true, true, {}},
            {cell, 2, 3, 1, 5, 0, true, true, false, {}},
            {cell, 4, 2, 3, 17, 0, false, false, true, {}},
            {cell, 4, 1, 2, 9, proj, true, true, true, {}},
            {cell, 3, 6, 3, 4, proj, false, true, true, {}},
            {cell, 5, 4, 2, 3, 0, true, true, true, {5, 3, 1, 0}},
            {cell, 4, 7, 2, 3, 0, false, true, false, {4, 4, 2, 2, 1, 0, 0}},
            {cell, 27, 1, 2, 5, 0, true, true, true, {}},
            {cell, 0, 2, 3, 4, 0, false, true, true, {}},
            {cell, 3, 0, 3, 4, 0, false, true, true, {}},
            {cell, 4, 3, 2, 5, proj, true, true, true, {4, 2, 1}, true},
            {cell, 3, 6, 2, 4, 0, false, true, false, {}, true},
        };
        for (const Layer& layer : layers) Case<T>(layer).run();
    }
}

template <class T>
void mask_case(i64 size) {
    Random random(std::uint64_t(size) + 3);
    auto x = random.array<T>(size), mask = random.array<T>(size);
    Expected y;
    for (i64 i = 0; i < size; ++i) {
        if (i % 3 == 0) mask[i] = T(0), x[i] = std::numeric_limits<T>::quiet_NaN();
        y.push(mask[i] == T(0) ? 0.0 : double(T(x[i] * mask[i])));
    }
    check<T>("apply_mask " + std::to_string(size), {y},
             [&](const KernelTable<T>& table, T* const* out) {
                 table.apply_mask(1, 1, size, x.data(), mask.data(), out[0]);
             });
}

}  // namespace

void test_recurrent() {
    cases<float>();
    cases<double>();
    for (i64 size : {0, 1, 15, 16, 17, 1000, 20000}) {
        mask_case<float>(size);
        mask_case<double>(size);
    }
}

}  // namespace fusednn::test
