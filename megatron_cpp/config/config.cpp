#include "megatron_cpp/config/config.h"

#include <algorithm>
#include <any>
#include <type_traits>

#include "base/program/program_files.h"
#include "base/strings.h"
#include "checkpoint/directory/run_folder.h"
#include "megatron_cpp/config/config_compare.h"
#include "megatron_cpp/config/cuda_graph_conflicts.h"
#include "megatron_cpp/config/data_files.h"
#include "megatron_cpp/config/settings.h"
#include "megatron_cpp/config/stages.h"
#include "megatron_cpp/config/unused_keys.h"
#include "model/config/block_spec.h"

namespace mcpp {
namespace {

/// Calls header(section) before the first field of each section, and line(field) for every field.
template <class Header, class Line>
void for_each_line(const std::vector<Field>& fields, Header header, Line line) {
  std::string_view section;
  for (const Field& field : fields) {
    if (field.section() != section) header(section = field.section());
    line(field);
  }
}

/// All lengths must be in the unit of the training length, iterations or samples, as in Megatron-LM.
void schedule_unit_conflicts(const Config& config, std::vector<std::string>& errors) {
  const OptimizerConfig& o = config.optimizer;
  const auto refuse = [&](i64 value, const char* key, const char* instead, const char* unit) {
    if (value > 0) errors.push_back(str("optimizer.", key, ": training is counted in ", unit, "; use ", instead));
  };
  if (config.training.train_samples > 0) {
    refuse(o.lr_decay_iters, "lr_decay_iters", "lr_decay_samples", "samples (training.train_samples)");
    refuse(o.lr_warmup_iters, "lr_warmup_iters", "lr_warmup_samples", "samples (training.train_samples)");
    refuse(o.lr_wsd_decay_iters, "lr_wsd_decay_iters", "lr_wsd_decay_samples", "samples (training.train_samples)");
  } else if (config.training.train_iters > 0) {
    refuse(o.lr_decay_samples, "lr_decay_samples", "lr_decay_iters", "iterations (training.train_iters)");
    refuse(o.lr_warmup_samples, "lr_warmup_samples", "lr_warmup_iters", "iterations (training.train_iters)");
    refuse(o.lr_wsd_decay_samples, "lr_wsd_decay_samples", "lr_wsd_decay_iters", "iterations (training.train_iters)");
  }
}

/// Warm-up and WSD decay must fit into the decay, in either unit.
void schedule_length_conflicts(const Config& config, std::vector<std::string>& errors) {
  const auto check = [&](i64 decay, i64 total, i64 warmup, i64 wsd, const char* unit) {
    const i64 length = decay > 0 ? decay : total;
    if (length == 0) return;
    if (warmup >= length) {
      errors.push_back(str("optimizer.lr_warmup_", unit, ": ", warmup, " must be below the decay length of ", length,
                           "; lower it, or train longer"));
    }
    if (wsd > length) {
      errors.push_back(str("optimizer.lr_wsd_decay_", unit, ": ", wsd, " is above the decay length of ", length));
    }
  };
  const OptimizerConfig& o = config.optimizer;
  const bool has_own_schedule = config.stage && config.stage->has_own_schedule;
  check(o.lr_decay_iters, has_own_schedule ? config.stage->iterations : config.training.train_iters, o.lr_warmup_iters,
        o.lr_wsd_decay_iters, "iters");
  check(o.lr_decay_samples, config.training.train_samples, o.lr_warmup_samples, o.lr_wsd_decay_samples, "samples");
}

/// Keys of the dynamic loss scale would be ignored with a fixed one.
void loss_scale_conflicts(const Config& config, std::vector<std::string>& errors) {
  const OptimizerConfig& o = config.optimizer;
  if (config.training.precision == Precision::Fp16 && o.loss_scale == 0) return;
  const OptimizerConfig defaults;
  const auto refuse = [&](bool is_set, const char* key) {
    if (is_set)
      errors.push_back(
          str("optimizer.", key, ": only read when training.precision is \"fp16\" and optimizer.loss_scale is 0"));
  };
  refuse(o.initial_loss_scale != defaults.initial_loss_scale, "initial_loss_scale");
  refuse(o.min_loss_scale != defaults.min_loss_scale, "min_loss_scale");
  refuse(o.loss_scale_window != defaults.loss_scale_window, "loss_scale_window");
  refuse(o.hysteresis != defaults.hysteresis, "hysteresis");
}

void allowed_key_conflicts(const Config& config, std::vector<std::string>& errors) {
  const std::vector<std::string> keys = run_defining_keys();
  for (const std::string& key : config.checkpoint.allow_changed_keys) {
    if (std::find(keys.begin(), keys.end(), key) != keys.end()) continue;
    const std::string nearest = nearest_name(key, keys);
    errors.push_back(str("checkpoint.allow_changed_keys: ", toml_string(key), " is not a run-defining key",
                         nearest.empty() ? "" : str("; did you mean ", nearest, "?")));
  }
}

void rollback_conflicts(const Config& config, std::vector<std::string>& errors) {
  if (!config.can_roll_back()) return;
  const bool by_nan = config.training.nan_policy == NanPolicy::Rollback;
  if (config.checkpoint.save.empty() || config.checkpoint.save_interval == 0) {
    errors.push_back(
        str("training.", by_nan ? "nan_policy" : "spike_policy",
            ": rollback needs checkpoints to roll back to: set checkpoint.save and checkpoint.save_interval"));
  }
}

/// There is a single folder for everything that may be offloaded to disk.
void offload_conflicts(const Config& config, std::vector<std::string>& errors) {
  const OptimizerConfig& o = config.optimizer;
  const bool is_needed = config.offloads_to_disk();
  const bool is_given = !o.offload_folder.empty();
  if (is_needed && !is_given)
    errors.push_back("optimizer.offload_folder: is missing; \"file\" needs a folder on a disk");
  if (!is_needed && is_given) {
    errors.push_back(
        "optimizer.offload_folder: only read when offload, offload_params or training.offload_activations is \"file\"");
  }
  if (o.offload_params != OffloadTier::Device && config.parallel.zero_stage != 3) {
    errors.push_back("optimizer.offload_params: requires parallel.zero_stage 3, which shards the weights");
  }
}

void expert_overlap_conflicts(const Config& config, std::vector<std::string>& errors) {
  if (!config.parallel.overlap_moe_expert_parallel_comm) return;
  if (config.training.offload_activations != OffloadTier::Device)
    errors.push_back(
        "parallel.overlap_moe_expert_parallel_comm: alternates between two passes, but training.offload_activations "
        "moves the activations of one pass at a time; remove one of them");
  if (config.device.device == DeviceType::Cuda)
    errors.push_back(
        "parallel.overlap_moe_expert_parallel_comm: supports CPUs only; remove it, or use device.device \"cpu\"");
}

/// muP has no rule for sgd.
void mup_conflicts(const Config& config, std::vector<std::string>& errors) {
  if (config.model.mup.is_used && config.optimizer.optimizer == OptimizerKind::Sgd)
    errors.push_back("model.use_mup: requires optimizer.optimizer \"adam\" or \"muon\"; it has no rules for \"sgd\"");
}

void distribution_conflicts(const Config& config, std::vector<std::string>& errors) {
  const ParallelConfig& p = config.parallel;
  if (!config.training.distribute_saved_activations) return;
  const std::string key = "training.distribute_saved_activations: ";
  if (p.tp == 1)
    errors.push_back(key +
                     "there is one tensor-parallel rank; set parallel.tensor_model_parallel_size, or remove this key");
  else if (p.sequence_parallel)
    errors.push_back(key + "parallel.sequence_parallel already shards the saved inputs over the sequence");
  else if (config.model.hidden_size % p.tp != 0)
    errors.push_back(str(key, "model.hidden_size ", config.model.hidden_size,
                         " is not divisible by parallel.tensor_model_parallel_size ", p.tp));
}

/// Sizes of low-precision GEMMs on GPUs must be multiples of gpu_size_multiple() of every recipe. This includes recipes
/// that a GPU emulates, so that a configuration works on every GPU.
void fp8_size_conflicts(const Config& config, std::vector<std::string>& errors) {
  i64 multiple = 1;
  for (const GemmRecipe recipe : config.training.recipes()) multiple = std::max(multiple, gpu_size_multiple(recipe));
  const char* key = config.training.fp8 == Fp8::None ? "training.low_precision" : "training.fp8";
  const ModelConfig& m = config.model;
  const ParallelConfig& p = config.parallel;
  const i64 tp = p.tp;
  const auto check = [&](const char* what, i64 size) {
    if (size % multiple != 0)
      errors.push_back(str(key, ": on a GPU sizes are multiples of ", multiple, ", but ", what, " is ", size));
  };
  check("model.hidden_size", m.hidden_size);
  bool has_replicated_layers = false;  // ReplicatedLinear, whose input is a rank's part of the sequence
  for (const BlockSpec& block : BlockKinds(m).kinds) {
    if (const AttentionSpec* attention = block.attention()) {
      const i64 heads = attention->num_heads / tp, groups = std::max<i64>(1, attention->num_query_groups / tp);
      check("the width of queries, keys and values per rank", (heads + 2 * groups) * attention->head_dim);
      check("the width of heads per rank", heads * attention->head_dim);
    }
    if (const RecurrentSpec* recurrent = block.recurrent()) {
      const ScanShape& shape = recurrent->shape;
      for (const i64 width : recurrent->projection_widths())
        check("the width of a recurrent mixer's input projection per rank", shape.groups * width / tp);
      if (shape.decays_channels()) check("model.linear_value_head_dim", shape.value_dim), has_replicated_layers = true;
      check("the width of a recurrent mixer's heads per rank", shape.heads() * shape.value_dim / tp);
    }
    if (const MultiLatentAttentionSpec* latent = block.latent_attention()) {
      const i64 heads = latent->num_heads / tp;
      has_replicated_layers = true;
      check("model.q_lora_rank", latent->q_lora_rank);
      check("model.kv_lora_rank", latent->kv_lora_rank);
      check("the width of the latent and the rotary key", latent->latent_width());
      check("the width of queries per rank", heads * latent->query_dim());
      check("the width of keys and values per rank", heads * (latent->qk_head_dim + latent->v_head_dim));
      check("the width of values per rank", heads * latent->v_head_dim);
    }
    if (block.mlp()) check("model.ffn_hidden_size per rank", block.mlp()->ffn_hidden_size / tp);
  }
  check("model.moe_shared_expert_intermediate_size per rank", m.moe.shared_expert_intermediate_size / tp);
  check("model.seq_length per rank", m.seq_length / p.cp);
  if (has_replicated_layers && p.sequence_parallel)
    check("model.seq_length per rank with parallel.sequence_parallel", m.seq_length / p.cp / tp);
}

void fp8_param_gather_conflicts(const Config& config, std::vector<std::string>& errors) {
  if (config.parallel.formats.fp8_param_gather && !config.training.has_low_precision())
    errors.push_back(
        "parallel.fp8_param_gather: needs linear layers with the recipe \"tensorwise\" or \"blockwise\" (training.fp8 "
        "or training.low_precision); remove it");
}

void fp8_layer_conflicts(const Config& config, std::vector<std::string>& errors) {
  const TrainingConfig& t = config.training;
  fp8_param_gather_conflicts(config, errors);
  if (t.has_low_precision() && config.device.device == DeviceType::Cuda) fp8_size_conflicts(config, errors);
  if (t.fp8 == Fp8::None) return;
  const i64 layers = config.model.num_layers;
  if (t.first_last_layers_bf16 && t.num_layers_at_start_in_bf16 + t.num_layers_at_end_in_bf16 >= layers)
    errors.push_back(str("training.num_layers_at_start_in_bf16: ", t.num_layers_at_start_in_bf16,
                         " and num_layers_at_end_in_bf16 ", t.num_layers_at_end_in_bf16, " leave none of the ", layers,
                         " layers in fp8"));
}

/// Requirements of cuBLASLt's GELU epilogue: the tanh approximation, and the size of the matrix it saves for backward.
void gelu_epilogue_conflicts(const Config& config, std::vector<std::string>& errors) {
  if (!config.device.gelu_epilogue) return;
  constexpr i64 kMultiple = 8;
  const std::string key = "device.gelu_epilogue: ";
  const TrainingConfig& t = config.training;
  if (config.model.activation_func != ActivationFunction::Gelu) {
    errors.push_back(str(key, "requires model.activation_func \"gelu\", not \"",
                         enum_name(config.model.activation_func), "\"; remove it"));
  }
  if (t.precision != Precision::Bf16 && t.precision != Precision::Fp16)
    errors.push_back(key + "requires training.precision \"bf16\" or \"fp16\"; remove it");
  if (t.has_low_precision())
    errors.push_back(str(key, "fp8 GEMMs have no epilogues; remove it or ",
                         t.fp8 != Fp8::None ? "training.fp8" : "training.low_precision"));
  if (std::ranges::count(t.recompute_modules, "mlp_act") > 0)
    errors.push_back(key + "saves the output of GELU; remove it, or \"mlp_act\" from training.recompute_modules");
  for (const BlockSpec& block : BlockKinds(config.model).kinds) {
    const i64 width = block.mlp() ? block.mlp()->ffn_hidden_size / config.parallel.tp : 0;
    if (width % kMultiple != 0)
      errors.push_back(
          str(key, "model.ffn_hidden_size per rank is ", width, ", which is not a multiple of ", kMultiple));
  }
}

void qk_clip_conflicts(const Config& config, std::vector<std::string>& errors) {
  if (!config.optimizer.qk_clip) return;
  const ModelConfig& model = config.model;
  const char* limit = model.qk_layernorm                 ? "qk_layernorm"
                      : model.qk_l2_norm                 ? "qk_l2_norm"
                      : model.attn_logit_softcapping > 0 ? "attn_logit_softcapping"
                                                         : nullptr;
  if (limit)
    errors.push_back(str("optimizer.qk_clip: scales weights, but model.", limit,
                         " already limits the attention logits; remove one of them"));
}

void cross_conflicts(const Config& config, std::vector<std::string>& errors) {
  const TrainingConfig& t = config.training;
  const BatchSizeSchedule schedule =
      parse_batch_size_schedule(t.step_batch_size_schedule, config.model.seq_length, t.micro_batch_size);
  for (const std::string& problem : schedule.problems) {
    errors.push_back("training.step_batch_size_schedule: " + problem);
  }
  if (t.recompute_num_layers > config.model.num_layers) {
    errors.push_back(str("training.recompute_num_layers: ", t.recompute_num_layers, " is above model.num_layers ",
                         config.model.num_layers));
  }
  if (t.train_samples > 0 && schedule.problems.empty() && config.training_end().iterations == 0) {
    errors.push_back(str("training.train_samples: ", t.train_samples, " is less than one batch of ",
                         config.batch_sizes().front().batch_size));
  }
  if (config.model.vocab_size == 0 && config.data.tokenizer_model.empty()) {
    errors.push_back("model.vocab_size: is missing; set it or data.tokenizer_model");
  }
  if (!t.eval_tasks.empty() && config.data.tokenizer_model.empty())
    errors.push_back("training.eval_tasks: needs data.tokenizer_model");
  if (!config.logging.sample_prompt.empty() && config.data.tokenizer_model.empty())
    errors.push_back("logging.sample_prompt: needs data.tokenizer_model");
  if (config.optimizer.main_grads_dtype != GradDType::Fp32 && config.parallel.zero_stage < 2) {
    errors.push_back(
        "optimizer.main_grads_dtype: only read with parallel.zero_stage 2 or 3, which keep no full gradients");
  }
  if (config.parallel.formats.power_sgd_rank > 0 && config.training.precision == Precision::Fp16)
    errors.push_back(
        "parallel.power_sgd_rank: its error feedback does not support a dynamic loss scale; use bf16 or fp32");
  if (config.parallel.formats.power_sgd_rank > 0 && config.checkpoint.async_save)
    errors.push_back(
        "parallel.power_sgd_rank: the backward pass changes its error feedback, so that no save can overlap with it; "
        "remove checkpoint.async_save");
  if (config.logging.profile_step_end > 0 && config.profile_path().empty())
    errors.push_back("logging.profile_dir: is missing; a trace needs it, or checkpoint.save");
  if (config.optimizer.store_param_remainders && config.training.precision != Precision::Bf16)
    errors.push_back(
        "optimizer.store_param_remainders: requires training.precision \"bf16\", whose weights are the upper halves "
        "of those in fp32");
  if (config.optimizer.stochastic_rounding && config.training.precision != Precision::Bf16)
    errors.push_back(
        "optimizer.stochastic_rounding: requires training.precision \"bf16\", the type to which it rounds weights");
  fp8_layer_conflicts(config, errors);
  gelu_epilogue_conflicts(config, errors);
  qk_clip_conflicts(config, errors);
  cuda_graph_conflicts(config, errors);
  offload_conflicts(config, errors);
  expert_overlap_conflicts(config, errors);
  distribution_conflicts(config, errors);
  mup_conflicts(config, errors);
  rollback_conflicts(config, errors);
  allowed_key_conflicts(config, errors);
  loss_scale_conflicts(config, errors);
  schedule_unit_conflicts(config, errors);
  schedule_length_conflicts(config, errors);
}

/// Resets keys that only configure saving, so that a single command-line option can turn saving off.
void turn_saving_off(CheckpointConfig& checkpoint) {
  checkpoint.save_interval = checkpoint.local_save_interval = checkpoint.export_hf_interval = 0;
  checkpoint.async_save = false;
  checkpoint.local_save.clear();
  const CheckpointConfig defaults;
  checkpoint.keep_latest_k = defaults.keep_latest_k;
  checkpoint.local_keep_latest_k = defaults.local_keep_latest_k;
  checkpoint.local_replicas = checkpoint.local_ranks_per_node = 0;
  checkpoint.save_retain_interval = defaults.save_retain_interval;
  checkpoint.export_hf_max_shard_size = defaults.export_hf_max_shard_size;
}

}  // namespace

std::vector<std::string> Config::conflicts() const {
  std::vector<std::string> errors;
  sections(*this, [&](std::string_view, const auto& section) {
    if constexpr (requires { section.conflicts(); }) {
      for (std::string& text : section.conflicts()) errors.push_back(std::move(text));
    }
  });
  cross_conflicts(*this, errors);
  return errors;
}

std::vector<BatchSizeStep> Config::batch_sizes() const {
  if (training.step_batch_size_schedule.empty()) {
    return {{0, training.global_batch_size > 0 ? training.global_batch_size : training.micro_batch_size}};
  }
  return parse_batch_size_schedule(training.step_batch_size_schedule, model.seq_length, training.micro_batch_size)
      .steps;
}

TrainingEnd Config::training_end(i64 iteration, i64 consumed_samples) const {
  if (stage) return {stage->last_iteration(), stage->last_sample()};
  const std::vector<BatchSizeStep> steps = batch_sizes();
  if (training.train_iters > 0) {
    const i64 remaining = std::max<i64>(training.train_iters - iteration, 0);
    return {training.train_iters, consumed_samples + remaining * steps.front().batch_size};
  }
  const FullBatches remaining = full_batches(steps, training.train_samples, consumed_samples);
  return {iteration + remaining.iterations, consumed_samples + remaining.samples};
}

i64 Config::evaluation_samples() const {
  return training.eval_iters * batch_sizes().back().batch_size;
}

bool Config::can_roll_back() const {
  return training.nan_policy == NanPolicy::Rollback || training.spike_policy == SpikePolicy::Rollback;
}

bool Config::offloads_to_disk() const {
  const auto tiers = {optimizer.offload, optimizer.offload_params, training.offload_activations};
  return std::ranges::count(tiers, OffloadTier::File) > 0;
}

Path Config::metrics_path() const {
  if (!logging.metrics_path.empty()) return logging.metrics_path;
  return checkpoint.save.empty() ? Path() : run_folder(checkpoint.save) / "metrics.jsonl";
}

Path Config::profile_path() const {
  if (!logging.profile_dir.empty()) return logging.profile_dir;
  return checkpoint.save.empty() ? Path() : run_folder(checkpoint.save) / "traces";
}

std::vector<Field> config_fields(Config& config) {
  std::vector<Field> fields;
  Config::sections(config, [&](std::string_view name, auto& section) { list_fields(section, name, fields); });
  return fields;
}

namespace {

void complete_batch_size(TrainingConfig& t) {
  // Stored explicitly, since it must not change when a resumed run has a different micro batch.
  if (t.global_batch_size == 0 && t.step_batch_size_schedule.empty()) t.global_batch_size = t.micro_batch_size;
}

/// Calls f("section.key", member) for every key.
template <class F>
void for_each_member(Config& config, F&& f) {
  Config::sections(config, [&](std::string_view section, auto& members) {
    const auto visit = [&](std::string_view name, auto& member, std::string_view, const Constraint& = {}) {
      f(str(section, ".", name), member);
    };
    std::remove_reference_t<decltype(members)>::fields(members, visit);
  });
}

void reset_to_default(Config& config, const std::string& key) {
  Config defaults;
  std::any value;
  for_each_member(defaults, [&](const std::string& name, auto& member) {
    if (name == key) value = member;
  });
  for_each_member(config, [&]<class M>(const std::string& name, M& member) {
    if (name == key) member = std::any_cast<M>(value);
  });
}

}  // namespace

Config without_unused_keys(Config config) {
  for (const UnusedKey& unused : unused_keys(config)) reset_to_default(config, unused.key);
  return config;
}

void complete_config(Config& config, SettingsReader& reader, std::string_view default_location) {
  if (reader.was_set("checkpoint.save") && config.checkpoint.save.empty()) turn_saving_off(config.checkpoint);
  read_data_files(config.data, reader, default_location);
  read_stages(config, reader);
  for (const std::string& text : config.conflicts()) reader.add_conflict(text, default_location);
  for (const UnusedKey& unused : unused_keys(config)) {
    // One option on a command line may turn off what a file describes in detail.
    const bool is_turned_off =
        reader.is_from_command_line(unused.disabled_by) && !reader.is_from_command_line(unused.key);
    if (!is_turned_off) reader.add_conflict(str(unused.key, ": ", unused.advice), default_location);
  }
  complete_batch_size(config.training);
}

ConfigText read_config_text(const std::string& file) {
  if (file.empty()) return {};
  const Path installed = find_installed_file(file);
  return {.toml = read_text_file(installed), .name = installed.string()};
}

void read_config(const ConfigText& text, SettingsReader& reader) {
  if (!text.name.empty()) read_toml(text.toml, text.name, reader);
}

Config parse_config(std::string_view toml, const std::string& name, std::span<const std::string> overrides) {
  Config config;
  SettingsReader reader(config_fields(config));
  reader.accept_tables(kStageTable);
  read_toml(toml, name, reader);
  read_arguments(overrides, Usage{}, reader);
  complete_config(config, reader, name);
  reader.finish();
  return config;
}

Config parse_stored_config(std::string_view toml, const std::string& name) {
  Config config;
  SettingsReader reader(config_fields(config));
  read_toml(toml, name, reader);
  for (const std::string& text : config.conflicts()) reader.add_conflict(text, name);
  reader.finish();
  complete_batch_size(config.training);
  return config;
}

Config load_config(const Path& file, std::span<const std::string> overrides) {
  return parse_config(read_text_file(file), file.string(), overrides);
}

std::string print_config(const Config& config) {
  std::vector<std::string> sections;
  Config::sections(config,
                   [&](std::string_view name, const auto&) { sections.push_back(print_section(config, name)); });
  for (const Config& stage : config.stages) sections.push_back(stage.stage->toml);
  return join(sections, "\n");
}

std::string print_section(const Config& config, std::string_view section) {
  Config copy = config;
  std::string text = str("[", section, "]\n");
  for (const Field& field : config_fields(copy)) {
    if (field.section() == section) text += str(field.name(), " = ", field.print(), "\n");
  }
  return text;
}

namespace {

/// Throws BadInput, naming the sections, if `section` is neither empty nor one of them.
void check_section(const std::string& section) {
  Config defaults;
  std::vector<std::string> names;
  Config::sections(defaults, [&](std::string_view name, const auto&) { names.emplace_back(name); });
  names.emplace_back(kStageTable);
  const bool is_known = section.empty() || std::ranges::count(names, section) > 0;
  check_input(is_known, "--help ", section, ": no such section; the sections are ", join(names, ", "));
}

}  // namespace

std::string config_help(const HelpFilter& filter) {
  check_section(filter.section);
  if (filter.section == kStageTable) return stage_help();
  Config defaults;
  std::vector<Field> fields = config_fields(defaults);
  std::erase_if(fields, [&](const Field& field) {
    const std::string words = to_lower(str(field.key, " ", describe_field(field)));
    return (!filter.section.empty() && field.section() != filter.section) ||
           words.find(to_lower(filter.search)) == std::string::npos;
  });
  check_input(!fields.empty(), "--search=", filter.search, ": no configuration key has this text in its name or help");
  std::size_t width = 0;
  for (const Field& field : fields) width = std::max(width, field.name().size() + 2);
  std::string text;
  for_each_line(
      fields, [&](std::string_view section) { text += str(text.empty() ? "" : "\n", "[", section, "]\n"); },
      [&](const Field& field) { text += str("  ", pad_right(field.name(), width), describe_field(field), "\n"); });
  if (filter.section.empty() && filter.search.empty()) text += "\n" + stage_help();
  return text;
}

}  // namespace mcpp
