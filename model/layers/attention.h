// Causal self-attention: QKV projection, rotary positions, core attention, output gate, output projection.
#pragma once
#include <memory>
#include <string>

#include "base/stored_ref.h"
#include "model/config/block_spec.h"
#include "model/config/context.h"
#include "model/layers/branch.h"
#include "model/layers/norm.h"
#include "parallel/cp/context_attention.h"
#include "parallel/cp/head_exchange.h"
#include "parallel/tp/linear.h"

namespace mcpp {

// Projection to queries, keys, values and the output gate, sharded by query group across the tensor-parallel group.

/// Maps x [s, b, h] (sequence parallel: [s / tp, b, h]) to Output. The weight is a box of [groups, (q + 2) * head_dim,
/// h] with complete groups. With fewer groups than ranks, it is two boxes: the rows of this rank's query heads, and the
/// key and value rows of their group, which are replicated on the ranks that share the group. Each of these ranks
/// computes the part of the key and value gradients from its own queries. The gate has a separate weight [query_width,
/// h], which is sharded by query head, and no bias. It shares the all-gather of x and the reduction of dx with the
/// projection.
class QkvProjection {
 public:
  /// `layer` is the global index, starting at 0.
  QkvProjection(const std::string& name, i64 layer, const AttentionSpec& spec, StoredRef<ModelContext> context);

  /// Result of forward(), or its gradient.
  struct Output {
    Qkv qkv;
    Tensor gate;  ///< [s, b, heads / tp * head_dim], before the sigmoid; undefined without an output gate
  };

  Output forward(const Tensor& x, MicrobatchContext& microbatch);
  /// Returns uninitialized tensors with the shapes of Output::qkv for s positions of b samples.
  Qkv make_empty(i64 s, i64 b) const;
  /// Returns the gradient of x.
  Tensor backward(const Output& gradient, MicrobatchContext& microbatch);
  /// Returns the placement of the result. Throws like Module::output_placement().
  ActivationPlacement output_placement(ActivationPlacement x) const;
  void visit(const ParamVisitor& f);
  /// Calls f for the rows of queries and keys.
  void visit_qk_rows(const QkRowVisitor& f) const;
  bool shares_groups() const { return keys_values_ != nullptr; }
  /// Returns the number of query groups whose keys and values are on this rank.
  i64 query_groups() const { return queries_->weight.box.shape[0]; }

 private:
  std::unique_ptr<LinearSlice> make_slice(const std::string& name, i64 groups, i64 first_row, i64 rows) const;
  void set_fp8_rounding_of_weights(const std::string& name, i64 layer);
  void visit_qk_rows(const Param& param, const QkRowVisitor& f) const;

  const AttentionSpec spec_;
  const ModelContext& context_;
  TensorParallelRegion region_;
  Fp8Scaling fp8_;
  std::unique_ptr<LinearSlice> queries_;      // weight of the queries, or of queries, keys and values
  std::unique_ptr<LinearSlice> keys_values_;  // nullptr unless several ranks share a group
  std::unique_ptr<LinearSlice> gate_;         // nullptr without an output gate
};

/// Tables of the rotary position embedding, shared by all layers of a model. They are allocated when first used, so
/// that a model on the meta device needs no memory.
class RotaryTable {
 public:
  explicit RotaryTable(StoredRef<ModelContext> context) : context_(context) {}

  /// Rotates the heads of x in place by the positions of the tokens, or back if `is_inverse`. No-op if `kind` is None.
  void rotate(Heads& x, const Positions& positions, bool is_inverse, RotaryKind kind);
  /// Multiplies the queries x, or their gradient, by the factors of attn_temperature_tuning, in place.
  void scale_queries(Heads& x, const Positions& positions);

 private:
  struct Table {
    Tensor cos, sin;  // [max_positions, rotary_dim / 2]
  };
  Table make_table(bool is_local) const;
  Table make_temperature_table() const;

  const ModelContext& context_;
  Table global_, local_, temperature_;
};

/// Maps x to y, both [s, b, h] (sequence parallel: [s / tp, b, h]), without the output bias, which the caller adds
/// together with the residual. Heads are sharded across the tensor-parallel group. With context parallelism, s is the
/// number of positions on this rank. In addition to what the projections and head norms save, saves queries, keys,
/// values, the output of core attention and its log-sum-exp [b, heads / tp, s], all in the layout after the head
/// exchange. With an output gate, also saves the gate and its input in the layout before the head exchange.
class SelfAttention final : public Branch {
 public:
  SelfAttention(const std::string& name, i64 layer, const AttentionSpec& spec, StoredRef<ModelContext> context,
                RotaryTable& rotary);

  Tensor forward(const Tensor& x, MicrobatchContext& microbatch) override;
  Tensor backward(const Tensor& dy, MicrobatchContext& microbatch) override;
  ActivationPlacement output_placement(ActivationPlacement x) const override;
  void visit(const ParamVisitor& f) override;
  const Tensor* bias() const override { return linear_proj_.bias(); }
  AttentionLogits* attention_logits() override { return &logits_; }
  void visit_qk_rows(const QkRowVisitor& f) override { linear_qkv_.visit_qk_rows(f); }

 private:
  CoreAttentionOptions make_options(const MicrobatchContext& microbatch) const;
  /// Returns the options of core attention for s positions of b samples on this rank.
  CoreAttentionOptions make_core_options(const MicrobatchContext& microbatch, i64 s, i64 b) const;
  void limit_to_chunks(CoreAttentionOptions& options, i64 s, i64 b) const;
  /// Normalizes, rotates and scales queries and keys, in place.
  void transform(QkvHeads heads, MicrobatchContext& microbatch) const;
  /// Replaces, in place, the gradient of the result of transform() by the gradient of its input.
  void transform_backward(QkvHeads gradient, MicrobatchContext& microbatch) const;
  Tensor attend_cached(const QkvHeads& heads, MicrobatchContext& microbatch);
  /// Returns sigmoid(gate) * output and saves both. Returns `output` if the gate is undefined.
  Tensor apply_gate(const Tensor& output, const Tensor& gate, MicrobatchContext& microbatch) const;
  /// Replaces the gradient of the result of apply_gate() by the gradient of its `output`. Returns the gradient of the
  /// gate, which is undefined without a gate.
  Tensor gate_backward(Tensor& d_output, MicrobatchContext& microbatch) const;
  void save(const ContextAttention::SavedAttention& saved, MicrobatchContext& microbatch) const;
  ContextAttention::SavedAttention take(MicrobatchContext& microbatch) const;

  std::string name_;
  i64 layer_;
  const AttentionSpec spec_;
  const ModelContext& context_;
  RotaryTable& rotary_;
  QkvProjection linear_qkv_;
  std::unique_ptr<HeadNorm> q_layernorm_, k_layernorm_;  // null if there are none
  std::unique_ptr<HeadL2Norm> q_l2_norm_, k_l2_norm_;    // null if there are none
  std::unique_ptr<Param> softmax_offset_;  // attention sinks [heads / tp]; nullptr unless they are learned
  ContextAttention core_attention_;
  AttentionLogits logits_;
  RowParallelLinear linear_proj_;
};

}  // namespace mcpp
