#include "model/layer_memory.h"

#include <algorithm>

#include "base/integer_math.h"
#include "parallel/ep/capacity.h"
#include "tensor/device.h"
#include "tensor/dtype.h"

namespace mcpp {
namespace {

/// Sizes in bytes of the tensors of a layer on one rank, named after the modules that create them.
struct LayerTensors {
  i64 residual = 0;           ///< x [s, b, h] between the parallel regions: this rank's shard with sequence parallelism
  i64 full = 0;               ///< [s, b, h] inside the parallel regions
  i64 qkv = 0, heads = 0;     ///< [s, b, queries + keys + values], and the queries' part alone
  i64 exchanged_qkv = 0;      ///< after the exchange of heads: larger if several ranks get the same query group
  i64 up = 0, activated = 0;  ///< [s, b, ffn], twice if gated; [s, b, ffn]
  i64 statistics = 0,
      log_sum_exps = 0;  ///< norm statistics, [s b] each; log-sum-exps of attention, [b, heads, s]; fp32
  i64 head_norms = 0;    ///< queries and keys before their norms, and the norms' statistics
};

i64 local_query_groups(const AttentionSpec& attention, const ActivationSetup& setup) {
  return std::max<i64>(attention.num_query_groups / setup.tensor_parallel, 1);
}
bool exchange_shares_groups(const AttentionSpec& attention, const ActivationSetup& setup) {
  return local_query_groups(attention, setup) % setup.partition.heads != 0;
}
i64 statistics_per_norm(const ModelConfig& c) {
  return c.normalization == Normalization::LayerNorm ? 2 : 1;
}
bool splits_sequence(const ActivationSetup& setup) {
  return setup.sequence_parallel && setup.tensor_parallel > 1;
}

/// Adds the sizes of attention's tensors.
void add_attention(const ModelConfig& c, const AttentionSpec& attention, const ActivationSetup& setup,
                   LayerTensors& t) {
  const i64 tokens = setup.tokens(c), head = tokens * attention.head_dim * size_of(setup.dtype);
  const i64 heads = attention.num_heads / setup.tensor_parallel, groups = local_query_groups(attention, setup);
  const i64 statistic = tokens * size_of(accumulate_dtype(setup.dtype));
  const auto normed_head_bytes = [&](i64 count) {
    return padded_alloc_size(count * head) +
           statistics_per_norm(c) * padded_alloc_size((c.qk_layernorm_all_heads ? 1 : count) * statistic);
  };
  const i64 exchanged_groups = exchange_shares_groups(attention, setup) ? setup.partition.heads : groups;
  t.qkv = padded_alloc_size((heads + 2 * groups) * head);
  t.heads = padded_alloc_size(heads * head);
  t.exchanged_qkv = padded_alloc_size((heads + 2 * exchanged_groups) * head);
  t.log_sum_exps = padded_alloc_size(heads * statistic);
  t.head_norms = c.qk_layernorm ? normed_head_bytes(heads) + normed_head_bytes(groups) : 0;
}

LayerTensors layer_tensors(const ModelConfig& c, const BlockSpec& block, const ActivationSetup& setup) {
  const i64 tokens = setup.tokens(c), element = size_of(setup.dtype);
  const i64 statistic = tokens * size_of(accumulate_dtype(setup.dtype));
  LayerTensors t{.residual = padded_alloc_size(residual_bytes(c, setup)),
                 .full = padded_alloc_size(tokens * c.hidden_size * element),
                 .statistics = statistics_per_norm(c) *
                               padded_alloc_size(statistic / (setup.sequence_parallel ? setup.tensor_parallel : 1))};
  if (block.attention()) add_attention(c, *block.attention(), setup, t);
  const i64 activated = tokens * (block.mlp() ? block.mlp()->ffn_hidden_size : 0) / setup.tensor_parallel * element;
  t.up = padded_alloc_size((c.is_gated() ? 2 : 1) * activated);
  t.activated = padded_alloc_size(activated);
  return t;
}

i64 norm_bytes(const LayerTensors& t, bool keeps_output) {
  return t.residual + t.statistics + (keeps_output ? t.residual : 0);
}
/// Bytes saved by the norms around a branch and as its input. `shares_input`: the input is already counted for another
/// branch.
i64 branch_norm_bytes(const ModelConfig& c, const LayerTensors& t, const Recompute& recompute, bool shares_input) {
  const i64 before = c.has_pre_norms() ? norm_bytes(t, !recompute.layernorm) : t.residual;
  return before + (c.has_post_norms() ? norm_bytes(t, false) : 0) - (shares_input ? t.residual : 0);
}
i64 mlp_bytes(const LayerTensors& t, const Recompute& recompute) {
  return t.up + (recompute.mlp_act ? 0 : t.activated);
}
/// Bytes saved by core attention: queries, keys, values and the result.
i64 core_bytes(const LayerTensors& t, const Recompute& recompute) {
  return t.exchanged_qkv + t.log_sum_exps + (recompute.core_attn ? 0 : t.heads);
}
/// If heads are exchanged, the projection after it saves a separate copy of the output.
i64 exchanged_output(const LayerTensors& t, const ActivationSetup& setup) {
  return setup.partition.heads > 1 ? t.heads : 0;
}
i64 attention_bytes(const ModelConfig& c, const BlockSpec& block, const LayerTensors& t, const ActivationSetup& setup) {
  if (!block.attention()) return 0;
  return branch_norm_bytes(c, t, setup.recompute, false) + t.head_norms + core_bytes(t, setup.recompute) +
         exchanged_output(t, setup);
}

/// Rows of tokens on a rank around its experts.
struct ExpertRows {
  i64 sent;      ///< rows sent: one per selected expert of this rank's tokens
  i64 received;  ///< rows received by its experts
};

i64 tokens_to_route(const ModelConfig& c, const ActivationSetup& setup) {
  return ceil_div(setup.tokens(c), setup.tensor_parallel);
}

ExpertRows expert_rows(const ModelConfig& c, const ActivationSetup& setup) {
  const i64 tokens = tokens_to_route(c, setup), topk = c.moe.router_topk;
  const i64 parts = setup.expert_parallel, ranks = parts * setup.expert_tensor_parallel;
  const i64 local_experts = c.moe.num_experts / parts, even = tokens * topk * ranks / parts;
  const i64 max_received = tokens * ranks * std::min(topk, local_experts);
  const i64 received = setup.expert_load == ExpertLoad::Even ? even : max_received;
  if (c.moe.expert_capacity_factor == 0) return {.sent = tokens * topk, .received = received};
  const i64 capacity =
      expert_capacity(c.seq_length * setup.micro_batch_size * topk, c.moe.num_experts, c.moe.expert_capacity_factor);
  const i64 microbatches = max_microbatches(ranks, setup.tensor_parallel * setup.partition.ranks());
  const i64 max_rows = std::min(capacity * microbatches, tokens * ranks) * local_experts;
  return {.sent = tokens * topk,
          .received = c.moe.pad_expert_input_to_capacity ? max_rows : std::min(received, max_rows)};
}

/// Sizes of expert rows: as input or output, and inside.
struct RowTensors {
  i64 in, up, activated;
};
RowTensors row_tensors(const ModelConfig& c, const ActivationSetup& setup, i64 rows) {
  const i64 row = rows * size_of(setup.dtype), width = c.moe_ffn() / setup.expert_tensor_parallel;
  return {.in = padded_alloc_size(row * c.hidden_size),
          .up = padded_alloc_size(row * (c.is_gated() ? 2 : 1) * width),
          .activated = padded_alloc_size(row * width)};
}

/// Bytes saved by experts: input, up projection, activation output.
i64 saved_row_bytes(const ModelConfig& c, const ActivationSetup& setup, i64 rows) {
  const RowTensors t = row_tensors(c, setup, rows);
  return t.in + t.up + (setup.recompute.moe_act ? 0 : t.activated);
}

/// Bytes saved by combine(): the expert outputs, on the rank of the token or on that of the expert.
i64 combined_bytes(const ModelConfig& c, const ActivationSetup& setup) {
  const ExpertRows rows = expert_rows(c, setup);
  const bool is_at_experts = setup.dispatcher == TokenDispatcherType::AllGather;
  return row_tensors(c, setup, is_at_experts ? rows.received : rows.sent).in;
}

/// Logits, weights, choices before and after drops, factors of the balancing loss, and the choices gathered from all
/// ranks.
i64 router_bytes(const ModelConfig& c, const ActivationSetup& setup) {
  const MoeConfig& moe = c.moe;
  const i64 tokens = tokens_to_route(c, setup), experts = moe.num_experts, topk = moe.router_topk;
  const i64 value_bytes = size_of(accumulate_dtype(setup.dtype)),
            choices = padded_alloc_size(tokens * topk * size_of(DType::I32));
  const bool has_capacity = moe.expert_capacity_factor > 0, is_balanced = moe.aux_loss_coeff > 0;
  const i64 groups = moe.router_load_balancing_type == LoadBalancing::SeqAuxLoss ? setup.micro_batch_size : 1;
  const i64 ranks = setup.expert_parallel * setup.expert_tensor_parallel;
  const bool gathers_tokens = setup.dispatcher == TokenDispatcherType::AllGather && ranks > 1;
  return padded_alloc_size(tokens * experts * value_bytes) + padded_alloc_size(tokens * topk * value_bytes) +
         (has_capacity ? 2 : 1) * choices +
         (is_balanced ? padded_alloc_size(groups * experts * size_of(DType::F64)) : 0) +
         padded_alloc_size(ranks * (gathers_tokens ? tokens * topk : experts) * size_of(DType::I32));
}

i64 shared_expert_bytes(const ModelConfig& c, const ActivationSetup& setup) {
  const i64 width = c.moe.shared_expert_intermediate_size / setup.tensor_parallel;
  if (width == 0) return 0;
  const i64 row = setup.tokens(c) * size_of(setup.dtype), up = padded_alloc_size(row * (c.is_gated() ? 2 : 1) * width);
  i64 sum = up + (setup.recompute.mlp_act ? 0 : padded_alloc_size(row * width));
  if (c.moe.shared_expert_gate)  // the gate's logits and input, which is the ungated output
    sum += padded_alloc_size(residual_bytes(c, setup)) +
           padded_alloc_size(residual_bytes(c, setup) / c.hidden_size / size_of(setup.dtype) *
                             size_of(accumulate_dtype(setup.dtype)));
  return sum;
}

/// Absolute maxima of the input and weight of each linear layer, from which fp8 scales are computed.
i64 scale_bytes(const BlockSpec& block, const ActivationSetup& setup, i64 layer) {
  if (!setup.fp8.has(layer)) return 0;
  const bool has_mlp = block.mlp() || (block.moe() && block.moe()->shared_expert_intermediate_size > 0);
  return ((block.attention() ? 2 : 0) + (has_mlp ? 2 : 0)) * padded_alloc_size(2 * size_of(DType::F32));
}

/// Returns true if both branches of a block take the same input.
bool shares_input(const ModelConfig& c, const BlockSpec& block) {
  return c.use_parallel_residual && block.has_mixer() && block.has_feed_forward();
}

/// Bytes saved by the feed-forward branch.
i64 feed_forward_bytes(const ModelConfig& c, const BlockSpec& block, const ActivationSetup& setup,
                       const LayerTensors& t) {
  if (!block.has_feed_forward()) return 0;
  const i64 norms = branch_norm_bytes(c, t, setup.recompute, shares_input(c, block));
  if (!block.moe()) return norms + mlp_bytes(t, setup.recompute);
  return norms + router_bytes(c, setup) + saved_row_bytes(c, setup, expert_rows(c, setup).received) +
         combined_bytes(c, setup) + shared_expert_bytes(c, setup);
}

/// A dispatcher's tables for moving rows: token of each row, row of each choice, and after an exchange the permutations
/// in both directions.
i64 dispatch_tables(const ModelConfig& c, const ActivationSetup& setup) {
  const ExpertRows rows = expert_rows(c, setup);
  const i64 etp = setup.expert_tensor_parallel, ranks = setup.expert_parallel * etp;
  const auto table = [](i64 entries) { return padded_alloc_size(entries * size_of(DType::I32)); };
  if (ranks == 1) return 2 * table(rows.sent);
  if (setup.dispatcher == TokenDispatcherType::AllGather) return table(rows.received) + table(rows.sent * ranks);
  return 2 * table(rows.sent) + 2 * table(rows.received) + (etp > 1 ? table(rows.sent * etp) : 0);
}

/// Temporaries of a shared expert's backward during the gradient exchange: gradients of its activation's output and of
/// its input.
i64 shared_expert_working_bytes(const ModelConfig& c, const ActivationSetup& setup) {
  const i64 width = c.moe.shared_expert_intermediate_size / setup.tensor_parallel;
  if (width == 0) return 0;
  return padded_alloc_size(setup.tokens(c) * size_of(setup.dtype) * width) +
         padded_alloc_size(residual_bytes(c, setup));
}

/// Returns the peak of the experts' backward. Either at their first matrices: the received output gradient, the
/// gradients of the activation's output and of the input. Or when input gradients are sent back, packed and unpacked
/// again, after saved rows were freed unless weight gradients are delayed.
i64 experts_working_bytes(const ModelConfig& c, const ActivationSetup& setup, bool delays_wgrad) {
  const ExpertRows rows = expert_rows(c, setup);
  const RowTensors t = row_tensors(c, setup, rows.received);
  const bool has_exchange = setup.expert_parallel * setup.expert_tensor_parallel > 1;
  const i64 exchanged = has_exchange && setup.dispatcher == TokenDispatcherType::AllToAll ? t.in : 0;
  const i64 at_fc1 = exchanged + t.in + (setup.recompute.moe_act ? 2 : 1) * t.activated;
  const i64 sent = row_tensors(c, setup, rows.sent * setup.expert_tensor_parallel).in;
  const i64 returning = has_exchange ? exchanged + 2 * t.in + sent + shared_expert_working_bytes(c, setup) : 0;
  const i64 freed = delays_wgrad ? 0 : saved_row_bytes(c, setup, rows.received);
  return std::max(at_fc1, returning - freed) + dispatch_tables(c, setup);
}

/// Size of the expert output gradient, kept for delayed weight gradients, minus what combine() saved, which it
/// replaces.
i64 extra_delayed_expert_bytes(const ModelConfig& c, const ActivationSetup& setup) {
  return row_tensors(c, setup, expert_rows(c, setup).received).in - combined_bytes(c, setup);
}

/// Other ranks' keys and values held during backward, and gradients in the accumulate dtype: see RingAttention and
/// GatheredAttention.
i64 remote_kv_bytes(const LayerTensors& t, const ActivationSetup& setup) {
  const i64 ranks = setup.partition.rings, keys_values = t.exchanged_qkv - t.heads;
  const i64 widening = size_of(accumulate_dtype(setup.dtype)) / size_of(setup.dtype);
  if (ranks == 1) return 0;
  if (setup.cp_comm_type == CpCommType::AllGather)
    return ranks * keys_values + (3 * ranks + 2) * keys_values * widening / 2;
  // Gradients: the rank's own, the computed ones, and with more ranks those received and sent; or, when two ranks are
  // done with the keys, the returning ones instead. Keys that were sent stay allocated while they are forwarded, except
  // the last.
  const i64 queries = 2 * t.heads * widening, gradients = keys_values * widening;
  if (ranks == 2) return queries + std::max(keys_values + 2 * gradients, 3 * gradients);
  if (ranks == 3) return queries + std::max(2 * keys_values + 3 * gradients, keys_values + 4 * gradients);
  return queries + 2 * keys_values + 4 * gradients;
}

/// Temporaries of core attention's backward: gradients of its output, and of queries, keys and values before and after
/// the exchange of heads, which packs them again.
i64 core_working_bytes(const AttentionSpec& attention, const ActivationSetup& setup, const LayerTensors& t) {
  const i64 widening = size_of(accumulate_dtype(setup.dtype)) / size_of(setup.dtype),
            recomputed = setup.recompute.core_attn ? t.heads : 0;
  if (setup.partition.heads == 1) return t.heads + t.qkv + recomputed + remote_kv_bytes(t, setup);
  const i64 gradient =
      exchange_shares_groups(attention, setup) ? t.heads + (t.exchanged_qkv - t.heads) * widening : t.exchanged_qkv;
  // The output saved by the projection has been freed.
  return t.qkv + recomputed + gradient + std::max(t.heads + remote_kv_bytes(t, setup), gradient);
}

}  // namespace

i64 residual_bytes(const ModelConfig& c, const ActivationSetup& setup) {
  return setup.tokens(c) * c.hidden_size * size_of(setup.dtype) / (setup.sequence_parallel ? setup.tensor_parallel : 1);
}

i64 recompute_input_bytes(const ModelConfig& c, const ActivationSetup& setup) {
  return residual_bytes(c, setup) / (setup.recompute.shards_saved_inputs ? setup.tensor_parallel : 1);
}

i64 layer_activation_bytes(const ModelConfig& config, const ActivationSetup& setup, i64 layer) {
  const BlockSpec block = block_spec(config, layer);
  const LayerTensors t = layer_tensors(config, block, setup);
  return attention_bytes(config, block, t, setup) + feed_forward_bytes(config, block, setup, t) +
         scale_bytes(block, setup, layer);
}

namespace {

/// Sizes at the moments of a layer's backward pass.
struct BackwardSizes {
  i64 dy;               ///< all copies of the output gradient
  i64 gathered;         ///< the output gradient of the parallel region, if gathered
  i64 column_parallel;  ///< at a column-parallel product: input gradient, unreduced and reduced, and gathered input
};

BackwardSizes backward_sizes(const ModelConfig& c, const BlockSpec& block, const ActivationSetup& setup,
                             const LayerTensors& t, bool delays_wgrad) {
  const bool splits = splits_sequence(setup), drops = c.hidden_dropout > 0, shares = shares_input(c, block);
  // Copies of dy: of the result; after dropout; before the norm after the branch; for the input of parallel branches. A
  // delayed weight gradient's operand is not overwritten.
  const bool copies_dy = delays_wgrad && !drops && !c.has_post_norms() && !shares;
  const i64 copies = 1 + (drops ? 1 : 0) + (c.has_post_norms() ? 1 : 0) + (shares ? 1 : 0) + (copies_dy ? 1 : 0);
  const i64 recomputed_norm = setup.recompute.layernorm ? t.residual : 0;
  return {.dy = copies * t.residual,
          .gathered = splits ? t.full : 0,
          .column_parallel = recomputed_norm + t.full + (splits ? t.full + t.residual : 0)};
}

/// Peak of attention's backward at core attention or at the QKV product. What the feed-forward branch saved has been
/// freed, and so have operands of earlier products, unless weight gradients are delayed.
i64 attention_working_bytes(const ModelConfig& c, const BlockSpec& block, const ActivationSetup& setup,
                            const LayerTensors& t, bool delays_wgrad) {
  const Recompute& r = setup.recompute;
  const BackwardSizes sizes = backward_sizes(c, block, setup, t, delays_wgrad);
  i64 freed = feed_forward_bytes(c, block, setup, t);
  if (delays_wgrad && block.has_feed_forward())  // recomputed tensors stay allocated; only statistics are freed
    freed = t.statistics - (r.layernorm ? t.residual : 0) - (r.mlp_act ? t.activated : 0) -
            (block.moe() ? extra_delayed_expert_bytes(c, setup) : 0);
  const i64 core = sizes.dy + core_working_bytes(*block.attention(), setup, t) - freed;
  const i64 core_freed = delays_wgrad ? t.exchanged_qkv + t.log_sum_exps - (r.core_attn ? t.heads : 0)
                                      : core_bytes(t, r) + exchanged_output(t, setup);
  const i64 qkv = sizes.dy + t.heads + t.qkv + sizes.column_parallel - freed - core_freed - t.head_norms;
  return std::max(core, qkv);
}

/// Peak of the feed-forward branch's backward at one of its two products, or in the experts.
i64 feed_forward_working_bytes(const ModelConfig& c, const BlockSpec& block, const ActivationSetup& setup,
                               const LayerTensors& t, bool delays_wgrad) {
  const BackwardSizes sizes = backward_sizes(c, block, setup, t, delays_wgrad);
  if (block.moe()) return sizes.dy + experts_working_bytes(c, setup, delays_wgrad);
  const i64 recomputed = setup.recompute.mlp_act ? t.activated : 0;
  const i64 fc2 = sizes.dy + sizes.gathered + t.activated + recomputed;
  const i64 fc1 = sizes.dy + recomputed + (delays_wgrad ? t.activated : 0) + sizes.column_parallel;
  return std::max(fc2, fc1);
}

}  // namespace

i64 layer_working_bytes(const ModelConfig& c, const ActivationSetup& setup, i64 layer, bool delays_wgrad) {
  const BlockSpec block = block_spec(c, layer);
  const LayerTensors t = layer_tensors(c, block, setup);
  i64 peak = 0;
  if (block.attention()) peak = std::max(peak, attention_working_bytes(c, block, setup, t, delays_wgrad));
  if (block.has_feed_forward()) peak = std::max(peak, feed_forward_working_bytes(c, block, setup, t, delays_wgrad));
  return peak;
}

/// Both operands of each product. For the two products that write to the stream these include the output gradient
/// instead of the norms' inputs; for experts the gradient of their output instead of what combine() saved.
i64 layer_delayed_wgrad_bytes(const ModelConfig& c, const ActivationSetup& setup, i64 layer) {
  ActivationSetup kept = setup;
  kept.recompute = {};  // recomputed tensors also stay allocated
  const BlockSpec block = block_spec(c, layer);
  const LayerTensors t = layer_tensors(c, block, kept);
  i64 bytes = 2 * scale_bytes(block, setup, layer);  // including those of gradients
  if (block.attention()) bytes += 2 * t.residual + t.qkv + t.heads;
  if (block.moe()) bytes += feed_forward_bytes(c, block, kept, t) + extra_delayed_expert_bytes(c, setup);
  if (block.mlp()) bytes += 2 * t.residual + t.up + t.activated;
  return bytes;
}

LayerSizes::LayerSizes(const ModelConfig& config, const ActivationSetup& setup) : config_(config), setup_(setup) {
  for (i64 layer = 0; layer < config.num_layers; ++layer) {
    const BlockSpec block = block_spec(config, layer);
    const bool is_fp8 = setup.fp8.has(layer);
    const auto same = [&](const Kind& kind) { return kind.block == block && kind.is_fp8 == is_fp8; };
    const auto it = std::ranges::find_if(kinds_, same);
    kind_of_layer_.push_back(static_cast<std::size_t>(it - kinds_.begin()));
    if (it == kinds_.end()) kinds_.push_back({layer, block, is_fp8, {}});
  }
}

const LayerBytes& LayerSizes::layer(i64 index) {
  Kind& kind = kinds_[kind_of_layer_.at(static_cast<std::size_t>(index))];
  if (!kind.bytes)
    kind.bytes = {.kept = layer_activation_bytes(config_, setup_, kind.layer),
                  .working = layer_working_bytes(config_, setup_, kind.layer, false),
                  .working_delayed_wgrad = layer_working_bytes(config_, setup_, kind.layer, true),
                  .waiting = layer_delayed_wgrad_bytes(config_, setup_, kind.layer)};
  return *kind.bytes;
}

i64 output_bytes(const ModelConfig& c, const ActivationSetup& setup) {
  return norm_bytes(layer_tensors(c, {}, setup), true) +
         padded_alloc_size(setup.tokens(c) * c.padded_vocab_size() / setup.tensor_parallel * size_of(setup.dtype));
}

i64 output_delayed_wgrad_bytes(const ModelConfig& c, const ActivationSetup& setup) {
  const LayerTensors t = layer_tensors(c, {}, setup);
  return output_bytes(c, setup) - t.residual - t.statistics;
}

i64 output_working_bytes(const ModelConfig& c, const ActivationSetup& setup) {
  const LayerTensors t = layer_tensors(c, {}, setup);
  return splits_sequence(setup) ? 2 * t.full + t.residual : 2 * t.full;
}

const LayerBytes& LayerSizes::output() {
  if (!output_) {
    const i64 working = output_working_bytes(config_, setup_);
    output_ = {.kept = output_bytes(config_, setup_),
               .working = working,
               .working_delayed_wgrad = working,
               .waiting = output_delayed_wgrad_bytes(config_, setup_)};
  }
  return *output_;
}

}  // namespace mcpp
