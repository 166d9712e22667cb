// The walk of a checked call over layers and directions.
#include <algorithm>
#include <cstring>
#include <memory>

#include "core/dispatch.h"
#include "core/memory.h"
#include "ops/dtype.h"
#include "ops/recurrent.h"

namespace fusednn::ops {

namespace {

// Memory for a weight of another dtype.
class Block {
  public:
    explicit Block(i64 bytes) : data_(memory_acquire(std::size_t(bytes))) {}
    ~Block() { memory_release(data_); }
    Block(const Block&) = delete;
    Block& operator=(const Block&) = delete;
    void* get() const { return data_; }

  private:
    void* data_;
};

template <class T>
class Walk {
  public:
    Walk(const RecurrentPlan& plan, const RecurrentArrays& in) : plan_(plan), in_(in) {}

    const KernelTable<T>& table() const { return kernels<T>(in_.device); }
    T* scratch(i64 layer) const { return static_cast<T*>(in_.scratch[std::size_t(layer % 2)]); }

    RecurrentParams<T> params(i64 layer, i64 direction, const void* x) const {
        const RecurrentPlan& plan = plan_;
        const i64 index = layer * plan.directions + direction;
        RecurrentParams<T> p{};
        p.cell = plan.cell;
        p.reverse = direction == 1;
        p.steps = plan.steps;
        p.batch = plan.batch;
        p.rows = plan.rows;
        p.inputs = plan.layer_inputs(layer);
        p.hidden = plan.hidden;
        p.outputs = plan.outputs;
        p.gates_row = plan.gates_row;
        p.active = plan.order.empty() ? nullptr : plan.active.data();
        p.order = plan.order.empty() ? nullptr : plan.order.data();
        p.x = static_cast<const T*>(x);
        p.x_step = plan.time_axis_step * p.inputs;
        p.x_row = plan.time_axis_row * p.inputs;
        const i64 width = gates_of(plan.cell) * plan.hidden;
        const auto weight = [&](i64 kind, i64 size) {
            const i64 at = index * plan.weights_per_direction + kind;
            return half(at) ? widened(half(at), size)
                            : static_cast<const T*>(in_.weights[std::size_t(at)]);
        };
        p.w_ih_bf16 = half(index * plan.weights_per_direction);
        p.w_hh_bf16 = half(index * plan.weights_per_direction + 1);
        p.w_ih = p.w_ih_bf16 ? nullptr : weight(0, width * p.inputs);
        p.w_hh = p.w_hh_bf16 ? nullptr : weight(1, width * p.outputs);
        p.b_ih = plan.bias ? weight(2, width) : nullptr;
        p.b_hh = plan.bias ? weight(3, width) : nullptr;
        p.w_hr = plan.projected ? weight(plan.weights_per_direction - 1, plan.outputs * plan.hidden)
                                : nullptr;
        if (plan.cell == Cell::norm_lstm) {
            const i64 first = plan.first_gain();
            p.gain_ih = weight(first, width);
            p.gain_hh = weight(first + 1, width);
            p.gain_c = weight(first + 2, plan.hidden);
            p.bias_c = plan.bias ? weight(first + 3, plan.hidden) : nullptr;
            p.eps = plan.eps;
        }
        p.kept = in_.kept ? in_.kept + 3 * index : nullptr;
        p.mask = state(static_cast<const T*>(in_.recurrent_mask), index, plan.outputs);
        const std::vector<i64>& blocks = plan.blocks[direction];
        const std::vector<i64>& segments = plan.segments[direction];
        p.blocks = blocks.data();
        p.block_count = std::max(i64(blocks.size()) - 1, i64(0));
        p.segments = segments.data();
        p.segment_count = std::max(i64(segments.size()) - 1, i64(0));
        p.h0 = state(static_cast<const T*>(in_.h0), index, plan.outputs);
        p.c0 = state(static_cast<const T*>(in_.c0), index, plan.hidden);
        return p;
    }
    // The part of an array (layers * directions, batch, width) that belongs to `index`.
    template <class U>
    U* state(U* data, i64 index, i64 width) const {
        return data ? data + index * plan_.batch * width : nullptr;
    }
    i64 width() const { return plan_.directions * plan_.outputs; }
    // Elements of a layer's output.
    i64 size() const { return plan_.steps * plan_.batch * width(); }

    void mask(i64 layer, const T* x, T* y) const {
        // One mask for all time steps stands where the time axis does not.
        const T* m = static_cast<const T*>(in_.masks[std::size_t(layer)]);
        if (!plan_.variational) return table().apply_mask(1, 1, size(), x, m, y);
        const bool rows_first = plan_.time_axis_row == plan_.steps;
        const i64 outer = rows_first ? plan_.batch : 1;
        const i64 inner = rows_first ? width() : plan_.batch * width();
        table().apply_mask(outer, plan_.steps, inner, x, m, y);
    }

  private:
    // A weight as bfloat16, or null if it is not.
    const BFloat16* half(i64 at) const {
        if (in_.bf16.empty() || !in_.bf16[std::size_t(at)]) return nullptr;
        return static_cast<const BFloat16*>(in_.weights[std::size_t(at)]);
    }
    // Its values as T.
    const T* widened(const BFloat16* from, i64 size) const {
        wide_.push_back(std::make_unique<Block>(size * i64(sizeof(T))));
        T* to = static_cast<T*>(wide_.back()->get());
        if constexpr (sizeof(T) > 2) {  // else they are what they are
            for (i64 i = 0; i < size; ++i) {
                const std::uint32_t bits = std::uint32_t(from[i].bits) << 16;
                float value;
                std::memcpy(&value, &bits, sizeof(value));
                to[i] = T(value);
            }
        }
        return to;
    }

    const RecurrentPlan& plan_;
    const RecurrentArrays& in_;
    mutable std::vector<std::unique_ptr<Block>> wide_;
};

template <class T>
void forward(const RecurrentPlan& plan, const RecurrentArrays& in, const RecurrentOutputs& to) {
    const Walk<T> walk(plan, in);
    const i64 width = walk.width();
    const void* x = in.input;
    for (i64 layer = 0; layer < plan.layers; ++layer) {
        const bool last = layer + 1 == plan.layers;
        T* out = static_cast<T*>(last                ? to.out
                                 : to.inputs.empty() ? walk.scratch(layer)
                                                     : to.inputs[std::size_t(layer)]);
        for (i64 direction = 0; direction < plan.directions; ++direction) {
            const i64 index = layer * plan.directions + direction;
            RecurrentResults<T> results{};
            results.out = out ? out + direction * plan.outputs : nullptr;
            results.out_step = plan.time_axis_step * width;
            results.out_row = plan.time_axis_row * width;
            results.h_n = walk.state(static_cast<T*>(to.h_n), index, plan.outputs);
            results.c_n = walk.state(static_cast<T*>(to.c_n), index, plan.hidden);
            if (!to.reserves.empty()) {
                results.reserve = static_cast<T*>(to.reserves[std::size_t(layer)]) +
                                  plan.reserve_begin(direction);
            }
            walk.table().recurrent_forward(walk.params(layer, direction, x), results);
        }
        if (!last && !in.masks.empty()) walk.mask(layer, out, out);
        x = out;
    }
}

template <class T>
void backward(const RecurrentPlan& plan, const RecurrentArrays& in,
              const RecurrentGradients& grads) {
    const Walk<T> walk(plan, in);
    const i64 width = walk.width();
    const T* d_out = static_cast<const T*>(grads.d_out);
    for (i64 layer = plan.layers - 1; layer >= 0; --layer) {
        const void* x = layer ? grads.inputs[std::size_t(layer - 1)] : in.input;
        T* d_x = layer ? walk.scratch(layer - 1) : static_cast<T*>(grads.d_input);
        for (i64 direction = 0; direction < plan.directions; ++direction) {
            const i64 index = layer * plan.directions + direction;
            const auto gradient = [&](i64 kind) {
                return static_cast<T*>(
                    grads.d_weights[std::size_t(index * plan.weights_per_direction + kind)]);
            };
            RecurrentGrads<T> g{};
            g.reserve = static_cast<const T*>(grads.reserves[std::size_t(layer)]) +
                        plan.reserve_begin(direction);
            g.d_out = d_out ? d_out + direction * plan.outputs : nullptr;
            g.out_step = plan.time_axis_step * width;
            g.out_row = plan.time_axis_row * width;
            g.d_h_n = walk.state(static_cast<const T*>(grads.d_h_n), index, plan.outputs);
            g.d_c_n = walk.state(static_cast<const T*>(grads.d_c_n), index, plan.hidden);
            g.d_x = d_x;
            g.d_x_add = direction == 1;
            g.d_w_ih = gradient(0);
            g.d_w_hh = gradient(1);
            g.d_b_ih = plan.bias ? gradient(2) : nullptr;
            g.d_b_hh = plan.bias ? gradient(3) : nullptr;
            g.d_w_hr = plan.projected ? gradient(plan.weights_per_direction - 1) : nullptr;
            if (plan.cell == Cell::norm_lstm) {
                const i64 first = plan.first_gain();
                g.d_gain_ih = gradient(first);
                g.d_gain_hh = gradient(first + 1);
                g.d_gain_c = gradient(first + 2);
                g.d_bias_c = plan.bias ? gradient(first + 3) : nullptr;
            }
            g.d_h0 = walk.state(static_cast<T*>(grads.d_h0), index, plan.outputs);
            g.d_c0 = walk.state(static_cast<T*>(grads.d_c0), index, plan.hidden);
            walk.table().recurrent_backward(walk.params(layer, direction, x), g);
        }
        if (layer && !in.masks.empty()) walk.mask(layer - 1, d_x, d_x);
        d_out = d_x;
    }
}

}  // namespace

void recurrent_forward(const RecurrentPlan& plan, const RecurrentArrays& in,
                       const RecurrentOutputs& to) {
    with_device_dtype(in.dtype, [&](auto zero) { forward<decltype(zero)>(plan, in, to); });
}

void recurrent_backward(const RecurrentPlan& plan, const RecurrentArrays& in,
                        const RecurrentGradients& grads) {
    with_device_dtype(in.dtype, [&](auto zero) { backward<decltype(zero)>(plan, in, grads); });
}

}  // namespace fusednn::ops
