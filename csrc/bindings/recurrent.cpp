#include "ops/recurrent.h"

#include <algorithm>
#include <cstring>

#include "bindings/call.h"
#include "bindings/init.h"
#include "bindings/ints.h"
#include "core/errors.h"
#include "ops/kept_weights.h"

namespace fusednn::bindings {

namespace {

// The name with static storage of an op that Python names.
const char* op_name(const std::string& name) {
    static const char* const names[] = {
        "rnn", "lstm", "gru", "rnn_cell", "lstm_cell", "gru_cell", "layer_norm_lstm"};
    for (const char* known : names) {
        if (name == known) return known;
    }
    throw Error("recurrent: unknown op '" + name + "'");
}

// How a stack of layers is built, as Python hands it over:
// (op, nonlinearity, num_layers, bidirectional, batch_first).
struct Options {
    const char* op;
    std::string nonlinearity;
    i64 layers;
    bool bidirectional, batch_first;

    explicit Options(const py::tuple& given)
        : op(op_name(given[0].cast<std::string>())),
          nonlinearity(given[1].cast<std::string>()),
          layers(to_int(given[2], op, "num_layers")),
          bidirectional(given[3].cast<bool>()),
          batch_first(given[4].cast<bool>()) {}
    bool single_step() const { return std::strstr(op, "_cell") != nullptr; }
};

// What most calls do not have: None, or (masks of dropout between layers or None, mask of recurrent
// dropout or None, checkpoint_every or None, eps or None).
struct Extra {
    py::object masks = py::none(), recurrent_mask = py::none();
    i64 every = 0;
    double eps = 0;

    Extra(const char* op, py::handle given) {
        if (given.is_none()) return;
        const auto parts = py::reinterpret_borrow<py::tuple>(given);
        masks = parts[0];
        recurrent_mask = parts[1];
        const py::object steps = parts[2], epsilon = parts[3];
        if (!epsilon.is_none()) eps = epsilon.cast<double>();
        if (steps.is_none()) return;
        every = to_int(steps, op, "checkpoint_every");
        if (every < 1) {
            throw Error(std::string(op) + ": checkpoint_every=" + std::to_string(every) +
                        ", expected at least 1");
        }
    }
};

// The arguments that forward and backward share, checked.
struct Arguments {
    Call call;
    Array input;
    std::optional<Array> h0, c0, lengths, recurrent_mask;
    std::vector<Array> weights, masks;
    std::vector<py::object> scratch;
    ops::RecurrentPlan plan;
    ops::RecurrentArrays arrays;

    Arguments(const Options& options, py::handle input_object, py::handle h0_object,
              py::handle c0_object, py::handle weight_objects, py::handle lengths_object,
              const Extra& extra)
        : call(options.op), input(call.floating_or_half(input_object, "input")) {
        const char* op = options.op;
        ops::RecurrentArgs args{};
        args.op = op;
        args.nonlinearity = options.nonlinearity;
        args.dtype = input.dtype();
        args.single_step = options.single_step();
        args.layers = options.layers;
        args.bidirectional = options.bidirectional;
        args.batch_first = options.batch_first;
        args.eps = extra.eps;
        args.input = ops::shape_of(input.view());
        ops::Shape h_shape, c_shape, lengths_shape;
        const auto state = [&](std::optional<Array>& array, py::handle object, const char* name,
                               ops::Shape& shape, const ops::Shape*& to) {
            if (object.is_none()) return;
            array = call.floating_like(object, input, name);
            shape = ops::shape_of(array->view());
            to = &shape;
        };
        state(h0, h0_object, args.single_step ? "h" : "h_0", h_shape, args.state_h);
        state(c0, c0_object, args.single_step ? "c" : "c_0", c_shape, args.state_c);
        for (py::handle object : py::reinterpret_borrow<py::sequence>(weight_objects)) {
            add_weight(object);
            args.weights.push_back(ops::shape_of(weights.back().view()));
        }
        // The host walks over the steps, so it must know them.
        if (!lengths_object.is_none()) {
            lengths = Array::integer(lengths_object, op, "lengths");
            lengths_shape = ops::shape_of(lengths->view());
            args.lengths = &lengths_shape;
            args.length = lengths->data<i64>();
        }
        std::vector<ops::Shape> mask_shapes;
        if (!extra.masks.is_none()) {
            for (py::handle object : py::reinterpret_borrow<py::sequence>(extra.masks)) {
                masks.push_back(call.floating_like(object, input, "mask"));
                mask_shapes.push_back(ops::shape_of(masks.back().view()));
            }
        }
        for (const ops::Shape& shape : mask_shapes) args.masks.push_back(&shape);
        ops::Shape recurrent_shape;
        state(recurrent_mask, extra.recurrent_mask, "recurrent mask", recurrent_shape,
              args.recurrent_mask);
        plan = ops::recurrent_plan(args);
        arrays.device = call.device();
        arrays.dtype = input.dtype();
        arrays.input = input.view().data;
        arrays.h0 = h0 ? h0->view().data : nullptr;
        arrays.c0 = c0 ? c0->view().data : nullptr;
        arrays.recurrent_mask = recurrent_mask ? recurrent_mask->view().data : nullptr;
        for (const Array& weight : weights) arrays.weights.push_back(weight.view().data);
        for (const Array& mask : masks) arrays.masks.push_back(mask.view().data);
    }

    void add_weight(py::handle object) {
        const char* op = call.op();
        const bool half = call.device() == Device::cpu && Array::is_bfloat16(object);
        if (half && input.dtype() != DType::f32) {
            throw TypeMismatch(std::string(op) +
                               ": weights has dtype bfloat16, expected float64 like input "
                               "(bfloat16 weights go with float32)");
        }
        if (half) arrays.bf16.resize(weights.size() + 1);
        if (!arrays.bf16.empty()) arrays.bf16.resize(weights.size() + 1);
        if (half) arrays.bf16.back() = true;
        if (half) {
            const py::dtype native(object.attr("dtype").attr("newbyteorder")("="));
            weights.push_back(Array::exact(object, native, op, "weights"));
        } else {
            weights.push_back(call.floating_like(object, input, "weights"));
        }
    }
    py::object make(const ops::Shape& shape, void** data) {
        return call.new_array(input.dtype(), int(shape.size()), shape.data(), data);
    }
    // What goes from layer to layer, where it is not kept.
    void make_scratch() {
        void* data;
        for (i64 i = 0; i < std::min(plan.layers - 1, i64(2)); ++i) {
            scratch.push_back(make(plan.out, &data));
            arrays.scratch.push_back(data);
        }
    }
};

// (out, h_n, c_n, saved); out is None for a single step, c_n for what has no c. saved, None unless
// `keep`, is what backward wants: a tuple of the layers' reserves, then the inputs of all layers
// but the first.
py::tuple recurrent_forward(const py::tuple& given, py::handle input, py::handle h0, py::handle c0,
                            py::handle weights, py::handle lengths, py::handle extra_object,
                            bool keep, ops::KeptWeights* kept_weights) {
    const Options options(given);
    const Extra extra(options.op, extra_object);
    Arguments args(options, input, h0, c0, weights, lengths, extra);
    ops::RecurrentPlan& plan = args.plan;
    if (keep && !args.arrays.bf16.empty()) {
        throw TypeMismatch(
            std::string(options.op) +
            ": a gradient is asked for, and weights has dtype bfloat16, which is for "
            "inference alone: expected float32 weights, or a call in no_grad()");
    }
    if (keep && extra.every > 0) ops::recurrent_cut(plan, args.arrays.device, extra.every);
    ops::RecurrentOutputs to{};
    py::object out = py::none(), c_n = py::none(), saved = py::none();
    if (!options.single_step()) out = args.make(plan.out, &to.out);
    py::object h_n = args.make(plan.state_h, &to.h_n);
    if (plan.has_memory()) c_n = args.make(plan.state_c, &to.c_n);
    if (keep) {
        py::tuple kept(std::size_t(2 * plan.layers - 1));
        void* data;
        for (i64 i = 0; i < 2 * plan.layers - 1; ++i) {
            const bool reserve = i < plan.layers;
            kept[std::size_t(i)] =
                args.make(reserve ? ops::Shape{plan.layer_reserve()} : plan.out, &data);
            (reserve ? to.reserves : to.inputs).push_back(data);
        }
        saved = kept;
    } else {
        args.make_scratch();
    }
    {
        const Run run(args.call, plan.flops());
        const ops::KeptWeights::Use use(kept_weights, args.arrays.dtype,
                                        3 * plan.layers * plan.directions);
        args.arrays.kept = use.matrices();
        ops::recurrent_forward(plan, args.arrays, to);
    }
    return py::make_tuple(out, h_n, c_n, saved);
}

// Gradients of (input, h0, c0, *weights), None where `wanted` has False. grads is (d_out, d_h_n,
// d_c_n), each may be None.
py::tuple recurrent_backward(const py::tuple& given, py::handle input, py::handle h0, py::handle c0,
                             py::handle weights, py::handle lengths, py::handle extra_object,
                             const py::tuple& saved, const py::tuple& grads,
                             const py::tuple& wanted) {
    const Options options(given);
    const Extra extra(options.op, extra_object);
    Arguments args(options, input, h0, c0, weights, lengths, extra);
    ops::RecurrentPlan& plan = args.plan;
    ops::recurrent_cut(plan, args.arrays.device, extra.every);
    args.make_scratch();
    ops::RecurrentGradients to{};
    std::vector<Array> held;
    const auto read = [&](py::handle object, const char* name, const ops::Shape& shape) {
        held.push_back(args.call.floating_like(object, args.input, name));
        ops::require_shape(plan.op, name, ops::shape_of(held.back().view()), shape);
        return held.back().view().data;
    };
    if (i64(saved.size()) != 2 * plan.layers - 1) {
        throw Error(std::string(plan.op) + ": saved does not fit the layers");
    }
    for (i64 i = 0; i < 2 * plan.layers - 1; ++i) {
        const bool reserve = i < plan.layers;
        const ops::Shape shape = reserve ? ops::Shape{plan.layer_reserve()} : plan.out;
        (reserve ? to.reserves : to.inputs).push_back(read(saved[std::size_t(i)], "saved", shape));
    }
    if (!grads[0].is_none()) to.d_out = read(grads[0], "grad", plan.out);
    if (!grads[1].is_none()) to.d_h_n = read(grads[1], "grad of h", plan.state_h);
    if (!grads[2].is_none()) to.d_c_n = read(grads[2], "grad of c", plan.state_c);
    if (wanted.size() != 3 + args.weights.size()) {
        throw Error(std::string(plan.op) + ": wanted does not fit the weights");
    }
    py::tuple results(wanted.size());
    const auto want = [&](std::size_t index, const ops::Shape& shape) -> void* {
        if (!wanted[index].cast<bool>()) {
            results[index] = py::none();
            return nullptr;
        }
        void* data;
        results[index] = args.make(shape, &data);
        return data;
    };
    to.d_input = want(0, ops::shape_of(args.input.view()));
    to.d_h0 = want(1, plan.state_h);
    to.d_c0 = want(2, plan.state_c);
    for (std::size_t i = 0; i < args.weights.size(); ++i) {
        to.d_weights.push_back(want(3 + i, ops::shape_of(args.weights[i].view())));
    }
    {
        const Run run(args.call, 2 * plan.flops());
        ops::recurrent_backward(plan, args.arrays, to);
    }
    return results;
}

}  // namespace

void init_recurrent(py::module_& m) {
    py::class_<ops::KeptWeights>(m, "KeptWeights")
        .def(py::init<>())
        .def_property_readonly("nbytes", &ops::KeptWeights::bytes);
    m.def("recurrent_forward", &recurrent_forward, py::arg("options"), py::arg("input"),
          py::arg("h0"), py::arg("c0"), py::arg("weights"), py::arg("lengths"), py::arg("extra"),
          py::arg("keep"), py::arg("kept") = py::none());
    m.def("recurrent_backward", &recurrent_backward);
}

}  // namespace fusednn::bindings
