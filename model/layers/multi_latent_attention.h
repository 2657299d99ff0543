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

/// x [s, b, h] (sequence parallel: [s / tp, b, h]) -> queries [s, b, heads / tp * query_dim] without RoPE, through a
/// latent unless q_lora_rank is 0.
class LatentQueries {
 public:
  LatentQueries(const std::string& name, i64 layer, const MultiLatentAttentionSpec& spec, const ModelContext& context);

  Tensor forward(const Tensor& x, MicrobatchContext& microbatch);
  /// Returns dx.
  Tensor backward(const Tensor& gradient, MicrobatchContext& microbatch);
  /// See Module::output_placement().
  ActivationPlacement output_placement(ActivationPlacement x) const;
  void visit(const ParamVisitor& f);

 private:
  std::unique_ptr<ReplicatedLinear> linear_down_;  // null without a latent
  std::unique_ptr<Norm> layernorm_;                // null without a latent
  ColumnParallelLinear linear_up_;
};

/// x [s, b, h] (sequence parallel: [s / tp, b, h]) -> what the keys and values of a token consist of: the normalized
/// latent, of this rank's rows, and the rotary key, which all heads share, of all rows and before rotation.
class LatentKeysValues {
 public:
  LatentKeysValues(const std::string& name, i64 layer, const MultiLatentAttentionSpec& spec,
                   const ModelContext& context);

  struct Latents {
    Tensor latent;      ///< [s, b, kv_lora_rank] (sequence parallel: [s / tp, b, kv_lora_rank])
    Tensor rotary_key;  ///< [s, b, qk_pos_emb_head_dim]
  };

  Latents forward(const Tensor& x, MicrobatchContext& microbatch);
  /// Returns dx. The gradient of the rotary key is the part from this rank's heads, of the accumulate dtype.
  Tensor backward(const Latents& gradient, MicrobatchContext& microbatch);
  /// Returns keys without RoPE and values of this rank's heads, [s, b, heads / tp * (qk_head_dim + v_head_dim)].
  Tensor project_up(const Tensor& latent, MicrobatchContext& microbatch) {
    return linear_up_.forward(latent, microbatch);
  }
  /// Returns the gradient of the latent.
  Tensor project_up_backward(const Tensor& gradient, MicrobatchContext& microbatch) {
    return linear_up_.backward(gradient, microbatch);
  }
  /// Returns the weight of project_up(), [heads / tp, qk_head_dim + v_head_dim, kv_lora_rank].
  const Tensor& up_weight() const { return linear_up_.weight(); }
  /// See Module::output_placement().
  ActivationPlacement output_placement(ActivationPlacement x) const;
  void visit(const ParamVisitor& f);

 private:
  i64 rank_, rotary_dim_;
  TensorParallelRegion region_;
  ReplicatedLinear linear_down_;
  Norm layernorm_;
  ColumnParallelLinear linear_up_;
};

/// x [s, b, h] -> [s, b, h] (sequence parallel: [s / tp, b, h] -> [s / tp, b, h]) without the output bias, which the
/// caller adds with the residual. Down-projections and norms are replicated across the tensor-parallel group, heads are
/// sharded. Besides the tensors of projections and norms, saves queries, keys and values of core attention, its output
/// and its log-sum-exp [b, heads / tp, s], all in the layout after the head exchange.
///
/// For generation, the cache holds latents and rotated rotary keys if KvCache::holds_latents(). A text's first tokens
/// are computed as in training. Later ones use the absorbed form: with key k = W_k c of latent c, q k = (W_k^T q) c, so
/// that queries are projected to the latent space, all heads attend to the latents, and outputs are projected by W_v.
class MultiLatentAttention final : public Branch {
 public:
  MultiLatentAttention(const std::string& name, i64 layer, const MultiLatentAttentionSpec& spec,
                       StoredRef<ModelContext> context, RotaryTable& rotary);

  Tensor forward(const Tensor& x, MicrobatchContext& microbatch) override;
  Tensor backward(const Tensor& dy, MicrobatchContext& microbatch) override;
  ActivationPlacement output_placement(ActivationPlacement x) const override;
  void visit(const ParamVisitor& f) override;
  const Tensor* bias() const override { return linear_proj_.bias(); }

 private:
  using Latents = LatentKeysValues::Latents;

  AttentionOptions make_options(const MicrobatchContext& microbatch) const;
  void rotate(Heads x, const MicrobatchContext& microbatch, bool is_inverse) const;
  i64 local_heads() const { return spec_.num_heads / context_.tp.size(); }
  /// Returns the operands of core attention: queries with RoPE, keys of which each ends with the rotary key, and
  /// values, in heads of equal width of which either may use only a part.
  Qkv assemble(const Tensor& queries, const Tensor& keys_values, const Tensor& rotary_key,
               const MicrobatchContext& microbatch) const;
  /// Returns the gradients of assemble()'s arguments from the gradient of its result, which it overwrites.
  struct Parts {
    Tensor queries, keys_values, rotary_key;
  };
  Parts assemble_backward(const Qkv& gradient, const MicrobatchContext& microbatch) const;
  /// Returns core attention's output after the output projection.
  Tensor attend(const Qkv& qkv, MicrobatchContext& microbatch);
  /// Returns the outputs [s, b, heads / tp * v_head_dim] of new tokens, and adds them to the cache.
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
  RowParallelLinear linear_proj_;
};

}  // namespace mcpp
