#include "megatron_cpp/config/config_compare.h"

#include <algorithm>
#include <array>

#include "base/check.h"
#include "base/strings.h"

namespace mcpp {
namespace {

/// "section." stands for all keys of a section, and "data.fim_" for all keys that begin with it.
constexpr std::array<std::string_view, 33> kRunDefining{"model.",
                                                        "optimizer.",
                                                        "training.seed",
                                                        "training.global_batch_size",
                                                        "data.data_path",
                                                        "training.step_batch_size_schedule",
                                                        "data.split",
                                                        "training.precision",
                                                        "training.fp8",
                                                        "training.fp8_recipe",
                                                        "training.fp8_amax_history_len",
                                                        "training.fp8_amax_compute_algo",
                                                        "training.fp8_margin",
                                                        "training.first_last_layers_bf16",
                                                        "training.num_layers_at_start_in_bf16",
                                                        "training.num_layers_at_end_in_bf16",
                                                        "training.low_precision",
                                                        "training.moe_fp8_dispatch",
                                                        "data.train_data_path",
                                                        "data.valid_data_path",
                                                        "data.test_data_path",
                                                        "data.mock_data",
                                                        "data.tokenizer_model",
                                                        "data.reset_position_ids",
                                                        "data.reset_attention_mask",
                                                        "data.eod_mask_loss",
                                                        "data.eod_token",
                                                        "data.fim_",
                                                        "parallel.zero_quantized_weights",
                                                        "parallel.zero_quantized_gradients",
                                                        "parallel.grad_reduce_dtype",
                                                        "parallel.power_sgd_rank",
                                                        "parallel.power_sgd_start_iter"};

/// Run-defining keys other than model.seq_length that decide which text a sample number refers to.
constexpr std::array<std::string_view, 5> kSampleOrderKeys{"training.seed", "data.data_path", "data.train_data_path",
                                                           "data.split", "data.mock_data"};
/// Keys that decide which tensors a checkpoint holds, of which shape and type. A run cannot continue with
/// different tensors.
constexpr auto kTensorDefining = std::to_array<std::string_view>({"training.precision",
                                                                  "optimizer.optimizer",
                                                                  "model.num_layers",
                                                                  "model.hidden_size",
                                                                  "model.ffn_hidden_size",
                                                                  "model.num_attention_heads",
                                                                  "model.num_query_groups",
                                                                  "model.hybrid_layer_pattern",
                                                                  "model.kv_channels",
                                                                  "model.vocab_size",
                                                                  "model.normalization",
                                                                  "model.norm_position",
                                                                  "model.post_norm_freq",
                                                                  "model.qk_layernorm",
                                                                  "model.qk_layernorm_all_heads",
                                                                  "model.attention_output_gate",
                                                                  "model.softmax_type",
                                                                  "model.multi_latent_attention",
                                                                  "model.q_lora_rank",
                                                                  "model.kv_lora_rank",
                                                                  "model.qk_head_dim",
                                                                  "model.qk_pos_emb_head_dim",
                                                                  "model.v_head_dim",
                                                                  "model.linear_attention_freq",
                                                                  "model.linear_attention_type",
                                                                  "model.linear_num_key_heads",
                                                                  "model.linear_num_value_heads",
                                                                  "model.linear_key_head_dim",
                                                                  "model.linear_value_head_dim",
                                                                  "model.linear_conv_kernel_dim",
                                                                  "model.mamba_state_dim",
                                                                  "model.mamba_head_dim",
                                                                  "model.mamba_num_groups",
                                                                  "model.mamba_num_heads",
                                                                  "model.add_bias_linear",
                                                                  "model.add_qkv_bias",
                                                                  "model.add_attention_output_bias",
                                                                  "model.add_mlp_bias",
                                                                  "model.untie_embeddings_and_output_weights",
                                                                  "model.num_experts",
                                                                  "model.moe_layer_freq",
                                                                  "model.moe_ffn_hidden_size",
                                                                  "model.moe_latent_size",
                                                                  "model.moe_shared_expert_intermediate_size",
                                                                  "model.moe_shared_expert_gate",
                                                                  "model.moe_router_add_bias",
                                                                  "model.moe_router_enable_expert_bias",
                                                                  "model.mtp_num_layers",
                                                                  "model.mtp_hybrid_layer_pattern",
                                                                  "model.position_embedding_type"});

bool defines_tensors(std::string_view key) {
  return std::ranges::count(kTensorDefining, key) > 0;
}

/// Returns true for keys of run-defining sections that do not change the weights: where values are stored or in how
/// many parts, and what is computed from them.
bool leaves_weights_unchanged(std::string_view key) {
  return key.starts_with("optimizer.offload") || key.starts_with("optimizer.ema_") ||
         key == "optimizer.store_param_remainders";
}

bool defines_run(std::string_view key) {
  if (leaves_weights_unchanged(key)) return false;
  return std::any_of(kRunDefining.begin(), kRunDefining.end(), [&](std::string_view entry) {
    return entry.ends_with('.') || entry.ends_with('_') ? key.starts_with(entry) : key == entry;
  });
}

/// RoPE scaling depends on the longest context unless its original length is set explicitly.
void resolve_context(ModelConfig& m) {
  const RopeScalingType type = m.rope_scaling.type;
  if (type == RopeScalingType::Yarn || type == RopeScalingType::Llama3)
    m.rope_scaling.original_max_position_embeddings = m.rope_scaling.original_context(m.max_positions());
}

/// Returns the configuration with the values that 0 stands for.
Config with_resolved_defaults(Config config) {
  ModelConfig& m = config.model;
  resolve_sizes(m);
  m.kv_channels = m.head_dim();
  m.max_position_embeddings = m.max_positions();
  resolve_context(m);
  return config;
}

/// Returns `model` without the keys that do not change the function its weights compute.
ModelConfig architecture(ModelConfig model) {
  const ModelConfig defaults;
  const bool is_learned = model.position_embedding_type == PositionEmbedding::LearnedAbsolute;
  resolve_context(model);
  model.max_position_embeddings = is_learned ? model.max_positions() : 0;
  model.seq_length = defaults.seq_length;
  model.hidden_dropout = defaults.hidden_dropout;
  model.attention_dropout = defaults.attention_dropout;
  model.init_method_std = defaults.init_method_std;
  model.embedding_init_method_std = defaults.embedding_init_method_std;
  model.depth_init = defaults.depth_init;
  model.output_z_loss_coeff = defaults.output_z_loss_coeff;
  model.mtp_loss_scaling_factor = defaults.mtp_loss_scaling_factor;
  model.moe.router_dtype = defaults.moe.router_dtype;
  model.moe.router_load_balancing_type = defaults.moe.router_load_balancing_type;
  model.moe.router_bias_update_rate = defaults.moe.router_bias_update_rate;
  model.moe.aux_loss_coeff = defaults.moe.aux_loss_coeff;
  model.moe.z_loss_coeff = defaults.moe.z_loss_coeff;
  model.moe.input_jitter_eps = defaults.moe.input_jitter_eps;
  model.moe.router_force_load_balancing = defaults.moe.router_force_load_balancing;
  model.moe.pad_expert_input_to_capacity = defaults.moe.pad_expert_input_to_capacity;
  return model;
}

/// Returns advice for messages on starting a run from weights alone.
std::string finetune_advice(const std::string& checkpoint) {
  return str("start a new run from the weights: --checkpoint.finetune --checkpoint.load=", checkpoint,
             ", with a different --checkpoint.save");
}

/// Throws BadInput if a difference changes the tensors themselves: allowing it would only fail later.
void refuse_other_tensors(const std::vector<Difference>& changes, const std::string& checkpoint) {
  std::vector<std::string> lines;
  bool is_same_model = true;
  for (const Difference& difference : changes) {
    if (!defines_tensors(difference.key)) continue;
    lines.push_back(
        str("\n  ", difference.key, ": ", difference.before, " in the checkpoint, ", difference.now, " now"));
    is_same_model = is_same_model && !difference.key.starts_with("model.");
  }
  check_input(lines.empty(), checkpoint,
              ": belongs to a different run, whose tensors do not fit this one:", join(lines, ""),
              "\nSet these keys back, or ",
              is_same_model ? finetune_advice(checkpoint) : "train this model with a different --checkpoint.save",
              "; checkpoint.allow_changed_keys does not cover this");
}

/// Throws BadInput with `what` and the differences that are not allowed, with `otherwise` as an alternative solution.
void refuse_unless_accepted(const std::vector<Difference>& changes, const std::vector<std::string>& accepted,
                            const std::string& what, const std::string& otherwise, const Log& log) {
  std::vector<std::string> lines, refused;
  for (const Difference& difference : changes) {
    const std::string text =
        str(difference.key, ": ", difference.before, " in the checkpoint, ", difference.now, " now");
    if (std::ranges::count(accepted, difference.key) > 0) {
      log.info("accepted: " + text);
      continue;
    }
    lines.push_back("\n  " + text);
    refused.push_back(difference.key);
  }
  check_input(lines.empty(), what, join(lines, ""),
              "\nSet these keys back, or accept the change with --checkpoint.allow_changed_keys=", join(refused, ","),
              otherwise);
}

/// Throws BadInput if the batch size schedule is in tokens and the sequence length changed: tokens are converted with
/// the current length, but the samples consumed so far had the former length.
void refuse_token_positions(const Config& saved, const Config& now, const std::string& checkpoint) {
  const i64 before = saved.model.seq_length, after = now.model.seq_length;
  check_input(before == after || !has_token_positions(now.training.step_batch_size_schedule), checkpoint,
              ": training.step_batch_size_schedule states positions in tokens, but model.seq_length was ", before,
              " and is now ", after,
              "; state them in samples, and accept the change with "
              "--checkpoint.allow_changed_keys=model.seq_length,training.step_batch_size_schedule");
}

std::string evaluation_text(const Config& config) {
  return config.data.full_validation ? "all held-out samples" : str(config.evaluation_samples(), " samples");
}

std::string training_length_text(const TrainingConfig& training) {
  return training.train_iters > 0 ? str(training.train_iters, " iterations") : str(training.train_samples, " samples");
}

}  // namespace

std::vector<std::string> run_defining_keys() {
  Config config;
  std::vector<std::string> keys;
  for (const Field& field : config_fields(config)) {
    if (defines_run(field.key)) keys.push_back(field.key);
  }
  return keys;
}

std::vector<Difference> differences(const Config& before, const Config& now) {
  Config a = before, b = now, full_a = with_resolved_defaults(before), full_b = with_resolved_defaults(now);
  const auto fields_a = config_fields(a), fields_b = config_fields(b);
  const auto values_a = config_fields(full_a), values_b = config_fields(full_b);
  std::vector<Difference> changes;
  for (std::size_t i = 0; i < fields_a.size(); ++i) {
    if (!defines_run(fields_a[i].key) || fields_a[i].print() == fields_b[i].print()) continue;
    Difference difference{fields_a[i].key, values_a[i].print(), values_b[i].print()};
    if (difference.before != difference.now) changes.push_back(std::move(difference));
  }
  return changes;
}

void check_same_run(const Config& saved, const Config& now, const std::string& checkpoint, const Log& log) {
  const std::vector<Difference> changes = differences(saved, now);
  refuse_other_tensors(changes, checkpoint);
  refuse_unless_accepted(changes, now.checkpoint.allow_changed_keys, str(checkpoint, ": belongs to a different run:"),
                         ", or " + finetune_advice(checkpoint), log);
  refuse_token_positions(saved, now, checkpoint);
}

std::vector<Difference> architecture_differences(const ModelConfig& before, const ModelConfig& now) {
  Config a, b;
  a.model = architecture(before);
  b.model = architecture(now);
  return differences(a, b);
}

void check_same_architecture(const Config& saved, const Config& now, const std::string& checkpoint, const Log& log) {
  ModelConfig model = saved.model;
  const i64 layers = model.mtp_num_layers;
  if (layers > 0 && now.model.mtp_num_layers == 0) {
    model.remove_mtp();
    log.warn(str(checkpoint, ": its ", layers, " layers of multi-token prediction are left out; to train them, set ",
                 "--model.mtp_num_layers=", layers));
  }
  refuse_unless_accepted(architecture_differences(model, now.model), now.checkpoint.allow_changed_keys,
                         str(checkpoint, ": has the weights of a different model:"),
                         str("; `megatron_cpp checkpoint show --toml ", checkpoint, "` prints what to set"), log);
}

std::vector<std::string> schedule_warnings(const Config& saved, const Config& now) {
  const TrainingConfig &before = saved.training, &after = now.training;
  const std::string lengths = str("which was ", training_length_text(before), " and is now ",
                                  training_length_text(after), ": from now on it follows the new length");
  std::vector<std::string> warnings;
  const OptimizerConfig& o = now.optimizer;
  const bool has_warmup = o.lr_warmup_iters > 0 || o.lr_warmup_fraction > 0;
  if (o.lr_decay_style == LrDecayStyle::InverseSquareRoot && after.train_iters > 0 && !has_warmup &&
      before.global_batch_size != after.global_batch_size) {
    warnings.push_back(
        "with optimizer.lr_decay_style inverse-square-root and no warm-up the learning rate depends on "
        "training.global_batch_size, which changed: it jumps now. To keep it, scale optimizer.lr with the square root "
        "of the batch size");
  }
  if (before.train_iters == after.train_iters && before.train_samples == after.train_samples) return warnings;
  const bool has_own_length = o.lr_decay_iters > 0 || o.lr_decay_samples > 0;
  if (!has_own_length && (o.lr_decay_style != LrDecayStyle::Constant || o.lr_warmup_fraction > 0)) {
    std::string advice;
    if ((before.train_samples > 0) == (after.train_samples > 0)) {
      const std::string key = after.train_samples > 0 ? "optimizer.lr_decay_samples" : "optimizer.lr_decay_iters";
      advice = str(". To keep the former schedule: --", key, "=", std::max(before.train_iters, before.train_samples),
                   " --checkpoint.allow_changed_keys=", key);
    }
    warnings.push_back(str("the learning rate decays over the entire training, ", lengths, advice));
  }
  if (o.weight_decay_incr_style != WeightDecayIncrStyle::Constant)
    warnings.push_back(str("the weight decay changes over the entire training, ", lengths));
  return warnings;
}

std::vector<std::string> data_warnings(const Config& saved, const Config& now, i64 consumed_samples) {
  std::vector<std::string> warnings, changed;
  for (const Difference& difference : differences(saved, now)) {
    if (std::ranges::count(kSampleOrderKeys, difference.key) > 0) changed.push_back(difference.key);
  }
  if (!changed.empty()) {
    warnings.push_back(str(join(changed, ", "), ": changed, so that samples are reshuffled; sample ", consumed_samples,
                           " of the new order comes next. Text may be read again or skipped, and text that was held "
                           "out may be trained on"));
  }
  const i64 length = now.model.seq_length, saved_length = saved.model.seq_length;
  if (saved_length != length) {
    warnings.push_back(str("model.seq_length was ", saved_length, " and is now ", length, ": the ", consumed_samples,
                           " samples consumed so far had ", saved_length, " tokens, and sample ", consumed_samples,
                           " of ", length, " tokens comes next: samples are split and shuffled again, so that text is ",
                           length > saved_length ? "skipped" : "read again"));
  }
  const std::string before = evaluation_text(saved), after = evaluation_text(now);
  if (saved.training.eval_iters > 0 && now.training.eval_iters > 0 && before != after) {
    warnings.push_back(str("an evaluation read ", before, " and now reads ", after,
                           ": losses before and after this start are not comparable"));
  }
  return warnings;
}

}  // namespace mcpp
