// Blocks of a model: a model is an embedding, a list of blocks, a final norm and an output matrix. block_spec() is the
// only place that interprets the keys of the configuration that differ by layer (hybrid_layer_pattern, moe_layer_freq,
// window_attn_skip_freq, no_rope_freq and the keys that concern only layers with or without RoPE, post_norm_freq,
// attention_output_gate, linear_attention_freq, mtp_hybrid_layer_pattern, and sizes given as lists). Layers, estimates,
// weight maps and the planner read the result.
#pragma once
#include <compare>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "model/config/config.h"
#include "parallel/layout_rules.h"

namespace mcpp {

/// Rotary table of a block: none, the table of all layers, or a separate table for layers with a window and a different
/// base.
enum class RotaryKind : u8 { None, Global, Local };

/// Causal self-attention of a block.
struct AttentionSpec {
  i64 num_heads = 0, num_query_groups = 0, head_dim = 0;
  i64 window = 0;  ///< number of most recent keys that a query attends to, including its own; 0: all
  i64 chunk = 0;   ///< attention is limited to chunks of this many positions; 0: no chunks
  RotaryKind rope = RotaryKind::None;
  bool has_l2_norm = false;      ///< queries and keys are divided by their root mean square after rotation
  bool has_temperature = false;  ///< queries are multiplied by a factor that grows with the position
  SoftmaxType softmax = SoftmaxType::Vanilla;
  bool has_output_gate = false;  ///< the output is multiplied by sigmoid(x W), W [query_width(), h]

  i64 query_width() const { return num_heads * head_dim; }
  i64 key_width() const { return num_query_groups * head_dim; }
  auto operator<=>(const AttentionSpec&) const = default;
};

/// Recurrent mixer of a block: Gated DeltaNet (ScanRule::DeltaRule), Kimi Delta Attention (ScanRule::ChannelDeltaRule)
/// or Mamba-2 (ScanRule::StateSpace).
struct RecurrentSpec {
  ScanShape shape;    ///< sizes of the unsharded mixer
  i64 conv_taps = 0;  ///< width of the convolution in positions

  bool is_mamba() const { return shape.rule == ScanRule::StateSpace; }
  /// Returns the output width per group of each projection of the input. There is one projection or, with a decay per
  /// key channel, three: to q, k, v and beta, to the output gates, and to the decays.
  std::vector<i64> projection_widths() const;
  auto operator<=>(const RecurrentSpec&) const = default;
};

/// Multi-latent attention of a block (MultiLatentConfig).
struct MultiLatentAttentionSpec {
  i64 num_heads = 0;
  i64 q_lora_rank = 0;  ///< rank of the query projection; 0: full rank
  i64 kv_lora_rank = 0;
  i64 qk_head_dim = 0, qk_pos_emb_head_dim = 0, v_head_dim = 0;
  i64 window = 0;  ///< see AttentionSpec
  RotaryKind rope = RotaryKind::None;

  /// Returns the width of a query or key head.
  i64 query_dim() const { return qk_head_dim + qk_pos_emb_head_dim; }
  /// Returns the width of a token's latent and rotary key together.
  i64 latent_width() const { return kv_lora_rank + qk_pos_emb_head_dim; }
  /// Returns the total width of the values of all heads.
  i64 value_width() const { return num_heads * v_head_dim; }
  /// Returns the equivalent attention after the projections. It has one key head and one value head per query head, and
  /// all heads have the larger of both widths.
  AttentionSpec core() const;
  auto operator<=>(const MultiLatentAttentionSpec&) const = default;
};

/// Dense feed-forward part of a block.
struct MlpSpec {
  i64 ffn_hidden_size = 0;

  auto operator<=>(const MlpSpec&) const = default;
};

/// Mixture of experts of a block. Routing and balancing are identical in all blocks (MoeConfig).
struct MoeSpec {
  i64 num_experts = 0;
  i64 ffn_hidden_size = 0;  ///< width of one expert
  i64 latent_size = 0;      ///< width of the input and output of an expert; 0: hidden_size, without projections
  i64 shared_expert_intermediate_size = 0;  ///< width of the shared expert; 0: none

  auto operator<=>(const MoeSpec&) const = default;
};

/// Transformer block with a mixer (attention or recurrence), a feed-forward part, or both. Each part is a residual
/// branch with its norms.
struct BlockSpec {
  std::variant<std::monostate, AttentionSpec, MultiLatentAttentionSpec, RecurrentSpec> mixer;
  std::variant<std::monostate, MlpSpec, MoeSpec> feed_forward;
  NormPosition norm_position = NormPosition::Pre;

  /// These functions return a part of the block, or nullptr if the block does not have it.
  const AttentionSpec* attention() const { return std::get_if<AttentionSpec>(&mixer); }
  const RecurrentSpec* recurrent() const { return std::get_if<RecurrentSpec>(&mixer); }
  const MultiLatentAttentionSpec* latent_attention() const { return std::get_if<MultiLatentAttentionSpec>(&mixer); }
  const MlpSpec* mlp() const { return std::get_if<MlpSpec>(&feed_forward); }
  const MoeSpec* moe() const { return std::get_if<MoeSpec>(&feed_forward); }
  /// Returns the attention after the projections, also for multi-latent attention. Returns std::nullopt without
  /// attention.
  std::optional<AttentionSpec> core_attention() const;
  bool has_mixer() const { return mixer.index() != 0; }
  bool has_feed_forward() const { return feed_forward.index() != 0; }

  auto operator<=>(const BlockSpec&) const = default;
};

/// Returns the block of a layer, counted from 0. Layers of multi-token prediction, which follow the others, have the
/// block of the last layer or the branches of mtp_hybrid_layer_pattern.
BlockSpec block_spec(const ModelConfig& config, i64 layer);
/// Returns the number of residual branches of the model.
i64 count_branches(const ModelConfig& config);
/// Returns the blocks of layers [first, end), or of all layers.
std::vector<BlockSpec> block_specs(const ModelConfig& config, i64 first, i64 end);
std::vector<BlockSpec> block_specs(const ModelConfig& config);

/// Distinct blocks of a model, including those of multi-token prediction, and the index of each layer's block.
struct BlockKinds {
  std::vector<BlockSpec> kinds;   ///< in the order of their first layers
  std::vector<i64> first_layers;  ///< first layer of each kind
  std::vector<std::size_t> kind_of_layer;

  /// If `variants` has an element per layer, layers with different values are of different kinds even if their blocks
  /// are equal.
  explicit BlockKinds(const ModelConfig& config, const std::vector<i64>& variants = {});
  const BlockSpec& of_layer(i64 layer) const { return kinds[kind_of_layer.at(static_cast<std::size_t>(layer))]; }
  /// Returns, for each kind, the number of layers in [first, end) that have it.
  std::vector<i64> count(i64 first, i64 end) const;
};

/// Returns the sizes of this model that a layout must divide.
ModelSizes model_sizes(const ModelConfig& config);

/// Returns a text such as "28 x [attention gqa 16/8 rope | swiglu 4864]". Combines repeated blocks and repeated
/// sequences of blocks.
std::string describe_blocks(const ModelConfig& config);

/// Returns the layers in [first, end) that have experts.
std::vector<i64> layers_with_experts(const ModelConfig& config, i64 first, i64 end);

}  // namespace mcpp
