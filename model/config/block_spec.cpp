#include "model/config/block_spec.h"

#include <algorithm>

#include "base/strings.h"

namespace mcpp {
namespace {

/// Returns whether a list selects a layer. The list has one entry, 1 or 0, per layer, or it is [n], which selects every
/// n-th layer if `is_nth`, otherwise all other layers. Returns `if_empty` for an empty list.
bool is_selected(const std::vector<i64>& layers, i64 layer, bool is_nth, bool if_empty) {
  if (layers.empty()) return if_empty;
  if (layers.size() == 1) return ((layer + 1) % layers[0] == 0) == is_nth;
  return layers.at(static_cast<std::size_t>(layer)) == 1;
}

/// Returns the window of a layer in keys; 0: none.
i64 window_of(const ModelConfig& c, i64 layer) {
  if (c.window_size.empty()) return 0;
  return is_selected(c.window_attn_skip_freq, layer, /*is_nth=*/false, /*if_empty=*/true) ? c.window_size[0] + 1 : 0;
}

RotaryKind rotary_kind(const ModelConfig& c, i64 layer, i64 window) {
  if (c.position_embedding_type != PositionEmbedding::Rope) return RotaryKind::None;
  if (is_selected(c.no_rope_freq, layer, /*is_nth=*/true, /*if_empty=*/false)) return RotaryKind::None;
  return c.rope_local_base_freq > 0 && window > 0 ? RotaryKind::Local : RotaryKind::Global;
}

AttentionSpec attention_spec(const ModelConfig& c, i64 layer) {
  const i64 window = window_of(c, layer);
  const RotaryKind rope = rotary_kind(c, layer, window);
  const bool has_rope = rope != RotaryKind::None;
  return {.num_heads = c.num_attention_heads.of_layer(layer),
          .num_query_groups = c.query_groups(layer),
          .head_dim = c.head_dim(),
          .window = window,
          .chunk = has_rope ? c.attention_chunk_size : 0,
          .rope = rope,
          .has_l2_norm = has_rope && c.qk_l2_norm,
          .has_temperature = !has_rope && c.attn_temperature_tuning,
          .softmax = c.softmax_type,
          .has_output_gate = is_selected(c.attention_output_gate, layer, /*is_nth=*/true, /*if_empty=*/false)};
}

MultiLatentAttentionSpec latent_attention_spec(const ModelConfig& c, i64 layer) {
  const i64 window = window_of(c, layer);
  return {.num_heads = c.num_attention_heads.of_layer(layer),
          .q_lora_rank = c.mla.q_lora_rank,
          .kv_lora_rank = c.mla.kv_lora_rank,
          .qk_head_dim = c.mla.qk_head_dim,
          .qk_pos_emb_head_dim = c.mla.qk_pos_emb_head_dim,
          .v_head_dim = c.mla.v_head_dim,
          .window = window,
          .rope = rotary_kind(c, layer, window)};
}

bool has_experts(const ModelConfig& c, i64 layer) {
  const MoeConfig& moe = c.moe;
  if (moe.num_experts == 0) return false;
  if (moe.layer_freq.size() == 1) return layer % moe.layer_freq[0] == 0;
  return moe.layer_freq.at(static_cast<std::size_t>(layer)) == 1;
}

/// Characters of hybrid_layer_pattern.
constexpr char kAttention = '*', kMamba = 'M', kDeltaNet = 'G', kKimiDelta = 'K', kMlp = '-', kExperts = 'E';

/// Characters of the branches of a layer; 0 = none.
struct Branches {
  char mixer = 0, feed_forward = 0;
};

/// Returns the branches of a pattern such as "*E", "G" or "-".
Branches parse_branches(std::string_view pattern) {
  Branches branches;
  for (const char branch : pattern)
    (branch == kMlp || branch == kExperts ? branches.feed_forward : branches.mixer) = branch;
  return branches;
}

/// Returns the mixer of a layer of a model without hybrid_layer_pattern.
char standard_mixer(const ModelConfig& c, i64 layer) {
  if (!is_selected(c.recurrent.linear_attention_freq, layer, /*is_nth=*/false, /*if_empty=*/false)) return kAttention;
  return c.recurrent.linear_attention_type == LinearAttentionType::GatedDeltaNet ? kDeltaNet : kKimiDelta;
}

Branches branches_of(const ModelConfig& c, i64 layer) {
  if (layer >= c.num_layers && !c.mtp_hybrid_layer_pattern.empty()) return parse_branches(c.mtp_hybrid_layer_pattern);
  layer = std::min(layer, c.num_layers - 1);
  if (!c.hybrid_layer_pattern.empty())
    return parse_branches(std::string_view(c.hybrid_layer_pattern).substr(static_cast<std::size_t>(layer), 1));
  return {.mixer = standard_mixer(c, layer), .feed_forward = has_experts(c, layer) ? kExperts : kMlp};
}

/// Returns the sizes of a recurrent mixer; std::nullopt for other mixers.
std::optional<ScanShape> scan_shape(const ModelConfig& c, char mixer) {
  if (mixer == kMamba) return c.recurrent.mamba_shape(c.hidden_size);
  if (mixer == kDeltaNet) return c.recurrent.linear_attention_shape(LinearAttentionType::GatedDeltaNet);
  if (mixer == kKimiDelta) return c.recurrent.linear_attention_shape(LinearAttentionType::KimiDeltaAttention);
  return std::nullopt;
}

std::string describe(const AttentionSpec& attention, const ModelConfig& c) {
  std::string text = attention.num_query_groups == attention.num_heads
                         ? str("attention ", attention.num_heads)
                         : str("attention gqa ", attention.num_heads, "/", attention.num_query_groups);
  if (c.position_embedding_type == PositionEmbedding::Rope && attention.rope == RotaryKind::None) text += " nope";
  if (attention.rope != RotaryKind::None) text += attention.rope == RotaryKind::Local ? " local rope" : " rope";
  if (attention.window > 0) text += str(" window ", attention.window);
  if (attention.chunk > 0) text += str(" chunk ", attention.chunk);
  if (c.qk_layernorm) text += " qk norm";
  if (attention.has_l2_norm) text += " qk l2 norm";
  if (attention.has_temperature) text += " temperature";
  if (attention.softmax != SoftmaxType::Vanilla) text += str(" softmax ", enum_name(attention.softmax));
  return text + (attention.has_output_gate ? " output gate" : "");
}

std::string describe(const RecurrentSpec& recurrent) {
  const ScanShape& shape = recurrent.shape;
  const char* name = recurrent.is_mamba()      ? "mamba-2 "
                     : shape.decays_channels() ? "kimi delta attention "
                                               : "gated deltanet ";
  return str(name, shape.heads(), "/", shape.groups, " state ", shape.key_dim, " x ", shape.value_dim);
}

std::string describe(const MultiLatentAttentionSpec& attention) {
  std::string text = str("multi-latent attention ", attention.num_heads, " heads, latents ");
  if (attention.q_lora_rank > 0) text += str(attention.q_lora_rank, "/");
  text += str(attention.kv_lora_rank, attention.rope == RotaryKind::None ? " nope" : " rope");
  return attention.window > 0 ? str(text, " window ", attention.window) : text;
}

std::string describe(const BlockSpec& block, const ModelConfig& c) {
  std::vector<std::string> parts;
  const std::string_view activation = enum_name(c.activation_func);
  if (block.attention()) parts.push_back(describe(*block.attention(), c));
  if (block.recurrent()) parts.push_back(describe(*block.recurrent()));
  if (block.latent_attention()) parts.push_back(describe(*block.latent_attention()));
  if (block.mlp()) parts.push_back(str(activation, " ", block.mlp()->ffn_hidden_size));
  if (const MoeSpec* moe = block.moe()) {
    std::string text =
        str(moe->num_experts, " experts top ", c.moe.router_topk, " ", activation, " ", moe->ffn_hidden_size);
    if (moe->latent_size > 0) text += str(" latent ", moe->latent_size);
    if (moe->shared_expert_intermediate_size > 0) text += str(" + shared ", moe->shared_expert_intermediate_size);
    parts.push_back(text);
  }
  if (!c.post_norm_freq.empty() && block.norm_position == NormPosition::Post) parts.emplace_back("post norms");
  return str("[", join(parts, " | "), "]");
}

struct Repetition {
  std::size_t period = 1, count = 1;
};

/// Returns the period that, repeated from `first` on, covers the most elements. Of several such periods, returns the
/// smallest.
Repetition find_repetition(const std::vector<std::string>& texts, std::size_t first) {
  Repetition best;
  for (std::size_t period = 1; first + 2 * period <= texts.size(); ++period) {
    std::size_t end = first + period;
    while (end < texts.size() && texts[end] == texts[end - period]) ++end;
    const std::size_t count = (end - first) / period;
    if (count > 1 && count * period > best.count * best.period) best = {period, count};
  }
  return best;
}

}  // namespace

std::vector<i64> RecurrentSpec::projection_widths() const {
  if (!shape.decays_channels()) return {shape.width()};
  return {shape.conv_width() + shape.heads_per_group, shape.gate_width(), shape.decay_width() - shape.heads_per_group};
}

AttentionSpec MultiLatentAttentionSpec::core() const {
  return {.num_heads = num_heads,
          .num_query_groups = num_heads,
          .head_dim = std::max(query_dim(), v_head_dim),
          .window = window,
          .rope = rope};
}

std::optional<AttentionSpec> BlockSpec::core_attention() const {
  if (attention()) return *attention();
  return latent_attention() ? std::optional(latent_attention()->core()) : std::nullopt;
}

BlockSpec block_spec(const ModelConfig& config, i64 layer) {
  const Branches branches = branches_of(config, layer);
  layer = std::min(layer, config.num_layers - 1);
  BlockSpec block;
  const bool has_post_norms = is_selected(config.post_norm_freq, layer, /*is_nth=*/true, /*if_empty=*/false);
  block.norm_position = has_post_norms ? NormPosition::Post : config.norm_position;
  if (const std::optional<ScanShape> shape = scan_shape(config, branches.mixer))
    block.mixer = RecurrentSpec{.shape = *shape, .conv_taps = config.recurrent.linear_conv_kernel_dim};
  else if (branches.mixer == kAttention && config.mla.is_used)
    block.mixer = latent_attention_spec(config, layer);
  else if (branches.mixer == kAttention)
    block.mixer = attention_spec(config, layer);
  if (branches.feed_forward == kMlp) block.feed_forward = MlpSpec{config.ffn(layer)};
  if (branches.feed_forward == kExperts)
    block.feed_forward = MoeSpec{.num_experts = config.moe.num_experts,
                                 .ffn_hidden_size = config.moe_ffn(),
                                 .latent_size = config.moe.latent_size,
                                 .shared_expert_intermediate_size = config.moe.shared_expert_intermediate_size};
  return block;
}

i64 count_branches(const ModelConfig& config) {
  return config.hybrid_layer_pattern.empty() ? 2 * config.num_layers : config.num_layers;
}

std::vector<BlockSpec> block_specs(const ModelConfig& config, i64 first, i64 end) {
  std::vector<BlockSpec> blocks;
  for (i64 layer = first; layer < end; ++layer) blocks.push_back(block_spec(config, layer));
  return blocks;
}

std::vector<BlockSpec> block_specs(const ModelConfig& config) {
  return block_specs(config, 0, config.num_layers);
}

BlockKinds::BlockKinds(const ModelConfig& config, const std::vector<i64>& variants) {
  const auto variant = [&](std::size_t layer) { return layer < variants.size() ? variants[layer] : 0; };
  for (const BlockSpec& block : block_specs(config, 0, config.num_blocks())) {
    const std::size_t layer = kind_of_layer.size();
    std::size_t kind = 0;
    while (kind < kinds.size() &&
           (kinds[kind] != block || variant(static_cast<std::size_t>(first_layers[kind])) != variant(layer)))
      ++kind;
    kind_of_layer.push_back(kind);
    if (kind < kinds.size()) continue;
    kinds.push_back(block);
    first_layers.push_back(static_cast<i64>(layer));
  }
}

std::vector<i64> BlockKinds::count(i64 first, i64 end) const {
  std::vector<i64> counts(kinds.size(), 0);
  for (i64 layer = first; layer < end; ++layer) ++counts[kind_of_layer.at(static_cast<std::size_t>(layer))];
  return counts;
}

std::string describe_blocks(const ModelConfig& config) {
  std::vector<std::string> texts, groups;
  for (const BlockSpec& block : block_specs(config)) texts.push_back(describe(block, config));
  for (std::size_t at = 0; at < texts.size();) {
    const auto [period, count] = find_repetition(texts, at);
    std::string group = join(
        {texts.begin() + static_cast<std::ptrdiff_t>(at), texts.begin() + static_cast<std::ptrdiff_t>(at + period)},
        " ");
    if (period > 1) group = str("(", group, ")");
    groups.push_back(count > 1 || texts.size() == 1 ? str(count, " x ", group) : group);
    at += period * count;
  }
  if (config.mtp_num_layers > 0)
    groups.push_back(str(config.mtp_num_layers, " x ", describe(block_spec(config, config.num_layers), config),
                         " for multi-token prediction"));
  return join(groups, ", ");
}

std::vector<i64> layers_with_experts(const ModelConfig& config, i64 first, i64 end) {
  std::vector<i64> layers;
  for (i64 layer = first; layer < end; ++layer)
    if (block_spec(config, layer).moe()) layers.push_back(layer);
  return layers;
}

ModelSizes model_sizes(const ModelConfig& config) {
  ModelSizes sizes{.num_layers = config.num_layers,
                   .mtp_num_layers = config.mtp_num_layers,
                   .padded_vocab_size = config.padded_vocab_size(),
                   .seq_length = config.seq_length,
                   .num_experts = config.moe.num_experts,
                   .moe_ffn_hidden_size = config.moe_ffn(),
                   .ties_embeddings = !config.untie_embeddings_and_output_weights};
  std::vector<i64> heads, groups, ffn;
  for (const BlockSpec& block : BlockKinds(config).kinds) {
    if (const std::optional<AttentionSpec> attention = block.core_attention()) {
      heads.push_back(attention->num_heads);
      groups.push_back(attention->num_query_groups);
    }
    if (const RecurrentSpec* recurrent = block.recurrent())
      (recurrent->is_mamba() ? sizes.mamba_num_groups : sizes.linear_num_key_heads) = recurrent->shape.groups;
    ffn.push_back(block.mlp() ? block.mlp()->ffn_hidden_size : 0);
  }
  if (!heads.empty()) sizes.num_attention_heads = PerLayer(heads), sizes.num_query_groups = PerLayer(groups);
  sizes.ffn_hidden_size = PerLayer(ffn);
  return sizes;
}

}  // namespace mcpp
