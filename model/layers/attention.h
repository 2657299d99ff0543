// Causal self-attention: QKV projection, rotary positions, core attention, output projection.
#pragma once
#include <memory>
#include <string>

#include "base/stored_ref.h"
#include "model/config/context.h"
#include "model/layers/branch.h"
#include "model/layers/norm.h"
#include "model/layers/qkv_projection.h"
#include "parallel/cp/context_attention.h"
#include "parallel/tp/linear.h"

namespace mcpp {

/// Rotary position tables, shared by all layers of a model. Allocated on first use, so that a model on the meta device
/// needs no memory.
class RotaryTable {
 public:
  explicit RotaryTable(StoredRef<ModelContext> context) : context_(context) {}

  /// Rotates the heads of x in place to the positions of its tokens, or back if `inverse`; does nothing without RoPE.
  /// `is_local`: uses the base of layers with a window, if they have their own.
  void rotate(Heads& x, const Positions& positions, bool inverse, bool is_local);

 private:
  struct Table {
    Tensor cos, sin;  // [max_positions, rotary_dim / 2]
  };
  Table make(bool is_local) const;

  const ModelContext& context_;
  Table all_, local_;
};

/// x [s, b, h] -> [s, b, h] (sequence parallel: [s / tp, b, h] -> [s / tp, b, h]) without the output bias, which the
/// caller adds with the residual. Heads are sharded across the tensor-parallel group; with context parallelism s are
/// this rank's positions. In addition to what projections and head norms save, saves queries, keys and values, the
/// attention's output and its log-sum-exp [b, heads / tp, s], all in the layout after the exchange of heads.
class SelfAttention final : public Branch {
 public:
  SelfAttention(const std::string& name, i64 layer, StoredRef<ModelContext> context, RotaryTable& rotary);

  Tensor forward(const Tensor& x, MicrobatchContext& pass) override;
  Tensor backward(const Tensor& dy, MicrobatchContext& pass) override;
  ActivationPlacement output_placement(ActivationPlacement x) const override;
  void visit(const ParamVisitor& f) override;
  const Tensor* bias() const override { return linear_proj_.bias(); }

 private:
  AttentionOptions options(const MicrobatchContext& pass) const;
  void rotate(QkvHeads heads, const MicrobatchContext& pass, bool inverse) const;
  Tensor attend_cached(const QkvHeads& heads, MicrobatchContext& pass);
  void save(const ContextAttention::SavedAttention& kept, MicrobatchContext& pass) const;
  ContextAttention::SavedAttention take(MicrobatchContext& pass) const;

  std::string name_;
  i64 layer_;
  const ModelContext& context_;
  RotaryTable& rotary_;
  QkvProjection linear_qkv_;
  std::unique_ptr<HeadNorm> q_layernorm_, k_layernorm_;  // null if there are none
  ContextAttention core_attention_;
  RowParallelLinear linear_proj_;
};

}  // namespace mcpp
