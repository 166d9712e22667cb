#include "ops/recurrent.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "core/dispatch.h"
#include "core/errors.h"
#include "core/memory.h"
#include "ops/dtype.h"

namespace fusednn::ops {

i64 gates_of(Cell cell) {
    return cell == Cell::lstm || cell == Cell::norm_lstm ? 4 : cell == Cell::gru ? 3 : 1;
}

namespace {

Cell cell_of(const RecurrentArgs& args) {
    const std::string op = args.op;
    if (op == "lstm" || op == "lstm_cell") return Cell::lstm;
    if (op == "layer_norm_lstm") return Cell::norm_lstm;
    if (op == "gru" || op == "gru_cell") return Cell::gru;
    if (args.nonlinearity == "tanh") return Cell::rnn_tanh;
    if (args.nonlinearity == "relu") return Cell::rnn_relu;
    if (args.nonlinearity == "identity") return Cell::rnn_identity;
    throw Error(op + ": nonlinearity is '" + args.nonlinearity +
                "', expected 'tanh', 'relu' or 'identity'");
}

// Rows a multiple of 512 bytes apart would fight for the same few places in L1: the step reads a
// piece of each at a time. A cache line more puts them side by side.
i64 padded_row(i64 width, DType dtype) {
    const i64 item = item_size(dtype);
    return width * item % 512 == 0 ? width + 64 / item : width;
}

// input -> steps, batch, inputs.
void read_input(const RecurrentArgs& args, RecurrentPlan& plan) {
    const Shape& x = args.input;
    const std::size_t most = args.single_step ? 2 : 3;
    if (x.size() != most && x.size() != most - 1) {
        throw Error(std::string(args.op) + ": input has shape " + text(x) + ", expected " +
                    (args.single_step   ? "(N, I) or (I,)"
                     : args.batch_first ? "(N, T, I) or (T, I)"
                                        : "(T, N, I) or (T, I)"));
    }
    plan.inputs = x.back();
    plan.batch = 1;
    plan.steps = 1;
    if (args.single_step) {
        if (x.size() == 2) plan.batch = x[0];
    } else if (x.size() == 2) {
        plan.steps = x[0];
    } else {
        plan.steps = args.batch_first ? x[1] : x[0];
        plan.batch = args.batch_first ? x[0] : x[1];
    }
    const bool rows_first = args.batch_first && x.size() == 3;
    plan.time_axis_step = rows_first ? 1 : plan.batch;
    plan.time_axis_row = rows_first ? plan.steps : 1;
}

std::string weight_name(const RecurrentArgs& args, const RecurrentPlan& plan, i64 index) {
    static const char* const step_names[] = {"w_ih", "w_hh", "b_ih", "b_hh"};
    static const char* const names[] = {"weight_ih", "weight_hh", "bias_ih", "bias_hh",
                                        "weight_hr"};
    static const char* const gains[] = {"gain_ih", "gain_hh", "gain_c", "bias_c"};
    const i64 per = plan.weights_per_direction;
    i64 kind = index % per;
    if (!plan.bias && kind == 2) kind = 4;
    if (args.single_step) return step_names[kind];
    const i64 at = index / per;
    const bool is_gain = plan.cell == Cell::norm_lstm && index % per >= plan.first_gain();
    return std::string(is_gain ? gains[index % per - plan.first_gain()] : names[kind]) + "_l" +
           std::to_string(at / plan.directions) + (at % plan.directions ? "_reverse" : "");
}

// How many weights there are, and with them whether biases and projections are among them.
void count_weights(const RecurrentArgs& args, RecurrentPlan& plan) {
    const i64 count = i64(args.weights.size()), sets = plan.layers * plan.directions;
    const i64 per = count % sets ? 0 : count / sets;
    const bool is_lstm = plan.cell == Cell::lstm && !args.single_step;
    if (plan.cell == Cell::norm_lstm) {
        if (per != 5 && per != 8) {
            throw Error(std::string(args.op) + ": got " + std::to_string(count) +
                        " weights, expected for each of " + std::to_string(plan.layers) +
                        " layers and " + std::to_string(plan.directions) +
                        " directions: weight_ih, weight_hh, gain_ih, gain_hh and gain_c, or "
                        "weight_ih, weight_hh, bias_ih, bias_hh, gain_ih, gain_hh, gain_c and "
                        "bias_c");
        }
        plan.weights_per_direction = per;
        plan.bias = per == 8;
        return;
    }
    if (per < 2 || per > (is_lstm ? 5 : 4) || (per == 3 && !is_lstm)) {
        throw Error(std::string(args.op) + ": got " + std::to_string(count) +
                    " weights, expected for each of " + std::to_string(plan.layers) +
                    " layers and " + std::to_string(plan.directions) +
                    " directions: weight_ih, weight_hh, optionally bias_ih and bias_hh" +
                    (is_lstm ? ", optionally weight_hr" : ""));
    }
    plan.weights_per_direction = per;
    plan.bias = per >= 4;
    plan.projected = per % 2 == 1;
}

void read_weights(const RecurrentArgs& args, RecurrentPlan& plan) {
    count_weights(args, plan);
    const i64 gates = gates_of(plan.cell);
    const Shape& w_hh = args.weights[1];
    if (w_hh.size() != 2 || w_hh[0] % gates || (!plan.projected && w_hh[0] != gates * w_hh[1])) {
        throw Error(std::string(args.op) + ": " + weight_name(args, plan, 1) + " has shape " +
                    text(w_hh) + ", expected (" +
                    (gates == 1 ? "" : std::to_string(gates) + " * ") + "hidden, " +
                    (plan.projected ? "proj)" : "hidden)"));
    }
    plan.hidden = w_hh[0] / gates;
    plan.outputs = w_hh[1];
    if (args.weights[0].size() == 2 && args.weights[0][1] != plan.inputs) {
        throw Error(std::string(args.op) + ": input has " + std::to_string(plan.inputs) +
                    " features, expected " + std::to_string(args.weights[0][1]) +
                    " (shapes: input " + text(args.input) + ", " + weight_name(args, plan, 0) +
                    " " + text(args.weights[0]) + ")");
    }
    const i64 rows = checked_product(args.op, gates, plan.hidden);
    for (i64 i = 0; i < i64(args.weights.size()); ++i) {
        const i64 kind = i % plan.weights_per_direction;
        const i64 layer = i / plan.weights_per_direction / plan.directions;
        Shape expected = {rows, plan.outputs};
        if (kind == 0) expected = {rows, plan.layer_inputs(layer)};
        if (kind == 2 || kind == 3) expected = {rows};
        const i64 gain = kind - plan.first_gain();
        if (plan.cell == Cell::norm_lstm && gain >= 0) {
            expected = {gain < 2 ? rows : plan.hidden};
        }
        if (plan.projected && kind == plan.weights_per_direction - 1) {
            expected = {plan.outputs, plan.hidden};
        }
        require_shape(args.op, weight_name(args, plan, i).c_str(), args.weights[std::size_t(i)],
                      expected);
    }
}

// Results' shapes, and the given state's against them.
void read_state(const RecurrentArgs& args, RecurrentPlan& plan) {
    const bool batched = args.input.size() == (args.single_step ? 2 : 3);
    plan.out = args.input;
    plan.out.back() = checked_product(args.op, plan.directions, plan.outputs);
    if (!args.single_step) plan.state_h.push_back(plan.layers * plan.directions);
    if (batched) plan.state_h.push_back(plan.batch);
    plan.state_c = plan.state_h;
    plan.state_h.push_back(plan.outputs);
    plan.state_c.push_back(plan.hidden);
    for (const Shape* shape : {&plan.out, &plan.state_h, &plan.state_c}) {
        checked_size(args.op, *shape);
    }
    const bool step = args.single_step;
    if (args.state_h) {
        require_shape(args.op, step ? "h" : "h_0", *args.state_h, plan.state_h);
    }
    if (args.state_c) {
        require_shape(args.op, step ? "c" : "c_0", *args.state_c, plan.state_c);
    }
}

void read_lengths(const RecurrentArgs& args, RecurrentPlan& plan) {
    plan.rows = checked_product(args.op, plan.steps, plan.batch);
    if (!args.lengths) return;
    require_shape(args.op, "lengths", *args.lengths, {plan.batch});
    bool whole = true;
    for (i64 b = 0; b < plan.batch; ++b) {
        if (args.length[b] < 0 || args.length[b] > plan.steps) {
            throw Error(std::string(args.op) + ": lengths[" + std::to_string(b) + "] is " +
                        std::to_string(args.length[b]) + ", expected 0 to " +
                        std::to_string(plan.steps) + ", the steps of the input");
        }
        whole &= args.length[b] == plan.steps;
    }
    if (whole) return;
    plan.order.resize(std::size_t(plan.batch));
    std::iota(plan.order.begin(), plan.order.end(), i64(0));
    std::stable_sort(plan.order.begin(), plan.order.end(),
                     [&](i64 a, i64 b) { return args.length[a] > args.length[b]; });
    plan.active.assign(std::size_t(plan.steps), 0);
    plan.rows = 0;
    for (i64 b = 0; b < plan.batch; ++b) {
        plan.rows += args.length[b];
        for (i64 t = 0; t < args.length[b]; ++t) ++plan.active[std::size_t(t)];
    }
}

}  // namespace

i64 RecurrentPlan::reserve_size(i64 direction) const {
    const i64 states = (has_memory() ? hidden : 0) + outputs;
    const i64 count = i64(segments[direction].size()) - 1;
    if (count > 0) {  // c as it is, in float
        const i64 kept = (has_memory() ? memory_items * hidden : 0) + outputs;
        return checked_product(op, checked_product(op, count, batch), kept);
    }
    const i64 products = cell == Cell::norm_lstm ? 2 * (gates_row + memory_items) : 0;
    return checked_product(op, rows, gates_row + states + products);
}

i64 RecurrentPlan::layer_reserve() const {
    return reserve_size(0) + (directions == 2 ? reserve_size(1) : 0);
}

i64 RecurrentPlan::flops() const {
    i64 per_row = 0;
    for (i64 layer = 0; layer < layers; ++layer) {
        per_row += 2 * directions * gates_of(cell) * hidden * (layer_inputs(layer) + outputs);
    }
    return rows * per_row;
}

RecurrentPlan recurrent_plan(const RecurrentArgs& args) {
    RecurrentPlan plan{};
    plan.op = args.op;
    plan.cell = cell_of(args);
    plan.layers = args.layers;
    plan.directions = args.bidirectional ? 2 : 1;
    plan.memory_items = item_size(accumulate_dtype(args.dtype)) / item_size(args.dtype);
    plan.eps = args.eps;
    if (plan.layers < 1) {
        throw Error(std::string(args.op) + ": num_layers=" + std::to_string(plan.layers) +
                    ", expected at least 1");
    }
    read_input(args, plan);
    read_weights(args, plan);
    read_state(args, plan);
    read_lengths(args, plan);
    const i64 kept = plan.has_memory() || plan.cell == Cell::gru ? 4 : 1;
    plan.gates_row = padded_row(checked_product(args.op, kept, plan.hidden), args.dtype);
    if (!args.masks.empty() && i64(args.masks.size()) != plan.layers - 1) {
        throw Error(std::string(args.op) + ": got " + std::to_string(args.masks.size()) +
                    " masks for " + std::to_string(plan.layers) + " layers");
    }
    Shape step = plan.out;
    if (!args.masks.empty() && args.masks[0]->size() < plan.out.size()) {
        plan.variational = true;
        step.erase(step.end() - (plan.out.size() == 3 && args.batch_first ? 2 : i64(step.size())));
    }
    for (const Shape* mask : args.masks) require_shape(args.op, "mask", *mask, step);
    if (args.recurrent_mask) {
        require_shape(args.op, "recurrent mask", *args.recurrent_mask, plan.state_h);
    }
    return plan;
}

namespace {

// Rows whose products with d_gates are added up at a time: as deep as a block of the engine on the
// CPU; on a GPU so many that the products fill it, and d_gates has 128 MB at 1024 units.
i64 block_rows(Device device) {
    return device == Device::cuda ? 8192 : 512;
}
// Steps of one sequence whose input's part is made together (cpu/recurrent/ahead.h); a segment must
// begin where such a group does.
constexpr i64 kGroupSteps = 8;

// Rows of the n-th step in the order of a direction's recurrence.
i64 rows_of_step(const RecurrentPlan& plan, i64 direction, i64 n) {
    if (plan.order.empty()) return plan.batch;
    return plan.active[std::size_t(direction ? plan.steps - 1 - n : n)];
}

// Whether a stretch may begin with the n-th step: a single sequence is cut between groups, and what
// they leave over at its beginning belongs to the first one.
bool may_begin(const RecurrentPlan& plan, i64 n) {
    if (plan.batch > 1) return true;
    return (plan.steps - n) % kGroupSteps == 0 && n >= plan.steps % kGroupSteps + kGroupSteps;
}

// Bounds from `steps` downwards; the caller turns them round.
std::vector<i64> cut_blocks(const RecurrentPlan& plan, i64 direction, i64 most) {
    const i64 parts = std::max((plan.rows + most - 1) / most, i64(1));
    const i64 wanted = (plan.rows + parts - 1) / parts;
    std::vector<i64> bounds{plan.steps};
    i64 rows = 0;
    for (i64 n = plan.steps - 1; n > 0; --n) {
        rows += rows_of_step(plan, direction, n);
        if (rows >= wanted && may_begin(plan, n)) {
            bounds.push_back(n);
            rows = 0;
        }
    }
    bounds.push_back(0);
    return bounds;
}

// As many whole blocks as fit into `every` steps, or parts of one.
std::vector<i64> cut_segments(const RecurrentPlan& plan, const std::vector<i64>& blocks,
                              i64 every) {
    std::vector<i64> bounds{plan.steps};
    for (std::size_t i = 0; i + 1 < blocks.size(); ++i) {
        const i64 end = blocks[i], begin = blocks[i + 1];
        if (bounds.back() - begin <= every) continue;
        if (bounds.back() > end) bounds.push_back(end);
        if (bounds.back() - begin <= every) continue;
        while (bounds.back() - begin > every) bounds.push_back(bounds.back() - every);
        if (begin > 0) bounds.push_back(begin);
    }
    while (bounds.size() > 1 && !may_begin(plan, bounds.back())) bounds.pop_back();
    bounds.push_back(0);
    return bounds;
}

}  // namespace

void recurrent_cut(RecurrentPlan& plan, Device device, i64 every) {
    const i64 groups = (every + kGroupSteps - 1) / kGroupSteps;
    const i64 steps = plan.batch == 1 ? groups * kGroupSteps : every;
    for (i64 direction = 0; direction < plan.directions; ++direction) {
        std::vector<i64>& blocks = plan.blocks[direction];
        std::vector<i64>& segments = plan.segments[direction];
        blocks = cut_blocks(plan, direction, block_rows(device));
        if (every > 0) segments = cut_segments(plan, blocks, steps);
        std::reverse(blocks.begin(), blocks.end());
        std::reverse(segments.begin(), segments.end());
    }
}

}  // namespace fusednn::ops
