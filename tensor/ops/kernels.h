// Backend interface of ops.h: each op is a static member with the same signature that is specialized per device in
// tensor/cpu/<op>.cpp and tensor/cuda/<op>.cu. Arguments are already checked. There is no generic definition, so a
// build does not link if a backend lacks an op.
#pragma once
#include "tensor/ops/ops.h"

namespace mcpp {

template <DeviceType D>
struct Kernels {
  static decltype(ops::matmul) matmul;
  static decltype(ops::fill_zero) fill_zero;
  static decltype(ops::fill) fill;
  static decltype(ops::copy) copy;
  static decltype(ops::scale) scale;
  static decltype(ops::soft_cap) soft_cap;
  static decltype(ops::add_to) add_to;
  static decltype(ops::add_sum_of_squares) add_sum_of_squares;
  static decltype(ops::normalize) normalize;
  static decltype(ops::column_sum) column_sum;
  static decltype(ops::add_bias) add_bias;
  static decltype(ops::layer_norm) layer_norm;
  static decltype(ops::layer_norm_backward) layer_norm_backward;
  static decltype(ops::rms_norm) rms_norm;
  static decltype(ops::rms_norm_backward) rms_norm_backward;
  static decltype(ops::row_dots) row_dots;
  static decltype(ops::activation) activation;
  static decltype(ops::activation_backward) activation_backward;
  static decltype(ops::sigmoid_gate) sigmoid_gate;
  static decltype(ops::sigmoid_gate_backward) sigmoid_gate_backward;
  static decltype(ops::bias_dropout_add) bias_dropout_add;
  static decltype(ops::dropout) dropout;
  static decltype(ops::jitter) jitter;
  static decltype(ops::rope) rope;
  static decltype(ops::attention) attention;
  static decltype(ops::attention_backward) attention_backward;
  static decltype(ops::copy_heads) copy_heads;
  static decltype(ops::merge_attention) merge_attention;
  static decltype(ops::attention_sink) attention_sink;
  /// Multiplies dots [s, b, heads], fp32 (fp64), by -exp(sinks[head] - lse), with lse [b, heads, s].
  static void scale_by_sinks(const Tensor& sinks, const Tensor& lse, Tensor& dots);
  static decltype(ops::chunk_starts) chunk_starts;
  static decltype(ops::embedding) embedding;
  static decltype(ops::embedding_backward) embedding_backward;
  static decltype(ops::add_positions) add_positions;
  static decltype(ops::add_positions_backward) add_positions_backward;
  static decltype(ops::cross_entropy_stats) cross_entropy_stats;
  static decltype(ops::cross_entropy_rescale) cross_entropy_rescale;
  static decltype(ops::cross_entropy_losses) cross_entropy_losses;
  static decltype(ops::cross_entropy_gradient) cross_entropy_gradient;
  static decltype(ops::choose_experts) choose_experts;
  static decltype(ops::routing_weights) routing_weights;
  static decltype(ops::routing_weights_backward) routing_weights_backward;
  static decltype(ops::router_score_sums) router_score_sums;
  static decltype(ops::router_score_sums_backward) router_score_sums_backward;
  static decltype(ops::combine_rows) combine_rows;
  static decltype(ops::combine_rows_backward) combine_rows_backward;
  static decltype(ops::grouped_matmul) grouped_matmul;
  static decltype(ops::grouped_weight_gradient) grouped_weight_gradient;
  static decltype(ops::compute_update_scale) compute_update_scale;
  static decltype(ops::adamw) adamw;
  static decltype(ops::sgd) sgd;
  static decltype(ops::momentum) momentum;
  static decltype(ops::apply_update) apply_update;
};

}  // namespace mcpp
