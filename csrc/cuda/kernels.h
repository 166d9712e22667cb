// What the files of csrc/cuda define; table.cu puts it into the KernelTable. Names and arguments
// are those of csrc/cpu, pointers are the device's. They return when the work is in the stream, not
// when it is done. Layouts and meanings stand beside the table's entries in core/kernels.h.
#pragma once
#include "core/kernels.h"

namespace fusednn::cuda {

template <class T>
void gemm(const GemmParams<T>&);
template <class T>
void gemm_batches(const GemmParams<T>&, const GemmBatches&);
// For some of the rows of a product of `whole_m` rows: the bits that they have in the whole, for
// which the way to cut the depth is chosen.
template <class T>
void gemm_part(const GemmParams<T>&, i64 whole_m);

template <class T>
void conv_forward(const ConvParams&, const T* x, const T* w, const T* bias, T* y);
template <class T>
ConvPacking conv_packing(const ConvParams&);
template <class T>
void conv_backward_input(const ConvParams&, const T* dy, const T* w, const T* bias, T* dx);
template <class T>
void conv_backward_weight(const ConvParams&, const T* x, const T* dy, T* dw);
template <class T>
void bias_grad(i64 outer, i64 channels, i64 inner, const T* dy, T* db);
template <class T>
void unfold(const ConvParams&, const T* x, T* columns);
template <class T>
void fold(const ConvParams&, const T* columns, T* x);
template <class T>
void transpose_matrices(i64 batch, i64 rows, i64 columns, const T* x, T* y);

template <class T>
void max_pool_forward(const PoolParams&, const T* x, T* y, void* argmax, int argmax_bytes);
template <class T>
void max_pool_backward(const PoolParams&, const T* dy, const void* argmax, int argmax_bytes, T* dx);

template <class T>
void avg_pool_forward(const AvgPoolParams&, const T* x, T* y);
template <class T>
void avg_pool_backward(const AvgPoolParams&, const T* dy, T* dx);
template <class T>
void adaptive_max_pool(const AvgPoolParams&, const T* x, T* y, i64* indices);
template <class T>
void scatter_planes(i64 planes, i64 count, i64 size, bool add, const T* x, const i64* indices,
                    T* y);
template <class T>
void gather_planes(i64 planes, i64 count, i64 size, const T* x, const i64* indices, T* y);

template <class T>
void recurrent_forward(const RecurrentParams<T>&, const RecurrentResults<T>&);
template <class T>
void recurrent_backward(const RecurrentParams<T>&, const RecurrentGrads<T>&);
template <class T>
void apply_mask(i64 outer, i64 repeat, i64 inner, const T* x, const T* mask, T* y);

template <class T>
void relu_forward(i64 size, const T* x, T* y);
template <class T>
void relu_backward(i64 size, const T* dy, const T* y, T* dx);
template <class T>
void unary_forward(const UnaryParams&, const T* x, T* y);
template <class T>
void unary_backward(const UnaryParams&, const T* dy, const T* saved, T* dx);
template <class T>
void prelu_forward(i64 outer, i64 channels, i64 inner, const T* x, const T* slope, T* y);
template <class T>
void prelu_backward(i64 outer, i64 channels, i64 inner, const T* dy, const T* x, const T* slope,
                    T* dx, T* dslope);

template <class T>
void layer_norm_forward(const LayerNormParams&, const T* x, const T* residual, const T* weight,
                        const T* bias, T* sum, T* y, Accumulate<T>* stats);
template <class T>
void layer_norm_backward(const LayerNormParams&, const T* dy, const T* x, const T* weight,
                         const Accumulate<T>* stats, T* dx, T* dw, T* db);
template <class T>
void group_norm_forward(const GroupNormParams&, const T* x, const T* weight, const T* bias, T* y,
                        Accumulate<T>* stats);
template <class T>
void group_norm_backward(const GroupNormParams&, const T* dy, const T* x, const T* weight,
                         const Accumulate<T>* stats, T* dx, T* dw, T* db);
template <class T>
void batch_norm_stats(const BatchNormParams&, const T* x, Accumulate<T>* mean, Accumulate<T>* low,
                      Accumulate<T>* variance);
template <class T>
void batch_norm_apply(const BatchNormParams&, const T* x, const Accumulate<T>* stats,
                      const T* weight, const T* bias, T* y);
template <class T>
void batch_norm_backward(const BatchNormParams&, const T* dy, const T* x, const T* y,
                         const Accumulate<T>* stats, const T* weight, T* dx, T* dw, T* db);

template <class T>
void embedding_forward(i64 count, i64 width, const i64* ids, const T* table, T* y);
template <class T>
void embedding_backward(i64 rows, i64 width, const i64* starts, const i64* order, const T* dy,
                        const Accumulate<T>* scale, T* dtable);
template <class T>
void rotary(const RotaryParams&, const T* x, const Accumulate<T>* cos, const Accumulate<T>* sin,
            const i64* rows, T* y);

template <class T>
void log_softmax_forward(i64 outer, i64 classes, i64 inner, const T* x, T* y);
template <class T>
void log_softmax_backward(i64 outer, i64 classes, i64 inner, const T* dy, const T* y, T* dx);
template <class T>
void softmax_forward(i64 outer, i64 classes, i64 inner, const T* x, T* y);
template <class T>
void softmax_backward(i64 outer, i64 classes, i64 inner, const T* dy, const T* y, T* dx);
template <class T>
void cross_entropy_forward(const CrossEntropyParams<T>&, const T* x, Accumulate<T>* losses,
                           Accumulate<T>* weights);
template <class T>
void cross_entropy_backward(const CrossEntropyParams<T>&, const T* x, const Accumulate<T>* scale,
                            T* dx);

template <class T>
void attention_forward(const AttentionParams<T>&, const HeadArray<T>& output, Accumulate<T>* stats);
template <class T>
void attention_backward(const AttentionParams<T>&, const AttentionGradients<T>&);
template <class T>
void attention_weights(const AttentionParams<T>&, const Accumulate<T>* stats, T* weights);

template <class T>
void sgd_step(const SgdOptions&, i64 count, const SgdTensor<T>*);
template <class T>
void adam_step(const AdamOptions&, i64 count, const AdamTensor<T>*);
template <class T>
void rmsprop_step(const RmspropOptions&, i64 count, const RmspropTensor<T>*);
template <class T>
void adagrad_step(const AdagradOptions&, i64 count, const AdagradTensor<T>*);
template <class T>
void sum_of_squares(i64 count, const FlatArray<const T>*, double scale, double* total);
template <class T>
void scale_arrays(i64 count, const FlatArray<T>*, double factor);

}  // namespace fusednn::cuda

// Every kernel is a template over the dtype; each file ends by instantiating its own for both.
#define FUSEDNN_INSTANTIATE(macro) macro(float) macro(double)
// And some for 16-bit floats; statistics and losses are then Accumulate<T>, in core/kernels.h's
// table and here.
#define FUSEDNN_INSTANTIATE_HALF(macro) macro(BFloat16) macro(Float16)
