// Recurrent layers: shape rules, and the walk over layers and directions.
#pragma once
#include <string>
#include <vector>

#include "ops/shapes.h"

namespace fusednn::ops {

// Gates that a cell's weights have.
i64 gates_of(Cell cell);

// A call as the caller gave it.
struct RecurrentArgs {
    const char* op;  // names the cell: "rnn", "lstm_cell", ...
    std::string nonlinearity;
    DType dtype;
    bool single_step;  // a cell: input (N, I) or (I,), no time axis
    i64 layers;
    bool bidirectional, batch_first;
    double eps;  // of layer normalisation
    Shape input;
    std::vector<Shape> weights;      // flat: layer by layer, direction by direction
    const Shape *state_h, *state_c;  // or null
    const Shape* lengths;            // or null
    const i64* length;               // its values
    // What multiplies the output of all layers but the last; without a time axis: the same at every
    // step.
    std::vector<const Shape*> masks;
    const Shape* recurrent_mask;  // what multiplies h on its way into w_hh, or null
};

// The same, checked.
struct RecurrentPlan {
    const char* op;
    Cell cell;
    i64 layers, directions;
    bool bias, projected;
    double eps;
    i64 weights_per_direction;
    i64 steps, batch, rows;
    i64 inputs, hidden, outputs;
    i64 time_axis_step, time_axis_row;  // strides of (t, sequence) in units of a layer's width
    bool variational;                   // masks have no time axis
    i64 memory_items;                   // elements of the dtype that one of c takes: 2 of 16 bits
    // Where lengths differ; see RecurrentParams.
    std::vector<i64> active, order;
    // Of each direction; see RecurrentParams. Empty until cut() made them.
    std::vector<i64> blocks[2], segments[2];
    Shape out, state_h, state_c;

    bool has_memory() const { return cell == Cell::lstm || cell == Cell::norm_lstm; }
    // Where the gains begin among a direction's weights.
    i64 first_gain() const { return bias ? 4 : 2; }
    i64 layer_inputs(i64 layer) const { return layer ? directions * outputs : inputs; }
    i64 gates_row;  // see RecurrentParams
    // Of one direction of one layer, and what lies before it in its layer's.
    i64 reserve_size(i64 direction) const;
    i64 reserve_begin(i64 direction) const { return direction ? reserve_size(0) : 0; }
    i64 layer_reserve() const;
    i64 flops() const;
};
RecurrentPlan recurrent_plan(const RecurrentArgs& args);
// Makes the plan's blocks, and segments of about `every` steps: checkpoints are their beginnings.
// 0: none. To be called before backward, and before a forward that keeps checkpoints.
void recurrent_cut(RecurrentPlan& plan, Device device, i64 every);

// Arrays of a call, on its device; weights and masks as in the arguments.
struct RecurrentArrays {
    Device device;
    DType dtype;
    std::vector<bool> bf16;  // which weights are bfloat16, or empty; only forward
    const void* input;
    const void *h0, *c0, *recurrent_mask;  // or null
    std::vector<const void*> weights, masks;
    KeptMatrix* kept = nullptr;  // three for each layer and direction, or null; only forward
    // min(2, layers - 1) of a layer's output, for what goes from layer to layer and is not kept.
    std::vector<void*> scratch;
};
// inputs[l] is what layer l + 1 reads, reserves what backward needs; both empty if nothing is kept.
struct RecurrentOutputs {
    void* out;  // null for a single step
    void *h_n, *c_n;
    std::vector<void*> reserves;  // one per layer
    std::vector<void*> inputs;    // layers - 1, or empty
};
void recurrent_forward(const RecurrentPlan& plan, const RecurrentArrays& in,
                       const RecurrentOutputs& to);

struct RecurrentGradients {
    std::vector<const void*> reserves, inputs;  // the forward's
    const void *d_out, *d_h_n, *d_c_n;          // or null
    void *d_input, *d_h0, *d_c0;                // null where not wanted
    std::vector<void*> d_weights;
};
void recurrent_backward(const RecurrentPlan& plan, const RecurrentArrays& in,
                        const RecurrentGradients& grads);

}  // namespace fusednn::ops
