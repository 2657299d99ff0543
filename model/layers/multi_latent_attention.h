// Multi-latent attention: down-projections to low-rank latents, norms of the latents, up-projections to the heads, core
// attention, output projection. DeepSeek-V2, 2024.
#pragma once
#include <memory>
#include <string>

#include "base/stored_ref.h"
#include "model/config/block_spec.h"
#include "model/config/context.h"
#include "model/layers/attention.h"
#include "model/layers/branch.h"
#include "model/layers/norm.h"
#include "parallel/cp/context_attention.h"
#include "parallel/tp/linear.h"
#include "parallel/tp/replicated_linear.h"

namespace mcpp {

/// Maps x [s, b, h] (sequence parallel: [s / tp, b, h]) to queries [s, b, heads / tp * query_dim] before RoPE, through
/// a latent unless q_lora_rank is 0.
class LatentQueries {
 public:
  LatentQueries(const std::string& name, i64 layer, const MultiLatentAttentionSpec& spec, const ModelContext& context);

  Tensor forward(const Tensor& x, MicrobatchContext& microbatch);
  /// Returns the gradient of x.
  Tensor backward(const Tensor& gradient, MicrobatchContext& microbatch);
  /// Returns the placement of the result. Throws like Module::output_placement().
  ActivationPlacement output_placement(ActivationPlacement x) const;
  void visit(const ParamVisitor& f);
  /// Visits the weight of the up-projection, [heads / tp, query_dim, latent].
  void visit_up(const ParamVisitor& f) { linear_up_.visit(f); }

 private:
  std::unique_ptr<ReplicatedLinear> linear_down_;  // null without a latent
  std::unique_ptr<Norm> layernorm_;                // null without a latent
  ColumnParallelLinear linear_up_;
};

/// Maps x [s, b, h] (sequence parallel: [s / tp, b, h]) to the normalized latents of this rank's rows and the rotary
/// keys of all rows. Rotary keys are shared by all heads and not rotated yet.
class LatentKeysValues {
 public:
  LatentKeysValues(const std::string& name, i64 layer, const MultiLatentAttentionSpec& spec,
                   const ModelContext& context);

  struct Latents {
    Tensor latent;      ///< [s, b, kv_lora_rank] (sequence parallel: [s / tp, b, kv_lora_rank])
    Tensor rotary_key;  ///< [s, b, qk_pos_emb_head_dim]
  };

  Latents forward(const Tensor& x, MicrobatchContext& microbatch);
  /// Returns the gradient of x. gradient.rotary_key is the part from this rank's heads, in the accumulate dtype.
  Tensor backward(const Latents& gradient, MicrobatchContext& microbatch);
  /// Returns the non-rotary keys and the values of this rank's heads, [s, b, heads / tp * (qk_head_dim + v_head_dim)].
  Tensor project_up(const Tensor& latent, MicrobatchContext& microbatch) {
    return linear_up_.forward(latent, microbatch);
  }
  /// Returns the gradient of the latent.
  Tensor project_up_backward(const Tensor& gradient, MicrobatchContext& microbatch) {
    return linear_up_.backward(gradient, microbatch);
  }
  /// Returns the weight of project_up(), [heads / tp, qk_head_dim + v_head_dim, kv_lora_rank].
  const Tensor& up_weight() const { return linear_up_.weight(); }
  /// Visits the same weight.
  void visit_up(const ParamVisitor& f) { linear_up_.visit(f); }
  /// Returns the placement of the result. Throws like Module::output_placement().
  ActivationPlacement output_placement(ActivationPlacement x) const;
  void visit(const ParamVisitor& f);

 private:
  i64 rank_, rotary_dim_;
  TensorParallelRegion region_;
  ReplicatedLinear linear_down_;
  Norm layernorm_;
  ColumnParallelLinear linear_up_;
};

/// Maps x to y, both [s, b, h] (sequence parallel: [s / tp, b, h]), without the output bias, which the caller adds
/// together with the residual. Down-projections and norms are replicated across the tensor-parallel group; heads are
/// sharded. In addition to what the projections and norms save, saves queries, keys, values and output of core
/// attention and its log-sum-exp [b, heads / tp, s], all in the layout after the head exchange.
///
/// In generation, the cache holds latents and rotated rotary keys if KvCache::holds_latents(). The first tokens of a
/// text are computed as in training. Later tokens use the absorbed form: since q . (W_k c) = (W_k^T q) . c for the
/// latent c of a key, queries are projected to the latent space, all heads attend to the latents, and outputs are
/// projected by W_v.
class MultiLatentAttention final : public Branch {
 public:
  MultiLatentAttention(const std::string& name, i64 layer, const MultiLatentAttentionSpec& spec,
                       StoredRef<ModelContext> context, RotaryTable& rotary);

  Tensor forward(const Tensor& x, MicrobatchContext& microbatch) override;
  Tensor backward(const Tensor& dy, MicrobatchContext& microbatch) override;
  ActivationPlacement output_placement(ActivationPlacement x) const override;
  void visit(const ParamVisitor& f) override;
  const Tensor* bias() const override { return linear_proj_.bias(); }
  AttentionLogits* attention_logits() override { return &logits_; }
  void visit_qk_rows(const QkRowVisitor& f) override;

 private:
  using Latents = LatentKeysValues::Latents;

  AttentionOptions make_options(const MicrobatchContext& microbatch) const;
  void rotate(Heads x, const MicrobatchContext& microbatch, bool is_inverse) const;
  i64 local_heads() const { return spec_.num_heads / context_.tp.size(); }
  /// Returns the operands of core attention: rotated queries, keys that end with the rotary key, and values. All heads
  /// have the same width; unused channels of keys or values are padding, which is zero if it is sent.
  Qkv assemble(const Tensor& queries, const Tensor& keys_values, const Tensor& rotary_key,
               const MicrobatchContext& microbatch) const;
  /// Gradients of the arguments of assemble().
  struct Parts {
    Tensor queries, keys_values, rotary_key;
  };
  /// Computes these gradients from the gradient of the result of assemble(), which is overwritten.
  Parts assemble_backward(const Qkv& gradient, const MicrobatchContext& microbatch) const;
  /// Returns the output of core attention after the output projection.
  Tensor attend(const Qkv& qkv, MicrobatchContext& microbatch);
  /// Adds new tokens to the cache and returns their attention outputs [s, b, heads / tp * v_head_dim].
  Tensor attend_cached(const Tensor& queries, const Latents& latents, MicrobatchContext& microbatch);
  Tensor attend_to_latents(const Tensor& queries, const Heads& latents, const AttentionOptions& options,
                           const MicrobatchContext& microbatch) const;

  std::string name_;
  i64 layer_;
  const MultiLatentAttentionSpec spec_;
  const i64 head_dim_;  // width of a head in Qkv
  const ModelContext& context_;
  RotaryTable& rotary_;
  LatentQueries queries_;
  LatentKeysValues keys_values_;
  ContextAttention core_attention_;
  AttentionLogits logits_;
  RowParallelLinear linear_proj_;
};

}  // namespace mcpp
